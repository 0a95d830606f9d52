"""First-fit and best-fit packings: blocks are placed one by one in holes between those already placed."""

from __future__ import annotations

from bisect import bisect_left, insort
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb_telemetry.schema import Ints

    from flnb.memory_lab.packing.problem import Problem

SLICE = 64
"""About how many blocks begin in one slice of time."""

CELLS = 1 << 23
"""The most entries of the table of slices."""

ABOVE = 1 << 62


def orders(problem: Problem) -> Iterator[Ints]:
    """Yield orders in which to place blocks: by size x lifetime, by size, by lifetime (largest first), and by birth."""
    lifetime, nbytes = problem.end - problem.begin, problem.nbytes
    for keys in (nbytes * lifetime, nbytes), (nbytes, lifetime), (lifetime, nbytes), (-problem.begin, nbytes):
        yield np.lexsort([-key for key in reversed(keys)])


def swept(problem: Problem) -> Ints:
    """Return offsets by online best fit: blocks in order of birth, each in the smallest free hole.

    This is the quickest method. A memory manager with one segment that merges free neighbours does the same.
    """
    nbytes = problem.nbytes.tolist()
    offsets = [0] * len(nbytes)
    holes: list[tuple[int, int]] = []  # (size, offset), sorted
    size_at: dict[int, int] = {}  # of the hole that begins at an offset
    begin_of: dict[int, int] = {}  # of the hole that ends there
    height = 0

    def drop(begin: int, size: int) -> None:
        del holes[bisect_left(holes, (size, begin))], size_at[begin], begin_of[begin + size]

    def keep(begin: int, size: int) -> None:
        insort(holes, (size, begin))
        size_at[begin], begin_of[begin + size] = size, begin

    births = np.argsort(problem.begin, kind="stable").tolist()
    deaths = np.argsort(problem.end, kind="stable").tolist()
    begin, end, died = problem.begin.tolist(), problem.end.tolist(), 0
    for block in births:
        while end[deaths[died]] <= begin[block]:
            gone = deaths[died]
            at, room = offsets[gone], nbytes[gone]
            died += 1
            if at + room in size_at:
                right = size_at[at + room]
                drop(at + room, right)
                room += right
            if at in begin_of:
                left = begin_of[at]
                drop(left, at - left)
                at, room = left, room + at - left
            keep(at, room)
        size = nbytes[block]
        index = bisect_left(holes, (size,))
        if index < len(holes):
            room, at = holes[index]
            drop(at, room)
            if room > size:
                keep(at + size, room - size)
        else:  # at the top, in the hole below the top if there is one
            at = begin_of.get(height, height)
            if at < height:
                drop(at, height - at)
            height = at + size
        offsets[block] = at
    return np.array(offsets, np.int64)


def fitted(problem: Problem, order: Ints, tight: bool, deadline: float) -> Ints | None:
    """Return offsets found by first fit, or by best fit if ``tight``; None if the deadline came first.

    Args:
        problem: the blocks.
        order: int64 (n,), the order in which blocks are placed.
        tight: whether to take the smallest hole that is large enough instead of the lowest.
        deadline: a time of `time.monotonic` (s) at which to give up.
    """
    by_birth = np.argsort(problem.begin, kind="stable")
    begin, end, nbytes = problem.begin[by_birth], problem.end[by_birth], problem.nbytes[by_birth]
    turn = np.empty_like(by_birth)
    turn[by_birth] = np.arange(len(turn))
    turn = turn[order]
    bottom, top = np.zeros(len(begin), np.int64), np.zeros(len(begin), np.int64)
    slices = _Slices(begin, end)
    for row, born, died, size in zip(
        turn.tolist(), begin[turn].tolist(), end[turn].tolist(), nbytes[turn].tolist(), strict=True
    ):
        if monotonic() > deadline:
            return None
        near = slices.near(born, died)
        near = near[(begin[near] < died) & (end[near] > born)]
        bottoms, tops = bottom[near], top[near]
        upwards = np.argsort(bottoms)
        above = np.append(bottoms[upwards], ABOVE)
        below = np.zeros_like(above)
        np.maximum.accumulate(tops[upwards], out=below[1:])
        holes = above - below
        if tight:
            holes[holes < size] = ABOVE
            hole = int(holes.argmin())
        else:
            hole = int((holes >= size).argmax())
        bottom[row] = at = int(below[hole])
        top[row] = at + size
        slices.add(row, born, died)
    offsets = np.empty_like(bottom)
    offsets[by_birth] = bottom
    return offsets


class _Slices:
    """The blocks placed so far, indexed by slices of time, to find those that live in an interval.

    Args:
        begin, end: int64 (n,), the lifetimes of all blocks, in order of ``begin``.
    """

    def __init__(self, begin: Ints, end: Ints) -> None:
        wanted = max(1, len(begin) // SLICE)
        while True:
            self.width = -(-int(end.max()) // wanted)
            first, last = begin // self.width, (end - 1) // self.width
            count = int(last.max()) + 1
            inside = np.cumsum(np.bincount(first, minlength=count + 1) - np.bincount(last + 1, minlength=count + 1))
            if wanted == 1 or count * int(inside.max()) <= CELLS:
                break
            wanted //= 2
        self.table, self.used = np.zeros((count, int(inside.max())), np.int64), np.zeros(count, np.int64)
        self.placed = np.zeros(len(begin), np.bool_)
        self.born_before = np.searchsorted(begin, np.arange(int(end.max()) + 1)).tolist()

    def add(self, row: int, born: int, died: int) -> None:
        """Add the placed block number ``row``, which lives in the time [born, died)."""
        first, last = born // self.width, (died - 1) // self.width + 1
        if last - first == 1:
            self.table[first, self.used[first]] = row
        else:
            self.table[np.arange(first, last), self.used[first:last]] = row
        self.used[first:last] += 1
        self.placed[row] = True

    def near(self, born: int, died: int) -> Ints:
        """Return all placed blocks whose lifetimes overlap [born, died), and perhaps some others."""
        first = born // self.width
        here = self.table[first, : self.used[first]]
        later = (first + 1) * self.width
        if later >= died:
            return here
        begin = self.born_before[later]
        return np.concatenate([here, np.flatnonzero(self.placed[begin : self.born_before[died]]) + begin])
