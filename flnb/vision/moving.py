"""Pictures sampled at arbitrary positions, moved, rotated and sheared."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.ops import elementwise as e
from flnb.ops.creation import asarray
from flnb.ops.inverse import inv
from flnb.ops.linalg import matmul
from flnb.ops.movement import reshape
from flnb.ops.reduction import floating
from flnb.vision.arguments import finite, floats, outside, pair, picture, sized

if TYPE_CHECKING:
    from collections.abc import Sequence


def sample(x: Any, rows: Any, columns: Any, method: str = "linear", value: float = 0.0) -> Any:
    """Sample pictures at positions, which may lie between pixels.

    A pixel that is not finite influences only positions at which its weight is not 0.

    Args:
        x: pictures (..., H, W).
        rows, columns: the positions in pixels, two tensors of the same shape S; with "linear" they have gradients.
        method: "linear" to interpolate between the four pixels around a position, or "nearest", which keeps the dtype.
        value: the result at positions that are outside of the picture or not finite; the result's dtype must be able to
            represent it.

    Returns:
        A tensor (..., *S).

    Raises:
        ValueError: x is not a picture, the method is unknown, rows and columns differ in shape, or the dtype cannot
            represent the value.

    >>> import flnb
    >>> flnb.vision.sample(flnb.asarray([[0.0, 2.0], [4.0, 6.0]]), [0.5, 1.0], [0.5, 5.0]).tolist()
    [3.0, 0.0]
    """
    x, rows, columns = picture("sample", x, method), floating(rows), floating(columns)
    if rows.shape != columns.shape:
        raise ValueError(f"vision.sample: rows and columns must have one shape, got {rows.shape} and {columns.shape}")
    return _sampled("sample", x, rows, columns, method, value)


def _sampled(op: str, x: Any, rows: Any, columns: Any, method: str, value: Any) -> Any:
    """Sample checked pictures at checked positions, for the public function ``op``."""
    value = outside(op, x.dtype, value)
    if method == "nearest":
        return _at(x, e.round(rows), e.round(columns), value)
    pairs = []
    for places, n in zip((rows, columns), x.shape[-2:], strict=True):
        near = e.logical_and(e.greater_equal(places, -1.0), e.less_equal(places, float(n)))
        places = e.where(near, places, -1.0)  # far positions, also NaN, move to where all pixels around are outside
        first = e.floor(places)
        after = e.astype(e.subtract(places, first), x.dtype)
        pairs.append(((first, e.subtract(1.0, after)), (e.add(first, 1.0), after)))
    total: Any = 0.0
    for (r, of_r), (c, of_c) in product(*pairs):
        pixel, weight = _at(x, r, c, value), e.multiply(of_r, of_c)
        counts = e.logical_or(e.isfinite(pixel), e.not_equal(weight, 0.0))
        total = e.add(e.multiply(e.where(counts, pixel, 0.0), weight), total)
    return total


def _at(x: Any, rows: Any, columns: Any, value: Any) -> Any:
    """Return the pixels at integer positions, and ``value`` at positions outside of the picture."""
    inside, indices = None, []
    for places, n in zip((rows, columns), x.shape[-2:], strict=True):
        within = e.logical_and(e.greater_equal(places, 0.0), e.less(places, float(n)))
        inside = within if inside is None else e.logical_and(inside, within)
        indices.append(e.astype(e.where(within, places, 0.0), np.int64))
    return e.where(inside, x[..., indices[0], indices[1]], value)


def affine(
    x: Any, matrix: Any, shift: Any = (0.0, 0.0), size: Sequence[int] | None = None, method: str = "linear",
    value: float = 0.0,
) -> Any:  # fmt: skip
    """Apply an affine map: the point p moves to ``matrix @ p + shift``, both measured from the pictures' centres.

    Args:
        x: pictures (..., H, W).
        matrix: (2, 2), for points (row, column); it must have an inverse. It can have a gradient.
        shift: (rows, columns), in pixels. It can have a gradient.
        size: (rows, columns) of the new picture, by default those of x.
        method, value: as for `sample`.

    Raises:
        ValueError: x is not a picture, the method is unknown, the matrix, shift or size has another shape, or `sample`
            refuses the value.
        LinAlgError: the matrix has no inverse.

    >>> import flnb
    >>> flnb.vision.affine(flnb.asarray([[1.0, 2.0], [3.0, 4.0]]), [[0.0, 1.0], [1.0, 0.0]]).tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    return _moved("affine", x, matrix, shift, size, method, value)


def _moved(
    op: str, x: Any, matrix: Any, shift: Any = (0.0, 0.0), size: Any = None, method: str = "linear", value: Any = 0.0
) -> Any:
    """Apply an affine map, as `affine` does; errors name the public function ``op``."""
    x = picture(op, x, method)
    target = x.shape[-2:] if size is None else sized(op, size)
    matrix, shift = floats(op, "matrix", matrix, (2, 2)), floats(op, "shift", shift, (2,))
    old, new = ((np.reshape(shape, (2, 1)) - 1.0) / 2.0 for shape in (x.shape[-2:], target))
    offsets = asarray(np.indices(target).reshape(2, -1) - new)
    places = e.add(matmul(inv(matrix), e.subtract(offsets, reshape(shift, (2, 1)))), asarray(old))
    return _sampled(op, x, reshape(places[0], target), reshape(places[1], target), method, value)


def translate(x: Any, shift: Any, method: str = "linear", value: float = 0.0) -> Any:
    """Move pictures (..., H, W) down and to the right by ``shift`` (rows, columns), which may be fractions of pixels.

    ``method`` and ``value`` are as for `sample`.

    Raises:
        ValueError: x is not a picture, the method is unknown, the shift is not two numbers, or `sample` refuses the
            value.

    >>> import flnb
    >>> flnb.vision.translate(flnb.asarray([[1.0, 2.0], [3.0, 4.0]]), (1, 0.5)).tolist()
    [[0.0, 0.0], [0.5, 1.5]]
    """
    return _moved("translate", x, np.eye(2), shift, None, method, value)


def rotate(x: Any, degrees: float, expand: bool = False, method: str = "linear", value: float = 0.0) -> Any:
    """Rotate pictures (..., H, W) counter-clockwise about their centres.

    With ``expand`` the result is large enough for the whole rotated picture; otherwise it has the size of x. ``method``
    and ``value`` are as for `sample`.

    Raises:
        ValueError: x is not a picture, the method is unknown, the degrees are not finite, or `sample` refuses the
            value.

    >>> import flnb
    >>> flnb.vision.rotate(flnb.asarray([[1.0, 2.0], [3.0, 4.0]]), 90).tolist()
    [[2.0, 4.0], [1.0, 3.0]]
    """
    x = picture("rotate", x, method)
    angle = math.radians(finite("rotate", "degrees", degrees))
    c, s = (round(f(angle), 15) for f in (math.cos, math.sin))
    h, w = x.shape[-2:]
    held = math.ceil(abs(h * c) + abs(w * s) - 1e-9), math.ceil(abs(h * s) + abs(w * c) - 1e-9)
    return _moved("rotate", x, [[c, -s], [s, c]], size=held if expand else None, method=method, value=value)


def shear(x: Any, factors: Sequence[float], method: str = "linear", value: float = 0.0) -> Any:
    """Shear pictures (..., H, W) about their centres, by ``factors`` (down, right).

    Each column moves down by ``factors[0]`` pixels more than the column before, each row to the right by ``factors[1]``
    pixels more than the row above. ``method`` and ``value`` are as for `sample`.

    Raises:
        ValueError: x is not a picture, the method is unknown, the factors are not two numbers, or `sample` refuses the
            value.
        LinAlgError: the product of the factors is 1, which would reduce the picture to a line.

    >>> import flnb
    >>> flnb.vision.shear(flnb.asarray([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), (0, -1)).tolist()
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """
    down, right = pair("shear", "factors", factors, "(down, right)")
    return _moved("shear", x, [[1.0, down], [right, 1.0]], method=method, value=value)
