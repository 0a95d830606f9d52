"""The buffer of events of one thread, and the buffers of all threads."""

from __future__ import annotations

import threading
from functools import cache
from threading import get_ident
from time import perf_counter
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

from flnb_telemetry import schema
from flnb_telemetry.encoding import EXCLUDED, FLOAT_TIMES, count_events, nanoseconds, packed

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_BUFFER = 16 << 20
PREPARING = ("choice", "compile")
PREPARES = schema.among(*[schema.KINDS[name].number for name in PREPARING])
MOST_PREPARED = 64
"""The largest number of intervals of choosing or compiling that wait for the event of their op."""


def numbers_in(nbytes: int) -> int:
    """Return how many numbers fit into a buffer of `nbytes` bytes: eight for each record, and at least one record."""
    return max(1, nbytes // schema.RECORD_BYTES) * schema.WORDS


class Lane:
    """The event buffer of one thread; only that thread writes to the buffer, and only the pump empties it.

    Attributes:
        pending: a flat list of numbers, eight for each record. A record is added by one call, and no container object
            remains for the garbage collector. Numbers 1, 2, 6 and 7 of a record are converted to doubles temporarily,
            so they must be below 2**53.
        limit: the largest number of numbers that `drain` takes; further numbers are dropped.
        number: the number of the thread in recordings.
        context: the id of the thread's current context (see `intern.Context`).
        location: the line of the user's program (a `Location` of `flnb.dispatch.source_lines`) that ops have in common
            while a layer, an optimizer or a backward pass runs. None if each op finds its line by itself.
        node: the tape node of the thread's last op.
    """

    __slots__ = ("_prepared", "context", "ident", "limit", "location", "node", "number", "pending", "thread")

    def __init__(self, number: int, capacity: int = DEFAULT_BUFFER) -> None:
        self.pending: Any = []  # a list; mypy knows no list += tuple
        self.limit = numbers_in(capacity)
        self.context = self.node = 0
        self.location: Any = None
        self.number = number
        self._prepared: list[tuple[int, int]] = []
        self.thread, self.ident = threading.current_thread(), get_ident()

    def emit(
        self, code: int, t: float, a: float = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0
    ) -> None:
        """Append one record: its code, a time (ns), and six other numbers in the order that `schema.KINDS` lists."""
        self.pending += (code, t, a, b, c, d, e, f)

    def drain(self) -> schema.Records:
        """Remove and return all records, shape (n, 8); if some were dropped, a last `dropped` record counts them."""
        pending = self.pending
        written = len(pending)  # its thread may append further records meanwhile
        while written and pending[written - schema.WORDS] == EXCLUDED:
            written -= schema.WORDS  # the op that it belongs to has not been written yet
        taken = pending[: min(written, self.limit)]
        if written > self.limit:
            lost = pending[self.limit : written]
            taken += (schema.DROPPED, nanoseconds(lost[1]), count_events(lost), nanoseconds(lost[-7]), 0, 0, 0, 0)
        del pending[:written]
        return self._without_preparation(packed(taken))

    def _without_preparation(self, records: schema.Records) -> schema.Records:
        """Subtract from the times of ops the time for choosing a way to compute them, or for compiling a program.

        Choosing and compiling have separate events, which precede the event of the op, perhaps in an earlier call. One
        such event may be within another.
        """
        kinds = records[:, 0] & 0xFF
        chosen = records[PREPARES[kinds], 1:3].tolist()
        if chosen or self._prepared:
            ops = kinds == schema.OP
            waiting = []
            for t0, t1 in outermost([*self._prepared, *chosen]):
                later = ops & (records[:, 2] >= t1)
                records[later & (records[:, 1] <= t0), 1] += t1 - t0
                if not later.any():
                    waiting.append((t0, t1))
            self._prepared = waiting[-MOST_PREPARED:]
        return records

    @property
    def undrained(self) -> int:
        """Return the number of bytes of records that wait to be drained."""
        return len(self.pending) * 8


def outermost(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the intervals (begin, end) that are not inside another interval, in the order of their beginnings."""
    found: list[tuple[int, int]] = []
    for t0, t1 in sorted(intervals, key=lambda each: (each[0], -each[1])):
        if not found or t1 > found[-1][1]:
            found.append((t0, t1))
    return found


NOBODY = Lane(0, 0)
"""A buffer that belongs to no thread: the value of `Lanes.last` before the first access."""
NOBODY.ident = 0


class Lanes:
    """The buffers of all threads: ``lanes.lane`` is the buffer of the calling thread, created at the first use.

    ``lanes.last`` is the buffer that was returned last. Ops first compare the ``ident`` of that buffer with the
    number of their thread, because this takes half as long as looking up a thread-local.
    """

    __slots__ = ("_new", "_own", "last")

    def __init__(self, new_lane: Callable[[], Lane]) -> None:
        self._own, self._new = threading.local(), new_lane
        self.last = NOBODY

    @property
    def lane(self) -> Lane:
        """Return the buffer of the calling thread."""
        lane: Lane | None = getattr(self._own, "lane", None)
        if lane is None:
            self._own.lane = lane = self._new()
        self.last = lane
        return lane


@cache
def event_ns() -> float:
    """Return the nanoseconds that a thread needs to write an event, including two clock readings.

    The first call measures this time, which takes about 1 ms.
    """
    lane = Lane(0)
    count, code = 2048, schema.OP | FLOAT_TIMES
    best = 1 << 62
    for _ in range(3):
        lane.pending.clear()
        began = clock()
        for index in range(count):
            t0 = perf_counter()
            t1 = perf_counter()
            lane.pending += (code, t0, t1, 0, index, lane.context, 0, 0)
        best = min(best, clock() - began)
    return best / count
