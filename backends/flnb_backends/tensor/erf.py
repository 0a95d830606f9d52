"""The error function without SciPy.

In double precision, each element is computed by Python's `math.erf`. Rational approximations in NumPy, one for each of
several intervals, would take as long.

In single precision, erf(x) = tanh(x p(x^2)) is used, because NumPy computes hyperbolic tangents by vector instructions.
p is a polynomial with which the relative error of the result is at most 1e-7. It was fitted by least squares with
weights that depend on the errors (Lawson 1961). For large x the tangent is near 1, so errors of p do not matter.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

COEFFICIENTS = (
    1.418523531e-07, -5.668478325e-06, 8.763734716e-05, -0.000619784721, -0.000191830718, 0.1027690557, 1.128379274
)  # fmt: skip
"""The coefficients of p, the highest power first."""
SATURATED = 4.3
"""The smallest x for which the hyperbolic tangent in the formula rounds to 1."""
PIECE = 1 << 15
"""The number of elements that are computed at once; three arrays of this size fit into the L2 cache."""
ROOT = math.sqrt(0.5)


def _scaled(scale: float) -> list[Array]:
    """Return the limits of x, and the coefficients of a polynomial q such that x q(x^2) = s x p((s x)^2).

    s is the scale, p the polynomial of `COEFFICIENTS`. Beyond the limits, the hyperbolic tangent is -1 or 1.
    """
    powers = range(2 * len(COEFFICIENTS) - 1, 0, -2)
    values = [-SATURATED / scale, SATURATED / scale, *(c * scale**n for c, n in zip(COEFFICIENTS, powers, strict=True))]
    return [np.array(value, np.float32) for value in values]


ERF, NORMAL = _scaled(1.0), _scaled(ROOT)
ONE, HALF = (np.array(value, np.float32) for value in (1.0, 0.5))


def _tangent(constants: list[Array], x: Array, result: Array, value: Array, squares: Array) -> None:
    """Write tanh(x q(x^2)) to ``result``, which may be the array ``x`` or ``value``.

    ``constants`` are the limits of x and the coefficients of q; ``value`` and ``squares`` are scratch arrays.
    """
    low, high, first, *others, last = constants
    np.square(x.clip(low, high, squares), squares)
    np.multiply(squares, first, value)
    for coefficient in others:
        np.add(value, coefficient, value)
        np.multiply(value, squares, value)
    np.add(value, last, value)
    np.tanh(np.multiply(value, x, result), result)


def normal_distribution(x: Array, out: Array, scratch: Array) -> None:
    """Write the cumulative normal distribution of x, (1 + erf(x / sqrt(2))) / 2, to ``out``; float32 or float64.

    ``scratch`` is an array like x, which is overwritten.
    """
    half, one = (HALF, ONE) if x.dtype == np.float32 else (0.5, 1.0)
    if x.dtype == np.float32:
        _tangent(NORMAL, x, out, out, scratch)
    else:
        erf(np.multiply(x, ROOT, out), out)
    np.add(out, one, out)
    np.multiply(out, half, out)


def _single(x: Array, result: Array) -> None:
    """Write erf(x) of a float32 array to ``result``, piece by piece, so that temporaries fit into the cache."""
    given, wanted = x.reshape(-1), result.reshape(-1)
    scratch = np.empty((2, min(PIECE, given.size)), np.float32)
    for start in range(0, given.size, PIECE):
        piece = wanted[start : start + PIECE]
        _tangent(ERF, given[start : start + PIECE], piece, *scratch[:, : piece.size])


def erf(x: Array, out: Array | None = None) -> Array:
    """Return the error function of each element, in the dtype of x; for float32 with a relative error up to 5e-7.

    >>> import numpy as np
    >>> erf(np.array([0.0, 0.5, -3.0])).round(12).tolist()
    [0.0, 0.520499877813, -0.999977909503]
    """
    x = np.asarray(x)
    if x.dtype not in (np.float32, np.float16):
        result = np.fromiter(map(math.erf, x.ravel()), np.float64, x.size).reshape(x.shape).astype(x.dtype, copy=False)
    elif x.dtype == np.float32 and out is not None and out.dtype == x.dtype and out.flags.c_contiguous:
        _single(x, out)
        return out
    else:
        single = np.empty(x.shape, np.float32)
        _single(x.astype(np.float32, copy=False), single)
        result = single.astype(x.dtype, copy=False)
    if out is None:
        return np.asarray(result)
    np.copyto(out, result, casting="unsafe")
    return out
