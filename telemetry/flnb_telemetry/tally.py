"""Op statistics updated batch by batch: constant work per event, regardless of the run's length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.schema import Ints

PER_OCTAVE = 16
BUCKETS = 40 * PER_OCTAVE
WORST = 2 ** (0.5 / PER_OCTAVE) - 1
"""The largest relative error of `Tally.p99` while a program runs: half a bucket, 2.2 %."""
CHUNK = 1 << 17
"""The number of events that are processed at once, so that their columns fit into a processor's cache."""


def buckets(spent: Ints) -> Ints:
    """Return the histogram bucket of each duration (ns): 16 buckets for each factor of two, up to 18 minutes."""
    scaled = np.log2(np.maximum(spent, 1).astype(np.float32)) * np.float32(PER_OCTAVE)
    return np.minimum(scaled, BUCKETS - 1).astype(np.int64)


class Tally:
    """Statistics by name (string id): count, total and maximum time (ns), bytes, and a histogram of durations.

    Args:
        most: the largest number of names. If there are more, those with the least total time are added up, until half
            as many are left; None for no limit.
        others: the name (string id) under which they are added up.

    Attributes:
        settled: the exact 99th percentile (ns) of each name; None before `settle`.
    """

    def __init__(self, most: int | None = None, others: int = 0) -> None:
        self._most, self._others = most, others
        self.name = np.empty(0, np.int64)
        self.count, self.total, self.max, self.bytes = np.empty((4, 0), np.int64)
        self._histogram = np.empty((0, BUCKETS), np.int64)
        self.settled: Ints | None = None

    def add(self, names: Ints, spent: Ints, bucket: Ints, nbytes: Ints) -> None:
        """Add events, each given by name (string id), duration (ns), duration bucket and output bytes."""
        slot_of = np.full(max(names.max(initial=0), self.name.max(initial=0)) + 1, -1)
        slot_of[self.name] = np.arange(len(self.name))
        if len(fresh := np.unique(names[slot_of[names] < 0])):
            slot_of[fresh] = len(self.name) + np.arange(len(fresh))
            self.name = np.append(self.name, fresh)
            columns = np.array([self.count, self.total, self.max, self.bytes])
            self.count, self.total, self.max, self.bytes = np.pad(columns, ((0, 0), (0, len(fresh))))
            self._histogram = np.pad(self._histogram, ((0, len(fresh)), (0, 0)))
        slot, n = slot_of[names], len(self.name)
        self.count += np.bincount(slot, minlength=n)
        self.total += np.bincount(slot, spent, n).astype(np.int64)
        self.bytes = np.minimum(self.bytes + np.bincount(slot, nbytes, n), 2.0**62).astype(np.int64)
        np.maximum.at(self.max, slot, spent)
        self._histogram += np.bincount(slot * BUCKETS + bucket, minlength=n * BUCKETS).reshape(n, BUCKETS)
        if self._most is not None and n > self._most:
            self._join(self._most // 2)

    def _join(self, count: int) -> None:
        """Add up all names but the `count` with the largest total times under the name `others`."""
        rank = np.argsort(np.where(self.name == self._others, -1, self.total), kind="stable")
        rest, large = rank[:-count], np.sort(rank[-count:])
        self.name = np.append(self.name[large], self._others)
        for column in ("count", "total", "bytes", "_histogram"):
            whole = getattr(self, column)
            total = np.minimum(whole[rest].sum(0, float, keepdims=True), 2.0**62).astype(np.int64)
            setattr(self, column, np.concatenate([whole[large], total]))
        self.max = np.append(self.max[large], self.max[rest].max())

    def columns(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the table as columns, whose names begin with ``prefix`` and a dot; empty columns are left out."""
        found = {name: getattr(self, name) for name in ("name", "count", "total", "max", "bytes")} | {"p99": self.p99()}
        return {f"{prefix}.{name}": column for name, column in found.items() if len(column)}

    def p99(self) -> NDArray[Any]:
        """Return for each name the duration (ns) that 99 % of its events do not exceed.

        The result is exact for fewer than 100 events, where it is the duration of the longest event, and after
        `settle`. Otherwise the relative error is up to `WORST`.
        """
        if self.settled is not None:
            return self.settled
        needed, at = self._ninety_nine()
        return np.where(needed == self.count, self.max, np.minimum(2.0 ** ((at + 0.5) / PER_OCTAVE), self.max))

    def _ninety_nine(self) -> tuple[Ints, Ints]:
        """Return for each name the rank (from 1) and the bucket of the event whose duration is the 99th percentile."""
        needed = -(-99 * self.count // 100)
        return needed, (np.cumsum(self._histogram, axis=1) < needed[:, None]).sum(axis=1)

    def settle(self, names: NDArray[Any], spent: Ints) -> None:
        """Make `p99` exact from all events that were added, each given by name (string id) and duration (ns)."""
        needed, at = self._ninety_nine()
        slot_of = np.zeros(self.name.max(initial=0) + 1, np.int64)
        slot_of[self.name] = np.arange(len(self.name))
        found = [np.empty(0, np.int64)]
        for first in range(0, len(names), CHUNK):
            part = slice(first, first + CHUNK)
            found.append(first + np.flatnonzero(buckets(spent[part]) == at[slot_of[names[part]]]))
        rows = np.concatenate(found)
        slot, spent = slot_of[names[rows]], spent[rows]
        order = np.lexsort((spent, slot))
        below = np.where(np.arange(BUCKETS) < at[:, None], self._histogram, 0).sum(axis=1)
        begin = np.searchsorted(slot[order], np.arange(len(self.name)))
        self.settled = spent[order][begin + needed - below - 1]
