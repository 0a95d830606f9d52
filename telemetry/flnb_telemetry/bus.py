"""The event bus: one buffer per thread, and what user code says about where it is.

Off, telemetry costs one ``bus.lanes is None`` per event. On, an event is eight numbers added to this thread's list:

    lanes = bus.lanes
    if lanes is not None:
        lane = lanes.lane
        lane.pending += (code, t0, t1, alloc_id, node, lane.context, parent0, parent1)

The pump (`flnb_telemetry.pump`) takes the numbers out and packs them into records. What exceeds a lane's budget by then
is dropped, the newest first, and counted.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from threading import get_ident
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, Self

from flnb_telemetry import intern, schema
from flnb_telemetry.encoding import (
    EXCLUDED,
    count_events,
    float_bits,
    nanoseconds,
    packed,
)  # fmt: skip
from flnb_telemetry.withblock import WithBlock, with_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


DEFAULT_BUFFER = 16 << 20


class Lane:
    """One thread's buffer: written by its thread alone, drained by whoever holds the session's drain lock.

    ``pending`` is one flat list of numbers, eight a record: adding a tuple to it is one call, and leaves no container
    behind for the garbage collector. Words 1, 2, 6 and 7 travel as doubles, so they are below 2**53.
    """

    __slots__ = ("context", "ident", "limit", "node", "number", "pending", "thread")

    def __init__(self, number: int, capacity: int = DEFAULT_BUFFER) -> None:
        self.pending: Any = []  # a list; mypy has it that a list takes no tuple by +=
        self.limit = max(1, capacity // schema.RECORD_BYTES) * schema.WORDS
        self.context = self.node = 0
        self.number = number
        self.thread, self.ident = threading.current_thread(), get_ident()

    def emit(
        self, code: int, t: float, a: float = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0
    ) -> None:
        """Write one record."""
        self.pending += (code, t, a, b, c, d, e, f)

    def drain(self) -> schema.Records:
        """Remove and return the records since the last drain, shape (n, 8); a final `dropped` record counts drops."""
        pending = self.pending
        written = len(pending)  # the writer may append meanwhile, and does nothing else
        while written and pending[written - schema.WORDS] == EXCLUDED:
            written -= schema.WORDS  # what it belongs to has not been written
        taken = pending[: min(written, self.limit)]
        if written > self.limit:
            lost = pending[self.limit : written]
            taken += (schema.DROPPED, nanoseconds(lost[1]), count_events(lost), nanoseconds(lost[-7]), 0, 0, 0, 0)
        del pending[:written]
        return packed(taken)

    @property
    def undrained(self) -> int:
        """Bytes waiting for the pump."""
        return len(self.pending) * 8


NOBODY = Lane(0, 0)
"""A lane that no thread takes for its own."""
NOBODY.ident = 0


class Lanes:
    """`lanes.lane` is this thread's lane, made when the thread first asks. Ops ask ``lanes.last`` first, the lane that
    was asked for last: comparing its ``ident`` with the thread's takes half as long as looking a thread-local up."""

    __slots__ = ("_new", "_own", "last")

    def __init__(self, new_lane: Callable[[], Lane]) -> None:
        self._own, self._new = threading.local(), new_lane
        self.last = NOBODY

    @property
    def lane(self) -> Lane:
        lane: Lane | None = getattr(self._own, "lane", None)
        if lane is None:
            self._own.lane = lane = self._new()
            lane.context = threads.here.context()
        self.last = lane
        return lane


_LEAVE = schema.SCOPE
_context_ids: dict[Any, int] = intern.contexts.ids


class Place:
    """Where a thread is, kept whether or not anybody records, so that a recording begun inside a scope is right."""

    __slots__ = ("path", "phase", "step", "walked")

    def __init__(self) -> None:
        self.path = ""
        self.phase = 0
        self.step: int | None = None
        self.walked = False  # a backward ran since the last step ended: the next implicit step is under way

    def context(self) -> int:
        key = (self.path, self.phase)
        number: int | None = _context_ids.get(key)
        return intern.contexts.id_of(key) if number is None else number


class _Threads(threading.local):
    """`threads.here` is this thread's place."""

    def __init__(self) -> None:
        self.here = Place()


threads = _Threads()
lanes: Lanes | None = None
"""None while nobody records."""
want_grad_stats = False
"""Set by the pump now and then; the next backward takes it down and emits `grad_stat` for every node and leaf."""
announcers: list[Callable[[Lane], None]] = []
"""Called with a lane when a recording begins: emit there what exists already (segments, live blocks)."""
describers: list[Callable[[], dict[str, Any]]] = []
"""Called when a recording begins: facts for its `meta` (backend, manager, device, capacity, min_block)."""


class Steps:
    """The count of steps: of the program, or of a part of it that counts for itself (`own_steps`).

    Attributes:
        number: of the last step begun.
        opens: when the next implicit step begins; 0: that is not known yet.
    """

    number: int = -1
    opens: int = 0


_steps: ContextVar[Steps] = ContextVar("flnb_steps", default=Steps())  # noqa: B039  # one for the program


@with_block
def own_steps() -> Iterator[None]:
    """Count steps from 0 inside the block, in this thread: for ranks that are threads."""
    token = _steps.set(Steps())
    try:
        yield
    finally:
        _steps.reset(token)


def emit(code: int, t: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> None:
    """Emit one record from this thread if anybody records. For rare events; ops inline this."""
    if lanes is not None:
        lanes.lane.emit(code, t, a, b, c, d, e, f)


def exclude(before: int, after: int) -> None:
    """Take nanoseconds off the beginning and the end of the time of the op that this thread is about to record."""
    if lanes is not None:
        lanes.lane.emit(EXCLUDED, before, after)


class _OthersOnly:
    """In place of a lane's list of numbers: records of ops are left out, all others are kept."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iadd__(self, row: tuple[Any, ...]) -> Self:
        if row[0] & 0xFF != schema.OP:
            self.rows += row
        return self

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        return self.rows[at]

    def __delitem__(self, at: Any) -> None:
        del self.rows[at]


class uncounted(WithBlock[None]):
    """Leave the ops of this thread out of recordings inside, as those that are repeated to be timed."""

    def __init__(self) -> None:
        self._lane: Lane | None = None

    def begin(self) -> None:
        if lanes is not None and not isinstance(lanes.lane.pending, _OthersOnly):
            self._lane = lanes.lane
            self._lane.pending = _OthersOnly(self._lane.pending)

    def end(self, error: BaseException | None) -> None:
        lane, self._lane = self._lane, None
        if lane is not None and isinstance(lane.pending, _OthersOnly):
            lane.pending = lane.pending.rows


def enter(name: str, event: int = schema.SCOPE | schema.ENTER_MODULE << schema.AUX_SHIFT) -> None:
    """Enter a module's scope, cheaply; `leave` it in a ``finally``. `scope` is the friendly form."""
    here = threads.here
    outer: str = here.path
    here.path = path = f"{outer}.{name}" if outer else name
    if lanes is not None:
        lane = lanes.last
        if lane.ident != get_ident():
            lane = lanes.lane
        context = _context_ids.get((path, here.phase))
        lane.context = context = here.context() if context is None else context
        lane.pending += (event, clock(), context, 0, 0, 0, 0, 0)


def leave(outer: str) -> None:
    """Leave a scope that was entered where the path was ``outer``."""
    here = threads.here
    here.path = outer
    if lanes is not None:
        lane = lanes.last
        if lane.ident != get_ident():
            lane = lanes.lane
        lane.pending += (_LEAVE, clock(), lane.context, 0, 0, 0, 0, 0)
        context = _context_ids.get((outer, here.phase))
        lane.context = here.context() if context is None else context


ENTER_BLOCK = schema.SCOPE | schema.ENTER_BLOCK << schema.AUX_SHIFT
"""The event for `enter` of a scope that is no module's."""


def set_phase(phase: int) -> int:
    """Set this thread's phase (index into `schema.PHASES`) and return the one before."""
    here = threads.here
    before: int = here.phase
    here.phase = phase
    if phase == schema.BACKWARD:
        here.walked = True
    if lanes is not None:
        lanes.lane.context = here.context()
    return before


class scope(WithBlock[None]):
    """Name the ops inside: ``with flnb.scope("block1"): ...``, or as a decorator. Nested scopes are joined by dots.

    >>> import flnb
    >>> with flnb.scope("head"):
    ...     y = flnb.ones(3) * 2.0
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._outer: str | None = None

    def begin(self) -> None:
        self._outer = threads.here.path
        enter(self._name, ENTER_BLOCK)

    def end(self, error: BaseException | None) -> None:
        if self._outer is not None:
            leave(self._outer)
            self._outer = None

    def _recreate_cm(self) -> scope:
        return scope(self._name)


class phase(WithBlock[None]):
    """Name the phase of a step that runs inside: ``with flnb.phase("optimizer"): ...``.

    Raises:
        ValueError: an unknown phase.

    >>> import flnb
    >>> with flnb.phase("optimizer"):
    ...     w = flnb.ones(3) - 0.1
    """

    def __init__(self, name: str) -> None:
        if name not in schema.PHASES:
            raise ValueError(f"flnb.phase: unknown phase {name!r}; the phases are {', '.join(schema.PHASES)}")
        self._name = name
        self._before: int | None = None

    def begin(self) -> None:
        self._before = threads.here.phase
        set_phase(schema.PHASES.index(self._name))

    def end(self, error: BaseException | None) -> None:
        if self._before is not None:
            set_phase(self._before)

    def _recreate_cm(self) -> phase:
        return phase(self._name)


class step(WithBlock[int]):
    """Mark one training step: ``with flnb.step(): ...``. By default the index counts on from the last step's.

    >>> import flnb
    >>> with flnb.record() as run:
    ...     for _ in range(2):
    ...         with flnb.step() as index:
    ...             flnb.log(loss=1.0 / (index + 1))
    """

    def __init__(self, index: int | None = None, total: int | None = None) -> None:
        if index is not None and not hasattr(index, "__index__"):
            raise TypeError(f"flnb.step: index must be an int, got {index!r}")
        self._given, self._total = index, total or 0
        self._outer: int | None = None
        self._index = self._began = 0

    def begin(self) -> int:
        steps = _steps.get()
        steps.number = self._index = steps.number + 1 if self._given is None else int(self._given)
        self._outer, self._began = threads.here.step, clock()
        threads.here.step = self._index
        return self._index

    def end(self, error: BaseException | None) -> None:
        if self._began:
            threads.here.step = self._outer
            _end_step(self._began, self._index, self._total)
            self._began = 0

    def _recreate_cm(self) -> step:
        return step(self._given, self._total)


def mark_step(total: int = 0) -> None:
    """End a step here unless a `step` block is open. Optimizers call it, so that plain loops have steps too."""
    if threads.here.step is None and lanes is not None:
        steps = _steps.get()
        steps.number += 1
        _end_step(steps.opens or clock(), steps.number, total)


def _end_step(t0: int, index: int, total: int) -> None:
    threads.here.walked = False
    _steps.get().opens = t1 = clock()
    emit(schema.STEP, t0, t1, index, total)


def current_step() -> int:
    """The index of the open step; between steps the one that ended last, until the next backward."""
    if threads.here.step is not None:
        return threads.here.step
    number = _steps.get().number
    return number + 1 if threads.here.walked else max(0, number)


def restart_steps(t: int) -> None:
    """Restart step numbers at 0, with the first implicit step at time t. A new session calls it."""
    steps = _steps.get()
    steps.number, steps.opens = -1, t
    threads.here.walked = False


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
