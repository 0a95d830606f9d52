"""Events of devices: what the host asks of their streams, and afterwards when the devices did it.

While something records, a pair of timed events is queued around each launch and copy. They are read when they have
happened, at later calls: the program never waits for them. The device's times become the host's by an *anchor*, an
event in an idle stream that is seen to happen between two readings of the host's clock; a new one is made every second.

Code that launches by itself writes, as `Driver.launch` does:

    task = devices.begin(driver, stream)  # None while nothing records
    run("cuLaunchKernel", ...)
    if task is not None:
        task.launched("scale", grid, block, shared, addresses)

Where a library may have launched something, in place of the last line: ``task.launched_by("cupy add", addresses)``.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import count
from threading import RLock, local
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from flnb_telemetry import bus, device_words, intern, schema

from flnb.dispatch import memory
from flnb.interface.living import Living

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb_telemetry.lane import Lane

    from flnb.interface.memory import MemoryManager

__all__ = ["Driver", "Task", "awaits", "begin", "flush", "host_waited", "own_managers", "records"]

ANCHOR_NS = 1_000_000_000
"""Time after which a new anchor is made."""
PATIENCE_NS = 100_000
"""How long the host looks for an anchor to happen, before it tries again a tenth of `ANCHOR_NS` later."""
PRECISION_NS = 500
"""The precision of the API's elapsed times."""
MOST = 4096
"""Launches and copies of a stream that wait to be read; of further ones only what the host did is known."""
LOWEST = 1 << 16
"""Smaller ints among a kernel's arguments are numbers, not addresses."""
EMULATED = -1
"""The error bound that says: times of an emulated device."""
ALL = -1
"""The stream that stands for all streams of a device, in the context of a `host_wait` event."""

_next_seq = count(1).__next__
_next_event = count(1).__next__


class Driver(Protocol):
    """What is needed of a device's driver API; see `flnb_backends.tensor.cuda.driver.Driver`."""

    path: str
    emulated: tuple[str, int] | None
    capturing: set[int]

    def current(self) -> int:
        """The device of this thread."""

    def using(self, device: int) -> Any:
        """Make a device the one of this thread inside a ``with`` block."""

    def name(self, device: int = 0) -> str:
        """A device's name."""

    def stream(self) -> int:
        """Make a stream that waits for no other."""

    def event(self, timed: bool = False) -> int:
        """Make an event."""

    def queue_event(self, event: int, stream: int) -> None:
        """Queue an event in a stream, and emit nothing."""

    def happened(self, event: int) -> bool:
        """Whether an event has happened."""

    def counted(self, kernel: str) -> tuple[int, int, int, int]:
        """Requests, sectors, shared requests and conflicts of a kernel, if the device is emulated."""

    def seconds_if_over(self, begin: int, end: int) -> float | None:
        """The seconds between two events; None unless both have happened, or on an error."""


class Anchor(NamedTuple):
    """An event of a device that happened at a known time of the host, in ns, give or take ``bound``."""

    event: int
    t: int
    bound: int


class Queued(NamedTuple):
    """A task whose times have not been read yet: its number, the events before and after it, and their anchor."""

    seq: int
    begin: int
    end: int
    anchor: Anchor


class Task:
    """A launch or copy that the host is about to queue: call `launched` or `copied` when it has."""

    __slots__ = ("_emitted", "_queued", "_seq", "_stream", "_t0", "_watch")

    def __init__(self, watch: Watch, stream: int, seq: int, queued: Queued | None) -> None:
        self._watch, self._stream, self._seq, self._queued = watch, stream, seq, queued
        self._emitted = watch.mine.emitted
        self._t0 = clock()

    @property
    def alone(self) -> bool:
        """Whether this thread has emitted no launch or copy since the task began."""
        return self._watch.mine.emitted == self._emitted

    def launched_by(self, name: str, addresses: Sequence[Any] = ()) -> None:
        """Emit that another library launched what ``name`` says, unless that was emitted piece by piece meanwhile."""
        if self.alone:
            self.launched(name, addresses=addresses)
        else:
            self.drop()

    def drop(self) -> None:
        """Emit nothing: there was nothing to do."""
        if self._queued is not None:
            self._watch.pool += (self._queued.begin, self._queued.end)

    def launched(
        self, name: str, grid: Sequence[int] = (), block: Sequence[int] = (), shared: int = 0,
        addresses: Sequence[Any] = (), needs: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """Emit that a kernel was launched.

        Args:
            name: of the kernel.
            grid: numbers of blocks, and ``block`` those of threads in each; empty if unknown.
            shared: bytes of dynamically shared memory.
            addresses: of the arrays that it reads and writes; what is no address is ignored.
            needs: what is known of its code, in the order of the last fields of `device_words.Kernel`.
        """
        t1 = clock()
        self._watch.kernels.add(name)
        kernel = device_words.Kernel(name, tuple(grid), tuple(block), shared, *needs)
        self._emit(device_words.LAUNCH | intern.kernels.id_of(kernel) << schema.PLAN_SHIFT, t1, 0, 0, addresses)

    def copied(self, route: int, nbytes: int, pinned: bool = False, addresses: Sequence[Any] = ()) -> None:
        """Emit that a copy was queued.

        Args:
            route: `device_words.TO_DEVICE`, `TO_HOST`, `ON_DEVICE` or `BETWEEN`.
            nbytes: how much is copied.
            pinned: whether the host's memory is; else the program waits until the device or the copy is done.
            addresses: of both memories.
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
    """How many launches and copies of a device a thread has emitted."""

    emitted = 0


class Watch:
    """What one device is asked and does, as telemetry sees it.

    Attributes:
        queued: by stream, the tasks whose times have not been read yet.
        events: the number of the last recording of each event, by handle.
        pool: timed events that are free.
        mine: how many launches and copies this thread has emitted.
        unknown: whether a recording has begun that has not heard of the memory which is in use on the device.
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
        self.kernels = set[str]()  # launched since `count` was called
        self.mine = Emitted()
        self.lock = RLock()
        self._anchor: Anchor | None = None
        self._anchor_due = self._idle = self._info = 0
        self._told: Any = None

    def begin(self, stream: int) -> Task:
        """Begin a task in a stream, and emit what has become known of earlier ones."""
        with self.lock:
            self.describe()
            self.read()
            if self.unknown and bus.lanes is not None:
                self.unknown = False
                for manager in own_managers:
                    if manager.device.place == self.place:
                        memory.announce_manager(bus.lanes.lane, manager)
            anchor, queued = self._current_anchor(), None
            if anchor is not None and len(self.queued.get(stream, ())) < MOST:
                first, last = (self.pool.pop() if self.pool else self.driver.event(timed=True) for _ in range(2))
                queued = Queued(_next_seq(), first, last, anchor)
                self.driver.queue_event(first, stream)
            return Task(self, stream, queued.seq if queued else _next_seq(), queued)

    def describe(self, lane: Lane | None = None) -> None:
        """Emit what the device is, if that is new; to a given lane always."""
        emulated = self.driver.emulated
        if emulated != self._told or not self._info:
            self._told, (order, seed) = emulated, emulated or ("", 0)
            name = self.driver.name(self.ordinal)
            self._info = intern.devices.id_of(
                device_words.DeviceInfo(self.place, name, emulated is not None, order, seed)
            )
            bus.emit(device_words.DEVICE, clock(), self._info)
        if lane is not None:
            lane.emit(device_words.DEVICE, clock(), self._info)

    def context(self, lane: Lane, stream: int) -> int:
        """The number in `intern.contexts` of a lane's scope and phase on this device, in a stream."""
        with self.lock:  # two threads may use their first streams at once
            number = self._numbers.setdefault(0 if 0 <= stream <= 2 else stream, len(self._numbers))  # 1, 2: default
        found = self._contexts.get((lane.context, number))
        if found is None:
            here: intern.Context = intern.contexts.items[lane.context]
            found = intern.contexts.id_of(here._replace(device=self.place, stream=ALL if stream == ALL else number))
            self._contexts[lane.context, number] = found
        return found

    def read(self) -> None:
        """Emit when the device did what it has done by now; returns at once."""
        with self.lock:
            for tasks in self.queued.values():
                while tasks and self._read(tasks[0]):
                    done = tasks.popleft()
                    self.pool += (done.begin, done.end)

    def count(self) -> None:
        """Emit what the kernels that were launched have asked of memory, where an emulated device counts that."""
        names, self.kernels = self.kernels, set()
        for name in names if self.driver.emulated is not None else ():
            counts = self.driver.counted(name)
            if any(counts):
                bus.emit(device_words.TRAFFIC | intern.strings.id_of(name) << schema.PLAN_SHIFT, clock(), *counts)

    def _read(self, task: Queued) -> bool:
        """Emit the times of a task if it is over; returns whether it is."""
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
        """The anchor of tasks that begin now, a new one if it is due; None if none has happened in time."""
        if clock() < self._anchor_due:
            return self._anchor
        self._idle = self._idle or self.driver.stream()
        event = self.driver.event(timed=True)
        before = clock()
        self.driver.queue_event(event, self._idle)
        patience = PATIENCE_NS if self.driver.emulated is None else ANCHOR_NS  # where asking makes other work run
        while not (over := self.driver.happened(event)) and clock() - before < patience:
            pass
        after = clock()
        if over:
            self._anchor = Anchor(event, (before + after) // 2, (after - before) // 2 + PRECISION_NS)
        self._anchor_due = after + (ANCHOR_NS if over else ANCHOR_NS // 10)
        if over and self.driver.emulated:  # another anchor would change the order, which is all that its times say
            self._anchor_due = 1 << 62
        return self._anchor


_watches: dict[tuple[str, int], Watch] = {}
own_managers: Living[MemoryManager] = Living()
"""The managers that devices have of their own, which backends on them use where no other one was set."""


def _watch(driver: Driver) -> Watch:
    """What is known of this thread's device."""
    key = driver.path, driver.current()
    return _watches.get(key) or _watches.setdefault(key, Watch(driver, key[1]))


def begin(driver: Driver, stream: int = 0) -> Task | None:
    """Begin a launch or copy in a stream of this thread's device; None while nothing records, or a stream is captured.

    The task's `launched` or `copied` must be called after the call that queues it; if that raises, nothing is emitted.
    """
    return None if bus.lanes is None or driver.capturing else _watch(driver).begin(stream)


def records(driver: Driver, event: int, stream: int) -> None:
    """Emit that an event is queued in a stream."""
    if bus.lanes is not None:
        watch, lane = _watch(driver), bus.lanes.lane
        watch.events[event] = number = _next_event()
        lane.emit(device_words.EVENT_RECORDED, clock(), _next_seq(), number, f=watch.context(lane, stream))


def awaits(driver: Driver, stream: int, event: int) -> None:
    """Emit that a stream's further work waits for an event."""
    if bus.lanes is not None:
        watch, lane = _watch(driver), bus.lanes.lane
        number = max(each.events.get(event, 0) for each in list(_watches.values()))  # the latest: on any device
        lane.emit(device_words.EVENT_AWAITED, clock(), _next_seq(), number, f=watch.context(lane, stream))


def host_waited(driver: Driver, t0: int, stream: int = ALL, event: int = 0) -> None:
    """Emit that the program stood still since t0 (ns) for a stream or an event in it, and what that made known."""
    if bus.lanes is not None:
        watch, lane = _watch(driver), bus.lanes.lane
        number = max(each.events.get(event, 0) for each in list(_watches.values()))
        lane.emit(device_words.HOST_WAIT, t0, clock(), number, f=watch.context(lane, stream))
        flush()


def flush() -> None:
    """Emit when the devices did what they have done by now; returns at once."""
    for watch in list(_watches.values()):
        with (
            suppress(RuntimeError),
            watch.driver.using(watch.ordinal),
        ):  # what failed is told to the program
            watch.read()
            watch.count()


def _announce(lane: Lane) -> None:
    """Describe the devices to a recording that begins."""
    for watch in list(_watches.values()):
        watch.describe(lane)
        watch.unknown = True


bus.announcers.append(_announce)
bus.finishers.append(flush)
