"""Convolution and pooling in one, two and three dimensions, of x (N, channels, *extents)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from flnb import ops
from flnb.nn import init
from flnb.nn.module import Module, Parameter

__all__ = [
    "AsymmetricConv1d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "Conv1d", "Conv2d", "Conv3d", "MaxPool1d", "MaxPool2d",
    "MaxPool3d",
]  # fmt: skip

Extents = int | tuple[int, ...]
"""One integer for all dimensions, or a tuple with one for each."""


class _Conv(Module):
    """Base of the convolutions; a subclass sets ``rank`` to the number of spatial dimensions."""

    rank: ClassVar[int]

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Extents, stride: Extents = 1, padding: Extents = 0,
        bias: bool = True, dilation: Extents = 1, groups: int = 1,
    ) -> None:  # fmt: skip
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{type(self).__name__}: expected groups that divide {in_channels} and {out_channels} channels, "
                f"got {groups}"
            )
        kernel = kernel_size if isinstance(kernel_size, tuple) else (kernel_size,) * self.rank
        inputs = in_channels // groups * math.prod(kernel)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.dilation, self.groups = dilation, groups
        self.weight = Parameter(init.by_inputs((out_channels, in_channels // groups, *kernel), inputs))
        self.bias = Parameter(init.by_inputs((out_channels,), inputs)) if bias else None

    def forward(self, x: Any) -> Any:
        convolve = getattr(ops, f"conv{self.rank}d")
        return convolve(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv1d(_Conv):
    """Convolution in one dimension: (N, in_channels, W) -> (N, out_channels, W').

    W' = (W + 2 * padding - dilation * (kernel_size - 1) - 1) // stride + 1. The parameters are weight (out_channels,
    in_channels / groups, kernel_size) and bias (out_channels,), which are initialised as in torch.

    Raises:
        ValueError: ``groups`` does not divide the numbers of channels.

    >>> import flnb, flnb.nn as nn
    >>> nn.Conv1d(2, 4, 3, stride=2)(flnb.ones((1, 2, 9))).shape
    (1, 4, 4)
    """

    rank = 1


class Conv2d(_Conv):
    """Convolution in two dimensions, of images: (N, in_channels, H, W) -> (N, out_channels, H', W').

    Kernel size, stride, padding and dilation are one integer or (rows, columns); H' and W' are as in `Conv1d`. The
    parameters are weight (out_channels, in_channels / groups, rows, columns) and bias (out_channels,).

    Raises:
        ValueError: ``groups`` does not divide the numbers of channels.

    >>> import flnb, flnb.nn as nn
    >>> nn.Conv2d(1, 4, 3, padding=1)(flnb.ones((2, 1, 8, 8))).shape
    (2, 4, 8, 8)
    """

    rank = 2


class Conv3d(_Conv):
    """Convolution in three dimensions: (N, in_channels, D, H, W) -> (N, out_channels, D', H', W').

    Kernel size, stride, padding and dilation are one integer or one for each dimension; D', H' and W' are as in
    `Conv1d`. The parameters are weight (out_channels, in_channels / groups, *kernel) and bias (out_channels,).

    Raises:
        ValueError: ``groups`` does not divide the numbers of channels.

    >>> import flnb, flnb.nn as nn
    >>> nn.Conv3d(1, 4, (1, 3, 3))(flnb.ones((2, 1, 2, 8, 8))).shape
    (2, 4, 2, 6, 6)
    """

    rank = 3


class AsymmetricConv1d(Conv1d):
    """Convolution over time whose kernels may reach further into the past than into the future, or the other way round.

    x (N, in_channels, W) -> (N, out_channels, W') with W' = W / stride, rounded up. A kernel reaches over
    (kernel_size - 1) * dilation steps besides the present one; ``future_part`` is the share of them in the future:
    0 for a causal convolution, 0.5 for a symmetric one, 1 for the future alone. x is padded with zeros.

    Raises:
        ValueError: ``future_part`` is not in the range from 0 to 1, or x does not have three axes.

    >>> import flnb, flnb.nn as nn
    >>> causal = nn.AsymmetricConv1d(1, 1, 3, future_part=0.0, bias=False)
    >>> flnb.assign(causal.weight.data, 1.0).shape
    (1, 1, 3)
    >>> causal(flnb.asarray([[[1.0, 10.0, 100.0, 1000.0]]])).detach().tolist()
    [[[1.0, 11.0, 111.0, 1110.0]]]
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, future_part: float = 0.5,
        bias: bool = True, dilation: int = 1, groups: int = 1,
    ) -> None:  # fmt: skip
        if not 0.0 <= future_part <= 1.0:
            raise ValueError(f"AsymmetricConv1d: future_part must be from 0 (past) to 1 (future), got {future_part}")
        super().__init__(in_channels, out_channels, kernel_size, stride, 0, bias, dilation, groups)
        self.future_part = future_part
        whole = (kernel_size - 1) * dilation
        past = math.ceil(whole * (1.0 - future_part) - 0.5)  # half a step is added to the future
        self._widths = (0, 0), (0, 0), (past, whole - past)

    def forward(self, x: Any) -> Any:
        if x.ndim != 3:
            raise ValueError(f"AsymmetricConv1d: expected x (N, {self.in_channels}, W), got {x.shape}")
        return super().forward(ops.pad(x, self._widths))


class _Pool(Module):
    """Base of the poolings; a subclass sets ``function`` to the name of the pooling op."""

    function: ClassVar[str]

    def __init__(self, kernel_size: Extents, stride: Extents | None = None, padding: Extents = 0) -> None:
        self.kernel_size, self.padding = kernel_size, padding
        self.stride = kernel_size if stride is None else stride

    def forward(self, x: Any) -> Any:
        return getattr(ops, self.function)(x, self.kernel_size, self.stride, self.padding)


class MaxPool1d(_Pool):
    """Max pooling: the largest value of each window, (N, C, W) -> (N, C, W').

    ``stride`` is ``kernel_size`` by default; padded elements, on both sides, are never chosen. W' = (W + 2 * padding -
    kernel_size) // stride + 1.

    >>> import flnb, flnb.nn as nn
    >>> nn.MaxPool1d(2)(flnb.ones((1, 3, 8))).shape
    (1, 3, 4)
    """

    function = "max_pool1d"


class MaxPool2d(_Pool):
    """Max pooling: the largest value of each window, (N, C, H, W) -> (N, C, H', W').

    ``stride`` is ``kernel_size`` by default; padded elements, on both sides, are never chosen. W' = (W + 2 * padding -
    kernel_size) // stride + 1; H' likewise.

    >>> import flnb, flnb.nn as nn
    >>> nn.MaxPool2d(2)(flnb.ones((1, 3, 8, 8))).shape
    (1, 3, 4, 4)
    """

    function = "max_pool2d"


class MaxPool3d(_Pool):
    """Max pooling: the largest value of each window, (N, C, D, H, W) -> (N, C, D', H', W').

    ``stride`` is ``kernel_size`` by default; padded elements, on both sides, are never chosen. W' = (W + 2 * padding -
    kernel_size) // stride + 1; D' and H' likewise.

    >>> import flnb, flnb.nn as nn
    >>> nn.MaxPool3d(2)(flnb.ones((1, 3, 4, 4, 4))).shape
    (1, 3, 2, 2, 2)
    """

    function = "max_pool3d"


class AvgPool1d(_Pool):
    """Average pooling: the mean of each window, (N, C, W) -> (N, C, W').

    ``stride`` is ``kernel_size`` by default; padding, on both sides, counts as zeros. W' = (W + 2 * padding -
    kernel_size) // stride + 1.

    >>> import flnb, flnb.nn as nn
    >>> nn.AvgPool1d(2)(flnb.ones((1, 3, 8))).shape
    (1, 3, 4)
    """

    function = "avg_pool1d"


class AvgPool2d(_Pool):
    """Average pooling: the mean of each window, (N, C, H, W) -> (N, C, H', W').

    ``stride`` is ``kernel_size`` by default; padding, on both sides, counts as zeros. W' = (W + 2 * padding -
    kernel_size) // stride + 1; H' likewise.

    >>> import flnb, flnb.nn as nn
    >>> nn.AvgPool2d(2)(flnb.ones((1, 3, 8, 8))).shape
    (1, 3, 4, 4)
    """

    function = "avg_pool2d"


class AvgPool3d(_Pool):
    """Average pooling: the mean of each window, (N, C, D, H, W) -> (N, C, D', H', W').

    ``stride`` is ``kernel_size`` by default; padding, on both sides, counts as zeros. W' = (W + 2 * padding -
    kernel_size) // stride + 1; D' and H' likewise.

    >>> import flnb, flnb.nn as nn
    >>> nn.AvgPool3d(2)(flnb.ones((1, 3, 4, 4, 4))).shape
    (1, 3, 2, 2, 2)
    """

    function = "avg_pool3d"
