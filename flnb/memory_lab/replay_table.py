"""The result of a replay: a table that compares memory managers with the live bytes and the offline packing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb_telemetry import quantity, tables
from flnb_telemetry.analysis.memory import FORMULAS
from flnb_telemetry.extras import require
from flnb_telemetry.safe_text import html_text, safe_lines, safe_text
from flnb_telemetry.tables import Markup

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.memory_lab.packing import Packing
    from flnb.memory_lab.replaying import Outcome
    from flnb.memory_lab.traces import Trace

FORMULA = (
    "at the peak: reserved / live (requested) bytes when most are live; on average: sum(reserved) / sum(live) over all "
    f"calls. At the peak: {FORMULAS['unusable']}, r the largest request of the trace; {FORMULAS['internal']}; "
    f"largest hole: {FORMULAS['largest']}. Native calls: segments reserved, resized, released."
)
"""The definitions of the columns, which are shown below the table."""


class Column(NamedTuple):
    """A column of the table: title, attribute of `Outcome`, format, and whether the smallest value is marked."""

    title: str
    attribute: str
    spell: Callable[[Any], str]
    ranked: bool = True


def _ratio(value: float) -> str:
    """Return a ratio as text: ``1.250×``; a dash for NaN."""
    return f"{value:.3f}×" if value == value else quantity.UNKNOWN


def _shortage(value: tuple[int, int] | None) -> str:
    """Return the failed request (index of the call, bytes requested) as text; a dash if memory did not run out."""
    if value is None:
        return quantity.UNKNOWN
    return f"{f'call {value[0]}' if value[0] else 'at once'}, for {quantity.size(value[1])}"


COLUMNS = (
    Column("peak reserved", "peak_reserved", quantity.size),
    Column("at the peak", "ratio_at_peak", _ratio),
    Column("on average", "ratio_average", _ratio),
    Column("unusable", "unusable", quantity.percent),
    Column("internal", "internal", quantity.percent),
    Column("largest hole", "largest_hole", quantity.size, ranked=False),
    Column("native calls", "native_calls", quantity.count),
    Column("time per call", "ns_per_call", quantity.duration),
    (FIRST_OOM := Column("first OOM", "first_oom", _shortage, ranked=False)),
)
WIDTH, NAME = 100, 18
"""The width of the table in a terminal, and of the names in its first column, in characters."""


@dataclass(frozen=True, eq=False, repr=False)
class Replay:
    """Replays of one trace on several memory managers, one row (`Outcome`) each, with two lower bounds.

    No manager can reserve less than the live bytes. No manager whose memory is one contiguous range can reserve less
    than the lowest packing; a manager that returns segments at once, such as `native`, can.

    This object prints as a table, in a notebook as HTML. "*" marks the best value of a column among the managers that
    made all calls.

    Attributes:
        trace: the trace that was replayed.
        rows: an `Outcome` for each manager, in the order in which they were given.
        packing: the best offline packing found, by an algorithm that knows the whole trace beforehand.
        unmade: for each manager that could not be created, the reason.
    """

    trace: Trace
    rows: tuple[Outcome, ...]
    packing: Packing
    unmade: tuple[str, ...] = ()

    def __getitem__(self, manager: str) -> Outcome:
        """Return the row of a manager, given its name with its settings."""
        rows = {row.manager: row for row in self.rows}
        if manager not in rows:
            raise KeyError(f"no manager {manager!r} in this replay; it has {', '.join(rows)}")
        return rows[manager]

    @property
    def bounds(self) -> dict[str, int]:
        """The lower bounds in bytes by name: the most live bytes, and the height of the packing."""
        packed = "packed offline, optimal" if self.packing.optimal else "packed offline, best found"
        return {"live": self.trace.peak_live, packed: self.packing.height}

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each manager: the attributes of `Outcome` and the two bounds."""
        pandas = require("pandas", extra="lab", purpose="a data frame")
        names = [field.name for field in fields(self.rows[0]) if field.name not in ("live", "reserved")]
        frame = pandas.DataFrame([[getattr(row, name) for name in names] for row in self.rows], columns=names)
        return frame.assign(peak_live=self.trace.peak_live, packed=self.packing.height)

    def cells(self) -> list[list[str]]:
        """Return the table's cells as texts: titles, a row for each bound and each manager; best values end in "*"."""
        least = max(1, self.trace.peak_live)
        rows = [["manager", *(column.title for column in COLUMNS)]]
        for name, height in self.bounds.items():
            known = {"peak_reserved": quantity.size(height), "ratio_at_peak": _ratio(height / least)}
            rows.append([name, *(known.get(column.attribute, quantity.UNKNOWN) for column in COLUMNS)])
        best = [self._best(column) for column in COLUMNS]
        for row in self.rows:
            cells, never = [row.manager], row.first_oom is not None and row.first_oom[0] == 0
            for column, leading in zip(COLUMNS, best, strict=True):
                value = getattr(row, column.attribute)
                cells.append(quantity.UNKNOWN if never and column is not FIRST_OOM else column.spell(value))
                cells[-1] += "*" * (row.first_oom is None and value == leading)
            rows.append(cells)
        return rows

    def _best(self, column: Column) -> float:
        """Return the least value of a column; NaN if the column has no best value or all values are equal."""
        values = [getattr(row, column.attribute) for row in self.rows if row.first_oom is None]
        return min(values) if column.ranked and len(set(values)) > 1 else float("nan")

    def __repr__(self) -> str:
        (_, *titles, last), *rows = self.cells()
        folded = [["manager", *("\n".join(wrap(title, 8)) for title in titles)]]
        folded += [["" if len(name) > NAME else name, *cells] for name, *cells, _ in rows]
        lines = tables.lines(folded, "<>")
        head, body = lines[: -len(rows)], lines[-len(rows) :]
        for (name, *_), line in zip(rows, body, strict=True):  # a long name is a line of its own
            head += [name, line] if len(name) > NAME else [line]
        short = [f"{last}: {name}, {text}" for name, *_, text in rows if text != quantity.UNKNOWN]
        about = [line for text in (*self.unmade, "* the best. " + FORMULA) for line in wrap(text, WIDTH)]
        return safe_lines("\n".join([f"{safe_text(self.trace.name)}: {self.trace!r}", *head, *short, *about]))

    def _repr_html_(self) -> str:
        head, *body = self.cells()
        rows = [[Markup(f"<b>{html_text(c[:-1])}</b>") if c.endswith("*") else c for c in row] for row in body]
        return tables.html([head, *rows], "<>") + "".join(f"<div>{html_text(t)}</div>" for t in (*self.unmade, FORMULA))
