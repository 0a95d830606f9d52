"""Op statistics: how often, how long, how many bytes; exact, by op, scope, phase, family, shape or dtype."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import quantity, schema
from flnb_telemetry.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flnb_telemetry.catalog import Catalog

KEYS = ("op", "family", "scope", "phase", "shape", "dtype")
NUMBERS = ("count", "total", "mean", "p99", "max", "share", "bytes")


@dataclass(frozen=True, slots=True)
class OpRow:
    """One group of op events. Times in ns; share of all op time, 0 to 1; bytes of all outputs."""

    key: tuple[str, ...]
    count: int
    total: int
    mean: float
    p99: int
    max: int
    share: float
    bytes: int


class OpStats:
    """A table of `OpRow`, slowest total first: iterate it, index it by op name, `sort`, `by`, `to_pandas`.

    Example: ``run.ops["matmul"].p99``, ``run.ops.by("scope", "phase").sort("count")``.
    """

    def __init__(self, ops: schema.Columns, catalog: Catalog, keys: Sequence[str] = ("op",)) -> None:
        unknown = [key for key in keys if key not in KEYS]
        if unknown or not keys:
            raise ValueError(
                f"run.ops: cannot group by {', '.join(unknown) or 'nothing'}; choose from {', '.join(KEYS)}"
            )
        self._ops, self._catalog, self.keys = ops, catalog, tuple(keys)
        self.rows = _grouped(ops, catalog, self.keys)
        self.sort("total")

    def by(self, *keys: str) -> OpStats:
        """The same events grouped by other keys."""
        return OpStats(self._ops, self._catalog, keys)

    def sort(self, column: str = "total", descending: bool = True) -> OpStats:
        """Sort the rows in place, by a number or by "name", and return self."""
        if column == "name":
            self.rows.sort(key=lambda row: row.key, reverse=descending)
        elif column in NUMBERS:
            self.rows.sort(key=lambda row: getattr(row, column), reverse=descending)
        else:
            raise ValueError(f"run.ops: no column {column!r}; the columns are name, {', '.join(NUMBERS)}")
        return self

    def __iter__(self) -> Iterator[OpRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str | tuple[str, ...]) -> OpRow:
        key = name if isinstance(name, tuple) else (name,)
        for row in self.rows:
            if row.key == key:
                return row
        raise KeyError(f"no {'/'.join(self.keys)} {'/'.join(key)!r} in this recording; it has {_listed(self.rows)}")

    def to_pandas(self) -> Any:
        """A DataFrame with one column for each key and number."""
        pandas = require("pandas", "lab", "a DataFrame")
        columns: dict[str, Any] = {name: [row.key[i] for row in self.rows] for i, name in enumerate(self.keys)}
        return pandas.DataFrame(columns | {name: [getattr(row, name) for row in self.rows] for name in NUMBERS})

    def cells(self, limit: int | None = None) -> list[list[str]]:
        """The table as text: one row of titles, then one for each group."""
        body = [
            [*(part or quantity.UNKNOWN for part in row.key), quantity.count(row.count)]
            + [quantity.duration(value) for value in (row.total, row.mean, row.p99)]
            + [quantity.percent(row.share), quantity.size(row.bytes)]
            for row in self.rows[:limit]
        ]
        return [[*self.keys, "count", "total", "mean", "p99", "share", "bytes"], *body]

    def __repr__(self) -> str:
        if not self.rows:
            return "no op events"
        text, left = aligned(self.cells(40), len(self.keys)), len(self.rows) - 40
        return text if left <= 0 else f"{text}\n... and {left} more; .to_pandas() has all"

    def _repr_html_(self) -> str:
        return html_table(self.cells(), len(self.keys)) if self.rows else "<p>no op events</p>"


def _grouped(ops: schema.Columns, catalog: Catalog, keys: tuple[str, ...]) -> list[OpRow]:
    spent = ops["t1"] - ops["t0"]
    if not len(spent):
        return []
    # Few distinct (plan, context, phase) triples stand for all events: name the triples, then number the names.
    phase = catalog.phases(ops)
    triple = (ops["plan"].astype(np.int64) << 34) | (ops["context"] << 2) | phase
    distinct, member = np.unique(triple, return_inverse=True)
    names: dict[tuple[str, ...], int] = {}
    numbers = [names.setdefault(tuple(_name(catalog, key, int(code)) for key in keys), len(names)) for code in distinct]
    group = np.array(numbers)[member]
    order = np.lexsort((spent, group))
    ends = np.cumsum(np.bincount(group, minlength=len(names)))
    starts = np.concatenate([[0], ends[:-1]])
    sorted_spent = spent[order]
    total = np.add.reduceat(sorted_spent, starts)
    nbytes = np.add.reduceat(catalog.nbytes[ops["plan"]][order], starts)
    everything = max(1, int(total.sum()))
    return [
        OpRow(
            key,
            count := int(ends[i] - starts[i]),
            int(total[i]),
            float(total[i] / count),
            int(sorted_spent[starts[i] + -(-99 * count // 100) - 1]),  # the smallest with at least 99 % at or below
            int(sorted_spent[ends[i] - 1]),
            float(total[i] / everything),
            int(nbytes[i]),
        )
        for key, i in names.items()
    ]


def _name(catalog: Catalog, key: str, code: int) -> str:
    if key == "scope":
        return catalog.contexts.items[(code >> 2) & 0xFFFFFFFF].scope
    if key == "phase":
        return schema.PHASES[code & 3]
    value = getattr(catalog.plans.items[code >> 34], key)
    return value if isinstance(value, str) else "×".join(map(str, value)) or "scalar"


def _listed(rows: list[OpRow]) -> str:
    return ", ".join("/".join(row.key) for row in rows[:20]) + (" ..." if len(rows) > 20 else "") or "none"


def aligned(cells: list[list[str]], left: int) -> str:
    """Columns of text under each other, the first `left` flush left, the others right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )


def html_table(cells: list[list[str]], left: int) -> str:
    """The same as an HTML table with titles in the first row."""

    def row(values: list[str], tag: str) -> str:
        return "".join(
            f'<{tag} style="text-align:{"left" if i < left else "right"}">{escape(value)}</{tag}>'
            for i, value in enumerate(values)
        )

    body = "".join(f"<tr>{row(values, 'td')}</tr>" for values in cells[1:])
    return (
        '<table style="font-variant-numeric:tabular-nums;border-collapse:collapse">'
        f"<thead><tr>{row(cells[0], 'th')}</tr></thead><tbody>{body}</tbody></table>"
    )
