"""Max pooling by oneDNN that stores the position of each window's maximum, so that the gradient needs no image."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flnb_backends.native.onednn import library
from flnb_backends.native.prepared import Prepared, Unsuitable, contiguous
from flnb_backends.native.primitives import prepare
from flnb_backends.tensor.convolution import Array, Extents, scratch

__all__ = ["PoolPlaces"]

MOST = 254
"""The largest window, in elements: places are bytes."""
NOWHERE = 255
"""The position for a window with NaN, whose gradient goes nowhere."""
BYTES = np.dtype(np.uint8)


class PoolPlaces:
    """Max pooling of contiguous float32 images of one shape, with the positions of the maxima.

    The positions are bytes in an array of places, one for each window, in oneDNN's order. The last byte of the array
    says who wrote it: images that are not finite are pooled by NumPy, and then a position is the number of the element
    in its window, in row-major order.

    Args:
        shape: the shape of the images, (batch, channels, *extents).
        kernel: the extents of a window.
        stride: the distances between windows.
        way: how oneDNN computes the op, one of `flnb_backends.native.primitives.WAYS`.
        threads: how many threads oneDNN uses.
        by_numpy: the method that pools images that are not finite.

    Attributes:
        nbytes: the bytes of an array of places.

    Raises:
        Unsuitable: the window is too large, or oneDNN's two primitives do not store places alike.
        OneDnnError: oneDNN cannot compute this.
    """

    def __init__(
        self, shape: Extents, kernel: Extents, stride: Extents, way: str, threads: int, by_numpy: Callable[..., Array]
    ) -> None:
        self.kernel, self.stride, self.threads, self._by_numpy = kernel, stride, threads, by_numpy
        fit = [(n - k) // s + 1 for n, k, s in zip(shape[2:], kernel, stride, strict=True)]
        self.fit = (*shape[:2], *fit)
        image, result = (shape, contiguous(shape)), (self.fit, contiguous(self.fit))
        if math.prod(kernel) > MOST:
            raise Unsuitable(f"windows of {kernel} have more than {MOST} elements")
        library().use_threads(threads)
        self._forward = prepare("max_pool_places", way, (image, result, ((), ())), kernel, stride)
        self._backward = prepare("max_pool_spread", way, (result, ((), ()), image), kernel, stride)
        if self._forward.opaque != self._backward.opaque:
            raise Unsuitable("the gradient reads places of another size than pooling writes")
        self.nbytes = max(self._forward.opaque, math.prod(self.fit)) + 1

    def find(self, x: Array, y: Array, places: Array) -> Array:
        """Write the maxima of the windows of x to y, and their positions to ``places``; returns ``places``."""
        flat = x.reshape(-1)
        places[-1] = by_numpy = not np.isfinite(np.dot(flat, flat))
        if not by_numpy:
            self._run(self._forward, x, y, places)
            return places
        self._by_numpy(x, self.kernel, self.stride, y)
        index = self._index(places)
        index.fill(NOWHERE)
        for i, elements in reversed(list(enumerate(self._windows(x)))):
            np.copyto(index, i, where=np.equal(elements, y))
        return places

    def spread(self, g: Array, places: Array, out: Array) -> Array:
        """Write the gradient of the images to ``out``, from the maxima's gradient g and positions; returns ``out``."""
        if not places[-1]:
            self._run(self._backward, g, places, out)
            return out
        out.fill(0)
        index = self._index(places)
        for i, elements in enumerate(self._windows(out)):
            np.add(elements, g, out=elements, where=index == i)
        return out

    def _index(self, places: Array) -> Array:
        """Return the positions that NumPy writes or has written, as a view with a position for each window."""
        return places[: math.prod(self.fit)].reshape(self.fit)

    def _windows(self, x: Array) -> Iterator[Array]:
        """Yield, for each offset in a window, a view of x that has the element at this offset of every window."""
        for offsets in np.ndindex(*self.kernel):
            each = zip(offsets, self.fit[2:], self.stride, strict=True)
            chosen: Any = (..., *[slice(o, o + (n - 1) * s + 1, s) for o, n, s in each])
            yield x[chosen]

    def _run(self, prepared: Prepared, *arrays: Array) -> None:
        """Run a primitive on arrays, with scratch memory from the active memory manager."""
        dnn = prepared.dnn
        dnn.use_threads(self.threads)
        room = scratch((prepared.scratch,), BYTES) if prepared.scratch else None
        prepared.run([dnn.address(x) for x in arrays], 0 if room is None else dnn.address(room))
