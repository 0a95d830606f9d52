"""Imports: any module first, numpy alone, nothing heavy, and pointing down only."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "flnb": ROOT / "flnb",
    "flnb_telemetry": ROOT / "telemetry" / "flnb_telemetry",
    "flnb_backends": ROOT / "backends" / "flnb_backends",
}
# What a module may import of ours, by layer: anything at its own height or below.
LAYERS = [
    ["flnb_telemetry", "flnb.telemetry"],
    ["flnb.interface"],
    ["flnb.dispatch", "flnb.ops", "flnb.tensor", "flnb.random", "flnb.memory", "flnb_backends", "flnb.backends"],
    ["flnb.autograd"],
    ["flnb.nn", "flnb.optim", "flnb.data", "flnb.meters", "flnb.testing", "flnb.explore"],
    ["flnb.models", "flnb.speech", "flnb.sparse", "flnb.vision"],
    ["flnb.plot", "flnb.show", "flnb.widgets", "flnb.magics", "flnb.lab", "flnb.bench", "flnb.cli"],
]


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_the_layers_are_those_that_are_described(document: str) -> None:
    described = (ROOT / document).read_text()
    aliases = {"flnb.telemetry", "flnb.backends"}  # of packages beside flnb
    assert [name for layer in LAYERS for name in layer if name not in described and name not in aliases] == []


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for name, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            if "node_modules" in path.parts:
                continue
            parts = path.relative_to(folder).with_suffix("").parts
            dotted = ".".join([name, *parts])
            found[dotted.removesuffix(".__init__")] = path
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="one fork for each module")
def test_any_module_can_be_imported_first() -> None:
    driver = """
import importlib, os, sys, traceback
import numpy  # which nearly all need, once: it takes most of the time
running, failed = {}, []
def wait():
    child, status = os.wait()
    name = running.pop(child)
    if status:
        failed.append(name)
for name in sys.argv[1:]:
    while len(running) >= (os.cpu_count() or 1):
        wait()
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    running[child] = name
while running:
    wait()
sys.exit("cannot be imported first: " + ", ".join(failed) if failed else 0)
"""
    names = [name for name in modules() if not name.endswith("__main__")]
    assert len(names) > 20
    done = subprocess.run(
        [sys.executable, "-c", driver, *names], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def run(program: str) -> str:
    """The output of a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_import_needs_numpy_alone() -> None:
    """Whatever the core imports is of the standard library, numpy, or ours."""
    program = """
import sys, json, numpy
before = {name.partition(".")[0] for name in sys.modules}
import flnb
after = {name.partition(".")[0] for name in sys.modules}
ours = {"flnb", "flnb_telemetry", "flnb_backends"}
cython = {name for name in after if "cython" in name}  # numpy.random's own
print(json.dumps(sorted(after - before - ours - cython - set(sys.stdlib_module_names))))
"""
    assert json.loads(run(program)) == []


def test_core_works_where_nothing_else_is_installed() -> None:
    program = """
import sys, numpy
class OnlyCore:
    allowed = {"flnb", "flnb_telemetry", "flnb_backends", "numpy", *sys.stdlib_module_names}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, OnlyCore())
import flnb
v = flnb.Variable(flnb.asarray([1.0, 2.0, 3.0]))
with flnb.record() as run:
    flnb.tanh(v * v).sum().backward()
assert run.ops is not None and v.grad.shape == (3,)
for action in (lambda: run.save("never.flnb"), flnb.dashboard):
    try:
        action()
    except ImportError as error:
        print(error)
    else:
        raise SystemExit("a missing extra was not noticed")
"""
    saving, dashboard = run(program).strip().splitlines()
    assert "pyarrow" in saving
    assert "pip install 'flnb[lab]'" in saving
    assert "anywidget" in dashboard
    assert "pip install 'flnb[lab]'" in dashboard


def test_public_names_exist() -> None:
    program = """
import importlib, sys
for name in " .nn .optim .data .interface .testing .telemetry .memory .models .sparse .speech".split(" "):
    module = importlib.import_module("flnb" + name)
    missing = [public for public in module.__all__ if not hasattr(module, public)]
    assert not missing, (name, missing)
    assert len(set(module.__all__)) == len(module.__all__), name
"""
    run(program)


def layer(name: str) -> int | None:
    """The height of a module's layer; None for `flnb` itself, which gathers them all."""
    for height, prefixes in enumerate(LAYERS):
        if any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes):
            return height
    return None


def imported_at_module_level(path: Path) -> set[str]:
    """What a file imports when it is imported: nothing inside functions or `if TYPE_CHECKING`."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            waiting += list(ast.iter_child_nodes(node))
    return found


@pytest.mark.parametrize("name", list(modules()))
def test_imports_point_down(name: str) -> None:
    own = layer(name)
    for target in imported_at_module_level(modules()[name]):
        if target.partition(".")[0] not in PACKAGES:
            continue
        height = layer(target)
        if name.startswith("flnb_telemetry"):
            assert target.startswith("flnb_telemetry"), f"{name} imports {target}: telemetry imports nothing of flnb"
        elif own is not None and height is not None:
            assert height <= own, f"{name} (layer {own}) imports {target} (layer {height}): imports point down"
