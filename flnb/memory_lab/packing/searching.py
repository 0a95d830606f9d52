"""Packing of lifetimes into a given height by branch and bound, from the bottom up.

An *open* block is a block without a place yet. As in MiniMalloc (Moffitt 2023, ASPLOS), every block is placed at the
bottom or on another block, and two ranges of time are solved separately if no open block is live in both.

Each decision concerns one section of time, at its lowest free offset: which open block is placed there, or whether the
space up to the next possible offset stays empty. So no packing is tried twice. Among the sections with the lowest free
offset, the next decision is for the section with the fewest choices; the number of choices is divided by a weight,
which grows whenever a branch ends in the section (Boussemart et al. 2004, ECAI). A branch ends if the open blocks of a
section do not fit when stacked in the order of their lowest possible offsets.
"""

from __future__ import annotations

from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Generator

    from flnb_telemetry.schema import Ints

    from flnb.memory_lab.packing.problem import Problem

BITS = 12
NUMBER = (1 << BITS) - 1
"""The mask of the low bits of an integer that contain a block's number; the bits above contain the block's offset."""

PLACED = 1 << 50
"""Stored in place of the lowest offset of a placed block; larger than any real offset."""

HIGHEST = PLACED >> 1
"""The largest capacity that can be searched."""

NODES = 100
"""The number of search nodes of each first attempt; later attempts use its counts of how hard sections are."""

ATTEMPTS = (("W", False), ("WA", False), ("W", True), ("TW", False), ("TA", True))
"""Attempts, which alternate. Letters are keys by which blocks are ordered (W: lifetime, A: size x lifetime, T: the most
bytes live during the block's lifetime). The flag is the argument ``block_first`` of `_Search`."""

Span: TypeAlias = "tuple[int, int]"
"""A range [begin, end) of sections of time."""

Answer: TypeAlias = "Generator[Answer, bool | None, bool]"
"""A recursive function written as a generator: it yields recursive calls, and returns whether there is a solution."""


def search(problem: Problem, capacity: int, seconds: float) -> Ints | None:
    """Return offsets with which all blocks fit the capacity; None if it is proved that none exist.

    Args:
        problem: the blocks, at most 4,000.
        capacity: the height available, at most `HIGHEST`, in the unit of the blocks' sizes.
        seconds: the time limit.

    Raises:
        TimeoutError: there was no result within the time limit.
    """
    deadline, nodes = monotonic() + seconds, NODES
    attempts = [_Search(problem, capacity, deadline, *attempt) for attempt in ATTEMPTS]
    while True:
        for attempt in attempts:
            try:
                return attempt.offsets_found(nodes)
            except _Spent:
                if monotonic() > deadline:
                    raise TimeoutError(f"no packing of height {capacity} found or ruled out in {seconds} s") from None
        nodes *= 2


class _Spent(Exception):
    """Raised when a search attempt has used up its nodes or time."""


class _State(NamedTuple):
    """A node of the search tree; open blocks are those not placed yet.

    Attributes:
        low: for each block the lowest offset that it can have, `PLACED` for placed ones; one more entry for "no block".
        floor: for each section the lowest offset that any of its open blocks can have.
        ways: for each section the number of its open blocks that can be at the offset ``floor``.
        need: for each section the sum of the bytes of its open blocks.
        crossing: for each section the number of open blocks that live both in it and in the section before.
    """

    low: Ints
    floor: Ints
    ways: Ints
    need: Ints
    crossing: Ints


class _Search:
    """One search with a fixed order of blocks, which are numbered in that order.

    Args:
        order: the keys by which blocks are ordered, as letters of `ATTEMPTS`.
        block_first: which sections, of those with the lowest free offset, may be decided next. If true, those in which
            the first block that can be at this offset lives; if false, all of them.
    """

    def __init__(self, problem: Problem, capacity: int, deadline: float, order: str, block_first: bool) -> None:
        self.rank = rank = np.lexsort([-_key(problem, letter) for letter in reversed(order)])
        begin, end, nbytes = (np.append(column[rank], 0) for column in (problem.begin, problem.end, problem.nbytes))
        self.begin, self.end, self.nbytes, self.numbers = begin, end, nbytes, np.arange(len(nbytes))
        self.live, self.capacity, self.deadline, self.block_first = problem.live, capacity, deadline, block_first
        self.overlaps = [np.flatnonzero((begin < end[i]) & (end > begin[i])) for i in range(len(rank))]
        inside = [np.flatnonzero((begin <= s) & (end > s)) for s in range(problem.sections)]
        self.members = np.full((len(inside), max(map(len, inside), default=0)), len(rank))
        for row, blocks in zip(self.members, inside, strict=True):
            row[: len(blocks)] = blocks
        self.like = [row.tobytes() for row in np.column_stack((begin, end, nbytes))]  # equal for blocks that are
        self.weight = np.ones(len(inside))
        self.offsets = np.zeros(len(rank), np.int64)

    def offsets_found(self, nodes: int) -> Ints | None:
        """Search within a limit of ``nodes`` search nodes; see `search`."""
        self.nodes = nodes
        sections = len(self.live)
        low = np.zeros(len(self.begin), np.int64)
        low[-1] = PLACED
        crossing = np.zeros(sections + 1, np.int64)
        np.add.at(crossing, self.begin[:-1] + 1, 1)
        np.subtract.at(crossing, self.end[:-1], 1)
        unknown = np.zeros(sections, np.int64)
        start = self.looked_at(_State(low, unknown, unknown, self.live, np.cumsum(crossing)), low, np.arange(len(low)))
        if start is None or not _result(self.parts(start, (0, sections))):
            return None
        found = np.empty_like(self.offsets)
        found[self.rank] = self.offsets
        return found

    def parts(self, state: _State, part: Span) -> Answer:
        """Place the open blocks of the sections ``part`` (first, last + 1); return whether that is possible.

        Open blocks are those not placed in ``state``, the node of the search tree. Ranges of sections that share no
        open block are solved separately.
        """
        begin, end = part
        cuts = np.flatnonzero(state.crossing[begin + 1 : end] == 0) + begin + 1
        for span in pairwise([begin, *cuts.tolist(), end]):
            if state.need[slice(*span)].any() and not (yield self.place(state, span)):
                return False
        return True

    def place(self, state: _State, part: Span) -> Answer:
        """Place the open blocks of the sections ``part``, which cannot be divided; return whether that is possible."""
        self.nodes -= 1
        if self.nodes < 0 or monotonic() > self.deadline:
            raise _Spent
        section, bottom, spare = self.section(state, part)
        inside = self.members[section]
        lows = state.low[inside]
        lowest = inside[lows == bottom]
        for block in {self.like[block]: block for block in lowest.tolist()}.values():
            self.offsets[block] = bottom
            after = self.put(state, block, bottom)
            if after is not None and (yield self.parts(after, part)):
                return True
        open_there = state.low[self.overlaps[int(lowest[0])]] < PLACED
        if open_there.sum() == 1:  # the block alone, which does no better higher up
            return False
        beneath = np.concatenate([self.overlaps[block] for block in lowest.tolist()])
        beneath = beneath[(self.begin[beneath] > section) | (self.end[beneath] <= section)]
        least = int((state.low[beneath] + self.nbytes[beneath]).min(initial=lows[lows > bottom].min(initial=PLACED)))
        if least - bottom > spare:
            return False
        low = state.low.copy()
        low[lowest] = least
        higher = self.looked_at(state, low, lowest)
        return higher is not None and bool((yield self.place(higher, part)))

    def section(self, state: _State, part: Span) -> tuple[int, int, int]:
        """Return the section of ``part`` to decide next, its lowest offset, and how many bytes may stay empty in it."""
        begin, end = part
        floor = state.floor[begin:end]
        bottom = int(floor.min())
        if self.block_first:
            lowest = np.flatnonzero(state.low == bottom)
            block = lowest[((self.begin[lowest] >= begin) & (self.begin[lowest] < end)).argmax()]
            sections = np.arange(self.begin[block], self.end[block])
        else:
            sections = np.flatnonzero(floor == bottom) + begin
        spare = self.capacity - bottom - state.need[sections]
        chosen = int(((state.ways[sections] + (spare > 0)) / self.weight[sections]).argmin())
        return int(sections[chosen]), bottom, int(spare[chosen])

    def put(self, state: _State, block: int, offset: int) -> _State | None:
        """Return the state after placing an open block at an offset; None if the other open blocks no longer fit."""
        over, top, low = self.overlaps[block], offset + int(self.nbytes[block]), state.low.copy()
        lifted = over[low[over] < top]
        low[lifted] = top
        low[block] = PLACED
        after = self.looked_at(state, low, lifted)
        if after is not None:
            after.crossing[self.begin[block] + 1 : self.end[block]] -= 1
        return after

    def looked_at(self, state: _State, low: Ints, changed: Ints) -> _State | None:
        """Return the state with lowest offsets ``low`` of the ``changed`` blocks; None if open blocks no longer fit."""
        where = slice(int(self.begin[changed].min()), int(self.end[changed].max()))
        upwards = (low << BITS | self.numbers)[self.members[where]]
        upwards.sort(1)
        lows = upwards >> BITS
        nbytes = np.where(low < PLACED, self.nbytes, 0)[upwards & NUMBER]
        need = nbytes[:, ::-1].cumsum(1)[:, ::-1]  # of each block and all that come after it
        full = (need > np.maximum(self.capacity - lows, 0)).any(1)
        if full.any():
            self.weight[where][full] += 1
            return None
        floor, ways, rest = state.floor.copy(), state.ways.copy(), state.need.copy()
        floor[where], ways[where], rest[where] = lows[:, 0], (lows == lows[:, :1]).sum(1), need[:, 0]
        return _State(low, floor, ways, rest, state.crossing.copy())


def _key(problem: Problem, letter: str) -> Ints:
    """Return the key of each block by which a letter of `ATTEMPTS` sorts the blocks."""
    lifetime = problem.end - problem.begin
    if letter == "W":
        return lifetime
    if letter == "A":
        return lifetime * problem.nbytes
    live = problem.live
    return np.array([live[a:b].max() for a, b in zip(problem.begin, problem.end, strict=True)])


def _result(first: Answer) -> bool:
    """Run a recursive search and return its result.

    The search consists of generators; each yields the generator of a sub-problem and receives the result. So the depth
    is not limited by Python's recursion limit.
    """
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
