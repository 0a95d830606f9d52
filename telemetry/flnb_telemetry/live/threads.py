"""The work of a program over time as rows of bars (see `bars`).

Each thread has rows for its phases, its scopes at each depth, and its ops; each stream of a device has a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.intern import Context
from flnb_telemetry.live.bars import BLOCK, NODE, PAIR, SHIFT, T0, T1, Row, flat, pair, runs
from flnb_telemetry.live.streams import TASKS, Streams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.live.bars import Bars
    from flnb_telemetry.schema import Columns, Ints

SPLIT = 1 << 17
"""The number of ops that are added at once."""
DEEPEST = 12
"""The largest depth of scopes; deeper ones have no row."""
KINDS = ("phase", "scope", "record", "compile", "materialize", "op", "part", "task")
"""The kinds of rows from top to bottom; a "part" is an op inside another op, or an op that a kernel computed; a "task"
was run by a device, in a stream."""
OF_THREADS = ("op", "kernel", "scope", "step", "record", "compile", "materialize")
"""The kinds of events in the rows of threads."""
TABLES = (*OF_THREADS, *TASKS, "collective_begin")
"""The kinds of events that `Timeline.take` needs."""


Opened: TypeAlias = "dict[int, list[tuple[int, int]]]"
"""By thread: begin (ns) and context of the scopes that are open, the outermost first."""


class Key(NamedTuple):
    """The key of a row: the number of its thread, the index of its kind in `KINDS`, and the depth of its scopes.

    The row of a stream has a number from `streams.FIRST` on in place of the thread's, and the stream's as its depth.
    """

    lane: int
    kind: int
    depth: int = 0


class Timeline:
    """The rows of all threads of a run, and of all streams of its devices.

    Args:
        catalog: resolves the ids in records.
        most: the largest number of bars of each level of a row; older bars are then stored at coarser levels only.
        first: the number of the first event of each row.
        opened: by thread, begin (ns) and context of the scopes that were open before the first event.
        beside: rows of the same run, of other times, in which a stream has the same lane and a thread the same rank.

    Attributes:
        ranks: the ranks of threads and of lanes of streams, in a distributed program.

    >>> import flnb
    >>> with flnb.record() as run, flnb.scope("outer"):
    ...     y = flnb.exp(flnb.ones(8))
    >>> timeline = Timeline(run.catalog)
    >>> timeline.take({kind: run.table(kind) for kind in TABLES})
    >>> [KINDS[key.kind] for key in timeline.row_keys()]
    ['phase', 'scope', 'op']
    """

    def __init__(
        self,
        catalog: Catalog,
        most: int | None = None,
        first: int = 0,
        opened: Opened | None = None,
        beside: Timeline | None = None,
    ) -> None:
        self.catalog, self._most, self._first = catalog, most, first
        self.streams: Streams = Streams(catalog, None if beside is None else beside.streams.lanes)
        self.ranks: dict[int, int] = dict(beside.ranks) if beside else {}
        self.rows: dict[Key, Row] = {}
        self.version = 0
        self._open: Opened = opened or {}
        self._last: dict[int, tuple[int, int, int]] = {}  # by thread: steps, those before its last op, that op's phase
        self._moved: dict[int, int] = {}  # by scope and context as a pair: the context with that scope
        self._names: dict[int, tuple[int, ...]] = {}  # by scope: the ids of its path and of all above it
        self.newest: dict[int, int] = {}  # by thread: the number of batches until the last one with its events

    def row_keys(self) -> list[Key]:
        """Return the keys of the rows, thread by thread, from top to bottom."""
        return sorted(self.rows)

    def row(self, key: Key) -> Row:
        """Return the row with a key; a new row is created if there is none."""
        if key not in self.rows:
            self.rows[key] = Row(self._most, self._first)
        return self.rows[key]

    def take(self, tables: dict[str, Columns], places: tuple[NDArray[Any], NDArray[Any]] | None = None) -> None:
        """Add the next events.

        Args:
            tables: for each kind in `TABLES` its events, with the column "lane".
            places: scope (string id) and phase of each op, if they are known (see `Catalog.places`).
        """
        self._take_tasks(tables)
        op = tables["op"]
        if places is None:
            places = self.catalog.places(op["context"], op["node"])[:2]
        tables = {kind: tables[kind] for kind in OF_THREADS} | {"op": op | {"scope": places[0], "phase": places[1]}}
        if self._most is None and len(op["t0"]) > SPLIT:
            for lane, count in zip(*(part.tolist() for part in np.unique(op["lane"], return_counts=True)), strict=True):
                self.row(Key(lane, KINDS.index("op"))).events.reserve(count)
        edges = [*op["t0"][SPLIT::SPLIT].tolist(), None]
        since = dict.fromkeys(tables, 0)
        for edge in edges:  # so that columns read several times fit into a cache, and copies stay small
            part = {}
            for kind, table in tables.items():
                t = table["t1" if kind == "step" else "t0" if "t0" in table else "t"]
                until = len(t) if edge is None else int(np.searchsorted(t, edge))
                part[kind] = {name: column[since[kind] : until] for name, column in table.items()}
                since[kind] = until
            self._add(part)

    def _take_tasks(self, tables: dict[str, Columns]) -> None:
        """Add what devices ran to the rows of their streams."""
        joined, groups = tables["collective_begin"], self.catalog.groups.items
        for lane, group in set(schema.tuples(joined, "lane", "group")):
            if groups[group].size > 1:
                self.ranks[lane] = groups[group].rank
        found = self.streams.bars(tables, self.ranks)
        for (rank, _, stream), lane in list(self.streams.lanes.items()):
            if lane in found:
                self.row(Key(lane, KINDS.index("task"), stream)).append(found[lane])
                self.version += 1
            self.ranks |= {lane: rank} if rank >= 0 else {}

    def stream_names(self) -> dict[int, str]:
        """Return the name of the device of each lane of a stream, such as "cuda:0"."""
        return {lane: place for (_, place, _), lane in list(self.streams.lanes.items())}

    def _add(self, tables: dict[str, Columns]) -> None:
        """Add the next events, of all threads."""
        lanes = np.unique(np.concatenate([np.unique(table["lane"]) for table in tables.values()]))
        for lane in lanes.tolist():
            own = {
                kind: table if len(lanes) == 1 else {name: column[at] for name, column in table.items()}
                for kind, table in tables.items()
                for at in (table["lane"] == lane,)
            }
            self._take(lane, own)
            self.version += 1
            self.newest[lane] = self.version

    def forget(self, lane: int) -> None:
        """Delete the rows of the thread with the number ``lane``."""
        for key in [key for key in self.rows if key.lane == lane]:
            del self.rows[key]
        self._open.pop(lane, None)
        self._last.pop(lane, None)
        self.newest.pop(lane, None)

    def _take(self, lane: int, tables: dict[str, Columns]) -> None:
        """Add the events of the thread with the number ``lane``; ``tables`` has its events by kind."""
        scopes: dict[int, list[Bars]] = {}
        t, depth = self._scopes(lane, tables["scope"], scopes)
        self._close(lane, scopes)
        for kind, counted in (("record", "plan"), ("compile", "values"), ("materialize", "count")):
            table = tables[kind]
            if len(table["t0"]):
                node = table.get("node", np.zeros_like(table["t0"]))
                events = _events(table, table[counted], node, np.zeros_like(node))
                self.row(Key(lane, KINDS.index(kind))).append(flat(events)[0])
        op, kernel = tables["op"], tables["kernel"]
        inside = op["estimated"] > 0
        places = np.array([op["scope"], op["phase"]])
        op = op | {"context": self._placed(op["context"], places)}
        events = _events(op, op["plan"], op["node"], op["alloc_id"])
        parts = events[:, inside]
        if len(parts[0]):
            events, places = events[:, ~inside], places[:, ~inside]
        if len(kernel["t0"]):
            none = np.zeros(len(kernel["t0"]), np.int64)
            context = kernel["context"]
            events = np.concatenate([events, _events(kernel, kernel["plan"], none, none)], axis=1)
            places = np.concatenate([places, [self.catalog.scope[context], self.catalog.phase[context]]], axis=1)
        events, nested, order = flat(events)
        places = places if order is None else places[:, order]
        parts = np.concatenate([parts, nested], axis=1)
        if len(parts[0]):
            self.row(Key(lane, KINDS.index("part"))).append(flat(parts)[0])
        if len(events[0]):
            self.row(Key(lane, KINDS.index("op"))).append(events)
            self._runs(
                lane, tables["step"]["t1"], events, places, depth[np.searchsorted(t, events[T0], "right")], scopes
            )
        self._close(lane, scopes)
        for level, bars in scopes.items():
            self.row(Key(lane, KINDS.index("scope"), level)).append(flat(np.concatenate(bars, axis=1))[0])

    def _close(self, lane: int, scopes: dict[int, list[Bars]]) -> None:
        """End each open scope if another scope in its row began later, and add the ended ones to `scopes`.

        Scopes of backward passes stay open, because they may continue. ``lane`` is the thread's number; `scopes` has,
        by depth, the scopes that have ended.
        """
        for depth, bars in scopes.items():
            row = self.row(Key(lane, KINDS.index("scope"), depth))
            begins = [each[T0, -1] for each in bars if each.shape[1]]
            if row.open is not None and begins and row.open[T0, 0] < max(begins):
                bars.append(row.open)
                row.open = None

    def _runs(
        self, lane: int, ends: Ints, events: Bars, places: NDArray[np.int64], outer: Ints, scopes: dict[int, list[Bars]]
    ) -> None:
        """Add the phases of a thread's ops to the row of phases, and the scopes of backward ops to `scopes`.

        Args:
            lane: the number of the thread.
            ends: the times at which training steps ended, ns; phases are not merged across these times.
            events: the ops as bars, in order of time.
            places: the scope and the phase of each op, shape (2, n).
            outer: the number of scopes that were open when each op began.
            scopes: by depth, the scopes that have ended; see `_backward`.
        """
        steps, passed_before, last = self._last.get(lane, (0, 0, -1))
        passed = steps + np.searchsorted(ends, events[T0], "right")
        breaks = np.diff(passed, prepend=passed_before) > 0
        self._last[lane] = steps + len(ends), int(passed[-1]), int(places[1, -1])
        phases = self.row(Key(lane, KINDS.index("phase")))
        phases.append(self._extended(phases, events, pair(places[1], 0), breaks))
        self._backward(lane, events, places, outer, breaks | (np.diff(places[1], prepend=last) != 0), scopes)

    def _scopes(self, lane: int, scope: Columns, found: dict[int, list[Bars]]) -> tuple[Ints, Ints]:
        """Add the scopes that have ended to `found`, by depth.

        Returns:
            The times of the scope events, and the number of open scopes before the first and after each of them.
        """
        before = self._open.get(lane, [])
        t = np.concatenate([np.array([begin for begin, _ in before], np.int64), scope["t"]])
        context = np.concatenate([np.array([each for _, each in before], np.int64), scope["context"]])
        sign = np.concatenate([np.ones(len(before), np.int64), np.where(scope["enter"] > 0, 1, -1)])
        level = np.cumsum(sign)
        level -= np.minimum.accumulate(np.minimum(level, 0))  # scopes that were open when the recording began
        at = level - (sign > 0)
        order = np.argsort(at, kind="stable")
        first, second = order[:-1], order[1:]
        closed = (at[first] == at[second]) & (sign[first] > 0) & (sign[second] < 0)
        begin, end = first[closed], second[closed]
        for depth in np.unique(at[begin]).tolist():
            if depth < DEEPEST:
                which = at[begin] == depth
                b, e = begin[which], end[which]
                events = np.zeros((5, len(b)), np.int64)
                events[T0], events[T1], events[PAIR] = t[b], t[e], pair(0, context[b])
                found.setdefault(depth, []).append(events)
        still = np.ones(len(t), bool)
        still[begin] = False
        still &= sign > 0
        self._open[lane] = list(zip(t[still].tolist(), context[still].tolist(), strict=True))
        for depth in range(min(DEEPEST, len(self._open[lane]))):
            self.row(Key(lane, KINDS.index("scope"), depth))
        skip = len(before)
        return scope["t"], np.concatenate([[skip], level[skip:]])

    def _backward(
        self,
        lane: int,
        events: Bars,
        places: Ints,
        outer: Ints,
        breaks: NDArray[np.bool_],
        found: dict[int, list[Bars]],
    ) -> None:
        """Add to `found` a bar for the module of each backward op, so that the timeline shows the module.

        The module is the scope of the op's forward op. Its bar is drawn below the scopes that were open when the
        backward op ran. Consecutive ops of one module share a bar.

        Args:
            lane: the number of the thread.
            events: the ops as bars, in order of time.
            places: the scope and the phase of each op, shape (2, n).
            outer: the number of scopes that were open when each op began.
            breaks: the ops before which bars are not merged.
            found: a dict from depth to lists of bars, to which bars that have ended are added.
        """
        rows = np.flatnonzero(places[1] == schema.BACKWARD)
        if not len(rows):
            return
        known, at = np.unique(places[0, rows], return_inverse=True)
        paths = [self._path(scope) for scope in known.tolist()]
        depth = min(DEEPEST, max(map(len, paths)))
        table = np.array([[*path, *[0] * depth][:depth] for path in paths], np.int64).reshape(len(paths), depth)
        apart = np.diff(np.cumsum(breaks)[rows], prepend=0) > 0  # also where other ops are in between
        for level in range(depth):
            names = table[at.reshape(-1), level]
            apart = apart | (np.diff(names, prepend=names[0]) != 0)
            beside = (names == 0) | (outer[rows] > level)
            here = np.flatnonzero(~beside)
            if len(here):
                begins = np.diff(np.cumsum(apart | beside)[here], prepend=0) > 0
                row = self.row(Key(lane, KINDS.index("scope"), level))
                closed = self._extended(row, events[:, rows[here]], pair(0, names[here]), begins)
                found.setdefault(level, []).append(closed)

    def _placed(self, context: Ints, places: Ints) -> Ints:
        """Return the contexts of ops; that of a backward op gets its forward op's scope. For ``places`` see `_runs`."""
        moved = np.flatnonzero(
            (places[1] == schema.BACKWARD) & (places[0] > 0) & (places[0] != self.catalog.scope[context])
        )
        if not len(moved):
            return context
        pairs, at = np.unique(pair(places[0, moved], context[moved]), return_inverse=True)
        contexts, scopes = self.catalog.contexts, self.catalog.strings.items
        for each in pairs.tolist():
            if each not in self._moved:
                scope, old = scopes[each & (1 << SHIFT) - 1], contexts.items[each >> SHIFT]
                self._moved[each] = contexts.id_of(old._replace(scope=scope))
        found = context.copy()
        found[moved] = np.array([self._moved[each] for each in pairs.tolist()])[at.reshape(-1)]
        return found

    def _path(self, scope: int) -> tuple[int, ...]:
        """Return the context ids of a scope and of all enclosing scopes, the outermost first."""
        if scope not in self._names:
            names = self.catalog.strings.items[scope].split(".") if scope else []
            paths = [".".join(names[: i + 1]) for i in range(len(names))]
            known = self.catalog.contexts
            self._names[scope] = tuple(known.id_of(Context(path, schema.BACKWARD)) for path in paths)
        return self._names[scope]

    @staticmethod
    def _extended(row: Row, events: Bars, pairs: Ints, breaks: NDArray[np.bool_]) -> Bars:
        """Merge consecutive events of the same op in the same context, and return all but the last one.

        The last one may continue, so it is stored in the row.

        Args:
            row: the row to which the events belong; its open event is continued.
            events: the events, shape (5, n).
            pairs: the op and context of each event as one number (see `bars.pair`).
            breaks: the events that begin a new bar even if op and context are the same.
        """
        t0, t1 = events[T0], events[T1]
        if row.open is not None:
            t0, t1 = np.append(row.open[T0], t0), np.append(row.open[T1], t1)
            pairs, breaks = np.append(row.open[PAIR], pairs), np.append(True, breaks)
        found = runs(pairs, t0, t1, breaks)
        row.open = found[:, -1:].copy()  # a view would own the memory of all bars
        return found[:, :-1]

    def ongoing(self, lane: int, now: int) -> Iterator[tuple[Key, Bars]]:
        """Yield the scopes of a thread that are open at the time `now` (ns): key, and a bar of shape (6, 1)."""
        for depth, (begin, context) in enumerate(self._open.get(lane, [])[:DEEPEST]):
            bar = [begin, max(now, begin + 1), int(pair(0, context)), 1, -1, now - begin]
            yield Key(lane, KINDS.index("scope"), depth), np.array([bar], np.int64).T


def _events(table: Columns, what: Any, node: Ints, block: Ints) -> Bars:
    """Return a table of events as an array, shape (5, n).

    Args:
        table: the events.
        what: their plan ids or phases.
        node: the tape node of each event, 0 for none.
        block: the number of the memory block of each event's result, 0 for none.
    """
    found = np.empty((5, len(node)), np.int64)
    found[T0], found[T1], found[NODE], found[BLOCK] = table["t0"], table["t1"], node, block
    found[PAIR] = pair(what, table["context"])
    return found
