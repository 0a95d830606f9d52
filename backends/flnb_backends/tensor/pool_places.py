"""Max pooling that stores the position of each window's maximum, so that the gradient does not need the image."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_backends.native.llvm import compiler
from flnb_backends.native.windows import MOST, Windows

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_backends.tensor.convolution import Array, Extents


class PoolPlaces:
    """Max pooling as machine code, for contiguous images of a certain shape; it also stores where the maxima are.

    The positions are bytes in an array of places, one for each window: the number of the element in its window, in
    row-major order. For a window with NaN the byte is 255, and the window's gradient is added to no element.

    Args:
        shape: the shape of the images, (batch, channels, *extents).
        dtype: the dtype of the images, float32 or float64.
        kernel: the extents of a window, of at most `MOST` elements.
        stride: the distances between windows.

    Attributes:
        nbytes: the bytes of an array of places.
    """

    def __init__(self, shape: Extents, dtype: np.dtype[Any], kernel: Extents, stride: Extents) -> None:
        fit = tuple([(n - k) // s + 1 for n, k, s in zip(shape[2:], kernel, stride, strict=True)])
        self.planes = math.prod(shape[:2])
        self.nbytes = self.planes * math.prod(fit)
        windows = Windows(dtype.char, tuple(kernel), tuple(stride), tuple(shape[2:]), fit, places=True)
        self._find, self._spread = _loaded("maxima", windows), _loaded("spread", windows)

    def find(self, x: Array, y: Array, places: Array) -> Array:
        """Write the maxima of the windows of x to y, and their positions to ``places``; returns ``places``."""
        arrays = np.ascontiguousarray(x), y, places
        self._find(*[array.ctypes.data for array in arrays], self.planes)
        return places

    def spread(self, g: Array, places: Array, out: Array) -> Array:
        """Write the gradient of the images to ``out``, from the maxima's gradient g and positions; returns ``out``."""
        arrays = np.ascontiguousarray(g), places, out
        self._spread(*[array.ctypes.data for array in arrays], self.planes)
        return out


def pool_places(shape: Extents, dtype: np.dtype[Any], kernel: Extents, stride: Extents) -> PoolPlaces | None:
    """Return a `PoolPlaces`; None if there are no elements, the dtype is not supported, or windows are too large."""
    if dtype.char not in "fd" or not math.prod(shape) or math.prod(kernel) > MOST:
        return None
    return PoolPlaces(shape, dtype, kernel, stride)


def _loaded(name: str, windows: Windows) -> Callable[..., None]:
    """Compile and return the function ``name`` of ``windows``: "maxima" or "spread"."""
    address = compiler().address("pool", f"{name} {windows!r}", getattr(windows, name))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(address)
