"""Convolution by NumPy: windows are strided views, copied to columns, and a matrix product takes the whole batch.

Chellapilla et al., "High Performance Convolutional Neural Networks for Document Processing" (2006): unroll the
windows into columns (im2col) and multiply. The columns are stored in a separate block while the op runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from flnb.dispatch import lent
from flnb.dispatch.plan import OF_AN_OP, spec_of
from flnb.dispatch.quiet import quiet_methods
from flnb.dispatch.state import TEMPORARY, current
from flnb_backends.tensor.half import in_single

SMALL = 8192
"""Elements of an array below which calls into NumPy cost more than their work."""
BRIEF, BYTES = 1 << 16, np.dtype(np.uint8)
"""The most bytes of scratch memory that `brief_scratch` gets from NumPy, and the dtype of bytes."""
Array = np.ndarray[Any, Any]
Extents = tuple[int, ...]


def windows(x: Array, kernel: Extents, stride: Extents, dilation: Extents) -> Array:
    """Return a strided view of all windows of x (N, C, *extents), shape (N, C, *windows, *kernel)."""
    size, steps = x.shape[2:], x.strides[2:]
    fit = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(size, kernel, stride, dilation, strict=True)]
    moves = [step * s for step, s in zip(steps, stride, strict=True)]
    within = [step * d for step, d in zip(steps, dilation, strict=True)]
    return as_strided(x, (*x.shape[:2], *fit, *kernel), (*x.strides[:2], *moves, *within))


@lru_cache(64)
def window_places(
    shape: Extents, kernel: Extents, stride: Extents, padding: Extents, dilation: Extents
) -> tuple[Array, Extents]:
    """Return the indices of the elements of all windows in the flattened x, and the number of windows along each axis.

    The indices have the shape (C x kernel, N x windows), a column for each window. For an element of the padding the
    index is the number of elements of x.
    """
    size, rank = math.prod(shape), len(kernel)
    around = [(0, 0), (0, 0), *((p, p) for p in padding)]
    numbers = np.pad(np.arange(size).reshape(shape), around, constant_values=size)
    view = windows(numbers, kernel, stride, dilation)
    n, c, *fit = view.shape[: 2 + rank]
    columns = view.transpose(1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank))
    return columns.reshape(c * math.prod(kernel), n * math.prod(fit)), tuple(fit)


def filled(value: float, shape: tuple[int, ...], dtype: np.dtype[Any], out: Array | None = None) -> Array:
    """Fill ``out``, or a new array, with one value."""
    out = np.empty(shape, dtype) if out is None else out
    out.fill(value)
    return out


def scratch(shape: Extents, dtype: np.dtype[Any]) -> Array:
    """Return uninitialised memory for the duration of one op.

    A large array is a part of the scratch memory that a running program provides for its ops (`flnb.dispatch.lent`). If
    there is none, it is allocated from the active memory manager.
    """
    if math.prod(shape) < SMALL:
        return np.empty(shape, dtype)
    part = lent.here.take(math.prod(shape) * dtype.itemsize)
    if part is not None:
        return part.view(dtype).reshape(shape)
    here = current()
    return here.backend.empty(spec_of(shape, dtype), here.manager, here.min_block, OF_AN_OP, TEMPORARY)[0]


def brief_scratch(nbytes: int) -> Array:
    """Return ``nbytes`` bytes of uninitialised memory for the duration of one op.

    Up to `BRIEF` bytes are allocated by NumPy, in a tenth of the time of `scratch`; more are allocated by `scratch`.
    """
    return np.empty(nbytes, BYTES) if nbytes <= BRIEF else scratch((nbytes,), BYTES)


def inside(places: Iterable[Any]) -> Any:
    """Return the NumPy index that applies slices to the last axes: ``(..., *places)``."""
    return (..., *places)


def pointwise(x: Array, kernel: Extents, stride: Extents, padding: Extents, groups: int) -> bool:
    """Return whether to compute a convolution as one matrix product per example: kernel 1 x 1 and large images.

    For small images with many channels, one product for the whole batch is faster, even with the time for copies. For
    example, images of 7 x 7 with 2048 channels take 1.3 times as long with one product per example.
    """
    plain = groups == 1 and {*kernel, *stride} == {1} and not any(padding)
    return plain and (math.prod(x.shape[2:]) >= 64 or x.size < 2**16)


def flat(x: Array) -> Array:
    """Reshape (N, C, *extents) to (N, C, product of the extents)."""
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]))


@quiet_methods
class Convolution:
    """The convolution methods of the NumPy backend, for any number of dimensions."""

    def _padded(self, x: Array, padding: Extents) -> Array:
        if not any(padding):
            return x
        shape = (*x.shape[:2], *(n + 2 * p for n, p in zip(x.shape[2:], padding, strict=True)))
        padded = scratch(shape, x.dtype)
        padded.fill(0)
        padded[inside(slice(p, p + n) for n, p in zip(x.shape[2:], padding, strict=True))] = x
        return padded

    def _columns(
        self, x: Array, kernel: Extents, stride: Extents, padding: Extents, dilation: Extents, groups: int
    ) -> tuple[Array, Extents]:
        """Return the windows of x as columns (im2col), and the number of windows along each axis.

        The columns have the shape (groups, channels of a group x kernel, batch x windows).
        """
        if x.size * math.prod(kernel) < SMALL:
            places, fit = window_places(x.shape, kernel, stride, padding, dilation)
            values = np.empty(x.size + 1, x.dtype)
            values[:-1] = x.reshape(-1)
            values[-1] = 0
            return values.take(places).reshape(groups, len(places) // groups, places.shape[1]), fit
        view = windows(self._padded(x, padding), kernel, stride, dilation)
        rank = len(kernel)
        n, c, *extents = view.shape[: 2 + rank]
        columns = scratch((c, *kernel, n, *extents), x.dtype)
        np.copyto(columns, view.transpose(1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank)))
        shape = (groups, c // groups * math.prod(kernel), n * math.prod(extents))
        return columns.reshape(shape), tuple(extents)

    def _rows(self, g: Array, groups: int) -> Array:
        """Reorder the result's cotangent, (N, O, *extents), to (groups, O / groups, N x extents)."""
        n, o, *size = g.shape
        rows = scratch((o, n, *size), g.dtype)
        np.copyto(rows, g.swapaxes(0, 1))
        return rows.reshape(groups, o // groups, n * math.prod(size))

    @in_single
    def conv2d(
        self, x: Array, w: Array, stride: Extents, padding: Extents, dilation: Extents, groups: int,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        o, n = w.shape[0], x.shape[0]
        if pointwise(x, w.shape[2:], stride, padding, groups):
            out = np.empty((n, o, *x.shape[2:]), x.dtype) if out is None else out
            np.matmul(w.reshape(w.shape[:2]), flat(x), flat(out))
            return out
        columns, fit = self._columns(x, w.shape[2:], stride, padding, dilation, groups)
        rows = scratch((groups, o // groups, columns.shape[2]), x.dtype)
        np.matmul(w.reshape(groups, o // groups, columns.shape[1]), columns, rows)
        out = np.empty((n, o, *fit), x.dtype) if out is None else out
        np.copyto(out, rows.reshape(o, n, *fit).swapaxes(0, 1))
        return out

    def conv2d_bias(
        self, x: Array, w: Array, b: Array, stride: Extents, padding: Extents, dilation: Extents, groups: int,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        y = self.conv2d(x, w, stride, padding, dilation, groups, out)
        return np.add(y, b.reshape(-1, *(1,) * len(stride)), y)

    @in_single
    def conv2d_weight_grad(
        self, g: Array, x: Array, stride: Extents, padding: Extents, dilation: Extents, groups: int, kernel: Extents,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        o = g.shape[1]
        out = np.empty((o, x.shape[1] // groups, *kernel), g.dtype) if out is None else out
        if pointwise(x, kernel, stride, padding, groups):
            each = np.matmul(flat(g), flat(x).swapaxes(1, 2), scratch((len(x), *out.shape[:2]), g.dtype))
            np.add.reduce(each, axis=0, out=out.reshape(out.shape[:2]))
            return out
        columns, _ = self._columns(x, kernel, stride, padding, dilation, groups)
        np.matmul(self._rows(g, groups), columns.swapaxes(1, 2), out.reshape(groups, o // groups, columns.shape[1]))
        return out

    @in_single
    def conv2d_input_grad(
        self, g: Array, w: Array, stride: Extents, padding: Extents, dilation: Extents, groups: int, size: Extents,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        o, width, *kernel = w.shape
        n, fit, c = g.shape[0], g.shape[2:], width * groups
        if pointwise(g, tuple(kernel), stride, padding, groups):
            out = np.empty((n, c, *size), g.dtype) if out is None else out
            np.matmul(w.reshape(o, c).T, flat(g), flat(out))
            return out
        around = tuple(d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True))
        if groups == 1 and o <= c and {*stride} == {1} and min(around) >= 0:
            # Itself a convolution, of fewer columns than below, which are read once instead of added up place by place.
            mirrored: Array = np.flip(w, tuple(range(2, w.ndim))).swapaxes(0, 1)
            return Convolution.conv2d(self, g, np.ascontiguousarray(mirrored), stride, around, dilation, 1, out)
        depth = width * math.prod(kernel)
        columns = scratch((groups, depth, n * math.prod(fit)), g.dtype)
        np.matmul(w.reshape(groups, o // groups, depth).swapaxes(1, 2), self._rows(g, groups), columns)
        blocks = columns.reshape(c, *kernel, n, *fit)
        padded = scratch((c, n, *(m + 2 * p for m, p in zip(size, padding, strict=True))), g.dtype)
        padded.fill(0)
        for place in itertools.product(*map(range, kernel)):
            starts = [i * d for i, d in zip(place, dilation, strict=True)]
            cut = (slice(i, i + (m - 1) * s + 1, s) for i, m, s in zip(starts, fit, stride, strict=True))
            here: Any = (slice(None), *place)
            padded[inside(cut)] += blocks[here]
        out = np.empty((n, c, *size), g.dtype) if out is None else out
        centre = inside(slice(p, p + m) for m, p in zip(size, padding, strict=True))
        np.copyto(out, padded[centre].swapaxes(0, 1))
        return out

    conv1d = conv3d = conv2d
    conv1d_bias = conv3d_bias = conv2d_bias
    conv1d_input_grad = conv3d_input_grad = conv2d_input_grad
    conv1d_weight_grad = conv3d_weight_grad = conv2d_weight_grad
