"""Convolution and pooling by NumPy: windows as strided views, one matrix product a batch.

Chellapilla et al., "High Performance Convolutional Neural Networks for Document Processing" (2006): unroll the
windows into columns (im2col) and multiply. The columns live only while the op runs, in a block of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from flnb.dispatch.plan import spec_of
from flnb.dispatch.state import CATEGORIES, current

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPORARY = CATEGORIES.index("temporary")
Array = np.ndarray[Any, Any]
Pair = tuple[int, int]


def windows(x: Array, kernel: Pair, stride: Pair) -> Array:
    """A view (N, C, OH, OW, KH, KW) of all windows."""
    n, c, h, w = x.shape
    (kh, kw), (sh, sw) = kernel, stride
    s = x.strides
    shape = (n, c, (h - kh) // sh + 1, (w - kw) // sw + 1, kh, kw)
    return as_strided(x, shape, (s[0], s[1], s[2] * sh, s[3] * sw, s[2], s[3]))


def filled(value: float, shape: tuple[int, ...], dtype: np.dtype[Any], out: Array | None = None) -> Array:
    """``out``, or a new array, with one value everywhere."""
    out = np.empty(shape, dtype) if out is None else out
    out.fill(value)
    return out


class Convolution:
    """The convolution and pooling methods of the NumPy backend."""

    def _scratch(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for the duration of one op, from the active manager."""
        here = current()
        spec = spec_of(shape, dtype)
        array: Array = here.backend.empty(spec, here.manager, here.min_block, 0, TEMPORARY)[0]
        return array

    def _padded(self, x: Array, padding: Pair) -> Array:
        if padding == (0, 0):
            return x
        n, c, h, w = x.shape
        ph, pw = padding
        padded = self._scratch((n, c, h + 2 * ph, w + 2 * pw), x.dtype)
        padded.fill(0)
        padded[:, :, ph : ph + h, pw : pw + w] = x
        return padded

    def _columns(self, x: Array, kernel: Pair, stride: Pair, padding: Pair) -> Array:
        """The windows as columns: (C KH KW, N OH OW), contiguous."""
        view = windows(self._padded(x, padding), kernel, stride)
        n, c, oh, ow, kh, kw = view.shape
        columns = self._scratch((c, kh, kw, n, oh, ow), x.dtype)
        np.copyto(columns, view.transpose(1, 4, 5, 0, 2, 3))
        return columns.reshape(c * kh * kw, n * oh * ow)

    def conv2d(self, x: Array, w: Array, stride: Pair, padding: Pair, out: Array | None = None) -> Array:
        o, _, *kernel = w.shape
        columns = self._columns(x, (kernel[0], kernel[1]), stride, padding)
        n = x.shape[0]
        oh, ow = (
            (size + 2 * p - k) // s + 1 for size, k, s, p in zip(x.shape[2:], kernel, stride, padding, strict=True)
        )
        rows = self._scratch((o, columns.shape[1]), x.dtype)
        np.matmul(w.reshape(o, -1), columns, rows)
        out = np.empty((n, o, oh, ow), x.dtype) if out is None else out
        np.copyto(out, rows.reshape(o, n, oh, ow).transpose(1, 0, 2, 3))
        return out

    def _rows(self, g: Array) -> Array:
        """(N, O, H, W) as (O, N H W)."""
        n, o, h, w = g.shape
        rows = self._scratch((o, n, h, w), g.dtype)
        np.copyto(rows, g.transpose(1, 0, 2, 3))
        return rows.reshape(o, n * h * w)

    def conv2d_weight_grad(
        self, g: Array, x: Array, stride: Pair, padding: Pair, kernel: Pair, out: Array | None = None
    ) -> Array:
        columns = self._columns(x, kernel, stride, padding)
        shape = (g.shape[1], x.shape[1], *kernel)
        out = np.empty(shape, g.dtype) if out is None else out
        np.matmul(self._rows(g), columns.T, out.reshape(g.shape[1], -1))
        return out

    def conv2d_input_grad(
        self, g: Array, w: Array, stride: Pair, padding: Pair, size: Pair, out: Array | None = None
    ) -> Array:
        o, c, kh, kw = w.shape
        n, _, oh, ow = g.shape
        columns = self._scratch((c * kh * kw, n * oh * ow), g.dtype)
        np.matmul(w.reshape(o, -1).T, self._rows(g), columns)
        blocks = columns.reshape(c, kh, kw, n, oh, ow)
        (h, wd), (ph, pw), (sh, sw) = size, padding, stride
        padded = self._scratch((c, n, h + 2 * ph, wd + 2 * pw), g.dtype)
        padded.fill(0)
        for i in range(kh):
            for j in range(kw):
                padded[:, :, i : i + oh * sh : sh, j : j + ow * sw : sw][:, :, :oh, :ow] += blocks[:, i, j]
        out = np.empty((n, c, h, wd), g.dtype) if out is None else out
        np.copyto(out, padded[:, :, ph : ph + h, pw : pw + wd].transpose(1, 0, 2, 3))
        return out

    # Pooling. Of equal maxima in a window the first, in row-major order, counts.

    def _first_maxima(self, x: Array, kernel: Pair, stride: Pair) -> Iterator[tuple[int, int, Array]]:
        """For each position in a window, where it holds the window's first maximum: (N, C, OH, OW), bool."""
        view = windows(x, kernel, stride)
        best = self.max_pool2d(x, kernel, stride, self._scratch(view.shape[:4], x.dtype))
        left = np.ones(best.shape, bool)
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                here = (view[..., i, j] == best) & left
                left ^= here
                yield i, j, here

    def max_pool2d(self, x: Array, kernel: Pair, stride: Pair, out: Array | None = None) -> Array:
        view = windows(x, kernel, stride)
        out = np.empty(view.shape[:4], x.dtype) if out is None else out
        np.copyto(out, view[..., 0, 0])
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                if i or j:
                    np.maximum(out, view[..., i, j], out=out)
        return out

    def max_pool2d_grad(self, g: Array, x: Array, kernel: Pair, stride: Pair, out: Array | None = None) -> Array:
        out = filled(0, x.shape, g.dtype, out)
        view = windows(out, kernel, stride)
        for i, j, here in self._first_maxima(x, kernel, stride):
            view[..., i, j] += g * here
        return out

    def max_pool2d_select(self, v: Array, x: Array, kernel: Pair, stride: Pair, out: Array | None = None) -> Array:
        view = windows(v, kernel, stride)
        out = filled(0, view.shape[:4], v.dtype, out)
        for i, j, here in self._first_maxima(x, kernel, stride):
            np.copyto(out, view[..., i, j], where=here)
        return out
