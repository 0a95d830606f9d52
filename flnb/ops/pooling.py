"""Pooling over windows in one, two and three dimensions, on (batch, channels, *extents)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.table import Op, Pull, named
from flnb.ops import elementwise as e
from flnb.ops.convolution import Extents, axes, extents, output
from flnb.ops.movement import pad
from flnb.ops.reduction import floating

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, Tensor


_TEXT = """{first}

    ``kernel_size``, ``stride`` (the kernel size unless given) and ``padding`` are one int, or one for each dimension.
    Padded elements count as {padded}.

    Raises:
        ValueError: a kernel larger than the padded image, or padding of more than half the kernel.

    >>> import flnb
    >>> x = flnb.reshape([1.0, 2.0, 3.0, 4.0], ({extents}))
    >>> flnb.{name}(x, {kernel}).flatten()
    Tensor([{result}], float32[2], numpy)
"""


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
    x = floating(x)
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

    def apply(
        x: ArrayLike,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
    ) -> Tensor:
        x, kernel, step = _windows(name, rank, x, kernel_size, stride, padding, float("-inf"))
        return dispatch.call(row, (x,), (kernel, step))

    apply.__doc__ = _TEXT.format(
        first=f"Largest element of each window of x (N, C, {axes(rank)}).", padded="below all others",
        name=name, extents="1, " * (rank + 1) + "4", kernel=(*(1,) * (rank - 1), 2), result="2., 4.",
    )  # fmt: skip
    return named(apply, row)


def _avg_pool(rank: int) -> Callable[..., Any]:
    name = f"avg_pool{rank}d"

    def apply(
        x: ArrayLike,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
    ) -> Tensor:
        x, kernel, step = _windows(name, rank, x, kernel_size, stride, padding, 0.0)
        spans = [(n - 1) * s + 1 for n, s in zip(_fit(name, x.shape, kernel, step), step, strict=True)]
        total = None
        for start in itertools.product(*map(range, kernel)):
            part = x[(..., *(slice(i, i + n, s) for i, n, s in zip(start, spans, step, strict=True)))]
            total = part if total is None else e.add(total, part)
        return e.multiply(total, 1.0 / math.prod(kernel))

    apply.__doc__ = _TEXT.format(
        first=f"Mean of each window of x (N, C, {axes(rank)}).", padded="zeros",
        name=name, extents="1, " * (rank + 1) + "4", kernel=(*(1,) * (rank - 1), 2), result="1.5, 3.5",
    )  # fmt: skip
    apply.__name__ = apply.__qualname__ = name
    return apply


max_pool1d, max_pool2d, max_pool3d = (_max_pool(rank) for rank in (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = (_avg_pool(rank) for rank in (1, 2, 3))
