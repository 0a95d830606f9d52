"""Blocks of rows that fit into the cache, and sums over rows and columns, for `flnb_backends.tensor.whole`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Out = tuple[Array | None, ...] | None

PIECE = 1 << 18
"""The bytes of one array's part of a block: the parts of three or four arrays fit into the L2 cache."""
ONES = 1 << 14
"""The most elements of a vector of ones that is cached."""


@lru_cache(1024)
def number(value: float, dtype: np.dtype[Any]) -> Array:
    """Return a number as a 0-d array, which ufuncs take without a conversion."""
    return np.array(value, dtype)


@lru_cache(64)
def _filled(shape: tuple[int, ...], dtype: np.dtype[Any], value: float = 1.0) -> Array:
    return np.full(shape, value, dtype)


def target(out: Out, index: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return ``out[index]``, the output buffer with this number, or a new array if there is none."""
    if out is None or out[index] is None:
        return np.empty(shape, dtype)
    return out[index]  # type: ignore[return-value]


def row_sums(x: Array) -> Array:
    """Return the sums of the rows of an array (n, m), shape (n, 1)."""
    if x.shape[1] > ONES:
        return np.add.reduce(x, axis=1, keepdims=True)
    return np.asarray(np.dot(x, _filled((x.shape[1], 1), x.dtype)))


def row_means(x: Array, out: Array | None = None) -> Array:
    """Return the means of the rows of an array (n, m), shape (n, 1)."""
    share = 1.0 / x.shape[1]
    if x.shape[1] > ONES:
        return np.multiply(row_sums(x), number(share, x.dtype), out)
    return np.asarray(np.dot(x, _filled((x.shape[1], 1), x.dtype, share), out))


def column_sums(x: Array, out: Array | None = None) -> Array:
    """Return the sums of the columns of an array (n, m), shape (m,)."""
    if len(x) > ONES:
        return np.asarray(np.add.reduce(x, axis=0, out=out))
    return np.asarray(np.dot(_filled((len(x),), x.dtype), x, out))


def channel_sums(x: Array, out: Array | None = None) -> Array:
    """Return the sums of an array (N, C, ...) over all axes but the second, shape (C,)."""
    if not x.flags.c_contiguous or not x.size:
        return np.asarray(np.add.reduce(x, axis=(0, *range(2, x.ndim)), out=out))
    if x.ndim == 2:
        return column_sums(x, out)
    n, channels = x.shape[:2]
    return np.asarray(np.add.reduce(row_sums(x.reshape(n * channels, -1)).reshape(n, channels), axis=0, out=out))


def row_maxima(x: Array) -> Array:
    """Return the largest element of each row of an array (n, m), NaN for a row that contains NaN; shape (n, 1)."""
    if x.size < 2048 or x.shape[1] < 32:
        return np.asarray(np.maximum.reduce(x, axis=1, keepdims=True))
    places = np.argmax(x, axis=1)  # three times as quick as the maximum itself
    places += np.arange(0, x.size, x.shape[1])
    return np.asarray(x.reshape(-1).take(places).reshape(-1, 1))


def blocks(trailing: int, *arrays: Array) -> Iterable[Any]:
    """Split arrays of the same shape into blocks (n, m) that fit into the cache; a row is the last ``trailing`` axes.

    Blocks of contiguous arrays are views. Those of other arrays are copies, which must not be written to.
    """
    first = arrays[0]
    if not first.size:
        return ()
    small = first.nbytes <= PIECE
    if small and (not trailing or (trailing == 1 and first.ndim == 2)):
        return (arrays,)
    width = math.prod(first.shape[first.ndim - trailing :])
    if small or trailing == first.ndim:
        return ([a.reshape(-1, width) for a in arrays],)
    if all(a.flags.c_contiguous for a in arrays):
        flat = [a.reshape(-1, width) for a in arrays]
        step = max(1, PIECE // (width * first.itemsize))
        return ([a[i : i + step] for a in flat] for i in range(0, len(flat[0]), step))
    step = max(1, PIECE * len(first) // first.nbytes)
    parts = ([a[i : i + step] for a in arrays] for i in range(0, len(first), step))
    if step > 1 or first.ndim == trailing + 1:
        return ([a.reshape(-1, width) for a in part] for part in parts)
    return (block for part in parts for block in blocks(trailing, *(a[0] for a in part)))


def blocks_along(axis: int, *arrays: Array) -> Iterable[Any]:
    """Split arrays of the same shape into blocks (n, extent, m) that fit into the cache; ``axis`` is in the middle."""
    shape = arrays[0].shape
    for block in blocks(len(shape) - axis, *arrays):
        yield [a.reshape(len(a), shape[axis], -1) for a in block]


def examples(*arrays: Array) -> Iterable[Any]:
    """Split arrays (N, ...) into blocks of some examples that fit into the cache."""
    first = arrays[0]
    if first.nbytes <= PIECE:
        return (arrays,)
    step = max(1, PIECE * len(first) // first.nbytes)
    return ([a[i : i + step] for a in arrays] for i in range(0, len(first), step))
