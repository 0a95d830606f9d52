"""The events of a PyTorch memory snapshot as columns, made while it is read; and call stacks, each kept once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.intern import Frame
from flnb_telemetry.safe_text import brief

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.schema import Ints

__all__ = ["ACTIONS", "Events", "Frame", "SnapshotError", "Stacks", "described", "gatherer", "integer", "joined_events"]

IGNORED, ALLOC, REQUESTED, COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, MAP, UNMAP, OOM = range(9)
ACTIONS = {
    "alloc": ALLOC,
    "free_requested": REQUESTED,
    "free_completed": COMPLETED,
    "free": COMPLETED,
    "segment_alloc": SEGMENT_ALLOC,
    "segment_free": SEGMENT_FREE,
    "segment_map": MAP,
    "segment_unmap": UNMAP,
    "oom": OOM,
}
KINDS: tuple[Any, ...] = (np.int8, np.int64, np.int64, np.int64, np.int16, np.int32, np.int8, np.int64)
"""The dtypes of an event's columns."""
LARGEST, MOST_US = 1 << 60, (1 << 62) // 1000
LIMITS = (len(ACTIONS), LARGEST, LARGEST, MOST_US, 999, 1 << 31, len(schema.CATEGORIES), LARGEST)
"""The largest number in each column, so that sums of two stay below 2**63."""
TEXTS, INTEGERS = frozenset({str}), frozenset({int})
KEPT = 1 << 16
CATEGORY = {name: number for number, name in enumerate(schema.CATEGORIES)} | {
    "autograd_detail": schema.CATEGORIES.index("temporary")  # what PyTorch's profiler calls it
}


class SnapshotError(ValueError):
    """Values that are no PyTorch memory snapshot; the text says which and what was expected."""


class Stacks:
    """Call stacks by number, innermost frame first; number 0 is the empty one."""

    def __init__(self) -> None:
        self.rows: list[tuple[Frame, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._frames: dict[Frame, int] = {}
        self._listed: list[Frame] = []
        self._same: dict[int, tuple[Any, int]] = {}
        self._same_frames: dict[int, tuple[Any, int]] = {}

    def number(self, frames: Any) -> int:
        """The number of a list of frames as a snapshot has it."""
        found = self._same.get(id(frames))
        if found is not None:
            return found[1]
        if not isinstance(frames, (list, tuple)):
            raise SnapshotError(f"frames is {type(frames).__name__}, expected a list of frames")
        key = tuple(map(self._frame, frames))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.rows)
            self.rows.append(tuple(self._listed[i] for i in key))
        return _kept(self._same, frames, number)

    def _frame(self, frame: Any) -> int:
        same = self._same_frames.get(id(frame))
        if same is not None:
            return same[1]
        if type(frame) is not dict or not {"name", "filename", "line"} <= frame.keys():
            raise SnapshotError(f"a frame is {brief(frame)}, expected a dict with name, filename and line")
        about = (frame["shape"], frame.get("dtype"), frame.get("phase")) if "shape" in frame else ()
        found = Frame(frame["name"], frame["filename"], frame["line"], about)
        texts = type(found.name) is str and type(found.filename) is str
        if not texts or type(found.line) is not int or found.line.bit_length() > 32 or (about and not _ours(*about)):
            raise SnapshotError(f"a frame is {brief(frame)}, expected texts and a number")
        number = self._frames.get(found)
        if number is None:
            number = self._frames[found] = len(self._listed)
            self._listed.append(found)
        return _kept(self._same_frames, frame, number)


def _kept(known: dict[int, tuple[Any, int]], told: Any, number: int) -> int:
    """The number, which is known from now on by the identity of what was told, as long as that is kept alive."""
    if len(known) >= KEPT:
        known.clear()
    known[id(told)] = told, number
    return number


def _ours(shape: Any, dtype: Any, phase: Any) -> bool:
    extents = type(shape) is tuple and all(type(extent) is int and 0 <= extent < 1 << 63 for extent in shape)
    return extents and type(dtype) is str and type(phase) is int and 0 <= phase < len(schema.PHASES)


_OP = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)")
_LIBRARY = re.compile(r"[/\\](?:torch|site-packages|dist-packages)[/\\]")


def described(frames: tuple[Frame, ...]) -> tuple[str, str]:
    """The op and the place of a call stack, as far as they are known.

    The op is the outermost of PyTorch's operators in it, where it has C++ frames, otherwise the innermost function. The
    place is the innermost line of Python outside installed packages.
    """
    operators = [match[1] for frame in frames if (match := _OP.match(frame.name))]
    python = [frame for frame in frames if frame.filename.endswith(".py") or frame.filename.startswith("<")]
    own = next((frame for frame in python if not _LIBRARY.search(frame.filename)), python[0] if python else None)
    op = operators[-1] if operators else (python or [*frames, Frame("", "", 0)])[0].name
    if own is None:
        return op, ""
    file = own.filename[max(own.filename.rfind("/"), own.filename.rfind("\\")) + 1 :]
    return op, f"{file}:{own.line}:{own.name}"


class Events(NamedTuple):
    """Events as columns: a row for each.

    Attributes:
        ooms: by row, the numbers that are told of running out of memory.
        action: see `ACTIONS`.
        address: in the one of an oom, the bytes that were free on the device.
        size: bytes as requested.
        us, ns: the time in µs, 0 where not told, and ns beyond it.
        stack, category: numbers.
        block: bytes of the block, 0 where not told.
    """

    ooms: dict[int, dict[str, int]]
    action: Ints
    address: Ints
    size: Ints
    us: Ints
    ns: Ints
    stack: Ints
    category: Ints
    block: Ints

    @classmethod
    def of(cls, rows: list[dict[str, Any]], stacks: Stacks) -> Events:
        """The columns of some events as a snapshot has them; the rows are emptied."""
        kinds = [row["action"] for row in rows]
        named = [row.get("category", "unknown") for row in rows]
        if not TEXTS.issuperset(map(type, kinds)) or not TEXTS.issuperset(map(type, named)):
            raise SnapshotError("an event has an action or a category that is no text")
        action = [ACTIONS.get(kind, IGNORED) for kind in kinds]
        category = [CATEGORY.get(name, 0) for name in named]
        address = [row["addr"] if "addr" in row else row.get("device_free", 0) for row in rows]
        number = stacks.number
        columns: tuple[list[Any], ...] = (
            action,
            address,
            [row.get("size", 0) for row in rows],
            [row.get("time_us", 0) for row in rows],
            [row.get("ns", 0) for row in rows],
            [number(row.get("frames", ())) for row in rows],
            category,
            [row.get("block_size", 0) for row in rows],
        )
        names = ("action", "addr", "size", "time_us", "ns", "frames", "category", "block_size")
        ooms = {i: _numbers(rows[i]) for i, kind in enumerate(action) if kind == OOM}
        checked = [_ints(name, column, most) for name, column, most in zip(names, columns, LIMITS, strict=True)]
        checked = [_small(column, kind) for column, kind in zip(checked, KINDS, strict=True)]
        for row in rows:
            row.clear()
        return cls(ooms, *checked)


def _numbers(row: dict[str, Any]) -> dict[str, int]:
    """What an event of running out of memory says, as far as it says it in bytes."""
    keys = ("size", "device_free", "free", "largest_hole", "capacity", "reserved")
    return {key: row[key] for key in keys if type(row.get(key)) is int and 0 <= row[key] <= LARGEST}


def _ints(name: str, values: list[Any], most: int) -> Ints:
    """A column of integers from 0 to `most`."""
    if INTEGERS.issuperset(map(type, values)) and min(values) >= 0 and max(values) <= most:
        return np.array(values, np.int64)
    for value in values:
        integer("an event", name, value, most)
    return np.empty(0, np.int64)


def integer(what: str, name: str, value: Any, most: int = LARGEST) -> int:
    """The value of a field, which has to be an integer from 0 to `most`; `what` has it."""
    if type(value) is not int or not 0 <= value <= most:
        raise SnapshotError(f"{what} has {name} {brief(value)}, expected an integer from 0 to {most:,}")
    return value


def _small(column: Ints, kind: Any) -> Ints:
    """The column in its dtype; zeros alone take no memory."""
    return column.astype(kind) if column.any() else np.broadcast_to(np.zeros(1, kind), len(column))


def _concatenated(columns: list[Ints]) -> Ints:
    if any(column.strides != (0,) for column in columns):
        return np.concatenate(columns)
    return np.broadcast_to(columns[0][:1], sum(map(len, columns)))


def gatherer(stacks: Stacks) -> Callable[[list[Any]], list[Any]]:
    """What makes `Events` of the events among a list's items, for `plain_pickle.read`."""

    def gather(items: list[Any]) -> list[Any]:
        kept: list[Any] = []
        rows: list[dict[str, Any]] = []
        for item in items:
            if item.__class__ is dict and "action" in item:
                rows.append(item)
                continue
            if rows:
                kept.append(Events.of(rows, stacks))
                rows = []
            kept.append(item)
        if rows:
            kept.append(Events.of(rows, stacks))
        return kept

    return gather


def joined_events(parts: list[Any], name: str) -> Events:
    """All events of one device."""
    for part in parts:
        if not isinstance(part, Events):
            raise SnapshotError(f"{name} holds {brief(part)}, expected events (dicts with an action)")
    begins = np.cumsum([0, *(len(part.action) for part in parts)])
    ooms = {int(first) + i: row for first, part in zip(begins, parts, strict=False) for i, row in part.ooms.items()}
    if not parts:
        return Events({}, *(np.empty(0, kind) for kind in KINDS))
    columns = [list(column) for column in zip(*parts, strict=True)][1:]
    parts.clear()  # so that each part of a column goes as soon as it is joined
    return Events(ooms, *(_concatenated(columns.pop(0)) for _ in KINDS))
