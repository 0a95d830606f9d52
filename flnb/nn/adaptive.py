"""Softmax and embedding for many classes, with fewer features for rare classes (Grave et al. 2017).

Classes are numbered by frequency, the most frequent first, and divided into clusters: the first has the classes below
the first cutoff, each further one the classes from one cutoff to the next, or from the last one to the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from flnb import ops, random
from flnb.nn import init
from flnb.nn.containers import ModuleList, Sequential
from flnb.nn.layers import Embedding, Linear
from flnb.nn.module import Module
from flnb.ops.loss import by_reduction

__all__ = ["AdaptiveEmbedding", "AdaptiveSoftmax", "AdaptiveSoftmaxLoss"]


class AdaptiveSoftmax(Module):
    """Log-probabilities of many classes, most of them rare: (N, in_features) -> (N, classes).

    Classes must be numbered by frequency, the most frequent first; ``cutoffs`` divide them into clusters. The linear
    map ``head`` computes one score for each class below the first cutoff, and one for each of the rarer clusters. The
    classes in rare cluster i (from 0) are scored from in_features / factor ** (i + 1) features. Grave et al. 2017,
    "Efficient softmax approximation for GPUs".

    Raises:
        ValueError: the cutoffs do not increase within 1 to classes - 1, or x has another shape.

    >>> import flnb, flnb.nn as nn
    >>> softmax = nn.AdaptiveSoftmax(8, 20, [4, 10])
    >>> round(float(flnb.exp(softmax(flnb.ones((1, 8)))).sum()), 4)
    1.0
    """

    def __init__(self, in_features: int, classes: int, cutoffs: Sequence[int], factor: float = 4.0) -> None:
        bounds = _bounds("AdaptiveSoftmax", classes, cutoffs)
        self.in_features, self.classes, self.bounds, self.factor = in_features, classes, bounds, factor
        self.head = Linear(in_features, bounds[0] + len(cutoffs), bias=False)
        self.tail = ModuleList()
        for i, (low, high) in enumerate(itertools.pairwise(bounds), 1):
            width = _width(in_features, factor, i)
            self.tail.append(Sequential(Linear(in_features, width, bias=False), Linear(width, high - low, bias=False)))

    def forward(self, x: Any) -> Any:
        head = self.scores(x)
        common = self.bounds[0]
        parts = [head[:, :common]]
        for i, cluster in enumerate(self.tail):
            parts.append(ops.log_softmax(cluster(x)) + head[:, common + i : common + i + 1])
        return ops.concat(parts, axis=1)

    def scores(self, x: Any) -> Any:
        """Return the log-probabilities of the frequent classes and of each cluster: (N, cutoffs[0] + clusters)."""
        if x.ndim != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"AdaptiveSoftmax: expected x (N, {self.in_features}), got {x.shape}")
        return ops.log_softmax(self.head(x))


class AdaptiveSoftmaxLoss(Module):
    """Negative log-likelihood of targets under an `AdaptiveSoftmax`, reduced by "mean", "sum" or "none" (not at all).

    Called as ``loss(x, targets)``: x (N, in_features), integer targets (N,). This is faster than computing the
    log-probabilities of all classes, because each cluster is computed only for examples with a target in the cluster.

    Raises:
        ValueError: the targets have another shape or dtype.
        IndexError: a target is not the number of a class.

    >>> import flnb, flnb.nn as nn
    >>> loss = nn.AdaptiveSoftmaxLoss(nn.AdaptiveSoftmax(8, 20, [4, 10]))
    >>> loss(flnb.ones((3, 8)), flnb.asarray([0, 5, 19])).shape
    ()
    """

    def __init__(self, softmax: AdaptiveSoftmax, reduction: str = "mean") -> None:
        self.softmax, self.reduction = softmax, reduction

    def forward(self, x: Any, targets: Any) -> Any:
        softmax, targets = self.softmax, ops.asarray(targets)
        head = softmax.scores(x)
        if targets.shape != x.shape[:1] or targets.dtype.kind not in "iu" or targets.size == 0:
            raise ValueError(
                f"AdaptiveSoftmaxLoss: expected integer targets ({x.shape[0]},), not empty, got {targets._spec!r}"
            )
        _check_range("AdaptiveSoftmaxLoss: targets", targets, softmax.classes)
        found, order = [], []
        for i, rows, within in _clusters(targets, softmax.bounds):
            if i == 0:
                found.append(head[rows, within])
            else:
                scores = ops.log_softmax(softmax.tail[i - 1](x[rows]))
                found.append(head[rows, softmax.bounds[0] + i - 1] + scores[ops.arange(rows.size), within])
            order.append(rows)
        return by_reduction(-_in_order(found, order), self.reduction)


class AdaptiveEmbedding(Module):
    """Embedding with less memory for rare entries: integer indices of any shape -> vectors (*shape, features).

    Entries must be numbered by frequency, the most frequent first; ``cutoffs`` divide them into clusters. For an entry
    in cluster i (from 0) only k = features / factor ** i numbers are stored; a linear map computes the vector from
    them. The stored numbers are initialised from a normal distribution with variance 1 / k, the maps by
    `init.glorot_uniform`. Baevski and Auli 2019, section 3.

    >>> import flnb, flnb.nn as nn
    >>> embedding = nn.AdaptiveEmbedding(20, 8, [4, 10])
    >>> embedding(flnb.asarray([[0, 5, 19]])).shape, [rows.weight.shape for rows in embedding.rows]
    ((1, 3, 8), [(4, 8), (6, 2), (10, 1)])

    Raises:
        ValueError: the cutoffs do not increase within 1 to entries - 1.
        TypeError: the indices are not integers.
        IndexError: an index is not in range(entries).
    """

    def __init__(self, entries: int, features: int, cutoffs: Sequence[int], factor: float = 4.0) -> None:
        self.entries, self.features, self.factor = entries, features, factor
        self.bounds = _bounds("AdaptiveEmbedding", entries, cutoffs)
        self.rows, self.maps = ModuleList(), ModuleList()
        for i, (low, high) in enumerate(itertools.pairwise((0, *self.bounds))):
            width = _width(features, factor, i)
            rows, to_all = Embedding(high - low, width), Linear(width, features, bias=False)
            ops.assign(rows.weight.data, random.normal((high - low, width), 0.0, width**-0.5))
            ops.assign(to_all.weight.data, init.glorot_uniform((features, width)))
            self.rows.append(rows)
            self.maps.append(to_all)

    def forward(self, indices: Any) -> Any:
        indices = ops.asarray(indices)
        if indices.dtype.kind not in "iu":
            raise TypeError(f"AdaptiveEmbedding: expected integer indices, got {indices._spec!r}")
        if indices.size == 0:
            return ops.zeros((*indices.shape, self.features), dtype=self.maps[0].weight.dtype)
        _check_range("AdaptiveEmbedding: indices", indices, self.entries)
        found, order = [], []
        for i, places, within in _clusters(ops.reshape(indices, (-1,)), self.bounds):
            found.append(self.maps[i](self.rows[i](within)))
            order.append(places)
        return ops.reshape(_in_order(found, order), (*indices.shape, self.features))


def _bounds(name: str, entries: int, cutoffs: Sequence[int]) -> tuple[int, ...]:
    """Check that the cutoffs increase, and return the end of each cluster: the cutoffs, then the number of entries."""
    bounds = (*cutoffs, entries)
    if not cutoffs or cutoffs[0] < 1 or any(a >= b for a, b in itertools.pairwise(bounds)):
        raise ValueError(f"{name}: expected rising cutoffs between 1 and {entries - 1}, got {list(cutoffs)}")
    return bounds


def _width(features: int, factor: float, cluster: int) -> int:
    """Return the number of features of a cluster: features / factor ** cluster, at least 1."""
    return max(1, int(features // factor**cluster))


def _clusters(targets: Any, bounds: tuple[int, ...]) -> Iterator[tuple[int, Any, Any]]:
    """Yield, for each cluster with targets: its number, the positions of these targets, and their indices.

    A position is an index of ``targets`` (N,). A target's index is its class, counted from the first class of the
    cluster. ``bounds`` has the end of each cluster.
    """
    targets = ops.astype(targets, "int64", copy=False)  # the bounds may not fit a smaller dtype
    for i, (low, high) in enumerate(itertools.pairwise((0, *bounds))):
        (places,) = ops.nonzero(ops.logical_and(targets >= low, targets < high))
        if places.size:
            yield i, places, targets[places] - low


def _in_order(found: list[Any], order: list[Any]) -> Any:
    """Concatenate values that were computed cluster by cluster, and move them to the positions given by ``order``."""
    return ops.concat(found)[ops.argsort(ops.concat(order))]


def _check_range(what: str, integers: Any, end: int) -> None:
    """Raise an IndexError unless all integers are in range(end); the message names them by the word ``what``."""
    least, most = integers._bounds()
    if least < 0 or most >= end:
        raise IndexError(f"{what} go from {least} to {most}, expected 0 to {end - 1}")
