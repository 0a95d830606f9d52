"""The text of an out-of-memory report for terminals, and phrases that its HTML shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flnb_telemetry import quantity, tables
from flnb_telemetry.safe_text import LONGEST_LINE, safe_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.memory_lab.postmortem import Blocker, Postmortem
    from flnb.memory_lab.remedies import Remedy

SHOWN = 3
"""The most blocks, and the most remedies, in the text; the HTML and the report's attributes have all of them."""

COLUMNS = ("Tensor", "Category", "Size", "Op", "Scope", "Shape", "Line", "Age", "Held by")

USAGE = "flnb.use_memory_manager and flnb.memory.lean go behind `with`"
"""How remedies are pasted, shown with the list of remedies."""


def facts(report: Postmortem) -> list[tuple[str, str]]:
    """Return the sizes that explain the error as (name, size as text)."""
    size = quantity.size
    left = report.unreserved
    return [
        ("requested", size(report.request)),
        ("free in segments", size(report.free - (left or 0))),
        ("largest hole", size(report.largest_hole)),
        ("not yet reserved", quantity.UNKNOWN if left is None else size(left)),
        ("live", size(report.live)),
    ]


def where(report: Postmortem) -> str:
    """Return a line that describes the failed request: op, module, bytes, manager, device and capacity."""
    op = report.op or "the program"
    scope = f" ({report.scope})" if report.scope else ""
    capacity = "of unknown capacity" if report.capacity is None else f"capacity {quantity.size(report.capacity)}"
    return (
        f"{op}{scope} asked for {quantity.size(report.request)} · {report.manager} manager, {report.device}, {capacity}"
    )


def requested(report: Postmortem) -> list[str]:
    """Return a line with the user's line that made the failed request; nothing if it is unknown."""
    return [f"requested at {report.line}"] if report.line else []


def blocked(report: Postmortem) -> str:
    """Return a line that says how much must be freed for the request to fit."""
    closest = report.closest
    if closest is None:
        return "no segment is large enough for the request; these are the largest blocks"
    if not closest.blocks:
        return "nothing: this segment has room for the request"
    count, freed = len(closest.blocks), quantity.size(closest.freed)
    many = f"one block of {freed}" if count == 1 else f"{count} blocks, {freed} in all,"
    return f"freeing {many} would join enough in one piece"


def row(blocker: Blocker) -> tuple[str, ...]:
    """Return a block's row of a table whose column titles are `COLUMNS`."""
    dash = quantity.UNKNOWN
    locks = f"{blocker.locks} user lock{'s' if blocker.locks > 1 else ''}" if blocker.locks else ""
    held = ", ".join(part for part in (blocker.held, locks) if part)
    age = dash if blocker.age is None else quantity.duration(1e9 * blocker.age)
    shape = dash if blocker.shape is None else quantity.extents(blocker.shape)
    about = (blocker.op or dash, blocker.scope or dash, shape, blocker.line or dash, age, held or dash)
    return (blocker.label, blocker.category, quantity.size(blocker.size), *about)


def as_text(report: Postmortem) -> str:
    """Return the report as about ten lines of text; the first says what to do."""
    found, size = report.remedies, quantity.size
    fitting = [(_pasted(r.what), f"peak {size(r.peak)}", f"costs {r.cost}", verdict(r)) for r in found.fitting]
    on = ", and a whole step" if fitting and found.fitting[0].through else ""
    hint = f"; {fitting[0][0]} lets it through{on}" if fitting else ""
    lines = [f"Out of memory: asked for {size(report.request)}, free {size(report.free)}{hint}"]
    lines += [
        f"{report.verdict}: {where(report)}",
        *requested(report),
        ", ".join(f"{name} {value}" for name, value in facts(report)[1:]),
    ]
    if report.cached:
        lines.append(f"release_cached() would give back {size(report.cached)} of segments that hold nothing")
    lines.append(f"What blocks it: {blocked(report)}")
    blocks = dict.fromkeys((*report.locked[:1], *report.blockers, *report.locked))
    if blocks:
        lines += _indented([COLUMNS, *map(row, list(blocks)[:SHOWN])])
    if found.rows:
        count = f"{len(fitting)} of {len(found.rows)} remedies that were replayed let it through"
        lines.append(f"{count}, see error.report.remedies; {found.steps}" + (":" if fitting else ""))
        lines += _indented(fitting[:SHOWN])
    lines += [found.unknown] if found.unknown else []
    return safe_lines("\n".join(lines))


def _pasted(what: str) -> str:
    """Return a remedy's code as a line to paste, with ``with`` before a context manager."""
    return f"with {what}" if what.startswith(("flnb.use_memory_manager", "flnb.memory.lean")) else what


def peak(fits: bool, nbytes: int, capacity: int | None) -> str:
    """Return a predicted peak (bytes) as text; "over" and the capacity if the request did not fit."""
    return quantity.size(nbytes) if fits else f"over {quantity.size(capacity or nbytes)}"


def extent(like: int | None, steps: int) -> str:
    """Return how far remedies were replayed, as text.

    Args:
        like: the number of the step that was repeated after the failed request; None if none was.
        steps: the number of whole steps that were recorded before the request.
    """
    if like is not None:
        done = "replayed up to this request, on to the end of the step, and through one whole step"
        return f"{done}, both like step {like}"
    why = (
        "no whole step was recorded before it"
        if not steps
        else "one whole step was recorded before it, two are needed"
        if steps == 1
        else "no recorded step made the same requests up to it"
    )
    return f"replayed up to this request: {why}, so what follows was not tried and may need more"


def again(op: str, scope: str, nbytes: int, later: bool) -> str:
    """Return the text for a request of a following step that runs out of memory; ``later``: in the whole step."""
    name = ".".join(part for part in (scope, op) if part) or "a request"
    return f"{name} ({quantity.size(nbytes)}) {'in the next step' if later else 'in the rest of the step'}"


def verdict(row: Remedy) -> str:
    """Return the phrase for how far a replay with a remedy got."""
    if row.again:
        return f"gets past it, then runs out at {row.again}"
    if not row.fits:
        return "does not get past it"
    return "gets past it, and through a whole step" if row.through else "gets past it; what follows was not tried"


def _indented(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a table as indented lines; cells with code are never shortened."""
    return [f"  {line}" for line in tables.lines(rows, longest=LONGEST_LINE)]
