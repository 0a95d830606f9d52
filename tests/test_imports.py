"""Imports: any module first, numpy alone, nothing heavy, pointing down only, and no large circles."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from flnb_telemetry import extras

from tests.rooms import Import, imports, modules, room

CIRCLE = 10
"""The most modules in a circle of imports, those inside functions included."""
UPWARD = """
"""
"""Imports that point up today. The list may only shrink: one that is repaired has to leave it."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="one fork for each module")
@pytest.mark.parametrize("package", ["flnb", "flnb_telemetry", "flnb_backends"])
def test_any_module_can_be_imported_first(package: str) -> None:
    driver = """
import importlib, os, sys, traceback
import numpy  # which nearly all need, once: it takes most of the time
importlib.import_module(sys.argv[1])  # as Python does before any module of the package
running, failed = {}, []
def wait():
    child, status = os.wait()
    name = running.pop(child)
    if status:
        failed.append(name)
for name in sys.argv[2:]:
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
    names = [name for name in modules() if name.startswith(f"{package}.") and not name.endswith("__main__")]
    assert len(names) > 20
    done = subprocess.run(
        [sys.executable, "-c", driver, package, *names], capture_output=True, text=True, timeout=280, check=False
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


def test_imports_point_down() -> None:
    """Of any kind: eager, inside functions, for types."""
    upward = {i for i in imports() if room(i.target).height > room(i.source).height}
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


def test_a_missing_tool_is_named() -> None:
    with pytest.raises(ImportError, match=r"flnb.no_such_tool is missing: this installation of flnb has the core"):
        extras.tool("flnb.no_such_tool", "show")
    with pytest.raises(ImportError, match=r"flnb.no_such_tool is missing"):
        extras.late("flnb.no_such_tool.below", "show")()
    assert extras.late("json", "loads")("[1]") == [1]
