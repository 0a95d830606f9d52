"""The live view of a run: statistics that are updated with each batch of records, and frames with the changes.

`Live.begin` starts to receive events. The dashboard calls `frame` from a thread of its own, as often as the browser can
take frames, and sends the result.
"""

from __future__ import annotations

from collections import Counter, deque
from time import perf_counter_ns as clock
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import device_words, pump, schema
from flnb_telemetry.extras import tool
from flnb_telemetry.intern import NONE
from flnb_telemetry.live.arrays import packed
from flnb_telemetry.live.backward import Backwards
from flnb_telemetry.live.collectives import LiveCollectives
from flnb_telemetry.live.history import History, number_and_time
from flnb_telemetry.live.memory import LiveMemory
from flnb_telemetry.live.tallies import ROWS, Tallies
from flnb_telemetry.live.tape import PROTOCOL, LiveTape
from flnb_telemetry.live.timeline import EMPTY, LiveTimeline
from flnb_telemetry.run import Run
from flnb_telemetry.safe_text import safe_lines, safe_text
from flnb_telemetry.summary import settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.analysis import tape
    from flnb_telemetry.live.memory import Arrays
    from flnb_telemetry.parts import Exchange

FOLD_AT = 1 << 16  # records that may wait for the next frame before they are taken into the statistics
WANTED = 400  # levels of the tape, opened by readers, that frames contain beside the first ones
PATIENCE = 0.02  # seconds to wait for the newest events before a frame is made without them
TABLE_SECONDS = 0.25  # between two frames with the table of op times
_MEMORY = schema.among(
    schema.ALLOC, schema.FREE_COMPLETED, schema.SEGMENT_ALLOC, schema.SEGMENT_RESIZE, schema.SEGMENT_FREE, schema.ASIDE
)
_TIMED = schema.among(*(schema.KINDS[name].number for name in EMPTY))


class Live(Run):
    """Statistics of a running program for a dashboard, sent as frames.

    A frame is a message with the changes since the last frame; a keyframe contains everything.

    Args:
        name: the name of the run on the dashboard.
        grad_interval: seconds between two backward passes whose gradient norms are measured; None measures none.

    >>> import flnb
    >>> live = flnb.telemetry.Live("digits")
    >>> live.begin()
    >>> y = flnb.ones(3) * 2.0
    >>> live.finish()
    >>> content, buffer = live.frame(keyframe=True)
    >>> content["run"]["name"], content["run"]["state"]
    ('digits', 'finished')
    """

    live = True
    followed: Run | None = None
    """The recording whose settings are shown; None for those of this object."""

    def __init__(self, name: str = "run", grad_interval: float | None = 0.5) -> None:
        super().__init__(name, grad_interval, "waiting")
        self.dropped = 0
        self.memory = LiveMemory()
        self.tallies = Tallies(self.catalog, ROWS)
        self._ahead = NONE  # the scopes of the latest tape nodes, which are also those of their backward ops
        self._waiting: list[tuple[int, schema.Records]] = []
        self._sequence = 0
        self._frame_ns = 0
        self._share = 0.0
        self._small_bytes = 0
        self._drop_times: list[int] = []
        self.history = History(self)
        self._sent_names: Counter[str] = Counter()  # the numbers of names sent so far
        self._table_due = 0.0
        self._rate: deque[tuple[int, int, int]] = deque(maxlen=24)  # (time, events, frames) of the last frames
        self._tape: LiveTape | None = None
        self._wanted: dict[str, None] = {}  # levels of the tape that readers have opened
        self._recorded: Callable[[], tape.Tape] | None = None
        self._first: tuple[Any, list[str]] = (None, [])  # a graph and its levels to send at every step
        self._backwards = Backwards(self.start, self.catalog)
        self.collectives = LiveCollectives(self.catalog)
        self.devices: Any = None  # made when a device first allocates or runs something
        self.programs: Any = None  # made when a kernel runs
        self.timeline = LiveTimeline(self)
        self._exchanges: list[Exchange] = []  # those that the last frame with exchanges had
        self._newest: LiveTape | None = None  # the newest tape, if an earlier one is shown

    def finish(self, error: BaseException | None = None) -> None:
        """Receive the last events and stop; `frame` still works. If `error` is given, the state becomes "failed"."""
        self._share = self._cost()
        super().finish(error)

    def feed(self, lane: int, records: schema.Records) -> None:
        """Receive the next records, shape (n, 8), of the thread with the number `lane`."""
        with self._lock:
            self._waiting.append((lane, records))
            self.events += len(records)
            if self.state == "waiting" and lane:
                self.state = "recording"
            if sum(len(part) for _, part in self._waiting) > FOLD_AT:
                self._fold()

    def refresh(self) -> None:
        """Receive the events emitted until now; events that a busy pump cannot deliver at once come a little later."""
        if self.end is None:
            pump.flush(PATIENCE)

    def prepare(self) -> None:
        """Add events to the rows of a hidden timeline: called after a frame was sent, so that the next is not late."""
        with self._lock:
            self.timeline.prepare()

    def look(self, tab: str) -> None:
        """Store the name of the tab that a browser shows; data for other tabs is sent only once a second."""
        self.timeline.look(tab == "timeline")

    def _fold(self) -> None:
        """Update the statistics with the records received since the last call."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self.catalog.refresh()
        rows = waiting[0][1] if len(waiting) == 1 else np.concatenate([part for _, part in waiting])
        each = [schema.numbers(part) for _, part in waiting]
        kinds = each[0] if len(each) == 1 else np.concatenate(each)
        present = np.bincount(kinds, minlength=256)

        def of(kind: int) -> schema.Records:
            return rows if present[kind] == len(rows) else rows[kinds == kind] if present[kind] else rows[:0]

        ops, drops = of(schema.OP), of(schema.DROPPED)
        if present[_TIMED].any():
            tables = EMPTY | {
                name: schema.table(schema.KINDS[name], waiting, each)
                for name in EMPTY
                if present[schema.KINDS[name].number]
            }
            self.timeline.add(tables, places := self._places(tables["op"]))
            self._tally(tables["op"], places[0])
        if present[_MEMORY].any():
            self.memory.fold(rows[_MEMORY[kinds]], ops)
        self.history.take(of)
        if len(drops):
            self.dropped += int(drops[:, 2].sum())
            self.events -= len(drops)
            self._drop_times = [*self._drop_times[:1], int(drops[:, 1].min()), int(drops[:, 3].max())]
        self._backwards.take(waiting)
        if self.collectives.window.seen or present[schema.COLLECTIVE_BEGIN]:
            self.collectives.window.take(waiting)
        if self.devices or present[device_words.DEVICE : schema.RECORD].any() or of(schema.SEGMENT_ALLOC)[:, 5].any():
            self.devices = self.devices or tool(*device_words.TOOLS["live"])(self.catalog)
            self.devices.window.take(waiting)
        if present[schema.KERNEL]:
            self.programs = self.programs or tool(*device_words.TOOLS["programs"])(self.catalog)
            self.programs.take(waiting)
        self._used.take(waiting)
        self.meta |= self._used.facts()

    def _places(self, ops: schema.Columns) -> tuple[schema.Ints, schema.Ints]:
        """Return the scope and phase of each op event; the events follow those of the last call."""
        scope, phase, ahead = self.catalog.places(ops["context"], ops["node"], self._ahead)
        self._ahead = ahead[:, -FOLD_AT:]
        return scope, phase

    def _tally(self, ops: schema.Columns, scope: Any) -> None:
        """Update the statistics with op events, given as columns, and the scope of each."""
        catalog, plan = self.catalog, ops["plan"]
        self.tallies.take(ops, scope)
        view = catalog.strings.id_of("movement")  # views have no bytes of their own
        small = (catalog.nbytes < (self.meta.get("min_block") or 0)) & (catalog.family != view)
        self._small_bytes += int((catalog.nbytes[plan] * (small[plan] & (ops["alloc_id"] == 0))).sum())

    def _new_tapes(self) -> tuple[LiveTape | None, LiveTape | None]:
        """Store and return the tape to show and the newest tape, each None if unchanged (see `Backwards.news`)."""
        fresh, newest = self._backwards.news(self.history.steps, self.history.leaves, self.end is not None)
        if self._recorded is not None:
            fresh, self._recorded = LiveTape(self._recorded()), None
        self._tape = fresh or self._tape
        self._newest = newest or (None if fresh else self._newest)
        return fresh, newest

    def frame(self, keyframe: bool) -> tuple[dict[str, Any], bytes]:
        """Return a frame with the changes since the last frame or, with `keyframe`, everything.

        Returns:
            The content, for JSON, and the bytes of all arrays; ``content["arrays"]`` says which bytes are which array.
        """
        began = thread_time_ns()
        with self._lock:
            self._fold()
            keyframe = keyframe or self.memory.incomplete or not self._sequence
            if keyframe:
                self._sent_names.clear()
                self.history.sent.clear()
            arrays, thinned = self.memory.news(keyframe, self.start)
            now = clock()
            if keyframe or now / 1e9 >= self._table_due:
                self._table_due = now / 1e9 + TABLE_SECONDS
                arrays |= self.tallies.columns()
            about: dict[str, Any] = {}
            for part in filter(None, (self.collectives, self.devices, self.programs, self.timeline)):
                head, columns = part.news(self, keyframe)
                about, arrays = about | head, arrays | columns
            arrays |= self.history.news()
            self._sequence += 1
            fresh, newest = self._new_tapes()
            content, buffer = self._content(keyframe, self._sequence, arrays, self._counters(now, thinned))
            content |= about
            if self._tape and (fresh or keyframe):
                content["tape"] = self._tape.whole(self._tape_levels(self._tape))
            if self._newest and (newest or keyframe):
                content["norms"] = self._newest.norms()
        self._frame_ns += thread_time_ns() - began
        return content, buffer

    def _content(
        self, keyframe: bool, sequence: int, arrays: Arrays, counters: dict[str, Any]
    ) -> tuple[dict[str, Any], bytes]:
        """Return the content of a frame except the tape, and the bytes of the frame's arrays.

        Args:
            keyframe: whether the frame contains everything, rather than changes.
            sequence: the number of the frame.
            arrays: the frame's arrays by name.
            counters: the values for the dashboard's header (see `_counters`).
        """
        index, buffer = packed(arrays)
        content = {"type": "frame", "protocol": PROTOCOL, "keyframe": keyframe, "seq": sequence, "arrays": index}
        exchanges = self._used.exchanges(self.end is not None)
        if exchanges != self._exchanges or (keyframe and exchanges):
            content["exchanges"] = [
                {"t": self.seconds_at(one.t), "text": self._exchange_text(one)} for one in exchanges
            ]
            self._exchanges = exchanges
        return content | {"run": self._run(), "counters": counters} | self._names(), buffer

    def _exchange_text(self, exchange: Exchange) -> str:
        """Return a text about an exchange: the parts that changed and, if several threads ran ops, the thread."""
        if exchange.lane is None or len(self._used.newest) < 2:
            return safe_text(exchange.text)
        return safe_text(f"{exchange.text} in {self.threads().get(str(exchange.lane), exchange.lane)}")

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a browser's request about the timeline (see `LiveTimeline.answer`) or the tape (`LiveTape.answer`).

        Return None for a request about the tape if there is no tape. Levels of the tape that were opened are included
        in all later frames. A request with "at", the number of a step, is answered with the step's tape, or with the
        reason why there is none. A request with "newest" has no answer; after it, frames contain the newest tape
        instead of a tape with NaN or Inf.
        """
        with self._lock:
            if request.get("type") == "timeline":
                self._fold()
                found = self.timeline.answer(request)
                if columns := found.pop("columns", None):
                    found["arrays"], found["buffer"] = packed(columns)
                return found
            if "at" in request:
                return self._tape_of(request["at"])
            if request.get("newest"):
                self._backwards.dismiss()
                return None
            if self._tape is None:
                return None
            answer = self._tape.answer(request)
            self._wanted = dict.fromkeys([*self._wanted, *(level["key"] for level in answer["levels"])][-WANTED:])
            return answer

    def _tape_of(self, step: Any) -> dict[str, Any]:
        """Return the answer to a request for the tape of a step: the reason why a live view has no such tape."""
        return {"type": "tape", "at": step, "missing": "a live view has the last tape; flnb.view(run) shows any step's"}

    def _tape_levels(self, shown: LiveTape) -> list[str]:
        """Return the keys of the tape's levels to send in a frame: the initial levels, and those opened by users."""
        graph = (shown.structure, shown.origins)
        if self._first[0] != graph:
            self._first = (graph, shown.first())
        return [*self._first[1], *self._wanted]

    def complete(self, recorded: Callable[[], tape.Tape]) -> None:
        """If the shown tape lacks nodes, replace it in the next frame by the tape that `recorded` returns."""
        with self._lock:
            if self._tape is not None and self._tape.tape.truncated:
                self._recorded = recorded

    def _run(self) -> dict[str, Any]:
        """Return the run's name, state, error, backend and memory manager, which every frame contains.

        While the program runs, backend and manager are those that are active now; later, they are all that were used.
        """
        meta = self.meta | (self._used.active() if self.end is None else {})
        about = {name: safe_text(str(meta.get(name) or "")) for name in ("backend", "manager", "device", "libraries")}
        numbers = {
            "capacity": meta.get("capacity"),
            "min_block": meta.get("min_block") or 0,
            "settings": settings(self.followed or self),
        }
        state, error = self.state, self.error
        if self.failure is not None:
            state, error = "failed", f"the live view stopped: {self.failure!r}"
        error = None if error is None else safe_lines(error)
        return {"id": self.number, "name": safe_text(self.name), "state": state, "error": error} | about | numbers

    def _counters(self, now: int, thinned: bool) -> dict[str, Any]:
        """Return the values in the dashboard's header (step, events per second, drops, ...) at the time `now`, ns.

        While the program runs, "events_per_s" is the rate of the last frames and "step_seconds" the mean of the last
        ten steps; later both are those of the whole run.
        `thinned` says whether the frame leaves out blocks of memory because there are too many.
        """
        self._rate.append((now, self.events, self._sequence))
        before, events, frames = self._rate[0]
        span, seconds = max(1, now - before) / 1e9, self.seconds_at(self.end or now)
        rate = (self.events - events) / span if self.end is None else self.events / max(1e-9, seconds)
        steps, session = self.history.steps, self.session
        recent = steps[-10:]
        timed, spent = number_and_time(recent) if self.end is None else self.history.number_and_time()
        step, total = recent[-1, 3:5].tolist() if len(recent) else (None, 0)
        if self.end is not None and step is not None:
            total = total or step + 1  # the last step of a run that has ended is the last of all
        # the first step that ended after a drop, or the last one
        ended_after = np.searchsorted(steps[:, 2], self._drop_times)
        dropped = steps[np.minimum(ended_after, len(steps) - 1), 3].tolist() if len(steps) else []
        return {
            "t": seconds,
            "step": step,
            "steps_total": total or None,
            "events": self.events,
            "events_per_s": rate,
            "dropped": self.dropped,
            "dropped_first_step": dropped[0] if dropped else None,
            "dropped_last_step": dropped[-1] if dropped else None,
            "telemetry_share": self._cost() if self.end is None else self._share,
            "buffer_used": session.buffer_used if session else 0,
            "buffer_capacity": session.capacity if session else 0,
            "tick_hz": (self._sequence - frames) / span,
            "step_seconds": float(spent / timed / 1e9) if timed else None,
            "small_bytes": self._small_bytes,
            "memory_thinned": thinned,
        }

    def _cost(self) -> float:
        """Return the CPU time of recording and of this view, as a share (0 to 1) of the time since they began."""
        if self.session is None:
            return 0.0
        return min(1.0, self.session.share() + self._frame_ns / max(1, clock() - self.session.started))

    def _names(self) -> dict[str, Any]:
        """Return the entries of the tables of strings, plans and contexts that no frame has contained yet."""
        self.catalog.refresh()
        found: dict[str, Any] = {}
        for name in ("strings", "plans", "contexts"):
            first = self._sent_names[name]
            if items := self.catalog.to_json(name, first):
                found[name] = {"first": first, "items": items}
                self._sent_names[name] += len(items)
        return found


def tape_frame(shown: LiveTape, name: str) -> dict[str, Any]:
    """Return a frame that contains only a tape, of a finished run called `name`, for a widget that shows only tapes."""
    live, tape = Live(name), shown.tape
    live.catalog, live.state, live.end = shown.catalog, "finished", live.start + round(tape.t * 1e9)
    live._tape = shown
    content, _ = live.frame(keyframe=True)
    return content | {"counters": content["counters"] | {"step": tape.index}}
