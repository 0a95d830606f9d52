"""Answers to a browser's requests about single events of the timeline, and about all events between two times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.live.bars import BLOCK, NODE, PAIR, SHIFT, T0, T1
from flnb_telemetry.live.older import READING, SHIFT_OF_READS
from flnb_telemetry.live.threads import KINDS, Key, Timeline

if TYPE_CHECKING:
    from flnb_telemetry.live.bars import Row
    from flnb_telemetry.live.older import Older
    from flnb_telemetry.run import Run
    from flnb_telemetry.schema import Ints

RELATED = 16
"""The most events of a row that are listed as partners of an event."""


class EventQueries:
    """Answers requests about the events in the rows of a timeline.

    Args:
        run: the view; times in requests and answers are counted from its `start`.
        rows: the timeline's rows.

    Attributes:
        older: reads events that the rows no longer have from the run's recording; None without a recording.
    """

    def __init__(self, run: Run, rows: Timeline) -> None:
        self.run, self.rows = run, rows
        self.older: Older | None = None

    def ms(self, t: Any) -> Any:
        """Convert times from ns to ms since the run began."""
        return (t - self.run.start) / 1e6

    def ns(self, ms: Any) -> int:
        """Convert a time from ms since the run began to ns."""
        return self.run.start + round(float(ms) * 1e6)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request; returns a dict with the request's key and the answer, for JSON.

        Args:
            request: a dict with one of these entries, whose method (`_event` for "event") has the parameters listed:
                "event": [thread, kind, depth, number, t0]; "measure" or "ops": [begin, end]; "search": a text, with
                "after": a time (ms); "ordinal": [thread, kind, depth, number, since]; "nth": [thread, kind, depth,
                name, scope, before, since], which finds the event of an "ordinal" request in another recording.
        """
        if "event" in request:
            return self._event(*request["event"])
        methods: dict[str, Any] = {"measure": self._measure, "ops": self._ops}
        for name, method in (methods | {"ordinal": self._ordinal, "nth": self._nth}).items():
            if name in request:
                return {name: method(*request[name])}
        return {"search": self._search(str(request.get("search", "")).lower(), self.ns(request.get("after", 0)))}

    def _rows_of(self, t0: int, t1: int) -> dict[Key, Row]:
        """Return the rows for an answer about the time from `t0` to `t1` (ns).

        These are the rows in memory. If they lack events of that time, and the rows that were read last do not, the
        latter are returned.
        """
        lacking = any(row.since(1) > t0 for row in self.rows.rows.values())
        read = self.older.timeline if lacking and self.older and self.older.covers(t0, t1) else None
        return read.rows if read else self.rows.rows

    def _place(self, key: Key, row: Row, at: int) -> dict[str, Any]:
        """Return facts about event number `at` of a row: row, times (ms), plan, context, tape node and block."""
        event = row.events.bars[:, at - row.events.first]
        return {
            "thread": key.lane, "depth": key.depth, "kind": KINDS[key.kind], "number": at,
            "t0": self.ms(int(event[T0])), "t1": self.ms(int(event[T1])),
            "what": int(event[PAIR]) & (1 << SHIFT) - 1, "context": int(event[PAIR]) >> SHIFT,
            "node": int(event[NODE]), "block": int(event[BLOCK]),
        }  # fmt: skip

    def _event(self, thread: int, kind: str, depth: int, number: int, t0: float | None = None) -> dict[str, Any]:
        """Return an answer about an event and its partners: the backward ops of a forward op, or the reverse.

        Partners have the same tape node. The event has the number `number` in the row of a thread, kind and depth. If
        this event is no longer stored, the one that begins at `t0` (ms) is read from the recording. While it is being
        read, the answer has the entry "reading".
        """
        rows = self.rows.rows
        if number >> SHIFT_OF_READS:
            rows = self.older.timeline.rows if self.older and self.older.timeline else {}
        key, row = self._row(thread, kind, depth, rows)
        if (row is None or not row.has(number)) and self.older and t0 is not None:
            t = self.ns(t0)
            note, read = self.older.request(t, t + 1, self.rows)
            if note == READING:
                return {"event": None, "reading": True}
            rows = read.rows if read else {}
            row = rows.get(key)
            number = row.number_at(t) if row else -1
        if row is None or not row.has(number):
            return {"event": None}
        found = self._place(key, row, number)
        related = []
        for other in sorted(rows) if found["node"] else ():
            events = rows[other].events
            if KINDS[other.kind] in ("op", "part"):
                same = np.flatnonzero(events.bars[NODE] == found["node"])[:RELATED] + events.first
                related += [self._place(other, rows[other], at) for at in same.tolist() if (other, at) != (key, number)]
        return {"event": found | {"related": related}}

    def _row(self, thread: int, kind: str, depth: int, rows: dict[Key, Row] | None = None) -> tuple[Key, Row | None]:
        """Return the key of the row of a thread, kind and depth, and the row; None if there is no such row."""
        key = Key(int(thread), KINDS.index(kind), int(depth)) if kind in KINDS else Key(0, 0)
        return key, (self.rows.rows if rows is None else rows).get(key) if kind in KINDS else None

    def _names(self, key: Key, what: int, context: int) -> tuple[str, str]:
        """Return the name and the scope of an event, by which the same event is found in another recording.

        Args:
            key: the key of the event's row.
            what: the event's plan id, or its phase.
            context: the event's context id.
        """
        catalog, kind = self.rows.catalog, KINDS[key.kind]
        scope = catalog.contexts.items[context].scope
        if kind in ("op", "part", "record", "task"):
            return catalog.plans.items[what].op, scope
        return (schema.PHASES[what], "") if kind == "phase" else (scope if kind == "scope" else kind, "")

    def _alike(self, key: Key, row: Row, wanted: tuple[str, str], since: float) -> Ints:
        """Return the numbers of those events of a row that have the name and the scope ``wanted``.

        Only events that begin at the time ``since`` (ms) or later are returned.
        """
        first = int(np.searchsorted(row.events.bars[T0], self.ns(since)))
        pairs, at = np.unique(row.events.bars[PAIR, first:], return_inverse=True)
        both = zip((pairs & (1 << SHIFT) - 1).tolist(), (pairs >> SHIFT).tolist(), strict=True)
        same = np.array([self._names(key, what, context) == wanted for what, context in both], bool)
        found: Ints = np.flatnonzero(same[at.reshape(-1)]) + first + row.events.first
        return found

    def _ordinal(self, thread: int, kind: str, depth: int, number: int, since: float) -> dict[str, Any] | None:
        """Return the name and scope of an event, and how many events before it in its row have the same name and scope.

        Events that begin before the time ``since`` (ms) are not counted. Return None if there is no such event, or if
        the row no longer has all events since that time.
        """
        key, row = self._row(thread, kind, depth)
        if row is None or not row.has(number):
            return None
        if row.events.first and self.ns(since) < row.events.bars[T0, 0]:
            return None
        pair = int(row.events.bars[PAIR, number - row.events.first])
        names = self._names(key, pair & (1 << SHIFT) - 1, pair >> SHIFT)
        before = int(np.searchsorted(self._alike(key, row, names, since), number))
        return {"name": names[0], "scope": names[1], "before": before}

    def _nth(
        self, thread: int, kind: str, depth: int, name: str, scope: str, before: int, since: float
    ) -> dict[str, Any] | None:
        """Return the event number ``before`` (from 0) among a row's events with the given name and scope.

        The row is that of a thread, kind and depth. Events that begin before the time ``since`` (ms) are not counted.
        Return None if there is no such event.
        """
        key, row = self._row(thread, kind, depth)
        if row is None or before < 0 or (row.events.first and self.ns(since) < row.events.bars[T0, 0]):
            return None
        found = self._alike(key, row, (name, scope), since)
        return self._place(key, row, int(found[before])) if before < len(found) else None

    def _measure(self, begin: float, end: float) -> dict[str, Any]:
        """Return the number and the total duration of the events of each kind that begin between two times (ms)."""
        t0, t1 = self.ns(begin), self.ns(end)
        found: dict[str, Any] = {"t0": self.ms(t0), "t1": self.ms(t1), "counts": {}, "ns": {}, "complete": True}
        for key, row in self._rows_of(t0, t1).items():
            name = KINDS[key.kind]
            if name in ("phase", "scope"):
                continue
            bars = row.events.bars
            first, last = np.searchsorted(bars[T0], [t0, t1]).tolist()
            found["complete"] &= row.since(1) <= t0
            found["counts"][name] = found["counts"].get(name, 0) + last - first
            spent = int((bars[T1, first:last] - bars[T0, first:last]).sum())
            found["ns"][name] = found["ns"].get(name, 0) + spent
        return found

    def _ops(self, begin: float, end: float) -> dict[str, Any]:
        """Return, by name, count and total ns of the ops that begin between two times (ms), largest total first."""
        t0, t1 = self.ns(begin), self.ns(end)
        plans, complete = self.rows.catalog.plans.items, True
        sums: dict[str, list[int]] = {}
        for key, row in self._rows_of(t0, t1).items():
            if KINDS[key.kind] != "op":
                continue
            first, last = np.searchsorted(row.events.bars[T0], [t0, t1]).tolist()
            bars = row.events.bars[:, first:last]
            complete &= row.since(1) <= t0
            known, at, count = np.unique(bars[PAIR] & (1 << SHIFT) - 1, return_inverse=True, return_counts=True)
            spent = np.bincount(at.reshape(-1), bars[T1] - bars[T0], len(known))
            for plan, times, ns in zip(known.tolist(), count.tolist(), spent.tolist(), strict=True):
                entry = sums.setdefault(plans[plan].op, [0, 0])
                entry[0] += times
                entry[1] += round(ns)
        rows = [(op, *entry) for op, entry in sorted(sums.items(), key=lambda item: -item[1][1])]
        return {"t0": self.ms(t0), "t1": self.ms(t1), "rows": rows, "complete": complete}

    def _search(self, text: str, after: int) -> dict[str, Any]:
        """Return the next op after a time (ns) whose name, scope or line contains a text, else the first such op."""
        catalog = self.rows.catalog
        catalog.refresh()
        fits = np.array([text in string.lower() for string in catalog.strings.items], bool)
        plans, contexts = fits[catalog.op], fits[catalog.scope] | fits[catalog.line]
        best: list[tuple[bool, int, Key, int]] = []
        count = before = 0
        for key in self.rows.row_keys():
            if KINDS[key.kind] in ("op", "part", "record", "task"):
                events = self.rows.rows[key].events
                pairs = events.bars[PAIR]
                hits = np.flatnonzero(plans[pairs & (1 << SHIFT) - 1] | contexts[pairs >> SHIFT])
                first = int(np.searchsorted(events.bars[T0, hits], after, "right"))
                count, before = count + len(hits), before + first
                for wrapped, rows in ((False, hits[first:]), (True, hits)):
                    if len(rows):
                        best.append((wrapped, int(events.bars[T0, rows[0]]), key, events.first + int(rows[0])))
        if not best or not text:
            return {"text": text, "count": 0, "at": 0, "next": None}
        wrapped, _, key, number = min(best)
        place = self._place(key, self.rows.rows[key], number)
        return {"text": text, "count": count, "at": 0 if wrapped else before, "next": place}
