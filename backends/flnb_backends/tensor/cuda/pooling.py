"""Max pooling in one to three dimensions on a CUDA device, by kernels with a thread for each window or element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flnb_backends.tensor.cuda.base import Buffer, CudaBuffers

Extents = tuple[int, ...]
PLACE = np.dtype(np.int64)
_WINDOWS = np.dtype([(name, np.int64, 3) for name in ("size", "kernel", "stride", "padding", "dilation", "fit")])


def windows(
    size: Extents, kernel: Extents, stride: Extents, padding: Extents | None = None, dilation: Extents | None = None
) -> tuple[Any, Extents]:
    """Return the struct that describes the windows to kernels, and the number of windows along each spatial axis.

    ``size`` has the spatial extents of the images.
    """
    padding, dilation = padding or (0,) * len(size), dilation or (1,) * len(size)
    sides = zip(size, kernel, stride, padding, dilation, strict=True)
    fit = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides)
    made = np.ones((), _WINDOWS)
    made["padding"] = 0
    for name, extents in zip(_WINDOWS.names or (), (size, kernel, stride, padding, dilation, fit), strict=True):
        made[name][3 - len(extents) :] = extents
    return made[()], fit


def types_of(x: Buffer) -> dict[str, np.dtype[Any]]:
    """Return the types for ``windows.cu``: T for elements, F for sums (float32 for half precision)."""
    return {"T": x.dtype, "F": np.dtype(np.float32) if x.dtype.itemsize == 2 else x.dtype}


class Pooling(CudaBuffers):
    """The methods of the cuda backend for max pooling.

    The first of equal maxima receives the gradient. In a window with NaN, no element receives a gradient.
    """

    def max_pool2d(self, x: Buffer, kernel: Extents, stride: Extents, out: Buffer | None = None) -> Buffer:
        every, fit = windows(x.shape[2:], kernel, stride)
        x, y = self.contiguous(x), self.written(out, (*x.shape[:2], *fit), x.dtype)
        self.launcher.launch_each("windows", "max_pool", types_of(x), y.size, x, y, y.size, every)
        return self.finished(y, out)

    def max_pool2d_grad(
        self, g: Buffer, x: Buffer, kernel: Extents, stride: Extents, out: Buffer | None = None
    ) -> Buffer:
        places, every = self._largest_places(x, kernel, stride)
        g, y = self.contiguous(g), self.written(out, x.shape, g.dtype)
        self.launcher.launch_each("windows", "add_at_places", types_of(g), y.size, g, places, y, y.size, every)
        return self.finished(y, out)

    def max_pool2d_select(
        self, v: Buffer, x: Buffer, kernel: Extents, stride: Extents, out: Buffer | None = None
    ) -> Buffer:
        places, every = self._largest_places(x, kernel, stride)
        v, y = self.contiguous(v), self.written(out, places.shape, v.dtype)
        self.launcher.launch_each("windows", "take_places", types_of(v), y.size, v, places, y, y.size, every)
        return self.finished(y, out)

    def _largest_places(self, x: Buffer, kernel: Extents, stride: Extents) -> tuple[Buffer, Any]:
        """Return for each window the index of its maximum in the flattened image, and the struct of the windows.

        The index is -1 for a window with NaN.
        """
        every, fit = windows(x.shape[2:], kernel, stride)
        places = self.new((*x.shape[:2], *fit), PLACE)
        count = math.prod(places.shape)
        self.launcher.launch_each("windows", "max_places", types_of(x), count, self.contiguous(x), places, count, every)
        return places, every

    max_pool1d = max_pool3d = max_pool2d
    max_pool1d_grad = max_pool3d_grad = max_pool2d_grad
    max_pool1d_select = max_pool3d_select = max_pool2d_select
