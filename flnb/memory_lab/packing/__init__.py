"""Packing offline: when every lifetime is known beforehand, how little memory in a row is enough?

Dynamic storage allocation, as in MiniMalloc (Moffitt 2023, ASPLOS) and TelaMalloc (Maas et al. 2022, ASPLOS). First
what costs nothing: what lives as long as all others together lies at the bottom, and what is left falls into parts
that share no moment, each packed on its own. Then for each part orders of first and best fit; then, where a part is
still higher than it must be, a search (`flnb.memory_lab.packing.searching`) or, for large parts, better and better
orders.
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
"""The most blocks of a part for which the search is tried: it keeps who overlaps whom."""

FAR = 1 << 62


@dataclass(frozen=True, eq=False, repr=False)
class Packing:
    """The offsets of all allocations of a trace in one piece of memory.

    Attributes:
        offsets: int64 (m,), bytes from its beginning, for the k-th allocation at [k - 1].
        nbytes: int64 (m,), what each takes: its request, rounded up to the alignment.
        height: bytes of the piece.
        lower_bound: bytes below which no packing can be: what is live at most, or more where a search has shown it.
    """

    offsets: Ints
    nbytes: Ints
    height: int
    lower_bound: int

    @property
    def optimal(self) -> bool:
        """Whether no packing is lower."""
        return self.height == self.lower_bound

    def __repr__(self) -> str:
        bound = "optimal" if self.optimal else f"at least {quantity.size(self.lower_bound)}"
        return f"{quantity.count(len(self.offsets))} allocations in {quantity.size(self.height)} ({bound})"


def pack(source: Any, seconds: float = 5.0, alignment: int = ALIGNMENT, capacity: int | str | None = None) -> Packing:
    """Place every allocation of a trace so that none that live together overlap, in as little memory as can be.

    The packings of the last few traces are kept, and given again to who asks for no more.

    Args:
        source: what `flnb.memory.trace` takes.
        seconds: for making the first packing better; that one takes the time that it takes (100,000 allocations:
            some seconds). The same seconds can find more on a faster machine.
        alignment: of every offset, bytes.
        capacity: bytes (or ``"1MiB"``) that are low enough: it is tried at once, and nothing lower once it is reached.

    >>> import flnb
    >>> calls = flnb.memory.Trace.of_calls([1, 2, -1, 3, -2, 4], [512, 1024, 1024, 1536])
    >>> packing = flnb.memory.pack(calls)
    >>> packing
    4 allocations in 2.50 KiB (optimal)
    >>> packing.offsets
    array([   0,  512, 1536,    0])

    Raises:
        TypeError: no source of a trace.
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
"""By what was asked, the packing and the seconds that it was given."""


def packed(
    born: Ints, died: Ints, nbytes: Ints, seconds: float, alignment: int = ALIGNMENT, enough: int = 0
) -> Packing:
    """`pack`, of allocations that live in [born, died)."""
    sizes = np.maximum(1, -(-nbytes // alignment)) * alignment
    unit = int(np.gcd.reduce(sizes, initial=0)) or 1
    offsets, height, bound = _in_units(born, died, sizes // unit, monotonic() + seconds, enough // unit)
    offsets *= unit
    offsets.flags.writeable = sizes.flags.writeable = False  # `pack` gives one to several
    return Packing(offsets, sizes, height * unit, bound * unit)


def _in_units(born: Ints, died: Ints, nbytes: Ints, deadline: float, enough: int) -> tuple[Ints, int, int]:
    """Offsets, height and lower bound."""
    whole = Problem.of(born, died, nbytes)
    offsets = np.zeros(len(nbytes), np.int64)
    parts: dict[bytes, _Part] = {}
    for problem, rows, base in taken_apart(whole, offsets):
        parts.setdefault(problem.key, _Part(problem)).places.append((rows, base))  # a step of training is like the next
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
    """A part and the best packing of it so far.

    ``proven``: a height below which there is none. ``missed``: the greatest for which the search took too long.
    """

    problem: Problem
    places: list[tuple[Ints, int]] = field(default_factory=list)
    offsets: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    height: int = FAR
    proven: int = 0
    missed: int = -1

    @property
    def base(self) -> int:
        """The highest offset from which on it lies."""
        return max(base for _, base in self.places)

    @property
    def top(self) -> int:
        return self.base + self.height

    def take(self, offsets: Ints) -> bool:
        """Keep a packing if it is lower than the best."""
        height = int((offsets + self.problem.nbytes).max())
        better = height < self.height
        if better:
            self.offsets, self.height = offsets, height
        return better

    def fit(self, bound: int, deadline: float) -> None:
        """Hole by hole in several orders, until one does not reach above the bound."""
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
        """Whether a lower packing was found in time, or that there is none of some height, or not easily."""
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
        """What reaches highest takes its turn earlier, until that makes the packing lower."""
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
