"""Recomputation: programs keep less between the passes, and compute the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.backends import CpuBackend
from flnb.graph.fusing import is_late
from flnb.graph.layouts import Layouts
from flnb.graph.recomputing import recomputed
from flnb.graph.values import reachable

pytest.importorskip("llvmlite", reason="nothing is fused without the extra cpu")
ROWS, WIDTH = 64, 256
BYTES = ROWS * WIDTH * 4


class Trained:
    """A step that finds the gradients of a function of a matrix product, so that its argument must be kept.

    Args:
        function: of a matrix product, elementwise.
        fuse: whether values are computed together.
    """

    def __init__(self, function: Any, fuse: bool = True) -> None:
        rng = np.random.default_rng(0)
        self.weights = [
            flnb.Variable(flnb.asarray(rng.standard_normal(shape), dtype="float32"))
            for shape in ((WIDTH, WIDTH), (WIDTH, 8))
        ]
        self.x = flnb.asarray(rng.standard_normal((ROWS, WIDTH)), dtype="float32")
        self.function = function
        self.captured = flnb.jit(self.step, fuse=fuse)

    def step(self, x: Any) -> Any:
        for w in self.weights:
            w.grad = None
        loss = (self.function(x @ self.weights[0]) @ self.weights[1]).sum()
        loss.backward()
        return loss.detach()

    def gradients(self, step: Any) -> list[Any]:
        flnb.manual_seed(3)
        for _ in range(3):
            loss = step(self.x)
        return [loss.numpy(), *[w.grad.numpy().copy() for w in self.weights]]

    @property
    def program(self) -> Any:
        return self.captured.programs[-1]


def kept(program: Any) -> list[Any]:
    """The values that are in memory between the passes, large ones."""
    late = {x for group in program.groups for x in group.members if is_late(x)}
    found = []
    for group in program.groups:
        for value in group.members:
            readers = [y for y in late for x in y.inputs if program.layouts[x].root is value]
            if value not in late and readers and value.spec.nbytes >= BYTES // 4 and value in program.memory.offset:
                found.append(value)
    return found


FUNCTIONS: dict[str, Any] = {
    "gelu": flnb.gelu,
    "tanh of gelu": lambda x: flnb.tanh(flnb.gelu(x)),
    "relu": flnb.relu,
    "dropout": nn.Dropout(0.5),
    "dropout of relu": lambda x: nn.Dropout(0.25)(flnb.relu(x)),
    "swish": lambda x: x * flnb.sigmoid(x),
    "where": lambda x: flnb.where(flnb.exp(x) > 1.5, flnb.sin(x), x * 0.5),
    "centred": lambda x: (x - x.mean(1, keepdims=True)) * flnb.gelu(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_eager(name: str) -> None:
    trained = Trained(FUNCTIONS[name])
    expected = trained.gradients(trained.step)
    for a, b in zip(expected, trained.gradients(trained.captured), strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-4)


def test_gelu_keeps_its_argument_alone() -> None:
    """A weight's gradient reads the result, which is computed again before."""
    trained = Trained(flnb.gelu)
    trained.gradients(trained.captured)
    assert [x.op.name for x in kept(trained.program)] == ["matmul"]


def test_of_a_chain_every_fourth_value_is_stored() -> None:
    """Else the last one, which the backward pass needs first, needs all before it at once."""
    rng = np.random.default_rng(0)
    scales, weights = (
        [nn.Parameter(flnb.asarray(rng.standard_normal(shape), dtype="float32")) for _ in range(8)]
        for shape in ((WIDTH,), (WIDTH, 8))
    )

    @flnb.jit
    def step(x: Any) -> Any:
        for p in (*scales, *weights):
            p.grad = None
        total = 0.0
        for scale, w in zip(scales, weights, strict=True):
            x = flnb.tanh(x * scale)
            total = total + flnb.tanh(x @ w).sum()
        total.backward()

    for _ in range(2):
        step(flnb.ones((ROWS, WIDTH)))
    (program,) = step.programs
    assert sum(x.op.name == "tanh" and x.spec.nbytes == BYTES for x in kept(program)) == len(scales) // 4


def test_a_relu_between_convolutions_keeps_one_byte_an_element() -> None:
    """The program stores batch norm's normalized input, from which it computes ReLU's result again, but no ReLU mask.

    With a single ReLU nothing is saved where oneDNN needs no scratch memory, as on two threads.
    """
    flnb.manual_seed(0)
    blocks = [(nn.Conv2d(n, 8, 3, padding=1), nn.BatchNorm(8), nn.ReLU()) for n in (4, 8, 8)]
    net = nn.Sequential(*[layer for block in blocks for layer in block], nn.Conv2d(8, 8, 3, padding=1))
    x = flnb.asarray(np.random.default_rng(0).standard_normal((4, 4, 16, 16)), dtype="float32")

    def step(x: Any) -> Any:
        for parameter in net.parameters():
            parameter.grad = None
        loss = (net(x) ** 2).mean()
        loss.backward()
        return loss.detach()

    run = flnb.jit(step)
    found = []
    for function in (step, run):
        for _ in range(3):
            function(x)
        found.append([p.grad.numpy().copy() for p in net.parameters()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-5)
    late = [x for group in run.programs[0].groups for x in group.members if is_late(x) and x.op.name == "maximum"]
    assert len(late) == len(blocks)
    masks = [x for x in run.programs[0].memory.offset if x.op.name == "greater"]
    assert [x.spec.dtype.name for x in masks] == ["bool"] * len(blocks)


def test_dropouts_keep_one_byte_an_element() -> None:
    drop = nn.Dropout(0.5)

    def three(x: Any) -> Any:
        for _ in range(3):
            x = drop(flnb.cumulative_sum(x, axis=1))
        return x

    trained = Trained(three)
    trained.gradients(trained.captured)
    assert sorted(x.spec.nbytes for x in kept(trained.program)) == [BYTES // 4] * 3 + [BYTES]


def test_what_it_is_computed_from_counts_once() -> None:
    """Two functions of one product share it; nothing is kept for them, nor for their sum."""
    trained = Trained(lambda x: flnb.gelu(x) + flnb.tanh(x) * flnb.sin(x))
    trained.gradients(trained.captured)
    assert [x.op.name for x in kept(trained.program)] == ["matmul"]


def test_what_takes_as_much_is_not_computed_again() -> None:
    """Nothing else reads the sum, which is as large as its exponential."""
    trained = Trained(lambda x: flnb.exp(flnb.cumulative_sum(x, axis=1) * 1e-3))
    trained.gradients(trained.captured)
    assert sum(x.op.name == "exp" for group in trained.program.groups for x in group.members) == 1
    assert [x.op.name for x in kept(trained.program)] == ["exp"]


def test_an_overridden_op_is_not_computed_again() -> None:
    class Counting(CpuBackend):
        calls = 0

        def erf(self, x: Any, out: Any = None) -> Any:
            Counting.calls += 1
            return super().erf(x, out=out)

    with flnb.use_backend(Counting()):
        trained = Trained(flnb.gelu)
        trained.gradients(trained.step)
        eager, Counting.calls = Counting.calls, 0
        trained.gradients(trained.captured)
    assert eager == Counting.calls > 0


def test_nothing_is_rewritten_without_a_backward_pass() -> None:
    f = flnb.jit(lambda x: flnb.gelu(x) * 2.0)
    for _ in range(2):
        f(flnb.ones((ROWS, WIDTH)))
    assert recomputed(f.programs[0].outputs, Layouts(), lambda _: True) == {}


@pytest.mark.parametrize("kind", [flnb.optim.SGD, flnb.optim.Adam, flnb.optim.RMSProp])
def test_optimizers_write_parameters_and_state_alone(kind: Any) -> None:
    weight = nn.Parameter(flnb.ones((ROWS, WIDTH)))
    optimizer = kind([weight], lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        (weight * weight).sum().backward()
        optimizer.step()

    run = flnb.jit(step)
    for _ in range(3):
        run()
    written = [old.tensor._data for old, _ in run.programs[-1].updates if old.spec.ndim]
    states = [x._data for x in optimizer._named_state().values() if x.ndim]
    assert {id(x) for x in written} == {id(x) for x in (weight.data._data, *states)}


@pytest.mark.parametrize("name", ["lenet", "resnet18"])
def test_what_no_loop_nest_computes_is_computed_once(name: str) -> None:
    flnb.manual_seed(0)
    recipe = flnb.models.get(name)
    model = recipe.build("small")
    batch = [flnb.asarray(array) for array in recipe.batch("small", size=2)]

    @flnb.jit
    def step(*batch: Any) -> Any:
        for parameter in model.parameters():
            parameter.grad = None
        loss = recipe.loss(model, *batch)
        loss.backward()
        return loss

    for _ in range(2):
        step(*batch)
    (program,) = step.programs
    counts = [
        Counter(
            value.op.name
            for value in values
            if value.op is not None and value.op.name in {"conv2d", "matmul", "max_pool2d"}
        )
        for values in (reachable(program.recorded.wanted), [x for group in program.groups for x in group.members])
    ]
    assert counts[0] == counts[1]
    assert counts[0]["conv2d"] > 1
