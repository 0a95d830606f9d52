"""Memory over time: bytes by category, the blocks and segments at any moment, and fragmentation.

A `Memory` pairs each allocation with its free, and stores at regular intervals which blocks were live. So the state at
any time is found in a bounded number of steps. Times are seconds since the recording began.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flnb_telemetry import quantity, schema
from flnb_telemetry.analysis.owners import Owners
from flnb_telemetry.formats import svg
from flnb_telemetry.intern import joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.schema import Ints

NEVER = np.iinfo(np.int64).max
CHECKPOINT = 1024
FORMULAS = {
    "ratio": "reserved / live: bytes taken from the device over bytes in live blocks",
    "unusable": "unusable(r) = sum(free blocks < r) / sum(free)",
    "internal": "internal = sum(size - requested) / sum(size) over live blocks",
    "largest": "the largest free block: the largest request that fits without a new segment",
    "average": "time average = integral(reserved dt) / integral(live dt)",
}


class BlockView(NamedTuple):
    """A block of memory at one moment: offset in its segment and sizes in bytes, and when it was made (`born`, s).

    `state` is "active", "locked" (a user lock keeps the block allocated without its array) or "pending" (a free was
    requested and has not happened yet).
    """

    id: int
    offset: int
    size: int
    requested: int
    category: str
    op: str
    scope: str
    born: float
    state: str
    line: str = ""


class SegmentView(NamedTuple):
    """A segment (memory that a manager reserved from its device) at one moment, with its live blocks by offset."""

    id: int
    address: int
    size: int
    blocks: tuple[BlockView, ...]


class Timeline(NamedTuple):
    """Memory over time as columns, with a row for each change: `t` in seconds, all other columns in bytes.

    `by_category` has shape (n, 7), with the categories in the order of `schema.CATEGORIES`. The sum of each row is
    `allocated`.
    """

    t: NDArray[np.float64]
    allocated: Ints
    reserved: Ints
    requested: Ints
    by_category: Ints

    def spread(self, most: int, since: float = -np.inf) -> Timeline:
        """Return a shorter timeline from `since` (s) on: at most `most` rows, chosen so that no peak is lost."""
        late = Timeline._make(column[np.searchsorted(self.t, since) :] for column in self)
        rows = svg.extremes(most, late.allocated, late.reserved)
        return Timeline._make(column[rows] for column in late)


class Fragmentation(NamedTuple):
    """Measures of fragmentation over time (`t` in seconds), and two for the whole run; see `FORMULAS`.

    `at_peak` is the value of `ratio` when most bytes were allocated, and `average` the average of `ratio` over time.
    `unusable` is the share of free memory that cannot hold `request` bytes.
    """

    t: NDArray[np.float64]
    reserved: Ints
    live: Ints
    ratio: NDArray[np.float64]
    unusable: NDArray[np.float64]
    internal: NDArray[np.float64]
    largest: Ints
    request: int
    at_peak: float
    average: float

    def __repr__(self) -> str:
        return (
            f"reserved/live {quantity.significant(self.at_peak)}× at the peak, "
            f"{quantity.significant(self.average)}× on time average\n  at most "
            f"{quantity.percent(self.unusable.max(initial=0.0))} of what is free unusable for a request of "
            f"{quantity.size(self.request)}, {FORMULAS['unusable']}"
        )


class MemoryState:
    """Memory at one moment, `t` seconds since the recording began.

    Attributes in bytes: `allocated` (the sum of the blocks' sizes after rounding by the manager), `requested` (the sum
    of the requested sizes), `reserved` (the sum of the segments), `by_category` (a dict) and `holes` (the size of each
    gap between blocks). `segments` lists all segments with their blocks.
    """

    def __init__(self, memory: Memory, t: float) -> None:
        self.t, self._ns, self._memory = t, memory.start + round(t * 1e9), memory
        self.catalog = memory.catalog
        self.block = _rows(memory.block, memory.live(self._ns))
        segment = memory.segment
        self._segment = _rows(segment, np.flatnonzero((segment["t"] <= self._ns) & (segment["end"] > self._ns)))
        sizes = self.block["size"]
        self.allocated = int(sizes.sum())
        self.requested = int(self.block["requested"].sum())
        self.reserved = int(self._segment["size"].sum())
        bins = np.bincount(self.block["category"], sizes, len(schema.CATEGORIES))
        self.by_category = {name: int(n) for name, n in zip(schema.CATEGORIES, bins, strict=True)}
        self.holes = holes(self.block, self._segment)

    @property
    def largest_hole(self) -> int:
        """Return the largest gap between blocks in bytes: the largest request that fits without a new segment."""
        return int(self.holes.max(initial=0))

    @property
    def internal(self) -> float:
        """Return the internal fragmentation (0 to 1): sum(size - requested) / sum(size) over live blocks."""
        return (self.allocated - self.requested) / self.allocated if self.allocated else 0.0

    def unusable(self, request: int) -> float:
        """Return the share (0 to 1) of free bytes that lie in gaps smaller than `request` bytes; 0 if none are free."""
        return float(self.holes[self.holes < request].sum() / max(1, self.holes.sum()))

    @cached_property
    def segments(self) -> tuple[SegmentView, ...]:
        """Return the segments by address, each with its live blocks."""
        memory, start = self._memory, self._memory.start
        locks = memory.locks(self._ns)
        plans, contexts = memory.catalog.plans.items, memory.catalog.contexts.items
        base = dict(schema.tuples(self._segment, "segment_id", "address"))
        inside: dict[int, list[BlockView]] = {home: [] for home in base}
        keys = ("segment_id", "address", "alloc_id", "size", "requested", "category", "plan", "context", "t", "dropped")
        rows = sorted(schema.tuples(self.block, *keys))
        for home, address, number, size, requested, category, plan, context, t, dropped in rows:
            if home in base:
                about = (schema.CATEGORIES[category], plans[plan].op, contexts[context].scope, (t - start) / 1e9)
                state = "pending" if dropped <= self._ns else "locked" if locks.get(number) else "active"
                where = (number, address - base[home], size, requested)
                inside[home].append(BlockView(*where, *about, state, contexts[context].innermost))
        held = sorted(schema.tuples(self._segment, "address", "segment_id", "size"))
        return tuple(SegmentView(number, at, size, tuple(inside[number])) for at, number, size in held)

    @property
    def besides(self) -> str:
        """Return a sentence about small results, which have no block and are not counted here; "" if there are none."""
        count, nbytes = self._memory.small(self._ns)
        if not count:
            return ""
        least, total = quantity.size(self._memory.least), quantity.size(nbytes)
        made = f"{quantity.count(count)} result{'s' * (count != 1)} below {least}, {total} in all"
        return f"not in these sums: {made}, made so far in memory of NumPy's own"

    def by(self, *keys: str) -> Owners:
        """Return the live blocks grouped by one or more keys: "category", "op", "scope", "phase", "line" or "stack"."""
        return Owners(self, *keys)

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {quantity.size(n)}" for name, n in self.by_category.items() if n)
        return (
            f"memory at {self.t:.3f} s: {quantity.size(self.allocated)} in {len(self.block['t'])} blocks of "
            f"{quantity.size(self.reserved)} reserved\n  {held or 'nothing allocated'}\n  "
            f"largest hole {quantity.size(self.largest_hole)}, internal waste {quantity.percent(self.internal)}"
            + f"\n  {self.besides}"
            * bool(self.besides)
        )

    def _repr_html_(self) -> str:
        return svg.block_map(self)


class Memory:
    """The memory of a recording over time: `timeline()`, `at(t)`, `peak`, `fragmentation()`.

    Blocks that existed before the recording are included if they belong to the manager that was active when it began.
    Results smaller than the manager's `min_block` have no block: NumPy allocates the memory for such a result, and its
    free is not recorded. `small(ns)` counts such results.

    Attributes:
        block: a row for each block: the columns of the `alloc` events, and the times (ns) of its free ("end") and of
            the request to free it ("dropped"), both NEVER for a block that was not freed.
        segment: the columns of the `segment_alloc` events, and the time "end" (ns); a resized segment has a row for
            each of its sizes.
        aside: the timeline of the device to which `flnb.memory.offload` moves saved tensors. All other attributes
            exclude that device.
        transfer, locked: the columns of the events of these kinds: tensors moved, and blocks that users locked.
    """

    def __init__(self, table: Callable[[str], schema.Columns], start: int, catalog: Catalog, least: int = 0) -> None:
        self.start, self.catalog = start, catalog
        self.transfer, elsewhere = table("transfer"), table("aside")["segment_id"]
        self.locked = table("locked")
        blocks = _lifetimes(table("alloc"), table("free_completed"), "alloc_id")
        segments = _sizes(table("segment_alloc"), table("segment_resize"), table("segment_free"))
        (self.block, away), (self.segment, taken) = (_parted(rows, elsewhere) for rows in (blocks, segments))
        self.aside = timeline(away, taken, start)
        asked = table("free_requested")
        self.block["dropped"] = joined(self.block["alloc_id"], asked["alloc_id"], asked["t"], NEVER)
        self._timeline = timeline(self.block, self.segment, start)
        ops, self.least = table("op"), int(max(table("use")["min_block"].max(initial=0), least))
        nbytes, view = catalog.nbytes[ops["plan"]], catalog.strings.id_of("movement")
        small = (ops["alloc_id"] == 0) & (nbytes > 0) & (nbytes < self.least) & (catalog.family[ops["plan"]] != view)
        self._small = ops["t0"][small], np.append(0, np.cumsum(nbytes[small]))

    def small(self, ns: int) -> tuple[int, int]:
        """Return the number and the total bytes of the results without a block that were made until a time (ns)."""
        times, sums = self._small
        count = int(np.searchsorted(times, ns, "right"))
        return count, int(sums[count])

    def timeline(self) -> Timeline:
        """Return bytes over time, one row for each moment at which memory changed."""
        return self._timeline

    @cached_property
    def _checkpoints(self) -> tuple[int, list[Ints]]:
        """Return the number of allocations between two checkpoints, and the rows of the blocks live at each."""
        born, end = self.block["t"], self.block["end"]
        # As far apart as the most blocks that live at once: all checkpoints together are no larger than the events.
        alive = np.arange(1, len(born) + 1) - np.searchsorted(np.sort(end), born, "right")
        stride, kept = max(CHECKPOINT, int(alive.max(initial=0))), [np.empty(0, np.int64)]
        for begin in range(0, len(born) - stride + 1, stride):
            either = np.concatenate([kept[-1], np.arange(begin, begin + stride)])
            kept.append(either[end[either] > born[begin + stride - 1]])
        return stride, kept

    def live(self, ns: int) -> Ints:
        """Return the rows (in `block`) of the blocks that are live after all events until a time (ns)."""
        stop = int(np.searchsorted(self.block["t"], ns, "right"))
        stride, kept = self._checkpoints
        either = np.concatenate([kept[stop // stride], np.arange(stop // stride * stride, stop)])
        return either[self.block["end"][either] > ns]

    def locks(self, ns: int) -> dict[int, int]:
        """Return the number of locks that users hold on each locked block at a time (ns), by block id."""
        newest = {number: locks for t, number, locks in schema.tuples(self.locked, "t", "alloc_id", "locks") if t <= ns}
        return {number: locks for number, locks in newest.items() if locks}

    def at(self, t: float) -> MemoryState:
        """Return the state of memory after all events until `t`, in seconds since the recording began."""
        return MemoryState(self, t)

    @property
    def peak(self) -> MemoryState:
        """Return the state of memory at the first moment at which most bytes were allocated."""
        line = self._timeline
        return self.at(float(line.t[np.argmax(line.allocated)]) if len(line.t) else 0.0)

    def by(self, *keys: str) -> Owners:
        """Return the blocks that are live at the peak, grouped by one or more keys (see `MemoryState.by`)."""
        return self.peak.by(*keys)

    def fragmentation(self, request: int | None = None, points: int = 512) -> Fragmentation:
        """Compute several measures of fragmentation over time.

        Args:
            request: the size (bytes) of an imagined request: `unusable` is the share of the free memory that cannot
                hold it; by default the size of the largest block.
            points: the largest number of moments to compute; they are evenly spread, and the peak is one of them.
        """
        request = request or int(self.block["size"].max(initial=0))
        every = self._timeline
        line = every.spread(points)
        states = [self.at(float(t)) for t in line.t]
        largest = np.array([state.largest_hole for state in states], np.int64)
        unusable, internal = np.array([(state.unusable(request), state.internal) for state in states]).reshape(-1, 2).T
        live = np.where(line.allocated > 0, line.allocated, np.nan)
        ratio = line.reserved / live
        at_peak = ratio[np.argmax(line.allocated)] if len(ratio) else np.nan
        spans = np.diff(every.t)
        average = np.dot(every.reserved[:-1], spans) / (np.dot(every.allocated[:-1], spans) or np.nan)
        curves = (line.t, line.reserved, line.allocated, ratio, unusable, internal, largest)
        return Fragmentation(*curves, request, float(at_peak), float(average))

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
    """Compute memory over time from tables of blocks and of segments.

    Both tables have the columns "t" and "end" (ns) and "size"; the table of blocks also has "requested" and "category".
    Times of the result are seconds since `start` (ns).
    """
    t = np.concatenate([block["t"], segment["t"], block["end"], segment["end"]])
    order = np.argsort(t, kind="stable")
    t = t[order]
    final = np.flatnonzero(np.diff(t, append=NEVER))  # the last change of each moment, without the ends that never come
    nothing, none = np.zeros(len(segment["t"]), np.int64), np.zeros(len(block["t"]), np.int64)

    def held(of_block: Ints, of_segment: Ints = nothing) -> Ints:
        """Return for each moment the sum of the numbers given for those blocks and segments that exist then."""
        summed = np.cumsum(np.concatenate([of_block, of_segment, -of_block, -of_segment])[order])
        found: Ints = summed[final]
        return found

    size, category = block["size"], block["category"]
    sums = np.zeros((len(schema.CATEGORIES), len(final)), np.int64)  # untouched rows take no memory
    for number in np.unique(category).tolist():
        sums[number] = held(np.where(category == number, size, 0))
    return Timeline((t[final] - start) / 1e9, held(size), held(none, segment["size"]), held(block["requested"]), sums.T)


def _lifetimes(begins: schema.Columns, ends: schema.Columns, key: str) -> schema.Columns:
    """Return the first event in `begins` of each id, in order of time, with a new column "end" (ns, or NEVER).

    `key` is the name of the column that has the ids; the time "end" is that of the id's event in `ends`.
    """
    if (begins[key][1:] > begins[key][:-1]).all():  # each id once, as is usual: nothing is copied
        rows = dict(begins)
    else:
        _, first = np.unique(begins[key], return_index=True)  # the table is in order of time: the first is the earliest
        rows = _rows(begins, np.sort(first))
    rows["end"] = np.maximum(joined(rows[key], ends[key], ends["t"], NEVER), rows["t"])
    return rows


def _sizes(begins: schema.Columns, resizes: schema.Columns, ends: schema.Columns) -> schema.Columns:
    """Return a table of segments with one row for each size that a segment had, in order of time.

    The column "end" has the time (ns) at which the segment got another size or was released. The arguments are the
    events of segments that were reserved, resized and released.
    """
    first = _lifetimes(begins, ends, "segment_id")
    if not len(resizes["t"]):
        return first
    last = joined(resizes["segment_id"], first["segment_id"], first["end"], -1)
    resized = resizes | {"end": last}
    rows = {name: np.concatenate([column, resized[name]]) for name, column in first.items()}
    rows = _rows(rows, np.lexsort((rows["t"], rows["segment_id"])))  # stable: a segment begins before it changes
    same = rows["segment_id"][1:] == rows["segment_id"][:-1]
    rows["end"][:-1][same] = np.minimum(rows["end"][:-1], rows["t"][1:])[same]
    rows["end"] = np.maximum(rows["end"], rows["t"])
    return _rows(rows, np.argsort(rows["t"], kind="stable"))


def _parted(rows: schema.Columns, segments: Ints) -> tuple[schema.Columns, schema.Columns]:
    """Divide a table into two: the rows whose "segment_id" is not in `segments`, and the others."""
    if not len(segments):
        return rows, _rows(rows, segments)
    inside = np.isin(rows["segment_id"], segments)
    return _rows(rows, np.flatnonzero(~inside)), _rows(rows, np.flatnonzero(inside))


def _rows(table: schema.Columns, chosen: Ints) -> schema.Columns:
    """Return the rows of a table whose indices are in `chosen`, in that order."""
    return {name: column[chosen] for name, column in table.items()}


def holes(block: schema.Columns, segment: schema.Columns) -> Ints:
    """Return the sizes (bytes) of the gaps between blocks, in the order of the segments' ids, without empty gaps."""
    if not len(segment["t"]):
        return np.empty(0, np.int64)
    order = np.argsort(segment["segment_id"])
    ids, sizes, address = (segment[name][order] for name in ("segment_id", "size", "address"))
    # Lay the segments end to end (two devices may use one address twice). Then the i-th gap lies between the i-th
    # smallest end and the i-th smallest beginning, the segments' own edges counted in.
    base = np.cumsum(sizes) - sizes
    moved = joined(block["segment_id"], ids, base - address, NEVER)
    inside = moved != NEVER
    begin = (block["address"] + moved)[inside]
    ends = np.sort(np.concatenate([base, begin + block["size"][inside]]))
    begins = np.sort(np.concatenate([base + sizes, begin]))
    gaps: Ints = begins - ends
    return gaps[gaps > 0]
