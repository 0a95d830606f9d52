"""Pooling over windows in one, two and three dimensions, on (batch, channels, *extents)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from flnb.dispatch import crossing as dispatch
from flnb.ops import elementwise as e
from flnb.ops.convolution import Extents, axes, extents, output
from flnb.ops.creation import asarray
from flnb.ops.movement import pad
from flnb.ops.table import Op, Pull, named


def _fit(op: str, shape: Extents, kernel: Extents, stride: Extents) -> Extents:
    rank = len(kernel)
    return output(op, shape[2:], kernel, stride, (0,) * rank, (1,) * rank)


def _infer(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[Extents, Any]:
    kernel, stride = attributes
    return (*specs[0].shape[:2], *_fit(op.name, specs[0].shape, kernel, stride)), specs[0].dtype


def _windows(
    op: str, rank: int, x: Any, kernel_size: Any, stride: Any, padding: Any, fill: float
) -> tuple[Any, Extents, Extents]:
    """The padded image, the kernel and the stride, checked."""
    x = asarray(x)
    if x.ndim != rank + 2:
        raise ValueError(f"{op}: expected x (N, C, {axes(rank)}), got {x._spec!r}")
    kernel = extents(kernel_size, rank, op, "kernel_size", 1)
    step = kernel if stride is None else extents(stride, rank, op, "stride", 1)
    around = extents(padding, rank, op, "padding", 0)
    if any(2 * p > k for p, k in zip(around, kernel, strict=True)):
        raise ValueError(f"{op}: padding {around} is more than half the kernel {kernel}")
    if any(around):
        x = pad(x, ((0, 0), (0, 0), *((p, p) for p in around)), fill)
    return x, kernel, step


def _max_pool(rank: int) -> Callable[..., Any]:
    """The largest element of each window, and its gradients: where the first of the largest was, and back."""
    name = f"max_pool{rank}d"
    row = Op(
        name, "reduction", _infer,
        (Pull({0}, lambda g, plan, x, y: dispatch.call(spread, (g, x), plan.attributes)),),
        accepts="float",
    )  # fmt: skip
    spread = Op(
        f"{name}_grad", "reduction",
        lambda op, specs, a: (specs[1].shape, specs[0].dtype),
        (Pull({1}, lambda g, plan, u, x, y: dispatch.call(select, (g, x), plan.attributes)), None),
    )  # fmt: skip
    select = Op(
        f"{name}_select", "reduction", _infer,
        (Pull({1}, lambda g, plan, v, x, y: dispatch.call(spread, (g, x), plan.attributes)), None),
    )  # fmt: skip

    def apply(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Any:
        x, kernel, step = _windows(name, rank, x, kernel_size, stride, padding, float("-inf"))
        return dispatch.call(row, (x,), (kernel, step))

    apply.__doc__ = f"Largest element of each window of x (N, C, {axes(rank)}); stride is the kernel size unless given."
    return named(apply, row)


def _avg_pool(rank: int) -> Callable[..., Any]:
    name = f"avg_pool{rank}d"

    def apply(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Any:
        x, kernel, step = _windows(name, rank, x, kernel_size, stride, padding, 0.0)
        spans = [(n - 1) * s + 1 for n, s in zip(_fit(name, x.shape, kernel, step), step, strict=True)]
        total = None
        for start in itertools.product(*map(range, kernel)):
            part = x[(..., *(slice(i, i + n, s) for i, n, s in zip(start, spans, step, strict=True)))]
            total = part if total is None else e.add(total, part)
        return e.multiply(total, 1.0 / math.prod(kernel))

    apply.__doc__ = (
        f"Mean of each window of x (N, C, {axes(rank)}), padding counted as zeros; stride is the kernel size unless "
        f"given."
    )
    apply.__name__ = apply.__qualname__ = name
    return apply


max_pool1d, max_pool2d, max_pool3d = (_max_pool(rank) for rank in (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = (_avg_pool(rank) for rank in (1, 2, 3))
