"""The work of each thread over time as bars at several levels of detail, so that any window has few bars.

A *row* is a sequence of bars that do not overlap, in order of time: a thread's scopes at one depth, its phases, or its
ops. Each row has several levels: level 0 has a bar for every event, and each further level has the bars of the level
before, merged where they are shorter than its resolution. A window of a row is read from the coarsest level that is
fine enough, and merged once more.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.intern import Context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.schema import Columns, Ints

FINEST, FACTOR, LEVELS = 16_000, 4, 14
"""The resolution of level 1 in ns, the ratio between two levels, and the largest number of levels."""
CHUNK = 1 << 18
"""The number of bars that are merged at once, so that their columns fit into a processor's cache."""
SPLIT = 1 << 17
"""The number of ops that are added at once."""
TAIL = 512
"""The number of new bars after which they are merged into the next level."""
DEEPEST = 12
"""The largest depth of scopes; deeper ones have no row."""
KINDS = ("phase", "scope", "record", "compile", "materialize", "op", "part")
"""The kinds of rows from top to bottom; a part is an op that ran inside another one, or was computed by a kernel."""
SHIFT = 32

T0, T1, PAIR, NODE, BLOCK = range(5)
"""The columns of an event: two times (ns), pair (plan or phase, and context, in one number), tape node, block."""
COUNT, NUMBER, LONGEST = 3, 4, 5
"""The columns of a merged bar after times and pair: the number of its events, and the longest one and its ns."""

Bars: TypeAlias = "NDArray[np.int64]"
"""The columns of n bars: shape (5, n) for events, (6, n) for merged bars."""


class Key(NamedTuple):
    """The key of a row: the number of its thread, the index of its kind in `KINDS`, and the depth of its scopes."""

    lane: int
    kind: int
    depth: int = 0


def pair(what: Any, context: Any) -> Any:
    """Combine each plan id (or phase) and its context id into one number, a *pair*."""
    return np.asarray(what, np.int64) | np.asarray(context, np.int64) << SHIFT


def merge(bars: Bars, resolution: int) -> Bars:
    """Merge bars, shape (6, n), that are shorter than `resolution` (ns) and begin in the same multiple of it.

    A merged bar has the pair (see `pair`) and the number of the longest event in it.
    """
    t0, t1, longest = bars[T0], bars[T1], bars[LONGEST]
    if not len(t0):
        return bars
    bucket, long = t0 // resolution, t1 - t0 >= resolution
    begins = long.copy()
    begins[0] = True
    begins[1:] |= (bucket[1:] != bucket[:-1]) | long[:-1]
    at = np.flatnonzero(begins)
    if len(at) == len(t0):
        return bars
    ends = np.append(at[1:], len(t0))
    most = np.maximum.reduceat(longest, at)
    hits = np.flatnonzero(longest == np.repeat(most, ends - at))
    chief = hits[np.searchsorted(hits, at)]
    found = np.empty((6, len(at)), np.int64)
    found[T0], found[T1], found[LONGEST] = t0[at], t1[ends - 1], most
    found[PAIR], found[NUMBER] = bars[PAIR, chief], bars[NUMBER, chief]
    found[COUNT] = np.add.reduceat(bars[COUNT], at)
    return found


def runs(pairs: Ints, t0: Ints, t1: Ints, breaks: NDArray[np.bool_]) -> Bars:
    """Return events, shape (5, n): one for each run of equal pairs. Where `breaks` is True, a new run begins."""
    begins = breaks.copy()
    begins[:1] = True
    begins[1:] |= pairs[1:] != pairs[:-1]
    at = np.flatnonzero(begins)
    found = np.zeros((5, len(at)), np.int64)
    found[T0], found[T1], found[PAIR] = t0[at], t1[np.append(at[1:], len(pairs)) - 1] if len(at) else t1, pairs[at]
    return found


class _Level:
    """The bars of one level, in columns that grow; if there are more than `most`, the older half is dropped.

    `first` is the number of bars dropped so far, so that the bar in column i has the number ``first + i``. `merged` is
    the number of the first bar that the next level does not contain yet.
    """

    def __init__(self, columns: int, most: int | None) -> None:
        self._data = np.empty((columns, 0), np.int64)
        self._most, self.used, self.first, self.merged = most, 0, 0, 0

    @property
    def bars(self) -> Bars:
        return self._data[:, : self.used]

    def reserve(self, more: int) -> None:
        """Enlarge the columns to hold `more` bars."""
        grown = np.empty((len(self._data), self.used + more), np.int64)
        grown[:, : self.used] = self.bars
        self._data = grown

    def append(self, bars: Bars) -> None:
        more = bars.shape[1]
        if self.used + more > self._data.shape[1]:
            self.reserve(max(self.used, more))
        self._data[:, self.used : self.used + more] = bars
        self.used += more
        if self._most is not None and self.used > self._most:
            gone = self.used - self._most // 2
            self._data = self._data[:, gone : self.used].copy()
            self.used, self.first = self._most // 2, self.first + gone
            self.merged = max(self.merged, self.first)

    def since(self, number: int, until: int | None = None) -> Bars:
        """Return the bars from `number` on (up to `until`), shape (6, n)."""
        here = slice(number - self.first, self.used if until is None else until - self.first)
        bars = self.bars[:, here]
        if len(bars) == 6:
            return bars
        found = np.empty((6, bars.shape[1]), np.int64)
        found[:COUNT], found[COUNT] = bars[:COUNT], 1
        found[NUMBER] = np.arange(number, number + bars.shape[1])
        found[LONGEST] = bars[T1] - bars[T0]
        return found

    def numbers(self, t0: int, t1: int) -> tuple[int, int]:
        """Return the numbers of the first bar that ends after t0 and of the first that begins at t1 or later (ns)."""
        bars = self.bars
        first = int(np.searchsorted(bars[T1], t0, "right"))
        return self.first + first, self.first + max(first, int(np.searchsorted(bars[T0], t1)))


class Row:
    """Bars that do not overlap, at every level of detail.

    Args:
        most: the most bars of each level; None keeps all.

    Attributes:
        open: an event at the end of the row, shape (5, 1), that may still become longer; None if there is none.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.events = _Level(5, most)
        self.levels = [self.events]
        self.open: Bars | None = None

    def append(self, events: Bars) -> None:
        """Add events in order of time; one that overlaps the event before it is shortened, or left out."""
        if self.events.used and events.shape[1]:
            reached = self.events.bars[T1, -1]
            if events[T0, 0] < reached:
                events = events[:, events[T1] > reached].copy()
                np.maximum(events[T0], reached, out=events[T0])
        if events.shape[1]:
            self.events.append(events)
            self._raise()

    def _raise(self) -> None:
        """Merge the new bars of each level into the next one, except those in the last multiple of its resolution."""
        for depth, resolution in enumerate(RESOLUTIONS):
            level = self.levels[depth]
            if level.first + level.used - level.merged < TAIL:
                return
            if depth + 1 == len(self.levels):
                self.levels.append(_Level(6, self._most))
            whole = int(np.searchsorted(level.bars[T0], level.bars[T0, -1] // resolution * resolution)) + level.first
            for begin in range(level.merged, whole, CHUNK):
                self.levels[depth + 1].append(merge(level.since(begin, min(whole, begin + CHUNK)), resolution))
            level.merged = max(level.merged, whole)

    def window(self, t0: int, t1: int, resolution: int) -> Bars:
        """Return the bars, shape (6, n), between two times (ns), merged where they are shorter than `resolution`."""
        fine = sum(each <= resolution for each in RESOLUTIONS[: len(self.levels) - 1])
        found: list[Bars] = []
        older, until = fine, t1
        while True:  # where events have been dropped, coarser levels still have them
            level = self.levels[older]
            first, last = level.numbers(t0, until)
            found.insert(0, level.since(first, last).copy())
            if first > level.first or not level.first or older + 1 == len(self.levels):
                break
            older, until = older + 1, int(level.bars[T0, 0])
        for bars, after in pairwise(found):
            np.minimum(bars[T1], after[T0, 0] if len(after[0]) else t1, out=bars[T1])
        for depth in range(fine, 0, -1):  # bars not merged yet
            level = self.levels[depth - 1]
            first, last = level.numbers(t0, t1)
            found.append(level.since(max(first, level.merged), max(last, level.merged)))
        if self.open is not None and self.open[T0, 0] < t1 and self.open[T1, 0] > t0:
            last = self.open[:, 0]
            found.append(np.array([[*last[:3].tolist(), 1, -1, int(last[T1] - last[T0])]], np.int64).T)
        bars = np.concatenate(found, axis=1)
        return merge(bars, resolution) if resolution > 1 else bars


RESOLUTIONS = tuple(FINEST * FACTOR**level for level in range(LEVELS))


class Timeline:
    """The rows of all threads of a run.

    Args:
        catalog: resolves the ids in records.
        most: the most bars of each level of a row; older ones are then known at coarser levels only.

    >>> import flnb
    >>> with flnb.record() as run, flnb.scope("outer"):
    ...     y = flnb.exp(flnb.ones(8))
    >>> timeline = Timeline(run.catalog)
    >>> timeline.take({kind: run.table(kind) for kind in TABLES})
    >>> [KINDS[key.kind] for key in timeline.row_keys()]
    ['phase', 'scope', 'op']
    """

    def __init__(self, catalog: Catalog, most: int | None = None) -> None:
        self.catalog, self._most = catalog, most
        self.rows: dict[Key, Row] = {}
        self.version = 0
        self._open: dict[int, list[tuple[int, int]]] = {}  # by thread: begin and context of the scopes that are open
        self._last: dict[int, tuple[int, int, int]] = {}  # by thread: steps, those before its last op, that op's phase
        self._names: dict[int, tuple[int, ...]] = {}  # by scope: the ids of its path and of all above it

    def row_keys(self) -> list[Key]:
        """Return the keys of the rows, thread by thread, from top to bottom."""
        return sorted(self.rows)

    def row(self, key: Key) -> Row:
        """Return the row with a key, which is made if it is new."""
        if key not in self.rows:
            self.rows[key] = Row(self._most)
        return self.rows[key]

    def take(self, tables: dict[str, Columns], places: tuple[Ints, Ints] | None = None) -> None:
        """Add the next events.

        Args:
            tables: for each kind in `TABLES` its events, with the column "lane".
            places: scope (string id) and phase of each op, if they are known (see `Catalog.places`).
        """
        op = tables["op"]
        if places is None:
            places = self.catalog.places(op["context"], op["node"])[:2]
        tables = tables | {"op": op | {"scope": places[0], "phase": places[1]}}
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

    def _take(self, lane: int, tables: dict[str, Columns]) -> None:
        """Add the events of one thread."""
        scopes: dict[int, list[Bars]] = {}
        t, depth = self._scopes(lane, tables["scope"], scopes)
        self._close(lane, scopes)
        for kind, counted in (("record", "plan"), ("compile", "values"), ("materialize", "count")):
            table = tables[kind]
            if len(table["t0"]):
                node = table.get("node", np.zeros_like(table["t0"]))
                events = _events(table, table[counted], node, np.zeros_like(node))
                self.row(Key(lane, KINDS.index(kind))).append(_flat(events)[0])
        op, kernel = tables["op"], tables["kernel"]
        inside = op["estimated"] > 0
        events = _events(op, op["plan"], op["node"], op["alloc_id"])
        places = np.array([op["scope"], op["phase"]])
        parts = events[:, inside]
        if len(parts[0]):
            events, places = events[:, ~inside], places[:, ~inside]
        if len(kernel["t0"]):
            none = np.zeros(len(kernel["t0"]), np.int64)
            context = kernel["context"]
            events = np.concatenate([events, _events(kernel, kernel["plan"], none, none)], axis=1)
            places = np.concatenate([places, [self.catalog.scope[context], self.catalog.phase[context]]], axis=1)
        events, nested, order = _flat(events)
        places = places if order is None else places[:, order]
        parts = np.concatenate([parts, nested], axis=1)
        if len(parts[0]):
            self.row(Key(lane, KINDS.index("part"))).append(_flat(parts)[0])
        if len(events[0]):
            self.row(Key(lane, KINDS.index("op"))).append(events)
            self._runs(
                lane, tables["step"]["t1"], events, places, depth[np.searchsorted(t, events[T0], "right")], scopes
            )
        self._close(lane, scopes)
        for level, bars in scopes.items():
            self.row(Key(lane, KINDS.index("scope"), level)).append(_flat(np.concatenate(bars, axis=1))[0])

    def _close(self, lane: int, scopes: dict[int, list[Bars]]) -> None:
        """Add the open scopes of a backward pass to `scopes`, if a later scope has begun at their depth."""
        for depth, bars in scopes.items():
            row = self.row(Key(lane, KINDS.index("scope"), depth))
            begins = [each[T0, -1] for each in bars if each.shape[1]]
            if row.open is not None and begins and row.open[T0, 0] < max(begins):
                bars.append(row.open)
                row.open = None

    def _runs(
        self, lane: int, ends: Ints, events: Bars, places: NDArray[np.int64], outer: Ints, scopes: dict[int, list[Bars]]
    ) -> None:
        """Add the phases of some ops to their row, and the scopes of backward ops to `scopes` (see `_backward`)."""
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
        """Add the scopes to which the ops of a backward pass belong to `found`, below the scopes that are open."""
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

    def _path(self, scope: int) -> tuple[int, ...]:
        """Return the context ids of a scope and of all scopes around it, the outermost first."""
        if scope not in self._names:
            names = self.catalog.strings.items[scope].split(".") if scope else []
            paths = [".".join(names[: i + 1]) for i in range(len(names))]
            known = self.catalog.contexts
            self._names[scope] = tuple(known.id_of(Context(path, schema.BACKWARD)) for path in paths)
        return self._names[scope]

    @staticmethod
    def _extended(row: Row, events: Bars, pairs: Ints, breaks: NDArray[np.bool_]) -> Bars:
        """Return the runs of equal pairs in a row, except the last run, which stays open as it may continue."""
        t0, t1 = events[T0], events[T1]
        if row.open is not None:
            t0, t1 = np.append(row.open[T0], t0), np.append(row.open[T1], t1)
            pairs, breaks = np.append(row.open[PAIR], pairs), np.append(True, breaks)
        found = runs(pairs, t0, t1, breaks)
        row.open = found[:, -1:]
        return found[:, :-1]

    def ongoing(self, lane: int, now: int) -> Iterator[tuple[Key, Bars]]:
        """Yield the scopes of a thread that are open at the time `now` (ns): key, and a bar of shape (6, 1)."""
        for depth, (begin, context) in enumerate(self._open.get(lane, [])[:DEEPEST]):
            bar = [begin, max(now, begin + 1), int(pair(0, context)), 1, -1, now - begin]
            yield Key(lane, KINDS.index("scope"), depth), np.array([bar], np.int64).T


TABLES = ("op", "kernel", "scope", "step", "record", "compile", "materialize")
"""The kinds of events that `Timeline.take` needs."""


def _events(table: Columns, what: Any, node: Ints, block: Ints) -> Bars:
    """Return a table of events as an array, shape (5, n); `what` has their plan ids or phases."""
    found = np.empty((5, len(node)), np.int64)
    found[T0], found[T1], found[NODE], found[BLOCK] = table["t0"], table["t1"], node, block
    found[PAIR] = pair(what, table["context"])
    return found


def _flat(events: Bars) -> tuple[Bars, Bars, Ints | None]:
    """Sort events by time and separate those that lie inside others.

    Returns:
        The events that do not overlap, the others, and the indices of the former (None if they are all, in order).
    """
    t0, t1 = events[T0], events[T1]
    if not len(t0) or (t0[1:] >= t1[:-1]).all():
        return events, events[:, :0], None
    order = np.lexsort((-t1, t0))
    events = events[:, order]
    reached = np.maximum.accumulate(events[T1])
    outside = np.ones(len(order), bool)
    outside[1:] = events[T0, 1:] >= reached[:-1]
    # an event that overlaps partly begins where the one before it ends
    return events[:, outside], events[:, ~outside], order[outside]
