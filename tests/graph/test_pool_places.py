"""Max pooling in programs: the gradient reads places of maxima, not the image, and has the same bits."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.backends import CpuBackend, NumpyBackend
from flnb.graph.fusing import is_late
from flnb.graph.pooling import pooling_of

pytest.importorskip("llvmlite")
pytest.importorskip("cffi")
RNG = np.random.default_rng(0)
POOLS = {1: flnb.max_pool1d, 2: flnb.max_pool2d, 3: flnb.max_pool3d}


def with_gradient(rank: int, kernel: int, stride: int, padding: int = 0) -> Any:
    def compute(x: Any) -> Any:
        y = POOLS[rank](flnb.maximum(x, 0.125) * 2.0, kernel, stride, padding)
        y.backward(flnb.reshape(flnb.arange(y.size, dtype=y.dtype), y.shape) * 0.25 - 3.0)
        return y.detach()

    return compute


def same(rank: int, kernel: int, stride: int, image: Any, padding: int = 0) -> Any:
    """Compare pooling in a program with ops that run at once, to the bit; returns the program."""
    compute = with_gradient(rank, kernel, stride, padding)
    jitted = flnb.jit(compute)
    for i in range(3):
        values = image + np.float32(i)
        x, other = flnb.Variable(flnb.asarray(values)), flnb.Variable(flnb.asarray(values))
        y, expected = jitted(x), compute(other)
        np.testing.assert_array_equal(y.numpy(), expected.numpy())
        np.testing.assert_allclose(x.grad.numpy(), other.grad.numpy(), rtol=2e-6, atol=1e-7)
    (program,) = jitted.programs
    return program


def pooled(program: Any) -> list[str]:
    """The names of ops that write or read places."""
    return [x.op.name for group in program.groups for x in group.members if x.op and pooling_of(x) is not None]


@pytest.mark.parametrize(("rank", "kernel", "stride"), [(2, 2, 2), (2, 3, 2), (2, 2, 3), (1, 3, 1), (3, 2, 2)])
def test_gradients_by_places_are_those_by_the_image(rank: int, kernel: int, stride: int) -> None:
    with flnb.use_backend(CpuBackend()):
        image = RNG.integers(-4, 5, (2, 8, *[13] * rank)).astype(np.float32)  # with equal maxima
        program = same(rank, kernel, stride, image)
        assert pooled(program) == [f"max_pool{rank}d", f"max_pool{rank}d_grad"]


def test_images_that_are_not_finite_send_gradients_where_numpy_does() -> None:
    with flnb.use_backend(CpuBackend()):
        image = RNG.standard_normal((2, 8, 12, 12)).astype(np.float32)
        for kernel, stride, wrong in itertools.product([2, 3], [2, 3], [np.nan, np.inf]):
            broken = image.copy()
            broken[0, 1, 3, 4] = broken[1, 2, 11, 11] = wrong
            assert len(pooled(same(2, kernel, stride, broken))) == 2


@pytest.mark.parametrize("backend", [CpuBackend, NumpyBackend])
def test_padding_and_double_precision_have_places_too(backend: Any) -> None:
    with flnb.use_backend(backend()):
        image = RNG.standard_normal((2, 4, 9, 9))
        for dtype, padding in itertools.product([np.float32, np.float64], [0, 1]):
            assert len(pooled(same(2, 3, 2, image.astype(dtype), padding=padding))) == 2


def test_windows_whose_code_would_be_long_are_pooled_by_the_backends_methods() -> None:
    with flnb.use_backend(CpuBackend()):
        assert len(pooled(same(2, 11, 1, RNG.standard_normal((1, 2, 13, 13)).astype(np.float32)))) == 2
        assert not pooled(same(2, 12, 1, RNG.standard_normal((1, 2, 13, 13)).astype(np.float32)))


def test_a_gradient_that_is_a_view_is_read_in_its_order() -> None:
    def compute(x: Any) -> Any:
        y = flnb.max_pool2d(x * 2.0, 2)
        (flnb.sum(y) + flnb.sum(y.mT * flnb.arange(6.0))).backward()
        return y.detach()

    with flnb.use_backend(CpuBackend()):
        x, other = (flnb.Variable(flnb.arange(2 * 12 * 12.0).reshape(1, 2, 12, 12)) for _ in range(2))
        jitted = flnb.jit(compute)
        for _ in range(2):
            x.grad = None
            jitted(x)
        compute(other)
        np.testing.assert_array_equal(x.grad.numpy(), other.grad.numpy())


def network() -> Any:
    flnb.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(first, nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2))


def train(net: Any, x: Any) -> Any:
    net.zero_grad()
    loss = (net(x) ** 2).mean()
    loss.backward()
    return loss


def kept(program: Any) -> int:
    """The bytes of values that are made in the forward and read in the backward pass."""
    read = {program.layouts[x].root for group in program.groups for y in group.members if is_late(y) for x in y.inputs}
    return sum(x.spec.nbytes for x in program.memory.offset if not is_late(x) and x in read)


def test_the_image_is_not_kept_for_the_backward_pass() -> None:
    x = flnb.asarray(RNG.standard_normal((4, 3, 32, 32)).astype(np.float32))
    sizes, found = [], []
    for places in (False, True):

        class Pooling(CpuBackend):
            def pooling(self, *arguments: Any, places: bool = places) -> Any:
                return super().pooling(*arguments) if places else None

        with flnb.use_backend(Pooling()):
            net = network()
            step = flnb.jit(lambda x, net=net: train(net, x))
            for _ in range(3):
                loss = step(x)
            sizes.append(kept(step.programs[0]))
            found.append([loss.item(), *[p.grad.numpy().copy() for p in net.parameters()]])
    assert sizes[1] <= 0.8 * sizes[0]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-7)


def test_an_overriding_class_pools_itself_in_each_run() -> None:
    calls: Counter[str] = Counter()

    class Telling(CpuBackend):
        def max_pool2d_grad(self, *arguments: Any, **keywords: Any) -> Any:
            calls["grad"] += 1
            return super().max_pool2d_grad(*arguments, **keywords)

    with flnb.use_backend(Telling()):
        net, x = network(), flnb.asarray(RNG.standard_normal((2, 3, 16, 16)).astype(np.float32))
        step = flnb.jit(lambda x: train(net, x))
        for _ in range(3):
            step(x)
        calls.clear()
        step(x)
    assert calls["grad"] == 2
    assert not pooled(step.programs[0])


def test_a_recording_counts_pooling_as_it_does_for_ops_that_run_at_once() -> None:
    with flnb.use_backend(CpuBackend()):
        net, x = network(), flnb.asarray(RNG.standard_normal((2, 3, 16, 16)).astype(np.float32))
        step = flnb.jit(lambda x: train(net, x))
        for _ in range(3):
            step(x)
        with flnb.record() as run:
            step(x)
    counts = {row.key[0]: row.count for row in run.ops}
    assert (counts["max_pool2d"], counts["max_pool2d_grad"]) == (2, 2)
