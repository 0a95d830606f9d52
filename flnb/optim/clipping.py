"""Gradient clipping: in place, after ``loss.backward()`` and before ``optimizer.step()``."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import bus

from flnb import linalg, ops
from flnb.autograd.variable import plain
from flnb.dispatch.effects import effects
from flnb.optim.optimizer import updating

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flnb.autograd import Variable
    from flnb.tensor import Tensor


def gradients_of(parameters: Iterable[Variable]) -> list[Tensor]:
    """Return the gradients of parameters that have one, as writable Tensors without a graph.

    For a parameter that `flnb.distributed.Sharded` has divided among ranks, this is the gradient of this rank's part.
    """
    return [plain(item.grad) for item in with_gradient(parameters)]


def with_gradient(parameters: Iterable[Variable]) -> list[Variable]:
    """Return the parameters that have a gradient; a parameter divided among ranks is replaced by this rank's part."""
    here: list[Variable] = [getattr(parameter, "_shard", parameter) for parameter in parameters]
    return [item for item in here if item.grad is not None]


def clip_grad_norm(
    parameters: Iterable[Variable], max_norm: float, p: float = 2.0, error_if_nonfinite: bool = False
) -> float | Tensor:
    """Scale all gradients by one factor, in place, so that the p-norm of all their elements is at most ``max_norm``.

    Parameters without gradient are skipped. If `flnb.distributed.Sharded` has divided parameters among ranks, all ranks
    must call this function, and the norm is that of all parts. If the norm is not finite, all gradients become NaN, so
    that the problem is noticed.
    Pascanu et al., 2013, "On the difficulty of training recurrent neural networks", algorithm 1.

    Args:
        parameters: the parameters whose ``grad`` is scaled.
        max_norm: the largest norm, above 0.
        p: the order of the norm, at least 1; ``float("inf")`` for the largest magnitude.
        error_if_nonfinite: raise an error if the norm is not finite, and leave the gradients as they are.

    Returns:
        The norm before scaling, as a float; while `flnb.jit` captures a function, as a tensor of shape ().

    Raises:
        ValueError: ``max_norm`` is not above 0, or ``p`` is below 1.
        RuntimeError: `flnb.jit` captures the call, and ``error_if_nonfinite`` is true or parameters are divided among
            ranks.
        FloatingPointError: the norm is not finite, and ``error_if_nonfinite`` is true.

    >>> import flnb, flnb.optim as optim
    >>> x = flnb.Variable([0.0, 0.0])
    >>> x.grad = flnb.asarray([3.0, 4.0])
    >>> optim.clip_grad_norm([x], max_norm=1.0)
    5.0
    >>> [round(g, 4) for g in x.grad.tolist()]
    [0.6, 0.8]
    """
    _above_zero("clip_grad_norm", "max_norm", max_norm)
    if not p >= 1.0:
        raise ValueError(f"flnb: clip_grad_norm: p must be at least 1, got {p}")
    items = with_gradient(parameters)
    gradients = gradients_of(items)
    with bus.phase("optimizer"), updating():
        divided = any(hasattr(item, "_everywhere") for item in items)
        if gradients and effects.get() is not None and not (error_if_nonfinite or divided):
            return _clip_recorded(gradients, max_norm, p)
        norms = [_norm(gradient, p) for gradient in gradients]
        total = float(np.linalg.norm(everywhere(items, norms, p), ord=p)) if norms else 0.0
        if error_if_nonfinite and not np.isfinite(total):
            wrong = next((i for i, norm in enumerate(norms) if not np.isfinite(norm)), None)
            where = "" if wrong is None else f", first that of gradient {wrong}, of shape {gradients[wrong].shape}"
            raise FloatingPointError(
                f"flnb: clip_grad_norm: the norm of the gradients is {total}{where}; look for its origin with "
                "flnb.detect_anomaly(), or lower the learning rate"
            )
        factor = max_norm / (total + 1e-6) if np.isfinite(total) else float("nan")
        if not factor >= 1.0:
            for gradient in gradients:
                ops.multiply(gradient, factor, out=gradient)
    return total


def _clip_recorded(gradients: Sequence[Tensor], max_norm: float, p: float) -> Tensor:
    """Clip gradients like `clip_grad_norm`, and return the norm as a tensor, without reading its value."""
    norms = [linalg.vector_norm(g if g.dtype.itemsize > 2 else g.astype(np.float32), ord=p) for g in gradients]
    total = functools.reduce(ops.maximum, norms) if p == math.inf else sum(norm**p for norm in norms) ** (1.0 / p)
    factor = ops.where(ops.isfinite(total), ops.minimum(max_norm / (total + 1e-6), 1.0), math.nan)
    for gradient in gradients:
        ops.multiply(gradient, factor.astype(gradient.dtype), out=gradient)
    return total


def everywhere(items: Sequence[Variable], norms: list[float], p: float) -> list[float]:
    """Return norms from which the p-norm of the gradients of all ranks can be computed.

    ``norms`` are the p-norms of the gradients of ``items``. Shards, this rank's parts of divided parameters, are
    replaced by one norm for each rank: that of all shards of the rank. Without shards, ``norms`` is returned.
    """
    part: Any = next((item for item in items if hasattr(item, "_everywhere")), None)
    return norms if part is None else part._everywhere(items, norms, p)


def clip_grad_value(parameters: Iterable[Variable], value: float) -> None:
    """Limit every element of every gradient to the range from -value to value, in place. NaN stays NaN.

    >>> import flnb, flnb.optim as optim
    >>> x = flnb.Variable([0.0, 0.0])
    >>> x.grad = flnb.asarray([3.0, -0.5])
    >>> optim.clip_grad_value([x], 1.0)
    >>> x.grad.tolist()
    [1.0, -0.5]

    Raises:
        ValueError: ``value`` is not above 0.
    """
    _above_zero("clip_grad_value", "value", value)
    with bus.phase("optimizer"), updating():
        for gradient in gradients_of(parameters):
            ops.minimum(gradient, value, out=gradient)
            ops.maximum(gradient, -value, out=gradient)


def _norm(gradient: Tensor, p: float) -> float:
    """Return the p-norm of all elements of a gradient, computed in float32 or wider."""
    if gradient.dtype.itemsize < 4:
        gradient = gradient.astype(np.float32)  # squares of float16 overflow above 256
    if p == 2.0 and gradient.dtype.kind == "f":
        flat = ops.reshape(gradient, (-1,))
        return math.sqrt(float(ops.vecdot(flat, flat)))  # makes no array of squares
    return float(linalg.vector_norm(gradient, ord=p))


def _above_zero(function: str, name: str, value: float) -> None:
    """Raise a ValueError that names the function and the argument unless the value is above 0."""
    if not value > 0.0:
        raise ValueError(f"flnb: {function}: {name} must be above 0, got {value}")
