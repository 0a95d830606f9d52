"""Reconstruct the segments of a PyTorch memory snapshot over time, backwards from the state at its end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flnb_telemetry.foreign import torch_events as te

if TYPE_CHECKING:
    from flnb_telemetry.schema import Columns, Ints


PIECES, MOST_PIECES = 64, 100_000  # pieces that an event may touch on average, and further ones allowed in all


class Held(NamedTuple):
    """A segment of `size` bytes at `address`.

    A *growing* segment, which PyTorch calls expandable, is mapped and unmapped in parts, and so changes its size.
    """

    device: int
    address: int
    size: int
    growing: bool = False


class Ranges:
    """A set of addresses, stored as ranges that do not touch: the sorted lists `begins` and `ends`."""

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Add the addresses from `begin` to `end` - 1."""
        first, last = bisect_left(self.ends, begin), bisect_right(self.begins, end)
        if first < last:
            begin, end = min(begin, self.begins[first]), max(end, self.ends[last - 1])
        self.begins[first:last], self.ends[first:last] = [begin], [end]

    def remove(self, begin: int, end: int) -> tuple[int, ...]:
        """Remove the addresses from `begin` to `end` - 1; return (begin, end) if that cut a range in two, else ()."""
        first, last = bisect_right(self.ends, begin), bisect_left(self.begins, end)
        if first >= last:
            return ()
        low, high = self.begins[first], self.ends[last - 1]
        left = [(low, begin)] if low < begin else []
        right = [(end, high)] if end < high else []
        kept = left + right
        self.begins[first:last], self.ends[first:last] = [a for a, _ in kept], [b for _, b in kept]
        return (begin, end) if left and right and last - first == 1 else ()


def held_over(
    events: te.Events, t: Ints, final: list[Held], start: int, born: Ints, address: Ints, known: list[int] | None
) -> tuple[dict[str, Columns], Ints]:
    """Return the tables of the segments' events, and the segment id of each block (0 if unknown).

    If a part in the middle of a growing segment was ever unmapped, the segment is divided into two from the beginning.
    So each segment grows and shrinks at its ends only, and its blocks never change segments.

    Args:
        events: all events of a device.
        t: the time of each event, ns.
        final: the segments that exist at the end.
        start: the time at which the recording begins, ns.
        born: for each block the row of the event that allocated it, ascending; -1 if it existed before.
        address: the address of each block.
        known: addresses at which growing segments are divided (see `met`); None to find them from the events.
    """
    chosen = np.flatnonzero(np.isin(events.action, (te.SEGMENT_ALLOC, te.SEGMENT_FREE, te.MAP, te.UNMAP)))
    told = (column[chosen].tolist() for column in (events.action, events.address, events.size))
    happened = list(zip(chosen.tolist(), *told, strict=True))
    fixed, mapped, cuts = _before(happened, final)
    sweep = _Sweep(cuts if known is None else set(known), PIECES * (len(happened) + len(final)) + MOST_PIECES)
    for at, size in fixed.items():
        sweep.begin(start, at, size)
    for begin, end in zip(mapped.begins, mapped.ends, strict=True):
        sweep.map(start, begin, end)
    homes, done = np.zeros(len(born), np.int64), 0
    edges = np.searchsorted(born, chosen).tolist()
    for edge, (event, action, at, size) in zip(edges, happened, strict=True):
        homes[done:edge] = sweep.around(address[done:edge])
        done, now = edge, int(t[event])
        if action == te.SEGMENT_ALLOC:
            sweep.begin(now, at, size)
        elif action == te.SEGMENT_FREE:
            sweep.end(now, at)
        elif action == te.MAP:
            sweep.map(now, at, at + size)
        else:
            sweep.unmap(now, at, at + size)
    homes[done:] = sweep.around(address[done:])
    return sweep.tables(homes), homes


def met(segment: Columns) -> list[int]:
    """Return the addresses at which a resized segment touched another segment.

    Addresses that were at any time inside a resized segment are left out.

    `segment` has a row for each size of each segment.
    """
    begin, end = segment["address"], segment["address"] + segment["size"]
    _, which, counts = np.unique(segment["segment_id"], return_inverse=True, return_counts=True)
    grows = counts[which] > 1
    meeting = np.union1d(np.intersect1d(begin[grows], end), np.intersect1d(begin, end[grows]))
    return [at for at in meeting.tolist() if not ((begin < at) & (at < end) & grows).any()]


def _before(happened: list[tuple[int, ...]], final: list[Held]) -> tuple[dict[int, int], Ranges, set[int]]:
    """Return the segments before the first event, found from the final state by undoing the events, the last first.

    ``happened`` has the time, the action, the address and the size of each event.

    Returns:
        The size of each fixed segment by address, the mapped ranges of growing segments, and the addresses at which an
        unmapping ever cut a range in two.
    """
    fixed = {held.address: held.size for held in final if not held.growing}
    mapped, now = Ranges(), Ranges()
    for held in final:
        if held.growing:
            mapped.add(held.address, held.address + held.size)
    for _, action, address, size in reversed(happened):
        if action == te.SEGMENT_ALLOC:
            fixed.pop(address, None)
        elif action == te.SEGMENT_FREE:
            fixed[address] = size
        elif action == te.MAP:
            mapped.remove(address, address + size)
        else:
            mapped.add(address, address + size)
    now.begins, now.ends, cuts = mapped.begins[:], mapped.ends[:], set[int]()
    for _, action, address, size in happened:
        if action == te.MAP:
            now.add(address, address + size)
        elif action == te.UNMAP:
            cuts.update(now.remove(address, address + size))
    return fixed, mapped, cuts


class _Sweep:
    """Replays the events of segments in order: tracks which segments exist, and collects the rows of the tables.

    Args:
        cuts: addresses at which growing segments are split.
        pieces: the largest number of parts of segments that the events may map and unmap; files with more are rejected.
    """

    def __init__(self, cuts: set[int], pieces: int) -> None:
        self.cuts, self.sorted_cuts = cuts, sorted(cuts)
        self.pieces = pieces
        self.begins: list[int] = []  # the addresses of the present segments, sorted
        self.held: dict[int, tuple[int, int, bool]] = {}  # by address: number, size, and whether the segment grows
        self.rows: dict[str, list[tuple[int, int, int, int]]] = {name: [] for name in _TABLES}
        self.first: list[int] = [0]  # the first address of each segment, by number

    def begin(self, t: int, address: int, size: int, growing: bool = False) -> None:
        """Add a segment of `size` bytes at an address at time t (ns); a `growing` segment can change its size."""
        if address in self.held:  # the event of its end is missing
            self.end(t, address)
        insort(self.begins, address)
        self._hold("segment_alloc", t, address, (len(self.first), size, growing))
        self.first.append(address)

    def end(self, t: int, address: int) -> None:
        """Remove the segment at an address, if there is one."""
        if address in self.held:
            number, size, _ = self.held.pop(address)
            del self.begins[bisect_left(self.begins, address)]
            self.rows["segment_free"].append((t, number, address, size))

    def map(self, t: int, begin: int, end: int) -> None:
        """Map the addresses from `begin` to `end` - 1 at time `t` (ns).

        If a segment is adjacent to these addresses, it is enlarged; otherwise a new segment begins.
        """
        inner = self.sorted_cuts[bisect_right(self.sorted_cuts, begin) : bisect_left(self.sorted_cuts, end)]
        self._count(1 + len(inner))
        for low, high in zip([begin, *inner], [*inner, end], strict=True):
            slot = bisect_left(self.begins, low)
            before = self.begins[slot - 1] if slot else 0
            after = self.begins[slot] if slot < len(self.begins) else 0
            if low not in self.cuts and self._grows(before) and before + self.held[before][1] == low:
                self._resize(t, before, before, high - before)
            elif high not in self.cuts and self._grows(after) and after == high:
                self._resize(t, high, low, high - low + self.held[high][1])
            else:
                self.begin(t, low, high - low, True)

    def unmap(self, t: int, begin: int, end: int) -> None:
        """Unmap the addresses from `begin` to `end` - 1 at time `t` (ns): growing segments there shrink or end."""
        slot = max(0, bisect_right(self.begins, begin) - 1)
        touched = self.begins[slot : bisect_left(self.begins, end)]
        self._count(len(touched))
        for address in touched:
            top = address + self.held[address][1]
            low, high = max(begin, address), min(end, top)
            if low >= high or not self._grows(address):
                continue
            if (low, high) == (address, top):
                self.end(t, address)
            elif low == address:
                self._resize(t, address, high, top - high)
            else:
                self._resize(t, address, address, low - address)

    def _count(self, pieces: int) -> None:
        """Add ``pieces`` to the number of mapped or unmapped parts, and raise an error if there are too many.

        Without this limit, reading a crafted file could take hours.
        """
        self.pieces -= pieces
        if self.pieces < 0:
            raise te.SnapshotError("segments overlap in thousands of pieces, expected segments that do not overlap")

    def _grows(self, address: int) -> bool:
        return address in self.held and self.held[address][2]

    def _resize(self, t: int, old: int, address: int, size: int) -> None:
        number, _, growing = self.held.pop(old)
        self.begins[bisect_left(self.begins, old)] = address
        self._hold("segment_resize", t, address, (number, size, growing))

    def _hold(self, table: str, t: int, address: int, what: tuple[int, int, bool]) -> None:
        """Store a segment at an address, and add a row for the time ``t`` to the table named ``table``.

        ``what`` is the segment's number, its size, and whether it is growing.
        """
        self.held[address] = what
        self.rows[table].append((t, what[0], address, what[1]))

    def around(self, address: Ints) -> Ints:
        """Return for each address the number of the segment that currently contains the address; 0 for none."""
        return np.array([self._around(at) for at in address.tolist()], np.int64)

    def _around(self, address: int) -> int:
        slot = bisect_right(self.begins, address) - 1
        if slot < 0:
            return 0
        begin = self.begins[slot]
        number, size, _ = self.held[begin]
        return number if address < begin + size else 0

    def tables(self, homes: Ints) -> dict[str, Columns]:
        """Return the events as tables by kind, with segments numbered by address.

        `homes` has the number of each block's segment; this method replaces the numbers in it by the new ones.
        """
        order = np.argsort(self.first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        homes[:] = rank[homes]
        tables: dict[str, Columns] = {}
        for name, rows in self.rows.items():
            t, number, address, size = np.array(rows, np.int64).reshape(-1, 4).T
            lane = np.zeros(len(t), np.int32)
            tables[name] = {"t": t, "segment_id": rank[number], "address": address, "size": size, "lane": lane}
            tables[name] |= {"place": np.zeros_like(t)} if name != "segment_free" else {}
        return tables


_TABLES = ("segment_alloc", "segment_resize", "segment_free")
