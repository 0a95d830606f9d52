"""What a record means: the kinds, the words of each, and how rows become named columns and back.

Every event is eight little-endian int64 words. Word 0 is the code, ``kind | aux << 8 | plan << 24``; word 1 is a time
from ``time.perf_counter_ns``; the rest depends on the kind. Floats travel as their 64 bits. A kind is listed here when
something emits it; ``VERSION`` changes when the meaning of a listed kind does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = 1
WORDS = 8
RECORD_BYTES = 8 * WORDS

Records: TypeAlias = "NDArray[np.int64]"
"""Rows of eight words, shape (n, 8)."""
Columns: TypeAlias = "dict[str, NDArray[Any]]"
"""Named columns of one kind, all of one length."""

OP, ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, OOM = range(1, 8)
SCOPE, STEP, METRIC, GRAD_STAT, EDGE, DROPPED, LEAF = range(8, 15)

CATEGORIES = ("unknown", "parameter", "gradient", "activation", "optimizer_state", "input", "temporary")
PHASES = ("other", "forward", "backward", "optimizer")
FAMILIES = ("elementwise", "matmul", "reduction", "movement", "norm", "memory", "communication", "optimizer")
FORWARD, BACKWARD, OPTIMIZER = 1, 2, 3

PLAN_SHIFT = 24
AUX_SHIFT = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of record: the names of its words from word 1 on, and of the two fields beside the kind in word 0."""

    number: int
    name: str
    words: tuple[str, ...]
    aux: str = ""
    plan: str = ""
    floats: frozenset[str] = frozenset()

    @property
    def fields(self) -> tuple[str, ...]:
        """Column names in the order of `columns`."""
        return tuple(name for name in (self.plan, self.aux) if name) + self.words


_BLOCK = ("t", "alloc_id", "address", "size")
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(OP, "op", ("t0", "t1", "alloc_id", "node", "context", "parent0", "parent1"), plan="plan"),
        Kind(ALLOC, "alloc", (*_BLOCK, "requested", "segment_id", "context"), aux="category", plan="plan"),
        Kind(FREE_REQUESTED, "free_requested", (*_BLOCK, "reserved", "segment_id", "context")),
        Kind(FREE_COMPLETED, "free_completed", (*_BLOCK, "reserved", "segment_id", "context")),
        Kind(SEGMENT_ALLOC, "segment_alloc", ("t", "segment_id", "address", "size")),
        Kind(SEGMENT_FREE, "segment_free", ("t", "segment_id", "address", "size")),
        Kind(OOM, "oom", ("t", "requested", "free", "largest_hole", "capacity", "reserved", "context")),
        Kind(SCOPE, "scope", ("t", "context"), aux="enter"),
        Kind(STEP, "step", ("t0", "t1", "index", "total")),
        Kind(METRIC, "metric", ("t", "step", "value"), plan="name", floats=frozenset({"value"})),
        Kind(
            GRAD_STAT,
            "grad_stat",
            ("t", "node", "norm", "bad", "numel", "name", "saved"),
            aux="parameter",
            plan="plan",
            floats=frozenset({"norm"}),
        ),
        Kind(EDGE, "edge", ("t", "node", "parent2", "parent3", "parent4", "parent5", "parent6"), plan="plan"),
        Kind(DROPPED, "dropped", ("t", "count", "t_last")),
        Kind(LEAF, "leaf", ("t", "leaf", "name", "parameter"), plan="plan"),
    )
}
BY_NUMBER: dict[int, Kind] = {kind.number: kind for kind in KINDS.values()}


def kind_of(kind: str | int) -> Kind:
    """The kind of a name or number; a `KeyError` lists the known names."""
    found = KINDS.get(kind) if isinstance(kind, str) else BY_NUMBER.get(kind)
    if found is None:
        raise KeyError(f"no event kind {kind!r}; the kinds are {', '.join(KINDS)}")
    return found


def columns(kind: Kind, rows: Records) -> Columns:
    """Name the words of rows that are all of one kind: plan and aux unsigned, times and ids int64, values float64."""
    code = rows[:, 0]
    table: Columns = {}
    if kind.plan:
        table[kind.plan] = (code >> PLAN_SHIFT).astype(np.uint32)
    if kind.aux:
        table[kind.aux] = ((code >> AUX_SHIFT) & 0xFFFF).astype(np.uint16)
    for word, name in enumerate(kind.words, start=1):
        column = np.ascontiguousarray(rows[:, word])
        table[name] = column.view(np.float64) if name in kind.floats else column
    return table


def rows_of(kind: Kind, table: Columns) -> Records:
    """The inverse of `columns`; a missing column is a `KeyError`."""
    rows = np.zeros((len(table[kind.words[0]]), WORDS), np.int64)
    rows[:, 0] = kind.number
    if kind.plan:
        rows[:, 0] |= table[kind.plan].astype(np.int64) << PLAN_SHIFT
    if kind.aux:
        rows[:, 0] |= table[kind.aux].astype(np.int64) << AUX_SHIFT
    for word, name in enumerate(kind.words, start=1):
        column = table[name]
        rows[:, word] = column.view(np.int64) if name in kind.floats else column
    return rows
