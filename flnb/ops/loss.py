"""Losses of numbers against numbers, with the reductions "mean", "sum" and "none"."""

from __future__ import annotations

from typing import Any

from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.composite import Body, Composite, by_reduction, sigmoid
from flnb.ops.creation import asarray
from flnb.ops.dtypes import finfo

LEAST_LOG = -100.0
LEAST_VARIANCE = 1e-12


def _paired(op: str, x: Any, targets: Any) -> tuple[Any, Any]:
    """Predictions and targets of one shape, floating point: broadcasting here is a mistake more often than a wish."""
    x = r.floating(x)
    targets = asarray(targets)
    if x.shape != targets.shape:
        raise ValueError(f"{op}: expected targets of the predictions' shape {x.shape}, got {targets.shape}")
    return x, targets if targets.dtype == x.dtype else e.astype(targets, x.dtype)


def mse_loss(x: Any, targets: Any, reduction: str = "mean") -> Any:
    """(x - targets) squared, reduced by "mean", "sum" or "none".

    >>> import flnb
    >>> flnb.mse_loss(flnb.asarray([1.0, 2.0]), flnb.asarray([1.0, 4.0])).item()
    2.0
    """
    x, targets = _paired("mse_loss", x, targets)
    return by_reduction(e.square(e.subtract(x, targets)), reduction)


def l1_loss(x: Any, targets: Any, reduction: str = "mean") -> Any:
    """abs(x - targets), reduced by "mean", "sum" or "none"; the gradient where they are equal is 0."""
    x, targets = _paired("l1_loss", x, targets)
    return by_reduction(e.abs(e.subtract(x, targets)), reduction)


def _log(log: Any, x: Any, valid: Any, elsewhere: float) -> Any:
    """A logarithm that is never below the least, and is not asked for where there is none."""
    return e.maximum(e.where(valid, log(e.where(valid, x, elsewhere)), LEAST_LOG), LEAST_LOG)


def _bce(p: Any, t: Any) -> Body:
    hit, miss = _log(e.log, p, e.greater(p, 0.0), 1.0), _log(e.log1p, e.negative(p), e.less(p, 1.0), 0.0)
    return e.negative(e.add(e.multiply(t, hit), e.multiply(e.subtract(1.0, t), miss))), (hit, miss)


def _pull_bce(g: Any, plan: Any, p: Any, t: Any, hit: Any, miss: Any, y: Any) -> tuple[Any, ...]:
    least = max(LEAST_VARIANCE, 2.0 / finfo(p.dtype).max)  # its reciprocal is finite in float16 too
    variance = e.maximum(e.multiply(p, e.subtract(1.0, p)), least)
    return e.multiply(g, e.divide(e.subtract(p, t), variance)), e.multiply(g, e.subtract(miss, hit))


_bce_op = Composite("binary_cross_entropy", "elementwise", _bce, _pull_bce)


def binary_cross_entropy(p: Any, targets: Any, reduction: str = "mean") -> Any:
    """-(t log p + (1 - t) log(1 - p)) of probabilities p and targets t in [0, 1], of one shape.

    Logarithms are at least -100, so that a certain mistake costs 100 and not infinity, as in torch.

    >>> import flnb
    >>> round(flnb.binary_cross_entropy(flnb.asarray([0.5]), flnb.asarray([1.0])).item(), 4)
    0.6931

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


def _bce_logits(x: Any, t: Any) -> Body:
    return e.subtract(e.logaddexp(x, 0.0), e.multiply(x, t)), ()


def _pull_bce_logits(g: Any, plan: Any, x: Any, t: Any, y: Any) -> tuple[Any, ...]:
    return e.multiply(g, e.subtract(sigmoid(x), t)), e.multiply(g, e.negative(x))


_bce_logits_op = Composite("binary_cross_entropy_with_logits", "elementwise", _bce_logits, _pull_bce_logits)


def binary_cross_entropy_with_logits(x: Any, targets: Any, reduction: str = "mean") -> Any:
    """`binary_cross_entropy` of sigmoid(x), computed as log(1 + exp(x)) - t x, which overflows nowhere.

    >>> import flnb
    >>> flnb.binary_cross_entropy_with_logits(flnb.asarray([1000.0]), flnb.asarray([0.0])).item()
    1000.0
    """
    x, targets = _paired("binary_cross_entropy_with_logits", x, targets)
    return by_reduction(_bce_logits_op(x, targets)[0], reduction)
