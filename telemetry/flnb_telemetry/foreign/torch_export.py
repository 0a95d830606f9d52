"""Recordings written as PyTorch memory snapshots, for PyTorch's viewer and `torch.cuda._memory_viz`.

The viewer reads pickles of protocol 4 with plain values, addresses and sizes below 2**53, and where anything has a
category something of category "unknown". Beside what PyTorch writes there are a few keys of our own, which other
readers pass over: nanoseconds, sizes of blocks where they are not PyTorch's, and shapes in frames.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.analysis.memory import NEVER
from flnb_telemetry.foreign.plain_pickle import encoded
from flnb_telemetry.foreign.torch_segments import met
from flnb_telemetry.foreign.torch_snapshot import MIN_BLOCK, OURS
from flnb_telemetry.formats import aside

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from flnb_telemetry.recording import Recording
    from flnb_telemetry.schema import Columns, Ints

__all__ = ["save_snapshot"]

LIMIT = 1 << 53  # the viewer's numbers are doubles
BASE = 0x7F00_0000_0000
CHUNK = 1 << 16
SMALL = 2 << 20  # PyTorch's segments for small blocks
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap")
ALLOC, REQUESTED, COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, MAP, UNMAP = range(len(ACTIONS))
KEYS = ("action", "addr", "size", "stream", "time_us", "ns", "category", "frames", "block_size")
CODES = {"action": (b"h", 1), "stream": (b"K", 1), "ns": (b"M", 2), "category": (b"h", 1), "frames": (b"j", 4)}
LONG = b"\x8a\7", 7
"""The opcode of each key's value, and how many bytes follow it."""


def save_snapshot(run: Recording, path: str | os.PathLike[str]) -> None:
    """Write the memory of a run as a PyTorch memory snapshot, aside first and then renamed.

    Addresses are the run's own, unless they do not fit in 53 bits or two managers used the same at a time.

    Raises:
        ValueError: blocks that are too large for the format.
    """
    block, segment = _placed(run)
    stacks = _Stacks(run, block)
    events = _events(block, segment, stacks.of_block)
    with aside(path) as part, open(part, "wb") as file:
        file.write(b"\x80\x04}(" + encoded(OURS) + stacks.head(run, met(segment)))
        file.write(encoded("segments") + encoded(list(_segments(block, segment, stacks))))
        file.write(encoded("device_traces") + b"](](")
        for rows in _rows(run, events, stacks):
            file.write(rows)
        file.write(b"ee" + encoded("allocator_settings") + encoded({}))
        file.write(encoded("external_annotations") + encoded(_steps(run)) + b"u.")


def _epoch(run: Recording) -> int:
    """When the run began, ns since 1970."""
    try:
        return int(datetime.strptime(run.meta["began"], "%Y-%m-%dT%H:%M:%S%z").timestamp()) * 1_000_000_000
    except (KeyError, TypeError, ValueError):
        return run.start


def _placed(run: Recording) -> tuple[Columns, Columns]:
    """The blocks and the segments' sizes, sorted by segment and time, at addresses that the format can tell."""
    block, segment = dict(run.memory.block), dict(run.memory.segment)
    segment = {name: segment[name] for name in ("t", "segment_id", "address", "size", "end")}
    _place_lost(block, int(segment["segment_id"].max(initial=0)))
    numbers, low, high = _spans(block)
    strange = ~np.isin(numbers, segment["segment_id"])  # reserved before the recording: as large as what was seen of it
    first, never = np.full(int(strange.sum()), run.start), np.full(int(strange.sum()), NEVER)
    added = (first, numbers[strange], low[strange], (high - low)[strange], never)
    segment = {name: np.append(segment[name], more) for name, more in zip(segment, added, strict=True)}
    order = np.lexsort((segment["t"], segment["segment_id"]))
    segment = {name: column[order] for name, column in segment.items()}
    if len(order) and (_clash(segment) or int((segment["address"] + segment["size"]).max()) >= LIMIT):
        numbers, low, high = _spans(segment)
        room = -(-(high - low) // SMALL) * SMALL
        if float(room.sum()) >= LIMIT - BASE:
            raise ValueError(f"to_torch_snapshot: {room.sum():,} bytes of segments are more than the format can tell")
        shift = BASE + np.cumsum(room) - room - low
        segment["address"] = segment["address"] + shift[np.searchsorted(numbers, segment["segment_id"])]
        block["address"] = block["address"] + shift[np.searchsorted(numbers, block["segment_id"])]
    return block, segment


def _place_lost(block: Columns, last: int) -> None:
    """Put blocks that lie in no known segment into new ones, a segment for each stretch without a gap."""
    lost = np.flatnonzero(block["segment_id"] == 0)
    lost = lost[np.argsort(block["address"][lost], kind="stable")]
    low = block["address"][lost]
    high = np.maximum.accumulate(low + block["size"][lost])
    gap = np.ones(len(lost), np.int64)
    gap[1:] = low[1:] > high[:-1]
    block["segment_id"] = block["segment_id"].copy()
    block["segment_id"][lost] = last + np.cumsum(gap)


def _spans(table: Columns) -> tuple[Ints, Ints, Ints]:
    """The numbers of the segments in a table, and the lowest and highest address of each."""
    numbers, row = np.unique(table["segment_id"], return_inverse=True)
    low, high = np.full(len(numbers), NEVER), np.zeros(len(numbers), np.int64)
    np.minimum.at(low, row, table["address"])
    np.maximum.at(high, row, table["address"] + table["size"])
    return numbers, low, high


def _clash(segment: Columns) -> bool:
    """Whether two segments ever shared an address at one time."""
    begins: list[int] = []
    ends: dict[int, int] = {}
    changes = [(t, 1, at, size) for t, at, size in schema.tuples(segment, "t", "address", "size")]
    changes += [(t, 0, at, size) for t, at, size in schema.tuples(segment, "end", "address", "size")]
    for _, begin, address, size in sorted(changes):
        slot = bisect_left(begins, address)
        if not begin:
            del begins[slot : slot + 1]
            continue
        if (slot < len(begins) and begins[slot] < address + size) or (slot and ends[begins[slot - 1]] > address):
            return True
        insort(begins, address)
        ends[address] = address + size
    return False


class _Stacks:
    """Tables of the export in which keys, names, frames and the stacks of blocks are stored once and numbered."""

    def __init__(self, run: Recording, block: Columns) -> None:
        self.texts = {text: i for i, text in enumerate((*KEYS, *ACTIONS, *schema.CATEGORIES))}
        pairs = np.stack([block["plan"].astype(np.int64), block["context"]])
        unique, number = np.unique(pairs, axis=1, return_inverse=True)
        self.frames: dict[bytes, int] = {}
        listed = [()] + [tuple(map(self._frame, _frames(run, *pair))) for pair in unique.T.tolist()]
        begin = len(self.texts) + len(self.frames)
        self.lists = [[_reference(len(self.texts) + i) for i in frames] for frames in listed]
        self.nothing = begin
        self.of_block = begin + 1 + number.reshape(-1)

    def _frame(self, frame: dict[str, Any]) -> int:
        return self.frames.setdefault(encoded(frame), len(self.frames))

    def head(self, run: Recording, cuts: list[int]) -> bytes:
        """Our own part of the file, in which everything is that others refer to, and where growing segments meet."""
        texts = [encoded(text) for text in self.texts]
        lists = [encoded(frames) for frames in self.lists]
        memoized = [code + b"r" + i.to_bytes(4, "little") for i, code in enumerate((*texts, *self.frames, *lists))]
        meta = {key: value for key, value in run.meta.items() if type(value) in (str, int, float, bool)}
        begin, last = _epoch(run), _epoch(run) + round(run.seconds * 1e9)
        times = {"start": divmod(begin, 1000), "end": divmod(last, 1000)}
        return encoded({"name": run.name, "meta": meta, "told": memoized, "cuts": cuts} | times)


def _reference(number: int) -> bytes:
    return b"j" + number.to_bytes(4, "little")


def _frames(run: Recording, plan: int, context: int) -> list[dict[str, Any]]:
    """The frames of an allocation: its stack where that is known, else one that says the op and the scope."""
    if context in run.stacks:
        names = ("shape", "dtype", "phase")
        return [
            {"name": name, "filename": file, "line": line} | dict(zip(names, about, strict=bool(about)))
            for name, file, line, about in run.stacks[context]
        ]
    op, _, shape, dtype, *_ = run.catalog.plans.items[plan]
    scope, phase = run.catalog.contexts.items[context]
    if not (op or scope or phase):
        return []
    about = {"shape": tuple(map(int, shape)), "dtype": dtype, "phase": phase}
    return [{"name": op, "filename": scope or OURS, "line": 0} | about]


class _Events(NamedTuple):
    """Columns in order of time."""

    t: Ints
    action: Ints
    address: Ints
    size: Ints
    category: Ints
    stack: Ints  # of a block's birth, else -1
    block: Ints  # bytes, where they are not the request rounded up as PyTorch does; else 0


def _events(block: Columns, segment: Columns, stack: Ints) -> _Events:
    """All events. At one time what ends goes first, segments last; what then begins and ends at once comes after."""
    plain = np.maximum(MIN_BLOCK, -(-block["requested"] // MIN_BLOCK) * MIN_BLOCK)
    size = np.where(block["size"] == plain, 0, block["size"])
    parts = []
    whole = np.arange(len(block["t"]))
    for action, when, rank in ((ALLOC, "t", 5), (REQUESTED, "dropped", 1), (COMPLETED, "end", 2)):
        rows = whole[block[when] != NEVER]
        born, at = block["t"][rows], block[when][rows]
        if action == REQUESTED:
            at = np.maximum(at, born)
        late = 0 if action == ALLOC else np.where(at == born, 5, 0)  # born just then
        frames = stack[rows] if action == ALLOC else np.full(len(rows), -1)
        told = (block["address"][rows], block["requested"][rows], block["category"][rows].astype(np.int64))
        parts.append((at, np.full(len(rows), rank) + late, np.full(len(rows), action), *told, frames, size[rows]))
    happened = np.array([(*event, 0, -1, 0) for event in _segment_events(segment)], np.int64).reshape(-1, 8)
    columns = [np.concatenate(column) for column in zip(*parts, happened.T, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    t, _, *others = (column[order] for column in columns)
    return _Events(t, *others)


def _segment_events(segment: Columns) -> Iterator[tuple[int, int, int, int, int]]:
    """Time, rank, action, address and size; of segments that were resized, what was mapped and unmapped."""
    rows = list(schema.tuples(segment, "segment_id", "t", "end", "address", "size"))
    for i, (number, t, end, address, size) in enumerate(rows):
        first, last = i == 0 or rows[i - 1][0] != number, i + 1 == len(rows) or rows[i + 1][0] != number
        grows, top = not (first and last), address + size
        if first:
            yield t, 4, MAP if grows else SEGMENT_ALLOC, address, size
        else:
            _, _, _, low, before = rows[i - 1]
            high = low + before
            for action, rank, begin, stop in (
                (UNMAP, 3, low, address), (UNMAP, 3, top, high), (MAP, 4, address, low), (MAP, 4, high, top),
            ):  # fmt: skip
                if begin < stop:
                    yield t, rank, action, begin, stop - begin
        if last and end != NEVER:
            yield end, 8 if end == t else 3, UNMAP if grows else SEGMENT_FREE, address, size


def _rows(run: Recording, events: _Events, stacks: _Stacks) -> Iterator[bytes]:
    """The opcodes of all events, and of one more at the end: that the snapshot was taken."""
    begin = _epoch(run) - run.start
    ooms = run.table("oom")
    done, record = 0, _Record(stacks, bool(events.block.any()))
    for row in schema.tuples(ooms, "t", "requested", "free", "largest_hole", "capacity", "reserved"):
        stop = int(np.searchsorted(events.t, row[0], "right"))
        yield from record.chunks(events, done, stop, begin)
        held = int(run.memory.at(float(run.seconds_at(row[0]))).holes.sum())
        told = dict(zip(("size", "free", "largest_hole", "capacity", "reserved"), row[1:], strict=True))
        when = {"time_us": (row[0] + begin) // 1000, "ns": (row[0] + begin) % 1000}
        yield encoded({"action": "oom", "device_free": max(0, told["free"] - held), "stream": 0} | told | when)
        done = stop
    yield from record.chunks(events, done, len(events.t), begin)
    last = (_epoch(run) + round(run.seconds * 1e9)) // 1000
    taken = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": last, "category": "unknown"}
    yield encoded(taken | {"frames": []})


class _Record:
    """The opcodes of an event, the same bytes for all but the numbers in it."""

    def __init__(self, stacks: _Stacks, blocks: bool) -> None:
        self.stacks = stacks
        self.row, self.at = bytearray(b"}("), dict[str, int]()
        for key in KEYS if blocks else KEYS[:-1]:
            self.row += b"h" + bytes([stacks.texts[key]])
            self.row += {"stream": b"K", "action": b"h", "category": b"h", "ns": b"M", "frames": b"j"}.get(
                key, b"\x8a\7"
            )
            self.at[key] = len(self.row)
            self.row += bytes({"stream": 1, "action": 1, "category": 1, "ns": 2, "frames": 4}.get(key, 7))
        self.row += b"u"

    def chunks(self, events: _Events, begin: int, stop: int, shift: int) -> Iterator[bytes]:
        texts = self.stacks.texts
        for first in range(begin, stop, CHUNK):
            some = _Events._make(column[first : min(stop, first + CHUNK)] for column in events)
            rows = np.tile(np.frombuffer(bytes(self.row), np.uint8), (len(some.t), 1))
            values = {
                "action": some.action + texts[ACTIONS[0]], "addr": some.address, "size": some.size,
                "time_us": (some.t + shift) // 1000, "ns": (some.t + shift) % 1000,
                "category": some.category + texts[schema.CATEGORIES[0]],
                "frames": np.where(some.stack < 0, self.stacks.nothing, some.stack), "block_size": some.block,
            }  # fmt: skip
            for key, at in self.at.items():
                if key != "stream":
                    _, width = CODES.get(key, LONG)
                    number = np.ascontiguousarray(values[key], "<i8").view(np.uint8).reshape(-1, 8)
                    rows[:, at : at + width] = number[:, :width]
            yield rows.tobytes()


def _segments(block: Columns, segment: Columns, stacks: _Stacks) -> Iterator[dict[str, Any]]:
    """What is held at the end, tiled by blocks and holes."""
    alive = np.flatnonzero(block["end"] == NEVER)
    alive = alive[np.lexsort((block["address"][alive], block["segment_id"][alive]))]
    names = ("segment_id", "address", "size", "requested", "dropped")
    inside: dict[int, list[tuple[int, ...]]] = {}
    of_block = stacks.of_block[alive].tolist()
    chosen = {name: block[name][alive] for name in names}
    for (number, *row), stack in zip(schema.tuples(chosen, *names), of_block, strict=True):
        inside.setdefault(number, []).append((*row, stack))
    numbers, counts = np.unique(segment["segment_id"], return_counts=True)
    resized = set(numbers[counts > 1].tolist())
    for number, end, address, size in schema.tuples(segment, "segment_id", "end", "address", "size"):
        if end == NEVER:
            tiles = list(_tiles(address, address + size, inside.get(number, [])))
            active = [tile for tile in tiles if tile["state"] != "inactive"]
            used = sum(tile["size"] for tile in active if tile["state"] == "active_allocated")
            yield {
                "device": 0, "address": address, "total_size": size, "allocated_size": used,
                "active_size": sum(tile["size"] for tile in active),
                "requested_size": sum(tile["requested_size"] for tile in active), "stream": 0,
                "segment_type": "small" if size <= SMALL else "large", "segment_pool_id": (0, 0),
                "is_expandable": number in resized, "frames": [], "blocks": tiles,
            }  # fmt: skip


def _tiles(begin: int, end: int, blocks: list[tuple[int, ...]]) -> Iterator[dict[str, Any]]:
    """Blocks of a segment by address with the holes between; what lies outside or over another is left out."""
    position = begin
    for address, size, requested, dropped, stack in [*blocks, (end, 0, 0, NEVER, -1)]:
        if address < position or address + size > end:
            continue
        if address > position:
            hole = {"address": position, "size": address - position, "requested_size": 0}
            yield hole | {"state": "inactive", "frames": []}
        if stack >= 0:
            state = "active_allocated" if dropped == NEVER else "active_pending_free"
            tile = {"address": address, "size": size, "requested_size": requested, "state": state}
            yield tile | {"frames": _reference(stack)}
        position = address + size


def _steps(run: Recording) -> list[dict[str, Any]]:
    """Steps as annotations, which PyTorch has of profiled regions."""
    begin, steps = _epoch(run) - run.start, run.table("step")
    return [
        {"name": f"step {index}", "stage": stage, "device": 0, "time_us": (t + begin) // 1000}
        for index, t0, t1 in schema.tuples(steps, "index", "t0", "t1")
        for stage, t in (("START", t0), ("END", t1))
    ]
