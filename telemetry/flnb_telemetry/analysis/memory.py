"""Memory over time: who held how much, and exactly which blocks lay where at any moment.

A `Memory` orders all allocations and frees once; between checkpoints it keeps only the events, so that the state at any
time costs a bounded number of steps. Times are seconds since the recording began.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import quantity, schema
from flnb_telemetry.analysis import fragmentation
from flnb_telemetry.extras import require
from flnb_telemetry.formats import svg

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from flnb_telemetry.catalog import Catalog

    Ints = NDArray[np.int64]

NEVER = np.iinfo(np.int64).max
CHECKPOINT = 1024
SEGMENT_KEYS = ("segment_id", "address", "size")


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

    def to_pandas(self) -> Any:
        """A DataFrame indexed by t with allocated, reserved, requested and a column for each category."""
        columns = {"t": self.t, "allocated": self.allocated, "reserved": self.reserved, "requested": self.requested}
        columns |= {name: self.by_category[:, i] for i, name in enumerate(schema.CATEGORIES)}
        return require("pandas", "lab", "a DataFrame").DataFrame(columns).set_index("t")


class MemoryState:
    """Memory at one moment. Bytes: `allocated` (rounded), `requested`, `reserved`, `by_category`; and `segments`."""

    def __init__(self, memory: Memory, t: float, live: Ints, held: Ints) -> None:
        block, segment = memory._block, memory._segment
        self.t = t
        self._memory, self._live, self._held = memory, live, held
        sizes = block["size"][live]
        self.allocated = int(sizes.sum())
        self.requested = int(block["requested"][live].sum())
        self.reserved = int(segment["size"][held].sum())
        bins = np.bincount(block["category"][live], sizes, len(schema.CATEGORIES))
        self.by_category = {name: int(n) for name, n in zip(schema.CATEGORIES, bins, strict=True)}
        self.holes = fragmentation.holes(block, live, segment, held)

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
        memory, live = self._memory, self._live
        block, segment = memory._block, memory._segment
        held = self._held[np.argsort(segment["address"][self._held], kind="stable")]
        live = live[np.argsort(block["address"][live], kind="stable")]
        inside: dict[int, list[BlockView]] = {int(i): [] for i in segment["segment_id"][held]}
        bases = dict(zip(segment["segment_id"][held].tolist(), segment["address"][held].tolist(), strict=True))
        for row in live.tolist():
            if (home := int(block["segment_id"][row])) in inside:
                inside[home].append(memory._view(row, bases[home], self.t))
        return tuple(
            SegmentView(number, address, size, tuple(inside[number]))
            for number, address, size in zip(*(segment[k][held].tolist() for k in SEGMENT_KEYS), strict=True)
        )

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {quantity.size(n)}" for name, n in self.by_category.items() if n)
        return (
            f"memory at {self.t:.3f} s: {quantity.size(self.allocated)} in {len(self._live)} blocks of "
            f"{quantity.size(self.reserved)} reserved\n  {held or 'nothing allocated'}\n  "
            f"largest hole {quantity.size(self.largest_hole)}, internal waste {quantity.percent(self.internal)}"
        )

    def _repr_html_(self) -> str:
        return svg.block_map(self)


class Memory:
    """The memory of a recording: `timeline()`, `at(t)`, `peak`, `fragmentation()`.

    Blocks that were live when the recording began are in it when their manager was asked to announce them.
    """

    def __init__(self, table: Callable[[str], schema.Columns], start: int, catalog: Catalog) -> None:
        self._start, self._catalog = start, catalog
        self._block = _lifetimes(table("alloc"), table("free_completed"), "alloc_id")
        self._segment = _lifetimes(table("segment_alloc"), table("segment_free"), "segment_id")
        self._pending = _ends(self._block["alloc_id"], table("free_requested"), "alloc_id")
        count = len(self._block["t"])
        rows = np.arange(count)
        freed = rows[self._block["end"] < NEVER]
        t = np.concatenate([self._block["t"], self._block["end"][freed]])
        # At one instant allocations come first, so that a block never ends before it begins.
        order = np.argsort(t, kind="stable")
        self._event_t = t[order]
        self._event_row = np.concatenate([rows, freed])[order]
        self._event_sign = np.where(order < count, 1, -1)
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        self._ends_at = np.full(count, NEVER, np.int64)
        self._ends_at[freed] = position[count:]

    @cached_property
    def _timeline(self) -> Timeline:
        row, sign = self._event_row, self._event_sign
        deltas = np.zeros((len(row), 2 + len(schema.CATEGORIES)), np.int64)
        deltas[:, 0] = sign * self._block["size"][row]
        deltas[:, 1] = sign * self._block["requested"][row]
        deltas[np.arange(len(row)), 2 + self._block["category"][row].astype(np.int64)] = deltas[:, 0]
        segment = self._segment
        gone = segment["end"] < NEVER
        moves_t = np.concatenate([segment["t"], segment["end"][gone]])
        moves = np.concatenate([segment["size"], -segment["size"][gone]])
        by_time = np.argsort(moves_t, kind="stable")
        t = np.unique(np.concatenate([self._event_t, moves_t]))
        held = _running(deltas, np.searchsorted(self._event_t, t, "right"))
        reserved = _running(moves[by_time][:, None], np.searchsorted(moves_t[by_time], t, "right"))
        return Timeline((t - self._start) / 1e9, held[:, 0], reserved[:, 0], held[:, 1], held[:, 2:])

    def timeline(self) -> Timeline:
        """Bytes over time, one row for each moment at which anything changed."""
        return self._timeline

    @cached_property
    def _checkpoints(self) -> tuple[int, list[Ints]]:
        most = int(np.cumsum(self._event_sign).max(initial=0))
        stride = max(CHECKPOINT, most)  # so that all checkpoints together are no larger than the events
        live, kept = np.empty(0, np.int64), []
        for begin in range(0, len(self._event_row) + 1, stride):
            kept.append(live)
            live = self._advanced(live, begin, begin + stride)
        return stride, kept

    def _advanced(self, live: Ints, begin: int, stop: int) -> Ints:
        """The rows live after event `stop`, from those live after event `begin`."""
        born = self._event_row[begin:stop][self._event_sign[begin:stop] > 0]
        either = np.concatenate([live, born])
        kept: Ints = either[self._ends_at[either] >= stop]
        return kept

    def _live(self, ns: int) -> Ints:
        stop = int(np.searchsorted(self._event_t, ns, "right"))
        stride, kept = self._checkpoints
        return self._advanced(kept[stop // stride], stop // stride * stride, stop)

    def at(self, t: float) -> MemoryState:
        """The state after everything that happened until t, seconds since the recording began."""
        ns = self._start + round(t * 1e9)
        held = np.flatnonzero((self._segment["t"] <= ns) & (self._segment["end"] > ns))
        return MemoryState(self, t, self._live(ns), held)

    @property
    def peak(self) -> MemoryState:
        """The state when most bytes were allocated (the first such moment)."""
        line = self._timeline
        return self.at(float(line.t[np.argmax(line.allocated)]) if len(line.t) else 0.0)

    def fragmentation(self, request: int | None = None, points: int = 512) -> fragmentation.Fragmentation:
        """Fragmentation over time, for a request of so many bytes (default: the largest of the recording)."""
        return fragmentation.over_time(self, request, points)

    def _view(self, row: int, base: int, t: float) -> BlockView:
        block, catalog = self._block, self._catalog
        pending = self._pending[row] <= self._start + round(t * 1e9)
        return BlockView(
            int(block["alloc_id"][row]),
            int(block["address"][row]) - base,
            int(block["size"][row]),
            int(block["requested"][row]),
            schema.CATEGORIES[block["category"][row]],
            catalog.plans.items[block["plan"][row]].op,
            catalog.contexts.items[block["context"][row]].scope,
            (int(block["t"][row]) - self._start) / 1e9,
            "pending" if pending else "active",
        )

    def __repr__(self) -> str:
        if not len(self._block["t"]):
            return "no memory events"
        return (
            f"{quantity.count(len(self._block['t']))} allocations, reserved at most "
            f"{quantity.size(int(self._timeline.reserved.max()))}\npeak: {self.peak!r}\n{self.fragmentation()!r}"
        )

    def _repr_html_(self) -> str:
        return svg.memory_timeline(self) + svg.block_map(self.peak)


def _lifetimes(begins: schema.Columns, ends: schema.Columns, key: str) -> schema.Columns:
    """The beginnings in order of time, one for each id (the first), with the time of the end, or NEVER, as "end"."""
    _, first = np.unique(begins[key], return_index=True)  # the table is in order of time: the first is the earliest
    first.sort()
    rows = {name: column[first] for name, column in begins.items()}
    rows["end"] = np.maximum(_ends(rows[key], ends, key), rows["t"])
    return rows


def _ends(ids: Ints, ends: schema.Columns, key: str) -> Ints:
    """For each id, when its first end was, or NEVER. An end whose beginning was not seen counts for nothing."""
    found = np.full(len(ids), NEVER, np.int64)
    if len(ids) and len(ends[key]):
        order = np.argsort(ids)
        slot = np.minimum(np.searchsorted(ids, ends[key], sorter=order), len(ids) - 1)
        known = ids[order[slot]] == ends[key]
        np.minimum.at(found, order[slot[known]], ends["t"][known])
    return found


def _running(deltas: Ints, upto: Ints) -> Ints:
    """Sums of the first `upto` rows."""
    sums = np.zeros((len(deltas) + 1, deltas.shape[1]), np.int64)
    np.cumsum(deltas, axis=0, out=sums[1:])
    found: Ints = sums[upto]
    return found
