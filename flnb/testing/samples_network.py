"""Sample calls of neural network ops: convolution, pooling, activations, losses, attention, recurrent layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from flnb import ops
from flnb.testing.sample import Array, Sample, apart, direct

SIZES = {1: (7,), 2: (6, 5), 3: (4, 3, 3)}
KERNELS = {1: (3,), 2: (3, 2), 3: (2, 2, 1)}


def network_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of all neural network ops that are not part of the array API standard."""
    yield from _activations(rng)
    yield from _attention(rng)
    yield from _normalizations(rng)
    yield from _losses(rng)
    yield from _choices(rng)
    yield from _paddings(rng)
    yield from _recurrences(rng)
    for rank, batch in itertools.product((1, 2, 3), (2, 0)):
        yield from _convolutions(rng, rank, batch)
        yield from _poolings(rng, rank, batch)
    for stride, padding in ((2, 1), ((1, 2), (0, 2))):
        note = f"stride {stride} padding {padding}"
        inputs = apart(rng, 2, 3, 6, 5), apart(rng, 4, 3, 3, 2)
        yield Sample("conv2d", lambda x, w, s=stride, p=padding: ops.conv2d(x, w, None, s, p), inputs, note)
    strided = apart(rng, 5, 4, 2, 2), apart(rng, 2, 4, 2, 3)
    yield Sample("conv2d", lambda x, w: ops.conv2d(x.T, w[:, ::2]), strided, "strided")
    yield Sample("max_pool2d", lambda x: ops.max_pool2d(x, 3, 2, 1), (apart(rng, 2, 2, 5, 5),), "overlapping")
    yield Sample("max_pool2d", lambda x: ops.max_pool2d(x.T, 2), (apart(rng, 6, 4, 2, 2),), "strided")
    yield Sample("add", lambda x: ops.avg_pool2d(x, 3, 2, 1), (apart(rng, 1, 2, 5, 5),), "avg_pool2d")


def _convolutions(rng: np.random.Generator, rank: int, batch: int) -> Iterator[Sample]:
    """Yield samples of convolutions of ``batch`` images over ``rank`` axes, and of the ops for their gradients."""
    name, size, kernel, empty = f"conv{rank}d", SIZES[rank], KERNELS[rank], "" if batch else "empty "
    function = getattr(ops, name)
    x, w = apart(rng, batch, 3, *size), apart(rng, 2, 3, *kernel)
    yield Sample(name, function, (x, w), empty.strip())
    yield Sample(f"{name}_bias", function, (x, w, apart(rng, 2)), empty.strip())
    inputs = apart(rng, batch, 4, *size), apart(rng, 6, 2, *kernel)
    yield Sample(name, lambda x, w: function(x, w, None, 2, 1, 2, 2), inputs, f"{empty}dilated in groups")
    placing = (2,) * rank, (1,) * rank, (1,) * rank
    fit = tuple((n + 2 - k) // 2 + 1 for n, k in zip(size, kernel, strict=True))
    g, w = apart(rng, batch, 4, *fit), apart(rng, 4, 3, *kernel)
    for groups in (1, 2):
        x, note = apart(rng, batch, 3 * groups, *size), f"{empty}groups {groups}"
        yield direct(f"{name}_input_grad", (g, w), *placing, groups, size, note=note)
        yield direct(f"{name}_weight_grad", (g, x), *placing, groups, kernel, note=note)


def _poolings(rng: np.random.Generator, rank: int, batch: int) -> Iterator[Sample]:
    """Yield samples of pooling over ``rank`` axes and of the ops that compute its gradients."""
    name, size, two, empty = f"max_pool{rank}d", (4, 6, 2)[:rank], (2,) * rank, "" if batch else "empty "
    largest, mean = getattr(ops, name), getattr(ops, f"avg_pool{rank}d")
    image, half = apart(rng, batch, 2, *size), tuple(n // 2 for n in size)
    yield Sample(name, lambda x: largest(x, 2), (image,), empty.strip())
    yield Sample("multiply", lambda x: mean(x, 2, 1), (image,), f"{empty}avg_pool{rank}d")
    yield direct(f"{name}_grad", (apart(rng, batch, 2, *half), image), two, two, note=empty.strip())
    yield direct(f"{name}_select", (apart(rng, batch, 2, *size), image), two, two, note=empty.strip())


def _activations(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of activation functions."""
    for shape, note in (((3, 4), ""), ((), "0d"), ((0, 2), "empty")):
        yield Sample("gelu", ops.gelu, (apart(rng, *shape) - 1.3,), note)
        yield Sample("gelu_tanh", lambda x: ops.gelu(x, approximate="tanh"), (apart(rng, *shape) - 1.3,), note)
        yield Sample("swish", lambda x: ops.swish(x, beta=1.5), (apart(rng, *shape) - 1.3,), note)
    yield Sample("gelu", lambda x: ops.gelu(x.T), (rng.normal(size=(3, 4)),), "strided")
    for axis in (0, -1):
        yield Sample("multiply", lambda x, a=axis: ops.glu(x, axis=a), (rng.normal(size=(4, 2, 6)),), f"glu {axis}")
    for op, function in (("elu", ops.elu), ("leaky_relu", ops.leaky_relu), ("hardtanh", ops.hardtanh)):
        for shape, note in (((3, 4), ""), ((), "0d"), ((0, 2), "empty")):
            yield Sample(op, function, (apart(rng, *shape) - 1.3,), note)
    yield Sample("elu", lambda x: ops.elu(x, alpha=0.3), (apart(rng, 3, 4) - 1.3,), "alpha")
    yield Sample("hardtanh", lambda x: ops.relu6(x.T), (4.0 * apart(rng, 3, 4) - 3.0,), "relu6 strided")
    yield Sample("where", lambda x: ops.threshold(x, 1.2, 7.0), (apart(rng, 3, 4),), "threshold")
    for slopes in (1, 4):
        yield Sample("where", ops.prelu, (apart(rng, 3, 4, 2) - 1.3, apart(rng, slopes)), f"prelu {slopes}")


def _normalizations(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of layer, group and Lp normalization."""
    affine = tuple(rng.normal(size=(3, 2)) for _ in range(2))
    for count in (0, 1, 2):
        inputs = (rng.normal(size=(4, 3, 2)), *affine[:count])
        yield Sample("layer_norm", lambda x, *a: ops.layer_norm(x, (3, 2), *a), inputs, f"{count} of weight and bias")
    yield Sample("layer_norm", lambda x: ops.layer_norm(x, 4, eps=0.1), (rng.normal(size=(0, 4)),), "empty")
    channels = rng.normal(size=4), rng.normal(size=4)
    yield Sample(
        "layer_norm", lambda x, w, b: ops.group_norm(x, 2, w, b), (rng.normal(size=(2, 4, 3)), *channels), "groups"
    )
    for p in (1, 2, 3):
        yield Sample("divide", lambda x, p=p: ops.normalize(x, p, axis=0), (apart(rng, 3, 4),), f"normalize {p}")


def _losses(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of loss functions, with each reduction."""
    for shape, note in (((3, 4), ""), ((0, 2), "empty")):
        pairs = apart(rng, *shape) / 3.0, rng.uniform(size=shape)
        for f in (ops.binary_cross_entropy, ops.binary_cross_entropy_with_logits):
            yield Sample(f.__name__, lambda x, t, f=f: f(x, t, "none"), pairs, note)
    pairs = apart(rng, 3), -apart(rng, 3)
    for reduction in ("mean", "sum", "none"):
        yield Sample("square", lambda x, t, r=reduction: ops.mse_loss(x, t, r), pairs, f"mse {reduction}")
        yield Sample("abs", lambda x, t, r=reduction: ops.l1_loss(x, t, r), pairs, f"l1 {reduction}")


def _attention(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of attention, with masks and biases."""
    attend = ops.scaled_dot_product_attention

    def inputs(*batch: int) -> tuple[Array, ...]:
        """Return random queries, keys and values."""
        shapes = ((*batch, 3, 2), (*batch, 4, 2), (*batch, 4, 5))
        return tuple(rng.normal(size=shape) for shape in shapes)

    mask = np.array([[True, False, True, True], [False] * 4, [True, True, False, False]])
    yield Sample("matmul", attend, inputs(2), "attention")
    yield Sample("matmul", lambda q, k, v: attend(q, k, v, is_causal=True), inputs(2, 2), "attention causal")
    yield Sample("matmul", lambda q, k, v, m: attend(q, k, v, m), (*inputs(2), mask), "attention masked")
    biased = (*inputs(2), rng.normal(size=(3, 4)))
    yield Sample("matmul", lambda q, k, v, m: attend(q, k, v, m, scale=0.3), biased, "attention biased")


def _choices(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of ops that select elements: top k, maximum with index, median, embedding, labels' scores."""
    for axis, k, largest in ((-1, 2, True), (0, 3, False), (1, 0, True), (1, 4, True)):
        inputs, note = (apart(rng, 3, 4),), f"topk {k} along {axis}"
        yield Sample("gather", lambda x, a=axis, k=k, m=largest: ops.topk(x, k, a, m).values, inputs, note)
        yield Sample("argtopk", lambda x, a=axis, k=k, m=largest: ops.topk(x, k, a, m).indices, inputs, note)
    yield Sample("gather", lambda x: ops.max_with_indices(x.T, 0).values, (apart(rng, 3, 4),), "maximum and index")
    yield Sample("argmin", lambda x: ops.min_with_indices(x, keepdims=True).indices, (apart(rng, 3, 4),), "minimum")
    for over in (None, 1, (0, 2)):
        yield Sample("sort", lambda x, a=over: ops.median(x, axis=a), (apart(rng, 3, 4, 2),), f"median over {over}")
    yield Sample("sort", lambda x: ops.median(x, axis=0, keepdims=True), (apart(rng, 5, 0),), "median of none")
    yield Sample("gather", ops.embedding, (np.array([[2, 0], [2, 2]]), apart(rng, 3, 2)), "embedding")
    scores = apart(rng, 3, 4), np.array([0, 3, 1]), apart(rng, 4)
    for reduction in ("mean", "sum", "none"):
        weighted = lambda x, t, w, r=reduction: ops.cross_entropy(x, t, r, w)  # noqa: E731
        yield Sample("cross_entropy", weighted, scores, f"weighted {reduction}")
    yield Sample("gather", lambda x, t, w: ops.nll_loss(x, t, weight=w), scores, "weighted nll_loss")


def _paddings(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of `pad` in the modes that repeat values of the array, instead of filling with a constant."""
    widths = ((1, 0), (2, 3))
    for mode in ("edge", "symmetric", "reflect"):
        yield Sample("gather", lambda x, m=mode: ops.pad(x, widths, mode=m), (apart(rng, 2, 3),), f"pad {mode}")


def _recurrences(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of recurrent layers."""

    def inputs(gates: int, n: int = 2) -> tuple[Array, ...]:
        """Return a random sequence of batch size ``n``, the initial state, and weights and biases of all gates."""
        shapes = (3, n, 3), (n, 2), (2 * gates, 3), (2 * gates, 2), (2 * gates,)
        return tuple(rng.normal(size=shape) for shape in shapes)

    yield Sample("rnn", lambda x, h, w, u, b: ops.rnn(x, h, w, u, b)[0], inputs(1))
    yield Sample("rnn", lambda x, h, w, u, b: ops.rnn(x, h, w, u, b, "relu")[0], inputs(1), "relu")
    yield Sample("rnn", lambda x, h, w, u, b: ops.rnn(x, h, w, u, b)[0], inputs(1, n=0), "empty")
    yield Sample("lstm", lambda x, h, w, u, b: ops.lstm(x, (h, h), w, u, b)[0], inputs(4), "every h")
    yield Sample("lstm", lambda x, h, w, u, b: ops.lstm(x, (h, h), w, u, b)[1][1], inputs(4), "last c")
    yield Sample("lstm", lambda x, h, w, u, b: ops.lstm(x, (h, h), w, u, b)[0], inputs(4, n=0), "empty")
    yield Sample("gru", lambda x, h, w, u, b: ops.gru(x, h, w, u, b, b)[1], inputs(3), "last h")
    yield Sample("gru", lambda x, h, w, u, b: ops.gru(x, h, w, u, b)[0], inputs(3), "every h, no bias of h")
    yield Sample("gru", lambda x, h, w, u, b: ops.gru(x, h, w, u, b, b)[0], inputs(3, n=0), "empty")
