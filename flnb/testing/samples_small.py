"""Sample calls on empty tensors and 0-d tensors, for every op that accepts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flnb import fft, linalg, ops
from flnb.testing.sample import Sample, direct

LABELS = np.zeros(0, np.int64)

EITHER: dict[str, Callable[[Any], Any]] = {
    "astype": lambda x: ops.astype(x, np.float64) * 1.0,
    "broadcast_to": lambda x: ops.broadcast_to(x, (2, *x.shape)),
    "concat": lambda x: ops.stack([x, x]),
    "copy": ops.copy,
    "flip": ops.flip,
    "pad": lambda x: ops.pad(x, ((1, 2),) * x.ndim),
    "permute_dims": lambda x: ops.permute_dims(x, tuple(range(x.ndim))[::-1]),
    "prod": ops.prod,
    "relu": ops.relu,
    "reshape": lambda x: ops.reshape(x, (1, *x.shape, 1)),
    "sigmoid": ops.sigmoid,
    "slice": lambda x: x[None] * x[...],
    "sum": ops.sum,
    "where": lambda x: ops.where(x > 1.0, x * x, 1.0),
}
"""For each op a function that calls it, for inputs of shape (0, 3) and of shape ()."""
EMPTY: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "cross_entropy": (lambda x: ops.cross_entropy(x, LABELS, "none"), (0, 3)),
    "cumulative_prod": (lambda x: ops.cumulative_prod(x, axis=0), (0, 3)),
    "cumulative_sum": (lambda x: ops.cumulative_sum(x, axis=1), (0, 3)),
    "eigh": (lambda x: linalg.eigh(x).eigenvectors, (2, 0, 0)),
    "gather": (lambda x: x[:, [0, 1, 0]], (0, 2)),
    "ifftn": (lambda x: ops.real(fft.ifft(x)), (0, 4)),
    "irfftn": (fft.irfft, (0, 4)),
    "log_softmax": (ops.log_softmax, (0, 3)),
    "max": (lambda x: ops.max(x, axis=1), (0, 3)),
    "min": (lambda x: ops.min(x, axis=1), (0, 3)),
    "prod": (lambda x: ops.prod(x, axis=0), (0, 2)),
    "rfftn": (lambda x: ops.real(fft.rfft(x)), (0, 4)),
    "slice": (lambda x: x[..., 0], (0, 2)),
    "softmax": (ops.softmax, (0, 3)),
}
ZERO_DIMENSIONAL = {"gather": lambda x: x[True], "max": ops.max, "min": ops.min, "sort": ops.median}


def small_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples on empty tensors, and on 0-d tensors."""
    for op, (function, shape) in ({name: (f, (0, 3)) for name, f in EITHER.items()} | EMPTY).items():
        yield Sample(op, function, (rng.uniform(0.5, 1.5, shape),), "nothing")
    yield Sample("gather", lambda x: x[LABELS], (rng.normal(size=(3, 2)),), "nothing chosen")
    yield Sample("slice", lambda x: x[1:1], (rng.normal(size=(3, 2)),), "nothing chosen")
    for op, function in (EITHER | ZERO_DIMENSIONAL).items():
        yield Sample(op, function, (rng.uniform(1.5, 2.5, ()),), "no dimension")
    yield direct("place", (np.zeros(0),), (5,), (("slice", 1, 1, None),), note="nothing")
    yield direct("scatter_add", (np.zeros(0), LABELS), (4,), (("index", 0),), note="nothing")
