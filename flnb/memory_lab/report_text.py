"""The text of an out-of-memory report, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flnb_telemetry import quantity, tables
from flnb_telemetry.safe_text import LONGEST_LINE, safe_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.memory_lab.postmortem import Blocker, Postmortem

__all__ = ["COLUMNS", "NOTE", "facts", "as_text"]


def facts(report: Postmortem) -> list[tuple[str, str]]:
    """Return the numbers that explain the error, each with its name."""
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
    """Describe the request: op, scope, manager, device and capacity."""
    op = report.op or "somebody"
    scope = f" ({report.scope})" if report.scope else ""
    capacity = "of unknown capacity" if report.capacity is None else f"capacity {quantity.size(report.capacity)}"
    return (
        f"{op}{scope} asked for {quantity.size(report.request)} · {report.manager} manager, {report.device}, {capacity}"
    )


def blocked(report: Postmortem) -> str:
    """Describe what would have to be freed."""
    closest = report.closest
    if closest is None:
        return "no segment is large enough for the request; these are the largest blocks"
    if not closest.blocks:
        return "nothing: this segment has room for the request"
    count, freed = len(closest.blocks), quantity.size(closest.freed)
    many = f"one block of {freed}" if count == 1 else f"{count} blocks, {freed} in all,"
    return f"freeing {many} would join enough in one piece"


def row(blocker: Blocker) -> tuple[str, ...]:
    """Return a blocker as the cells of a table row; see `COLUMNS`."""
    dash = quantity.UNKNOWN
    locks = f"{blocker.locks} user lock{'s' if blocker.locks > 1 else ''}" if blocker.locks else ""
    held = ", ".join(part for part in (blocker.held, locks) if part)
    age = dash if blocker.age is None else quantity.duration(1e9 * blocker.age)
    shape = dash if blocker.shape is None else quantity.extents(blocker.shape)
    about = (blocker.op or dash, blocker.scope or dash, shape, blocker.line or dash, age, held or dash)
    return (blocker.label, blocker.category, quantity.size(blocker.size), *about)


COLUMNS = ("Tensor", "Category", "Size", "Op", "Scope", "Shape", "Line", "Age", "Held by")


NOTE = (
    "each one replayed on this trace, which ends with this request: what follows may need more; "
    "flnb.use_memory_manager and flnb.memory.lean go behind `with`"
)
"""On remedies."""


def as_text(report: Postmortem) -> str:
    """Return the report as text, tables included."""
    lines = [f"Out of memory: {report.verdict}", where(report)]
    lines.append(", ".join(f"{name} {value}" for name, value in facts(report)))
    if report.cached:
        lines.append(f"release_cached() would give back {quantity.size(report.cached)} of segments that hold nothing")
    lines.append(f"\nWhat blocks it: {blocked(report)}")
    lines += table([COLUMNS, *map(row, report.blockers)])
    if report.locked:
        lines.append(f"\nUnder user locks, which stay until user_unlock: {len(report.locked)}")
        lines += table([COLUMNS, *map(row, report.locked)])
    found = report.remedies
    lines.append(f"\nWhat would have let this request through: {NOTE}")
    if found.rows:
        result = [(r.what, peak(r.fits, r.peak, found.capacity), r.cost, verdict(r.fits)) for r in found.rows]
        lines += table([("Remedy", "Peak up to here", "Cost", "Result"), *result])
    lines += [found.unknown] if found.unknown else []
    return safe_lines("\n".join(lines))


def peak(fits: bool, nbytes: int, capacity: int | None) -> str:
    """Return a predicted peak as text; if the request did not fit, only "over the capacity" is known."""
    return quantity.size(nbytes) if fits else f"over {quantity.size(capacity or nbytes)}"


def verdict(fits: bool) -> str:
    return "gets past it" if fits else "does not get past it"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return an indented table, one line a row."""
    return [f"  {line}" for line in tables.lines(rows, longest=LONGEST_LINE)]  # code to be copied is among them
