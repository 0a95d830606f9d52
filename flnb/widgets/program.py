"""`flnb.program`: a widget that shows a compiled function: its graph rewrites, kernels and memory plan."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import intern, load_run, quantity, schema
from flnb_telemetry.extras import require
from flnb_telemetry.recording import Recording

from flnb.graph.describing import launches, times
from flnb.graph.inspection import existing_names, history, programs_of, source
from flnb.graph.layouts import is_view
from flnb.graph.listing import listed
from flnb.graph.values import ITEM

if TYPE_CHECKING:
    from flnb.graph.describing import Launch, Stored
    from flnb.graph.program import Program
    from flnb.graph.values import Value
    from flnb.widgets.model import ProgramWidget

HEIGHT = 680


def program(f: Any, run: Any = None, height: int = HEIGHT) -> ProgramWidget:
    """Return a widget that shows a function compiled by `flnb.jit`: graph rewrites, kernels and memory plan.

    A click on a step in the list on the left shows the recorded ops, the ops that rewriting replaced, the kernels into
    which the remaining ops were fused, or where each value is stored. The same widget is shown for the function alone
    on a cell's last line.

    Args:
        f: a function of `flnb.jit`, or one of its programs.
        run: a recording (`flnb.record`) of calls of the function, or the path of a saved one. With it the widget also
            shows the times of kernels and calls, each the median of all runs of the program in the recording.
        height: the height in CSS pixels, 400 or more.

    Returns:
        A widget, which is shown where it is the last line of a notebook cell.

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: ``f`` is neither a function of `flnb.jit` nor a program, or ``run`` is not a recording.
        ValueError: nothing was captured yet, or ``run`` has no run of the function's programs.

    >>> import flnb
    >>> f = flnb.jit(lambda x: flnb.sum(flnb.exp(x)))
    >>> y = f(flnb.ones(3)), f(flnb.ones(3))
    >>> with flnb.record("calls") as run:
    ...     y = f(flnb.ones(3))
    >>> widget = flnb.program(f, run)
    """
    if isinstance(height, bool) or not isinstance(height, int) or height < 400:
        raise ValueError(f"flnb.program: got height={height!r}; expected at least 400 (CSS pixels)")
    programs = programs_of(f, "flnb.program")
    if isinstance(run, (str, os.PathLike)):
        run = load_run(run)
    if run is not None and not isinstance(run, Recording):
        raise TypeError(f"flnb.program: expected a recording (flnb.record) of calls of f, got {type(run).__name__}")
    if run is not None and not any(len(times(each, run)) for each in programs):
        raise ValueError(
            f"flnb.program: the recording {run.name!r} has no run of the program: the second call captures it, later "
            f"ones run it; record the third call or a later one"
        )
    require("anywidget", extra="lab", purpose="the view of a program")
    from flnb.widgets.model import ProgramWidget

    return ProgramWidget(f, run, height)


def view(f: Any) -> dict[str, Any]:
    """Return the MIME bundle of a widget that shows a function of `flnb.jit`; empty outside of notebooks."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel") or not f.programs or importlib.util.find_spec("anywidget") is None:
        return {}
    widget = program(f)
    widget.publish_picture()
    return widget.widget_bundle()[0]


def message(f: Any, run: Recording | None) -> dict[str, Any]:
    """Return a description of a function's programs as JSON for the browser (frontend/src/program/model.ts)."""
    programs = [_described(f, each, run) for each in programs_of(f, "flnb.program")]
    return {"type": "program", "name": getattr(f, "__qualname__", "program").rpartition(".")[2], "programs": programs}


def source_of(f: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the source text of a kernel; ``request`` has the numbers of its program and launch."""
    texts = {}
    programs = programs_of(f, "flnb.program")
    number, launch = request.get("program"), request.get("launch")
    if isinstance(number, int) and 0 <= number < len(programs):
        texts = {int(name[1:].split()[0]): text for name, text in source(programs[number]).items()}
    return {"type": "source", "program": number, "launch": launch, "text": texts.get(launch or 0, "no such kernel")}


def _described(f: Any, program: Program, run: Recording | None) -> dict[str, Any]:
    """Return the JSON description of one program."""
    found = launches(program)
    names: dict[Value | None, str] = {x.value: x.name for each in found for x in each.stored if x.name}
    names = existing_names(f, program) | names
    loops = source(program, "loops")
    measured = times(program, run) if run is not None else np.zeros((0, len(found)), np.int64)
    medians = np.median(measured, axis=0).tolist() if len(measured) else [None] * len(found)
    where = {value: each.number for each in found for value in each.members}
    recorded, rules, views, after = _rewritten(program, where)
    return {
        "backend": getattr(program.here.backend, "name", type(program.here.backend).__name__),
        "recorded": recorded, "rules": rules, "after": after, "views": views,
        "launches": [
            _launch(program, x, names, loops.get(x.title, ""), ns) for x, ns in zip(found, medians, strict=True)
        ],
        "block": program.memory.size, "scratch": program.peak - program.memory.size - _results(program),
        "results": _results(program), "runs": len(measured), "run": run.name if run is not None else "",
    }  # fmt: skip


def _results(program: Program) -> int:
    """Return the bytes of a program's outputs that get new memory."""
    return sum(x.spec.nbytes for x in program.fresh)


def _rewritten(
    program: Program, where: dict[Value, int]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int, int]:
    """Return a list that describes each recorded value, and a list that describes the rewrites of values.

    Two numbers follow: how many views, and how many values in all, the program has after the rewrites.

    Args:
        program: the program.
        where: a dict from each value to the number of the launch that computes the value.
    """
    (sweep,) = history(program)
    change = {each.value: each for each in sweep.changes}
    rules = list(dict.fromkeys((each.rule, each.reason, each.where) for each in sweep.changes))
    texts = dict(listed([*sweep.before, *sweep.after], {}))
    described = []
    for value in sweep.before:
        found = change.get(value)
        scope, phase = _context(program, program.now.get(value, value))
        described.append({
            "text": texts[value], "family": getattr(value.op, "family", "movement"), "scope": scope, "phase": phase,
            "rule": rules.index((found.rule, found.reason, found.where)) if found is not None else -1,
            "by": texts.get(found.by, "").partition(" = ")[0] if found is not None and found.by is not None else "",
            "launch": where.get(program.now.get(value, value), -1),
        })  # fmt: skip
    counted = [sum(each.rule == rule and each.reason == reason for each in sweep.changes) for rule, reason, _ in rules]
    shown = [{"name": a, "reason": b, "where": c, "count": n} for (a, b, c), n in zip(rules, counted, strict=True)]
    return described, shown, sum(is_view(x) or x.op is ITEM for x in sweep.after), len(sweep.after)


def _context(program: Program, value: Value) -> tuple[str, str]:
    """Return the module path and the phase in which a value was recorded."""
    context = intern.contexts.items[program.contexts.get(value, max(value.context, 0))]
    return context.scope, schema.PHASES[context.phase]


def _launch(
    program: Program, launch: Launch, names: dict[Value | None, str], loops: str, ns: float | None
) -> dict[str, Any]:
    """Return the JSON description of a launch, which runs a fused kernel or calls a method of the backend.

    Args:
        program: the program.
        launch: the launch.
        names: names of values that exist before the program runs.
        loops: the text of the kernel's loops; "" for a call of a method.
        ns: the time that the launch took, None if it was not recorded.
    """
    context = launch.event[1]
    phase = _context(program, launch.members[0])[1] if launch.members else schema.PHASES[context.phase]
    parts = []
    for value, share in zip(launch.members, launch.shares, strict=True):
        if value.op is not None and value.op is not ITEM:
            parts.append({
                "op": value.op.name, "family": value.op.family, "shape": quantity.extents(value.spec.shape),
                "dtype": value.spec.dtype.name, "share": share, "scope": _context(program, value)[0],
            })  # fmt: skip
    reads = [names.get(x) or f"existing {x.spec!r}" for x in launch.reads if not (x.attributes and not x.spec.ndim)]
    return {
        "kind": launch.kind, "name": launch.title.partition(" ")[2], "phase": phase,
        "scope": context.scope, "parts": parts, "reads": list(dict.fromkeys(reads)),
        "stored": [_stored(program, each, names) for each in launch.stored],
        "own": launch.own, "loops": loops, "ns": ns,
    }  # fmt: skip


CATEGORY_OF = {"forward": "activation", "backward": "gradient", "optimizer": "temporary", "other": "unknown"}
"""By the phase in which a value was recorded, the category of memory whose colour the dashboard gives the value."""


def _stored(program: Program, stored: Stored, names: dict[Value | None, str]) -> dict[str, Any]:
    """Return the JSON description of a value in memory."""
    spec = stored.value.spec
    home = names.get(stored.home, "")
    return {
        "name": stored.name or names.get(stored.value, ""), "shape": quantity.extents(spec.shape),
        "dtype": spec.dtype.name, "bytes": spec.nbytes, "offset": stored.offset if stored.home is None else None,
        "where": f"{stored.where} of {home}" if home else stored.where, "last": stored.last,
        "category": schema.CATEGORIES.index(CATEGORY_OF[_context(program, stored.value)[1]]),
    }  # fmt: skip
