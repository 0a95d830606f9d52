"""Polynomial approximations of float32 transcendental functions, without branches, so that compilers vectorize them.

Relative errors are at most 1e-6. For infinities, NaN, overflow and subnormal results, the functions return the same as
NumPy. The polynomial of log is from Cephes (S. L. Moshier, 1992), the rational function of tanh is from Eigen. The
polynomial of exp and the rational function of erf were fitted by least squares with weights that depend on the errors
(Lawson, 1961).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import mul

from flnb.graph.emitter import Scalar, fma, select

LOG2E = 1.44269504088896341
LOG2_HIGH, LOG2_LOW = 0.693359375, -2.12194440e-4
"""Two numbers whose sum is log(2); products of the first with exponents are exact."""
ROUNDING = 12582912.0
"""1.5 * 2^23: adding it to a number rounds the number to an integer, which is in the lowest 22 bits of the sum."""
ROOT_HALF_BITS = 0x3F3504F3
EXP = (8.312521598747e-3, 4.189014767061e-2, 1.666711460707592e-1, 4.99992315571477e-1)
LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
TANH = (
    (
        -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
        1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
    ),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)  # fmt: skip
ERF_FACTOR = 16.54897460
ERF = (
    ((2.435092068, 28.67255299), (24.79276336, 151.8032699)),
    ((4.773194656, 34.21021383), (7.998635336, 18.50969054), (100.8111682,)),
)
"""erf(x) is the factor times x N(x^2) / D(x^2); N and D are products of polynomials, here without their leading 1.

A leading 1 takes an addition where another coefficient takes a fused multiply-add, which fewer of the processor's ports
execute. In products of short polynomials, fewer steps wait for each other than in one long polynomial.
"""
ERF_END = 3.75**2
"""The largest square for which the fraction is fitted; with it, the product for an x above 3.76 is at least 1."""


def _polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Return a polynomial's value at x by Horner's rule; coefficients go from the highest power to the constant."""
    value = x.constant(coefficients[0])
    for coefficient in coefficients[1:]:
        value = fma(value, x, coefficient)
    return value


def _limited(x: Scalar, low: float, high: float) -> Scalar:
    """Return x clamped to the range from ``low`` to ``high``; NaN stays NaN."""
    x = select(x < low, low, x)
    return select(x > high, high, x)


def _power_of_two(exponent: Scalar) -> Scalar:
    """Return 2 to the power of ``exponent``, an integer from -126 to 127; only its lowest 9 bits are used."""
    return ((exponent + 127) << 23).bits("f")


def _split_exponential(x: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Return r and integers m, n with exp(x) = exp(r) 2^m 2^n; a single power of two could overflow.

    The highest bits of m and n are wrong; `_power_of_two` uses only the lowest 9.
    """
    shifted = fma(x, LOG2E, ROUNDING)
    n = shifted - ROUNDING
    r = fma(n, -LOG2_LOW, fma(n, -LOG2_HIGH, x))
    exponent = shifted.bits("i")
    half = exponent >> 1
    return r, half, exponent - half


def _small_expm1(r: Scalar) -> Scalar:
    """Return exp(r) - 1 for r between -log(2)/2 and log(2)/2."""
    return fma(_polynomial(r, EXP), r * r, r)


def exp(x: Scalar) -> Scalar:
    """Return the exponential of x."""
    r, m, n = _split_exponential(_limited(x, -104.0, 88.8))
    return (_small_expm1(r) + 1.0) * _power_of_two(m) * _power_of_two(n)


def expm1(x: Scalar) -> Scalar:
    """Return exp(x) - 1, also accurate for x near 0."""
    r, m, n = _split_exponential(_limited(x, -30.0, 88.8))
    scale = _power_of_two(m)
    y = fma(_small_expm1(r), scale, scale - _power_of_two(-n)) * _power_of_two(n)
    return y.make("copysign", x)


def _split_logarithm(x: Scalar) -> tuple[Scalar, Scalar]:
    """Return f, from sqrt(1/2) - 1 to sqrt(2) - 1, and a whole number e with x = (1 + f) 2^e."""
    small = x < 1.1754944e-38  # subnormal
    bits = select(small, x * 8388608.0, x).bits("i")
    exponent = (bits - ROOT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).bits("f") - 1.0
    return f, exponent.to("f") - select(small, x.constant(23.0), 0.0)


def _of_positive(x: Scalar, y: Scalar) -> Scalar:
    """Return the logarithm y of x, corrected for special x: -inf at 0, inf for inf, NaN below 0 and for NaN."""
    y = select(x < math.inf, y, x)
    return select(x > 0.0, y, select(x.equal(0.0), x.constant(-math.inf), math.nan))


def _small_log1p(f: Scalar) -> Scalar:
    """Return log(1 + f) - f + f^2 / 2."""
    return _polynomial(f, LOG) * f * (f * f)


def log(x: Scalar) -> Scalar:
    """Return the natural logarithm of x."""
    f, e = _split_logarithm(x)
    y = fma(f * f, -0.5, fma(e, LOG2_LOW, _small_log1p(f)))
    return _of_positive(x, fma(e, LOG2_HIGH, f + y))


def log2(x: Scalar) -> Scalar:
    """Return the base-2 logarithm of x, exact where x is a power of two."""
    f, e = _split_logarithm(x)
    y = f + fma(f * f, -0.5, _small_log1p(f))
    return _of_positive(x, fma(y, LOG2E, e))


def log10(x: Scalar) -> Scalar:
    """Return the base-10 logarithm of x."""
    return log(x) * (1.0 / math.log(10.0))


def log1p(x: Scalar) -> Scalar:
    """Return log(1 + x), also accurate for x near 0: the rounding error of 1 + x is added as a correction."""
    total = x + 1.0
    y = log(total)
    y = select((total > 0.0) & (total < math.inf), y + (x - (total - 1.0)) / total, y)
    return y.make("copysign", x)


def tanh(x: Scalar) -> Scalar:
    """Return the hyperbolic tangent of x; the result is 1 for x > 8 and -1 for x < -8."""
    x = _limited(x, -7.99881172180175781, 7.99881172180175781)
    square = x * x
    return x * (_polynomial(square, TANH[0]) / _polynomial(square, TANH[1]))


def erf(x: Scalar) -> Scalar:
    """Return the error function of x; the result is 1 for x > 3.76 and -1 for x < -3.76.

    If x is a product with a constant, or the result is multiplied by a power of two, the coefficients are adapted
    before compilation, and the multiplication is omitted.
    """
    x, factor = x.product if x.product and 0.01 < abs(x.product[1]) < 2.0 else (x, 1.0)
    y = _scaled_erf(x, factor)
    y.times = lambda scale: _scaled_erf(x, factor, scale)
    return y


def _scaled_erf(x: Scalar, factor: float, scale: float = 1.0) -> Scalar:
    """Return scale * erf(factor * x)."""
    square, end = x * x, ERF_END / factor**2
    square = select(square > end, end, square)
    numerator, denominator = (reduce(mul, [_monic(square, c, factor**-2) for c in each]) for each in ERF)
    return _limited(x * (ERF_FACTOR * scale / factor) * numerator / denominator, -scale, scale)


def _monic(x: Scalar, coefficients: Sequence[float], unit: float) -> Scalar:
    """Return ``unit**n * p(x / unit)`` for a polynomial p of degree n with the leading coefficient 1.

    ``coefficients`` are the other n coefficients of p, from the second highest power to the constant.
    """
    value = x + coefficients[0] * unit
    for power, coefficient in enumerate(coefficients[1:], 2):
        value = fma(value, x, coefficient * unit**power)
    return value


ALL = (exp, expm1, log, log1p, log2, log10, tanh, erf)
"""The functions of this module; each has the name of its op, and of the C library's function for float64."""
