"""Convolution in one to three dimensions on a CUDA device: im2col and a matrix product, or cuDNN.

cuDNN computes a convolution that it supports, if cuDNN and cudnn-frontend are installed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flnb_backends.tensor.convolution import flat
from flnb_backends.tensor.cuda import launcher
from flnb_backends.tensor.cuda.base import Buffer, CudaBuffers
from flnb_backends.tensor.cuda.pooling import Extents, types_of, windows

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_backends.tensor.cuda.cudnn import Cudnn

MOST_ROWS = 65535
"""The most blocks along the second axis of a grid."""


def pointwise(kernel: Extents, stride: Extents, padding: Extents, groups: int) -> bool:
    """Return whether a convolution is a plain matrix product per example: kernel 1, stride 1, no padding."""
    return groups == 1 and {*kernel, *stride} == {1} and not any(padding)


class Convolution(CudaBuffers):
    """The methods of the cuda backend for convolution.

    Attributes:
        matmul: a method that multiplies matrices, which may be transposed views; leading axes are broadcast.
        by_cudnn: the object that calls cuDNN; None if cuDNN is not installed or was switched off.
    """

    matmul: Callable[..., Buffer]
    by_cudnn: Cudnn | None = None

    def conv2d(
        self, x: Buffer, w: Buffer, stride: Extents, padding: Extents, dilation: Extents, groups: int,
        out: Buffer | None = None,
    ) -> Buffer:  # fmt: skip
        o, kernel = w.shape[0], w.shape[2:]
        x, w = self.contiguous(x), self.contiguous(w)
        _, fit = windows(x.shape[2:], kernel, stride, padding, dilation)
        y = self.written(out, (x.shape[0], o, *fit), x.dtype)
        if self.by_cudnn is not None and self.by_cudnn.convolve("conv_fprop", x, w, y, stride, padding, dilation):
            return self.finished(y, out)
        if pointwise(kernel, stride, padding, groups):
            self.matmul(w.reshape(w.shape[:2]), flat(x), flat(y))
            return self.finished(y, out)
        columns = self._columns(x, kernel, stride, padding, dilation, groups)
        shape = groups, o // groups, columns.shape[2]
        rows = y.reshape(shape) if x.shape[0] == 1 else self.new(shape, x.dtype)
        self.matmul(w.reshape(groups, o // groups, columns.shape[1]), columns, rows)
        if x.shape[0] != 1:
            self._swap_leading(rows, y, o, x.shape[0])
        return self.finished(y, out)

    def conv2d_weight_grad(
        self, g: Buffer, x: Buffer, stride: Extents, padding: Extents, dilation: Extents, groups: int, kernel: Extents,
        out: Buffer | None = None,
    ) -> Buffer:  # fmt: skip
        o = g.shape[1]
        y = self.written(out, (o, x.shape[1] // groups, *kernel), g.dtype)
        g, x = self.contiguous(g), self.contiguous(x)
        if self.by_cudnn is not None and self.by_cudnn.convolve("conv_wgrad", x, g, y, stride, padding, dilation):
            return self.finished(y, out)
        columns = self._columns(x, kernel, stride, padding, dilation, groups)
        product = y.reshape(groups, o // groups, columns.shape[1])
        self.matmul(self._positions_first(g, groups), columns.swapaxes(1, 2), product)
        return self.finished(y, out)

    def conv2d_input_grad(
        self, g: Buffer, w: Buffer, stride: Extents, padding: Extents, dilation: Extents, groups: int, size: Extents,
        out: Buffer | None = None,
    ) -> Buffer:  # fmt: skip
        o, width, *kernel = w.shape
        g, w, n, c = self.contiguous(g), self.contiguous(w), g.shape[0], width * groups
        y = self.written(out, (n, c, *size), g.dtype)
        if self.by_cudnn is not None and self.by_cudnn.convolve("conv_dgrad", g, w, y, stride, padding, dilation):
            return self.finished(y, out)
        if pointwise(tuple(kernel), stride, padding, groups):
            self.matmul(w.reshape(o, c).swapaxes(0, 1), flat(g), flat(y))
            return self.finished(y, out)
        depth = width * math.prod(kernel)
        columns = self.new((groups, depth, n * math.prod(g.shape[2:])), g.dtype)
        self.matmul(w.reshape(groups, o // groups, depth).swapaxes(1, 2), self._positions_first(g, groups), columns)
        every, _ = windows(size, tuple(kernel), stride, padding, dilation)
        self.launcher.launch_each("windows", "col2im", types_of(g), y.size, columns, y, n, c, every)
        return self.finished(y, out)

    def _columns(
        self, x: Buffer, kernel: Extents, stride: Extents, padding: Extents, dilation: Extents, groups: int
    ) -> Buffer:
        """Return the windows of x as columns (im2col), shape (groups, channels per group x kernel, batch x windows)."""
        n, c = x.shape[:2]
        every, fit = windows(x.shape[2:], kernel, stride, padding, dilation)
        rows, columns = c * math.prod(kernel), n * math.prod(fit)
        made = self.new((groups, rows // groups, columns), x.dtype)
        if made.size:
            blocks = min(-(-columns // launcher.THREADS), launcher.BLOCKS), min(rows, MOST_ROWS)
            self.launcher.launch("windows", "im2col", types_of(x), blocks, (launcher.THREADS,), x, made, n, c, every)
        return made

    def _positions_first(self, g: Buffer, groups: int) -> Buffer:
        """Reorder the result's cotangent, (N, O, *extents), to (groups, O / groups, N x extents)."""
        n, o = g.shape[:2]
        shape = groups, o // groups, n * math.prod(g.shape[2:])
        if n == 1:
            return g.reshape(shape)
        rows = self.new(shape, g.dtype)
        self._swap_leading(g, rows, n, o)
        return rows

    def _swap_leading(self, x: Buffer, y: Buffer, m: int, n: int) -> None:
        """Write x (m, n, ...) to y (n, m, ...)."""
        inner = x.size // (m * n) if x.size else 0
        self.launcher.launch_each("windows", "swap_leading", types_of(x), x.size, x, y, m, n, inner)

    conv1d = conv3d = conv2d
    conv1d_input_grad = conv3d_input_grad = conv2d_input_grad
    conv1d_weight_grad = conv3d_weight_grad = conv2d_weight_grad
