"""The newest records of a run, as many as are needed, in memory that is allocated once and used again."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from flnb_telemetry import schema

if TYPE_CHECKING:
    from flnb_telemetry.schema import Batches, Records

SMALLEST = 1 << 15
"""The number of records for which memory is allocated at first."""


class Ring:
    """Stores the newest records, at most `most`; records that `drop` declares old are overwritten first.

    If the memory is full and none of its records is old, its size is doubled, up to `most` records. There is one array
    for all records, because many arrays that live for seconds, between others that live for milliseconds, would leave
    holes in the memory of the process.

    Args:
        most: the largest number of records.

    >>> ring = Ring(3)
    >>> ring.append(1, np.arange(32).reshape(4, 8))
    >>> [(lane, rows[:, 0].tolist()) for lane, rows in ring.batches()]
    [(1, [8, 16, 24])]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = np.empty((0, schema.WORDS), np.int64)
        self._parts: deque[tuple[int, int, int]] = deque()  # lane, and the numbers of its first record and the next one
        self._next = 0  # the number of the next record: it is stored at this number modulo the length

    @property
    def nbytes(self) -> int:
        """The number of bytes that are allocated."""
        return self._data.nbytes

    @property
    def _first(self) -> int:
        """The number of the oldest record that is stored."""
        return max(self._parts[0][1], self._next - len(self._data)) if self._parts else self._next

    def append(self, lane: int, rows: Records) -> None:
        """Store the next records of the thread with the number `lane`; the oldest ones are overwritten."""
        rows = rows[-self._most :]
        self._reserve(self._next - self._first + len(rows))
        while len(rows):
            at = self._next % len(self._data)
            part = rows[: len(self._data) - at]
            rows = rows[len(part) :]
            self._data[at : at + len(part)] = part
            first, self._next = self._next, self._next + len(part)
            if at and self._parts and self._parts[-1][0] == lane and first - self._parts[-1][1] < schema.BLOCK:
                first = self._parts.pop()[1]  # of a slow program there would be many short ones
            self._parts.append((lane, first, self._next))
        while self._parts and self._parts[0][2] <= self._next - len(self._data):
            self._parts.popleft()

    def _reserve(self, count: int) -> None:
        """Enlarge the memory so that `count` records fit, but not beyond `most`."""
        if count <= len(self._data) or len(self._data) == self._most:
            return
        size = max(len(self._data), SMALLEST)
        while size < count:
            size *= 2
        batches, self._parts = self.batches(), deque()
        self._data, self._next = np.empty((min(size, self._most), schema.WORDS), np.int64), 0
        for lane, rows in batches:
            self.append(lane, rows)

    def drop(self, time: int) -> None:
        """Declare the oldest batches old: those whose last record was made before a time (ns)."""
        while self._parts and self._data[(self._parts[0][2] - 1) % len(self._data), 1] < time:
            self._parts.popleft()

    def batches(self) -> Batches:
        """Return the stored records in the order of `append`, in batches; these are valid until the next `append`."""
        size, oldest = len(self._data), self._next - len(self._data)
        return [
            (lane, self._data[max(first, oldest) % size : (until - 1) % size + 1]) for lane, first, until in self._parts
        ]
