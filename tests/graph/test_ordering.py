"""Order: what frees memory comes first, updates after the reads of what they replace, draws in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flnb
from flnb import nn, optim
from flnb.graph.fusing import is_late

pytest.importorskip("llvmlite", reason="nothing is fused without the extra cpu")
ROWS, WIDTH, LAYERS = 64, 128, 8
BYTES = ROWS * WIDTH * 4


def trained(steps: int = 4) -> tuple[Any, list[float], nn.Module]:
    """Train a stack of layers by `flnb.jit`; returns its program, losses, and the model."""
    flnb.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)])
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = flnb.asarray(np.random.default_rng(0).standard_normal((ROWS, WIDTH)), dtype="float32")
    run = flnb.jit(step)
    losses = [run(x).item() for _ in range(steps)]
    return run.programs[0] if run.programs else None, losses, model


def test_a_gradient_of_a_weight_comes_as_soon_as_its_operands_are_there() -> None:
    program, _, _ = trained()
    made = {value: i for i, group in enumerate(program.groups) for value in group.members}
    read = {
        program.layouts[x].root: i for i, group in enumerate(program.groups) for y in group.members for x in y.inputs
    }
    cotangents = [x for x in program.memory.offset if is_late(x) and x.spec.nbytes == BYTES]
    assert len(cotangents) >= LAYERS
    alive = [sum(made[x] <= i <= read.get(x, made[x]) for x in cotangents) for i in range(len(program.groups))]
    assert max(alive) <= 3


def test_an_update_comes_after_all_that_reads_what_it_replaces() -> None:
    program, losses, _ = trained()
    assert [old for old, _ in program.memory.copies if old.spec.nbytes == WIDTH * WIDTH * 4] == []
    with flnb.use_backend("numpy"):
        _, expected, _ = trained()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_random_numbers_are_drawn_in_the_order_of_the_function() -> None:
    """The second one is an output, which takes no memory of the program."""

    def drawn(x: Any) -> Any:
        first, second = flnb.random.normal(shape=(64,)), flnb.random.normal(shape=(64,))
        return flnb.sum(first * x), second

    run = flnb.jit(drawn)
    found = []
    for function in (drawn, run):
        flnb.manual_seed(3)
        found.append([y.numpy().copy() for _ in range(4) for y in function(flnb.ones(64))])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5)
