"""Softmax over many classes, most of them rare: rare ones in clusters of smaller width (Grave et al. 2017)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from flnb import ops
from flnb.nn.containers import ModuleList, Sequential
from flnb.nn.layers import Linear
from flnb.nn.module import Module
from flnb.ops.composite import by_reduction

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AdaptiveSoftmax", "AdaptiveSoftmaxLoss"]


class AdaptiveSoftmax(Module):
    """(N, in_features) -> log-probabilities (N, classes).

    Classes are sorted, frequent ones first. Those below the first of ``cutoffs`` are scored by ``head`` beside one
    score for each cluster between the others; cluster i is scored through in_features / ``factor`` ** (i + 1) features.

    >>> import flnb
    >>> softmax = AdaptiveSoftmax(8, 20, [4, 10])
    >>> round(float(flnb.exp(softmax(flnb.ones((1, 8)))).sum()), 4)
    1.0
    """

    def __init__(self, in_features: int, classes: int, cutoffs: Sequence[int], factor: float = 4.0) -> None:
        bounds = (*cutoffs, classes)
        if not cutoffs or cutoffs[0] < 1 or any(a >= b for a, b in itertools.pairwise(bounds)):
            raise ValueError(
                f"AdaptiveSoftmax: expected rising cutoffs between 1 and {classes - 1}, got {list(cutoffs)}"
            )
        self.in_features, self.classes, self.bounds, self.factor = in_features, classes, bounds, factor
        clusters = len(cutoffs)
        self.head = Linear(in_features, bounds[0] + clusters, bias=False)
        self.tail = ModuleList(
            Sequential(Linear(in_features, width, bias=False), Linear(width, bounds[i + 1] - bounds[i], bias=False))
            for i in range(clusters)
            for width in (max(1, int(in_features // factor ** (i + 1))),)
        )

    def forward(self, x: Any) -> Any:
        head = self.scores(x)
        common = self.bounds[0]
        parts = [head[:, :common]]
        for i, cluster in enumerate(self.tail):
            parts.append(ops.log_softmax(cluster(x)) + head[:, common + i : common + i + 1])
        return ops.concat(parts, axis=1)

    def scores(self, x: Any) -> Any:
        """Log-probabilities of the frequent classes and of the clusters."""
        if x.ndim != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"AdaptiveSoftmax: expected x (N, {self.in_features}), got {x.shape}")
        return ops.log_softmax(self.head(x))


class AdaptiveSoftmaxLoss(Module):
    """-log probability of targets (N,) by an `AdaptiveSoftmax` of x (N, in_features); "mean", "sum" or "none".

    Each cluster is computed only for the examples whose target lies in it, which is what makes it fast.

    >>> import flnb
    >>> loss = AdaptiveSoftmaxLoss(AdaptiveSoftmax(8, 20, [4, 10]))
    >>> loss(flnb.ones((3, 8)), flnb.asarray([0, 5, 19])).shape
    ()
    """

    def __init__(self, softmax: AdaptiveSoftmax, reduction: str = "mean") -> None:
        self.softmax, self.reduction = softmax, reduction

    def forward(self, x: Any, targets: Any) -> Any:
        softmax, targets = self.softmax, ops.asarray(targets)
        head = softmax.scores(x)
        self._check(x, targets)
        bounds = (0, *softmax.bounds)
        found, order = [], []
        for i, (low, high) in enumerate(itertools.pairwise(bounds)):
            (rows,) = ops.nonzero(ops.logical_and(targets >= low, targets < high))
            if rows.size == 0:
                continue
            within = targets[rows] - low
            if i == 0:
                found.append(head[rows, within])
            else:
                scores = ops.log_softmax(softmax.tail[i - 1](x[rows]))
                found.append(head[rows, bounds[1] + i - 1] + scores[ops.arange(rows.size), within])
            order.append(rows)
        each = ops.concat(found)[ops.argsort(ops.concat(order))]
        return by_reduction(-each, self.reduction)

    def _check(self, x: Any, targets: Any) -> None:
        classes = self.softmax.classes
        if targets.shape != x.shape[:1] or targets.dtype.kind not in "iu" or targets.size == 0:
            raise ValueError(
                f"AdaptiveSoftmaxLoss: expected integer targets ({x.shape[0]},), one or more, got {targets._spec!r}"
            )
        least, most = targets._bounds()
        if least < 0 or most >= classes:
            raise IndexError(
                f"AdaptiveSoftmaxLoss: targets go from {least} to {most}, expected classes 0 to {classes - 1}"
            )
