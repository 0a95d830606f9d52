"""Asynchronous training: the rules by values computed by hand, and nothing lost when all ranks exchange at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import distributed, nn
from flnb.dispatch import communication

PLACES = [None, 0]
"""Where the center is: in shared memory, or with rank 0."""


def weight(net: Any) -> float:
    return float(net.weight.item())


def set_weight(net: Any, value: float) -> None:
    flnb.assign(net.weight.data, value)


def test_asgd_adds_what_each_rank_learned() -> None:
    """Theano's Platoon: m += p - old; p = old = m."""
    turn = threading.Barrier(2)

    def train() -> list[float]:
        rank = distributed.rank()
        net = nn.Linear(1, 1, bias=False)
        set_weight(net, 10.0)
        center = distributed.ASGD(net)
        seen = []
        for learned in ([1.0, 4.0], [2.0, 8.0]):  # rank 0 comes first each time
            set_weight(net, weight(net) + learned[rank])
            if rank == 0:
                center.exchange()
            turn.wait()
            if rank == 1:
                center.exchange()
            turn.wait()
            seen.append(weight(net))
        center.finish()
        return [*seen, weight(net)]

    assert distributed.run_threads(2, train) == [[11.0, 17.0, 25.0], [15.0, 25.0, 25.0]]


def test_easgd_moves_rank_and_center_towards_each_other() -> None:
    """d = share * (w - m); w -= d; m += d."""
    turn = threading.Barrier(2)

    def train() -> list[float]:
        rank = distributed.rank()
        net = nn.Linear(1, 1, bias=False)
        set_weight(net, 0.0)
        center = distributed.EASGD(net, share=0.25)
        set_weight(net, [8.0, 16.0][rank])
        if rank == 0:
            center.exchange()  # d = 2: w = 6, m = 2
        turn.wait()
        if rank == 1:
            center.exchange()  # d = 3.5: w = 12.5, m = 5.5
        turn.wait()
        seen = weight(net)
        center.finish()
        return [seen, weight(net)]

    assert distributed.run_threads(2, train) == [[6.0, 5.5], [12.5, 5.5]]


@pytest.mark.parametrize("controller", PLACES)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_no_exchange_is_lost(ranks: int, controller: int | None) -> None:
    """Each rank adds one to every element, its rank + 3 times; whole numbers, so the order does not matter."""

    def train() -> Any:
        net = nn.Linear(40, 30)
        for p in net.parameters():
            flnb.assign(p.data, 0.0)
        center = distributed.ASGD(net, every=2, controller=controller)
        for _ in range(2 * (distributed.rank() + 3)):
            for p in net.parameters():
                flnb.assign(p.data, p.data + 0.5)
            center.step()
        center.finish()
        return [p.data.numpy() for p in net.parameters()]

    expected = float(sum(rank + 3 for rank in range(ranks)))
    for parameters in distributed.run_threads(ranks, train):
        for values in parameters:
            np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("controller", PLACES)
def test_ranks_of_different_speed_learn_one_model(controller: int | None) -> None:
    """A least-squares problem: the center comes to the solution that no rank's part of the data gives alone."""
    draw = np.random.default_rng(3)
    x, solution = draw.normal(size=(64, 3)), np.array([[1.0], [-2.0], [0.5]])

    def train() -> Any:
        rank = distributed.rank()
        net = nn.Linear(3, 1, bias=False)
        optimizer = flnb.optim.SGD(net.parameters(), lr=0.05)
        center = distributed.EASGD(net, share=0.3, every=4, controller=controller)
        mine = flnb.asarray(x[32 * rank : 32 * rank + 32].astype(np.float32))
        for _ in range(300 + 300 * rank):  # enough in whatever order the ranks run
            loss = ((net(mine) - mine @ flnb.asarray(solution.astype(np.float32))) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            center.step()
        center.finish()
        return net.weight.data.numpy()

    first, second = distributed.run_threads(2, train)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first.reshape(-1), solution.reshape(-1), atol=1e-3)


def test_a_worker_that_fails_is_named_by_the_controller() -> None:
    def train() -> None:
        net = nn.Linear(1, 1)
        center = distributed.ASGD(net, controller=0)
        if distributed.rank() == 2:
            raise ValueError("out of data")
        center.finish()

    with pytest.raises((ValueError, distributed.CollectiveError)) as caught:
        distributed.run_threads(3, train)
    assert "out of data" in str(caught.value) or "rank 2 has failed" in str(caught.value)


def test_a_center_that_stays_locked_is_an_error() -> None:
    def train() -> None:
        distributed.current().timeout = 0.2
        center = distributed.ASGD(nn.Linear(1, 1))
        if distributed.rank() == 0:
            with center._shared.locked():  # type: ignore[union-attr]
                held.set()
                done.wait(10)
        else:
            held.wait(10)
            with pytest.raises(distributed.CollectiveError, match=r"rank 1 has waited 0 s for the lock of the shared"):
                center.exchange()
            done.set()

    held, done = threading.Event(), threading.Event()
    distributed.run_threads(2, train)


def test_wrong_arguments_are_named() -> None:
    net = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="every=0, expected 1 or more"):
        distributed.ASGD(net, every=0)
    with pytest.raises(ValueError, match="share=2, expected a number above 0"):
        distributed.EASGD(net, share=2)
    with pytest.raises(ValueError, match="controller=1, expected a rank from 0 to 0"):
        distributed.ASGD(net, controller=1)
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        distributed.ASGD(nn.ReLU())


def test_nothing_is_left_behind() -> None:
    def files() -> set[str]:
        return {path.name for path in Path("/dev/shm").glob("flnb_center_*")}

    before = files()
    center = distributed.ASGD(nn.Linear(2, 2))
    center.exchange()
    assert files() <= before


def test_nothing_is_left_behind_by_a_rank_that_is_left_alone() -> None:
    def work() -> None:
        if distributed.rank() == 0:
            distributed.ASGD(nn.Linear(2, 1))
        else:
            communication.run("broadcast", np.empty(3, np.float32), 0)

    before = set(Path("/dev/shm").glob("flnb_center_*"))
    with pytest.raises(distributed.CollectiveError, match="rank 1 has ended"):
        distributed.run_threads(2, work)
    assert set(Path("/dev/shm").glob("flnb_center_*")) <= before


def test_a_controller_that_trains_answers_between_its_steps() -> None:
    def work() -> bool:
        center = distributed.EASGD(nn.Linear(2, 1), controller=0)
        if distributed.rank() == 0:
            while not asked.wait(0.01):
                center.step()
        else:
            center.step()  # returns before the controller has finished
            asked.set()
        center.finish()
        return True

    asked = threading.Event()
    assert distributed.run_threads(2, work, timeout=5.0) == [True, True]
