"""The event bus: one bounded buffer per thread, and what user code says about where it is.

Off, telemetry costs one ``bus.lanes is None`` per event. On, an event is one ``pack`` into this thread's chunk:

    lanes = bus.lanes
    if lanes is not None:
        lane = lanes.lane
        position = lane.position
        try:
            bus.pack_op(lane.buffer, position, code, t0, t1, alloc_id, node, lane.context, parent0, parent1)
            lane.position = position + 64
        except struct.error:
            lane.emit_op(code, t0, t1, alloc_id, node, lane.context, parent0, parent1)

A full chunk is handed to the pump (`flnb_telemetry.pump`) and a recycled one taken; when the pump is behind by the
whole budget, the newest record is dropped and counted.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from contextlib import contextmanager
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import intern, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECORD = struct.Struct("<8q")
pack = RECORD.pack_into
pack_op = struct.Struct("=qddqqqqq").pack_into
"""An op's record as the hot path writes it: code with `FLOAT_TIMES`, times as float seconds of `time.perf_counter`.

Packing a time as a float costs half of packing it as a large int; `Lane.drain` makes it nanoseconds."""
FLOAT_TIMES = 1 << schema.AUX_SHIFT
CHUNK_BYTES = 4096 * schema.RECORD_BYTES
DEFAULT_BUFFER = 16 << 20

_bits_of = struct.Struct("<d").pack
_int_of = struct.Struct("<q").unpack


def float_bits(value: float) -> int:
    """The 64 bits of a float as a signed integer, the form in which floats travel in a record."""
    return int(_int_of(_bits_of(value))[0])


class Lane:
    """One thread's bounded buffer: written by its thread alone, drained by whoever holds the session's drain lock."""

    def __init__(self, number: int, capacity: int = DEFAULT_BUFFER) -> None:
        # Two chunks at least, so that one can be filled while the other is drained.
        self.size = max(1, min(CHUNK_BYTES, capacity // 2) // schema.RECORD_BYTES) * schema.RECORD_BYTES
        self.spare = max(1, capacity // self.size - 1)  # chunks that may still be made
        self.buffer = bytearray(self.size)
        self.position = 0
        self.full: deque[bytearray] = deque()
        self.free: deque[bytearray] = deque()
        self.drained = 0  # bytes of the oldest undrained chunk that were drained while it was being filled
        self.dropped = 0  # records lost so far; `reported` of them have been told to the sinks
        self.reported = 0
        self.lost_first_t = self.lost_t = 0
        self.context = self.node = 0
        self.number = number
        self.thread = threading.current_thread()

    def emit(self, code: int, t: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> None:
        """Write one record, or count it as dropped when the buffer is full.

        Raises `struct.error` for a value that is no int64.
        """
        if self.position < self.size or self.rotate(t):
            pack(self.buffer, self.position, code, t, a, b, c, d, e, f)
            self.position += 64

    def emit_op(
        self, code: int, t0: float, t1: float, alloc: int, node: int, context: int, parent0: int, parent1: int
    ) -> None:
        """Write an op's record in the form of the hot path, or count it as dropped when the buffer is full."""
        if self.position < self.size or self.rotate(int(t0 * 1e9)):
            pack_op(self.buffer, self.position, code, t0, t1, alloc, node, context, parent0, parent1)
            self.position += 64

    def rotate(self, t: int) -> bool:
        """Hand the full chunk on and take an empty one; False when the budget is used up: a drop at time t."""
        if self.free:
            fresh = self.free.pop()
        elif self.spare > 0:
            self.spare -= 1
            fresh = bytearray(self.size)
        else:
            if self.dropped == self.reported:
                self.lost_first_t = t
            self.lost_t = t
            self.dropped += 1
            return False
        full = self.buffer
        # CPython looks for signals and other threads only after a call: these three take effect together. Position
        # goes first all the same, because a drain that sees position < drained takes nothing.
        self.position = 0
        self.buffer = fresh
        self.full.append(full)
        return True

    def drain(self) -> schema.Records:
        """Copy out what was written since the last drain, shape (n, 8), and recycle the chunks. Not reentrant."""
        used: list[bytearray] = []
        while True:
            used += [self.full.popleft() for _ in range(len(self.full))]
            chunk, position = self.buffer, self.position
            if not self.full:  # else the writer rotated meanwhile and the pair may not belong together
                break
        # One copy at most gives up the GIL: getting it back from a busy thread can take a whole switch interval.
        views = [memoryview(full) for full in used]
        views.append(memoryview(chunk)[: max(position, 0 if used else self.drained)])
        views[0] = views[0][self.drained :]
        self.drained = len(views[-1]) + (0 if used else self.drained)
        data = bytearray().join(views)
        self.free.extend(used)
        return _nanoseconds(np.frombuffer(data, np.int64).reshape(-1, 8))

    def take_drops(self) -> tuple[int, int, int] | None:
        """(count, first time, last time) of the drops not told before, or None."""
        dropped = self.dropped
        count = dropped - self.reported
        if not count:
            return None
        first, last = self.lost_first_t, self.lost_t
        self.reported = dropped
        return count, first, last

    @property
    def undrained(self) -> int:
        """Bytes waiting for the pump."""
        return len(self.full) * self.size + max(0, self.position - self.drained)


def _nanoseconds(records: schema.Records) -> schema.Records:
    """Turn the float seconds of op records into integer nanoseconds, in place."""
    found = (records[:, 0] & 0xFFFFFF) == (schema.OP | FLOAT_TIMES)
    if found.any():
        rows = slice(None) if found.all() else np.flatnonzero(found)
        records[rows, 1:3] = np.rint(records.view(np.float64)[rows, 1:3] * 1e9)
        records[rows, 0] &= ~FLOAT_TIMES
    return records


class Lanes(threading.local):
    """`lanes.lane` is this thread's lane, made by the session when the thread first asks."""

    def __init__(self, new_lane: Callable[[], Lane]) -> None:
        self.lane = new_lane()
        self.lane.context = place.context()


_context_ids: dict[Any, int] = intern.contexts.ids


class _Place(threading.local):
    """Where this thread is, kept whether or not anybody records, so that a recording begun inside a scope is right."""

    path = ""
    phase = 0
    step: int | None = None
    walked = False  # a backward ran since the last step ended: the next implicit step is under way

    def context(self) -> int:
        key = (self.path, self.phase)
        number: int | None = _context_ids.get(key)
        return intern.contexts.id_of(key) if number is None else number


place = _Place()
lanes: Lanes | None = None
"""None while nobody records."""
want_grad_stats = False
"""Set by the pump now and then; the next backward takes it down and emits `grad_stat` for every node and leaf."""
announcers: list[Callable[[Lane], None]] = []
"""Called with a lane when a recording begins: emit there what exists already (segments, live blocks)."""
describers: list[Callable[[], dict[str, Any]]] = []
"""Called when a recording begins: facts for its `meta` (backend, manager, device, capacity, min_block)."""

_step_number = -1  # the last step begun
_step_open_t = 0  # where the next implicit step begins; 0: nowhere yet


def emit(code: int, t: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> None:
    """Emit one record from this thread if anybody records. For rare events; ops inline this."""
    if lanes is not None:
        lanes.lane.emit(code, t, a, b, c, d, e, f)


def enter(name: str) -> str:
    """Enter a scope, cheaply; give the result to `leave` in a ``finally``. `scope` is the friendly form."""
    outer: str = place.path
    place.path = f"{outer}.{name}" if outer else name
    if lanes is not None:
        lane = lanes.lane
        lane.context = context = place.context()
        lane.emit(schema.SCOPE | 1 << schema.AUX_SHIFT, clock(), context)
    return outer


def leave(outer: str) -> None:
    """Leave the scope whose `enter` gave ``outer``."""
    if lanes is not None:
        lane = lanes.lane
        lane.emit(schema.SCOPE, clock(), lane.context)
        place.path = outer
        lane.context = place.context()
    else:
        place.path = outer


def set_phase(phase: int) -> int:
    """Set this thread's phase (index into `schema.PHASES`) and return the one before."""
    before: int = place.phase
    place.phase = phase
    if phase == schema.BACKWARD:
        place.walked = True
    if lanes is not None:
        lanes.lane.context = place.context()
    return before


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Name what happens inside: ``with flnb.scope("block1"): ...`` or as a decorator. Scopes nest with dots."""
    outer = enter(name)
    try:
        yield
    finally:
        leave(outer)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Say which phase of a step runs inside: ``with flnb.phase("optimizer"): ...``; an unknown one is a ValueError."""
    if name not in schema.PHASES:
        raise ValueError(f"flnb.phase: unknown phase {name!r}; the phases are {', '.join(schema.PHASES)}")
    before = set_phase(schema.PHASES.index(name))
    try:
        yield
    finally:
        set_phase(before)


@contextmanager
def step(index: int | None = None, total: int | None = None) -> Iterator[int]:
    """Mark one training step: ``with flnb.step(): ...``. The index counts on from the step before when not given."""
    global _step_number
    _step_number = index = _step_number + 1 if index is None else index
    outer, t0 = place.step, clock()
    place.step = index
    try:
        yield index
    finally:
        place.step = outer
        _end_step(t0, index, total or 0)


def mark_step(total: int = 0) -> None:
    """End a step here unless a `step` block is open: what an optimizer calls, so that plain loops show steps too."""
    global _step_number
    if place.step is None and lanes is not None:
        _step_number += 1
        place.walked = False
        _end_step(_step_open_t or clock(), _step_number, total)


def _end_step(t0: int, index: int, total: int) -> None:
    global _step_open_t
    _step_open_t = t1 = clock()
    emit(schema.STEP, t0, t1, index, total)


def current_step() -> int:
    """The index of the open step; between implicit steps the one that ended last, until the next backward."""
    if place.step is not None:
        return place.step
    return _step_number + 1 if place.walked else max(0, _step_number)


def restart_steps(t: int) -> None:
    """Begin counting at 0 again, the first implicit step at time t: what a new session does."""
    global _step_number, _step_open_t
    _step_number, _step_open_t = -1, t
    place.walked = False


def log(**metrics: float) -> None:
    """Record numbers of the current step: ``flnb.log(loss=loss, accuracy=0.98)``. Free of cost while nobody records.

    Anything that ``float()`` takes will do; what it does not take is a `TypeError` that names the metric.
    """
    if lanes is None:
        return
    lane, t, index = lanes.lane, clock(), current_step()
    for name, value in metrics.items():
        try:
            bits = float_bits(float(value))
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"flnb.log: {name} is {type(value).__name__}, expected one number; reduce it first, "
                f"for example with .mean() ({error})"
            ) from error
        lane.emit(schema.METRIC | intern.strings.id_of(name) << schema.PLAN_SHIFT, t, index, bits)
