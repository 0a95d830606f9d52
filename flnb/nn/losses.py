"""Loss functions as modules, reduced over all examples by "mean" or "sum", or not at all by "none"."""

from __future__ import annotations

from typing import Any

from flnb import ops
from flnb.nn.module import Module

__all__ = ["BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss"]


class _Loss(Module):
    """Base of the losses: stores the reduction, which is "mean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction


class CrossEntropyLoss(_Loss):
    """Cross-entropy of logits (N, classes) and integer targets (N,): -log(softmax(logits)[target]).

    Args:
        reduction: "mean" or "sum" for a 0-d result, "none" for a result (N,).
        weight: a factor for each class, (classes,), stored as a buffer; the mean is the weighted mean.
        ignore_index: examples with this target are left out.

    >>> import flnb, flnb.nn as nn
    >>> loss = nn.CrossEntropyLoss()(flnb.zeros((4, 10)), flnb.asarray([0, 1, 2, 3]))
    >>> round(float(loss), 4)  # log(10)
    2.3026
    """

    def __init__(self, reduction: str = "mean", weight: Any = None, ignore_index: int | None = None) -> None:
        super().__init__(reduction)
        self.weight = None if weight is None else ops.asarray(weight)
        self.ignore_index = ignore_index

    def forward(self, logits: Any, targets: Any) -> Any:
        return ops.cross_entropy(logits, targets, self.reduction, self.weight, self.ignore_index)


class MSELoss(_Loss):
    """Mean squared error: the mean of (x - targets)^2, for x and targets of the same shape.

    ``reduction`` "sum" adds the squares up, "none" returns them in the shape of x.

    >>> import flnb, flnb.nn as nn
    >>> nn.MSELoss("sum")(flnb.asarray([1.0, 2.0]), flnb.asarray([1.0, 4.0])).item()
    4.0
    """

    def forward(self, x: Any, targets: Any) -> Any:
        return ops.mse_loss(x, targets, self.reduction)


class L1Loss(_Loss):
    """Mean absolute error: the mean of abs(x - targets), for x and targets of the same shape.

    ``reduction`` "sum" adds the absolute values up, "none" returns them in the shape of x.

    >>> import flnb, flnb.nn as nn
    >>> nn.L1Loss()(flnb.asarray([1.0, 2.0]), flnb.asarray([1.0, 4.0]))
    Tensor(1., float32[], numpy)
    """

    def forward(self, x: Any, targets: Any) -> Any:
        return ops.l1_loss(x, targets, self.reduction)


class BCELoss(_Loss):
    """Binary cross-entropy of probabilities p and targets t in [0, 1], shaped alike: -t log(p) - (1 - t) log(1 - p).

    ``reduction`` "mean" or "sum" returns a 0-d tensor, "none" one of the shape of p.

    >>> import flnb, flnb.nn as nn
    >>> nn.BCELoss()(flnb.asarray([0.5]), flnb.asarray([1.0]))
    Tensor(0.6931, float32[], numpy)
    """

    def forward(self, p: Any, targets: Any) -> Any:
        return ops.binary_cross_entropy(p, targets, self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy of sigmoid(x) and targets in [0, 1], of the same shape, computed without overflow.

    ``reduction`` "mean" or "sum" returns a 0-d tensor, "none" one of the shape of x.

    >>> import flnb, flnb.nn as nn
    >>> nn.BCEWithLogitsLoss()(flnb.asarray([0.0]), flnb.asarray([1.0]))
    Tensor(0.6931, float32[], numpy)
    """

    def forward(self, x: Any, targets: Any) -> Any:
        return ops.binary_cross_entropy_with_logits(x, targets, self.reduction)
