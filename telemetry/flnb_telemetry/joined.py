"""Live views of several processes joined into one: each rank sends small messages, and a notebook's kernel joins them.

A message is a flat dictionary of texts, numbers and bytes, for any transport. Each message can be decoded without the
others, so the loss of a message only leaves a gap in the view.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
from collections.abc import Callable
from time import perf_counter_ns as clock
from typing import Any

import numpy as np

from flnb_telemetry import intern, pump, schema
from flnb_telemetry.live.arrays import packed
from flnb_telemetry.live.collectives import LiveCollectives, known_states
from flnb_telemetry.live.view import Live

Message = dict[str, "bytes | str | int"]
"""A message of a rank: texts, numbers and bytes by name."""
INTERVAL = 0.1
"""Seconds between two messages of a rank while it emits events."""
IDLE = 1.0
"""Seconds between two messages of a rank while it emits no events."""
SILENT = 5.0
"""Seconds without a message after which a rank counts as ended."""
PATIENCE = 1.0
"""The most seconds that a rank waits for its own last events before it pauses."""
WHOLE = 0.5
"""Seconds between two frames of the rank that is chosen on the dashboard."""
LARGE = ("rows", "lanes", "tables", "buffer", "frame")
FIELDS: dict[str, intern.Table[Any]]
FIELDS = {"plan": intern.plans, "context": intern.contexts, "group": intern.groups, "name": intern.strings}

log = logging.getLogger("flnb")


class RankSource:
    """Sends messages about this rank's events to a `JoinedLive` in another process.

    Args:
        send: a function that is called with each message, on a separate thread.
        name: the name of the run on the dashboard.
        frames: whether messages contain frames of this rank's dashboard view; only one chosen rank sends them.

    >>> import flnb
    >>> from flnb_telemetry.joined import JoinedLive, RankSource
    >>> joined = JoinedLive()
    >>> with RankSource(joined.receive, "digits"):
    ...     y = flnb.ones(3) * 2.0
    >>> joined.frame(keyframe=True)[0]["run"]["name"]
    'digits'
    """

    def __init__(self, send: Callable[[Message], object], name: str = "session", frames: bool = True) -> None:
        self.send, self.frames = send, frames
        self.live = Live(name, grad_interval=0.5 if frames else None)
        self._number = 0
        self._window = self.live.collectives.window
        self._state_sent: tuple[Any, ...] = ()
        self._said = self._framed = 0
        self._halt = threading.Event()
        self._paused = False
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="flnb-rank", daemon=True)

    def start(self) -> RankSource:
        """Start recording and sending."""
        self._window.fresh = []
        self.live.begin()
        self._thread.start()
        return self

    def stop(self, error: BaseException | None = None) -> None:
        """Send the remaining events and stop; ``error`` is the error that ended the program, if any."""
        self._halt.set()
        if self._thread.is_alive():
            self._thread.join(2.0)
        self.live.finish(error)
        self._send(last=True)

    def pause(self) -> None:
        """Send all events emitted until now; later events are stored until `resume`, and sent then."""
        with self._sending:
            if not self._paused:
                pump.flush(PATIENCE)
                self._paused = True
                self._send(last=True)

    def resume(self) -> None:
        """Send messages again after `pause`."""
        self._paused = False

    def __enter__(self) -> RankSource:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self.stop(error)

    def message(self, last: bool = False) -> Message | None:
        """Return a message with all events since the previous message; None if there is nothing to send yet.

        With ``last``, the message is returned in any case.
        """
        live, now = self.live, clock()
        with live._lock:
            live._fold()
            fresh, self._window.fresh = self._window.fresh or [], []
        states = known_states()
        current = (live.events, live.state, states)
        if not last and not fresh and current == self._state_sent and now - self._said < IDLE * 1e9:
            return None
        self._state_sent, self._said, self._number = current, now, self._number + 1
        facts = live.meta
        found: Message = {
            "type": "flnb.rank", "number": self._number, "name": live.name, "state": live.state,
            "rank": int(facts.get("rank", 0)), "ranks": int(facts.get("ranks", 1)), "host": platform.node(),
            "process": os.getpid(), "now": now, "start": live.start, "events": live.events,
            "offset": int(facts.get("clock_offset", 0)), "bound": int(facts.get("clock_bound", 0)),
            "states": json.dumps(states),
        }  # fmt: skip
        found |= _encoded(fresh)
        if self.frames and (last or now - self._framed > WHOLE * 1e9):
            self._framed = now
            content, buffer = live.frame(keyframe=True)
            content.pop("collectives", None)
            found |= {"frame": json.dumps(content), "buffer": buffer}
        return found

    def _send(self, last: bool = False) -> None:
        try:
            if (found := self.message(last)) is not None:
                self.send(found)
        except Exception:  # the dashboard may fail, the training must not
            log.exception("flnb: this rank's live view stopped; the program goes on")
            self._halt.set()

    def _loop(self) -> None:
        while not self._halt.wait(INTERVAL):
            with self._sending:
                if not self._paused:
                    pump.flush(PATIENCE)
                    self._send()


class JoinedLive(Live):
    """The live view of several ranks: their collective calls joined, and the view of one chosen rank.

    `receive` takes messages of `RankSource` in any order, on any thread; `frame` returns frames, like that of `Live`.

    Args:
        name: the run's name on the dashboard until a rank sends a name.
        rank: the rank whose own view is shown.

    Attributes:
        chosen: the rank whose own view is shown; may be set to another one.
        ranks: the last message of each rank, without the events in it.
    """

    def __init__(self, name: str = "ranks", rank: int = 0) -> None:
        super().__init__(name, None)
        self.chosen = rank
        self.ranks: dict[int, Message] = {}
        self.catalog = intern.Catalog(
            intern.Table([""]), intern.Table(intern.plans.items[:1]), intern.Table(intern.contexts.items[:1])
        )
        self.catalog.groups = intern.Table(intern.groups.items[:1])
        self.collectives = LiveCollectives(self.catalog)
        self._whole: tuple[dict[str, Any], bytes] | None = None
        self._sent: Any = None

    def receive(self, message: Message) -> None:
        """Process a message of a rank."""
        rows, lanes = _decoded(message, self.catalog)
        rank, offset = int(message["rank"]), int(message["offset"])
        about = {key: value for key, value in message.items() if key not in LARGE} | {"heard": clock()}
        with self._lock:
            self.catalog.refresh()
            before = self.ranks.get(rank, about)
            if _age(before) > _age(about):
                about = before  # it arrived late
            self.ranks[rank] = about
            window = self.collectives.window
            window.bounds[rank] = int(message["bound"])
            for lane in np.unique(lanes).tolist():
                window.add((rank << 16) + lane, _moved(rows[lanes == lane], offset))
            self.events += max(1, len(rows))
            if message["host"] == platform.node():
                self.collectives.shift = 0
            else:
                self.collectives.shift = min(self.collectives.shift or 1 << 62, clock() - int(message["now"]) - offset)
            self._observe(message, rank, offset)

    def _observe(self, message: Message, rank: int, offset: int) -> None:
        """Store the states of ranks that a message of ``rank`` reports; if ``rank`` is the chosen one, also its frame.

        ``offset`` is the ns to add to the message's times.
        """
        states: dict[int, str] = {}
        for one in self.ranks.values():
            states |= {int(other): text for other, text in json.loads(str(one["states"])).items()}
        self.collectives.states = states
        here = clock()
        running = any(
            one["state"] in ("recording", "waiting") and here - int(one["heard"]) < SILENT * 1e9
            for one in self.ranks.values()
        )
        ended = max(int(one["now"]) + int(one["offset"]) for one in self.ranks.values())
        self.end, self.state = (None, "recording") if running else (ended, str(message["state"]))
        if rank == self.chosen:
            self.name, self.start = str(message["name"]), int(message["start"]) + offset
            if "frame" in message:
                self._whole = (json.loads(str(message["frame"])), bytes(message["buffer"]))  # type: ignore[arg-type]

    def frame(self, keyframe: bool) -> tuple[dict[str, Any], bytes]:
        """Return a frame with the changes since the last frame or, with `keyframe`, everything (see `Live.frame`)."""
        with self._lock:
            whole = self._whole
        if whole is None:
            return super().frame(keyframe)
        with self._lock:
            self._sequence += 1
            about, arrays = self.collectives.news(self, keyframe)
            keyframe = keyframe or self._sent is not whole
            self._sent, (content, buffer) = whole, whole
            if not keyframe:
                content = {key: content[key] for key in ("type", "protocol", "run", "counters")} | {"arrays": {}}
                buffer = b""
            index, more = packed(arrays)
            shifted = {name: [code, at + len(buffer), count] for name, (code, at, count) in index.items()}
            content = content | about | {"keyframe": keyframe, "seq": self._sequence}
            return content | {"arrays": content["arrays"] | shifted}, buffer + more

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return None: only the process of the rank could answer a request about a tape."""
        return None


def _age(message: Message) -> tuple[int, int]:
    """Return a pair of numbers that increases with each message of a rank, even if the rank is restarted."""
    return int(message["start"]), int(message["number"])


def _each(rows: schema.Records, change: dict[str, Callable[[schema.Ints], schema.Ints]]) -> schema.Records:
    """Return a copy of records with some fields converted; `change` has, by the field's name, the function to apply."""
    rows, numbers = rows.copy(), rows[:, 0] & 0xFF
    for kind in schema.KINDS.values():
        chosen = numbers == kind.number
        if not chosen.any():
            continue
        if kind.plan and "plan" in change:
            plans = change["plan"](rows[chosen, 0] >> schema.PLAN_SHIFT)
            rows[chosen, 0] = (rows[chosen, 0] & ((1 << schema.PLAN_SHIFT) - 1)) | plans << schema.PLAN_SHIFT
        for word, name in enumerate(kind.words, start=1):
            if name in change:
                rows[chosen, word] = change[name](rows[chosen, word])
    return rows


def _moved(rows: schema.Records, offset: int) -> schema.Records:
    """Return records with all times shifted by `offset` ns."""
    return _each(rows, dict.fromkeys(("t", "t0", "t1"), lambda times: times + offset)) if offset else rows


class _Numbers:
    """Assigns numbers to ids, from 0, in the order of their first use."""

    def __init__(self) -> None:
        self.ids: dict[int, int] = {}

    def __call__(self, column: schema.Ints) -> schema.Ints:
        known, which = np.unique(column, return_inverse=True)
        return np.array([self.ids.setdefault(one, len(self.ids)) for one in known.tolist()], np.int64)[which]


def _encoded(batches: list[tuple[int, schema.Records]]) -> Message:
    """Return batches of records as a message: the records as bytes, their threads, and the names behind their ids."""
    rows = np.concatenate([np.empty((0, schema.WORDS), np.int64), *(part for _, part in batches)])
    lanes = np.repeat(np.array([lane for lane, _ in batches], np.int32), [len(part) for _, part in batches])
    numbers: dict[str, _Numbers] = {field: _Numbers() for field in FIELDS}
    rows = _each(rows, dict(numbers))
    tables = {field: [table.items[one] for one in numbers[field].ids] for field, table in FIELDS.items()}
    return {"rows": rows.tobytes(), "lanes": lanes.tobytes(), "tables": json.dumps(tables)}


def _decoded(message: Message, catalog: intern.Catalog) -> tuple[schema.Records, schema.Ints]:
    """Return the records of a message and the thread of each; the names in the message are added to the catalog."""
    rows = np.frombuffer(message["rows"], np.int64).reshape(-1, schema.WORDS)  # type: ignore[arg-type]
    lanes = np.frombuffer(message["lanes"], np.int32).astype(np.int64)  # type: ignore[arg-type]
    tables = json.loads(str(message["tables"]))
    ids = {
        "plan": [
            catalog.plans.id_of(intern.Plan(op, family, tuple(shape), dtype, nbytes))
            for op, family, shape, dtype, nbytes, *_ in tables["plan"]
        ],
        "context": [catalog.contexts.id_of(intern.Context(*one)) for one in tables["context"]],
        "group": [catalog.groups.id_of(intern.GroupInfo(*one)) for one in tables["group"]],
        "name": [catalog.strings.id_of(one) for one in tables.get("name", [""])],
    }
    arrays = {field: np.array([*ids[field], 0], np.int64) for field in FIELDS}
    change = {field: array.__getitem__ for field, array in arrays.items()}
    return _each(rows, change), lanes  # type: ignore[arg-type]
