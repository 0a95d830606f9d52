"""The timeline in frames for the dashboard, and answers to requests for single windows of it, in binary columns.

A frame has two windows of the timeline: one of the whole run at low resolution ("whole"), and one of the newest steps
with every event. The browser requests all other windows one by one, and draws the bars of "whole" until they arrive.
"""

from __future__ import annotations

from time import perf_counter_ns as clock
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.live.bars import COUNT, LONGEST, NUMBER, PAIR, SHIFT, T0, T1
from flnb_telemetry.live.older import NONE_LEFT, READING, Older, combined
from flnb_telemetry.live.queries import EventQueries
from flnb_telemetry.live.threads import KINDS, OF_THREADS, TABLES, Key, Timeline
from flnb_telemetry.safe_text import safe_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.live.bars import Bars
    from flnb_telemetry.recording import Recording
    from flnb_telemetry.run import Run
    from flnb_telemetry.schema import Columns

    Arrays = dict[str, NDArray[Any]]

MOST = 3 << 15
"""The most events of a row that a live view stores; of each coarser level it stores at most a quarter as many bars."""
COARSE = 1024
"""The approximate number of bars in each row of a frame's window of the whole run."""
NEWEST = 4000
"""The most events of a row in the window of the newest steps."""
WAITING = 1 << 16
"""The most events that wait to be added to the rows while no browser shows the timeline."""
THREADS = 64
"""The most threads that a live view shows. Of more, it first leaves out those that have ended, beginning with
those whose events are the oldest."""
STEPS = 8
PIXELS = 16384
"""The largest width of a requested window, in pixels."""
EMPTY = {name: schema.table(schema.KINDS[name], []) for name in TABLES}
EVERY, WHOLE_EVERY = 40_000_000, 1_000_000_000
"""The least time (ns) between two frames with the newest steps while the timeline is shown, and between two others."""


class LiveTimeline:
    """The timeline of a live view or of a recording: receives events, describes them for browsers, answers requests.

    Args:
        run: the view, which has the names behind ids; times are counted from its `start`.
        most: the most bars stored for each level of a row (see `Timeline`); None stores all.
    """

    def __init__(self, run: Run, most: int | None = MOST) -> None:
        self.run, self.rows = run, Timeline(run.catalog, most)
        self.queries = EventQueries(run, self.rows)
        self._threads = THREADS if most else None
        self.first = self.last = 0
        self.steps = np.empty((2, 0), np.int64)
        self._version, self._due, self._whole_due = -1, 0, 0
        self._waiting: list[tuple[dict[str, Columns], tuple[NDArray[Any], NDArray[Any]]]] = []
        self._waiting_rows = 0
        self._looked: int | None = None  # when (ns) a browser last showed the timeline; None: no browser told its tab

    def read_from(self, recording: Recording) -> None:
        """Read events that are no longer stored here from a recording of the same run, when they are requested."""
        self.queries.older = Older(recording)

    def add(self, tables: dict[str, Columns], places: tuple[NDArray[Any], NDArray[Any]]) -> None:
        """Receive the next events as tables (see `Timeline.take`).

        While no browser shows the timeline, the events wait, up to `WAITING` of them, and are added together.
        """
        self._waiting.append((tables, places))
        self._waiting_rows += sum(len(table["lane"]) for table in tables.values())
        if not self._hidden(clock()) or self._waiting_rows > WAITING:
            self._add_waiting()

    def prepare(self) -> None:
        """Add the events that wait while no browser shows the timeline, if one of the next two frames has a section."""
        if clock() + 2 * EVERY >= self._due:
            self._add_waiting()

    def _hidden(self, now: int) -> bool:
        """Return whether, at the time `now` (ns), no browser has shown the timeline for a second.

        Return False if no browser has reported yet which tab it shows.
        """
        return self._looked is not None and now - self._looked >= WHOLE_EVERY

    def _add_waiting(self) -> None:
        """Add the events that were received since the last call to the rows."""
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        if len(waiting) == 1:
            self._add(*waiting[0])
        elif waiting:
            tables = {kind: _joined([table[kind] for table, _ in waiting]) for kind in waiting[0][0]}
            scope, phase = (np.concatenate(part) for part in zip(*(places for _, places in waiting), strict=True))
            self._add(tables, (scope, phase))

    def _add(self, tables: dict[str, Columns], places: tuple[NDArray[Any], NDArray[Any]]) -> None:
        """Add events, given as tables by kind, to the rows; ``places`` has the scope and the phase of each op."""
        own = [tables[kind] for kind in OF_THREADS]  # tasks of emulated devices have no times
        begins = [table["t0" if "t0" in table else "t"] for table in own]
        ends = [table["t1" if "t1" in table else "t"] for table in own]
        self.rows.take(tables, places)
        if not any(map(len, begins)):
            return
        first = min(int(t.min()) for t in begins if len(t))
        self.first = min(self.first or first, first)
        self.last = max(self.last, *(int(t.max()) for t in ends if len(t)))
        step = tables["step"]
        self.steps = np.concatenate([self.steps, [step["t0"], step["t1"]]], axis=1)[:, -STEPS:]
        if self._threads and len(newest := self.rows.newest) > self._threads:
            running = {lane.number for lane in self.run.session.lanes} if self.run.session else set()
            for lane in sorted(newest, key=lambda lane: (lane in running, newest[lane]))[: -self._threads]:
                self.rows.forget(lane)

    def look(self, shown: bool) -> None:
        """Store whether a browser shows the timeline now (``shown``).

        Sections of the timeline are sent often while a browser shows it, and for one second after that.
        """
        now = clock()
        if shown and (self._looked or 0) < now - WHOLE_EVERY:
            self._due = 0
        self._looked = now if shown else self._looked or 0

    def news(self, run: Run, keyframe: bool) -> tuple[dict[str, Any], Arrays]:
        """Return a frame's section on the timeline: an entry for the frame's head, and arrays.

        Both are empty if the frame is to have no section. A keyframe always has the section. Other frames have the
        section if it has changed, but so rarely that making it takes at most 5 % of the time.
        """
        began = clock()
        if not keyframe and began < self._due:
            return {}, {}
        self._add_waiting()
        if not self.rows.rows or (not keyframe and self.rows.version == self._version):
            return {}, {}
        self._version, spent = self.rows.version, thread_time_ns()
        now = run.end or max(self.last, began)
        windows = {"newest": self._newest(now)}
        if keyframe or began >= self._whole_due:
            windows = {"whole": (self.first, now, max(1, (now - self.first) // COARSE))} | windows
            self._whole_due = began + WHOLE_EVERY
        about, arrays = self._describe(windows, now)
        self._due = clock() + max(WHOLE_EVERY if self._hidden(began) else EVERY, 19 * (thread_time_ns() - spent))
        return {"timeline": about}, {f"timeline.{name}": column for name, column in arrays.items()}

    def _newest(self, now: int) -> tuple[int, int, int]:
        """Return the begin, end and resolution (ns) of the window with every event of the newest steps.

        The window ends at the time `now` (ns). It begins after the first of these steps if a row has more than
        `NEWEST` events.
        """
        begin = int(self.steps[0, 0]) if self.steps.shape[1] else self.first
        for key, row in self.rows.rows.items():
            if KINDS[key.kind] in ("op", "part", "record") and row.events.used > NEWEST:
                begin = max(begin, int(row.events.bars[T0, -NEWEST]))
        return begin, now, 1

    def _describe(
        self, windows: dict[str, tuple[int, int, int]], now: int, older: Timeline | None = None
    ) -> tuple[dict[str, Any], Arrays]:
        """Return a description of windows for JSON, and their bars as columns.

        Args:
            windows: for each window's name its begin, end and resolution, ns.
            now: the current time, ns.
            older: rows with the events of the windows that this object no longer has.
        """
        keys = self.rows.row_keys()
        parts: list[tuple[int, Bars]] = []
        pieces = []
        for name, (t0, t1, resolution) in windows.items():
            count = 0
            for number, key in enumerate(keys):
                bars = self._window(key, t0, t1, resolution, now)
                since = self.rows.rows[key].since(resolution)
                if older is not None and since > t0 and key in older.rows:
                    before = older.rows[key].window(t0, min(t1, since), resolution)
                    bars = combined(bars, before, since, KINDS[key.kind] in ("scope", "phase"))
                parts.append((number, bars))
                count += bars.shape[1]
            piece = {"t0": self.queries.ms(t0), "t1": self.queries.ms(t1), "pixel": resolution / 1e6, "count": count}
            pieces.append(piece | {"name": name})
        bars = np.concatenate([np.empty((6, 0), np.int64), *(bars for _, bars in parts)], axis=1)
        known = self.run.threads() | {str(lane): place for lane, place in self.rows.stream_names().items()}
        names = {lane: {"name": safe_text(known[str(lane)])} if str(lane) in known else {} for lane, *_ in keys}
        rows = np.repeat([number for number, _ in parts], [part.shape[1] for _, part in parts])
        about = {
            "rows": [
                {
                    "thread": key.lane, "rank": self.rows.ranks.get(key.lane), "kind": KINDS[key.kind],
                    "depth": key.depth, **names[key.lane],
                }
                for key in keys
            ],
            "pieces": pieces, "t0": self.queries.ms(self.first), "t1": self.queries.ms(min(now, self.run.end or now)),
        }  # fmt: skip
        what, context = bars[PAIR] & (1 << SHIFT) - 1, bars[PAIR] >> SHIFT
        return about, {
            "row": rows.astype(np.uint32), "t0": self.queries.ms(bars[T0]), "t1": self.queries.ms(bars[T1]),
            "what": what.astype(np.uint32), "context": context.astype(np.uint32),
            "count": bars[COUNT].astype(np.uint32), "number": bars[NUMBER], "longest": bars[LONGEST] / 1e6,
        }  # fmt: skip

    def _window(self, key: Key, t0: int, t1: int, resolution: int, now: int) -> Bars:
        """Return the bars of a row between two times (ns), merged where they are shorter than `resolution` (ns).

        The bars of open scopes end at the time `now`.
        """
        bars = self.rows.rows[key].window(t0, t1, resolution)
        if KINDS[key.kind] == "scope":
            more = [bar for other, bar in self.rows.ongoing(key.lane, now) if other == key and bar[T0, 0] < t1]
            bars = np.concatenate([bars, *more], axis=1)
        return bars

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of type "timeline".

        Args:
            request: a dict with an "id", and "window": [t0, t1, pixels], in ms, or a request for `EventQueries`. With
                "older" True, events of a window that are no longer stored here are read from the recording.

        Returns:
            The answer as a message. The answer about a window also has the bars, as "columns". If bars are coarser
            than requested, the first of "pieces" has a "note" with the reason, and "until", the time (ms) before which
            bars are coarser. If events are being read, it has "reading": True; a later request gets another answer.
        """
        self._add_waiting()
        found: dict[str, Any] = {"type": "timeline", "id": request.get("id")}
        if "window" in request:
            t0, t1, pixels = request["window"]
            begin, end = self.queries.ns(t0), self.queries.ns(t1)
            wide = min(max(1, int(pixels)), PIXELS)
            now = self.run.end or max(self.last, clock())
            window = (begin, min(end, now), max(1, (end - begin) // wide))
            older, lacking = self._read(*window) if request.get("older") else (None, {})
            about, arrays = self._describe({"window": window}, now, older)
            about["pieces"][0] |= lacking
            return found | about | {"columns": arrays}
        return found | self.queries.answer(request)

    def _read(self, t0: int, t1: int, resolution: int) -> tuple[Timeline | None, dict[str, Any]]:
        """Return the rows that were read for a window (ns), and the entries for the answer if events are lacking."""
        until = max((row.since(resolution) for row in self.rows.rows.values()), default=0)
        begin, note, older = max(t0, self.first), NONE_LEFT, None
        if min(until, t1) <= begin:
            return None, {}
        if self.queries.older:
            note, older = self.queries.older.request(begin, min(t1, until), self.rows)
        about = {"note": note, "until": self.queries.ms(until), "reading": note == READING} if note else {}
        return older, about


def _joined(tables: list[Columns]) -> Columns:
    """Join several tables with the same columns into one table."""
    some = [table for table in tables if len(table["lane"])]
    return {name: np.concatenate([table[name] for table in some or tables]) for name in tables[0]}
