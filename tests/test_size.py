"""Sizes: no long function, and no more code than today's; what is deleted is not written again elsewhere."""

from __future__ import annotations

import ast
import io
import tokenize
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.rooms import ROOT, modules, room

if TYPE_CHECKING:
    from pathlib import Path

LONGEST = 60
"""Lines of a function without its docstring."""


@cache
def code_lines(path: Path) -> int:
    """Lines with code: no blank ones, no comments, no docstrings."""
    source = path.read_text()
    lines: set[int] = set()
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in ignored:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, comments and blank lines included."""
    described = len((ast.get_docstring(node, clean=False) or "").splitlines())
    return (node.end_lineno or 0) - node.lineno + 1 - described


def test_no_function_is_long() -> None:
    functions = [
        (path.relative_to(ROOT), node.name, body_lines(node))
        for path in [*modules().values(), *(ROOT / "benchmarks").rglob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert len(functions) > 2000
    assert [f"{path}: {name} has {count} lines" for path, name, count in functions if count > LONGEST] == []


RANKS = (
    "flnb.distributed", "flnb.dispatch.board", "flnb.dispatch.calls", "flnb.dispatch.communication",
    "flnb.dispatch.groups",
    "flnb.interface.communicator", "flnb.autograd.arrivals", "flnb.testing.communicators", "flnb_backends.comm",
    "flnb.plot.ranks",
    "flnb_telemetry.analysis.collectives", "flnb_telemetry.analysis.joining", "flnb_telemetry.analysis.lateness",
    "flnb_telemetry.analysis.stuck",
    "flnb_telemetry.ranks", "flnb_telemetry.live.collectives", "flnb_telemetry.joined",
)  # fmt: skip
"""Modules of ranks."""
DEVICES = (
    "flnb_backends.tensor.cuda", "flnb_backends.memory.cuda", "flnb.testing.cuda", "flnb.dispatch.devices",
    "flnb.interface.streams",
    "flnb_telemetry.device_words", "flnb_telemetry.analysis.devices", "flnb_telemetry.live.devices",
)  # fmt: skip
"""Modules of devices, which the goals below do not count, nor those of ranks: they have one in common."""
GRAPH = (
    "flnb.graph", "flnb.capture", "flnb.jitted", "flnb.dispatch.effects", "flnb.dispatch.guards",
    "flnb.dispatch.references", "flnb.dispatch.lent",
    "flnb_backends.native",
    "flnb_backends.tensor.captured", "flnb_backends.tensor.choices", "flnb_backends.tensor.cpu",
    "flnb_backends.tensor.deferred", "flnb_backends.tensor.recorded_buffers", "flnb_backends.tensor.replay",
    "flnb_backends.tensor.trace_log", "flnb_backends.tensor.upcoming",
    "flnb.show.programgraph", "flnb.widgets.program", "flnb_telemetry.live.programs",
    "flnb.plot.modes", "flnb.autograd.repeated", "flnb.optim.repeated",
)  # fmt: skip
"""Modules of the graph, which the goals do not count either."""
WITH_ALL, GOAL_WITH_ALL = 27_948, 18_000
"""The most lines of the core with graph, ranks and devices, and the goal, which the core alone exceeds by its part."""


@pytest.mark.parametrize(("storey", "most", "goal"), [("core", 15_858, 11_500), ("", 34_581, 24_500)])
def test_code_does_not_grow(storey: str, most: int, goal: int) -> None:
    """``most`` may only become smaller, until it is the goal: a feature that needs more says in its commit why."""
    counted = {name: path for name, path in modules().items() if not name.startswith(RANKS + DEVICES + GRAPH)}
    total = sum(code_lines(path) for name, path in counted.items() if storey in ("", room(name).storey))
    what = storey or "all Python"
    assert total <= most, f"{what} has {total} lines of code, at most {most} are allowed (the goal is {goal})"


def test_the_core_with_ranks_and_devices_stays_small() -> None:
    total = sum(code_lines(path) for name, path in modules().items() if room(name).storey == "core")
    assert total <= WITH_ALL, (
        f"the core with ranks and devices has {total} lines of code, at most {WITH_ALL} are allowed "
        f"(the goal is {GOAL_WITH_ALL})"
    )


def test_what_a_page_loads_is_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (ROOT / "flnb" / "widgets" / "static").glob("*.js")}
    assert {name: size for name, size in sizes.items() if size > 320 << 10} == {}
    assert "dashboard.js" in sizes
