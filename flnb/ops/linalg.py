"""Matrix multiplication."""

from __future__ import annotations

from typing import Any

import numpy as np

from flnb.dispatch import ops as dispatch
from flnb.ops.creation import asarray
from flnb.ops.movement import reshape, sum_to
from flnb.ops.table import Op, Pull, describe


def _infer(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
    a, b = specs
    if a.ndim < 2 or b.ndim < 2:
        raise ValueError(f"matmul: expected tensors of one dimension or more, got {describe(specs)}")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: inner extents must agree: {describe(specs)} have {a.shape[-1]} columns and {b.shape[-2]} rows"
        )
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(f"matmul: batch dimensions of {describe(specs)} do not broadcast") from None
    return (*batch, a.shape[-2], b.shape[-1]), a.dtype


_matmul = Op(
    "matmul",
    "matmul",
    _infer,
    (
        Pull("1", lambda g, plan, a, b, y: sum_to(matmul(g, b.mT), plan.specs[0].shape)),
        Pull("0", lambda g, plan, a, b, y: sum_to(matmul(a.mT, g), plan.specs[1].shape)),
    ),
    accepts="numeric",
    flops=lambda plan: 2 * plan.spec.size * plan.specs[0].shape[-1],
)


def matmul(a: Any, b: Any, /) -> Any:
    """Matrix product of the last two axes, batched over the others; a vector is a row on the left, a column right.

    Raises:
        ValueError: inner extents that differ, naming both shapes.
    """
    a, b = asarray(a), asarray(b)
    if a.ndim > 1 and b.ndim > 1:
        return dispatch.call(_matmul, (a, b))
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"matmul: expected tensors of one dimension or more, got {a._spec!r} and {b._spec!r}; use *")
    left = reshape(a, (1, a.shape[0])) if a.ndim == 1 else a
    right = reshape(b, (b.shape[0], 1)) if b.ndim == 1 else b
    y = dispatch.call(_matmul, (left, right))
    shape = (*y.shape[:-2], *(() if a.ndim == 1 else y.shape[-2:-1]), *(() if b.ndim == 1 else y.shape[-1:]))
    return reshape(y, shape)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """``x @ weight.T + bias``: x (..., in), weight (out, in), bias (out)."""
    if x.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"linear: x has {x.shape[-1]} features (shape {x.shape}), the weight expects {weight.shape[-1]}"
        )
    y = matmul(x, weight.mT)
    return y if bias is None else y + bias
