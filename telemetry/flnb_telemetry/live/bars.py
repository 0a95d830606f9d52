"""Rows of bars at several levels of detail, so that any window of a row is drawn with few bars.

A *row* is a sequence of bars that do not overlap, in order of time. Each row has several levels: level 0 has a bar for
every event, and each further level has the bars of the level before, merged where they are shorter than its resolution.
A window of a row is read from the coarsest level that is fine enough, and merged once more.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.schema import Ints

FINEST, FACTOR, LEVELS = 16_000, 4, 14
"""The resolution of level 1 in ns, the ratio between two levels, and the largest number of levels."""
RESOLUTIONS = tuple(FINEST * FACTOR**level for level in range(LEVELS))
"""The resolution of each level from level 1 on, ns."""
CHUNK = 1 << 18
"""The number of bars that are merged at once, so that their columns fit into a processor's cache."""
TAIL = 512
"""The number of new bars after which they are merged into the next level."""
COARSER, FULL_AFTER = 4, 120_000_000_000
"""The ratio between the most events of a row and the most bars of each coarser level, and the time (ns) after which a
level must be full, so that memory then grows no more: a level with bars of 16 ms stores as many as in two minutes."""
FEWEST = 5120
"""The largest number of bars of the coarsest levels: enough for a picture of the whole run with a thousand bars."""
KEPT = 7 / 8
"""The fraction of a full level's bars, the newest ones, that are left after it has dropped the oldest."""
SHIFT = 32

T0, T1, PAIR, NODE, BLOCK = range(5)
"""The columns of an event: two times (ns), pair (plan or phase, and context, in one number), tape node, block."""
COUNT, NUMBER, LONGEST = 3, 4, 5
"""The columns of a merged bar after times and pair: number of its events, number of the longest event, and its ns."""

Bars: TypeAlias = "NDArray[np.int64]"
"""The columns of n bars: shape (5, n) for events, (6, n) for merged bars."""


def pair(what: Any, context: Any) -> Any:
    """Combine each plan id or phase (``what``) with its context id into one number, a *pair*."""
    return np.asarray(what, np.int64) | np.asarray(context, np.int64) << SHIFT


def merge(bars: Bars, resolution: int) -> Bars:
    """Merge bars, shape (6, n), that are shorter than `resolution` (ns) and begin in the same interval of that length.

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
    """Merge consecutive events with equal pairs into one event each; return the merged events, shape (5, n).

    An event for which the mask `breaks` is True is never merged with the event before it.
    """
    begins = breaks.copy()
    begins[:1] = True
    begins[1:] |= pairs[1:] != pairs[:-1]
    at = np.flatnonzero(begins)
    found = np.zeros((5, len(at)), np.int64)
    found[T0], found[T1], found[PAIR] = t0[at], t1[np.append(at[1:], len(pairs)) - 1] if len(at) else t1, pairs[at]
    return found


class Level:
    """The bars of one level of detail of a row, stored in columns that grow.

    A level that gets more than `most` bars drops its oldest bars until ``KEPT * most`` are left, but keeps those that
    the next level does not contain yet, by which it may exceed `most`.

    The bar in column i has the number ``first + i``; `first` grows when bars are dropped. `merged` is the number of
    the first bar that the next level does not contain yet.
    """

    def __init__(self, columns: int, most: int | None, first: int = 0) -> None:
        self._data = np.empty((columns, 0), np.int64)
        self._most, self.used, self._start, self.first, self.merged = most, 0, first, first, first

    @property
    def bars(self) -> Bars:
        return self._data[:, : self.used]

    @property
    def whole(self) -> bool:
        """Whether no bars were dropped."""
        return self.first == self._start

    @property
    def begins(self) -> int:
        """The time (ns) since which this level has bars: that of the first event of its row if none were dropped."""
        return 0 if self.whole else int(self._data[T0, 0])

    def reserve(self, more: int) -> None:
        """Enlarge the columns to hold `more` bars."""
        grown = np.empty((len(self._data), self.used + more), np.int64)
        grown[:, : self.used] = self.bars
        self._data = grown

    def append(self, bars: Bars) -> None:
        more = bars.shape[1]
        if self._most is not None and self.used + more > self._most:
            gone = min(self.merged - self.first, self.used + more - int(self._most * KEPT))
            self.used, self.first = self.used - gone, self.first + gone
            for column in self._data:  # one by one: NumPy would copy overlapping rows first
                column[: self.used] = column[gone : gone + self.used]
        if self.used + more > self._data.shape[1]:
            spare = self.used
            if self._most is not None:  # no array is replaced by one a little larger: that would leave holes in memory
                spare = self._most - self.used if 8 * self.used > self._most else min(spare, self._most - self.used)
            self.reserve(max(spare, more))
        self._data[:, self.used : self.used + more] = bars
        self.used += more

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
        """Return the numbers of the first bar that ends after t0, and the first bar that begins at t1 or later (ns)."""
        bars = self.bars
        first = int(np.searchsorted(bars[T1], t0, "right"))
        return self.first + first, self.first + max(first, int(np.searchsorted(bars[T0], t1)))


class Row:
    """A sequence of bars that do not overlap, such as the ops of a thread, at several levels of detail.

    Args:
        most: the largest number of events (bars of level 0); coarser levels have at most a quarter as many bars, and
            few if their bars are long. None for no limit.
        first: the number of the first event.

    Attributes:
        open: an event at the end of the row, shape (5, 1), that may still become longer; None if there is none.
    """

    def __init__(self, most: int | None = None, first: int = 0) -> None:
        self._coarse = most and max(most // COARSER, 4 * TAIL)
        self.events = Level(5, most, first)
        self.levels = [self.events]
        self.open: Bars | None = None

    def append(self, events: Bars) -> None:
        """Add events in order of time; the part of an event that overlaps the stored events is cut off."""
        if self.events.used and events.shape[1]:
            reached = self.events.bars[T1, -1]
            if events[T0, 0] < reached:
                events = events[:, events[T1] > reached].copy()
                np.maximum(events[T0], reached, out=events[T0])
        size = self._coarse // 4 if self._coarse else events.shape[1] or 1
        for begin in range(0, events.shape[1], size):
            self.events.append(events[:, begin : begin + size])
            self._raise()

    def _raise(self) -> None:
        """Merge the new bars of each level into the next level, except bars in the last interval, which may get more.

        The intervals have the length of the next level's resolution.
        """
        for depth, resolution in enumerate(RESOLUTIONS):
            level = self.levels[depth]
            if level.first + level.used - level.merged < TAIL:
                return
            if depth + 1 == len(self.levels):
                self.levels.append(Level(6, self._coarse and min(self._coarse, max(FEWEST, FULL_AFTER // resolution))))
            whole = int(np.searchsorted(level.bars[T0], level.bars[T0, -1] // resolution * resolution)) + level.first
            for begin in range(level.merged, whole, CHUNK):
                self.levels[depth + 1].append(merge(level.since(begin, min(whole, begin + CHUNK)), resolution))
            level.merged = whole

    def has(self, number: int) -> bool:
        """Return whether the event with a number is stored."""
        return self.events.first <= number < self.events.first + self.events.used

    def number_at(self, t0: int) -> int:
        """Return the number of the event that begins at a time (ns, of which the last digit may differ), or -1."""
        at = int(np.searchsorted(self.events.bars[T0], t0 - 1))
        return self.events.first + at if at < self.events.used and self.events.bars[T0, at] <= t0 + 1 else -1

    def _fine(self, resolution: int) -> int:
        """Return the number of the coarsest level whose bars are merged no further than `resolution` (ns)."""
        return sum(each <= resolution for each in RESOLUTIONS[: len(self.levels) - 1])

    def since(self, resolution: int) -> int:
        """Return the time (ns) since which the row has bars fine enough for a resolution (ns); 0 if it has all."""
        return min(level.begins for level in self.levels[: self._fine(resolution) + 1])

    def window(self, t0: int, t1: int, resolution: int) -> Bars:
        """Return the bars, shape (6, n), between two times (ns), merged where they are shorter than `resolution`."""
        found: list[Bars] = []
        fine = self._fine(resolution)
        while fine and self.levels[fine].begins > max(t0, self.levels[fine - 1].begins):
            fine -= 1  # a finer level goes back further
        older, until = fine, t1
        while True:  # where events have been dropped, coarser levels still have them
            level = self.levels[older]
            first, last = level.numbers(t0, until)
            found.insert(0, level.since(first, last).copy())
            if first > level.first or level.whole or older + 1 == len(self.levels):
                break
            older, until = older + 1, min(until, int(level.bars[T0, 0]))
        for bars, after in pairwise(found):
            np.minimum(bars[T1], after[T0, 0] if len(after[0]) else t1, out=bars[T1])
        for depth in range(fine, 0, -1):  # bars not merged yet
            level = self.levels[depth - 1]
            first, last = level.numbers(t0, t1)
            found.append(level.since(max(first, level.merged), max(last, level.merged)))
        if self.open is not None and self.open[T0, 0] < t1 and self.open[T1, 0] > t0:
            going = self.open[:, 0]
            found.append(np.array([[*going[:3].tolist(), 1, -1, int(going[T1] - going[T0])]], np.int64).T)
        bars = np.concatenate(found, axis=1)
        return merge(bars, resolution) if resolution > 1 else bars


def flat(events: Bars) -> tuple[Bars, Bars, Ints | None]:
    """Sort events by time and separate those that lie inside others.

    Returns:
        The events that do not overlap, the events inside others, and the indices in `events` of those that do not
        overlap. Instead of the indices, None if no event lies inside another and all are in order.
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
