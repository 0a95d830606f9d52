"""Offline packing: finds offsets for allocations of known lifetimes in as little contiguous memory as possible.

The problem is dynamic storage allocation, as in MiniMalloc (Moffitt 2023, ASPLOS) and TelaMalloc (Maas et al. 2022,
ASPLOS). Blocks that are live all the time are placed at the bottom. The others are divided into parts; blocks of
different parts are never live at the same time. Each part is packed independently, by first fit and best fit in several
orders. If the packing of a part is higher than the lower bound, a search follows for small parts
(`flnb.memory_lab.packing.searching`), and random changes of the order for large parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import product
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import quantity
from flnb_telemetry.quantity import bytes_of

from flnb.interface.memory import ALIGNMENT
from flnb.memory_lab.packing.first_fit import fitted, orders, swept
from flnb.memory_lab.packing.problem import Problem, taken_apart
from flnb.memory_lab.packing.searching import HIGHEST, search
from flnb.memory_lab.traces import trace

if TYPE_CHECKING:
    from flnb_telemetry.schema import Ints

__all__ = ["Packing", "pack", "packed"]

SEARCHED = 1000
"""The largest number of blocks for which the search is tried; it needs a table with an entry for every two blocks."""

FAR = 1 << 62


@dataclass(frozen=True, eq=False, repr=False)
class Packing:
    """The offsets of all allocations of a trace in one contiguous range of memory.

    Attributes:
        offsets: int64 (m,), the offset of the k-th allocation in bytes, at [k - 1].
        nbytes: int64 (m,), the size of each allocation: the requested bytes, rounded up to the alignment.
        height: the bytes of the whole range.
        lower_bound: no packing has a smaller height (bytes): the most live bytes, or more if a search has proved more.
    """

    offsets: Ints
    nbytes: Ints
    height: int
    lower_bound: int

    @property
    def optimal(self) -> bool:
        """Return whether it is proved that no packing is lower."""
        return self.height == self.lower_bound

    def __repr__(self) -> str:
        bound = "optimal" if self.optimal else f"at least {quantity.size(self.lower_bound)}"
        return f"{quantity.count(len(self.offsets))} allocations in {quantity.size(self.height)} ({bound})"


def pack(source: Any, seconds: float = 5.0, alignment: int = ALIGNMENT, capacity: int | str | None = None) -> Packing:
    """Pack all allocations of a trace into as little contiguous memory as possible.

    Allocations that are live at the same time do not overlap. The packings of the last few traces are cached.

    Args:
        source: a recording, the path of a saved one, or a `Trace`, as for `flnb.memory.trace`.
        seconds: time limit for improving the first packing, which itself takes some seconds for 100,000 allocations.
            A faster machine may find a lower packing in the same time.
        alignment: every offset is a multiple of this many bytes.
        capacity: available bytes (or a string such as ``"1MiB"``); the search ends when the packing fits into them.

    Returns:
        A `Packing`.

    >>> import flnb
    >>> calls = flnb.memory.Trace.of_calls([1, 2, -1, 3, -2, 4], [512, 1024, 1024, 1536])
    >>> packing = flnb.memory.pack(calls)
    >>> packing
    4 allocations in 2.50 KiB (optimal)
    >>> packing.offsets
    array([   0,  512, 1536,    0])

    Raises:
        TypeError: the source is not a recording, path or trace.
        ValueError: an alignment below 1.
    """
    if alignment < 1:
        raise ValueError(f"flnb.memory.pack: got alignment={alignment}, expected 1 byte or more")
    asked, enough = trace(source), 0 if capacity is None else bytes_of(capacity, "the capacity of flnb.memory.pack")
    key = blake2b(asked.calls.tobytes() + asked.nbytes.tobytes() + f"{alignment} {enough}".encode()).digest()
    known, spent = _packings.pop(key, (None, 0.0))
    if known is None or not (known.optimal or spent >= seconds):
        known, spent = packed(*asked.lifetimes, asked.nbytes, seconds, alignment, enough), seconds
    _packings[key] = known, spent  # the last one now
    for oldest in list(_packings)[:-KEPT]:
        _packings.pop(oldest, None)
    return known


KEPT = 8

_packings: dict[bytes, tuple[Packing | None, float]] = {}
"""Cached packings: a hash of trace, alignment and capacity -> (packing, time limit in s of its search)."""


def packed(
    born: Ints, died: Ints, nbytes: Ints, seconds: float, alignment: int = ALIGNMENT, enough: int = 0
) -> Packing:
    """Pack allocations with lifetimes [born, died), int64 (m,) each, within ``seconds``; see `pack`.

    Args:
        born, died, nbytes: the begin and the end of each lifetime, and the bytes.
        seconds, alignment: as for `pack`.
        enough: the height in bytes at which the search may end, 0 to search for the lowest packing.
    """
    sizes = np.maximum(1, -(-nbytes // alignment)) * alignment
    unit = int(np.gcd.reduce(sizes, initial=0)) or 1
    offsets, height, bound = _in_units(born, died, sizes // unit, monotonic() + seconds, enough // unit)
    offsets *= unit
    offsets.flags.writeable = sizes.flags.writeable = False  # `pack` gives one to several
    return Packing(offsets, sizes, height * unit, bound * unit)


def _in_units(born: Ints, died: Ints, nbytes: Ints, deadline: float, enough: int) -> tuple[Ints, int, int]:
    """Return offsets, height and lower bound, all in the unit of ``nbytes``; see `packed`.

    Args:
        born, died, nbytes, enough: as for `packed`.
        deadline: a time of `time.monotonic` (s) at which to end.
    """
    whole = Problem.of(born, died, nbytes)
    offsets = np.zeros(len(nbytes), np.int64)
    parts: dict[bytes, _Part] = {}
    for problem, rows, base in taken_apart(whole, offsets):
        parts.setdefault(problem.key, _Part(problem)).places.append((rows, base))  # training steps repeat the same part
    bound = int(whole.live.max(initial=0))
    for part in parts.values():
        part.fit(max(bound, enough), deadline)
    while parts and monotonic() < deadline:
        tallest = max(parts.values(), key=lambda part: part.top)
        bound = max(bound, tallest.base + tallest.proven)
        low = max(bound, enough)
        if tallest.top <= low or not tallest.improve(low, deadline):
            break
    for part in parts.values():
        bound = max(bound, part.base + part.proven)
        for rows, base in part.places:
            offsets[rows] = base + part.offsets
    return offsets, int((offsets + nbytes).max(initial=0)), bound


@dataclass(eq=False)
class _Part:
    """An independently packed part of the problem, with its best packing so far.

    Attributes:
        problem: the blocks of the part.
        places: for this part, and each part equal to it: (its blocks as rows of the whole problem, its offset).
        offsets, height: the best packing so far.
        proven: a lower bound of the height of all packings.
        missed: the greatest height for which a search ended without a result; -1 if there was no such search.
    """

    problem: Problem
    places: list[tuple[Ints, int]] = field(default_factory=list)
    offsets: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    height: int = FAR
    proven: int = 0
    missed: int = -1

    @property
    def base(self) -> int:
        """Return the highest offset, in bytes, at which this part or an equal one is placed."""
        return max(base for _, base in self.places)

    @property
    def top(self) -> int:
        """Return the offset, in bytes, at which the highest copy of the part ends."""
        return self.base + self.height

    def take(self, offsets: Ints) -> bool:
        """Store a packing if it is lower than the best so far; returns whether it was stored."""
        height = int((offsets + self.problem.nbytes).max())
        better = height < self.height
        if better:
            self.offsets, self.height = offsets, height
        return better

    def fit(self, bound: int, deadline: float) -> None:
        """Pack by best fit and first fit in several orders, and store the lowest packing.

        Stops as soon as `top` is at most ``bound`` (bytes), or at the time ``deadline`` (`time.monotonic`, s).
        """
        self.proven = int(self.problem.live.max())
        self.take(swept(self.problem))
        for tight, order in product((False, True), orders(self.problem)):
            if self.top <= bound:
                return
            found = fitted(self.problem, order, tight, deadline)
            if found is None:
                return
            self.take(found)

    def improve(self, bound: int, deadline: float) -> bool:
        """Make one attempt to lower `top`, at most down to ``bound``; return False if further attempts are useless.

        ``deadline`` is a time of `time.monotonic` (s).
        """
        least = max(self.proven, bound - self.base)
        goal = least if self.missed < least else (self.missed + self.height) // 2
        if len(self.problem.nbytes) > SEARCHED or self.height > HIGHEST or goal == self.missed:
            return self._shuffled(deadline)
        try:
            found = search(self.problem, goal, (deadline - monotonic()) / (2 if goal == least else 4))
        except TimeoutError:
            self.missed = goal
            return True
        if found is None:
            self.proven = goal + 1
            return True
        return self.take(found)

    def _shuffled(self, deadline: float) -> bool:
        """Move the highest blocks to random earlier places in the order and repeat first fit, until `top` is lower.

        Returns False if ``deadline`` (a time of `time.monotonic`, s) came first.
        """
        draw, nbytes = np.random.default_rng(0), self.problem.nbytes
        offsets, height = self.offsets, self.height
        order = np.argsort(offsets, kind="stable")
        while True:
            highest = draw.choice(np.flatnonzero(offsets + nbytes == height))
            turn = int(np.flatnonzero(order == highest)[0])
            tried = np.insert(np.delete(order, turn), draw.integers(turn + 1), highest)
            found = fitted(self.problem, tried, False, deadline)
            if found is None:
                return False
            if self.take(found):
                return True
            reached = int((found + nbytes).max())
            if reached <= height:
                order, offsets, height = tried, found, reached
