"""Pooling over windows in one, two and three dimensions, on tensors (batch, channels, *extents)."""

from __future__ import annotations

import functools
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
    Padded elements count as {padded}. The result is (N, C, ...).

    Raises:
        ValueError: the kernel is larger than the padded image, or the padding more than half the kernel.

    >>> import flnb
    >>> x = flnb.reshape([1.0, 2.0, 3.0, 4.0], ({extents}))
    >>> flnb.{name}(x, {kernel}).flatten()
    Tensor([{result}], float32[2], numpy)
"""


def _fit(op: str, shape: Extents, kernel: Extents, stride: Extents) -> Extents:
    """Return how many windows fit along each dimension of x, which has ``shape`` (N, C, ...)."""
    rank = len(kernel)
    return output(op, shape[2:], kernel, stride, (0,) * rank, (1,) * rank)


def _infer(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[Extents, Any]:
    """Shape rule of pooling, whose attributes are the kernel's extents and the stride, one int for each dimension."""
    kernel, stride = attributes
    return (*specs[0].shape[:2], *_fit(op.name, specs[0].shape, kernel, stride)), specs[0].dtype


def _pool(
    name: str, rank: int, first: str, padded: str, fill: float, result: str, compute: Callable[..., Any]
) -> Callable[..., Any]:
    """Make a public function that pools images with ``rank`` dimensions.

    Args:
        name: the function's name.
        rank: how many dimensions the images have.
        first: the beginning of its docstring.
        padded: what padded elements count as, for the docstring.
        fill: the value of padded elements.
        result: the result of the docstring's example.
        compute: ``compute(x, kernel, stride)`` pools the padded image.
    """

    def apply(
        x: ArrayLike, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
    ) -> Tensor:  # fmt: skip
        x = floating(x)
        if x.ndim != rank + 2:
            raise ValueError(f"{name}: expected x (N, C, {axes(rank)}), got {x._spec!r}")
        kernel = extents(kernel_size, rank, name, "kernel_size", 1)
        step = kernel if stride is None else extents(stride, rank, name, "stride", 1)
        around = extents(padding, rank, name, "padding", 0)
        if any(2 * p > k for p, k in zip(around, kernel, strict=True)):
            raise ValueError(f"{name}: padding {around} is more than half the kernel {kernel}")
        if any(around):
            x = pad(x, ((0, 0), (0, 0), *((p, p) for p in around)), fill)
        return compute(x, kernel, step)

    apply.__doc__ = _TEXT.format(
        first=f"{first} of each window of x (N, C, {axes(rank)}).", padded=padded, name=name, result=result,
        extents="1, " * (rank + 1) + "4", kernel=(*(1,) * (rank - 1), 2),
    )  # fmt: skip
    apply.__name__ = apply.__qualname__ = name
    return apply


def _max_pool(rank: int) -> Callable[..., Any]:
    """Declare max pooling and its gradients, and make the public function.

    ``spread`` puts a gradient where the first of the largest elements of each window was; ``select``, its gradient,
    takes the elements from there.
    """
    name = f"max_pool{rank}d"
    op = Op(
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
    apply = _pool(
        name, rank, "Largest element", "below all others", float("-inf"), "2., 4.",
        lambda x, *attributes: dispatch.call(op, (x,), attributes),
    )  # fmt: skip
    return named(apply, op)


def _avg_pool(rank: int) -> Callable[..., Any]:
    """Make the public function of average pooling, which adds one strided slice for each place in the kernel."""
    name = f"avg_pool{rank}d"

    def compute(x: Any, kernel: Extents, step: Extents) -> Any:
        spans = [(n - 1) * s + 1 for n, s in zip(_fit(name, x.shape, kernel, step), step, strict=True)]
        parts = (
            x[(..., *(slice(i, i + n, s) for i, n, s in zip(start, spans, step, strict=True)))]
            for start in itertools.product(*map(range, kernel))
        )
        return functools.reduce(e.add, parts) * (1.0 / math.prod(kernel))

    return _pool(name, rank, "Mean", "zeros", 0.0, "1.5, 3.5", compute)


max_pool1d, max_pool2d, max_pool3d = (_max_pool(rank) for rank in (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = (_avg_pool(rank) for rank in (1, 2, 3))
