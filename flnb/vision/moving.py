"""Pictures sampled at any positions, moved, rotated and sheared."""

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
    """Values of the picture at positions, which may be between pixels; "linear" ones have gradients by position.

    A pixel that is not finite counts only if its weight is not 0.

    Args:
        x: (..., H, W).
        rows, columns: of one shape S.
        method: "linear" between the four pixels around, or "nearest".
        value: of positions outside or not finite; if integers or bool are kept ("nearest"), one of theirs.

    Returns:
        (..., *S).

    Raises:
        ValueError: no picture, another method, positions of two shapes, or a value that the dtype does not have.

    >>> import flnb
    >>> flnb.vision.sample(flnb.asarray([[0.0, 2.0], [4.0, 6.0]]), [0.5, 1.0], [0.5, 5.0]).tolist()
    [3.0, 0.0]
    """
    x, rows, columns = picture("sample", x, method), floating(rows), floating(columns)
    if rows.shape != columns.shape:
        raise ValueError(f"vision.sample: rows and columns must have one shape, got {rows.shape} and {columns.shape}")
    return _sampled("sample", x, rows, columns, method, value)


def _sampled(op: str, x: Any, rows: Any, columns: Any, method: str, value: Any) -> Any:
    value = outside(op, x.dtype, value)
    if method == "nearest":
        return _at(x, e.round(rows), e.round(columns), value)
    pairs = []
    for places, n in zip((rows, columns), x.shape[-2:], strict=True):
        near = e.logical_and(e.greater_equal(places, -1.0), e.less_equal(places, float(n)))
        places = e.where(near, places, -1.0)  # all the others, those that are not finite too, see the value alone
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
    """The pixels at whole positions, and the value outside."""
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
    """Move each point p, measured from the picture's centre, to ``matrix @ p + shift`` from the new picture's centre.

    Args:
        x: (..., H, W).
        matrix: (2, 2), of (row, column); it must have an inverse.
        shift: (rows, columns).
        size: of the result; that of x unless given.
        method, value: as of `sample`.

    A matrix or a shift that requires grad has a gradient as well.

    Raises:
        ValueError: no picture, another method, a matrix, shift or size of another shape, or a value as of `sample`.
        LinAlgError: a matrix without inverse.

    >>> import flnb
    >>> flnb.vision.affine(flnb.asarray([[1.0, 2.0], [3.0, 4.0]]), [[0.0, 1.0], [1.0, 0.0]]).tolist()
    [[1.0, 3.0], [2.0, 4.0]]
    """
    return _moved("affine", x, matrix, shift, size, method, value)


def _moved(
    op: str, x: Any, matrix: Any, shift: Any = (0.0, 0.0), size: Any = None, method: str = "linear", value: Any = 0.0
) -> Any:
    x = picture(op, x, method)
    target = x.shape[-2:] if size is None else sized(op, size)
    matrix, shift = floats(op, "matrix", matrix, (2, 2)), floats(op, "shift", shift, (2,))
    old, new = ((np.reshape(shape, (2, 1)) - 1.0) / 2.0 for shape in (x.shape[-2:], target))
    offsets = asarray(np.indices(target).reshape(2, -1) - new)
    places = e.add(matmul(inv(matrix), e.subtract(offsets, reshape(shift, (2, 1)))), asarray(old))
    return _sampled(op, x, reshape(places[0], target), reshape(places[1], target), method, value)


def translate(x: Any, shift: Any, method: str = "linear", value: float = 0.0) -> Any:
    """Move a picture down and to the right by ``shift`` (rows, columns), also by fractions of pixels.

    Raises:
        ValueError: no picture, another method, a shift that is not two numbers, or a value as of `sample`.

    >>> import flnb
    >>> flnb.vision.translate(flnb.asarray([[1.0, 2.0], [3.0, 4.0]]), (1, 0.5)).tolist()
    [[0.0, 0.0], [0.5, 1.5]]
    """
    return _moved("translate", x, np.eye(2), shift, None, method, value)


def rotate(x: Any, degrees: float, expand: bool = False, method: str = "linear", value: float = 0.0) -> Any:
    """Rotate a picture counter-clockwise about its centre; with ``expand`` the result is large enough for all of it.

    Raises:
        ValueError: no picture, another method, degrees that are not finite, or a value as of `sample`.

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
    """Shear a picture: each column moves down by ``factors[0]`` more than the last, each row right by ``factors[1]``.

    The centre stays where it is.

    Raises:
        ValueError: x is no picture, the method is unknown, the factors are not two numbers, or `sample` refuses the
            value.
        LinAlgError: factors whose product is 1, which leave no area.

    >>> import flnb
    >>> flnb.vision.shear(flnb.asarray([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), (0, -1)).tolist()
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    """
    down, right = pair("shear", "factors", factors, "(down, right)")
    return _moved("shear", x, [[1.0, down], [right, 1.0]], method=method, value=value)
