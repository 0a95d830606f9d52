"""Ranks with different numbers of batches, and the deal of samples to ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flnb
from flnb import distributed, nn, optim

BATCHES = np.random.default_rng(0).normal(size=(3, 5, 4, 2))
"""For up to three ranks, of which rank i takes the first 5 - 2 i."""


def models(stage: int, net: nn.Module) -> tuple[Any, Any]:
    """Data parallel (0) or a stage of `Sharded`, and its optimizer."""
    optimizer = optim.Adam(net.parameters(), lr=0.1)
    if not stage:
        return distributed.DataParallel(net, bucket=None), optimizer
    model = distributed.Sharded(net, optimizer, stage=stage)
    return model, model.optimizer


def layer() -> nn.Module:
    """A layer whose parameters are the same whoever makes it."""
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).astype(flnb.float64)
    draw = np.random.default_rng(1)
    net.load_state_dict({name: draw.normal(size=value.shape) for name, value in net.state_dict().items()})
    return net


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_ranks_that_have_ended_join_those_that_are_still_there(stage: int) -> None:
    def work() -> tuple[list[float], Any, Any]:
        model, optimizer = models(stage, layer())
        losses = []
        with model.uneven(optimizer.step):
            for batch in BATCHES[distributed.rank()][: 5 - 2 * distributed.rank()]:
                optimizer.zero_grad()
                loss = (model(flnb.asarray(batch)) ** 2).mean()
                loss.backward()
                losses.append(loss.item())
                optimizer.step()
        model.close()
        return losses, model.state_dict(), optimizer.state_dict()

    net = layer()
    optimizer = optim.Adam(net.parameters(), lr=0.1)
    expected: list[list[float]] = [[], [], []]
    for step in range(5):
        there = [rank for rank in range(3) if step < 5 - 2 * rank]
        optimizer.zero_grad()
        for rank in there:
            loss = (net(flnb.asarray(BATCHES[rank, step])) ** 2).mean()
            expected[rank].append(loss.item())
            (loss / len(there)).backward()
        optimizer.step()
    for rank, (losses, state, stepped) in enumerate(distributed.run_threads(3, work)):
        np.testing.assert_allclose(losses, expected[rank], rtol=1e-12)
        assert stepped["steps"] == 5
        for key, value in net.state_dict().items():
            np.testing.assert_allclose(state[key].numpy(), value.numpy(), rtol=1e-12)
        for key, value in optimizer.state_dict()["state"].items():
            np.testing.assert_allclose(stepped["state"][key].numpy(), value.numpy(), rtol=1e-9, atol=1e-14)


def test_uneven_with_accumulation_and_a_second_epoch() -> None:
    def work() -> Any:
        net = nn.Linear(1, 1, bias=False)
        model = distributed.DataParallel(net)
        flnb.assign(net.weight.data, 0.0)
        optimizer = optim.SGD(net.parameters(), lr=1.0)
        for _ in range(2):
            with model.uneven(optimizer.step):
                for x in [1.0, 2.0, 3.0][: 3 - 2 * distributed.rank()]:
                    optimizer.zero_grad()
                    with model.no_sync():
                        model(flnb.asarray([[x]])).sum().backward()
                    model(flnb.asarray([[x]])).sum().backward()
                    optimizer.step()
        optimizer.zero_grad()
        model(flnb.asarray([[4.0 * distributed.rank()]])).sum().backward()  # all are there again
        return net.weight.item(), net.weight.grad.item()

    assert distributed.run_threads(2, work) == [(-24.0, 2.0)] * 2


def test_half_precision_is_divided_by_the_ranks_that_are_there() -> None:
    def work() -> Any:
        net = nn.Linear(1, 1, bias=False).half()
        model = distributed.DataParallel(net)
        gradients = []
        with model.uneven(lambda: None):
            for x in [1.0, 3.0][distributed.rank() :]:
                net.zero_grad()
                model(flnb.asarray([[x]], dtype="float16")).sum().backward()
                gradients.append(net.weight.grad.item())
        return gradients

    assert distributed.run_threads(2, work) == [[2.0, 3.0], [2.0]]


def test_a_loop_that_fails_does_not_wait_for_the_others() -> None:
    def work() -> None:
        model = distributed.DataParallel(nn.Linear(1, 1))
        with model.uneven(lambda: None):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        distributed.run_threads(2, work)


def test_stage_3_says_that_it_cannot() -> None:
    def work() -> None:
        model, optimizer = models(3, layer())
        with pytest.raises(NotImplementedError, match="stage 3 collects parameters"):
            model.uneven(optimizer.step)

    distributed.run_threads(2, work)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 23])
@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_sample_is_dealt_once(count: int, batch: int, ranks: int) -> None:
    numbers = flnb.data.TensorDataset(flnb.arange(count))
    shuffled = flnb.data.ShuffleDataset(numbers, seed=3)

    def work() -> list[list[int]]:
        kept = distributed.shard(shuffled, batch)
        epochs = [[int(x) for (x,) in kept] for _ in range(2)]
        others = [[int(x) for (x,) in distributed.shard(numbers, batch, last)] for last in ("pad", "drop")]
        return [*epochs, *others]

    found = distributed.run_threads(ranks, work)
    for epoch in range(2):
        assert sorted(x for rank in found for x in rank[epoch]) == list(range(count))
    lengths = [len(rank[0]) for rank in found]
    assert max(lengths) - min(lengths) <= 1
    padded, dropped = [rank[2] for rank in found], [rank[3] for rank in found]
    assert {len(rank) for rank in padded} == {-(-count // ranks)}
    assert {x for rank in padded for x in rank} == set(range(count))
    assert {len(rank) for rank in dropped} == {count // ranks}
    assert len({x for rank in dropped for x in rank}) == count // ranks * ranks


def test_another_value_of_last() -> None:
    with pytest.raises(ValueError, match="got last='skip', expected 'keep', 'pad' or 'drop'"):
        distributed.shard(flnb.data.TensorDataset(flnb.arange(3)), last="skip")
