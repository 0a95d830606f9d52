"""`flnb.testing.samples`: sample calls of every op, with small inputs at which gradients are well-conditioned.

They are used to check the gradients of all ops and to compare backends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flnb import ops, random
from flnb.dispatch.table import OPS
from flnb.testing.sample import Sample
from flnb.testing.sample import apart as _apart
from flnb.testing.sample import direct as _direct
from flnb.testing.samples_complex import complex_samples
from flnb.testing.samples_linalg import linalg_samples
from flnb.testing.samples_network import network_samples
from flnb.testing.samples_small import small_samples

__all__ = ["Sample", "samples"]

DOMAINS = {"asin": (0.35, 0.0), "acos": (0.35, 0.0), "atanh": (0.35, 0.0), "acosh": (1.0, 0.7), "tan": (0.5, 0.0)}
"""Scale and shift that move arguments from (0.5, 2.5) to where a function is smooth, for functions that need that."""
REDUCTIONS = ("sum", "prod", "max", "min", "argmax", "argmin")


def samples(seed: int = 0) -> list[Sample]:
    """Return sample calls of every op: broadcast, 0-d, empty and non-contiguous arrays, Python scalars.

    Args:
        seed: seed of the random inputs.

    >>> import flnb
    >>> sorted({sample.op for sample in flnb.testing.samples()})[:3]
    ['abs', 'acos', 'acosh']
    """
    rng = np.random.default_rng(seed)
    parts = (_elementwise, _reductions, _searches, _movement, _arrangements, _products, _composites, _creation)
    return [
        sample
        for part in (*parts, linalg_samples, network_samples, complex_samples, small_samples)
        for sample in part(rng)
    ]


def _elementwise(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of elementwise ops of one to three arguments."""
    bools, integers = np.array([True, False, True]), (np.array([5, -6, 7]), np.array([[1], [2]]))
    exact = {"bool": (bools, np.array([[True], [False]])), "bits": integers, "integer": integers}
    for op in list(OPS.values()):
        if op.family != "elementwise" or op.arity not in (1, 2) or op.body is not None or not hasattr(ops, op.name):
            continue  # a composite, or an op of the user
        function = getattr(ops, op.name)
        if op.accepts in exact:
            yield Sample(op.name, function, exact[op.accepts][: op.arity])
        else:
            yield from (_unary if op.arity == 1 else _binary)(op.name, function, rng)
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        yield Sample(name, getattr(ops, name), (np.array([1.0, 2.0, 3.0]), np.array([[2.0], [3.0]])), "equal values")
    yield Sample("where", ops.where, (bools, _apart(rng, 2, 3), _apart(rng, 3)))
    yield Sample("where", lambda c, x: ops.where(c, x, 0.5), (bools, _apart(rng, 3)), "scalar")
    yield Sample("astype", lambda x: ops.astype(x, np.float64) * 1.0, (_apart(rng, 3),))
    yield Sample("copy", lambda x: ops.copy(x.T), (_apart(rng, 3, 4),), "strided")
    yield Sample("maximum", lambda x: ops.clip(x, 0.9, 1.9), (_apart(rng, 12),), "clip")


def _unary(name: str, function: Callable[..., Any], rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of an elementwise function of one array."""
    scale, shift = DOMAINS.get(name, (1.0, 0.0))
    yield Sample(name, function, (scale * _apart(rng, 3, 4) + shift,))
    yield Sample(name, lambda x: function(x.T), (scale * _apart(rng, 4, 3) + shift,), "strided")
    yield Sample(name, function, (scale * _apart(rng) + shift,), "0d")
    yield Sample(name, function, (_apart(rng, 0, 3),), "empty")


def _binary(name: str, function: Callable[..., Any], rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of an elementwise function of two arrays."""
    yield Sample(name, function, (_apart(rng, 3, 4), 0.3 + _apart(rng, 3, 4)))
    yield Sample(name, function, (_apart(rng, 3, 1), 0.3 + _apart(rng, 1, 4)), "broadcast")
    yield Sample(name, lambda a, b: function(a.T, b[::2]), (_apart(rng, 4, 3), _apart(rng, 6, 4)), "strided")
    yield Sample(name, function, (_apart(rng), 0.3 + _apart(rng, 2)), "0d")
    yield Sample(name, lambda x: function(x, 1.3), (_apart(rng, 3),), "right-scalar")
    yield Sample(name, lambda x: function(1.3, x), (_apart(rng, 3),), "left-scalar")
    yield Sample(name, function, (_apart(rng, 0, 4), _apart(rng, 4)), "empty")


def _reductions(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of reductions and cumulative ops."""
    for name in REDUCTIONS:
        function = getattr(ops, name)
        yield Sample(name, function, (_apart(rng, 3, 4),), "all")
        yield Sample(name, lambda x, f=function: f(x, axis=1), (_apart(rng, 3, 4),), "axis")
        yield Sample(name, lambda x, f=function: f(x.T, axis=0, keepdims=True), (_apart(rng, 4, 3),), "keepdims")
    yield Sample("sum", lambda x: ops.sum(x, axis=(0, 2)), (_apart(rng, 2, 3, 4),), "axes")
    yield Sample("sum", lambda x: ops.sum(x, axis=0), (_apart(rng, 0, 3),), "empty")
    yield Sample("prod", lambda x: ops.prod(x, axis=1), (np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 2.0]]),), "zeros")
    yield Sample("sum", lambda x: ops.mean(x, axis=1), (_apart(rng, 3, 4),), "mean")
    yield Sample("sum", lambda x: ops.var(x, axis=0, correction=1), (_apart(rng, 3, 4),), "var")
    yield Sample("sum", lambda x: ops.std(x), (_apart(rng, 3, 4),), "std")
    yield Sample("any", ops.any, (np.array([[False, True], [False, False]]),))
    yield Sample("all", lambda x: ops.all(x, axis=1), (np.array([[False, True], [True, True]]),))
    for name in ("cumulative_sum", "cumulative_prod"):
        function = getattr(ops, name)
        yield Sample(name, lambda x, f=function: f(x, axis=1), (_apart(rng, 3, 4),))
        yield Sample(name, lambda x, f=function: f(x.T, axis=0, include_initial=True), (_apart(rng, 3, 4),), "initial")
    zeros = np.array([[0.0, 2.0, 3.0], [2.0, 0.0, 0.0]])
    yield Sample("cumulative_prod", lambda x: ops.cumulative_prod(x, axis=1), (zeros,), "zeros")
    yield Sample("subtract", lambda x: ops.diff(x, n=2, prepend=x[:, :1]), (_apart(rng, 3, 4),), "diff")


def _searches(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of sorting, searching and set functions."""
    for axis, descending in ((0, False), (-1, True)):
        note = f"axis {axis}{' descending' if descending else ''}"
        for name in ("sort", "argsort"):
            function = functools.partial(getattr(ops, name), axis=axis, descending=descending)
            yield Sample(name, function, (_apart(rng, 3, 4),), note)
            yield Sample(name, function, (np.array([[2, 1, 2, 1], [1, 1, 2, 0]]),), f"{note} ties")
    for side in ("left", "right"):
        insert = functools.partial(ops.searchsorted, side=side)
        yield Sample("searchsorted", insert, (np.array([1.0, 2.0, 2.0]), np.array([[0.0, 2.0], [1.5, 9.0]])), side)
    yield Sample("nonzero", lambda x: ops.stack(ops.nonzero(x)), (np.array([[0, 3], [4, 5]]),))
    yield Sample("sum", lambda x: ops.count_nonzero(x, axis=0), (np.array([[0, 3], [4, 5]]),), "count_nonzero")
    yield Sample("nonzero", lambda x: ops.unique_all(x).inverse_indices, (np.array([[3, 1], [3, 2]]),), "unique_all")


def _movement(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of primitives that reshape, join, pad, index and scatter."""
    yield Sample("reshape", lambda x: ops.reshape(x, (2, 6)), (_apart(rng, 3, 4),))
    yield Sample("reshape", lambda x: ops.reshape(x.T, (12,)), (_apart(rng, 4, 3),), "strided")
    yield Sample("permute_dims", lambda x: ops.permute_dims(x, (2, 0, 1)), (_apart(rng, 2, 3, 4),))
    yield Sample("broadcast_to", lambda x: ops.broadcast_to(x, (2, 3, 4)), (_apart(rng, 3, 1),))
    yield Sample("flip", lambda x: ops.flip(x, axis=1), (_apart(rng, 3, 4),))
    yield Sample("pad", lambda x: ops.pad(x, ((1, 0), (2, 3)), 0.5), (_apart(rng, 2, 3),))
    yield Sample("concat", lambda a, b: ops.concat([a, b, a], axis=1), (_apart(rng, 2, 3), _apart(rng, 2, 2)))
    yield Sample("concat", lambda a, b: ops.stack([a, b]), (_apart(rng, 2), _apart(rng, 2)), "stack")
    yield Sample("slice", lambda x: x[1:, ::-2, None], (_apart(rng, 3, 4),))
    yield Sample("slice", lambda x: x[..., 1], (_apart(rng, 3, 4),), "int")
    yield _direct("place", (_apart(rng, 3),), (5,), (("slice", 1, 4, None),))
    yield Sample("gather", lambda x: x[[0, 2, 0], [1, 1, 1]], (_apart(rng, 3, 4),), "duplicates")
    yield Sample("gather", lambda x: x[:, np.array([[0, 1], [3, 0]])], (_apart(rng, 3, 4),), "matrix")
    yield Sample("gather", lambda x: x[np.array([True, False, True])], (_apart(rng, 3, 4),), "mask")
    yield _direct("scatter_add", (_apart(rng, 3), np.array([1, 3, 1])), (4,), (("index", 0),))
    yield Sample("put", _put, (np.arange(6).reshape(2, 3), np.array([7, 8]), np.array([0, 2])))


def _arrangements(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of functions that rearrange elements, made of other ops."""
    index = np.array([[2, 0], [1, 1], [0, 2]])
    yield Sample("gather", lambda x, i: ops.take_along_axis(x, i, axis=1), (_apart(rng, 3, 4), index), "along axis")
    yield Sample("gather", lambda x: ops.take(x, [1, 0, 1], axis=1), (_apart(rng, 3, 4),), "take")
    yield Sample("gather", lambda x: ops.repeat(x, [2, 0, 1], axis=0), (_apart(rng, 3, 4),), "repeat")
    yield Sample("gather", lambda x: x[True], (_apart(rng, 3),), "truth")
    yield Sample("broadcast_to", lambda x: ops.repeat(x, 2), (_apart(rng, 3, 4),), "repeat")
    yield Sample("broadcast_to", lambda x: ops.tile(x, (2, 1, 3)), (_apart(rng, 2, 3),), "tile")
    yield Sample("broadcast_to", lambda a, b: ops.meshgrid(a, b)[1], (_apart(rng, 2), _apart(rng, 3)), "meshgrid")
    yield Sample("concat", lambda x: ops.roll(x, (1, -2), axis=(0, 1)), (_apart(rng, 3, 4),), "roll")
    yield Sample("permute_dims", lambda x: ops.moveaxis(x, 0, -1), (_apart(rng, 2, 3, 4),), "moveaxis")
    yield Sample("slice", lambda x: ops.unstack(x, axis=1)[2], (_apart(rng, 3, 4),), "unstack")
    yield Sample("where", lambda x: ops.tril(x, k=1), (_apart(rng, 2, 3, 4),), "tril")
    yield Sample("where", lambda x: ops.triu(x, k=-1), (_apart(rng, 4, 3),), "triu")


def _put(x: Any, values: Any, index: Any) -> Any:
    """Return a copy of ``x`` with ``values`` written to the columns ``index`` of its first row."""
    target = x.copy()
    target[0, index] = values
    return target


def _products(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of matrix products."""
    yield Sample("matmul", ops.matmul, (_apart(rng, 3, 4), _apart(rng, 4, 2)))
    yield Sample("matmul", ops.matmul, (_apart(rng, 2, 1, 3, 4), _apart(rng, 3, 4, 2)), "batched")
    yield Sample("matmul", ops.matmul, (_apart(rng, 4), _apart(rng, 4, 2)), "vector")
    for shape in ((3, 4), (2, 3, 4), (0, 4)):
        inputs = _apart(rng, *shape), _apart(rng, 2, 4), _apart(rng, 2)
        yield Sample("linear", ops.linear, inputs, f"{shape}")
        yield Sample("linear", ops.linear, inputs[:2], f"{shape} no bias")


def _composites(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of activations, losses and batch normalization."""
    yield Sample("relu", ops.relu, (_apart(rng, 3, 4) - 1.5,))
    yield Sample("sigmoid", ops.sigmoid, (_apart(rng, 3, 4) - 1.5,))
    for axis in (0, -1):
        yield Sample("softmax", lambda x, a=axis: ops.softmax(x, a), (_apart(rng, 3, 4),), f"axis {axis}")
        yield Sample("log_softmax", lambda x, a=axis: ops.log_softmax(x, a), (_apart(rng, 3, 4),), f"axis {axis}")
    scored = _apart(rng, 3, 4), np.array([0, 3, 1])
    for reduction in ("mean", "sum", "none"):
        yield Sample("cross_entropy", lambda x, t, r=reduction: ops.cross_entropy(x, t, r), scored, reduction)
    yield Sample("gather", ops.nll_loss, scored, "nll_loss")
    channels = [_apart(rng, 3) for _ in range(4)]
    yield Sample("batch_norm", ops.batch_norm, (_apart(rng, 4, 3, 2, 2), *channels[:2]))
    yield Sample("batch_norm", ops.batch_norm, (_apart(rng, 5, 3), *channels[:2]), "matrix")
    evaluation = functools.partial(ops.batch_norm, training=False)
    yield Sample("divide", evaluation, (_apart(rng, 4, 3), *channels), "batch_norm in evaluation")


def _creation(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of ops that make tensors from no tensor."""
    yield Sample("from_numpy", lambda x: ops.asarray(x), (rng.normal(size=(2, 3)).astype(np.float32),))
    yield Sample("full", lambda: ops.full((2, 3), 2.5), ())
    yield Sample("arange", lambda: ops.arange(1, 9, 2), ())
    yield Sample("eye", lambda: ops.eye(2, 3, k=-1), ())
    yield Sample("empty_like", lambda: ops.empty((2, 3), dtype=np.int64) * 0, ())
    yield Sample("from_numpy", lambda: ops.linspace(0, 1, 5), (), "linspace")
    for name in ("uniform", "normal"):
        draw = getattr(random, name)
        yield Sample(f"random_{name}", lambda f=draw: f((3, 4), generator=random.Generator(5)), ())
    yield Sample("random_mask", lambda: ops.dropout(ops.ones((3, 4)), 0.3, generator=random.Generator(5)), ())
