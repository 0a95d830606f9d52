"""Pictures (..., H, W): resized, moved, rotated, sheared, sampled anywhere, smoothed, and their histograms.

Positions and distances are (row, column) in pixels; a pixel's centre lies at its indices. All but the histograms have
gradients by the picture, to any order. Where values are mixed, integers become floating point.

>>> import flnb
>>> x = flnb.asarray([[0.0, 2.0], [4.0, 6.0]])
>>> flnb.vision.resize(x, (1, 2)).tolist(), flnb.vision.translate(x, (0, 1)).tolist()
([[2.0, 4.0]], [[0.0, 0.0], [0.0, 4.0]])
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.ops import elementwise as e
from flnb.ops.arranging import repeat
from flnb.ops.creation import arange, asarray, ones
from flnb.ops.indexing import put_add, take_along_axis
from flnb.ops.inverse import inv
from flnb.ops.linalg import matmul
from flnb.ops.movement import reshape
from flnb.ops.reduction import cumulative_sum, floating, min
from flnb.ops.searching import searchsorted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]

__all__ = [
    "affine", "equalize", "gaussian_filter", "histogram", "resize", "rotate", "sample", "shear", "translate",
]  # fmt: skip


def _picture(op: str, x: Any, method: str = "linear") -> Any:
    x = asarray(x)
    if x.ndim < 2 or 0 in x.shape[-2:]:
        raise ValueError(f"vision.{op}: expected pictures (..., H, W) with one pixel or more, got {x._spec!r}")
    if method not in ("linear", "nearest"):
        raise ValueError(f"vision.{op}: method must be 'linear' or 'nearest', got {method!r}")
    return x if method == "nearest" else floating(x)


# By a matrix for the rows and one for the columns


def _along(x: Any, rows: Matrix, columns: Matrix) -> Any:
    """Every new row a mean of rows, then every new column one of columns."""
    return matmul(matmul(asarray(rows, x.dtype), x), asarray(columns.T, x.dtype))


def resize(x: Any, size: Sequence[int], method: str = "linear", antialias: bool = False) -> Any:
    """The picture in another size (rows, columns), its corners where they were.

    Args:
        x: (..., H, W).
        size: (H', W').
        method: "linear" between the nearest pixels, the outermost beyond; or "nearest", which keeps the dtype.
        antialias: smaller pictures are means of all the pixels they cover, weighted by a triangle, as Pillow's.

    >>> import flnb
    >>> flnb.vision.resize(flnb.asarray([[0, 8]]), (1, 4)).tolist()
    [[0.0, 2.0, 6.0, 8.0]]
    """
    x = _picture("resize", x, method)
    target = tuple(size)
    if len(target) != 2 or any(n < 1 for n in target):
        raise ValueError(f"vision.resize: expected a size (rows, columns) of 1 or more, got {target}")
    centres = [(np.arange(m) + 0.5) * n / m for n, m in zip(x.shape[-2:], target, strict=True)]
    if method == "nearest":
        rows, columns = (asarray(c.astype(np.int64)) for c in centres)
        return x[..., reshape(rows, (-1, 1)), columns]
    return _along(x, *(_triangles(c, n, antialias) for c, n in zip(centres, x.shape[-2:], strict=True)))


def _triangles(centres: Matrix, n: int, antialias: bool) -> Matrix:
    """For each centre the weights of n pixels: they fall linearly with the distance, and add up to 1."""
    reach = n / len(centres) if antialias and len(centres) < n else 1.0
    weights = np.maximum(0.0, 1.0 - np.abs(centres[:, None] - 0.5 - np.arange(n)) / reach)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def gaussian_filter(x: Any, sigma: float | Sequence[float], truncate: float = 4.0, mode: str = "symmetric") -> Any:
    """The picture smoothed by a normal distribution of standard deviation ``sigma`` pixels.

    Args:
        x: (..., H, W).
        sigma: one number, or (down the rows, along the columns); 0 smooths nothing.
        truncate: standard deviations after which the distribution is cut off.
        mode: what lies beyond the edge: "symmetric", "reflect" or "edge", as of `flnb.pad`.

    >>> import flnb
    >>> row = flnb.vision.gaussian_filter(flnb.asarray([[0.0, 0.0, 1.0, 0.0, 0.0]]), (0, 0.5))
    >>> [round(value, 3) for value in row[0].tolist()]
    [0.0, 0.106, 0.787, 0.106, 0.0]
    """
    x = _picture("gaussian_filter", x)
    each = (sigma, sigma) if isinstance(sigma, (int, float)) else tuple(sigma)
    if len(each) != 2 or any(s < 0 for s in each) or mode not in ("symmetric", "reflect", "edge"):
        raise ValueError(
            f"vision.gaussian_filter: expected sigma of 0 or more, one or (rows, columns), and mode 'symmetric', "
            f"'reflect' or 'edge'; got {sigma!r} and {mode!r}"
        )
    return _along(x, *(_bells(n, s, truncate, mode) for n, s in zip(x.shape[-2:], each, strict=True)))


def _bells(n: int, sigma: float, truncate: float, mode: Any) -> Matrix:
    reach = int(truncate * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / (sigma or 1.0)) ** 2)
    seen = np.pad(np.arange(n), reach, mode)
    matrix = np.zeros((n, n))
    for i in range(n):
        np.add.at(matrix[i], seen[i : i + len(weights)], weights / weights.sum())
    return matrix


# By a position for each pixel


def sample(x: Any, rows: Any, columns: Any, method: str = "linear", value: float = 0.0) -> Any:
    """The picture at positions, which may lie between pixels; the gradient by "linear" ones is that of the line.

    Args:
        x: (..., H, W).
        rows, columns: of one shape S.
        method: "linear" between the four pixels around, or "nearest".
        value: of what lies outside.

    Returns:
        (..., *S).

    >>> import flnb
    >>> flnb.vision.sample(flnb.asarray([[0.0, 2.0], [4.0, 6.0]]), [0.5, 1.0], [0.5, 5.0]).tolist()
    [3.0, 0.0]
    """
    x, rows, columns = _picture("sample", x, method), floating(rows), floating(columns)
    if rows.shape != columns.shape:
        raise ValueError(f"vision.sample: rows and columns must have one shape, got {rows.shape} and {columns.shape}")
    if method == "nearest":
        return _at(x, e.round(rows), e.round(columns), value)
    pairs = []
    for places in (rows, columns):
        first = e.floor(places)
        after = e.astype(e.subtract(places, first), x.dtype)
        pairs.append(((first, e.subtract(1.0, after)), (e.add(first, 1.0), after)))
    total: Any = 0.0
    for (r, of_r), (c, of_c) in product(*pairs):
        total = e.add(e.multiply(_at(x, r, c, value), e.multiply(of_r, of_c)), total)
    return total


def _at(x: Any, rows: Any, columns: Any, value: float) -> Any:
    """The pixels at whole positions, and the value outside."""
    inside, indices = None, []
    for places, n in zip((rows, columns), x.shape[-2:], strict=True):
        within = e.logical_and(e.greater_equal(places, 0.0), e.less(places, float(n)))
        inside = within if inside is None else e.logical_and(inside, within)
        indices.append(e.astype(e.clip(places, 0.0, n - 1.0), np.int64))
    return e.where(inside, x[..., indices[0], indices[1]], value if x.dtype.kind not in "biu" else int(value))


def affine(
    x: Any, matrix: Any, shift: Any = (0.0, 0.0), size: Sequence[int] | None = None, method: str = "linear",
    value: float = 0.0,
) -> Any:  # fmt: skip
    """What lay at p, measured from the picture's centre, lies at ``matrix @ p + shift`` from the centre of the new one.

    Args:
        x: (..., H, W).
        matrix: (2, 2), of (row, column); it must have an inverse.
        shift: (rows, columns).
        size: of the result; that of x unless given.
        method, value: as of `sample`.

    A matrix or a shift that requires grad has a gradient, too.

    >>> import flnb
    >>> flnb.vision.affine(flnb.asarray([[1.0, 2.0], [3.0, 4.0]]), [[0.0, 1.0], [1.0, 0.0]]).tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    x = _picture("affine", x, method)
    target = x.shape[-2:] if size is None else tuple(size)
    matrix, shift = (v if hasattr(v, "_spec") else asarray(np.asarray(v, np.float64)) for v in (matrix, shift))
    if matrix.shape != (2, 2) or shift.shape != (2,):
        raise ValueError(f"vision.affine: expected a matrix (2, 2) and a shift (2,), got {matrix.shape}, {shift.shape}")
    old, new = ((np.reshape(shape, (2, 1)) - 1.0) / 2.0 for shape in (x.shape[-2:], target))
    offsets = asarray(np.indices(target).reshape(2, -1) - new)
    places = e.add(matmul(inv(matrix), e.subtract(offsets, reshape(shift, (2, 1)))), asarray(old))
    return sample(x, reshape(places[0], target), reshape(places[1], target), method, value)


def translate(x: Any, shift: Any, method: str = "linear", value: float = 0.0) -> Any:
    """The picture moved down and to the right by ``shift`` (rows, columns), also fractions of pixels."""
    return affine(x, np.eye(2), shift, None, method, value)


def rotate(x: Any, degrees: float, expand: bool = False, method: str = "linear", value: float = 0.0) -> Any:
    """The picture turned counter-clockwise about its centre; with ``expand`` so large that it holds all of it.

    >>> import flnb
    >>> flnb.vision.rotate(flnb.asarray([[1.0, 2.0], [3.0, 4.0]]), 90).tolist()
    [[2.0, 4.0], [1.0, 3.0]]
    """
    x = _picture("rotate", x, method)
    c, s = (round(f(math.radians(degrees)), 15) for f in (math.cos, math.sin))
    h, w = x.shape[-2:]
    held = math.ceil(abs(h * c) + abs(w * s) - 1e-9), math.ceil(abs(h * s) + abs(w * c) - 1e-9)
    return affine(x, [[c, -s], [s, c]], size=held if expand else None, method=method, value=value)


def shear(x: Any, factors: Sequence[float], method: str = "linear", value: float = 0.0) -> Any:
    """Each column moved down by ``factors[0]`` more than the one before, each row right by ``factors[1]`` more.

    The centre stays where it is.
    """
    down, right = factors
    return affine(x, [[1.0, down], [right, 1.0]], method=method, value=value)


# Histograms


def _edges(x: Any, bins: int, bounds: tuple[float, float] | None) -> Matrix:
    low, high = bounds or (0.0, 255.0 if x.dtype.kind in "biu" else 1.0)
    if bins < 1 or not low < high:
        raise ValueError(f"vision: expected one bin or more between rising bounds, got {bins} between {low} and {high}")
    return np.linspace(low, high, bins + 1)


def _bins(x: Any, edges: Matrix) -> Any:
    """The bin of each pixel, (pictures, pixels): -1 below all, ``bins`` above; a bin has its lower edge."""
    flat = e.astype(reshape(x, (-1, x.shape[-2] * x.shape[-1])), np.float64)
    found = e.subtract(searchsorted(asarray(edges), flat, side="right"), 1)
    return e.where(e.equal(flat, float(edges[-1])), len(edges) - 2, found)  # the last has both


def histogram(x: Any, bins: int = 256, bounds: tuple[float, float] | None = None) -> Any:
    """How many pixels of each picture lie in each of ``bins`` equal intervals: (..., bins), int64.

    ``bounds`` are (0, 255) for integers and (0, 1) for floating point unless given; what lies outside is not counted.

    >>> import flnb
    >>> flnb.vision.histogram(flnb.asarray([[0.0, 0.4], [0.5, 1.0]]), bins=2).tolist()
    [2, 2]
    """
    x = _picture("histogram", x, "nearest")
    found = _bins(x, _edges(x, bins, bounds))
    found = e.where(e.less(found, 0), bins, found)
    pictures, pixels = found.shape
    which = repeat(arange(pictures), pixels)
    counts = put_add(ones(x.size, dtype=np.int64), (which, reshape(found, -1)), (pictures, bins + 1))
    return reshape(counts[:, :bins], (*x.shape[:-2], bins))


def equalize(x: Any, bins: int = 256, bounds: tuple[float, float] | None = None) -> Any:
    """Each picture with values spread so that equally many lie in equal intervals of ``bounds`` (see `histogram`).

    A value becomes the share of pixels in the bins below its own and in it, of those above the lowest (Gonzalez and
    Woods, "Digital image processing", section 3.3). The dtype stays; there is no gradient.

    >>> import flnb
    >>> flnb.vision.equalize(flnb.asarray([[50, 51], [52, 53]])).tolist()
    [[0, 85], [170, 255]]
    """
    x = _picture("equalize", x, "nearest")
    edges, pixels = _edges(x, bins, bounds), x.shape[-2] * x.shape[-1]
    running = cumulative_sum(reshape(histogram(x, bins, bounds), (-1, bins)), axis=1)
    lowest = min(e.where(e.greater(running, 0), running, pixels), axis=1, keepdims=True)
    share = e.divide(e.maximum(e.subtract(running, lowest), 0), e.maximum(e.subtract(running[:, -1:], lowest), 1))
    values = e.add(e.multiply(e.astype(share, np.float64), edges[-1] - edges[0]), float(edges[0]))
    spread = take_along_axis(values, e.clip(_bins(x, edges), 0, bins - 1), axis=1)
    return reshape(e.astype(e.round(spread) if x.dtype.kind in "biu" else spread, x.dtype), x.shape)
