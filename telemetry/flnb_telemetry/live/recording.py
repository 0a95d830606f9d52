"""A recording as frames for a dashboard: the first frame has everything except memory, the others parts of the memory.

A dashboard of a running program receives only recent memory events; a dashboard of a recording receives all of them.
"""

from __future__ import annotations

import itertools
import math
import re
from itertools import pairwise
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import device_words, quantity, schema
from flnb_telemetry.analysis.memory import NEVER
from flnb_telemetry.extras import tool
from flnb_telemetry.intern import joined
from flnb_telemetry.live import collectives as livecollectives
from flnb_telemetry.live.history import History
from flnb_telemetry.live.memory import ASKED, END, NODE, OFFSET, WIDTH, arrays
from flnb_telemetry.live.tallies import Tallies
from flnb_telemetry.live.tape import LiveTape
from flnb_telemetry.live.threads import TABLES
from flnb_telemetry.live.timeline import LiveTimeline
from flnb_telemetry.live.view import FOLD_AT, Live
from flnb_telemetry.parts import Parts, UsedParts, use
from flnb_telemetry.worker import start

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flnb_telemetry.intern import Frame
    from flnb_telemetry.live.memory import Arrays
    from flnb_telemetry.recording import Recording
    from flnb_telemetry.schema import Columns, Ints, Records

PART = 1 << 15  # allocations and frees in one frame: a page took 180 ms for four times as many, in which it stood still
KINDS = ("alloc", "segment_alloc")
BLOCKS = 1 << 21  # blocks that are sent at most


class LiveRecording(Live):
    """A view of one recording for a dashboard: `frames()` to send, and `answer(request)` for requests about its tape.

    Args:
        run: a recording; events that are recorded later are not shown.
        blocks: the largest number of memory blocks to send; of more, only blocks around the peak of memory are sent.

    Example: ``for content, buffer in LiveRecording(run).frames(): widget.send(content, [buffer])``.
    """

    def __init__(self, run: Recording, blocks: int = BLOCKS) -> None:
        super().__init__(run.name, None)
        self.recording, self._most = run, blocks
        self.catalog, self.meta, self.start = run.catalog, run.meta, run.start
        self.end = run.start + round(run.seconds * 1e9)
        self.state, self.error = ("finished" if run.state == "recording" else run.state), run.error
        self.events, self.dropped = run.events, run.dropped
        drops = run.table("dropped")
        if len(drops["t"]):
            self._drop_times = [int(drops["t"].min()), int(drops["t_last"].max())]
        self.history = History(self, math.inf)
        self.history.load(run)
        tables = {kind: run.table(kind) for kind in TABLES}
        op = tables["op"]
        scopes, phases = np.empty(len(op["t0"]), np.int32), np.empty(len(op["t0"]), np.uint8)
        parts = [slice(first, first + FOLD_AT) for first in range(0, len(op["t0"]), FOLD_AT)]
        for at in parts:
            scopes[at], phases[at] = self._places({name: column[at] for name, column in op.items()})
        self.timeline = LiveTimeline(self, None)
        counting = Thread(target=self._tally_all, args=(op, scopes, parts), name="flnb-tallies", daemon=True)
        start(counting)  # NumPy works on both at the same time
        self.timeline.add(tables, (scopes, phases))
        counting.join()
        if any(tally.settled is None for tally in self.tallies.by.values()):  # an error there is raised here
            self._tally_all(op, scopes, parts)
        if len(run.table("use")["t"]):
            self._used = UsedParts(run.meta if "first" in run.meta or run.end is None else {})
            fields = ("t", "lane", "everywhere", *Parts._fields)
            rows = zip(*(run.table("use")[name].tolist() for name in fields), strict=True)
            uses = [
                use(t, lane, everywhere, numbers, run.catalog.strings.items) for t, lane, everywhere, *numbers in rows
            ]
            self._used.count(uses, [(int(lane), op["t0"][op["lane"] == lane]) for lane in np.unique(op["lane"])])
        self._tape = LiveTape(run.tape) if len(run.tape.nodes) else None

    def _tally_all(self, op: Columns, scopes: Any, parts: list[slice]) -> None:
        """Compute the statistics of all op events, part by part; ``scopes`` has the scope of each."""
        self.tallies, self._small_bytes = Tallies(self.catalog, None), 0
        for at in parts:
            self._tally({name: column[at] for name, column in op.items()}, scopes[at])
        self.tallies.settle(op, scopes)

    def frames(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield the content and the bytes of the arrays of each frame (see `Live.frame`), from the first one on.

        The first frame, which has everything but the memory, is yielded before the memory is analysed.
        """
        self._sent_names.clear()
        self.history.sent.clear()
        counters = self._counters(self.end or 0, False)
        about, columns = livecollectives.finished(self.recording.joined or self.recording, self.start, self.end or 0)
        if len(self.recording.table("launch")["t0"]) or len(self.recording.table("copy")["t0"]):
            section = tool(*device_words.TOOLS["section"])
            devices, more = section(self.recording, self.start, self.end or 0)
            about, columns = about | devices, columns | more
        if len(self.recording.table("kernel")["t0"]):
            programs, more = tool(*device_words.TOOLS["finished"])(self.recording)
            about, columns = about | programs, columns | more
        timeline, more = self.timeline.news(self, True)
        about, columns = about | timeline, columns | more
        content, buffer = self._content(True, 1, self.tallies.columns() | self.history.news() | columns, counters)
        if self._tape is not None:
            content["tape"] = self._tape.whole(self._tape_levels(self._tape))
        yield content | about | {"part": [0, 1]}, buffer
        parts = self._parts()
        part: Arrays | None = next(parts)
        for number in itertools.count(1):
            after = next(parts, None)
            content, buffer = self._content(False, number + 1, part or {}, counters)
            yield content | {"part": [number, number + (after is not None)]}, buffer
            if after is None:
                return
            part = after

    def threads(self) -> dict[str, str]:
        """Return the names of threads by their numbers in records, also while the recording is running."""
        return self.recording.threads()

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a request for the call stack of the blocks of a context, or about the tape (see `Live.answer`)."""
        if request.get("type") != "stack":
            return super().answer(request)
        frames = self.recording.stacks.get(int(request.get("context") or 0), ())
        return {"type": "stack", "context": request.get("context"), "lines": _folded(frames)}

    def _tape_of(self, step: Any) -> dict[str, Any]:
        """Return the tape of a step and show it from now on; without such a tape, return the reason."""
        answer, missing = {"type": "tape", "at": step}, {"missing": "nothing was differentiated in it"}
        if self._tape is None:
            return answer | missing
        try:
            found = LiveTape(self._tape.tape.step(int(step)), self._tape)
        except LookupError:
            return answer | {"missing": "the recording has no such step"}
        if not len(found.graph):
            return answer | missing
        self._tape = found
        return answer | {"tape": found.whole(self._tape_levels(found))}

    def _run(self) -> dict[str, Any]:
        """Return the run's name, state, error, backend, manager and left-out memory, which every frame contains."""
        about = super()._run() | {"whole": True}
        about["stacks"] = bool(self.recording.stacks)
        if len(self.recording.table("alloc")["t"]) > self._most:
            count = len(self.recording.memory.block["t"])
            about["note"] = f"the {quantity.count(self._most)} blocks around the peak of {quantity.count(count)}"
        return about

    def _parts(self) -> Iterator[Arrays]:
        """Yield the beginnings and ends of blocks and segments in order of time, about `PART` of them at a time.

        Beginnings and ends at the same moment are always in the same part.
        """
        lives = self._lives()
        orders = [np.argsort(columns["end"], kind="stable") for columns in lives]
        begins = [columns["t"] for columns in lives]
        ends = [columns["end"][order] for columns, order in zip(lives, orders, strict=True)]
        changes = np.sort(np.concatenate([*ends, *begins]))
        changes = changes[changes < NEVER]
        for since, until in pairwise([-1, *np.unique(changes[PART::PART]).tolist(), NEVER - 1]):
            born, came = (
                _rows(kind, columns, _between(t, since, until))
                for kind, columns, t in zip(KINDS, lives, begins, strict=True)
            )
            freed, went = (
                _rows(kind, columns, order[_between(end, since, until)])
                for kind, columns, order, end in zip(KINDS, lives, orders, ends, strict=True)
            )
            yield arrays(born, freed, came, went, self.start)

    def _lives(self) -> tuple[Columns, Columns]:
        """Return the columns of all blocks and segments in order of their beginning; blocks have "node" and "offset".

        Of a long recording, only a period around the peak of memory is used.
        """
        memory, op = self.recording.memory, self.recording.table("op")
        block, segment = memory.block, memory.segment
        if len(block["t"]) > self._most:
            at = memory.start + round(memory.peak.t * 1e9)
            middle = int(np.searchsorted(block["t"], at, "right"))
            first = min(max(0, middle - self._most // 2), len(block["t"]) - self._most)
            since, until = int(block["t"][first]), int(block["t"][first + self._most - 1])
            block, segment = _clipped(block, since, until), _clipped(segment, since, until)
        home = joined(block["segment_id"], segment["segment_id"], segment["address"])
        # A resized segment is sent again with its new size; the end of its old size is not sent.
        order = np.lexsort((segment["t"], segment["segment_id"]))
        goes_on = order[:-1][segment["segment_id"][order[1:]] == segment["segment_id"][order[:-1]]]
        segment = segment | {"end": segment["end"].copy()}
        segment["end"][goes_on] = NEVER
        made = op["alloc_id"] > 0
        node = joined(block["alloc_id"], op["alloc_id"][made], op["node"][made])
        offset = np.maximum(block["address"] - home, 0)
        return block | {"node": node, "offset": offset}, segment


def _folded(frames: Iterable[Frame]) -> list[str]:
    """Return the lines of a call stack as text, the innermost first; consecutive frames of C and C++ are one line."""
    lines = []
    for native, some in itertools.groupby(frames, key=lambda frame: frame.native):
        part = list(some)
        if native:
            last = part[-1].name.partition("(")[0]
            lines.append(f"{len(part)} C++ frames, from {last}" if len(part) > 1 else f"C++ {last}")
        else:
            files = [re.split(r"[/\\]", one.filename)[-1] for one in part]
            lines += [f"{file}:{one.line} {one.name}" for file, one in zip(files, part, strict=True)]
    return lines


def _rows(kind: str, lives: Columns, chosen: slice | Ints) -> Records:
    """Convert the chosen blocks ("alloc") or segments ("segment_alloc") to the rows that `live.memory` describes."""
    table = {name: column[chosen] for name, column in lives.items()}
    rows = np.zeros((WIDTH, len(table["t"])), np.int64).T
    rows[:, : schema.WORDS] = schema.rows(schema.KINDS[kind], table)
    rows[:, END] = table["end"]
    for column, name in ((NODE, "node"), (OFFSET, "offset"), (ASKED, "dropped")):
        if name in table:
            rows[:, column] = table[name]
    return rows


def _between(t: Ints, since: int, until: int) -> slice:
    """Return the slice of the ascending times `t` that are later than `since` and no later than `until`."""
    return slice(int(np.searchsorted(t, since, "right")), int(np.searchsorted(t, until, "right")))


def _clipped(lives: Columns, since: int, until: int) -> Columns:
    """Return the blocks or segments that exist between two times (ns), with their lifetimes cut to that interval.

    A lifetime that began before `since` begins at `since`; one that ends after `until` never ends.
    """
    touch = np.flatnonzero((lives["t"] <= until) & (lives["end"] > since))
    found = {name: column[touch] for name, column in lives.items()}
    end = np.where(found["end"] <= until, found["end"], NEVER)
    return found | {"t": np.maximum(found["t"], since), "end": end}
