"""Sums that go on while a rank computes, and sums of several tensors at once."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import intern

import flnb
from flnb import distributed
from flnb.interface import CollectiveError


def test_ops_run_while_a_sum_is_under_way() -> None:
    """Overlap seen in the trace: rank 0's ops lie between the beginning and the end of its collective."""

    def work() -> Any:
        if distributed.rank():
            time.sleep(0.1)  # so rank 0's sum cannot have ended before its ops
            return distributed.start_all_reduce(flnb.ones(3)).wait().tolist()
        started = distributed.start_all_reduce(flnb.ones(3))
        for _ in range(5):
            flnb.exp(flnb.zeros(4))
        assert not started.test()
        return started.wait().tolist()

    with flnb.record() as run:
        assert distributed.run_threads(2, work) == [[2.0] * 3, [2.0] * 3]
    collectives, ops = run.table("collective"), run.table("op")
    begin, end = collectives["t0"].min(), collectives["t1"].max()
    names = [intern.plans.items[plan][0] for plan in ops["plan"].tolist()]
    during = [n for n, t in zip(names, ops["t0"].tolist(), strict=True) if begin < t < end]
    assert during.count("exp") == 5


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_several_tensors_at_once(ranks: int, contiguous: bool) -> None:
    def work() -> list[Any]:
        rank = distributed.rank()
        xs = [np.full((2, 3), rank, np.float64), np.array(rank + 1, np.int32), np.zeros((0, 4)), np.arange(4.0)]
        made = distributed.all_reduce_multiple([*xs, flnb.Variable([1.0, rank])], contiguous=contiguous)
        return [y.numpy() for y in made]

    total = sum(range(ranks))
    for found in distributed.run_threads(ranks, work):
        expected = [np.full((2, 3), total), total + ranks, np.zeros((0, 4)), ranks * np.arange(4.0), [ranks, total]]
        assert [y.dtype.name for y in found[:2]] == ["float64", "int32"]
        for got, values in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, values)
    assert distributed.all_reduce_multiple([]) == []


def test_sync_waits_for_all_that_was_started() -> None:
    def work() -> list[bool]:
        started = [distributed.start_all_reduce(flnb.ones(k)) for k in range(1, 5)]
        distributed.sync()
        distributed.sync()
        return [one.test() for one in started]

    assert distributed.run_threads(2, work) == [[True] * 4] * 2


def test_other_sizes_on_another_rank_are_an_error() -> None:
    def work() -> None:
        sizes = (3, 4) if distributed.rank() else (4, 3)
        distributed.all_reduce_multiple([flnb.ones(n) for n in sizes])

    with pytest.raises(CollectiveError, match="all_reduce_multiple"):
        distributed.run_threads(2, work)


def test_what_was_started_is_released_when_it_has_been_seen() -> None:
    def work() -> list[bool]:
        first = distributed.start_all_reduce(1.0)
        with distributed.use_communicator("single"):
            first.wait()  # of another communicator than the active one
        second = distributed.start_all_reduce(1.0)
        while not second.test():
            time.sleep(0)
        return [one in one._others for one in (first, second)]

    assert distributed.run_threads(2, work) == [[False, False]] * 2
