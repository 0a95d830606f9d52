"""Histograms of pictures, and histogram equalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.brief import brief
from flnb.ops import elementwise as e
from flnb.ops.arranging import repeat
from flnb.ops.creation import arange, asarray, ones
from flnb.ops.indexing import put_add, take_along_axis
from flnb.ops.movement import reshape
from flnb.ops.reduction import cumulative_sum, min
from flnb.ops.sorting import searchsorted
from flnb.vision.arguments import limits, pair, picture, whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]


def _edges(op: str, x: Any, bins: int, bounds: Any) -> Matrix:
    """Check the arguments of `histogram`, and return the edges of the bins: bins + 1 numbers.

    ``bounds`` are the first and the last edge; None stands for those of the dtype of x.
    """
    low, high = pair(op, "bounds", _bounds(x.dtype) if bounds is None else bounds, "(low, high)")
    if not whole(bins) or not low < high:
        raise ValueError(
            f"vision.{op}: expected bins to be a whole number of 1 or more, and bounds (low, high) with low < high, "
            f"got {brief(bins)} and ({low:g}, {high:g})"
        )
    return np.linspace(low, high, bins + 1)


def _bounds(dtype: Any) -> tuple[float, float]:
    """Return the default bounds of a histogram for a dtype, as listed in the docstring of `histogram`."""
    if dtype.kind not in "iu":
        return 0, 1
    return limits(dtype) if dtype.itemsize < 4 else (0, 255)


def _bins(x: Any, edges: Matrix) -> Any:
    """Return the index of each pixel's bin, with shape (pictures, pixels).

    The index is -1 for values below the first bin, and the number of bins for values above the last one. Each bin
    includes its lower edge; the last bin also includes its upper edge.
    """
    flat = e.astype(reshape(x, (-1, x.shape[-2] * x.shape[-1])), np.float64)
    found = e.subtract(searchsorted(asarray(edges), flat, side="right"), 1)
    return e.where(e.equal(flat, float(edges[-1])), len(edges) - 2, found)


def histogram(x: Any, bins: int = 256, bounds: tuple[float, float] | None = None) -> Any:
    """Count the pixels of each picture (..., H, W) in each of ``bins`` equal intervals: (..., bins), int64.

    Args:
        x: the pictures.
        bins: the number of intervals.
        bounds: the first and the last edge. By default (0, 1) for floating point and bool, the limits of the dtype for
            integers of 8 and 16 bits, and (0, 255) for wider integers. Pixels outside of the bounds are not counted.

    Raises:
        ValueError: x is not a picture, ``bins`` is not a whole number of 1 or more, or the first of the bounds is not
            below the second.

    >>> import flnb
    >>> flnb.vision.histogram(flnb.asarray([[0.0, 0.4], [0.5, 1.0]]), bins=2).tolist()
    [2, 2]
    """
    x = picture("histogram", x, "nearest")
    found = _bins(x, _edges("histogram", x, bins, bounds))
    found = e.where(e.less(found, 0), bins, found)
    pictures, pixels = found.shape
    which = repeat(arange(pictures), pixels)
    counts = put_add(ones(x.size, dtype=np.int64), (which, reshape(found, -1)), (pictures, bins + 1))
    return reshape(counts[:, :bins], (*x.shape[:-2], bins))


def equalize(x: Any, bins: int = 256, bounds: tuple[float, float] | None = None) -> Any:
    """Histogram equalisation: spread the values of each picture (..., H, W) evenly over the range ``bounds``.

    A value becomes the share of pixels in its bin and in lower bins, not counting the lowest non-empty bin; this share
    is scaled to the bounds. Shape and dtype stay the same; there is no gradient. Arguments are those of `histogram`.
    See Gonzalez and Woods, "Digital image processing", section 3.3.

    Raises:
        ValueError: the arguments are wrong as for `histogram`, or the dtype cannot represent the bounds.

    >>> import flnb
    >>> flnb.vision.equalize(flnb.asarray([[50, 51], [52, 53]])).tolist()
    [[0, 85], [170, 255]]
    """
    x = picture("equalize", x, "nearest")
    edges, pixels = _edges("equalize", x, bins, bounds), x.shape[-2] * x.shape[-1]
    low, high = limits(x.dtype)
    if float(edges[0]) < low or float(edges[-1]) > high:  # numbers of Python compare exactly
        raise ValueError(
            f"vision.equalize: expected bounds that {x.dtype} can represent, from {low:g} to {high:g}, got "
            f"{edges[0]:g} and {edges[-1]:g}; cast the pictures first, as x.astype(flnb.float32)"
        )
    running = e.astype(cumulative_sum(reshape(histogram(x, bins, bounds), (-1, bins)), axis=1), np.float64)
    lowest = min(e.where(e.greater(running, 0.0), running, float(pixels)), axis=1, keepdims=True)
    share = e.divide(e.maximum(e.subtract(running, lowest), 0.0), e.maximum(e.subtract(running[:, -1:], lowest), 1.0))
    values = e.add(e.multiply(share, float(edges[-1] - edges[0])), float(edges[0]))
    spread = take_along_axis(values, e.clip(_bins(x, edges), 0, bins - 1), axis=1)
    return reshape(e.astype(e.round(spread) if x.dtype.kind in "biu" else spread, x.dtype), x.shape)
