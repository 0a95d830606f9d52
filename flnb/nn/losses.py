"""Losses: modules over the functions of the same name."""

from __future__ import annotations

from typing import Any

from flnb import ops
from flnb.nn.module import Module


class CrossEntropyLoss(Module):
    """-log softmax(logits)[target]: logits (N, classes), integer targets (N,); the mean, "sum" or "none" of it.

    >>> import flnb
    >>> loss = CrossEntropyLoss()(flnb.zeros((4, 10)), flnb.asarray([0, 1, 2, 3]))
    >>> round(float(loss), 4)  # log(10)
    2.3026
    """

    def __init__(self, reduction: str = "mean") -> None:
        self.reduction = reduction

    def forward(self, logits: Any, targets: Any) -> Any:
        return ops.cross_entropy(logits, targets, reduction=self.reduction)
