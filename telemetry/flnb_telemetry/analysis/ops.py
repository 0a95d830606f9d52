"""Exact statistics of op events (count, times, bytes), grouped by op, scope, phase, line, family, shape or dtype."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from flnb_telemetry import quantity, schema, tables
from flnb_telemetry.extras import require
from flnb_telemetry.formats import aside

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from flnb_telemetry.intern import Catalog

KEYS = ("op", "family", "scope", "phase", "line", "stack", "shape", "dtype")
NUMBERS = ("count", "total", "mean", "p99", "max", "share", "bytes")
SPELLED: dict[str, Callable[[float], str]] = {"count": quantity.count}
SPELLED |= dict.fromkeys(("total", "mean", "p99", "max"), quantity.duration)
SPELLED |= {"share": quantity.percent, "bytes": quantity.size}
SHOWN = 40


@dataclass(frozen=True, slots=True)
class OpRow:
    """The statistics of one group of op events.

    `key` has the group's value of each key, such as ("matmul",). Times are ns; 99 % of the events took no longer than
    `p99`. `share` (0 to 1) is the group's share of the time of all ops; `bytes` is the total size of the results.
    """

    key: tuple[str, ...]
    count: int
    total: int
    mean: float
    p99: int
    max: int
    share: float
    bytes: int


class OpStats:
    """A table of op statistics, one `OpRow` for each group of ops; initially sorted by total time, longest first.

    ``run.ops["matmul"]`` is the group with that name, ``run.ops[0]`` is the first group, and ``run.ops.by("scope",
    "phase")`` is another table with these keys. Backward ops count for the scope of their forward op.

    Args:
        ops: the columns of the op events.
        catalog: the names behind the ids in them.
        keys: one or more of `KEYS`, by which to group.
        prepared: the time, in ns, that first calls took for compiling and for choosing a way to compute. It is not in
            the times of ops; a line below the table states it.
    """

    def __init__(self, ops: schema.Columns, catalog: Catalog, keys: Sequence[str] = ("op",), prepared: int = 0) -> None:
        unknown = [key for key in keys if key not in KEYS]
        if unknown or not keys:
            raise ValueError(
                f"run.ops: cannot group by {', '.join(unknown) or 'nothing'}; expected one or more of {', '.join(KEYS)}"
            )
        self._ops, self._catalog, self.keys, self.prepared = ops, catalog, tuple(keys), prepared
        self.rows = _grouped(ops, catalog, self.keys)
        self.sort("total")

    def by(self, *keys: str) -> OpStats:
        """Return the statistics of the same events grouped by other keys: one or more of `KEYS`.

        Raises:
            ValueError: a key is unknown, or there is none.
        """
        return OpStats(self._ops, self._catalog, keys, self.prepared)

    def sort(self, column: str = "total", descending: bool = True) -> OpStats:
        """Sort the rows in place by one of the columns `NUMBERS` or by "name", and return the table itself.

        Raises:
            ValueError: there is no such column.
        """
        if column != "name" and column not in NUMBERS:
            raise ValueError(f"run.ops: no column {column!r}; the columns are name, {', '.join(NUMBERS)}")
        self.rows.sort(key=lambda row: getattr(row, "key" if column == "name" else column), reverse=descending)
        return self

    def __iter__(self) -> Iterator[OpRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, name: str | tuple[str, ...] | int) -> OpRow: ...
    @overload
    def __getitem__(self, name: slice) -> list[OpRow]: ...
    def __getitem__(self, name: str | tuple[str, ...] | int | slice) -> OpRow | list[OpRow]:
        if isinstance(name, (int, slice)):
            return self.rows[name]
        key = name if isinstance(name, tuple) else (name,)
        known = {row.key: row for row in self.rows}
        if key not in known:
            names = ["/".join(each) for each in known]
            listed = ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
            raise KeyError(f"no {'/'.join(self.keys)} {'/'.join(key)!r} in this recording; it has {listed or 'none'}")
        return known[key]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with columns for the keys and `NUMBERS`. Needs pandas, of the extra "lab"."""
        rows = [(*row.key, *(getattr(row, name) for name in NUMBERS)) for row in self.rows]
        return require("pandas", "lab", "a DataFrame").DataFrame(rows, columns=[*self.keys, *NUMBERS])

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a CSV file, with columns for the keys and `NUMBERS`: times in ns, share from 0 to 1.

        An existing file is replaced only when the new one is complete. Lone surrogates in names become "?". A name that
        begins with "=", "+", "-", "@" or white space gets a "'" before it, or a spreadsheet would compute it.
        """
        with aside(path) as part, open(part, "w", newline="", encoding="utf-8", errors="replace") as file:
            rows = csv.writer(file)
            rows.writerow([*self.keys, *NUMBERS])
            for row in self.rows:
                key = [f"'{part}" if part.startswith(("=", "+", "-", "@", "\t", "\r")) else part for part in row.key]
                rows.writerow([*key, *(getattr(row, name) for name in NUMBERS)])

    def cells(self) -> list[list[str]]:
        """Return the table as rows of texts, first the titles, then one row for each group."""
        titles = [*self.keys, *SPELLED]
        keys = ([part or quantity.UNKNOWN for part in row.key] for row in self.rows)
        numbers = ([spell(getattr(row, name)) for name, spell in SPELLED.items()] for row in self.rows)
        return [titles, *(key + number for key, number in zip(keys, numbers, strict=True))]

    def __repr__(self) -> str:
        if not self.rows:
            return "no op events"
        lines = tables.lines(self.cells()[: 1 + SHOWN], "<" * len(self.keys) + ">")
        if len(self.rows) > SHOWN:
            more = len(self.rows) - SHOWN
            lines.append(f"... and {more} more; all: flnb export RUN --to csv, or in Python .to_pandas()")
        return "\n".join([*lines, self._rest] if self._rest else lines)

    @property
    def _rest(self) -> str:
        """Return a sentence about the time that first calls took for compiling and the like; "" if there was none."""
        spent = quantity.duration(self.prepared)
        return f"not in these times: {spent} of preparing first calls (compiling, choosing)" if self.prepared else ""

    def _repr_html_(self) -> str:
        if not self.rows:
            return "<p>no op events</p>"
        rest = f"<div>{self._rest}</div>" if self._rest else ""
        return tables.html(self.cells(), "<" * len(self.keys) + ">") + rest


def _grouped(ops: schema.Columns, catalog: Catalog, keys: tuple[str, ...]) -> list[OpRow]:
    """Group op events by some of `KEYS` and return the statistics of each group, in no particular order."""
    spent = ops["t1"] - ops["t0"]
    if not len(spent):
        return []
    # Few distinct (plan, scope, phase) triples, with a line, stand for all events: name these, then number the names.
    scope, phase, _ = catalog.places(ops["context"], ops["node"])
    triples, member = np.unique((ops["plan"].astype(np.int64) << 34) | (scope << 2) | phase, return_inverse=True)
    line = next((getattr(catalog, key)[ops["context"]] for key in ("stack", "line") if key in keys), 0)
    distinct, member = np.unique(line << 32 | member, return_inverse=True)
    codes = zip(triples[distinct & 0xFFFFFFFF].tolist(), (distinct >> 32).tolist(), strict=True)
    names: dict[tuple[str, ...], int] = {}
    numbers = [names.setdefault(tuple(_name(catalog, key, *code) for key in keys), len(names)) for code in codes]
    group = np.array(numbers)[member]
    count = np.bincount(group)
    spent = spent[np.lexsort((spent, group))]
    ends = np.cumsum(count)
    total = np.add.reduceat(spent, ends - count)
    p99 = spent[ends - count + -(-99 * count // 100) - 1]  # the smallest with at least 99 % at or below
    share = total / max(1, int(total.sum()))
    nbytes = np.minimum(np.bincount(group, catalog.nbytes[ops["plan"]]), 2.0**62).astype(np.int64)
    columns = (count, total, total / count, p99, spent[ends - 1], share, nbytes)
    return [OpRow(*row) for row in zip(names, *(column.tolist() for column in columns), strict=True)]


def _name(catalog: Catalog, key: str, code: int, line: int) -> str:
    """Return the value that an op has for a key such as "shape", as text.

    Args:
        catalog: the names behind the ids.
        key: one of `KEYS`.
        code: the op's plan, scope and phase ids, packed into one int.
        line: the string id of the op's line or call stack, if `key` is "line" or "stack"; not used for other keys.
    """
    if key in ("line", "stack"):
        text = catalog.strings.items[line]
        return text if key == "stack" else text.partition("\n")[0]
    if key == "scope":
        return catalog.strings.items[(code >> 2) & 0xFFFFFFFF]
    if key == "phase":
        return schema.PHASES[code & 3]
    value = getattr(catalog.plans.items[code >> 34], key)
    return quantity.extents(value) if key == "shape" else str(value)
