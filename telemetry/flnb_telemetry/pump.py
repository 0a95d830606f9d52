"""From the lanes to whoever listens: a session holds the lanes of all threads, a daemon thread drains them to sinks.

The session exists while there is at least one sink.
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
from queue import Empty, SimpleQueue
from threading import get_ident
from time import perf_counter, thread_time_ns
from time import perf_counter_ns as clock
from typing import Protocol

from flnb_telemetry import bus, encoding, schema

INTERVAL = 0.033
SWITCH_INTERVAL = 0.001
PATIENCE = 0.2  # seconds after which whoever waits for the pump looks whether it runs


class Sink(Protocol):
    """What a session feeds."""

    grad_interval: float | None
    """Seconds between two backwards whose gradient norms are wanted; None for never."""
    live: bool
    """Whether it wants records as they come; otherwise when a buffer fills, at a flush, and at the end, so that making
    records of what the threads wrote takes no time from them meanwhile."""
    failure: BaseException | None
    """What `feed` raised, after which the sink is fed no more."""

    def feed(self, lane: int, records: schema.Records) -> None:
        """Take the next rows of a lane, shape (n, 8), in the order in which its thread wrote them; they are yours."""


class Session:
    """One stretch of recording: lanes, sinks and the pump thread. `attach` and `detach` make and end it.

    Sinks come, are fed and go on the pump's thread alone: Ctrl-C reaches only the main thread, so it cannot tear that.
    """

    def __init__(self, capacity: int, interval: float) -> None:
        self.capacity = capacity
        self.interval = interval
        self.sinks: list[Sink] = []
        self.lanes: list[bus.Lane] = []
        self.started = clock()
        self.events = 0
        self.pump_ns = 0
        self.over = False
        self._numbers = itertools.count(1)
        self._grad_due: dict[int, int] = {}
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._working = threading.RLock()
        self._switch = sys.getswitchinterval()
        self.thread = threading.Thread(target=self._run, name="flnb-telemetry", daemon=True)

    def new_lane(self) -> bus.Lane:
        """A lane for the calling thread."""
        lane = bus.Lane(next(self._numbers), self.capacity)
        self.lanes.append(lane)
        return lane

    def _run(self) -> None:
        """Drain now and then, and do what is asked, until the last sink has gone. Threads change places up to five
        times as often as usual meanwhile: NumPy gives the GIL up in every call of it, and a training loop in pure
        Python would keep it 5 ms each time."""
        sys.setswitchinterval(min(self._switch, SWITCH_INTERVAL))
        while not self.over:
            try:
                work = self._asked.get(timeout=self.interval)
            except Empty:
                with self._working:
                    self._drain(any(sink.live for sink in self.sinks))
            else:
                work()

    def ask(self, work: Callable[[], None]) -> None:
        """Run a function on the pump's thread and wait until it is done; raises the function's errors.

        What was asked is done also where Ctrl-C ends the wait.
        """
        if get_ident() == self.thread.ident:
            work()
            return
        done = threading.Lock()
        failures: list[BaseException] = []

        def told() -> None:
            try:
                with self._working:
                    work()
            except BaseException as error:
                failures.append(error)
            done.release()

        done.acquire()
        self._asked.put(told)
        while not done.acquire(timeout=PATIENCE):
            if not self.thread.is_alive() or sys.is_finalizing():  # it never began, or will not go on
                while not self._asked.empty():
                    self._asked.get()()
        if failures:
            raise failures[0]

    def drain(self) -> None:
        """Feed the sinks everything written until now."""
        self.ask(self._drain)

    def _drain(self, everything: bool = True) -> None:
        """Feed the sinks everything written until now, or only lanes that are half full or whose thread has ended."""
        began = thread_time_ns()
        for lane in list(self.lanes):
            ended = not lane.thread.is_alive()  # asked first: then the drain below sees its last record
            if ended and bus.lanes is not None and bus.lanes.last is lane:
                bus.lanes.last, ended = bus.NOBODY, False  # a new thread with its ident may write there just now
            if not (everything or ended or len(lane.pending) > lane.limit // 2):
                continue
            records = lane.drain()
            if len(records):
                self.events += len(records)
                for sink in list(self.sinks):
                    try:
                        sink.feed(lane.number, records)
                    except Exception as error:
                        sink.failure = error  # the program that is being watched goes on
                        self.sinks.remove(sink)
            if ended:
                self.lanes.remove(lane)
        self._want_grad_stats()
        self.pump_ns += thread_time_ns() - began

    def _want_grad_stats(self) -> None:
        now = clock()
        for sink in self.sinks:
            if sink.grad_interval is not None and now >= self._grad_due.get(id(sink), 0):
                self._grad_due[id(sink)] = now + int(sink.grad_interval * 1e9)
                bus.want_grad_stats = True

    def add(self, sink: Sink) -> None:
        """Feed a sink from now on, beginning with announcements of the blocks and segments that exist already."""
        self.ask(partial(self._add, sink, copy_context()))

    def _add(self, sink: Sink, caller: Context) -> None:
        self._drain()
        bus.lanes = bus.lanes or bus.Lanes(self.new_lane)
        lane = bus.Lane(0, 1 << 34)
        for announce in bus.announcers:
            caller.run(announce, lane)
        records = lane.drain()
        if len(records):
            sink.feed(0, records)
        self.sinks.append(sink)
        self._want_grad_stats()

    def remove(self, sink: Sink) -> None:
        """Feed a sink its remaining records and remove it; the session ends with its last sink."""
        self.ask(partial(self._remove, sink))

    def _remove(self, sink: Sink) -> None:
        global session
        if not any(other is not sink for other in self.sinks):
            bus.lanes = None
        self._drain()
        self.sinks = [other for other in self.sinks if other is not sink]
        if not self.sinks and session is self:
            session, self.over = None, True
            bus.want_grad_stats = False
            sys.setswitchinterval(self._switch)

    @property
    def buffer_used(self) -> int:
        """Bytes waiting in the fullest lane; `capacity` is the limit of each lane."""
        return max((lane.undrained for lane in list(self.lanes)), default=0)

    def share(self) -> float:
        """Cost of telemetry as a share of the time since the session began, 0 to 1."""
        wall = max(1, clock() - self.started)
        return min(1.0, (self.events * event_ns() + self.pump_ns) / wall)


session: Session | None = None
_lock = threading.RLock()
_event_ns: float | None = None


def attach(sink: Sink, *, buffer: int = bus.DEFAULT_BUFFER, interval: float = INTERVAL) -> Session:
    """Feed ``sink`` from now on. The first sink begins a session, with ``buffer`` bytes for each thread at most."""
    global session
    try:
        with _lock:
            event_ns()
            current = session
            if current is None:
                current = session = Session(buffer, interval)  # before it has a thread, so that `detach` finds it
                bus.restart_steps(current.started)
                _start(current.thread)
            current.interval = min(current.interval, interval)
            current.add(sink)
            return current
    except BaseException:
        detach(sink)
        raise


def _start(thread: threading.Thread) -> None:
    """Start a thread. Where Ctrl-C comes while `Condition.wait` gives its lock up, that raises a RuntimeError of it."""
    try:
        thread.start()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


def detach(sink: Sink) -> None:
    """Feed ``sink`` everything emitted until now and let it go; a no-op for one that is not attached."""
    with _lock:
        current = session
        if current is not None:
            current.remove(sink)
            if current.over and current.thread.is_alive():
                current.thread.join()
    if sink.failure is not None:
        warnings.warn(f"flnb: {type(sink).__name__} stopped recording early: {sink.failure!r}", stacklevel=3)


def flush() -> None:
    """Feed the sinks everything emitted until now."""
    current = session
    if current is not None:
        current.drain()


def recording() -> Sink | None:
    """The sink that has kept everything for longest, None while nobody records."""
    current = session
    return next((sink for sink in list(current.sinks) if not sink.live), None) if current is not None else None


def event_ns() -> float:
    """Nanoseconds an event costs its thread, two clock readings included; measured once, in about 1 ms."""
    global _event_ns
    if _event_ns is None:
        lane = bus.Lane(0)
        count, code = 2048, schema.OP | encoding.FLOAT_TIMES
        best = 1 << 62
        for _ in range(3):
            lane.pending.clear()
            began = clock()
            for index in range(count):
                t0 = perf_counter()
                t1 = perf_counter()
                lane.pending += (code, t0, t1, 0, index, lane.context, 0, 0)
            best = min(best, clock() - began)
        _event_ns = best / count
    return _event_ns


def _after_fork() -> None:
    global session, _lock
    session, _lock = None, threading.RLock()
    bus.lanes, bus.want_grad_stats = None, False  # a forked child starts with telemetry off: it has no pump


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
