"""Losses of regression and of classification, with the reductions "mean", "sum" and "none"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.brief import brief
from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.composite import Body, Composite, log_softmax_body, sigmoid
from flnb.ops.creation import arange, asarray
from flnb.ops.dtypes import finfo
from flnb.ops.movement import reshape

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, Tensor

LEAST_LOG = -100.0
LEAST_VARIANCE = 1e-12


def by_reduction(losses: Any, reduction: str) -> Any:
    """Reduce per-element losses to their "mean" or "sum", or return them unchanged ("none")."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"loss: reduction must be 'mean', 'sum' or 'none', got {brief(reduction)}")
    return losses if reduction == "none" else getattr(r, reduction)(losses)


def _paired(op: str, x: Any, targets: Any) -> tuple[Any, Any]:
    """Convert predictions and targets to floating-point tensors of one dtype, and check that their shapes are equal.

    They are not broadcast: (N, 1) against (N,) is usually a mistake, and would give N * N losses.
    """
    x = r.floating(x)
    targets = asarray(targets)
    if x.shape != targets.shape:
        raise ValueError(f"{op}: expected targets of the predictions' shape {x.shape}, got {targets.shape}")
    return x, targets if targets.dtype == x.dtype else e.astype(targets, x.dtype)


def mse_loss(x: ArrayLike, targets: ArrayLike, reduction: str = "mean") -> Tensor:
    """Squared differences of predictions and targets of the same shape, reduced by "mean", "sum" or "none".

    Raises:
        ValueError: predictions and targets differ in shape, or the reduction is unknown.

    >>> import flnb
    >>> flnb.mse_loss([1.0, 2.0], [1.0, 4.0])
    Tensor(2., float32[], numpy)
    """
    x, targets = _paired("mse_loss", x, targets)
    return by_reduction(e.square(x - targets), reduction)


def l1_loss(x: ArrayLike, targets: ArrayLike, reduction: str = "mean") -> Tensor:
    """Absolute differences of predictions and targets of the same shape, reduced by "mean", "sum" or "none".

    The gradient where they are equal is 0.

    Raises:
        ValueError: predictions and targets differ in shape, or the reduction is unknown.

    >>> import flnb
    >>> flnb.l1_loss([1.0, 2.0], [1.0, 4.0])
    Tensor(1., float32[], numpy)
    """
    x, targets = _paired("l1_loss", x, targets)
    return by_reduction(e.abs(x - targets), reduction)


def _log(log: Any, x: Any, valid: Any, elsewhere: float) -> Any:
    """Return max(log(x), -100) where ``valid``, else -100.

    Where ``valid`` is false, ``log`` is called with the number ``elsewhere`` instead of x.
    """
    return e.maximum(e.where(valid, log(e.where(valid, x, elsewhere)), LEAST_LOG), LEAST_LOG)


def _bce(p: Any, t: Any) -> Body:
    """Cross-entropies of probabilities p and targets t, and the limited log(p) and log(1 - p) for the gradient."""
    hit, miss = _log(e.log, p, p > 0.0, 1.0), _log(e.log1p, -p, p < 1.0, 0.0)
    return -(t * hit + (1.0 - t) * miss), (hit, miss)


def _pull_bce(g: Any, plan: Any, p: Any, t: Any, hit: Any, miss: Any, y: Any) -> tuple[Any, ...]:
    """Gradients of p and t; ``hit`` and ``miss`` are the limited log(p) and log(1 - p)."""
    least = max(LEAST_VARIANCE, 2.0 / finfo(p.dtype).max)  # so large that its reciprocal is finite in float16 too
    return g * ((p - t) / e.maximum(p * (1.0 - p), least)), g * (miss - hit)


_bce_op = Composite("binary_cross_entropy", "elementwise", _bce, _pull_bce)


def binary_cross_entropy(p: ArrayLike, targets: ArrayLike, reduction: str = "mean") -> Tensor:
    """Binary cross-entropy, -(t log p + (1 - t) log(1 - p)), of probabilities ``p`` and targets t from 0 to 1.

    Both have the same shape. Logs are at least -100, as in torch, so that a prediction of 0 for a target of 1 costs
    100 instead of infinity. ``reduction`` is "mean", "sum" or "none".

    >>> import flnb
    >>> flnb.binary_cross_entropy([0.5], [1.0])
    Tensor(0.6931, float32[], numpy)

    Raises:
        ValueError: shapes that differ, or probabilities outside [0, 1].
    """
    p, targets = _paired("binary_cross_entropy", p, targets)
    least, most = p._bounds() if p.size else (0, 1)
    if not (least >= 0 and most <= 1):
        raise ValueError(
            f"binary_cross_entropy: expected probabilities in [0, 1], got values from {least} to {most}; "
            "for scores before the sigmoid use binary_cross_entropy_with_logits"
        )
    return by_reduction(_bce_op(p, targets)[0], reduction)


_bce_logits_op = Composite(
    "binary_cross_entropy_with_logits", "elementwise", lambda x, t: (e.logaddexp(x, 0.0) - x * t, ()),
    lambda g, plan, x, t, y: (g * (sigmoid(x) - t), g * -x),
)  # fmt: skip


def binary_cross_entropy_with_logits(x: ArrayLike, targets: ArrayLike, reduction: str = "mean") -> Tensor:
    """`binary_cross_entropy` of sigmoid(x), computed as log(1 + exp(x)) - t x, without overflow.

    Raises:
        ValueError: predictions and targets differ in shape, or the reduction is unknown.

    >>> import flnb
    >>> flnb.binary_cross_entropy_with_logits([1000.0], [0.0])
    Tensor(1000., float32[], numpy)
    """
    x, targets = _paired("binary_cross_entropy_with_logits", x, targets)
    return by_reduction(_bce_logits_op(x, targets)[0], reduction)


def _checked_targets(op: str, scores: Any, targets: Any) -> Any:
    """Return targets (N,) as a tensor, after a check that each is a class number for the scores (N, classes)."""
    targets = asarray(targets)
    if scores.ndim != 2 or targets.shape != scores.shape[:1]:
        raise ValueError(
            f"{op}: expected scores (N, classes) and targets (N,), got shapes {scores.shape} and {targets.shape}"
        )
    if targets.dtype.kind not in "iu":
        raise TypeError(f"{op}: targets are class indices and must be integers, got {targets.dtype.name}")
    if not targets._are_positions(scores.shape[1]):
        least, most = targets._bounds()
        raise IndexError(
            f"{op}: labels go from {least} to {most}, but the scores have {scores.shape[1]} classes: "
            f"labels must be between 0 and {scores.shape[1] - 1}"
        )
    return targets


def _reduce_losses(losses: Any, targets: Any, weight: Any, classes: int, reduction: str, counted: Any = None) -> Any:
    """Weight the losses (N,) of examples by class, then reduce them; a mean is divided by the sum of the weights.

    Args:
        losses: (N,), floating point.
        targets: (N,), the classes of the examples.
        weight: (classes,), or None for equal weights.
        classes: the number of classes.
        reduction: "mean", "sum" or "none".
        counted: (N,), in the losses' dtype: 0 for an example to leave out, 1 for any other. None: none is left out.
    """
    if weight is None and counted is None:
        return by_reduction(losses, reduction)
    each = counted
    if weight is not None:
        weight = asarray(weight)
        if weight.shape != (classes,):
            raise ValueError(f"loss: expected one weight for each of {classes} classes, got {weight._spec!r}")
        each = weight[targets] if counted is None else weight[targets] * counted
    losses = losses * each
    return r.sum(losses) / r.sum(each) if reduction == "mean" else by_reduction(losses, reduction)


def nll_loss(
    log_probabilities: ArrayLike, targets: ArrayLike, reduction: str = "mean", weight: ArrayLike | None = None
) -> Tensor:
    """Negative log-likelihood: minus the log-probability of each target class.

    Args:
        log_probabilities: (N, classes), floating point.
        targets: (N,), integers from 0 to classes - 1.
        reduction: "mean", "sum" or "none".
        weight: (classes,), how much each class counts, also in the mean.

    Raises:
        IndexError: a label is not one of the classes.

    >>> import flnb
    >>> flnb.nll_loss(flnb.asarray([[-0.5, -1.0], [-2.0, -0.1]]), [0, 1])
    Tensor(0.3, float32[], numpy)
    """
    log_probabilities = asarray(log_probabilities)
    targets = _checked_targets("nll_loss", log_probabilities, targets)
    losses = e.negative(log_probabilities[arange(targets.shape[0]), targets])
    return _reduce_losses(losses, targets, weight, log_probabilities.shape[1], reduction)


def _cross_entropy(x: Any, targets: Any, reduction: str) -> Body:
    """Cross-entropy of logits x (N, classes) with targets (N,), and log-softmax(x) for the gradient."""
    log_p, _ = log_softmax_body(x, 1)
    return nll_loss(log_p, targets, reduction), (log_p,)


def _pull_cross_entropy(g: Any, plan: Any, x: Any, targets: Any, log_p: Any, y: Any) -> tuple[Any, ...]:
    """Gradient of the logits: each example's softmax minus its one-hot target, times g, the gradient of its loss."""
    n, classes = plan.specs[0].shape
    targets = e.astype(targets, np.int64, copy=False)  # small dtypes do not hold every class
    hit = e.equal(reshape(targets, (n, 1)), arange(classes))
    (reduction,) = plan.attributes
    each = reshape(g, (n, 1)) if reduction == "none" else g * (1.0 / max(n, 1)) if reduction == "mean" else g
    return (e.exp(log_p) - e.astype(hit, log_p.dtype)) * each, None


_cross_entropy_op = Composite(
    "cross_entropy", "norm", _cross_entropy, _pull_cross_entropy, {1},
    remake=lambda plan, x, targets, log_p, y: log_p,  # log-softmax leaves it as it is
)  # fmt: skip


def cross_entropy(
    logits: ArrayLike, targets: ArrayLike, reduction: str = "mean", weight: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:  # fmt: skip
    """Cross-entropy of logits with target classes: `nll_loss` of `log_softmax`.

    Args:
        logits: (N, classes), scores before the softmax.
        targets: (N,), integers from 0 to classes - 1.
        reduction: "mean", "sum" or "none".
        weight: (classes,), how much each class counts, also in the mean.
        ignore_index: an integer; examples with this target have the loss 0 and do not count in the mean.

    Raises:
        ValueError: the shapes do not fit.
        TypeError: the targets are no integers.
        IndexError: a target is not a class.

    >>> import flnb
    >>> flnb.cross_entropy([[0.0, 0.0]], [1])
    Tensor(0.6931, float32[], numpy)
    """
    logits, counted = r.floating(logits), None
    if ignore_index is not None:
        targets = asarray(targets)
        if targets.dtype.kind in "iu":
            targets = e.astype(targets, np.int64, copy=False)  # small dtypes do not hold every ignore_index
        kept = e.not_equal(targets, ignore_index)
        targets, counted = e.where(kept, targets, 0), e.astype(kept, logits.dtype)
    targets = _checked_targets("cross_entropy", logits, targets)
    if counted is not None:
        logits = e.where(reshape(kept, (-1, 1)), logits, 0.0)  # a NaN in an ignored example must not spread
    elif weight is None:
        return _cross_entropy_op(logits, targets, attributes=(reduction,))[0]
    losses = _cross_entropy_op(logits, targets, attributes=("none",))[0]
    return _reduce_losses(losses, targets, weight, logits.shape[1], reduction, counted)
