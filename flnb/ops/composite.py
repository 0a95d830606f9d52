"""Composites: ops that consist of other public ops, such as softmax, but have one backward function of their own.

The body of a composite computes on plain Tensors and returns ``(result, kept)``; ``kept`` holds intermediate values
that the backward function reads. The backward function is called as ``pull(g, plan, *inputs, *kept, result)``: ``g``
is the gradient of the loss with respect to the result, ``plan`` stores the shapes, dtypes and attributes of the call.
It returns one gradient per input. A backend may implement a composite as one method of its own. If a user's backend
overrides an op that a composite consists of, such as ``add``, the body runs instead, so that the override is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from flnb.dispatch import state
from flnb.dispatch.brief import brief
from flnb.dispatch.table import Op, not_inferred
from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.creation import arange, asarray
from flnb.ops.dtypes import result_type
from flnb.ops.movement import reshape
from flnb.tensor import ArrayLike, Tensor, axis_of

Body = tuple[Any, tuple[Any, ...]]
"""The result of a composite's body, and the intermediate values that its backward function reads."""


class Composite(Op):
    """An op that consists of other public ops and is recorded as one node, with one backward function.

    Args:
        name: the op's name in recordings, and the name of the backend's method for the op, if there is one.
        family: the kind of op, such as "elementwise" or "norm", which decides its colour in the dashboard.
        body: ``body(*inputs, *attributes) -> (result, kept)``, with the intermediate values to save in ``kept``.
        pull: the backward function ``pull(g, plan, *inputs, *kept, result)``, which returns one gradient per input.
        reads: positions of the inputs that ``pull`` reads, and ``"y"`` if it reads the result; None means that it reads
            everything. Other inputs are not saved, and ``pull`` gets None for them. It gets all values in ``kept``.
        remake: needed if the first input is not saved, unless ``pull`` reads the result alone: ``remake(plan, *saved)``
            returns a first input for which the body computes the same result. When a gradient is itself
            differentiated, the body runs again on this input.
    """

    def __init__(
        self, name: str, family: str, body: Callable[..., Body], pull: Callable[..., Any],
        reads: Collection[Any] | None = None, remake: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, family, not_inferred, body=body, joint=pull, reads=reads)
        self._remake = remake

    def __call__(self, *tensors: Any, attributes: tuple[Any, ...] = ()) -> Body:
        made: Body = self.entries[len(tensors), ""](*tensors, attributes)
        return made

    def remake(self, plan: Any, *saved: Any) -> Any:
        """Recompute the first input, which was not saved, from the saved values; no gradient is recorded."""
        with state.recording(False):
            return self._remake(plan, *saved)  # type: ignore[misc]


def in_one_dtype(*tensors: Any) -> list[Any]:
    """Return tensors cast to their common dtype; the casts are recorded, so that gradients are cast back."""
    first = tensors[0].dtype
    if not [x for x in tensors if x.dtype is not first]:
        return [*tensors]
    dtypes = {x.dtype for x in tensors}
    dtype = dtypes.pop() if len(dtypes) == 1 else result_type(*tensors)
    return [x if x.dtype == dtype else e.astype(x, dtype) for x in tensors]


_relu_op = Composite(
    "relu", "elementwise", lambda x: (e.maximum(x, 0.0), ()),
    lambda g, plan, x, y: (g * e.astype(y > 0.0, g.dtype),), {"y"},
)  # fmt: skip


def relu(x: ArrayLike, /) -> Tensor:
    """Rectified linear unit, max(x, 0), of any shape; the gradient at 0 is 0.

    >>> import flnb
    >>> flnb.relu([-1.0, 0.0, 2.0])
    Tensor([0., 0., 2.], float32[3], numpy)
    """
    return _relu_op(r.floating(x))[0]


_sigmoid_op = Composite(
    "sigmoid", "elementwise", lambda x: ((e.tanh(x * 0.5) + 1.0) * 0.5, ()),
    lambda g, plan, x, y: (g * (y * (1.0 - y)),), {"y"},
)  # fmt: skip


def sigmoid(x: ArrayLike, /) -> Tensor:
    """Sigmoid (logistic function), 1 / (1 + exp(-x)), computed without overflow.

    >>> import flnb
    >>> flnb.sigmoid([-1000.0, 0.0, 1000.0])
    Tensor([0. , 0.5, 1. ], float32[3], numpy)
    """
    return _sigmoid_op(r.floating(x))[0]


def _softmax(x: Any, axis: int) -> Body:
    """Softmax, computed from x minus its maximum to avoid overflow."""
    powers = e.exp(x - r.max(x, axis, keepdims=True))
    return powers / r.sum(powers, axis, keepdims=True), ()


_softmax_op = Composite(
    "softmax", "norm", _softmax,
    lambda g, plan, x, y: (y * (g - r.sum(g * y, *plan.attributes, keepdims=True)),), {"y"},
)  # fmt: skip


def _along(op: Composite, x: Any, axis: int) -> Any:
    """Apply ``op``, softmax or log-softmax, along an axis, after checks; for an empty tensor return an empty one."""
    x = r.floating(x)
    position = axis_of(axis, x.ndim, op.name)
    return op.entries[1, ""](x, (position,))[0] if x._spec.size else e.exp(x)


def softmax(x: ArrayLike, /, axis: int = -1) -> Tensor:
    """Softmax: exponentials of the elements divided by their sum along ``axis``, so that they sum to 1.

    The maximum is subtracted first, so nothing overflows.

    >>> import flnb
    >>> flnb.softmax([1.0, 2.0, 3.0])
    Tensor([0.09  , 0.2447, 0.6652], float32[3], numpy)
    """
    return _along(_softmax_op, x, axis)


def _log_softmax(x: Any, axis: int) -> Body:
    """Logarithm of softmax, computed without the softmax itself, which may underflow to 0."""
    shifted = x - r.max(x, axis, keepdims=True)
    return shifted - e.log(r.sum(e.exp(shifted), axis, keepdims=True)), ()


_log_softmax_op = Composite(
    "log_softmax", "norm", _log_softmax,
    lambda g, plan, x, y: (g - e.exp(y) * r.sum(g, *plan.attributes, keepdims=True),), {"y"},
)  # fmt: skip


def log_softmax(x: ArrayLike, /, axis: int = -1) -> Tensor:
    """Logarithm of `softmax` along ``axis``, computed without underflow.

    >>> import flnb
    >>> flnb.log_softmax([0.0, 1000.0])
    Tensor([-1000.,     0.], float32[2], numpy)
    """
    return _along(_log_softmax_op, x, axis)


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


def by_reduction(losses: Any, reduction: str) -> Any:
    """Reduce per-element losses to their "mean" or "sum", or return them unchanged ("none")."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"loss: reduction must be 'mean', 'sum' or 'none', got {brief(reduction)}")
    return losses if reduction == "none" else getattr(r, reduction)(losses)


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
    log_p, _ = _log_softmax(x, 1)
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


def dropout(x: ArrayLike, /, p: float = 0.5, training: bool = True, generator: Any = None) -> Tensor:
    """Zero each element with probability ``p`` and divide the others by 1 - p; without ``training`` return x unchanged.

    Random numbers are drawn from ``generator`` (`flnb.random.Generator`), or from the session's.

    >>> import flnb
    >>> flnb.dropout(flnb.ones(3), p=0.0)
    Tensor([1., 1., 1.], float32[3], numpy)
    """
    if not 0.0 <= p < 1.0:
        raise ValueError(f"dropout: p must be in [0, 1), got {p}")
    x = asarray(x)
    if not training or p == 0.0:
        return x
    from flnb.random import uniform

    keep = e.greater_equal(uniform(x.shape, dtype=x.dtype, generator=generator), p)
    return x * (e.astype(keep, x.dtype) * (1.0 / (1.0 - p)))


def _channels(x: Any, values: Any) -> Any:
    """Reshape one value per channel, (C,), so that it broadcasts against x (N, C, ...)."""
    return reshape(values, (1, values.shape[0], *(1,) * (x.ndim - 2)))


def _in_float32(x: Any) -> Any:
    """Cast half precision to float32; leave other dtypes as they are."""
    return e.astype(x, np.float32) if x.dtype.itemsize == 2 else x


def _cast_like(x: Any, spec: Any) -> Any:
    """Cast x to the dtype of ``spec``, which is another tensor or its spec (shape and dtype)."""
    return e.astype(x, spec.dtype, copy=False)


def _batch_norm(x: Any, weight: Any, bias: Any, eps: float) -> Body:
    """Batch norm of x (N, C, ...); half precision is computed in float32, and the results of x's size are cast back."""
    axes, wide = (0, *range(2, x.ndim)), _in_float32(x)
    mean = r.mean(wide, axes, keepdims=True)
    centred = wide - mean
    variance = r.mean(e.square(centred), axes, keepdims=True)
    inverse = 1.0 / e.sqrt(variance + eps)
    normal = centred * inverse
    y = normal * _channels(x, weight) + _channels(x, bias)
    return _cast_like(y, x), (_cast_like(normal, x), inverse, mean, variance)


def _pull_batch_norm(
    g: Any, plan: Any, x: Any, weight: Any, bias: Any, normal: Any, inverse: Any, mean: Any, variance: Any, y: Any
) -> tuple[Any, ...]:
    """Gradients of x, weight and bias (Ioffe and Szegedy 2015, section 3); that of x is computed from the others."""
    axes, g, normal = (0, *range(2, g.ndim)), _in_float32(g), _in_float32(normal)
    g_bias = r.sum(g, axes)
    g_weight = r.sum(g * normal, axes)
    share = 1.0 / (g.size // g.shape[1])
    means = _channels(g, g_bias * share) + normal * _channels(g, g_weight * share)
    g_x = (g - means) * (inverse * _channels(g, weight))
    return tuple(map(_cast_like, (g_x, g_weight, g_bias), plan.specs))


_batch_norm_op = Composite(
    "batch_norm", "norm", _batch_norm, _pull_batch_norm, {1, 2},
    remake=lambda plan, x, weight, bias, normal, inverse, mean, *_: _cast_like(
        _in_float32(normal) / inverse + mean, plan.specs[0]),
)  # fmt: skip


def batch_norm(
    x: ArrayLike, weight: ArrayLike, bias: ArrayLike, running_mean: Tensor | None = None,
    running_var: Tensor | None = None, training: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Normalise each channel (axis 1) over all other axes, then scale by weight and shift by bias.

    In training, the batch's own mean and variance are used, and the running mean and variance are moved towards them in
    place (with the unbiased variance, as in torch). Half precision is computed in float32, and the result cast back.

    Args:
        x: (N, C, ...).
        weight: (C,).
        bias: (C,).
        running_mean: (C,), updated in training, and used in place of the batch's mean otherwise.
        running_var: (C,), updated in training, and used in place of the batch's variance otherwise.
        training: whether to use the batch's statistics.
        momentum: the weight of the batch's statistics in the running ones, 0 to 1.
        eps: added to the variance: more than 0 in training, otherwise 0 or more, as in torch.

    Raises:
        ValueError: there is only one value per channel in training, the shapes do not fit, or eps is too small.

    >>> import flnb
    >>> flnb.batch_norm(flnb.asarray([[1.0], [3.0]]), flnb.ones(1), flnb.zeros(1))
    Tensor([[-1.],
            [ 1.]], float32[2,1], numpy)
    """
    x, weight, bias = [a if isinstance(a, Tensor) else asarray(a) for a in (x, weight, bias)]
    if x.ndim < 2 or weight.shape != (x.shape[1],):
        raise ValueError(
            f"batch_norm: expected x of shape (N, C, ...) and weight of shape (C,), "
            f"got x {x.shape} and weight {weight.shape}"
        )
    if not training:
        if eps < 0:
            raise ValueError(f"batch_norm: expected eps >= 0, got {eps}")
        scale = weight * (1.0 / e.sqrt(e.add(running_var, eps)))
        y = x * _channels(x, scale) + _channels(x, bias - e.multiply(running_mean, scale))
        return _cast_like(y, x) if x.dtype.itemsize == 2 else y
    if eps <= 0:
        raise ValueError(f"batch_norm: training needs eps > 0, got {eps}: a channel may have equal values")
    n = x.size // x.shape[1]
    if n < 2:
        raise ValueError(f"batch_norm: training needs more than one value per channel, got shape {x.shape}")
    inputs = [x, weight, bias] if x.dtype.itemsize == 2 else in_one_dtype(x, weight, bias)
    y, (_, _, mean, variance) = _batch_norm_op(*inputs, attributes=(float(eps),))
    if running_mean is not None and running_var is not None:
        shares = (running_mean, mean, momentum), (running_var, variance, momentum * n / (n - 1))

        def move() -> None:
            for running, batch, share in shares:
                e.multiply(running, 1.0 - momentum, out=running)
                e.add(running, _cast_like(reshape(batch, running.shape), running) * share, out=running)

        key = "running", n, repr(momentum)
        state.current().backend.repeated(key, move, (running_mean, running_var, mean, variance), 2)
    return y
