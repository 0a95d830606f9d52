"""Elementwise ops as expressions of scalars: written once, and printed for every code generation target.

Arithmetic, comparisons and square roots give the same bits as NumPy's. Transcendental functions of float32 are
approximations with a relative error of at most 1e-6 (`flnb.graph.approximations`); those of float64 are computed by the
C library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from flnb.graph import approximations
from flnb.graph.emitter import Scalar, call, kind, select

DTYPES = frozenset("fd?bhilqBHILQ")
REDUCTIONS = frozenset({"sum", "prod", "max", "min", "any", "all"})
"""The reductions that a nest can compute, over its inner or its outer space."""


class Row(NamedTuple):
    """The scalar expression of an op: its function, the dtype kinds it accepts, and its result's dtype.

    If ``result`` is empty, operands are first converted to the result's dtype. If ``result`` is "?" (bool), the op
    computes in the operands' common dtype, or in bool if ``kinds`` is "b".
    """

    function: Callable[..., Scalar]
    kinds: str = "f"
    result: str = ""


def apply(op: str, operands: Sequence[Scalar], dtype: str) -> Scalar:
    """Print an op's scalar expression through the operands' emitter; returns the result.

    Args:
        op: the name of an op that is not a reduction, and for which `supported` is true with these dtypes.
        operands: the operands.
        dtype: the result's dtype, as NumPy's character.
    """
    if op in ("astype", "copy"):
        return operands[0].to(dtype)
    if op == "where":
        return select(operands[0], *[x.to(dtype) for x in operands[1:]])
    row = ROWS[op]
    computed = dtype if not row.result else "?" if row.kinds == "b" else operands[0].dtype
    return row.function(*[x.to(computed) for x in operands])


def supported(op: str, inputs: Sequence[str], dtype: str) -> bool:
    """Return whether an op can be part of a loop nest, for input and result dtypes given as NumPy's characters.

    Reductions are supported if a nest can compute them, over its inner or its outer space.

    >>> supported("exp", ["f"], "f"), supported("sum", ["?"], "l"), supported("matmul", ["f", "f"], "f")
    (True, True, False)
    """
    if not {*inputs, dtype} <= DTYPES:
        return False
    if op in ("astype", "copy"):
        return len(inputs) == 1
    if op in REDUCTIONS:
        return len(inputs) == 1 and (op not in ("any", "all") or dtype == "?")
    if op == "where":
        return inputs[0] == "?" and all(np.can_cast(x, dtype) for x in inputs[1:])
    row = ROWS.get(op)
    if row is None:
        return False
    if row.result:
        return dtype == row.result and (row.kinds == "b" or (len({*inputs}) == 1 and kind(inputs[0]) in row.kinds))
    return kind(dtype) in row.kinds and all(np.can_cast(x, dtype, "same_kind") for x in inputs)


def identity(op: str, dtype: str) -> float:
    """Return the initial value of a reduction: its result over no elements.

    >>> identity("max", "f"), identity("min", "b"), identity("all", "?")
    (-inf, 127, True)
    """
    if op in ("max", "min") and dtype != "?":
        if kind(dtype) == "f":
            return -math.inf if op == "max" else math.inf
        limits = np.iinfo(dtype)
        return int(limits.min if op == "max" else limits.max)
    return {"sum": 0, "prod": 1, "any": False, "max": False, "all": True, "min": True}[op]


def by_kind(real: Callable[..., Scalar], integer: Callable[..., Scalar]) -> Callable[..., Scalar]:
    """Return a function that calls ``real`` for floating-point scalars, and ``integer`` for integers and bool."""
    return lambda x, *more: (real if kind(x.dtype) == "f" else integer)(x, *more)


def by_precision(approximation: Callable[[Scalar], Scalar]) -> Callable[[Scalar], Scalar]:
    """Return a function that calls ``approximation`` for float32, and the C function of the same name for float64."""
    return lambda x: approximation(x) if x.dtype == "f" else call(approximation.__name__, x)


def instruction(name: str) -> Callable[..., Scalar]:
    """Return a function that emits the instruction ``name``, or a call of the C library's function of that name."""
    return lambda *operands: call(name, *operands)


def _same(x: Scalar) -> Scalar:
    return x


def maximum(a: Scalar, b: Scalar) -> Scalar:
    """Return the larger of two numbers; NaN if one is NaN."""
    return _extremum(a, b, lambda x, y: x < y)


def minimum(a: Scalar, b: Scalar) -> Scalar:
    """Return the smaller of two numbers; NaN if one is NaN."""
    return _extremum(a, b, lambda x, y: x > y)


def _extremum(a: Scalar, b: Scalar, worse: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
    """Return b if ``worse(a, b)``, else a; NaN if one is NaN. With a constant, this is one compare and select."""
    if a.number is not None:
        a, b = b, a
    chosen = select(worse(a, b), b, a)  # a if that is NaN
    if kind(a.dtype) != "f" or (b.number is not None and not math.isnan(b.number)):
        return chosen
    return select(b.not_equal(b), b, chosen)


def _sign(x: Scalar) -> Scalar:
    """Return the sign of x: -1, 0 or 1; NaN for NaN."""
    positive = select(x > 0, x.constant(1), select(x.equal(0), x.constant(0), x))
    return positive if kind(x.dtype) == "u" else select(x < 0, -1, positive)


def _power(a: Scalar, b: Scalar) -> Scalar:
    """Return a^b; for some small constant b it is computed by multiplications, a division or a square root."""
    powers: dict[float | None, Callable[[], Scalar]] = {
        1.0: lambda: a, 2.0: lambda: a * a, 3.0: lambda: a * a * a, 4.0: lambda: (a * a) * (a * a),
        -1.0: lambda: 1.0 / a, -2.0: lambda: (1.0 / a) * (1.0 / a),
        0.5: lambda: call("sqrt", a),  # as NumPy does, although C's function has other results for -0 and -inf
    }  # fmt: skip
    found = powers.get(b.number)
    return found() if found else call("pow", a, b)


def _remainder(a: Scalar, b: Scalar) -> Scalar:
    """Return the remainder of a / b with the divisor's sign, as Python does."""
    rest, other = _rest(a, b)
    return select(rest.equal(0.0), b.constant(0.0).make("copysign", b), select(other, rest + b, rest))


def _rest(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """Return the remainder of a / b with the sign of a, and whether this sign differs from the sign of b."""
    rest = a.make("remainder", b)
    return rest, rest.not_equal(0.0) & (rest < 0.0).not_equal(b < 0.0)


def _floor_divide(a: Scalar, b: Scalar) -> Scalar:
    """Return the floor of the exact quotient a / b, as Python does; if b is 0, the quotient (inf or NaN)."""
    rest, other = _rest(a, b)
    quotient = (a - rest) / b
    quotient = select(other, quotient - 1.0, quotient)
    floor = call("floor", quotient)
    floor = select(quotient - floor > 0.5, floor + 1.0, floor)
    ratio = a / b
    return select(b.equal(0.0), ratio, select(quotient.equal(0.0), ratio.constant(0.0).make("copysign", ratio), floor))


def _divisor(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """Return whether the integer division a / b is defined, and a safe divisor: b, or 1 where a / b is undefined."""
    valid = b.not_equal(0)
    if kind(a.dtype) == "i":
        valid = valid & ~(a.equal(int(np.iinfo(a.dtype).min)) & b.equal(-1))
    return valid, select(valid, b, 1)


def _floor_divide_integers(a: Scalar, b: Scalar) -> Scalar:
    """Return the floor of a / b; 0 where b is 0, and a where the quotient is too large."""
    valid, divisor = _divisor(a, b)
    quotient = a.make("divide", divisor)
    if kind(a.dtype) == "i":
        rest = a - quotient * divisor
        quotient = select(rest.not_equal(0) & ((rest ^ divisor) < 0), quotient - 1, quotient)
    return select(valid, quotient, select(b.equal(0), 0, a))


def _remainder_of_integers(a: Scalar, b: Scalar) -> Scalar:
    """Return the remainder of a / b with the divisor's sign; 0 where b is 0."""
    valid, divisor = _divisor(a, b)
    rest = a.make("remainder", divisor)
    if kind(a.dtype) == "i":
        rest = select(rest.not_equal(0) & ((rest ^ divisor) < 0), rest + divisor, rest)
    return select(valid, rest, 0)


def _logaddexp(a: Scalar, b: Scalar) -> Scalar:
    """Return log(exp(a) + exp(b)) without overflow."""
    exp, log1p = functions["exp"], functions["log1p"]
    more = log1p(exp(-(a - b).make("abs")))
    return select(a.equal(b), a + math.log(2.0), maximum(a, b) + more)


def _shift(a: Scalar, b: Scalar, name: str) -> Scalar:
    """Return the integer a shifted by b bits in the direction ``name``, "left" or "right".

    If b is at least the number of bits of a, the result is 0; for a negative number shifted right it is -1.
    """
    bits = 8 * np.dtype(a.dtype).itemsize
    fill = select(a < 0, a.constant(-1), 0) if name == "right" and kind(a.dtype) == "i" else a.constant(0)
    valid = b < bits if kind(b.dtype) == "u" else (b < bits) & (b >= 0)
    return select(valid, a.make(name, select(valid, b, 0)), fill)


_LIBRARY = {
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh",
    "cosh": "cosh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "atan2": "atan2", "hypot": "hypot",
    "nextafter": "nextafter", "sqrt": "sqrt", "copysign": "copysign",
}  # fmt: skip
"""A dict from the name of an op to the name of the C library's function for the op."""
functions: dict[str, Callable[..., Scalar]] = {
    **{name: instruction(function) for name, function in _LIBRARY.items()},
    **{f.__name__: by_precision(f) for f in approximations.ALL},
    "divide": lambda a, b: a / b,
    "reciprocal": lambda x: 1.0 / x,
    "pow": _power,
    "logaddexp": _logaddexp,
}
"""The expressions of ops that take floating-point numbers only, by the op's name."""
ROWS: dict[str, Row] = {
    **{name: Row(function) for name, function in functions.items()},
    **{name: Row(by_kind(instruction(name), _same), "fiu") for name in ("floor", "ceil", "trunc")},
    "round": Row(by_kind(instruction("rint"), _same), "fiu"),
    **{name: Row(_same, "fiu") for name in ("positive", "real", "conj")},
    "negative": Row(lambda x: -x, "fiu"),
    "abs": Row(lambda x: x if kind(x.dtype) == "u" else x.make("abs"), "fiu"),
    "sign": Row(_sign, "fiu"),
    "square": Row(lambda x: x * x, "fiu"),
    "add": Row(lambda a, b: a + b, "fiu"),
    "subtract": Row(lambda a, b: a - b, "fiu"),
    "multiply": Row(lambda a, b: a * b, "fiu"),
    "floor_divide": Row(by_kind(_floor_divide, _floor_divide_integers), "fiu"),
    "remainder": Row(by_kind(_remainder, _remainder_of_integers), "fiu"),
    "maximum": Row(maximum, "fiu"),
    "minimum": Row(minimum, "fiu"),
    "isnan": Row(by_kind(lambda x: x.not_equal(x), lambda x: x.constant(False, "?")), "fiub", "?"),
    "isinf": Row(by_kind(lambda x: x.make("abs").equal(math.inf), lambda x: x.constant(False, "?")), "fiub", "?"),
    "isfinite": Row(by_kind(lambda x: x.make("abs") < math.inf, lambda x: x.constant(True, "?")), "fiub", "?"),
    "signbit": Row(lambda x: x.bits("i" if x.dtype == "f" else "q") < 0, "f", "?"),
    "equal": Row(lambda a, b: a.equal(b), "fiub", "?"),
    "not_equal": Row(lambda a, b: a.not_equal(b), "fiub", "?"),
    "less": Row(lambda a, b: a < b, "fiub", "?"),
    "less_equal": Row(lambda a, b: a <= b, "fiub", "?"),
    "greater": Row(lambda a, b: b < a, "fiub", "?"),
    "greater_equal": Row(lambda a, b: b <= a, "fiub", "?"),
    "logical_not": Row(lambda x: ~x, "b", "?"),
    "logical_and": Row(lambda a, b: a & b, "b", "?"),
    "logical_or": Row(lambda a, b: a | b, "b", "?"),
    "logical_xor": Row(lambda a, b: a ^ b, "b", "?"),
    "bitwise_invert": Row(lambda x: ~x, "iub"),
    "bitwise_and": Row(lambda a, b: a & b, "iub"),
    "bitwise_or": Row(lambda a, b: a | b, "iub"),
    "bitwise_xor": Row(lambda a, b: a ^ b, "iub"),
    "bitwise_left_shift": Row(lambda a, b: _shift(a, b, "left"), "iu"),
    "bitwise_right_shift": Row(lambda a, b: _shift(a, b, "right"), "iu"),
}
CHEAP = frozenset({
    "astype", "copy", "where", "negative", "positive", "abs", "square", "add", "subtract", "multiply", "maximum",
    "minimum", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or",
    "logical_xor", "logical_not", "floor", "ceil", "trunc", "round", "real", "conj", "isnan", "isinf", "isfinite",
})  # fmt: skip
"""The ops that take hardly longer to compute than their results take to read from memory."""
APPROXIMATE = frozenset(functions) - {"divide", "reciprocal", "sqrt", "copysign", "nextafter"}
"""The ops whose results may differ from NumPy's in the last bits."""
DISCRETE = frozenset({
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "maximum", "minimum", "max", "min", "sign",
    "floor", "ceil", "trunc", "round", "floor_divide", "remainder", "signbit", "isnan", "isinf", "isfinite",
})  # fmt: skip
"""The ops with a discontinuity, where the last bits of an operand can decide the result."""
