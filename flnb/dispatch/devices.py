"""Telemetry of devices: emits the host's launches, copies and waits, and the times at which the device ran the tasks.

During a recording, each launch and copy (a *task*) is enclosed in a pair of timed CUDA events. Their times are read in
a later call, when both events have happened, so the program never waits for them. An *anchor* relates the device's
times to the host's clock: it is an event in an idle stream that happened between two readings of the host's clock. A
new anchor is made every second.

Code that launches kernels reports them as `Driver.launch` does:

    task = devices.begin(driver, stream)  # None while nothing records
    run("cuLaunchKernel", ...)
    if task is not None:
        task.launched("scale", grid, block, shared, addresses)

If another library may have launched kernels, the last line is ``task.launched_by("cupy add", addresses)``.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import count
from threading import RLock, local
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from flnb_telemetry import bus, device_words, intern, schema

from flnb.dispatch import announcing
from flnb.interface.living import Living

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb_telemetry.lane import Lane

    from flnb.interface.memory import MemoryManager

ANCHOR_NS = 1_000_000_000
"""The ns after which a new anchor is made."""
PATIENCE_NS = 100_000
"""The largest time, in ns, for which the host polls a new anchor; after a failure it tries again later."""
PRECISION_NS = 500
"""The precision of ``cuEventElapsedTime`` in ns."""
MOST = 4096
"""The largest number of tasks of a stream that wait for their times; further tasks are recorded without times."""
LOWEST = 1 << 16
"""The smallest int among a kernel's arguments that counts as an address; smaller ones are numbers."""
EMULATED = -1
"""The value of an event's error bound for times of an emulated device."""
ALL = -1
"""The stream number in a `host_wait` event for a wait for all streams of a device."""

_next_seq = count(1).__next__
_next_event = count(1).__next__


class Driver(Protocol):
    """The methods of a driver API that telemetry calls; see `flnb_backends.tensor.cuda.driver.Driver`."""

    path: str
    emulated: tuple[str, int] | None
    capturing: set[int]

    def current(self) -> int:
        """Return the number of this thread's current device."""

    def using(self, device: int) -> Any:
        """Make a device the current device of this thread inside a ``with`` block."""

    def name(self, device: int = 0) -> str:
        """Return a device's name."""

    def stream(self) -> int:
        """Create a non-blocking stream; returns its handle."""

    def event(self, timed: bool = False) -> int:
        """Create a device event, with a time if ``timed``; returns its handle."""

    def queue_event(self, event: int, stream: int) -> None:
        """Record a device event in a stream, without emitting telemetry."""

    def happened(self, event: int) -> bool:
        """Return whether an event has happened, without waiting."""

    def counted(self, kernel: str) -> tuple[int, int, int, int]:
        """Return a kernel's requests, sectors, shared-memory requests and bank conflicts; zeros on a real device."""

    def seconds_if_over(self, begin: int, end: int) -> float | None:
        """Return the seconds between two events, given their handles; None if one has not happened, or on an error."""


class Anchor(NamedTuple):
    """A device event that happened at ``t`` on the host's clock, with an error of at most ``bound`` (both in ns)."""

    event: int
    t: int
    bound: int


class Queued(NamedTuple):
    """A task whose times are not known yet: its number, the events before and after it, and their anchor."""

    seq: int
    begin: int
    end: int
    anchor: Anchor


class Task:
    """A launch or copy about to be queued; call `launched` or `copied` once it has been queued."""

    __slots__ = ("_emitted", "_queued", "_seq", "_stream", "_t0", "_watch")

    def __init__(self, watch: Watch, stream: int, seq: int, queued: Queued | None) -> None:
        self._watch, self._stream, self._seq, self._queued = watch, stream, seq, queued
        self._emitted = watch.mine.emitted
        self._t0 = clock()

    @property
    def alone(self) -> bool:
        """Whether this thread has emitted no other launch or copy since the task began."""
        return self._watch.mine.emitted == self._emitted

    def launched_by(self, name: str, addresses: Sequence[Any] = ()) -> None:
        """Emit one launch ``name`` by another library, unless launches were emitted one by one since the task began.

        ``addresses`` are the device addresses of the arrays that the launch uses.
        """
        if self.alone:
            self.launched(name, addresses=addresses)
        else:
            self.drop()

    def drop(self) -> None:
        """Emit nothing, because nothing was queued."""
        if self._queued is not None:
            self._watch.pool += (self._queued.begin, self._queued.end)

    def launched(
        self, name: str, grid: Sequence[int] = (), block: Sequence[int] = (), shared: int = 0,
        addresses: Sequence[Any] = (), needs: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """Emit the launch of a kernel.

        Args:
            name: the kernel's name.
            grid: the extents of the grid in blocks; empty if unknown.
            block: the extents of a block in threads; empty if unknown.
            shared: bytes of dynamic shared memory of each block.
            addresses: the kernel's arguments; those that are not addresses are ignored.
            needs: the resources that the kernel needs, as the last fields of `device_words.Kernel`, in their order.
        """
        t1 = clock()
        self._watch.kernels.add(name)
        kernel = device_words.Kernel(name, tuple(grid), tuple(block), shared, *needs)
        self._emit(device_words.LAUNCH | intern.kernels.id_of(kernel) << schema.PLAN_SHIFT, t1, 0, 0, addresses)

    def copied(self, route: int, nbytes: int, pinned: bool = False, addresses: Sequence[Any] = ()) -> None:
        """Emit a copy of memory from, to, on or between devices.

        Args:
            route: `device_words.TO_DEVICE`, `TO_HOST`, `ON_DEVICE` or `BETWEEN`.
            nbytes: the number of bytes copied.
            pinned: whether the host memory is pinned; copies to pageable memory block the host.
            addresses: the addresses of the destination and the source.
        """
        self._emit(device_words.COPY | route << schema.AUX_SHIFT, clock(), nbytes, int(pinned), addresses)

    def _emit(self, code: int, t1: int, third: int, fourth: int, addresses: Sequence[Any]) -> None:
        watch, queued, lanes = self._watch, self._queued, bus.lanes
        if queued is not None:
            watch.driver.queue_event(queued.end, self._stream)
        if lanes is None:
            return
        lane, t0, seq = lanes.lane, self._t0, self._seq
        watch.mine.emitted += 1
        lane.pending += (code, t0, t1, seq, third, fourth, 0, watch.context(lane, self._stream))
        given = [each for each in addresses if type(each) is int and each >= LOWEST]
        for i in range(0, len(given), 5):
            lane.pending += (device_words.ADDRESSES, t0, seq, *(*given[i : i + 5], 0, 0, 0, 0)[:5])
        if queued is not None:
            with watch.lock:
                watch.queued.setdefault(self._stream, deque()).append(queued)


class Emitted(local):
    """Counts the launches and copies that a thread has emitted for a device."""

    emitted = 0


class Watch:
    """The state of one device's telemetry: emits the times of its tasks when they are done.

    Attributes:
        queued: for each stream, the tasks whose times are not known yet.
        events: a dict from the handle of a device event to the number that telemetry gave to the event when it was last
            recorded in a stream.
        pool: timed events that can be used again.
        mine: the number of launches and copies that this thread has emitted.
        unknown: whether the device's memory in use must still be emitted to a new recording.
    """

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.driver, self.ordinal = driver, ordinal
        self.place = f"cuda:{ordinal}"
        self.queued: dict[int, deque[Queued]] = {}
        self.events: dict[int, int] = {}
        self._numbers = {0: 0}  # of streams, by handle
        self._contexts: dict[tuple[int, int], int] = {}
        self.pool: list[int] = []
        self.unknown = True
        self.kernels = set[str]()  # names of those launched since the last `count`
        self.mine = Emitted()
        self.lock = RLock()
        self._anchor: Anchor | None = None
        self._anchor_due = self._idle = self._info = 0
        self._described: Any = None

    def begin(self, stream: int) -> Task:
        """Begin a task in a stream, and emit the times of earlier tasks that are done."""
        with self.lock:
            self.describe()
            self.read()
            if self.unknown and bus.lanes is not None:
                self.unknown = False
                for manager in own_managers:
                    if manager.device.place == self.place:
                        announcing.announce_manager(bus.lanes.lane, manager)
            anchor, queued = self._current_anchor(), None
            if anchor is not None and len(self.queued.get(stream, ())) < MOST:
                first, last = (self.pool.pop() if self.pool else self.driver.event(timed=True) for _ in range(2))
                queued = Queued(_next_seq(), first, last, anchor)
                self.driver.queue_event(first, stream)
            return Task(self, stream, queued.seq if queued else _next_seq(), queued)

    def describe(self, lane: Lane | None = None) -> None:
        """Emit the device's description to all recordings if it has changed, and to ``lane``, if given, in any case."""
        emulated = self.driver.emulated
        if emulated != self._described or not self._info:
            self._described, (order, seed) = emulated, emulated or ("", 0)
            name = self.driver.name(self.ordinal)
            self._info = intern.devices.id_of(
                device_words.DeviceInfo(self.place, name, emulated is not None, order, seed)
            )
            bus.emit(device_words.DEVICE, clock(), self._info)
        if lane is not None:
            lane.emit(device_words.DEVICE, clock(), self._info)

    def context(self, lane: Lane, stream: int) -> int:
        """Return the number under which telemetry stores a lane's current context on this device and ``stream``."""
        with self.lock:  # two threads may number new streams at once
            number = self._numbers.setdefault(0 if 0 <= stream <= 2 else stream, len(self._numbers))  # 1, 2: default
        found = self._contexts.get((lane.context, number))
        if found is None:
            here: intern.Context = intern.contexts.items[lane.context]
            found = intern.contexts.id_of(here._replace(device=self.place, stream=ALL if stream == ALL else number))
            self._contexts[lane.context, number] = found
        return found

    def read(self) -> None:
        """Emit the times of all tasks that are done, without waiting."""
        with self.lock:
            for tasks in self.queued.values():
                while tasks and self._read(tasks[0]):
                    done = tasks.popleft()
                    self.pool += (done.begin, done.end)

    def count(self) -> None:
        """Emit the memory traffic of the kernels launched since the last call, if the device is emulated."""
        names, self.kernels = self.kernels, set()
        for name in names if self.driver.emulated is not None else ():
            counts = self.driver.counted(name)
            if any(counts):
                bus.emit(device_words.TRAFFIC | intern.strings.id_of(name) << schema.PLAN_SHIFT, clock(), *counts)

    def _read(self, task: Queued) -> bool:
        """Emit the times of a task if the task is done; returns whether it is done."""
        anchor, times = task.anchor, list[int]()
        for event in (task.end, task.begin):
            seconds = self.driver.seconds_if_over(anchor.event, event)
            if seconds is None:
                return False
            times.append(anchor.t + round(seconds * 1e9))
        bound = anchor.bound if self.driver.emulated is None else EMULATED
        bus.emit(device_words.RAN, times[1], times[0], task.seq, bound, clock())
        return True

    def _current_anchor(self) -> Anchor | None:
        """Return the anchor for a new task; None if no anchor could be made yet.

        A new anchor is made if the last one is old. If the device does not reach the new one in time, the last one is
        used.
        """
        if clock() < self._anchor_due:
            return self._anchor
        self._idle = self._idle or self.driver.stream()
        event = self.driver.event(timed=True)
        before = clock()
        self.driver.queue_event(event, self._idle)
        patience = PATIENCE_NS if self.driver.emulated is None else ANCHOR_NS  # emulated: polling makes its work run
        while not (over := self.driver.happened(event)) and clock() - before < patience:
            pass
        after = clock()
        if over:
            self._anchor = Anchor(event, (before + after) // 2, (after - before) // 2 + PRECISION_NS)
        self._anchor_due = after + (ANCHOR_NS if over else ANCHOR_NS // 10)
        if over and self.driver.emulated:  # another anchor would change the order of its work
            self._anchor_due = 1 << 62
        return self._anchor


_watches: dict[tuple[str, int], Watch] = {}
own_managers: Living[MemoryManager] = Living()
"""The default memory managers of devices, which a device's backend uses unless another manager is set."""


def _watch(driver: Driver) -> Watch:
    """Return the `Watch` of this thread's current device."""
    key = driver.path, driver.current()
    return _watches.get(key) or _watches.setdefault(key, Watch(driver, key[1]))


def begin(driver: Driver, stream: int = 0) -> Task | None:
    """Begin a launch or copy in a stream of the current device; return its task, or None if nothing is to be emitted.

    Nothing is emitted without a recording and during stream capture. Call the task's `launched` or `copied` after the
    call that queues the work; if that call raises an error, nothing is emitted.
    """
    return None if bus.lanes is None or driver.capturing else _watch(driver).begin(stream)


def records(driver: Driver, event: int, stream: int) -> None:
    """Emit to telemetry that a device event was recorded in a stream."""
    if bus.lanes is not None:
        watch, lane = _watch(driver), bus.lanes.lane
        watch.events[event] = number = _next_event()
        lane.emit(device_words.EVENT_RECORDED, clock(), _next_seq(), number, f=watch.context(lane, stream))


def awaits(driver: Driver, stream: int, event: int) -> None:
    """Emit to telemetry that later work of a stream waits for a device event."""
    if bus.lanes is not None:
        watch, lane = _watch(driver), bus.lanes.lane
        number = max(each.events.get(event, 0) for each in list(_watches.values()))  # the latest: on any device
        lane.emit(device_words.EVENT_AWAITED, clock(), _next_seq(), number, f=watch.context(lane, stream))


def host_waited(driver: Driver, t0: int, stream: int = ALL, event: int = 0) -> None:
    """Emit a wait of the host, from ``t0`` (ns) until now, for a stream or event; also emit times of finished tasks."""
    if bus.lanes is not None:
        watch, lane = _watch(driver), bus.lanes.lane
        number = max(each.events.get(event, 0) for each in list(_watches.values()))
        lane.emit(device_words.HOST_WAIT, t0, clock(), number, f=watch.context(lane, stream))
        flush()


def flush() -> None:
    """Emit the times of all tasks on all devices that are done, without waiting."""
    for watch in list(_watches.values()):
        with (
            suppress(RuntimeError),
            watch.driver.using(watch.ordinal),
        ):  # the program's own calls report a failure
            watch.read()
            watch.count()


def _announce(lane: Lane) -> None:
    """Emit the devices' descriptions to a new recording."""
    for watch in list(_watches.values()):
        watch.describe(lane)
        watch.unknown = True


bus.announcers.append(_announce)
bus.finishers.append(flush)
