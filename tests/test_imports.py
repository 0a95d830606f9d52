"""Imports: any module first, numpy alone, nothing heavy, pointing down only, and no large circles."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "flnb": ROOT / "flnb",
    "flnb_telemetry": ROOT / "telemetry" / "flnb_telemetry",
    "flnb_backends": ROOT / "backends" / "flnb_backends",
}
STOREYS = ["faces", "tools", "library", "core"]
CIRCLE = 101
"""Modules in the largest circle of imports, those inside functions included. It may only shrink; the goal is 10."""
UPWARD = """
flnb.autograd.keeping flnb.memory.offloading types
flnb.bench.training flnb eager
flnb.cli flnb function
flnb.dispatch.autocast flnb.ops.table function
flnb.dispatch.autocast flnb.ops.table types
flnb.dispatch.crossing flnb.ops.table types
flnb.dispatch.failure flnb.ops.table types
flnb.dispatch.interpreter flnb.ops.table types
flnb.dispatch.observe flnb.ops.table types
flnb.dispatch.plan flnb.ops.table types
flnb.dispatch.promotion flnb.ops.table types
flnb.dispatch.tracing flnb.ops.table types
flnb.explore.capture flnb.show.cells function
flnb.interface.device flnb.memory.postmortem function
flnb.interface.memory flnb.dispatch.memory function
flnb.interface.tape flnb.autograd.walk types
flnb.magics flnb function
flnb.memory.code_snippets flnb.memory eager
flnb.plot flnb.memory types
flnb.testing.gradients flnb eager
flnb.testing.samples flnb eager
flnb.widgets.proposals flnb eager
flnb.widgets.proposals flnb.memory types
flnb_backends flnb eager
flnb_backends.memory.planned flnb.memory.planning function
flnb_telemetry.formats.parquet flnb_telemetry.formats.torch_snapshot function
flnb_telemetry.recording flnb_telemetry.formats.torch_export function
"""
"""Imports that point up today. The list may only shrink: one that is repaired has to leave it."""


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


class Import(NamedTuple):
    """An import of one of our modules; ``kind``: when the module is imported (eager), inside a function, for types."""

    source: str
    target: str
    kind: str


@cache
def imports() -> list[Import]:
    """Every import of ours in our modules: eager, inside functions and for types."""
    paths = modules()
    found: set[Import] = set()

    def visit(source: str, node: ast.AST, kind: str) -> None:
        for child in ast.iter_child_nodes(node):
            for target in targets(child):
                ours = next((name for name in (target, target.rpartition(".")[0]) if name in paths), source)
                if ours != source:
                    found.add(Import(source, ours, kind))
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                visit(source, ast.Module(child.body, []), "types")
                visit(source, ast.Module(child.orelse, []), kind)
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                visit(source, child, "function" if kind == "eager" else kind)
            else:
                visit(source, child, kind)

    for name, path in paths.items():
        visit(name, ast.parse(path.read_text()), "eager")
    return sorted(found)


def targets(node: ast.AST) -> list[str]:
    """The dotted names that a node imports, ``import_module("name")`` included."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        return [str(a.value) for a in node.args[:1] if isinstance(a, ast.Constant)]
    return []


@cache
def rooms() -> dict[str, int]:
    """The height of each room: its line in the table in ARCHITECTURE.md, counted from below."""
    (table,) = re.findall(r"```rooms\n(.*?)```", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL)
    lines = [line.partition("#")[0].split() for line in table.splitlines()]
    assert [line[0] for line in lines if line[0] in STOREYS] == STOREYS
    lines = [line[1:] if line[0] in STOREYS else line for line in lines]
    return {room: height for height, line in enumerate(reversed(lines)) for room in line}


def height(module: str) -> int:
    """That of the room with the longest name that begins this module's."""
    fitting = [room for room in rooms() if f"{module}.".startswith(f"{room}.") and (room != "flnb" or module == "flnb")]
    assert fitting, f"{module} is in no room: add it to the table in ARCHITECTURE.md"
    return rooms()[max(fitting, key=len)]


def test_imports_point_down() -> None:
    """Of any kind: eager, inside functions, for types."""
    upward = {i for i in imports() if height(i.target) > height(i.source)}
    listed = {Import(*line.split()) for line in UPWARD.strip().splitlines()}
    new, gone = sorted(upward - listed), sorted(listed - upward)
    assert not new, "these point up: " + "; ".join(f"{i.source} imports {i.target} ({i.kind})" for i in new)
    assert not gone, "repaired, take them off the list: " + "; ".join(" ".join(i) for i in gone)


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that reach each other, largest first."""

    def reached(start: str, following: dict[str, set[str]]) -> set[str]:
        found, waiting = {start}, [start]
        while waiting:
            new = following.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    back: dict[str, set[str]] = {}
    for source, following in edges.items():
        for target in following:
            back.setdefault(target, set()).add(source)
    found, done = [], set[str]()
    for name in edges:
        if name not in done:
            found.append(reached(name, edges) & reached(name, back))
            done |= found[-1]
    return sorted(found, key=len, reverse=True)


def test_circles_are_small() -> None:
    """Counted with imports inside functions. Those for types order nothing: two classes may name each other."""
    edges: dict[str, set[str]] = {name: set() for name in modules()}
    for one in imports():
        if one.kind != "types":
            edges[one.source].add(one.target)
    largest = circles(edges)[0]
    assert len(largest) <= CIRCLE, f"a circle of {len(largest)} modules: {', '.join(sorted(largest))}"
