"""Turn the events of a PyTorch memory snapshot into columns while the file is read, and store each call stack once."""

from __future__ import annotations

import re
from itertools import groupby
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
"""The largest allowed number in each column of an event, so that sums of two numbers stay below 2**63."""
TEXTS, INTEGERS = frozenset({str}), frozenset({int})
KEPT = 1 << 16  # the most objects whose numbers are stored by identity
CATEGORY = {name: number for number, name in enumerate(schema.CATEGORIES)} | {
    "autograd_detail": schema.CATEGORIES.index("temporary")  # what PyTorch's profiler calls it
}


class SnapshotError(ValueError):
    """Raised if a file has a value that a PyTorch memory snapshot cannot have; the message names the expected value."""


class Stacks:
    """A table of call stacks: `rows[number]` is a tuple of frames, innermost first; number 0 is the empty stack."""

    def __init__(self) -> None:
        self.rows: list[tuple[Frame, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._frames: dict[Frame, int] = {}
        self._listed: list[Frame] = []
        self._same: dict[int, tuple[Any, int]] = {}
        self._same_frames: dict[int, tuple[Any, int]] = {}

    def number(self, frames: Any) -> int:
        """Return the number of a call stack, given as a snapshot's list of frames (dicts), and add it if it is new."""
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
        """Return the number of a frame, given as a snapshot's dict, and add it if it is new."""
        same = self._same_frames.get(id(frame))
        if same is not None:
            return same[1]
        if type(frame) is not dict or not {"name", "filename", "line"} <= frame.keys():
            raise SnapshotError(f"a frame is {brief(frame)}, expected a dict with name, filename and line")
        about: tuple[Any, ...] = ()
        if "shape" in frame:
            about = (frame["shape"], frame.get("dtype"), frame.get("phase"), frame.get("source_line", ""))
        found = Frame(frame["name"], frame["filename"], frame["line"], about)
        texts = type(found.name) is str and type(found.filename) is str
        if not texts or type(found.line) is not int or found.line.bit_length() > 32 or (about and not _ours(*about)):
            raise SnapshotError(f"a frame is {brief(frame)}, expected strings as name and filename, and a line number")
        number = self._frames.get(found)
        if number is None:
            number = self._frames[found] = len(self._listed)
            self._listed.append(found)
        return _kept(self._same_frames, frame, number)


def _kept(known: dict[int, tuple[Any, int]], told: Any, number: int) -> int:
    """Add an entry to a cache of numbers by object identity, and return the number.

    Args:
        known: the cache: for the ``id`` of an object, the object and its number. If it is full, it is cleared first.
        told: the object, a frame or a list of frames of a snapshot.
        number: the object's number.
    """
    if len(known) >= KEPT:
        known.clear()
    known[id(told)] = told, number
    return number


def _ours(shape: Any, dtype: Any, phase: Any, line: Any) -> bool:
    """Return whether the fields that flnb adds to a frame have the types that flnb writes."""
    extents = type(shape) is tuple and all(type(extent) is int and 0 <= extent < 1 << 63 for extent in shape)
    texts = type(dtype) is str and type(line) is str
    return extents and texts and type(phase) is int and 0 <= phase < len(schema.PHASES)


_OP = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)")
_LIBRARY = re.compile(r"[/\\](?:torch|site-packages|dist-packages)[/\\]")


def described(frames: tuple[Frame, ...]) -> tuple[str, str]:
    """Return the op to which a call stack belongs, and the user's line as "file:line:function"; "" if unknown.

    The op is PyTorch's outermost operator if the stack has C++ frames, else the innermost function. The user's line is
    the innermost line of Python outside installed packages.
    """
    operators = [match[1] for frame in frames if (match := _OP.match(frame.name))]
    python = [frame for frame in frames if not frame.native]
    own = next((frame for frame in python if not _LIBRARY.search(frame.filename)), python[0] if python else None)
    op = operators[-1] if operators else (python or [*frames, Frame("", "", 0)])[0].name
    if own is None:
        return op, ""
    file = own.filename[max(own.filename.rfind("/"), own.filename.rfind("\\")) + 1 :]
    return op, f"{file}:{own.line}:{own.name}"


class Events(NamedTuple):
    """Events of one device as columns, a row for each event.

    Attributes:
        ooms: for each row that is an out-of-memory event, the numbers of bytes in it (size, free, ...), by name.
        action: the kind of event, a value of `ACTIONS`.
        address: the address of the block or segment; in out-of-memory events, the bytes that were free on the device.
        size: the requested bytes.
        us, ns: the time: whole µs (0 if the file has no times), and the ns beyond these.
        stack: the number of the call stack in `Stacks`.
        category: the index of the category in `schema.CATEGORIES`.
        block: the size of the block in bytes, 0 if unknown.
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
        """Convert events, given as the dicts of a snapshot, to columns; the dicts are emptied."""
        kinds = [row["action"] for row in rows]
        named = [row.get("category", "unknown") for row in rows]
        if not TEXTS.issuperset(map(type, kinds)) or not TEXTS.issuperset(map(type, named)):
            raise SnapshotError("an event's action or category is not a string, expected one such as 'alloc'")
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
        checked = list(map(_ints, names, columns, LIMITS, KINDS))
        for row in rows:
            row.clear()
        return cls(ooms, *checked)


def _numbers(row: dict[str, Any]) -> dict[str, int]:
    """Return those fields of an out-of-memory event that are valid numbers of bytes."""
    keys = ("size", "device_free", "free", "largest_hole", "capacity", "reserved")
    return {key: row[key] for key in keys if type(row.get(key)) is int and 0 <= row[key] <= LARGEST}


def _ints(name: str, values: list[Any], most: int, kind: Any) -> Ints:
    """Return the values of the field `name` as a column of dtype `kind`.

    Raises:
        SnapshotError: a value is not an integer from 0 to `most`.
    """
    if not INTEGERS.issuperset(map(type, values)) or min(values) < 0 or max(values) > most:
        for value in values:
            integer("an event", name, value, most)
    return np.array(values, kind)


def integer(what: str, name: str, value: Any, most: int = LARGEST) -> int:
    """Return `value` if it is an integer from 0 to `most`; else raise an error about the field `name` of `what`."""
    if type(value) is not int or not 0 <= value <= most:
        raise SnapshotError(f"{what} has {name} {brief(value)}, expected an integer from 0 to {most:,}")
    return value


def gatherer(stacks: Stacks) -> Callable[[list[Any]], list[Any]]:
    """Return a function to be passed as `gather` to `plain_pickle.read`: it joins consecutive events in one `Events`.

    ``stacks`` is the table of call stacks to which the events refer.
    """

    def is_event(item: Any) -> bool:
        return item.__class__ is dict and "action" in item

    def gather(items: list[Any]) -> list[Any]:
        kept: list[Any] = []
        for events, some in groupby(items, is_event):
            rows = list(some)
            kept += [Events.of(rows, stacks)] if events else rows
        return kept

    return gather


def joined_events(parts: list[Any], name: str) -> Events:
    """Join a list of the `Events` of one device into one object, and empty the list.

    ``name`` is the list's name in errors.
    """
    for part in parts:
        if not isinstance(part, Events):
            raise SnapshotError(f"{name} holds {brief(part)}, expected events (dicts with an action)")
    begins = np.cumsum([0, *(len(part.action) for part in parts)])
    ooms = {int(first) + i: row for first, part in zip(begins, parts, strict=False) for i, row in part.ooms.items()}
    if not parts:
        return Events({}, *(np.empty(0, kind) for kind in KINDS))
    columns = [list(column) for column in zip(*parts, strict=True)][1:]
    parts.clear()  # so that each part of a column is freed as soon as it is joined
    return Events(ooms, *(np.concatenate(columns.pop(0)) for _ in KINDS))
