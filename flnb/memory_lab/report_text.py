"""The text of an out-of-memory report for terminals, and phrases that its HTML shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flnb_telemetry import quantity, tables
from flnb_telemetry.safe_text import LONGEST_LINE, safe_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.memory_lab.postmortem import Blocker, Postmortem

__all__ = ["COLUMNS", "NOTE", "as_text", "facts"]

SHOWN = 3
"""The most blocks, and the most remedies, in the text; the HTML and the report's attributes have all of them."""

COLUMNS = ("Tensor", "Category", "Size", "Op", "Scope", "Shape", "Line", "Age", "Held by")

NOTE = (
    "each one replayed on this trace, which ends with this request: what follows may need more; "
    "flnb.use_memory_manager and flnb.memory.lean go behind `with`"
)
"""The explanation shown with the list of remedies."""


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
    op = report.op or "somebody"
    scope = f" ({report.scope})" if report.scope else ""
    capacity = "of unknown capacity" if report.capacity is None else f"capacity {quantity.size(report.capacity)}"
    return (
        f"{op}{scope} asked for {quantity.size(report.request)} · {report.manager} manager, {report.device}, {capacity}"
    )


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
    fitting = [(_pasted(r.what), f"peak {size(r.peak)}", f"costs {r.cost}") for r in found.fitting]
    hint = f"; {fitting[0][0]} lets it through" if fitting else ""
    lines = [f"Out of memory: asked for {size(report.request)}, free {size(report.free)}{hint}"]
    lines += [f"{report.verdict}: {where(report)}", ", ".join(f"{name} {value}" for name, value in facts(report)[1:])]
    if report.cached:
        lines.append(f"release_cached() would give back {size(report.cached)} of segments that hold nothing")
    lines.append(f"What blocks it: {blocked(report)}")
    blocks = dict.fromkeys((*report.locked[:1], *report.blockers, *report.locked))
    if blocks:
        lines += _indented([COLUMNS, *map(row, list(blocks)[:SHOWN])])
    if found.rows:
        count = f"{len(fitting)} of {len(found.rows)} remedies that were replayed let it through"
        lines.append(f"{count}, see error.report.remedies" + (":" if fitting else ""))
        lines += _indented(fitting[:SHOWN])
    lines += [found.unknown] if found.unknown else []
    return safe_lines("\n".join(lines))


def _pasted(what: str) -> str:
    """Return a remedy's code as a line to paste, with ``with`` before a context manager."""
    return f"with {what}" if what.startswith(("flnb.use_memory_manager", "flnb.memory.lean")) else what


def peak(fits: bool, nbytes: int, capacity: int | None) -> str:
    """Return a predicted peak (bytes) as text; "over" and the capacity if the request did not fit."""
    return quantity.size(nbytes) if fits else f"over {quantity.size(capacity or nbytes)}"


def verdict(fits: bool) -> str:
    """Return the phrase for whether a replay with a remedy got past the failed request."""
    return "gets past it" if fits else "does not get past it"


def _indented(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a table as indented lines; cells with code are never shortened."""
    return [f"  {line}" for line in tables.lines(rows, longest=LONGEST_LINE)]
