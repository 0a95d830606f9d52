"""The event bus: one event buffer per thread, and the scope, phase and step that user code declares.

While nothing records, an event costs only the check ``bus.lanes is None``. Otherwise it is eight numbers, appended to
a list that belongs to the thread that emits the event:

    lanes = bus.lanes
    if lanes is not None:
        lane = lanes.lane
        lane.pending += (code, t0, t1, alloc_id, node, lane.context, parent0, parent1)

A background thread (`flnb_telemetry.pump`) takes the numbers out of the lists and packs them into records. If a list
has grown beyond its limit in the meantime, the newest events are dropped and counted.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, Self

from flnb_telemetry import intern, schema
from flnb_telemetry.encoding import EXCLUDED, float_bits
from flnb_telemetry.withblock import WithBlock, holding

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.lane import Lane, Lanes


_LEAVE = schema.SCOPE
_paths: dict[str, dict[str, str]] = {}  # the path of a scope, by the path around it and the scope's name
MOST_PATHS = 4096
"""The largest number of paths, and of names inside one path, whose scopes' paths are stored."""
_contexts: tuple[dict[str, int], ...] = tuple({} for _ in schema.PHASES)  # of each phase: context ids by scope path


class Place:
    """The scope path, phase and step of one thread, kept up to date even while nothing records.

    `step` is the index of the open `step` block, or None. `walked` is True if a backward pass ran since the last step
    ended, which means that the next implicit step is under way.
    """

    __slots__ = ("lane", "lanes", "path", "phase", "step", "walked")

    lane: Lane

    def __init__(self) -> None:
        self.lanes: Lanes | None = None  # those to which `lane` belongs
        self.path = ""
        self.phase = 0
        self.step: int | None = None
        self.walked = False

    def new_lane(self, lanes: Lanes) -> Lane:
        """Store and return the thread's event buffer of a new session, so that scopes need not look it up each time."""
        self.lane, self.lanes = lanes.lane, lanes
        return self.lane

    def context(self) -> int:
        """Return the context id of the scope path and phase (see `intern.contexts`)."""
        known = _contexts[self.phase]
        number = known.get(self.path)
        if number is None:
            number = known[self.path] = intern.contexts.id_of((self.path, self.phase))
        return number


class _Threads(threading.local):
    """Thread-local storage: ``threads.here`` is the `Place` of the calling thread."""

    def __init__(self) -> None:
        self.here = Place()


threads = _Threads()
lanes: Lanes | None = None
"""The threads' buffers; None while nothing records."""
want_grad_stats = False
"""Set to True by the pump at intervals; the next backward pass sets it to False and emits `grad_stat` events."""
announcers: list[Callable[[Lane], None]] = []
"""Functions called when a recording begins; they write the existing segments and live blocks to the given buffer."""
describers: list[Callable[[], dict[str, Any]]] = []
"""Functions called when a recording begins; they return facts for its `meta` (backend, manager, device, ...)."""
finishers: list[Callable[[], None]] = []
"""Functions called before a recording ends, on the thread that ends it, to emit their remaining events."""

state_sources: list[Callable[[], dict[int, str]]] = []
"""Functions that return a dict from rank to a string such as "has died"; key -1 has the reason of a failed call."""


class Steps:
    """A counter of training steps. The program has one counter, and each block of `own_steps` has its own counter.

    Attributes:
        number: the index of the step that began last, -1 before the first.
        opens: the time (ns) at which the next implicit step begins, 0 while unknown. An implicit step has no `step`
            block; an optimizer marks its end.
    """

    number: int = -1
    opens: int = 0


_steps: ContextVar[Steps] = ContextVar("flnb_steps", default=Steps())  # noqa: B039  # one for the program


def own_steps() -> holding[Steps]:
    """Context manager: in the block, the calling thread, which may be a rank, has its own counter of steps, from 0."""
    return holding(_steps, Steps())


def emit(code: int, t: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> None:
    """Emit one event from the calling thread; does nothing while nothing records. Frequent events inline this code.

    Args:
        code: the number of the event's kind, and the fields that are packed into the same word (see `schema`).
        t: the time, ns of `time.perf_counter_ns`.
        a, b, c, d, e, f: the other numbers of the event, in the order that `schema.KINDS` lists for its kind.
    """
    if lanes is not None:
        lanes.lane.emit(code, t, a, b, c, d, e, f)


def exclude(before: int, after: int) -> None:
    """Shorten the next recorded op of this thread by `before` ns at its beginning and `after` ns at its end."""
    if lanes is not None:
        lanes.lane.emit(EXCLUDED, before, after)


class _OthersOnly:
    """Replacement for the list of a thread's buffer: discards the records of ops and passes on all other records."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iadd__(self, row: tuple[Any, ...]) -> Self:
        if row[0] & 0xFF not in (schema.OP, schema.RECORD):
            self.rows += row
        return self

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        return self.rows[at]

    def __delitem__(self, at: Any) -> None:
        del self.rows[at]


class uncounted(WithBlock[None]):
    """Context manager: ops that this thread runs in the block are not recorded, for example repetitions for timing."""

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


def enter(here: Place, name: str, event: int = schema.SCOPE | schema.ENTER_MODULE << schema.AUX_SHIFT) -> None:
    """Enter the scope `name` and emit `event`: a cheaper `scope`, for callers that call `leave` in a ``finally``.

    `here` is the `Place` of the calling thread.
    """
    try:
        here.path = path = _paths[here.path][name]
    except KeyError:
        here.path = path = _new_path(here.path, name)
    if lanes is not None:
        lane = here.lane if here.lanes is lanes else here.new_lane(lanes)
        context = _contexts[here.phase].get(path)
        lane.context = context = here.context() if context is None else context
        lane.pending += (event, clock(), context, 0, 0, 0, 0, 0)


def leave(here: Place, outer: str) -> None:
    """Leave the current scope; `outer` is the scope path before `enter`, which becomes current again."""
    here.path = outer
    if lanes is not None:
        lane = here.lane if here.lanes is lanes else here.new_lane(lanes)
        lane.pending += (_LEAVE, clock(), lane.context, 0, 0, 0, 0, 0)
        context = _contexts[here.phase].get(outer)
        lane.context = here.context() if context is None else context


def _new_path(outer: str, name: str) -> str:
    """Return the path of the scope `name` inside the path `outer`, and store it for the next `enter`."""
    for stored in (_paths, _paths.get(outer, {})):
        if len(stored) >= MOST_PATHS:  # ever new names, such as "step 1017", must not pile up
            stored.clear()
    return _paths.setdefault(outer, {}).setdefault(name, f"{outer}.{name}" if outer else name)


ENTER_BLOCK = schema.SCOPE | schema.ENTER_BLOCK << schema.AUX_SHIFT
"""The event that `enter` emits for a scope other than a module's."""


def set_phase(phase: int) -> int:
    """Set the calling thread's phase, an index into `schema.PHASES`, and return the previous one."""
    here = threads.here
    before: int = here.phase
    here.phase = phase
    if phase == schema.BACKWARD:
        here.walked = True
    if lanes is not None:
        lanes.lane.context = here.context()
    return before


class scope(WithBlock[None]):
    """Give a name to the part of the program in the block or decorated function: ``with flnb.scope("block1"): ...``.

    Statistics, tapes and memory reports group ops by scope; the names of nested scopes are joined by dots.

    >>> import flnb
    >>> with flnb.scope("head"):
    ...     y = flnb.ones(3) * 2.0
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._outer: str | None = None

    def begin(self) -> None:
        here = threads.here
        self._outer = here.path
        enter(here, self._name, ENTER_BLOCK)

    def end(self, error: BaseException | None) -> None:
        if self._outer is not None:
            leave(threads.here, self._outer)
            self._outer = None


class phase(WithBlock[None]):
    """Declare which phase of a training step runs inside the block: "forward", "backward", "optimizer" or "other".

    Raises:
        ValueError: an unknown phase.

    >>> import flnb
    >>> with flnb.phase("optimizer"):
    ...     w = flnb.ones(3) - 0.1
    """

    def __init__(self, name: str) -> None:
        if name not in schema.PHASES:
            raise ValueError(f"flnb.phase: unknown phase {name!r}; expected one of {', '.join(schema.PHASES)}")
        self._name = name
        self._before: int | None = None

    def begin(self) -> None:
        self._before = threads.here.phase
        set_phase(schema.PHASES.index(self._name))

    def end(self, error: BaseException | None) -> None:
        if self._before is not None:
            set_phase(self._before)


class step(WithBlock[int]):
    """Mark one training step: ``with flnb.step(): ...``. The block's value is the step's index.

    Args:
        index: the step's number; by default one more than that of the last step, and 0 for the first of a recording.
        total: how many steps the whole run will have, for displays; None if unknown.

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


def mark_step(total: int = 0) -> None:
    """End an implicit step now, unless a `step` block is open; optimizers call this, so that plain loops have steps.

    ``total`` is the number of steps that the whole run will have, 0 if unknown.
    """
    if threads.here.step is None and lanes is not None:
        steps = _steps.get()
        steps.number += 1
        _end_step(steps.opens or clock(), steps.number, total)


def _end_step(t0: int, index: int, total: int) -> None:
    """Emit the event of step `index` of `total` (0 if unknown), which began at `t0` (ns) and ends now."""
    here, now = threads.here, lanes
    here.walked = False
    _steps.get().opens = t1 = clock()
    if now is not None:
        lane = here.lane if here.lanes is now else here.new_lane(now)
        lane.pending += (schema.STEP, t0, t1, index, total, 0, 0, 0)


def current_step() -> int:
    """Return the index of the open step.

    Between steps, return the index of the last step or, after a backward pass, that of the next step.
    """
    if threads.here.step is not None:
        return threads.here.step
    number = _steps.get().number
    return number + 1 if threads.here.walked else max(0, number)


def restart_steps(t: int) -> None:
    """Count the calling thread's steps from 0 again; the first implicit step begins at the time `t` (ns)."""
    steps = _steps.get()
    steps.number, steps.opens = -1, t
    threads.here.walked = False


def log(**metrics: float) -> None:
    """Record metrics of the current step: ``flnb.log(loss=loss, accuracy=0.98)``. Does nothing while nothing records.

    Args:
        **metrics: the value of each metric: a number, or whatever ``float()`` accepts, such as a tensor of one element.

    Raises:
        TypeError: a value is not one number; the message names the metric.

    >>> import flnb
    >>> with flnb.record() as run:
    ...     flnb.log(loss=0.25, accuracy=0.9)
    >>> run.metrics["loss"]["value"].tolist()
    [0.25]
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
