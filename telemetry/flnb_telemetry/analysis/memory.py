"""Memory over time: who held how much, and exactly which blocks lay where at any moment.

A `Memory` pairs each allocation with its free once; checkpoints of what was live then make the state at any time cost a
bounded number of steps. Times are seconds since the recording began.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flnb_telemetry import quantity, schema
from flnb_telemetry.analysis import fragmentation
from flnb_telemetry.catalog import joined
from flnb_telemetry.formats import svg

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from flnb_telemetry.catalog import Catalog

    Ints = NDArray[np.int64]

NEVER = np.iinfo(np.int64).max
CHECKPOINT = 1024


class BlockView(NamedTuple):
    """A block at one moment; offset within its segment, bytes; state "active" or "pending" (freed, not yet free)."""

    id: int
    offset: int
    size: int
    requested: int
    category: str
    op: str
    scope: str
    born: float
    state: str


class SegmentView(NamedTuple):
    """A segment at one moment, its blocks by offset."""

    id: int
    address: int
    size: int
    blocks: tuple[BlockView, ...]


class Timeline(NamedTuple):
    """One row for every moment at which memory changed: t in seconds, the rest in bytes.

    by_category: shape (n, 7), in the order of `schema.CATEGORIES`; its rows add up to allocated.
    """

    t: NDArray[np.float64]
    allocated: Ints
    reserved: Ints
    requested: Ints
    by_category: Ints

    def spread(self, most: int, since: float = -np.inf) -> Timeline:
        """The rows since a time, at most so many: evenly spread, with the largest allocation's first moment."""
        rows = np.flatnonzero(self.t >= since)
        if len(rows) > most:
            even = np.linspace(0, len(rows) - 1, most - 1).astype(int)
            rows = rows[np.unique(np.append(even, np.argmax(self.allocated[rows])))]
        totals = (column[rows] for column in (self.allocated, self.reserved, self.requested, self.by_category))
        return Timeline(self.t[rows], *totals)


class MemoryState:
    """Memory at one moment. Bytes: `allocated` (rounded), `requested`, `reserved`, `by_category`; and `segments`."""

    def __init__(self, memory: Memory, t: float) -> None:
        self.t, self._ns, self._memory = t, memory.start + round(t * 1e9), memory
        self._block = _rows(memory.block, memory.live(self._ns))
        segment = memory.segment
        self._segment = _rows(segment, np.flatnonzero((segment["t"] <= self._ns) & (segment["end"] > self._ns)))
        sizes = self._block["size"]
        self.allocated = int(sizes.sum())
        self.requested = int(self._block["requested"].sum())
        self.reserved = int(self._segment["size"].sum())
        bins = np.bincount(self._block["category"], sizes, len(schema.CATEGORIES))
        self.by_category = {name: int(n) for name, n in zip(schema.CATEGORIES, bins, strict=True)}
        self.holes = fragmentation.holes(self._block, self._segment)

    @property
    def largest_hole(self) -> int:
        """The largest request that fits without a new segment, in bytes."""
        return int(self.holes.max(initial=0))

    @property
    def internal(self) -> float:
        """sum(size - requested) / sum(size) over live blocks."""
        return (self.allocated - self.requested) / self.allocated if self.allocated else 0.0

    def unusable(self, request: int) -> float:
        """sum(free blocks smaller than the request) / sum(free)."""
        return fragmentation.unusable(self.holes, request)

    @cached_property
    def segments(self) -> tuple[SegmentView, ...]:
        """The segments by address, each with its live blocks."""
        memory, start = self._memory, self._memory.start
        plans, contexts = memory.catalog.plans.items, memory.catalog.contexts.items
        held = self._segment
        base = dict(zip(held["segment_id"].tolist(), held["address"].tolist(), strict=True))
        inside: dict[int, list[BlockView]] = {home: [] for home in base}
        keys = ("segment_id", "address", "alloc_id", "size", "requested", "category", "plan", "context", "t", "dropped")
        rows = sorted(zip(*(self._block[key].tolist() for key in keys), strict=True))
        for home, address, number, size, requested, category, plan, context, t, dropped in rows:
            if home in base:
                about = (schema.CATEGORIES[category], plans[plan].op, contexts[context].scope, (t - start) / 1e9)
                state = "pending" if dropped <= self._ns else "active"
                inside[home].append(BlockView(number, address - base[home], size, requested, *about, state))
        columns = (held[key].tolist() for key in ("address", "segment_id", "size"))
        return tuple(SegmentView(i, at, size, tuple(inside[i])) for at, i, size in sorted(zip(*columns, strict=True)))

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {quantity.size(n)}" for name, n in self.by_category.items() if n)
        return (
            f"memory at {self.t:.3f} s: {quantity.size(self.allocated)} in {len(self._block['t'])} blocks of "
            f"{quantity.size(self.reserved)} reserved\n  {held or 'nothing allocated'}\n  "
            f"largest hole {quantity.size(self.largest_hole)}, internal waste {quantity.percent(self.internal)}"
        )

    def _repr_html_(self) -> str:
        return svg.block_map(self)


class Memory:
    """The memory of a recording: `timeline()`, `at(t)`, `peak`, `fragmentation()`.

    Blocks that were live when the recording began are in it when their manager was asked to announce them.
    `block` and `segment` are the columns of the `alloc` and `segment_alloc` events, with the time of the "end" (ns) and
    for blocks that of the request to free them ("dropped"); NEVER for what lives on.
    """

    def __init__(self, table: Callable[[str], schema.Columns], start: int, catalog: Catalog) -> None:
        self.start, self.catalog = start, catalog
        self.block = _lifetimes(table("alloc"), table("free_completed"), "alloc_id")
        self.segment = _lifetimes(table("segment_alloc"), table("segment_free"), "segment_id")
        asked = table("free_requested")
        self.block["dropped"] = joined(self.block["alloc_id"], asked["alloc_id"], asked["t"], NEVER)

    @cached_property
    def _timeline(self) -> Timeline:
        return timeline(self.block, self.segment, self.start)

    def timeline(self) -> Timeline:
        """Bytes over time, one row for each moment at which anything changed."""
        return self._timeline

    @cached_property
    def _checkpoints(self) -> tuple[int, list[Ints]]:
        """What was live when every `stride`-th block was born."""
        born, end = self.block["t"], self.block["end"]
        # As far apart as most blocks live at once, so that all checkpoints together are no larger than the events.
        alive = np.arange(1, len(born) + 1) - np.searchsorted(np.sort(end), born, "right")
        stride, kept = max(CHECKPOINT, int(alive.max(initial=0))), [np.empty(0, np.int64)]
        for begin in range(0, len(born) - stride + 1, stride):
            either = np.concatenate([kept[-1], np.arange(begin, begin + stride)])
            kept.append(either[end[either] > born[begin + stride - 1]])
        return stride, kept

    def live(self, ns: int) -> Ints:
        """The rows of the blocks that are live after everything until a time in ns."""
        stop = int(np.searchsorted(self.block["t"], ns, "right"))
        stride, kept = self._checkpoints
        either = np.concatenate([kept[stop // stride], np.arange(stop // stride * stride, stop)])
        found: Ints = either[self.block["end"][either] > ns]
        return found

    def at(self, t: float) -> MemoryState:
        """The state after everything that happened until t, seconds since the recording began."""
        return MemoryState(self, t)

    @property
    def peak(self) -> MemoryState:
        """The state when most bytes were allocated (the first such moment)."""
        line = self._timeline
        return self.at(float(line.t[np.argmax(line.allocated)]) if len(line.t) else 0.0)

    def fragmentation(self, request: int | None = None, points: int = 512) -> fragmentation.Fragmentation:
        """Fragmentation over time, for a request of so many bytes (default: the largest of the recording)."""
        return fragmentation.over_time(self, request or int(self.block["size"].max(initial=0)), points)

    def __repr__(self) -> str:
        if not len(self.block["t"]):
            return "no memory events"
        return (
            f"{quantity.count(len(self.block['t']))} allocations, reserved at most "
            f"{quantity.size(int(self._timeline.reserved.max()))}\npeak: {self.peak!r}\n{self.fragmentation()!r}"
        )

    def _repr_html_(self) -> str:
        return svg.memory_timeline(self) + svg.block_map(self.peak)


def timeline(block: schema.Columns, segment: schema.Columns, start: int) -> Timeline:
    """Bytes over time from lifetimes: t and end (ns), size, and for blocks requested and category."""
    times, changes = [], []
    for rows, first, last in ((block, "t", 1), (block, "end", -1), (segment, "t", 1), (segment, "end", -1)):
        chosen = rows[first] < NEVER
        size, change = last * rows["size"][chosen], np.zeros((chosen.sum(), 3 + len(schema.CATEGORIES)), np.int64)
        if rows is segment:
            change[:, 1] = size
        else:
            change[:, 0], change[:, 2] = size, last * rows["requested"][chosen]
            change[np.arange(len(size)), 3 + rows["category"][chosen].astype(np.int64)] = size
        times.append(rows[first][chosen])
        changes.append(change)
    t = np.concatenate(times)
    order = np.argsort(t, kind="stable")
    t, held = t[order], np.cumsum(np.concatenate(changes)[order], axis=0)
    final = np.flatnonzero(np.diff(t, append=NEVER))  # the last change of each moment
    held = held[final]
    return Timeline((t[final] - start) / 1e9, held[:, 0], held[:, 1], held[:, 2], held[:, 3:])


def _lifetimes(begins: schema.Columns, ends: schema.Columns, key: str) -> schema.Columns:
    """The beginnings in order of time, one for each id (the first), with the time of the end, or NEVER, as "end"."""
    _, first = np.unique(begins[key], return_index=True)  # the table is in order of time: the first is the earliest
    rows = _rows(begins, np.sort(first))
    rows["end"] = np.maximum(joined(rows[key], ends[key], ends["t"], NEVER), rows["t"])
    return rows


def _rows(table: schema.Columns, chosen: Ints) -> schema.Columns:
    return {name: column[chosen] for name, column in table.items()}
