"""Samples of what networks are made of: convolution and pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flnb import ops
from flnb.testing.sample import Sample, apart, direct

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

SIZES = {1: (7,), 2: (6, 5), 3: (4, 3, 3)}
KERNELS = {1: (3,), 2: (3, 2), 3: (2, 2, 1)}


def network_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Convolution and pooling in one, two and three dimensions."""
    for rank in (1, 2, 3):
        yield from _convolutions(rng, rank)
        yield from _poolings(rng, rank)
    for stride, padding in ((2, 1), ((1, 2), (0, 2))):
        note = f"stride {stride} padding {padding}"
        inputs = apart(rng, 2, 3, 6, 5), apart(rng, 4, 3, 3, 2)
        yield Sample("conv2d", lambda x, w, s=stride, p=padding: ops.conv2d(x, w, None, s, p), inputs, note)
    strided = apart(rng, 5, 4, 2, 2), apart(rng, 2, 4, 2, 3)
    yield Sample("conv2d", lambda x, w: ops.conv2d(x.T, w[:, ::2]), strided, "strided")
    yield Sample("conv2d", ops.conv2d, (apart(rng, 0, 3, 4, 4), apart(rng, 2, 3, 1, 1)), "empty batch")
    yield Sample("max_pool2d", lambda x: ops.max_pool2d(x, 3, 2, 1), (apart(rng, 2, 2, 5, 5),), "overlapping")
    yield Sample("max_pool2d", lambda x: ops.max_pool2d(x.T, 2), (apart(rng, 6, 4, 2, 2),), "strided")
    yield Sample("add", lambda x: ops.avg_pool2d(x, 3, 2, 1), (apart(rng, 1, 2, 5, 5),), "avg_pool2d")


def _convolutions(rng: np.random.Generator, rank: int) -> Iterator[Sample]:
    name, size, kernel = f"conv{rank}d", SIZES[rank], KERNELS[rank]
    function = getattr(ops, name)
    yield Sample(name, function, (apart(rng, 2, 3, *size), apart(rng, 2, 3, *kernel)))
    yield Sample(name, function, (apart(rng, 2, 3, *size), apart(rng, 2, 3, *kernel), apart(rng, 2)), "bias")
    inputs = apart(rng, 2, 4, *size), apart(rng, 6, 2, *kernel)
    yield Sample(name, lambda x, w: function(x, w, None, 2, 1, 2, 2), inputs, "dilated in groups")
    placing = (2,) * rank, (1,) * rank, (1,) * rank, 1
    fit = tuple((n + 2 - k) // 2 + 1 for n, k in zip(size, kernel, strict=True))
    g = apart(rng, 2, 4, *fit)
    yield direct(f"{name}_input_grad", (g, apart(rng, 4, 3, *kernel)), *placing, size)
    yield direct(f"{name}_weight_grad", (g, apart(rng, 2, 3, *size)), *placing, kernel)
    grouped = *placing[:3], 2
    yield direct(f"{name}_input_grad", (g, apart(rng, 4, 3, *kernel)), *grouped, size, note="groups")
    yield direct(f"{name}_weight_grad", (g, apart(rng, 2, 6, *size)), *grouped, kernel, note="groups")


def _poolings(rng: np.random.Generator, rank: int) -> Iterator[Sample]:
    name, size, two = f"max_pool{rank}d", (4, 6, 2)[:rank], (2,) * rank
    half = tuple(n // 2 for n in size)
    largest, mean = getattr(ops, name), getattr(ops, f"avg_pool{rank}d")
    yield Sample(name, lambda x: largest(x, 2), (apart(rng, 2, 2, *size),))
    yield Sample("multiply", lambda x: mean(x, 2, 1), (apart(rng, 2, 2, *size),), f"avg_pool{rank}d")
    image = apart(rng, 1, 2, *size)
    yield direct(f"{name}_grad", (apart(rng, 1, 2, *half), image), two, two)
    yield direct(f"{name}_select", (apart(rng, 1, 2, *size), image), two, two)
