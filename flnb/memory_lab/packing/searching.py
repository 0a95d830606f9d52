"""Packing lifetimes into a given height by branch and bound, from the bottom up.

As in MiniMalloc (Moffitt 2023, ASPLOS) only such packings are searched in which every block lies at the bottom or on
another, and what no open block connects any more is solved on its own. What is decided differs: not which block comes
next, but what lies lowest in one section of time. That is one of the blocks which could lie there, or a gap up to where
the next could, so that no packing is met twice. The section is one of the lowest; of these, that with the fewest
choices, which counts less in sections where branches ended before (the weights of Boussemart et al. 2004, ECAI).

A branch ends where a section's open blocks, put on each other in the order of how low they can lie, do not fit.
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

__all__ = ["HIGHEST", "search"]

BITS = 12
NUMBER = (1 << BITS) - 1
"""So many bits hold the number of a block, beside an offset in one integer."""

PLACED = 1 << 50
"""The lowest offset of a block that has its place: above all others, whatever is placed."""

HIGHEST = PLACED >> 1
"""The most that a capacity may be."""

NODES = 100
"""How many each of the first attempts may take, which is seldom enough, but finds sections that matter."""

ATTEMPTS = (("W", False), ("WA", False), ("W", True), ("TW", False), ("TA", True))
"""Which block is tried first: W the one that lives longest, A that with the largest size x lifetime, T that which is
there when most bytes are; and whether the section must be one of the first such block's. Attempts take turns."""

Span: TypeAlias = "tuple[int, int]"
"""Sections [begin, end)."""

Answer: TypeAlias = "Generator[Answer, bool | None, bool]"
"""Gives what it waits for; returns whether there is a solution."""


def search(problem: Problem, capacity: int, seconds: float) -> Ints | None:
    """Offsets of at most 4,000 blocks within the capacity (at most `HIGHEST`), None where there are none.

    Raises:
        TimeoutError: the time was too short to tell.
    """
    deadline, nodes = monotonic() + seconds, NODES
    attempts = [_Search(problem, capacity, deadline, *attempt) for attempt in ATTEMPTS]
    while True:
        for attempt in attempts:
            try:
                return attempt.offsets_found(nodes)
            except _Spent:
                if monotonic() > deadline:
                    raise TimeoutError(f"no packing into {capacity} was found or excluded in {seconds} s") from None
        nodes *= 2


class _Spent(Exception):
    """The nodes or the time are."""


class _State(NamedTuple):
    """What is placed so far.

    Attributes:
        low: how low each block can lie, `PLACED` for those that have their place; last an entry for none.
        floor: of each section, how low its lowest open block can lie.
        ways: how many blocks can lie so low.
        need: bytes of its open blocks.
        crossing: open blocks that live on both sides of a section's begin.
    """

    low: Ints
    floor: Ints
    ways: Ints
    need: Ints
    crossing: Ints


class _Search:
    """A way to search. Blocks are numbered in the order in which they are tried."""

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
        """As `search`."""
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
        """Whether the open blocks of a part can be placed; where no block crosses from one section to the next, the
        sides have nothing to do with each other any more."""
        begin, end = part
        cuts = np.flatnonzero(state.crossing[begin + 1 : end] == 0) + begin + 1
        for span in pairwise([begin, *cuts.tolist(), end]):
            if state.need[slice(*span)].any() and not (yield self.place(state, span)):
                return False
        return True

    def place(self, state: _State, part: Span) -> Answer:
        """Whether all blocks not placed yet can be placed, in a part of the problem that does not split further."""
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
        if (state.low[self.overlaps[int(lowest[0])]] < PLACED).sum() == 1:  # nothing else: it does no better higher up
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
        """Where to decide, how low the lowest block can lie there, and how much of the section can stay empty."""
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
        """The state with one block more, None where the others do not fit any more."""
        over, top, low = self.overlaps[block], offset + int(self.nbytes[block]), state.low.copy()
        lifted = over[low[over] < top]
        low[lifted] = top
        low[block] = PLACED
        after = self.looked_at(state, low, lifted)
        if after is not None:
            after.crossing[self.begin[block] + 1 : self.end[block]] -= 1
        return after

    def looked_at(self, state: _State, low: Ints, changed: Ints) -> _State | None:
        """The state in which some blocks can lie only as low as this, None where they do not fit any more."""
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
