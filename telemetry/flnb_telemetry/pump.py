"""Transport of events from the threads that write them to attached recordings and dashboards.

A `Session` holds one buffer (`Lane`) per thread and a daemon thread, the pump, which empties the buffers into all
attached sinks. `attach` starts it with the first sink, `detach` ends it with the last.

All recordings of a process share one session. An op writes its event once, into the buffer of its thread, however many
recordings are attached, so a second recording does not make ops slower. Everything that belongs to one recording (its
events, limit, gradient interval, beginning and end) is stored per sink, so recordings in different threads do not
affect each other. Every recording receives the events of all threads; the column "lane" of its tables has the number of
the thread.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from numbers import Real
from queue import Empty, SimpleQueue
from threading import get_ident
from time import perf_counter, thread_time_ns
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING

import numpy as np

from flnb_telemetry import bus, schema
from flnb_telemetry.lane import DEFAULT_BUFFER, NOBODY, Lane, Lanes, event_ns, numbers_in
from flnb_telemetry.safe_text import brief
from flnb_telemetry.worker import start

if TYPE_CHECKING:
    from flnb_telemetry.sink import Sink

INTERVAL = 0.05
CALM = 4
"""The largest number of intervals for which the pump pauses."""
FASTEST = 1 << 20
"""The most records that a thread is expected to write in a second."""
SWITCH_INTERVAL = 0.001
NOTHING = np.empty((0, schema.WORDS), np.int64)
MEMBERS = ("grad_interval", "live", "patience", "failure", "feed")  # of every `Sink`
PATIENCE = 0.2  # seconds after which a thread that waits for the pump checks that the pump runs


class Session:
    """The event buffers of all threads, the receivers (sinks), and the pump thread that carries events between them.

    Sinks are added, fed and removed on the pump's thread only. Ctrl-C is raised in the main thread, so it cannot
    interrupt these operations.

    Args:
        capacity: bytes of records that may wait in each thread's buffer; further ones are dropped and counted.
        interval: the least seconds between two rounds of the pump.
    """

    def __init__(self, capacity: int, interval: float) -> None:
        self.capacity = capacity
        self.interval = interval
        self.sinks: list[Sink] = []
        self.lanes: list[Lane] = []
        self.names: dict[int, str] = {}  # of threads, by the numbers of their lanes
        self.started = clock()
        self.events = 0
        self.pump_ns = 0
        self.over = False
        self._numbers = itertools.count(1)
        self._grad_due: dict[int, int] = {}  # by a sink's id: when (ns) it wants gradient norms again
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waited = perf_counter()
        self._working = threading.RLock()
        self._switch = sys.getswitchinterval()
        self.thread = threading.Thread(target=self._run, name="flnb-telemetry", daemon=True)

    def new_lane(self) -> Lane:
        """Create the buffer of the calling thread."""
        lane = Lane(next(self._numbers), self.capacity)
        lane.context = bus.threads.here.context()
        main = lane.thread is threading.main_thread()
        self.names[lane.number] = "main" if main else lane.thread.name
        self.lanes.append(lane)
        return lane

    def _run(self) -> None:
        """Empty the buffers again and again, and run functions queued by `ask`, until the last sink is removed.

        During this time, Python switches threads every millisecond instead of every five: each NumPy call of the pump
        gives up the GIL, and a training loop in pure Python would then hold the GIL for 5 ms.
        """
        sys.setswitchinterval(min(self._switch, SWITCH_INTERVAL))
        while not self.over:
            try:
                work = self._asked.get(timeout=self._pause())
            except Empty:
                with self._working:
                    waiting = self._impatient()
                    self._drain(bool(waiting) or any(sink.live for sink in self.sinks))
                    for sink in waiting:
                        if sink in self.sinks:  # one that has just raised an error is removed
                            self._feed(sink, 0, NOTHING)
            else:
                work()

    def _pause(self) -> float:
        """Return the seconds until the next round.

        In each round the pump takes the GIL from the program. So rounds are rare, unless a buffer could be full before
        the next one; a live view asks for the events before it makes a frame.
        """
        room = min((x.limit - len(x.pending) for x in list(self.lanes)), default=numbers_in(self.capacity))
        waits = [wait for sink in self.sinks for wait in (sink.grad_interval, sink.patience) if wait is not None]
        return max(self.interval, min([CALM * self.interval, room / schema.WORDS / FASTEST, *waits]))

    def ask(self, work: Callable[[], None], patience: float | None = None) -> None:
        """Run a function on the pump's thread and wait for its end; its error is raised in the calling thread.

        The function runs to its end even if Ctrl-C interrupts the wait, or `patience` seconds have passed.
        """
        if get_ident() == self.thread.ident:
            work()
            return
        done = threading.Lock()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                with self._working:
                    work()
            except BaseException as error:
                failures.append(error)
            done.release()

        done.acquire()
        self._asked.put(run)
        if patience is not None and not done.acquire(timeout=patience):
            return
        while patience is None and not done.acquire(timeout=PATIENCE):
            if not self.thread.is_alive() or sys.is_finalizing():  # the pump never started, or is stopped for good
                while not self._asked.empty():
                    self._asked.get()()
                if done.locked():  # since 3.13, Python hands work to a waiting thread, even to one that was stopped
                    work()
                    return
        if failures:
            raise failures[0]

    def later(self, work: Callable[[], None]) -> None:
        """Run a function on the pump's thread as soon as that thread is free, without waiting for the function."""
        self._asked.put(work)

    def _drain(self, everything: bool = True) -> None:
        """Empty all buffers into the sinks; if not `everything`, only those that are half full or of ended threads."""
        began = thread_time_ns()
        for lane in list(self.lanes):
            ended = not lane.thread.is_alive()  # read first: then the drain below sees the thread's last record
            if ended and bus.lanes is not None and bus.lanes.last is lane:
                bus.lanes.last, ended = NOBODY, False  # a new thread with the same ident may be writing there
            if not (everything or ended or len(lane.pending) > lane.limit // 2):
                continue
            records = lane.drain()
            if len(records):
                self.events += len(records)
                for sink in list(self.sinks):
                    self._feed(sink, lane.number, records)
            if ended:
                self.lanes.remove(lane)
        self._want_grad_stats()
        self.pump_ns += thread_time_ns() - began

    def _feed(self, sink: Sink, lane: int, records: schema.Records) -> None:
        """Feed records to a sink; a sink that raises an error is removed, and the recorded program continues."""
        try:
            sink.feed(lane, records)
        except Exception as error:
            sink.failure = error
            self.sinks.remove(sink)

    def _impatient(self) -> list[Sink]:
        """Return the sinks that must receive all records now because their `patience` is over."""
        now = perf_counter()
        waiting = [sink for sink in self.sinks if sink.patience is not None]
        if not waiting or now - self._waited < min(sink.patience or 0.0 for sink in waiting):
            return []
        self._waited = now
        return waiting

    def _want_grad_stats(self) -> None:
        """Have the next backward pass measure gradient norms if some sink's `grad_interval` has passed.

        All sinks receive these norms, so the intervals of all begin anew.
        """
        now = clock()
        wanting = [sink for sink in self.sinks if sink.grad_interval is not None]
        if any(now >= self._grad_due.get(id(sink), 0) for sink in wanting):
            self._grad_due = {id(sink): now + int((sink.grad_interval or 0) * 1e9) for sink in wanting}
            bus.want_grad_stats = True

    def add(self, sink: Sink, buffer: int, caller: Context) -> None:
        """Start feeding a sink, first with records of the existing memory blocks and segments.

        Must be called on the pump's thread.

        Args:
            sink: the receiver.
            buffer: the requested size of each thread's buffer in bytes; the largest request of all sinks is used.
            caller: the context variables of the caller, with the memory manager whose blocks and segments are recorded.
        """
        self._drain()
        self.capacity = max(self.capacity, buffer)
        for lane in self.lanes:
            lane.limit = numbers_in(self.capacity)
        bus.lanes = bus.lanes or Lanes(self.new_lane)
        lane = Lane(0, 1 << 34)
        for announce in bus.announcers:
            caller.run(announce, lane)
        records = lane.drain()
        if len(records):
            sink.feed(0, records)
        self.sinks.append(sink)
        self._want_grad_stats()

    def remove(self, sink: Sink) -> None:
        """Feed all records written so far to a sink and remove the sink; removing the last sink ends the session.

        Must be called on the pump's thread.
        """
        global session
        if not any(other is not sink for other in self.sinks):
            bus.lanes = None
        try:
            self._drain()
        finally:  # a sink that makes this fail is removed, too
            self.sinks = [other for other in self.sinks if other is not sink]
            self._grad_due.pop(id(sink), None)
            if not self.sinks and session is self:
                session, self.over = None, True
                bus.lanes = None  # another sink may have failed in this last drain
                bus.want_grad_stats = False
                sys.setswitchinterval(self._switch)

    @property
    def buffer_used(self) -> int:
        """Return the number of bytes in the fullest thread's buffer; `capacity` is the limit of each buffer."""
        return max((lane.undrained for lane in list(self.lanes)), default=0)

    def share(self) -> float:
        """Estimate the CPU time of telemetry, as a fraction (0 to 1) of the time since the session began."""
        wall = max(1, clock() - self.started)
        return min(1.0, (self.events * event_ns() + self.pump_ns) / wall)


session: Session | None = None
_lock = threading.RLock()


def attach(sink: Sink, *, buffer: int = DEFAULT_BUFFER, interval: float = INTERVAL) -> Session:
    """Feed `sink` with the events of all threads until `detach(sink)` is called.

    Args:
        sink: an object with `feed(lane, records)` and the other members of `sink.Sink`, such as a `Recording`.
        buffer: bytes of records that may wait in each thread's buffer; further ones are dropped and counted. If
            several sinks are attached, the largest value is used.
        interval: seconds between two rounds of the thread that empties the buffers; the shortest of all sinks is used.
            While no buffer fills, rounds are up to four times as far apart.

    Returns:
        The session, which all attached sinks share.

    Raises:
        TypeError: `sink` lacks a member that sinks have, or an interval of it is no number.

    >>> import flnb
    >>> run = flnb.telemetry.Recording("mine")
    >>> session = flnb.telemetry.attach(run)
    >>> y = flnb.ones(3) * 2.0
    >>> flnb.telemetry.detach(run)
    >>> run.ops["multiply"].count
    1
    """
    global session
    _check_sink("attach", sink)  # else the pump's thread would end with an error
    _check_intervals(sink)
    try:
        with _lock:
            event_ns()
            current = session
            if current is None:
                current = session = Session(buffer, interval)  # stored before its thread starts: `detach` must find it
                bus.restart_steps(current.started)
                start(current.thread)
            current.interval = min(current.interval, interval)
            current.ask(partial(current.add, sink, buffer, copy_context()))
            return current
    except BaseException:
        detach(sink)
        raise


def _check_sink(function: str, sink: object) -> None:
    """Raise a TypeError, which names the called ``function``, if a sink lacks a member."""
    if missing := [name for name in MEMBERS if not hasattr(sink, name)]:
        raise TypeError(
            f"flnb.telemetry.{function}: expected a sink, such as flnb.telemetry.Recording(), got {brief(sink)}, which "
            f"has no {', '.join(missing)}"
        )


def _check_intervals(sink: Sink) -> None:
    """Raise a TypeError if an interval of a sink is neither a number nor None."""
    for name in ("grad_interval", "patience"):
        seconds = getattr(sink, name)
        if seconds is not None and not isinstance(seconds, Real):
            expected = f"expected the sink's {name} to be a number of seconds or None"
            raise TypeError(f"flnb.telemetry.attach: {expected}, got {brief(seconds)}")


def detach(sink: Sink) -> None:
    """Feed `sink` all events emitted until now and stop feeding it; does nothing if it is not attached.

    A warning is emitted if the sink's `feed` raised an error, after which the sink received no more events.

    Raises:
        TypeError: `sink` lacks a member that sinks have.

    >>> import flnb
    >>> run = flnb.telemetry.Recording("mine")
    >>> session = flnb.telemetry.attach(run)
    >>> flnb.telemetry.detach(run)
    """
    _check_sink("detach", sink)
    if is_pump():
        # The garbage collector ended a recording there: whoever holds the lock may wait for this thread, and a buffer
        # may be half emptied. Nobody waits for this end.
        current = session
        if current is not None:
            current.later(partial(current.remove, sink))
        return
    with _lock:
        current = session
        if current is not None:
            current.ask(partial(current.remove, sink))
            if current.over and current.thread.is_alive() and not sys.is_finalizing():
                current.thread.join()
    if sink.failure is not None:
        warnings.warn(f"flnb: {type(sink).__name__} stopped recording early: {sink.failure!r}", stacklevel=3)


def is_pump() -> bool:
    """Return whether the calling thread is the pump."""
    current = session
    return current is not None and get_ident() == current.thread.ident


def flush(patience: float | None = None) -> None:
    """Deliver all events emitted until now to the attached sinks, and wait until they are delivered.

    Args:
        patience: the most seconds to wait, as a sink may be writing to a disk; None waits until all is done.

    >>> import flnb
    >>> run = flnb.telemetry.Recording("mine")
    >>> session = flnb.telemetry.attach(run)
    >>> y = flnb.ones(3)
    >>> flnb.telemetry.flush()
    >>> run.events > 0
    True
    >>> flnb.telemetry.detach(run)
    """
    current = session
    if current is not None:
        current.ask(current._drain, patience)


def recording() -> Sink | None:
    """Return the first attached sink that is not a live view; None if there is none."""
    current = session
    return next((sink for sink in list(current.sinks) if not sink.live), None) if current is not None else None


def _after_fork() -> None:
    global session, _lock
    session, _lock = None, threading.RLock()
    bus.lanes, bus.want_grad_stats = None, False  # a forked child has no pump thread: telemetry starts switched off


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
