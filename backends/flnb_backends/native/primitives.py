"""Convolutions, matrix products and max pooling by oneDNN's primitives, in several ways.

Ways differ in the memory layout on which the primitive computes: "plain" is the layout of the arrays, "nhwc" has the
channels last, and "blocked" is the layout that oneDNN prefers. An array with another layout is copied before or after
the primitive. "padded" first makes a copy of an image with zeros around it. For few channels and wide padding, as in
the first layer of AlexNet, this takes half the time on AVX2: without it, oneDNN 3.2 would unroll windows (im2col).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flnb_backends.native.onednn import OneDnn, library
from flnb_backends.native.prepared import Operand, Prepared, Shape, Stage, Unsuitable, channels_last

Laid = tuple[Shape, Shape]
"""The shape of an array, and its strides in elements."""
SRC, WEIGHTS, DST, WORKSPACE, GRADIENT = 1, 33, 17, 64, 128
"""oneDNN's numbers of a primitive's arguments. For a tensor's gradient, GRADIENT is added to the tensor's number."""
FORWARD_TRAINING, FORWARD_INFERENCE, DIRECT, MAX_POOLING = 64, 96, 1, 0x1FF
LAYOUTS: dict[str, Callable[[Shape, Shape], Shape | None]] = {
    "plain": lambda shape, strides: strides,
    "nhwc": lambda shape, strides: channels_last(shape),
    "blocked": lambda shape, strides: None,
    "padded": lambda shape, strides: None,
}
"""For each way to compute, a function of an image's shape and strides that returns the strides of the computation."""
WAYS = {
    "conv": ("plain", "nhwc", "blocked", "padded"),
    "conv_input_grad": ("plain", "nhwc", "blocked"),
    "conv_weight_grad": ("plain", "nhwc", "blocked"),
    "matmul": ("plain", "blocked"),
    "max_pool": ("plain", "nhwc"),
    "max_pool_grad": ("plain", "nhwc"),
}
"""The ways to compute each op. oneDNN always chooses the layout of a convolution's weight, and of the right factor of a
"blocked" matrix product. "padded" is tried if "blocked" would unroll windows."""


def prepare(op: str, way: str, operands: Sequence[Laid], *attributes: Any) -> Prepared:
    """Prepare an op for arrays of given shapes and strides.

    The ops and their operands are "conv" (image, weight), "conv_input_grad" (gradient of the result, weight),
    "conv_weight_grad" (gradient of the result, image), "matmul" (two matrices), "max_pool" (image) and "max_pool_grad"
    (gradient of the result, image).

    Args:
        op: the name of the op.
        way: the name of the way to compute it, one of ``WAYS[op]``.
        operands: the shape and the strides, in elements, of each operand and of the result.
        attributes: for a convolution: stride, padding and dilation, each a tuple with a number for each spatial
            dimension, and the number of groups. For pooling: the kernel's extents and the stride. Further attributes
            are ignored.

    Raises:
        OneDnnError: oneDNN cannot compute the op in this way; the status is usually "unimplemented".
        Unsuitable: oneDNN can compute the op in this way, but only slowly.
        ImportError: oneDNN cannot be used (`flnb_backends.native.onednn.library`).
    """
    return PREPARE[op](library(), op, way, operands, *attributes)


def _convolution(
    dnn: OneDnn, op: str, way: str, operands: Sequence[Laid], stride: Shape, padding: Shape, dilation: Shape,
    groups: int, *_: Any,
) -> Prepared:  # fmt: skip
    around: Shape = ()
    if way == "padded":
        plain = any(padding) and _convolution(dnn, op, "blocked", operands, stride, padding, dilation, groups)
        if not plain or "gemm" not in plain.implementation:
            raise Unsuitable("way 'padded' is only for padded convolutions that oneDNN would compute by im2col (gemm)")
        around, padding = (0, 0, *padding), (0,) * len(padding)
    order = {
        "conv": (SRC, WEIGHTS, DST),
        "conv_input_grad": (DST + GRADIENT, WEIGHTS, SRC + GRADIENT),
        "conv_weight_grad": (DST + GRADIENT, SRC, WEIGHTS + GRADIENT),
    }[op]
    tensors = [number & ~GRADIENT for number in order]
    each = []
    for number, tensor, (shape, strides) in zip(order, tensors, operands, strict=True):
        if tensor == WEIGHTS and groups > 1:
            inside = shape[0] // groups
            shape, strides = (groups, inside, *shape[1:]), (inside * strides[0], *strides)
        wanted = None if tensor == WEIGHTS else LAYOUTS[way](shape, strides)
        each.append(Operand(number, shape, strides, wanted, around if tensor == SRC else ()))
    placing = [dnn.numbers(n) for n in (stride, [d - 1 for d in dilation], padding, padding)]

    def make(kind: str, *arguments: Any) -> Any:
        create = f"convolution_{kind}_primitive_desc_create"
        return dnn.new("dnnl_primitive_desc_t", create, dnn.engine, *arguments, dnn.attributes, doing=op)

    def describe(*described: Any) -> list[Stage]:
        image, weight, result = (described[tensors.index(tensor)] for tensor in (SRC, WEIGHTS, DST))
        made = make("forward", FORWARD_TRAINING, DIRECT, image, weight, dnn.ffi.NULL, result, *placing)
        if op == "conv_input_grad":
            made = make("backward_data", DIRECT, image, weight, result, *placing, made)
        elif op == "conv_weight_grad":
            made = make("backward_weights", DIRECT, image, weight, dnn.ffi.NULL, result, *placing, made)
        return [Stage(op, made, order)]

    return Prepared(dnn, op, each, describe)


def _matmul(dnn: OneDnn, op: str, way: str, operands: Sequence[Laid], *_: Any) -> Prepared:
    rank = max(len(shape) for shape, _ in operands)
    each = []
    for number, (shape, strides) in zip((SRC, WEIGHTS, DST), operands, strict=True):
        more = rank - len(shape)
        shape, strides = (1,) * more + shape, (shape[0] * strides[0],) * more + strides
        each.append(Operand(number, shape, strides, None if (way, number) == ("blocked", WEIGHTS) else strides))

    def describe(a: Any, b: Any, y: Any) -> list[Stage]:
        arguments = dnn.engine, a, b, dnn.ffi.NULL, y, dnn.attributes
        made = dnn.new("dnnl_primitive_desc_t", "matmul_primitive_desc_create", *arguments, doing=op)
        return [Stage(op, made, (SRC, WEIGHTS, DST))]

    return Prepared(dnn, op, each, describe)


def _pooling(
    dnn: OneDnn, op: str, way: str, operands: Sequence[Laid], kernel: Shape, stride: Shape, *_: Any
) -> Prepared:
    order = POOLED[op]
    each = [Operand(number, *laid, LAYOUTS[way](*laid)) for number, laid in zip(order, operands, strict=True)]
    none = (0,) * len(kernel)
    windows = [dnn.numbers(n) for n in (stride, kernel, none, none, none)]

    def make(kind: str, *arguments: Any) -> Any:
        create = f"pooling_{kind}_primitive_desc_create"
        return dnn.new("dnnl_primitive_desc_t", create, dnn.engine, *arguments, dnn.attributes, doing=op)

    def describe(*described: Any) -> list[Stage]:
        of: dict[int, Any] = {}
        for number, one in zip(order, described, strict=True):
            of.setdefault(number & ~GRADIENT, one)
        image, result = of[SRC], of[DST]
        propagation = FORWARD_INFERENCE if op == "max_pool" else FORWARD_TRAINING
        forward = make("forward", propagation, MAX_POOLING, image, result, *windows)
        if op == "max_pool":
            return [Stage(op, forward, order)]
        backward = make("backward", MAX_POOLING, described[2], result, *windows, forward)
        again = Stage("max_pool", forward, (SRC, DST, WORKSPACE))  # writes where in each window the maximum is
        return [again, Stage(op, backward, (DST + GRADIENT, WORKSPACE, SRC + GRADIENT))]

    return Prepared(dnn, op, each, describe)


POOLED = {
    "max_pool": (SRC, DST),
    "max_pool_grad": (DST + GRADIENT, SRC, SRC + GRADIENT),
}
"""The numbers that oneDNN gives the arguments of each op."""
PREPARE: dict[str, Callable[..., Prepared]] = {
    **dict.fromkeys(("conv", "conv_input_grad", "conv_weight_grad"), _convolution),
    "matmul": _matmul,
    **dict.fromkeys(POOLED, _pooling),
}
