"""Convolution and pooling in one, two and three dimensions, on tensors (batch, channels, *extents).

A convolution, the gradient of its input and the gradient of its weight are three ops. Each op is linear in both its
tensors, and its gradients are computed by the other two ops, so convolutions can be differentiated to any order.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.brief import brief
from flnb.dispatch.table import Combined, Op, Pull, describe, named
from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.creation import asarray
from flnb.ops.movement import pad, reshape
from flnb.tensor import ArrayLike, Tensor

Extents = tuple[int, ...]


def axes(rank: int) -> str:
    """Return the names of the axes of an image with ``rank`` dimensions: "D, H, W" for 3."""
    return ", ".join("DHW"[3 - rank :])


def extents(value: Any, rank: int, op: str, name: str, least: int) -> Extents:
    """Return the argument ``name`` of ``op``, an int >= ``least`` or one for each dimension, as a tuple of ints."""
    if type(value) is int and value >= least:
        return (value,) * rank
    each = tuple(value) if isinstance(value, Iterable) else (value,) * rank
    if len(each) != rank or any(not isinstance(n, Integral) or n < least for n in each):
        wanted = "one int" if rank == 1 else f"one or {('two', 'three')[rank - 2]} ints"
        raise ValueError(f"{op}: {name} must be {wanted} >= {least}, got {brief(value)}")
    return tuple(map(int, each))


def output(op: str, size: Extents, kernel: Extents, stride: Extents, padding: Extents, dilation: Extents) -> Extents:
    """Return how many windows fit along each dimension of an image of extents ``size``; errors name ``op``."""
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    fit = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, spans, stride, padding, strict=True))
    if any(n < 1 for n in fit):
        dilated = "" if spans == list(kernel) else f", dilated to {tuple(spans)},"
        raise ValueError(
            f"{op}: a kernel of {kernel}{dilated} does not fit an image of {size} with padding {padding}; "
            f"use a smaller kernel or more padding"
        )
    return fit


def _infer(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[Extents, Any]:
    """Shape rule of a convolution, whose attributes are stride, padding, dilation and groups."""
    x, w = specs
    *placing, groups = attributes
    rank = len(placing[0])
    if x.ndim != rank + 2 or w.ndim != rank + 2:
        raise ValueError(
            f"{op.name}: expected x (N, C, {axes(rank)}) and weight (O, C / groups, K...), got {describe(specs)}"
        )
    if x.shape[1] != w.shape[1] * groups:
        raise ValueError(
            f"{op.name}: x has {x.shape[1]} channels, the weight expects {w.shape[1]} in each of {groups} groups: "
            f"{describe(specs)}"
        )
    if w.shape[0] % groups:
        raise ValueError(
            f"{op.name}: expected a weight (O, C / groups, K...) with O a multiple of groups={groups}, got "
            f"{describe(specs)}"
        )
    return (x.shape[0], w.shape[0], *output(op.name, x.shape[2:], w.shape[2:], *placing)), x.dtype


def _declare(rank: int) -> Op:
    """Declare the convolution of images with ``rank`` dimensions, and its two gradients; returns the convolution.

    The ops of the gradients have one more attribute than the convolution: the extents of their result, which is the
    gradient of the image or of the kernel.
    """
    name = f"conv{rank}d"

    def run(op: Op, plan: Any, a: Any, b: Any, *extents: Extents) -> Any:
        return dispatch.call(op, (a, b), (*plan.attributes[:4], *extents))

    convolve = Op(
        name, "matmul", _infer, accepts="float", flops=lambda plan: _flops(plan.spec, plan.specs[1].shape),
        pulls=(
            Pull({1}, lambda g, plan, x, w, y: run(input_grad, plan, g, w, plan.specs[0].shape[2:])),
            Pull({0}, lambda g, plan, x, w, y: run(weight_grad, plan, g, x, plan.specs[1].shape[2:])),
        ),
    )  # fmt: skip
    input_grad = Op(
        f"{name}_input_grad", "matmul", flops=lambda plan: _flops(plan.specs[0], plan.specs[1].shape),
        infer=lambda op, specs, a: ((specs[0].shape[0], specs[1].shape[1] * a[3], *a[4]), specs[0].dtype),
        pulls=(
            Pull({1}, lambda g, plan, u, w, y: run(convolve, plan, g, w)),
            Pull({0}, lambda g, plan, u, w, y: run(weight_grad, plan, u, g, plan.specs[1].shape[2:])),
        ),
    )  # fmt: skip
    weight_grad = Op(
        f"{name}_weight_grad", "matmul", flops=lambda plan: _flops(plan.specs[0], plan.spec.shape),
        infer=lambda op, specs, a: ((specs[0].shape[1], specs[1].shape[1] // a[3], *a[4]), specs[0].dtype),
        pulls=(
            Pull({1}, lambda g, plan, u, x, y: run(convolve, plan, x, g)),
            Pull({0}, lambda g, plan, u, x, y: run(input_grad, plan, u, g, plan.specs[1].shape[2:])),
        ),
    )  # fmt: skip
    return convolve


def _declare_biased(convolve: Op, rank: int) -> Op:
    """Declare the combined op of a convolution and the addition of a bias.

    ``convolve`` is the op of the convolution, ``rank`` the number of the images' dimensions.
    """
    of_image, of_weight = (pull.function for pull in convolve.pulls)  # type: ignore[union-attr]

    def infer(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[Extents, Any]:
        _check_bias(convolve, specs[2].shape, specs[1].shape[:1])
        return _infer(convolve, specs[:2], attributes)

    def separately(x: Any, weight: Any, bias: Any, *placing: Any) -> Any:
        y = convolve.entries[2, ""](x, weight, placing)
        bias = bias if isinstance(bias, Tensor) else asarray(bias)
        _check_bias(convolve, bias.shape, y.shape[1:2])
        return e.biased(y, reshape(bias, (1, bias.shape[0], *(1,) * rank)))

    return Combined(
        f"{convolve.name}_bias", "matmul", infer, separately=separately,
        flops=lambda plan: convolve.flops(plan) + plan.spec.size,
        pulls=(
            Pull({1}, lambda g, plan, x, w, b, y: of_image(g, plan, x, w, y)),
            Pull({0}, lambda g, plan, x, w, b, y: of_weight(g, plan, x, w, y)),
            Pull((), lambda g, plan, x, w, b, y: r.sum(g, (0, *range(2, rank + 2)))),
        ),
    )  # fmt: skip


def _check_bias(op: Op, shape: Extents, expected: Extents) -> None:
    """Raise an error if a bias does not have one number for each channel of the result."""
    if shape != expected:
        raise ValueError(f"{op.name}: expected a bias of shape {expected}, got {shape}")


def _flops(result: Any, weight: Extents) -> int:
    """Return the number of floating-point operations of a convolution, from the result's spec and weight's shape."""
    return 2 * int(result.size) * math.prod(weight[1:])


@functools.lru_cache(1024)
def _placing(op: str, rank: int, stride: Any, padding: Any, dilation: Any, groups: Any) -> tuple[Any, ...]:
    """Return the attributes of a convolution, given the arguments of its public function; errors name ``op``."""
    settings = ("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)
    placing = [extents(value, rank, op, name, least) for name, value, least in settings]
    return (*placing, *extents(groups, 1, op, "groups", 1))


def _convolution(rank: int) -> Callable[..., Any]:
    """Make the public function that convolves images with ``rank`` dimensions."""
    op = _declare(rank)
    biased = _declare_biased(op, rank)
    image, kernel, result = (", ".join([n] * rank) for n in "533")

    def apply(
        x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1,
    ) -> Tensor:  # fmt: skip
        numbers = type(stride) is type(padding) is type(dilation) is type(groups) is int
        placing = (_placing if numbers else _placing.__wrapped__)(op.name, rank, stride, padding, dilation, groups)
        if bias is None:
            return op.entries[2, ""](x, weight, placing)
        return biased.entries[3, ""](x, weight, bias, placing)

    apply.__doc__ = f"""Cross-correlation of x (N, C, {axes(rank)}) with weight (O, C / groups, K...), plus bias (O,).

    The result is (N, O, ...), with extents ``(n + 2 padding - dilation (k - 1) - 1) // stride + 1`` for an image of
    extents n and a kernel of extents k. Stride, padding and dilation are one int, or one for each dimension. ``groups``
    divides the C channels and O outputs into as many groups, and each group of outputs sees its group of channels only.

    Raises:
        ValueError: the channels of x and weight differ, or the kernel is larger than the padded image.

    >>> import flnb
    >>> x, weight = flnb.ones((1, 2, {image})), flnb.ones((3, 2, {kernel}))
    >>> flnb.{op.name}(x, weight).shape
    (1, 3, {result})
    """
    return named(apply, op)


conv1d, conv2d, conv3d = (_convolution(rank) for rank in (1, 2, 3))


_POOL_TEXT = """{first}

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


def _infer_pool(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[Extents, Any]:
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
        first: the beginning of the function's docstring.
        padded: how the docstring describes the value of padded elements.
        fill: the value of padded elements.
        result: the result of the docstring's example, as text.
        compute: ``compute(x, kernel, stride)`` pools the padded image.
    """

    def apply(
        x: ArrayLike, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
    ) -> Tensor:  # fmt: skip
        x = r.floating(x)
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

    apply.__doc__ = _POOL_TEXT.format(
        first=f"{first} of each window of x (N, C, {axes(rank)}).", padded=padded, name=name, result=result,
        extents="1, " * (rank + 1) + "4", kernel=(*(1,) * (rank - 1), 2),
    )  # fmt: skip
    apply.__name__ = apply.__qualname__ = name
    return apply


def _max_pool(rank: int) -> Callable[..., Any]:
    """Declare max pooling of images with ``rank`` dimensions, with its gradients, and make the public function.

    The gradient of pooling is the op ``spread``, which writes one number for each window at the position of its largest
    element (the first of equal ones). The gradient of ``spread`` is the op ``select``, which reads one number from each
    of these positions.
    """
    name = f"max_pool{rank}d"
    op = Op(
        name, "reduction", _infer_pool, accepts="float",
        pulls=(Pull({0}, lambda g, plan, x, y: dispatch.call(spread, (g, x), plan.attributes)),),
    )  # fmt: skip
    spread = Op(
        f"{name}_grad", "reduction", lambda op, specs, a: (specs[1].shape, specs[0].dtype),
        (Pull({1}, lambda g, plan, u, x, y: dispatch.call(select, (g, x), plan.attributes)), None),
    )  # fmt: skip
    select = Op(
        f"{name}_select", "reduction", _infer_pool,
        (Pull({1}, lambda g, plan, v, x, y: dispatch.call(spread, (g, x), plan.attributes)), None),
    )  # fmt: skip
    apply = _pool(
        name, rank, "Largest element", "below all others", float("-inf"), "2., 4.",
        lambda x, *attributes: dispatch.call(op, (x,), attributes),
    )  # fmt: skip
    return named(apply, op)


def _avg_pool(rank: int) -> Callable[..., Any]:
    """Make the public function of average pooling, which adds one strided slice for each element of the kernel."""
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
