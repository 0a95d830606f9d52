"""Events that a live timeline no longer stores one by one, read again from the recording of the same run.

A live view stores the newest events of each thread, and in place of older events only bars of coarse levels. If the
browser requests a window of older times, the events of this window are read from the recording, on disk or in memory.
This takes up to a second, so a separate thread reads, and until it ends, requests are answered with the coarse bars.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flnb_telemetry import quantity
from flnb_telemetry.intern import Catalog
from flnb_telemetry.live.bars import COUNT, PAIR, SHIFT, T0, T1
from flnb_telemetry.live.threads import DEEPEST, KINDS, TABLES, Key, Timeline
from flnb_telemetry.worker import start

if TYPE_CHECKING:
    from flnb_telemetry.live.bars import Bars
    from flnb_telemetry.live.threads import Opened
    from flnb_telemetry.recording import Recording
    from flnb_telemetry.schema import Columns

MOST = 1 << 20
"""The most events that are read for one request."""
AROUND = 500_000_000
"""How long (ns) before and after a requested window events are read, too: for scopes, and for the next request."""
ATTEMPTS = 5
"""The most failures in succession after which reading is tried again."""
SHIFT_OF_READS = 32
"""Events of the n-th read have the numbers from n << 32 on, so that they differ from those in memory."""
READING, NONE_LEFT = "reading older events …", "merged: of older times only these levels are left"


class Read(NamedTuple):
    """The result of reading: rows of the time from `since` to `until` (ns); or None, and a note that says why."""

    since: int
    until: int
    timeline: Timeline | None
    note: str = ""

    def has(self, t0: int, t1: int) -> bool:
        """Return whether all events between two times (ns) were read."""
        return self.since <= t0 and t1 <= self.until


class Older:
    """The older events of one recording; stores those of the window that was requested last.

    Args:
        recording: the recording, which may still run.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._read: Read | None = None
        self._reads = self._failures = 0
        self._thread: threading.Thread | None = None

    @property
    def timeline(self) -> Timeline | None:
        """The rows made from the events that were read last; None if there are none."""
        return self._read.timeline if self._read else None

    def covers(self, t0: int, t1: int) -> bool:
        """Return whether `timeline` has all events between two times (ns)."""
        return self._read is not None and self._read.timeline is not None and self._read.has(t0, t1)

    def request(self, t0: int, t1: int, rows: Timeline) -> tuple[str, Timeline | None]:
        """Return "" and rows with the events between two times (ns) if these were read, else a note and None.

        If the note is `READING`, the events are being read, and a later call returns another result.

        Args:
            t0, t1: the times.
            rows: the rows of the live view, which show the scopes that were open during the whole time.
        """
        read = self._read
        if read is not None and (read.since >= t0 and read.until <= t1 if read.note else read.has(t0, t1)):
            return read.note, read.timeline
        if self._thread is None or not self._thread.is_alive():
            last = max((int(row.events.bars[T1, -1]) for row in rows.rows.values() if row.events.used), default=t1)
            since, until = t0 - AROUND, max(t1, min(t1, last - AROUND) + AROUND)
            self._reads += 1
            work = (Read(t0, t1, None), since, until, opened(rows, since, until), rows)
            self._thread = threading.Thread(target=self._load, args=work, name="flnb-older", daemon=True)
            start(self._thread)
        return READING, None

    def _load(self, asked: Read, since: int, until: int, outer: Opened, rows: Timeline) -> None:
        """Read the events from `since` to `until` (ns) and store their rows; the body of the thread.

        If they cannot be read, store a note that says why, for the times of `asked`. `outer` has the scopes that are
        open during the whole time, and `rows` are those of the live view.
        """
        try:
            tables = self._recording.between(TABLES, since, until, MOST)
        except (OSError, ValueError):  # the folder was deleted, or has just become a file, which is read next time
            self._failures += 1
            self._read = asked._replace(note=NONE_LEFT) if self._failures > ATTEMPTS else None
            return
        self._failures = 0
        if tables is None:
            zoom = f"merged: zoom in to read older events, at most {quantity.count(MOST)}"
            self._read = asked._replace(note=NONE_LEFT if self._recording.over_limit else zoom)
            return
        first = self._reads << SHIFT_OF_READS
        timeline = Timeline(Catalog(), None, first, with_closed(outer, tables["scope"], since), rows)
        timeline.take(tables)
        self._read = Read(since, until, timeline)


def opened(rows: Timeline, since: int, until: int) -> Opened:
    """Return the scopes of each thread that were open during the whole time from `since` to `until` (ns)."""
    found: Opened = {}
    going = {(key.lane, key.depth): bar for lane in rows.newest for key, bar in rows.ongoing(lane, until)}
    for lane in rows.newest:
        for depth in range(DEEPEST):
            row = rows.rows.get(Key(lane, KINDS.index("scope"), depth))
            if row is None:
                break
            bars = [row.window(since, since + 1, until - since)]
            bars += [going[lane, depth]] if (lane, depth) in going else []
            long = [bar for each in bars for bar in each.T if bar[COUNT] == 1 and bar[T0] <= since and bar[T1] >= until]
            if not long:
                break
            found.setdefault(lane, []).append((int(long[0][T0]), int(long[0][PAIR]) >> SHIFT))
    return found


def with_closed(outer: Opened, scope: Columns, since: int) -> Opened:
    """Add to the scopes in ``outer`` those that were open at the time `since` (ns) and end among the events `scope`."""
    found = {lane: list(own) for lane, own in outer.items()}
    for lane in np.unique(scope["lane"]).tolist():
        own = scope["lane"] == lane
        level = np.cumsum(np.where(scope["enter"][own] > 0, 1, -1))
        lowest = np.minimum.accumulate(np.minimum(level, 0))
        ends = np.flatnonzero(np.diff(lowest, prepend=0) < 0)
        inner = [(since, context) for context in scope["context"][own][ends[::-1]].tolist()]
        found[lane] = [*found.get(lane, []), *inner]
    return found


def combined(newer: Bars, older: Bars, since: int, single: bool) -> Bars:
    """Return the bars of a row: those of `newer` from the time `since` (ns) on, before that time those of `older`.

    With `single`, also those bars of `newer` that are single events and begin before `since` are returned, in place of
    the bars of `older` at their times: such an event, a scope, may have begun before the events from which `older` was
    made.
    """
    newer = newer[:, (newer[T0] >= since) | (single & (newer[COUNT] == 1))]
    at = np.searchsorted(newer[T1], older[T0], "right")
    begins = np.append(newer[T0], np.iinfo(np.int64).max)
    found = np.concatenate([newer, older[:, begins[at] >= older[T1]]], axis=1)
    return found[:, np.argsort(found[T0], kind="stable")]
