"""Pictures scaled to other sizes and smoothed, by matrix products along rows and columns."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.brief import brief
from flnb.ops.creation import asarray
from flnb.ops.linalg import matmul
from flnb.ops.movement import concat, pad, reshape
from flnb.vision.arguments import finite, pair, picture, sized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]


def _along(x: Any, rows: Matrix, columns: Matrix) -> Any:
    """Multiply pictures by matrices of weights on both sides: ``rows @ x @ columns.T``, of shape (..., H', W').

    Args:
        x: pictures (..., H, W).
        rows: weights (H', H).
        columns: weights (W', W).
    """
    return matmul(matmul(asarray(rows, x.dtype), x), asarray(columns.T, x.dtype))


def resize(x: Any, size: Sequence[int], method: str = "linear", antialias: bool = False) -> Any:
    """Scale pictures (..., H, W) to another size (rows, columns).

    Args:
        x: the pictures.
        size: the new height and width.
        method: "linear" to interpolate between the nearest pixels, or "nearest", which keeps the dtype.
        antialias: for smaller pictures, average all pixels that a new pixel covers, weighted by a triangle, as in
            Pillow.

    Raises:
        ValueError: x is not a picture, the method is unknown, or the size is not two whole numbers of 1 or more.

    >>> import flnb
    >>> flnb.vision.resize(flnb.asarray([[0, 8]]), (1, 4)).tolist()
    [[0.0, 2.0, 6.0, 8.0]]
    """
    x = picture("resize", x, method)
    target = sized("resize", size)
    centres = [(np.arange(m) + 0.5) * n / m for n, m in zip(x.shape[-2:], target, strict=True)]
    if method == "nearest":
        rows, columns = (asarray(c.astype(np.int64)) for c in centres)
        return x[..., reshape(rows, (-1, 1)), columns]
    return _along(x, *(_triangles(c, n, antialias) for c, n in zip(centres, x.shape[-2:], strict=True)))


def _triangles(centres: Matrix, n: int, antialias: bool) -> Matrix:
    """Return a matrix (centres, n) of the weights of n pixels around each centre; the weights of a row add up to 1.

    ``centres`` are positions in pixels; pixel i reaches from i to i + 1. A weight falls linearly with the distance of
    the pixel from the centre. With ``antialias`` and fewer centres than pixels, weights fall more slowly, so that every
    pixel has a weight.
    """
    reach = n / len(centres) if antialias and len(centres) < n else 1.0
    weights = np.maximum(0.0, 1.0 - np.abs(centres[:, None] - 0.5 - np.arange(n)) / reach)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def gaussian_filter(x: Any, sigma: float | Sequence[float], truncate: float = 4.0, mode: str = "symmetric") -> Any:
    """Smooth pictures by a normal distribution with a standard deviation of ``sigma`` pixels.

    Args:
        x: pictures (..., H, W), whose shape stays the same.
        sigma: one number, or two for the directions (down, right); 0 means no smoothing in a direction.
        truncate: the number of standard deviations after which the distribution is cut off.
        mode: how the picture continues beyond its edge: "symmetric", "reflect" or "edge", as in `flnb.pad`.

    Raises:
        ValueError: x is not a picture, the mode is unknown, or sigma or truncate is negative or not finite.

    >>> import flnb
    >>> row = flnb.vision.gaussian_filter(flnb.asarray([[0.0, 0.0, 1.0, 0.0, 0.0]]), (0, 0.5))
    >>> [round(value, 3) for value in row[0].tolist()]
    [0.0, 0.106, 0.787, 0.106, 0.0]
    """
    x = picture("gaussian_filter", x)
    if isinstance(sigma, Real) or getattr(sigma, "ndim", 1) == 0:
        sigma = (sigma, sigma)  # type: ignore[assignment]
    down, along = pair("gaussian_filter", "sigma", sigma, least=0.0)
    truncate = finite("gaussian_filter", "truncate", truncate, least=0.0)
    if mode not in ("symmetric", "reflect", "edge"):
        raise ValueError(f"vision.gaussian_filter: mode must be 'symmetric', 'reflect' or 'edge', got {brief(mode)}")
    return _smoothed(_smoothed(x, -2, down, truncate, mode), -1, along, truncate, mode)


BLOCK = 256
"""The number of pixels of a line that one matrix product smooths: a matrix for a long line would be mostly zeros."""


def _smoothed(x: Any, axis: int, sigma: float, truncate: float, mode: str) -> Any:
    """Smooth along one axis in blocks that share one matrix, so that memory grows only linearly with the size.

    The other arguments are those of `gaussian_filter`.
    """
    reach, n = int(truncate * sigma + 0.5), x.shape[axis]
    if not reach:
        return x
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    height = min(BLOCK, n)
    band = np.zeros((height, height + 2 * reach))
    for shift, weight in enumerate(bell / bell.sum()):
        np.fill_diagonal(band[:, shift:], weight)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (reach, reach)
    wide, blocks, rest = pad(x, widths, mode=mode), [], (slice(None),) * (-1 - axis)
    for start in range(0, n, height):
        piece = wide[(..., slice(start, start + height + 2 * reach), *rest)]
        weights = asarray(band[: piece.shape[axis] - 2 * reach, : piece.shape[axis]], x.dtype)
        blocks.append(matmul(weights, piece) if rest else matmul(piece, weights, transpose_b=True))
    return concat(blocks, axis=axis)
