"""Packing lifetimes into a given height by branch and bound, after MiniMalloc (Moffitt 2023, ASPLOS).

What is searched: canonical solutions alone, in which blocks are placed by rising offset, each as low as what was
placed before lets it lie. What cuts a branch off: a section of time whose lowest open block, with all that is still
to lie above it, does not fit; a gap that an open block would fill. What is solved on its own: parts that no open
block connects any more.
"""

from __future__ import annotations

from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator

    from flnb_telemetry.schema import Ints

    from flnb.memory.packing.problem import Problem

__all__ = ["search"]

PLACED = 1 << 61
"""The lowest offset of a block that has its place: above all others, whatever is placed."""

ORDERS = ("WAT", "TAW", "TWA")
"""Which of the blocks at one offset is tried first: W the one that lives longest, A that with the largest size x
lifetime, T that which is there when most bytes are. The orders take turns, each with twice the nodes of its last."""

Span: TypeAlias = "tuple[int, int]"
"""Sections [begin, end)."""

Place: TypeAlias = "tuple[int, int]"
"""The offset and the number of the block that was placed last."""

Answer: TypeAlias = "Generator[Answer, bool | None, bool]"
"""Gives what it waits for; returns whether there is a solution."""


def search(problem: Problem, capacity: int, seconds: float) -> Ints | None:
    """Offsets within the capacity, None where there are none.

    Raises:
        TimeoutError: the time was too short to tell.
    """
    deadline, nodes = monotonic() + seconds, 2 * len(problem.nbytes)
    while True:
        nodes *= 2
        for order in ORDERS:
            tried = _Search(problem, capacity, order, nodes, deadline)
            try:
                return tried.offsets_found()
            except _Spent:
                if monotonic() > deadline:
                    raise TimeoutError(f"no packing into {capacity} was found or excluded in {seconds} s") from None


class _Spent(Exception):
    """The nodes or the time are."""


class _Search:
    """One search in one order of preference. Blocks are numbered in this order."""

    def __init__(self, problem: Problem, capacity: int, order: str, nodes: int, deadline: float) -> None:
        self.rank = rank = np.lexsort([-_key(problem, letter) for letter in reversed(order)])
        self.begin, self.end, self.nbytes = begin, end, _ = problem.begin[rank], problem.end[rank], problem.nbytes[rank]
        self.live, self.capacity, self.nodes, self.deadline = problem.live, capacity, nodes, deadline
        self.overlaps = [np.flatnonzero((begin < end[i]) & (end > begin[i])) for i in range(len(rank))]
        inside = [np.flatnonzero((begin <= s) & (end > s)) for s in range(problem.sections)]
        self.members = np.concatenate(inside)
        self.first = np.cumsum([0, *map(len, inside)])
        self.offsets = np.zeros(len(rank), np.int64)

    def offsets_found(self) -> Ints | None:
        """As `search`."""
        sections = len(self.live)
        crossing = np.zeros(sections + 1, np.int64)  # blocks that live on both sides of a section's begin
        np.add.at(crossing, self.begin + 1, 1)
        np.subtract.at(crossing, self.end, 1)
        low = np.zeros(len(self.rank), np.int64)
        everything = np.arange(len(self.rank))
        if not _result(self.parts(everything, low, self.live, np.cumsum(crossing), (0, sections), (0, -1))):
            return None
        found = np.empty_like(self.offsets)
        found[self.rank] = self.offsets
        return found

    def parts(self, open_: Ints, low: Ints, total: Ints, crossing: Ints, part: Span, last: Place) -> Answer:
        """Whether the open blocks of a part can be placed; where no block crosses from one section to the next, the
        sides have nothing to do with each other any more."""
        begin, end = part
        cuts = np.flatnonzero(crossing[begin + 1 : end] == 0) + begin + 1
        if not len(cuts):
            return bool((yield self.place(open_, low, total, crossing, part, last)))
        for span in pairwise([begin, *cuts.tolist(), end]):
            inside = open_[(self.begin[open_] >= span[0]) & (self.begin[open_] < span[1])]
            if len(inside) and not (yield self.place(inside, low, total, crossing, span, last)):
                return False
        return True

    def place(self, open_: Ints, low: Ints, total: Ints, crossing: Ints, part: Span, last: Place) -> Answer:
        """Whether the open blocks of a part that cannot be taken apart can be placed, each after the last."""
        self.nodes -= 1
        if self.nodes < 0 or monotonic() > self.deadline:
            raise _Spent
        lows = low[open_]
        fits = lows < (lows + self.nbytes[open_]).min()  # no open block could lie wholly below: that would be a gap
        order = np.lexsort((open_[fits], lows[fits]))
        begin, end = part
        first, members = self.first[begin:end] - self.first[begin], self.members[self.first[begin] : self.first[end]]
        for block, offset in zip(open_[fits][order].tolist(), lows[fits][order].tolist(), strict=True):
            size, born, died = int(self.nbytes[block]), int(self.begin[block]), int(self.end[block])
            if (offset, block) < last or offset + size > self.capacity:
                continue
            over, later, left = self.overlaps[block], low.copy(), total.copy()
            later[over] = np.maximum(later[over], offset + size)
            later[block] = PLACED
            left[born:died] -= size
            floor = np.maximum(np.minimum.reduceat(later[members], first), offset)
            if (np.minimum(floor, self.capacity) + left[begin:end]).max() > self.capacity:
                continue
            self.offsets[block] = offset
            rest = open_[open_ != block]
            if not len(rest):
                return True
            beside = crossing.copy()
            beside[born + 1 : died] -= 1
            if (yield self.parts(rest, later, left, beside, part, (offset, block))):
                return True
            if (later[over] == PLACED).all():  # nothing lies above it: another in its place does no better
                break
        return False


def _key(problem: Problem, letter: str) -> Ints:
    lifetime = problem.end - problem.begin
    if letter == "W":
        return lifetime
    if letter == "A":
        return lifetime * problem.nbytes
    live = problem.live
    return np.array([live[a:b].max() for a, b in zip(problem.begin, problem.end, strict=True)])


def _result(first: Answer) -> bool:
    """Run generators that wait for what others return, which is a recursion of any depth."""
    waiting: list[Answer] = [first]
    value: bool | None = None
    while waiting:
        try:
            waiting.append(waiting[-1].send(value))
            value = None
        except StopIteration as stop:
            waiting.pop()
            value = stop.value
    return bool(value)
