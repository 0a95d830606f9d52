"""Losses: modules over the functions, with `reduction` "mean" (default), "sum" or "none"."""

from __future__ import annotations

from typing import Any

from flnb import ops
from flnb.nn.module import Module


class _Loss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f'flnb: reduction is "mean", "sum" or "none"; got {reduction!r}')
        self.reduction = reduction

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(_Loss):
    """-log softmax(logits)[target]: logits (N, classes), integer targets (N,).

    >>> import flnb
    >>> loss = CrossEntropyLoss()(flnb.zeros((4, 10)), flnb.asarray([0, 1, 2, 3]))
    >>> round(float(loss), 4)  # log(10)
    2.3026
    """

    def forward(self, logits: Any, targets: Any) -> Any:
        return ops.cross_entropy(logits, targets, reduction=self.reduction)


class NLLLoss(_Loss):
    """-log_probabilities[target]: what LogSoftmax returns (N, classes), integer targets (N,)."""

    def forward(self, log_probabilities: Any, targets: Any) -> Any:
        return ops.nll_loss(log_probabilities, targets, reduction=self.reduction)


class MSELoss(_Loss):
    """(prediction - target)^2, both of one shape.

    >>> import flnb
    >>> float(MSELoss()(flnb.asarray([1.0, 2.0]), flnb.asarray([1.0, 4.0])))
    2.0
    """

    def forward(self, prediction: Any, target: Any) -> Any:
        if prediction.shape != target.shape:
            # Broadcasting (N, 1) against (N,) would compare every pair without a word.
            raise ValueError(
                f"flnb: MSELoss: prediction has shape {tuple(prediction.shape)}, target {tuple(target.shape)}; "
                "reshape one to the other's"
            )
        return ops.mse_loss(prediction, target, self.reduction)
