"""Packing offline: nothing overlaps, no packing is lower, and the bound is reached where it can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb
from flnb.memory import Packing, Trace
from flnb.memory_lab.packing.first_fit import fitted, orders, swept
from flnb.memory_lab.packing.problem import Problem, taken_apart
from flnb.memory_lab.packing.searching import search

Lifetime = tuple[int, int, int]  # born, died, bytes


def trace_of(lifetimes: list[Lifetime]) -> Trace:
    """Calls in which blocks that die at a time go before those that are born at it."""
    lifetimes = sorted(lifetimes)
    events = [(born, 1, k) for k, (born, _, _) in enumerate(lifetimes, 1)]
    events += [(died, 0, -k) for k, (_, died, _) in enumerate(lifetimes, 1)]
    return Trace.of_calls([call for _, _, call in sorted(events)], [nbytes for _, _, nbytes in lifetimes])


def overlaps(trace: Trace, packing: Packing) -> list[tuple[int, int]]:
    """Pairs of allocations that live together and share a byte."""
    born, died = trace.lifetimes
    low, high = packing.offsets, packing.offsets + packing.nbytes
    together = (born < died[:, None]) & (born[:, None] < died)
    bad = together & (low < high[:, None]) & (low[:, None] < high)
    return [(int(a), int(b)) for a, b in zip(*np.nonzero(bad), strict=True) if a < b]


UNREACHABLE = [
    (0, 2, 5), (1, 3, 4), (2, 5, 2), (2, 6, 3), (3, 5, 1), (3, 6, 3), (4, 5, 1), (5, 9, 4), (6, 9, 4), (6, 10, 2),
]  # fmt: skip
"""At most 10 bytes are live, but every way to place these blocks needs 11."""


def least(problem: Problem) -> int:
    """The height of the lowest packing, by trying every offset of every block."""
    blocks = list(zip(problem.begin.tolist(), problem.end.tolist(), problem.nbytes.tolist(), strict=True))

    def fits(height: int, rest: list[Lifetime], taken: tuple[int, ...]) -> bool:
        """Whether the rest has room; `taken` has for each section a bit for every byte."""
        if not rest:
            return True
        (begin, end, nbytes), *others = rest
        free = [i for i in range(height - nbytes + 1) if not any(t >> i & (1 << nbytes) - 1 for t in taken[begin:end])]
        now = [tuple(t | (((1 << nbytes) - 1) << i) * (begin <= s < end) for s, t in enumerate(taken)) for i in free]
        return any(fits(height, others, after) for after in now)

    height = int(problem.live.max(initial=0))
    while not fits(height, blocks, (0,) * problem.sections):
        height += 1
    return height


def cut(width: int, height: int, count: int, seed: int) -> list[Lifetime]:
    """A rectangle of time and bytes cut up, edge to edge, into so many: what fits into its height without a gap."""
    draw = np.random.default_rng(seed)
    pieces = [(0, width, 0, height)]
    while len(pieces) < count:
        pieces.sort(key=lambda piece: (piece[1] - piece[0]) * (piece[3] - piece[2]))
        left, right, low, high = pieces.pop()
        if draw.random() < 0.5 and right - left > 1:
            at = int(draw.integers(left + 1, right))
            pieces += [(left, at, low, high), (at, right, low, high)]
        else:
            at = int(draw.integers(low + 1, high))
            pieces += [(left, right, low, at), (left, right, at, high)]
    return [(left, right, high - low) for left, right, low, high in pieces]


lifetime = st.tuples(st.integers(0, 8), st.integers(1, 6), st.integers(0, 5)).map(lambda t: (t[0], t[0] + t[1], t[2]))


@settings(deadline=None)
@given(st.lists(lifetime, min_size=1, max_size=8))
def test_small_ones_are_as_low_as_brute_force_finds(lifetimes: list[Lifetime]) -> None:
    trace = trace_of(lifetimes)
    packing = flnb.memory.pack(trace, alignment=1)
    assert not overlaps(trace, packing)
    assert packing.optimal
    assert packing.height == least(Problem.of(*trace.lifetimes, packing.nbytes))


@settings(deadline=None)
@given(st.lists(lifetime, min_size=1, max_size=40), st.sampled_from((1, 64, 512)), st.sampled_from((0.0, 0.02)))
def test_nothing_overlaps(lifetimes: list[Lifetime], alignment: int, seconds: float) -> None:
    trace = trace_of([(born, died, 100 * nbytes) for born, died, nbytes in lifetimes])
    packing = flnb.memory.pack(trace, seconds, alignment)
    assert not overlaps(trace, packing)
    assert (packing.nbytes >= trace.nbytes).all()
    assert not (packing.offsets % alignment).any()
    assert packing.height == (packing.offsets + packing.nbytes).max() >= packing.lower_bound >= trace.peak_live


@settings(deadline=None)
@given(st.lists(lifetime, min_size=1, max_size=40))
def test_every_way_to_fit_is_a_packing(lifetimes: list[Lifetime]) -> None:
    trace = trace_of([(born, died, nbytes + 1) for born, died, nbytes in lifetimes])
    problem = Problem.of(*trace.lifetimes, trace.nbytes)
    found = [swept(problem)]
    found += [fitted(problem, order, tight, np.inf) for order in orders(problem) for tight in (False, True)]
    for offsets in found:
        assert not overlaps(trace, Packing(offsets, trace.nbytes, 0, 0))


@pytest.mark.parametrize("seed", range(4))
def test_what_was_cut_from_one_piece_fits_into_it_again(seed: int) -> None:
    trace = trace_of(cut(width=60, height=1000, count=40, seed=seed))
    packing = flnb.memory.pack(trace, seconds=60, alignment=1)
    assert packing.height == packing.lower_bound == 1000
    assert not overlaps(trace, packing)


def test_a_hundred_and_fifty_blocks_fill_a_piece_without_a_gap() -> None:
    trace = trace_of(cut(width=100, height=1000, count=150, seed=2))
    problem = Problem.of(*trace.lifetimes, trace.nbytes)
    found = search(problem, 1000, 60)
    assert found is not None
    assert (found + problem.nbytes).max() == 1000
    assert not overlaps(trace, Packing(found, trace.nbytes, 0, 0))


@settings(deadline=None)
@given(st.lists(lifetime, min_size=1, max_size=8))
def test_the_search_finds_the_least_height_and_excludes_any_below(lifetimes: list[Lifetime]) -> None:
    trace = trace_of([(born, died, nbytes + 1) for born, died, nbytes in lifetimes])
    problem = Problem.of(*trace.lifetimes, trace.nbytes)
    height = least(problem)
    found = search(problem, height, 60)
    assert found is not None
    assert (found + problem.nbytes).max() <= height
    assert not overlaps(trace, Packing(found, trace.nbytes, 0, 0))
    assert search(problem, height - 1, 60) is None


def test_where_the_most_that_is_live_is_not_enough_the_bound_says_so() -> None:
    trace = trace_of(UNREACHABLE)
    packing = flnb.memory.pack(trace, alignment=1)
    problem = Problem.of(*trace.lifetimes, trace.nbytes)
    assert problem.live.max() == 10
    assert packing.height == packing.lower_bound == least(problem) == 11


def test_the_search_tells_what_does_not_fit_from_what_it_did_not_find_in_time() -> None:
    problem = Problem.of(*trace_of(UNREACHABLE).lifetimes, np.array([nbytes for _, _, nbytes in sorted(UNREACHABLE)]))
    height = least(problem)
    assert search(problem, height - 1, 60) is None
    found = search(problem, height, 60)
    assert found is not None
    assert (found + problem.nbytes).max() == height
    with pytest.raises(TimeoutError, match=f"no packing of height {height - 1} found or ruled out"):
        search(problem, height - 1, -1)


def test_what_lives_all_the_time_lies_at_the_bottom_and_steps_are_packed_apart() -> None:
    step = [(0, 2, 5), (1, 3, 2), (2, 4, 4), (3, 5, 1)]
    lifetimes = [(-1, 100, 7), *((born + at, died + at, size) for at in (0, 10, 20) for born, died, size in step)]
    trace = trace_of(lifetimes)
    whole = Problem.of(*trace.lifetimes, trace.nbytes)
    offsets = np.full(len(trace.nbytes), -1)
    parts = list(taken_apart(whole, offsets))
    assert {problem.key for problem, _, _ in parts} == {parts[0][0].key}
    assert [base for _, _, base in parts] == [7, 7, 7]
    assert offsets[0] == 0
    assert flnb.memory.pack(trace, alignment=1).height == trace.peak_live == 14


def test_a_packing_is_kept_until_more_time_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    packed = flnb.memory_lab.packing.packed

    def counted(born: Any, died: Any, nbytes: Any, seconds: float, *how: int) -> Packing:
        asked.append(seconds)
        return replace(packed(born, died, nbytes, seconds, *how), height=1 << 40)  # never optimal

    monkeypatch.setattr(flnb.memory_lab.packing, "packed", counted)
    calls, sizes = [1, 2, -1, 3], [1001, 1002, 1003]
    first = flnb.memory.pack(Trace.of_calls(calls, sizes), 0.5)
    assert flnb.memory.pack(Trace.of_calls(calls, sizes), 0.25) is first  # the same in another object
    assert flnb.memory.pack(Trace.of_calls(calls, sizes), 0.75) is not first
    flnb.memory.pack(Trace.of_calls(calls, sizes), 0.75, alignment=512)
    assert asked == [0.5, 0.75, 0.75]
    for size in range(flnb.memory_lab.packing.KEPT):
        flnb.memory.pack(Trace.of_calls([1], [size]), 0.0)
    flnb.memory.pack(Trace.of_calls(calls, sizes), 0.5)
    assert asked[-1] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        first.offsets[0] = 3


def test_blocks_that_share_no_moment_share_their_place() -> None:
    packing = flnb.memory.pack(Trace.of_calls([1, -1, 2, -2], [100, 64]))
    assert packing.offsets.tolist() == [0, 0]
    assert packing.height == 128  # 100 bytes, to the next multiple of 64


def test_a_trace_without_allocations_takes_nothing() -> None:
    assert flnb.memory.pack(Trace.of_calls([], [])).height == 0


def test_a_capacity_is_low_enough() -> None:
    trace = trace_of(cut(width=60, height=1000, count=40, seed=1))
    packing = flnb.memory.pack(trace, seconds=60, alignment=1, capacity=1100)
    assert 1000 == packing.lower_bound <= packing.height <= 1100
    assert not overlaps(trace, packing)
    below = trace_of(UNREACHABLE)
    assert flnb.memory.pack(below, alignment=1, capacity=3).height == 11  # none is lower
    with pytest.raises(ValueError, match=r"the capacity of flnb.memory.pack is 'much'; expected bytes"):
        flnb.memory.pack(trace, capacity="much")


def test_an_alignment_below_one_byte() -> None:
    with pytest.raises(ValueError, match="got alignment=0, expected 1 byte or more"):
        flnb.memory.pack(Trace.of_calls([1], [1]), alignment=0)
