"""Regression and binary classification losses, with the reductions "mean", "sum" and "none"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.composite import Body, Composite, by_reduction, sigmoid
from flnb.ops.creation import asarray
from flnb.ops.dtypes import finfo

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, Tensor

LEAST_LOG = -100.0
LEAST_VARIANCE = 1e-12


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

    >>> import flnb
    >>> flnb.mse_loss([1.0, 2.0], [1.0, 4.0])
    Tensor(2., float32[], numpy)
    """
    x, targets = _paired("mse_loss", x, targets)
    return by_reduction(e.square(x - targets), reduction)


def l1_loss(x: ArrayLike, targets: ArrayLike, reduction: str = "mean") -> Tensor:
    """Absolute differences of predictions and targets of the same shape, reduced by "mean", "sum" or "none".

    The gradient where they are equal is 0.

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

    >>> import flnb
    >>> flnb.binary_cross_entropy_with_logits([1000.0], [0.0])
    Tensor(1000., float32[], numpy)
    """
    x, targets = _paired("binary_cross_entropy_with_logits", x, targets)
    return by_reduction(_bce_logits_op(x, targets)[0], reduction)
