"""Max pooling by oneDNN that stores the position of each window's maximum, so that its gradient needs no image."""

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
"""The place in a window with NaN, whose gradient goes nowhere."""
BYTES = np.dtype(np.uint8)


class PoolPlaces:
    """Max pooling of contiguous float32 images of one shape, with the positions of the maxima.

    An array of places has a byte for each window, in oneDNN's order, and at its end one that says who wrote it: NumPy
    computes images that are not finite, and then numbers the elements of a window in row-major order.

    Args:
        shape: of the image, (batch, channels, *extents).
        kernel, stride: extents of the windows, and the distances between them.
        way: how oneDNN computes it, one of `flnb_backends.native.primitives.WAYS`.
        threads: how many oneDNN uses.
        by_numpy: the method that pools an image that is not finite.

    Attributes:
        nbytes: of an array of places.

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
        """Write the window maxima of an image to ``y`` and their positions to ``places``; returns ``places``."""
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
        """Write the gradient of the image to ``out``, from that of the maxima and their positions; returns ``out``."""
        if not places[-1]:
            self._run(self._backward, g, places, out)
            return out
        out.fill(0)
        index = self._index(places)
        for i, elements in enumerate(self._windows(out)):
            np.add(elements, g, out=elements, where=index == i)
        return out

    def _index(self, places: Array) -> Array:
        """Return the positions written by NumPy, in the shape of the result."""
        return places[: math.prod(self.fit)].reshape(self.fit)

    def _windows(self, x: Array) -> Iterator[Array]:
        """Yield, for each offset in a window, a view of that element of all windows of an image."""
        for offsets in np.ndindex(*self.kernel):
            each = zip(offsets, self.fit[2:], self.stride, strict=True)
            chosen: Any = (..., *[slice(o, o + (n - 1) * s + 1, s) for o, n, s in each])
            yield x[chosen]

    def _run(self, prepared: Prepared, *arrays: Array) -> None:
        """Run a primitive on arrays."""
        dnn = prepared.dnn
        dnn.use_threads(self.threads)
        room = scratch((prepared.scratch,), BYTES) if prepared.scratch else None
        prepared.run([dnn.address(x) for x in arrays], 0 if room is None else dnn.address(room))
