"""Two-dimensional convolution and pooling on (batch, channels, height, width).

Each primitive is linear in its tensors apart from the choice of maxima, and its gradients are primitives of this
file again, so that they can be differentiated to any order.
"""

from __future__ import annotations

from typing import Any

from flnb.dispatch import ops as dispatch
from flnb.ops import elementwise as e
from flnb.ops.movement import pad, reshape
from flnb.ops.table import Op, Pull, describe

Pair = tuple[int, int]


def pair(value: Any, op: str, name: str, least: int) -> Pair:
    """An int or two ints as two ints, checked."""
    two = (value, value) if isinstance(value, int) else tuple(value)
    if len(two) != 2 or any(not isinstance(n, int) or n < least for n in two):
        raise ValueError(f"{op}: {name} must be one or two ints >= {least}, got {value!r}")
    return two


def _output(op: Op, shape: tuple[int, ...], kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    h, w = ((n + 2 * p - k) // s + 1 for n, k, s, p in zip(shape[2:], kernel, stride, padding, strict=True))
    if h < 1 or w < 1:
        raise ValueError(
            f"{op.name}: a kernel of {kernel} does not fit an image of {shape[2:]} with padding {padding}; "
            f"use a smaller kernel or more padding"
        )
    return h, w


def _infer_conv(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
    x, w = specs
    if x.ndim != 4 or w.ndim != 4:
        raise ValueError(f"conv2d: expected x (N, C, H, W) and weight (O, C, KH, KW), got {describe(specs)}")
    if x.shape[1] != w.shape[1]:
        raise ValueError(f"conv2d: x has {x.shape[1]} channels, the weight expects {w.shape[1]}: {describe(specs)}")
    return (x.shape[0], w.shape[0], *_output(op, x.shape, w.shape[2:], *attributes)), x.dtype


_conv2d: Op = Op(
    "conv2d", "matmul", _infer_conv,
    (
        Pull("1", lambda g, plan, x, w, y: dispatch.call(
            _input_grad, (g, w), (*plan.attributes, plan.specs[0].shape[2:]))),
        Pull("0", lambda g, plan, x, w, y: dispatch.call(
            _weight_grad, (g, x), (*plan.attributes, plan.specs[1].shape[2:]))),
    ),
    accepts="float", flops=lambda plan: _conv_flops(plan.spec, plan.specs[1].shape),
)  # fmt: skip
_input_grad: Op = Op(
    "conv2d_input_grad", "matmul",
    lambda op, specs, a: ((specs[0].shape[0], specs[1].shape[1], *a[2]), specs[0].dtype),
    (
        Pull("1", lambda g, plan, u, w, y: dispatch.call(_conv2d, (g, w), plan.attributes[:2])),
        Pull("0", lambda g, plan, u, w, y: dispatch.call(
            _weight_grad, (u, g), (*plan.attributes[:2], plan.specs[1].shape[2:]))),
    ),
    flops=lambda plan: _conv_flops(plan.specs[0], plan.specs[1].shape),
)  # fmt: skip
_weight_grad: Op = Op(
    "conv2d_weight_grad", "matmul",
    lambda op, specs, a: ((specs[0].shape[1], specs[1].shape[1], *a[2]), specs[0].dtype),
    (
        Pull("1", lambda g, plan, u, x, y: dispatch.call(_conv2d, (x, g), plan.attributes[:2])),
        Pull("0", lambda g, plan, u, x, y: dispatch.call(
            _input_grad, (u, g), (*plan.attributes[:2], plan.specs[1].shape[2:]))),
    ),
    flops=lambda plan: _conv_flops(plan.specs[0], plan.spec.shape),
)  # fmt: skip


def _conv_flops(output: Any, weight: tuple[int, ...]) -> int:
    return 2 * int(output.size) * weight[1] * weight[2] * weight[3]


def conv2d(x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> Any:
    """Cross-correlation of x (N, C, H, W) with weight (O, C, KH, KW), plus bias (O): shape (N, O, H', W').

    ``H' = (H + 2 padding - KH) // stride + 1``, likewise W'.

    Raises:
        ValueError: channels that differ, or a kernel larger than the padded image.
    """
    attributes = (pair(stride, "conv2d", "stride", 1), pair(padding, "conv2d", "padding", 0))
    y = dispatch.call(_conv2d, (x, weight), attributes)
    if bias is None:
        return y
    if bias.shape != (weight.shape[0],):
        raise ValueError(f"conv2d: expected a bias of shape ({weight.shape[0]},), got {bias.shape}")
    return e.add(y, reshape(bias, (1, bias.shape[0], 1, 1)))


def _infer_pool(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
    if specs[0].ndim != 4:
        raise ValueError(f"{op.name}: expected x (N, C, H, W), got {describe(specs)}")
    kernel, stride = attributes
    return (*specs[0].shape[:2], *_output(op, specs[0].shape, kernel, stride, (0, 0))), specs[0].dtype


_max_pool2d: Op = Op(
    "max_pool2d", "reduction", _infer_pool,
    (Pull("0", lambda g, plan, x, y: dispatch.call(_pool_grad, (g, x), plan.attributes)),),
    accepts="float",
)  # fmt: skip
_pool_grad: Op = Op(
    "max_pool2d_grad", "reduction",
    lambda op, specs, a: (specs[1].shape, specs[0].dtype),
    (Pull("1", lambda g, plan, u, x, y: dispatch.call(_pool_select, (g, x), plan.attributes)), None),
)  # fmt: skip
_pool_select: Op = Op(
    "max_pool2d_select", "reduction", _infer_pool,
    (Pull("1", lambda g, plan, v, x, y: dispatch.call(_pool_grad, (g, x), plan.attributes)), None),
)  # fmt: skip


def max_pool2d(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Any:
    """Largest element of each window of x (N, C, H, W); stride is the kernel size unless given."""
    x, kernel, step = _windows("max_pool2d", x, kernel_size, stride, padding, float("-inf"))
    return dispatch.call(_max_pool2d, (x,), (kernel, step))


def avg_pool2d(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Any:
    """Mean of each window of x (N, C, H, W), padding counted as zeros; stride is the kernel size unless given."""
    x, kernel, step = _windows("avg_pool2d", x, kernel_size, stride, padding, 0.0)
    h, w = _output(_max_pool2d, x.shape, kernel, step, (0, 0))
    h, w = (h - 1) * step[0] + 1, (w - 1) * step[1] + 1
    total = None
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            part = x[:, :, i : i + h : step[0], j : j + w : step[1]]
            total = part if total is None else e.add(total, part)
    return e.multiply(total, 1.0 / (kernel[0] * kernel[1]))


def _windows(op: str, x: Any, kernel_size: Any, stride: Any, padding: Any, fill: float) -> tuple[Any, Pair, Pair]:
    """The padded image, the kernel and the stride, checked."""
    kernel = pair(kernel_size, op, "kernel_size", 1)
    step = kernel if stride is None else pair(stride, op, "stride", 1)
    around = pair(padding, op, "padding", 0)
    if any(2 * p > k for p, k in zip(around, kernel, strict=True)):
        raise ValueError(f"{op}: padding {around} is more than half the kernel {kernel}")
    if around != (0, 0):
        x = pad(x, ((0, 0), (0, 0), *((p, p) for p in around)), fill)
    return x, kernel, step
