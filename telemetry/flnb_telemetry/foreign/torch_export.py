"""Write recordings as PyTorch memory snapshots, for PyTorch's viewer and `torch.cuda._memory_viz`.

The viewer reads pickles of protocol 4 with plain values. Addresses and sizes must be below 2**53. If blocks have
categories, at least one must have the category "unknown". flnb adds a few keys, which other readers ignore:
nanoseconds, sizes of blocks that PyTorch would round differently, and in frames shapes and the user's line.

The pickle is written opcode by opcode: texts, frames and call stacks are memoized once at its beginning, and the events
refer to them by number.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.analysis.memory import NEVER
from flnb_telemetry.foreign.plain_pickle import encoded
from flnb_telemetry.foreign.torch_events import described
from flnb_telemetry.foreign.torch_segments import met
from flnb_telemetry.foreign.torch_snapshot import MIN_BLOCK, OURS
from flnb_telemetry.formats import aside

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from flnb_telemetry.recording import Recording
    from flnb_telemetry.schema import Columns, Ints

LIMIT = 1 << 53  # the viewer's numbers are doubles
BASE = 0x7F00_0000_0000
CHUNK = 1 << 13  # events that are appended to their list at once: readers hold them until then
SMALL = 2 << 20  # PyTorch's segments for small blocks
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap")
ALLOC, REQUESTED, COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, MAP, UNMAP = range(len(ACTIONS))
KEYS = ("action", "addr", "size", "stream", "time_us", "ns", "category", "frames", "block_size")
CODES = {"action": (b"h", "u1"), "stream": (b"K", "u1"), "ns": (b"M", "<u2"), "category": (b"h", "u1")}
CODES |= {"frames": (b"j", "<u4")}
LONG = b"\x8a\x08", "<i8"
"""The pickle opcode and NumPy dtype of a value in an event, for keys that `CODES` does not list."""


def save_snapshot(run: Recording, path: str | os.PathLike[str]) -> None:
    """Write the memory events of a run as a PyTorch memory snapshot.

    An existing file is replaced only when the new one is complete.

    Addresses are those of the run; they are changed only if they do not fit in 53 bits, or if two managers used the
    same address at the same time.

    Raises:
        ValueError: all segments together take more than the format's 2**53 bytes.
    """
    block, segment = _placed(run)
    stacks = _Stacks(run, block)
    events = _events(block, segment, stacks.of_block)
    with aside(path) as part, open(part, "wb") as file:
        file.write(b"\x80\x04}(" + encoded(OURS) + stacks.head(run, met(segment)))
        file.write(encoded("segments") + encoded(list(_segments(block, segment, stacks))))
        file.write(encoded("device_traces") + b"]]")
        file.writelines(_traced(run, events, stacks))
        file.write(b"a" + encoded("allocator_settings") + encoded({}))
        file.write(encoded("external_annotations") + encoded(_steps(run)) + b"u.")


def epoch(run: Recording) -> int:
    """Return the time at which the run began, in ns since 1970."""
    try:
        return int(datetime.strptime(run.meta["began"], "%Y-%m-%dT%H:%M:%S%z").timestamp()) * 1_000_000_000
    except (KeyError, TypeError, ValueError):
        return run.start


def _placed(run: Recording) -> tuple[Columns, Columns]:
    """Return the tables of blocks and of segments, moved to addresses below 2**53 where necessary.

    The segments are sorted by id and time, with a row for each size that a segment had. Each block is inside a segment.
    """
    block, segment = dict(run.memory.block), dict(run.memory.segment)
    segment = {name: segment[name] for name in ("t", "segment_id", "address", "size", "end")}
    _place_lost(block, int(segment["segment_id"].max(initial=0)))
    numbers, low, high = _spans(block)
    strange = ~np.isin(numbers, segment["segment_id"])  # reserved before the recording: as large as its known blocks
    first, never = np.full(int(strange.sum()), run.start), np.full(int(strange.sum()), NEVER)
    added = (first, numbers[strange], low[strange], (high - low)[strange], never)
    segment = {name: np.append(segment[name], more) for name, more in zip(segment, added, strict=True)}
    order = np.lexsort((segment["t"], segment["segment_id"]))
    segment = {name: column[order] for name, column in segment.items()}
    if len(order) and (_clash(segment) or int((segment["address"] + segment["size"]).max()) >= LIMIT):
        numbers, low, high = _spans(segment)
        room = -(-(high - low) // SMALL) * SMALL
        if float(room.sum()) >= LIMIT - BASE:
            raise ValueError(
                f"to_torch_snapshot: got {room.sum():,} bytes of segments, expected less than the format's 2**53; "
                f"record fewer steps"
            )
        shift = BASE + np.cumsum(room) - room - low
        segment["address"] = segment["address"] + shift[np.searchsorted(numbers, segment["segment_id"])]
        block["address"] = block["address"] + shift[np.searchsorted(numbers, block["segment_id"])]
    return block, segment


def _place_lost(block: Columns, last: int) -> None:
    """Assign blocks without a segment to new segments, one for each gapless range, with ids from `last` + 1 on."""
    lost = np.flatnonzero(block["segment_id"] == 0)
    lost = lost[np.argsort(block["address"][lost], kind="stable")]
    low = block["address"][lost]
    high = np.maximum.accumulate(low + block["size"][lost])
    gap = np.ones(len(lost), np.int64)
    gap[1:] = low[1:] > high[:-1]
    block["segment_id"] = block["segment_id"].copy()
    block["segment_id"][lost] = last + np.cumsum(gap)


def _spans(table: Columns) -> tuple[Ints, Ints, Ints]:
    """Return the segment ids in a table of blocks or segments, with the lowest and the highest address of each."""
    numbers, row = np.unique(table["segment_id"], return_inverse=True)
    low, high = np.full(len(numbers), NEVER), np.zeros(len(numbers), np.int64)
    np.minimum.at(low, row, table["address"])
    np.maximum.at(high, row, table["address"] + table["size"])
    return numbers, low, high


def _clash(segment: Columns) -> bool:
    """Return whether two segments ever contained the same address at the same time."""
    order = np.argsort(segment["address"], kind="stable")
    low, size, t, end = (segment[name][order] for name in ("address", "size", "t", "end"))
    beyond = np.searchsorted(low, low + size)  # of each segment, the first one that lies above it
    for i in np.flatnonzero(beyond > np.arange(1, len(low) + 1)).tolist():
        others = slice(i + 1, beyond[i])
        if ((t[others] < end[i]) & (t[i] < end[others])).any():
            return True
    return False


class _Stacks:
    """The memo of the pickle: texts, frames and call stacks, each stored once and then referred to by number.

    `texts` has the number of each text, and `frames` the number of each frame; frames are numbered after all texts.
    `of_block` has the number of each block's call stack; `nothing` is the number of the empty call stack.
    """

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
        """Return the pickled dict for the snapshot's key "flnb": facts of the run, shared values, and ``cuts``.

        Shared values are texts, frames and stacks to which many events refer by number. ``cuts`` are addresses at which
        two growing segments touch, so that a reader does not take the two for one.
        """
        texts = [encoded(text) for text in self.texts]
        lists = [encoded(frames) for frames in self.lists]
        memoized = [code + b"r" + i.to_bytes(4, "little") for i, code in enumerate((*texts, *self.frames, *lists))]
        meta = {key: value for key, value in run.meta.items() if type(value) in (str, int, float, bool)}
        begin, last = epoch(run), epoch(run) + round(run.seconds * 1e9)
        times = {"start": divmod(begin, 1000), "end": divmod(last, 1000)}
        return encoded({"name": run.name, "meta": meta, "memo": memoized, "cuts": cuts} | times)


def _reference(number: int) -> bytes:
    """Return the opcode that fetches value `number` from the memo."""
    return b"j" + number.to_bytes(4, "little")


def _frames(run: Recording, plan: int, context: int) -> list[dict[str, Any]]:
    """Return the frames of an allocation: one with op as name and scope as file, then the user's frames.

    The user's frames are the recorded call stack, or else the user's line with its source in place of a function's
    name. PyTorch's own stacks name their op and are written without the first frame.
    """
    op, _, shape, dtype, *_ = run.catalog.plans.items[plan]
    scope, phase, _, _, line = run.catalog.contexts.items[context]
    stack = tuple(frame for frame in run.stacks.get(context, ()) if not frame.about)
    called = [{"name": name, "filename": file, "line": number} for name, file, number, _ in stack]
    if called and described(stack) == (op, scope):
        return called
    if not (op or scope or phase or line):
        return called
    about = {"shape": tuple(map(int, shape)), "dtype": dtype, "phase": phase, "source_line": line}
    return [{"name": op, "filename": scope or OURS, "line": 0} | about, *(called or _user_frames(line))]


def _user_frames(line: str) -> list[dict[str, Any]]:
    """Return frames for the text of a context's line, "train.py:12: y = x * w", and of its callers' lines if any."""
    frames = []
    for text in line.split("\nfrom ") if line else ():
        place = re.fullmatch(r"(.+?):([0-9]{1,9})(?:: (.*))?", text, re.DOTALL)
        file, number, source = place.groups() if place else (OURS, 0, text)
        frames.append({"name": source or "", "filename": file, "line": int(number)})
    return frames


class _Events(NamedTuple):
    """Events as columns in order of time (ns)."""

    t: Ints
    action: Ints
    address: Ints
    size: Ints
    category: Ints
    stack: Ints  # the number of the call stack of an allocation, -1 for other events
    block: Ints  # bytes of the block; 0 if they are the request rounded up as PyTorch does


def _events(block: Columns, segment: Columns, stack: Ints) -> _Events:
    """Return the events of all blocks and segments; `stack` has the number of each block's call stack.

    At equal times, ends precede beginnings, and frees precede the end of their segment. If a block begins and ends at
    the same time, its end follows its beginning.
    """
    plain = np.maximum(MIN_BLOCK, -(-block["requested"] // MIN_BLOCK) * MIN_BLOCK)
    size = np.where(block["size"] == plain, 0, block["size"])
    parts = []
    whole = np.arange(len(block["t"]))
    for action, when, rank in ((ALLOC, "t", 5), (REQUESTED, "dropped", 1), (COMPLETED, "end", 2)):
        rows = whole[block[when] != NEVER]
        born, at = block["t"][rows], block[when][rows]
        if action == REQUESTED:
            at = np.maximum(at, born)
        late = 0 if action == ALLOC else np.where(at == born, 5, 0)  # it exists for no time
        frames = stack[rows] if action == ALLOC else np.full(len(rows), -1)
        about = (block["address"][rows], block["requested"][rows], block["category"][rows].astype(np.int64))
        parts.append((at, np.full(len(rows), rank) + late, np.full(len(rows), action), *about, frames, size[rows]))
    happened = np.array([(*event, 0, -1, 0) for event in _segment_events(segment)], np.int64).reshape(-1, 8)
    columns = [np.concatenate(column) for column in zip(*parts, happened.T, strict=True)]
    order = np.lexsort((columns[1], columns[0]))
    t, _, *others = (column[order] for column in columns)
    return _Events(t, *others)


def _segment_events(segment: Columns) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (time, order among events of that time, action, address, size) for each change of a segment.

    A segment that was resized is written like PyTorch's expandable segments: parts of it are mapped and unmapped.
    """
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


def _traced(run: Recording, events: _Events, stacks: _Stacks) -> Iterator[bytes]:
    """Yield the opcodes that append all events to a list; the last event is "snapshot"."""
    shift, sizes = epoch(run) - run.start, bool(events.block.any())

    def between(begin: int, stop: int) -> Iterator[bytes]:
        for first in range(begin, stop, CHUNK):
            some = _Events._make(column[first : min(stop, first + CHUNK)] for column in events)
            yield _opcodes(some, stacks, sizes, shift)

    done = 0
    sizes_of = ("requested", "free", "largest_hole", "capacity", "reserved")
    for *row, context in schema.tuples(run.table("oom"), "t", *sizes_of, "context"):
        stop = int(np.searchsorted(events.t, row[0], "right"))
        yield from between(done, stop)
        held = int(run.memory.at(float(run.seconds_at(row[0]))).holes.sum())
        oom = dict(zip(("size", "free", "largest_hole", "capacity", "reserved"), row[1:], strict=True))
        when = {"time_us": (row[0] + shift) // 1000, "ns": (row[0] + shift) % 1000}
        about = {"device_free": max(0, oom["free"] - held), "stream": 0, "frames": _frames(run, 0, context)}
        yield encoded({"action": "oom"} | about | oom | when) + b"a"
        done = stop
    yield from between(done, len(events.t))
    last = (epoch(run) + round(run.seconds * 1e9)) // 1000
    taken = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": last, "category": "unknown"}
    yield encoded(taken | {"frames": []}) + b"a"


def _opcodes(events: _Events, stacks: _Stacks, sizes: bool, shift: int) -> bytes:
    """Return the opcodes that append events to a list, each as a dict; all events take the same number of bytes.

    Args:
        events: the events.
        stacks: the memo of the pickle, to which the events refer.
        sizes: whether to write the key "block_size".
        shift: the ns to add to the events' times so that they count from 1970.
    """
    at = events.t + shift
    values = {
        "action": events.action + stacks.texts[ACTIONS[0]], "addr": events.address, "size": events.size,
        "stream": 0, "time_us": at // 1000, "ns": at % 1000,
        "category": events.category + stacks.texts[schema.CATEGORIES[0]],
        "frames": np.where(events.stack < 0, stacks.nothing, events.stack), "block_size": events.block,
    }  # fmt: skip
    keys = KEYS if sizes else KEYS[:-1]
    fixed = {"begin": b"}(", **{f"key {key}": b"h" + bytes([stacks.texts[key]]) for key in keys}, "end": b"u"}
    layout: list[tuple[str, str]] = [("begin", "S2")]
    for key in keys:
        opcode, kind = CODES.get(key, LONG)
        fixed[f"opcode {key}"] = opcode
        layout += [(f"key {key}", "S2"), (f"opcode {key}", f"S{len(opcode)}"), (key, kind)]
    rows = np.zeros(len(events.t), [*layout, ("end", "S1")])
    for name, value in [*fixed.items(), *((key, values[key]) for key in keys)]:
        rows[name] = value
    return b"(" + rows.tobytes() + b"e"


def _segments(block: Columns, segment: Columns, stacks: _Stacks) -> Iterator[dict[str, Any]]:
    """Yield the segments that exist at the end, each as a dict with its blocks and the gaps between them."""
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
    """Yield the blocks of a segment by address, as dicts; gaps between them become "inactive" blocks.

    Args:
        begin, end: the addresses of the segment.
        blocks: for each block its address, size, requested size, time of the request to free it, and call stack. Blocks
            that overlap another one or the segment's end are left out.
    """
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
    """Return the training steps in PyTorch's form of profiled regions, with an event START and an event END (µs)."""
    begin, steps = epoch(run) - run.start, run.table("step")
    return [
        {"name": f"step {index}", "stage": stage, "device": 0, "time_us": (t + begin) // 1000}
        for index, t0, t1 in schema.tuples(steps, "index", "t0", "t1")
        for stage, t in (("START", t0), ("END", t1))
    ]
