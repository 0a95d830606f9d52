"""A pipeline's gradients are those of the whole model in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flnb
from flnb import distributed, nn, optim


def stages(count: int) -> list[Any]:
    """The same model in so many parts, whatever their number."""
    draw = np.random.default_rng(1)
    layers: list[Any] = []
    for _ in range(4):
        linear = nn.Linear(6, 6)
        linear.astype(flnb.float64)
        for p in linear.parameters():
            flnb.assign(p.data, draw.normal(size=p.shape) / 2)
        layers += [linear, nn.Tanh()]
    each = len(layers) // count
    return [nn.Sequential(*layers[i : i + each]) for i in range(0, len(layers), each)]


def train(microbatches: int) -> tuple[list[float], Any]:
    """The losses of 20 steps, and this rank's parameters."""
    draw = np.random.default_rng(2)
    stage = stages(distributed.size())[distributed.rank()]
    pipeline = distributed.Pipeline(stage, microbatches)
    optimizer = optim.Adam(stage.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        x, y = draw.normal(size=(8, 6)), draw.normal(size=(8, 6))
        optimizer.zero_grad()
        losses.append(pipeline.step(x, y, lambda y, t: ((y - t) ** 2).mean()))
        optimizer.step()
    return losses, [p.data.numpy() for p in stage.parameters()]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_pipeline_trains_as_one_process(ranks: int, microbatches: int) -> None:
    losses, whole = train(1)
    found = distributed.run_threads(ranks, train, microbatches)
    for those, _ in found:
        np.testing.assert_allclose(those, losses, rtol=0, atol=1e-12)
    together = [values for _, parameters in found for values in parameters]
    for got, expected in zip(together, whole, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


def test_a_batch_that_cannot_be_divided_is_named() -> None:
    with pytest.raises(ValueError, match=r"inputs of shape \(5, 6\) cannot be divided into 4 microbatches"):
        distributed.Pipeline(nn.Linear(6, 6)).step(flnb.ones((5, 6)), flnb.ones((5, 6)), lambda y, t: y.sum())
    with pytest.raises(ValueError, match=r"inputs of shape \(0, 6\) cannot be divided"):
        distributed.Pipeline(nn.Linear(6, 6)).step(flnb.ones((0, 6)), flnb.ones((0, 6)), lambda y, t: y.sum())
    with pytest.raises(ValueError, match="got 0 microbatches, expected 1 or more"):
        distributed.Pipeline(nn.Linear(6, 6), 0)


def test_a_stage_that_fails_is_named_by_its_neighbours() -> None:
    def work() -> None:
        pipeline = distributed.Pipeline(nn.Linear(6, 7 if distributed.rank() == 1 else 6), 2)
        pipeline.step(flnb.ones((4, 6)), flnb.zeros((4, 6)), lambda y, t: (y - t).mean())

    with pytest.raises(ValueError) as caught:
        distributed.run_threads(2, work)
    assert "on rank 1 of 2" in caught.value.__notes__
