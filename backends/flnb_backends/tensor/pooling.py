"""Pooling by NumPy, one axis at a time: first windows within rows, then windows of the results.

If several elements of a window are equal to its maximum, the first one in row-major order is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from flnb.dispatch.quiet import quiet_methods
from flnb_backends.tensor.convolution import Array, Extents, filled, scratch
from flnb_backends.tensor.half import is_half
from flnb_backends.tensor.rows import PIECE, examples

SMALL = 1 << 10
"""Images with at most this many elements are pooled with few NumPy calls, larger ones with few operations."""


def piece(shape: Extents, dtype: np.dtype[Any]) -> Array:
    """Return uninitialized scratch memory; a large array comes from the active memory manager."""
    return np.empty(shape, dtype) if math.prod(shape) * dtype.itemsize <= PIECE else scratch(shape, dtype)


def places(x: Array, axis: int, kernel: int, stride: int, fit: int) -> list[Array]:
    """Return, for each offset in a window along one axis, a view of x with the element at this offset of every window.

    ``fit`` is the number of windows along the axis.
    """
    before = (slice(None),) * axis
    return [x[(*before, slice(i, i + (fit - 1) * stride + 1, stride))] for i in range(kernel)]


@lru_cache(32)
def tiling(shape: Extents, kernel: Extents, stride: Extents) -> tuple[Extents, Extents, Array] | None:
    """Return how to reorder small images so that each window becomes a row; None if windows overlap or leave gaps.

    Returns:
        Three results: a shape, to which the images are reshaped; an order, in which the axes of that array are
        transposed; and the index of each window's first element in the flattened transposed array.
    """
    pairs = list(zip(shape[2:], kernel, strict=True))
    if not 0 < math.prod(shape) <= SMALL or kernel != stride or any(n % k for n, k in pairs):
        return None
    split = (shape[0] * shape[1], *(m for n, k in pairs for m in (n // k, k)))
    last = len(split)
    starts = np.arange(0, math.prod(shape), math.prod(kernel))
    return split, (0, *range(1, last, 2), *range(2, last, 2)), starts


def tiled(x: Array, split: Extents, order: Extents, starts: Array) -> tuple[Array, Array]:
    """Reorder images so that each window is a row; return the flattened rows, and the indices of the windows' maxima.

    The indices are positions in the flattened rows. If a window has several maxima, the first one counts; if a window
    has NaN, the first NaN. ``split``, ``order`` and ``starts`` are the results of `tiling`.
    """
    tiles = x.reshape(split).transpose(order).reshape(len(starts), -1)
    chosen = tiles.argmax(1)
    chosen += starts
    return tiles.reshape(-1), chosen


def has_nan(x: Array) -> bool:
    """Return whether a flat array may contain NaN; True for half precision, where a search would cost too much."""
    if is_half(x):
        return True
    squares = np.dot(x, x)
    return bool(squares != squares)


def firsts(x: Array, y: Array, axis: int, kernel: int, stride: int) -> Iterator[Array]:
    """Yield, for each offset in a window along an axis, a mask of the windows whose first maximum is at this offset.

    ``y`` has the maxima of the windows of x. In windows with NaN no element is the first maximum.
    """
    left: Any = None
    whole = has_nan(y.reshape(-1))  # otherwise the last place has all that is left
    for i, place in enumerate(places(x, axis, kernel, stride, y.shape[axis])):
        if left is None:
            here = np.equal(place, y)
            left = np.logical_not(here)
        elif i < kernel - 1 or whole:
            here = np.logical_and(np.equal(place, y), left)
            np.logical_xor(left, here, left)
        else:
            here = left
        yield here


def maxima(x: Array, kernel: Extents, stride: Extents, out: Array | None = None) -> list[Array]:
    """Return a list: x, the maxima of windows along its last axis, the maxima along the last two axes, and so on."""
    found = [x]
    for axis in range(x.ndim - 1, 1, -1):
        k, s = kernel[axis - 2], stride[axis - 2]
        x = found[-1]
        fit = (x.shape[axis] - k) // s + 1
        shape = (*x.shape[:axis], fit, *x.shape[axis + 1 :])
        y = piece(shape, x.dtype) if axis > 2 or out is None else out
        first, *others = places(x, axis, k, s, fit)
        if not others:
            np.copyto(y, first)
        for other in others:
            first = np.maximum(first, other, out=y)
        found.append(y)
    return found


@quiet_methods
class Pooling:
    """The pooling methods of the NumPy backend, for any number of dimensions."""

    def max_pool2d(self, x: Array, kernel: Extents, stride: Extents, out: Array | None = None) -> Array:
        if out is None:
            fit = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], kernel, stride, strict=True)]
            out = np.empty((*x.shape[:2], *fit), x.dtype)
        small = tiling(x.shape, kernel, stride)
        if small:
            tiles, chosen = tiled(x, *small)
            np.copyto(out.reshape(-1), tiles.take(chosen))
            return out
        for image, y in examples(x, out):
            maxima(image, kernel, stride, y)
        return out

    def max_pool2d_grad(self, g: Array, x: Array, kernel: Extents, stride: Extents, out: Array | None = None) -> Array:
        out = np.empty(x.shape, g.dtype) if out is None else out
        small = tiling(x.shape, kernel, stride)
        if small:
            tiles, chosen = tiled(x, *small)
            along = g.reshape(-1)
            if has_nan(top := tiles.take(chosen)):
                along = np.where(top == top, along, g.dtype.type(0))
            tiles = np.zeros(x.size, g.dtype)
            tiles[chosen] = along
            spread = out.reshape(small[0]).transpose(small[1])
            np.copyto(spread, tiles.reshape(spread.shape))
            return out
        for image, along, result in examples(x, g, out):
            *found, y = maxima(image, kernel, stride)
            for axis in range(2, x.ndim):
                x, k, s = found.pop(), kernel[axis - 2], stride[axis - 2]
                spread = piece(x.shape, g.dtype) if found else result
                if k != s or y.shape[axis] * s != x.shape[axis]:
                    spread.fill(0)
                for place, here in zip(
                    places(spread, axis, k, s, y.shape[axis]), firsts(x, y, axis, k, s), strict=True
                ):
                    if k <= s:
                        np.multiply(along, here, place)
                    else:
                        place += along * here
                along, y = spread, np.asarray(x)  # type: ignore[assignment]
        return out

    def max_pool2d_select(
        self, v: Array, x: Array, kernel: Extents, stride: Extents, out: Array | None = None
    ) -> Array:
        stages = maxima(x, kernel, stride)
        for axis, x, y in zip(range(v.ndim - 1, 1, -1), stages, stages[1:], strict=False):
            k, s = kernel[axis - 2], stride[axis - 2]
            chosen = filled(0, y.shape, v.dtype, out if axis == 2 else piece(y.shape, v.dtype))
            for place, here in zip(places(v, axis, k, s, y.shape[axis]), firsts(x, y, axis, k, s), strict=True):
                np.copyto(chosen, place, where=here)
            v = chosen
        return v

    max_pool1d = max_pool3d = max_pool2d
    max_pool1d_grad = max_pool3d_grad = max_pool2d_grad
    max_pool1d_select = max_pool3d_select = max_pool2d_select
