"""Expressions of scalars, compiled, against NumPy and the C library: special values, rounding, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flnb.dispatch.table import OPS
from flnb.graph.scalars import REDUCTIONS, ROWS, identity, supported
from tests.native.oracle import pointwise, value

SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.0, -2.5, 3.0, 1e-40, -1e-40, 1.1754944e-38, 1e-30, 1e30, -1e30, 3.4e38,
    -3.4e38, 88.7, 88.72283, 88.7229, 89.0, -87.3, -87.4, -103.0, -103.9, -104.0, -105.0, 7.99, 8.0, 9.0, -9.0, 3.9,
    3.74, -3.75, 3.76, 4.1, -4.1, 1000.0, 0.7071067, 1.4142135, 0.99999994, 1.0000001, -0.9999999,
    np.inf, -np.inf, np.nan,
]  # fmt: skip
POLYNOMIALS = {"exp", "expm1", "log", "log1p", "log2", "log10", "tanh", "erf"}
INEXACT = POLYNOMIALS | {
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan2", "hypot", "pow",
    "logaddexp",
}  # fmt: skip
ARITY = {name: OPS[name].arity for name in ROWS}


def numbers(dtype: str, count: int = 4000) -> Any:
    """Special values, and random ones of all magnitudes."""
    rng = np.random.default_rng(7)
    if dtype == "?":
        return rng.integers(0, 2, count).astype(bool)
    if dtype not in "fd":
        limits = np.iinfo(dtype)
        ends = [limits.min, limits.max, 0, 1, 2, limits.max // 2]
        few = rng.integers(max(limits.min, -9), 9, count, dtype=np.int64)
        return np.concatenate(
            [np.array(ends, dtype), rng.integers(limits.min, limits.max, count, dtype), few.astype(dtype)]
        )
    spread = np.exp(rng.uniform(-87, 88, count)) * rng.choice([-1, 1], count)
    near = 1 + rng.standard_normal(count) * 1e-3
    return np.concatenate([SPECIAL, rng.standard_normal(count), rng.standard_normal(count) * 30, spread, near]).astype(
        dtype
    )


def pairs(dtype: str) -> tuple[Any, Any]:
    """All pairs of special values, and random pairs."""
    x = numbers(dtype, 500)
    first = x[: len(SPECIAL)]
    rng = np.random.default_rng(8)
    a, b = rng.choice(x, 4000), rng.choice(x, 4000)
    return np.concatenate([np.repeat(first, len(first)), a, a]), np.concatenate([np.tile(first, len(first)), b, a])


def same(found: Any, wanted: Any, tolerance: float = 0.0) -> None:
    """Compare; zeros have one sign, and subnormal numbers differ by the smallest at most."""
    if not tolerance:
        np.testing.assert_array_equal(found, wanted)
        return
    step = float(np.finfo(found.dtype).smallest_subnormal) if found.dtype.char in "fd" else 0.0
    np.testing.assert_allclose(found, wanted, tolerance, 4 * step)


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("op", sorted(name for name, arity in ARITY.items() if arity == 1))
def test_functions_of_one_floating_point_number(op: str, dtype: str) -> None:
    result = "?" if supported(op, [dtype], "?") else dtype
    if not supported(op, [dtype], result) or op == "logical_not":
        return
    x = numbers(dtype)
    with np.errstate(all="ignore"):
        wanted = value(op, [x.astype("d") if op in INEXACT else x], result)
    same(pointwise(op, [x], result), wanted, 0.0 if op not in INEXACT else 1e-6 if dtype == "f" else 1e-14)


@pytest.mark.parametrize("dtype", "fd")
@pytest.mark.parametrize("op", sorted(name for name, arity in ARITY.items() if arity == 2))
def test_functions_of_two_floating_point_numbers(op: str, dtype: str) -> None:
    result = "?" if supported(op, [dtype, dtype], "?") else dtype
    if not supported(op, [dtype, dtype], result):
        return
    a, b = pairs(dtype)
    with np.errstate(all="ignore"):
        wanted = value(op, [a.astype("d"), b.astype("d")] if op in INEXACT else [a, b], result)
    found = pointwise(op, [a, b], result)
    if op == "logaddexp":  # its two terms may cancel
        np.testing.assert_allclose(found, wanted, 1e-6 if dtype == "f" else 1e-13, 1e-7 if dtype == "f" else 1e-15)
    else:
        same(found, wanted, 0.0 if op not in INEXACT else 1e-6 if dtype == "f" else 1e-13)


@pytest.mark.parametrize("dtype", "bhilqBHILQ?")
def test_integers_and_bool_are_exact(dtype: str) -> None:
    a, b = pairs(dtype)
    for op, arity in ARITY.items():
        for result in {dtype, "?"}:
            operands = [a, b][:arity]
            if arity and supported(op, [dtype] * arity, result):
                with np.errstate(all="ignore"):
                    wanted = value(op, operands, result)
                np.testing.assert_array_equal(pointwise(op, operands, result), wanted, op)


@pytest.mark.parametrize("source", "fdbilBIL?")
@pytest.mark.parametrize("target", "fdbhilBHIL?")
def test_astype_is_numpys(source: str, target: str) -> None:
    x = numbers(source, 300)
    if source in "fd" and target not in "fd?":  # what is out of range is not defined
        limits = np.iinfo(target)
        x = (
            x[(x > max(limits.min, -(2.0**62)) - 1.0) & (x < min(limits.max, 2.0**62))]
            if target not in "IL"
            else x[(x >= 0) & (x < limits.max * 0.9)]
        )
    assert supported("astype", [source], target)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(pointwise("astype", [x], target), x.astype(target))


def test_where_chooses() -> None:
    a, b = pairs("f")
    c = a > 0
    np.testing.assert_array_equal(pointwise("where", [c, a, b], "f"), np.where(c, a, b))
    assert not supported("where", ["f", "f", "f"], "f")


def test_small_constant_powers() -> None:
    from flnb.graph.nests import Nest
    from tests.native.oracle import access, constant, load, run, step

    x = numbers("f")
    for power in (-2.0, -1.0, 0.5, 1.0, 2.0, 3.0, 4.0, 1.7):
        out = np.zeros_like(x)
        steps = (load(0), constant(power), step("pow", 0, 1))
        run(Nest((), (x.size,), (access(x, (), (1,)),) * 2, steps, ((2, 1),)), [x, out])
        with np.errstate(all="ignore"):
            same(out, np.power(x.astype("d"), float(np.float32(power))).astype("f"), 1e-6)


def test_the_error_function_of_products_with_constants() -> None:
    from flnb.graph.nests import Nest
    from tests.native.oracle import access, constant, load, run, step

    x = numbers("f")
    for factor in (0.5**0.5, -3.0, -1.9, 0.0101, 99.0, 0.001, 1e30, 0.0, np.inf, np.nan):
        for operands in ((0, 1), (1, 0)):
            out = np.zeros_like(x)
            steps = (load(0), constant(factor), step("multiply", *operands), step("erf", 2))
            run(Nest((), (x.size,), (access(x, (), (1,)),) * 2, steps, ((3, 1),)), [x, out])
            with np.errstate(all="ignore"):
                same(out, value("erf", [x.astype("d") * float(np.float32(factor))], "f"), 1e-6)


def test_multiples_of_the_error_function_have_the_bits_of_the_product() -> None:
    from flnb.graph.nests import Nest
    from tests.native.oracle import access, constant, load, run, step

    x = numbers("f")
    x = x[(abs(x) > 1e-30) | (x == 0.0) | np.isnan(x)]  # of subnormal products, bits may be lost in between
    y = pointwise("erf", [x], "f")
    for number in (0.5, 4.0, 0.75, -0.5, np.inf):  # the last three take a multiplication
        for term in (0.0, 1.0, -0.25):
            out = np.zeros_like(x)
            steps = (load(0), step("erf", 0), constant(term), step("add", 2, 1), constant(number))
            steps = (*steps, step("multiply", 4, 3))
            run(Nest((), (x.size,), (access(x, (), (1,)),) * 2, steps, ((5, 1),)), [x, out])
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(out, (y + np.float32(term)) * np.float32(number))


def test_what_is_supported() -> None:
    assert supported("add", ["f", "f"], "f")
    assert supported("add", ["l", "l"], "l")
    assert supported("sum", ["?"], "l")
    assert supported("any", ["?"], "?")
    assert not supported("add", ["?", "?"], "?")  # the op table has no sum of truth values
    assert not supported("exp", ["l"], "l")
    assert not supported("exp", ["F"], "F")
    assert not supported("add", ["e", "e"], "e")
    assert not supported("less", ["f", "d"], "?")
    assert not supported("matmul", ["f", "f"], "f")
    assert set(ROWS) <= set(OPS)
    assert set(OPS) >= REDUCTIONS


@pytest.mark.parametrize("op", sorted(REDUCTIONS))
@pytest.mark.parametrize("dtype", "fdblB?")
def test_identities(op: str, dtype: str) -> None:
    if op in ("any", "all") and dtype != "?":
        return
    x = numbers(dtype, 20)
    functions: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    functions |= {"any": np.logical_or, "all": np.logical_and}
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(functions[op](x, np.array(identity(op, dtype), dtype)), x)
