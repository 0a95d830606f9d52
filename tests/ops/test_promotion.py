"""Which dtype an op computes in: the array API's tables, where NumPy has the same, and our choices between them."""

import itertools

import numpy as np
import pytest

import flnb
from flnb.dispatch.dtypes import DTYPES
from flnb.ops.dtypes import dtypes_of_kind

REAL = [*dtypes_of_kind("integral"), *dtypes_of_kind("real floating")]
NUMBERS = [*REAL, *dtypes_of_kind("complex floating")]


def same_kind(a, b):
    """The pairs for which the standard says the result: of one kind, except uint64 with signed integers."""
    kinds = {np.dtype(a).kind, np.dtype(b).kind}
    if kinds == {"u", "i"}:
        return "uint64" not in (a, b)
    return len(kinds) == 1 or kinds == {"f", "c"}


PAIRS = [pair for pair in itertools.product(DTYPES, DTYPES) if same_kind(*pair)]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_pairs_of_one_kind_promote_as_in_numpy(a, b):
    expected = np.result_type(np.dtype(a), np.dtype(b))
    assert flnb.result_type(DTYPES[a], DTYPES[b]) == expected
    x, y = flnb.ones((2,), dtype=a), flnb.ones((2,), dtype=b)
    assert (flnb.equal(x, y).all(), flnb.equal(x, y).dtype) == (True, flnb.bool)
    assert flnb.where(flnb.asarray([True, False]), x, y).dtype == expected
    assert flnb.concat([x, y]).dtype == expected
    operation = flnb.logical_and if expected == flnb.bool else flnb.add
    assert operation(x, y).dtype == expected


@pytest.mark.parametrize("integer", dtypes_of_kind("integral"))
@pytest.mark.parametrize("floating", [*dtypes_of_kind("real floating"), *dtypes_of_kind("complex floating")])
def test_integers_take_the_floating_dtype(integer, floating):
    assert flnb.result_type(DTYPES[integer], DTYPES[floating]) == floating
    assert (flnb.ones((2,), dtype=integer) * flnb.ones((2,), dtype=floating)).dtype == floating


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scalar", [True, 2, 2.5, 2j])
def test_python_scalars_count_little(dtype, scalar):
    """A scalar changes the kind where it must, never the width; then it takes the default of its kind."""
    kinds = "biufc"
    own, other = np.dtype(dtype).kind, np.asarray(scalar).dtype.kind
    if kinds.index(other) <= kinds.index(own):
        expected = np.dtype(dtype)
    elif own == "f":
        expected = np.result_type(np.dtype(dtype), np.complex64)
    else:
        expected = np.dtype({"i": "int64", "f": "float32", "c": "complex64"}[other])
    assert flnb.result_type(DTYPES[dtype], scalar) == expected
    assert flnb.result_type(scalar, DTYPES[dtype]) == expected
    assert flnb.where(flnb.asarray([True]), flnb.ones((1,), dtype=dtype), scalar).dtype == expected
    if expected != flnb.bool:
        assert (flnb.ones((2,), dtype=dtype) + scalar).dtype == expected
        assert (scalar * flnb.ones((2,), dtype=dtype)).dtype == expected


@pytest.mark.parametrize("dtype", dtypes_of_kind("integral"))
def test_integers_become_the_default_float_where_they_must(dtype):
    x = flnb.ones((2,), dtype=dtype)
    for function in (flnb.sqrt, flnb.exp, flnb.sin, flnb.mean, flnb.std):
        assert function(x).dtype == np.float32
    assert (x / x).dtype == np.float32
    for function in (flnb.floor, flnb.ceil, flnb.trunc, flnb.round, flnb.abs, flnb.sign, flnb.positive, flnb.square):
        assert function(x).dtype == dtype


@pytest.mark.parametrize("dtype", NUMBERS)
def test_reductions_widen_integers_only(dtype):
    x = flnb.ones((2, 3), dtype=dtype)
    wide = {"i": "int64", "u": "uint64"}.get(np.dtype(dtype).kind, dtype)
    for function in (flnb.sum, flnb.prod):
        assert function(x).dtype == wide
        assert function(x, axis=1, dtype=dtype).dtype == dtype
    for function in (flnb.cumulative_sum, flnb.cumulative_prod):
        assert function(x, axis=0).dtype == wide
        assert function(x, axis=0, dtype=dtype, include_initial=True).dtype == dtype


@pytest.mark.parametrize("dtype", dtypes_of_kind("complex floating"))
def test_complex_numbers_have_real_parts(dtype):
    x = flnb.asarray(np.array([3 + 4j, -1j], dtype))
    half = x.dtype.type(0).real.dtype
    assert flnb.abs(x).tolist() == [5.0, 1.0]
    assert {f(x).dtype for f in (flnb.abs, flnb.real, flnb.imag)} == {half}
    assert flnb.conj(x).tolist() == [3 - 4j, 1j]
    assert flnb.real(flnb.asarray([1, 2])).tolist() == [1, 2]
    for function in (flnb.floor, flnb.max, flnb.argmax, flnb.signbit):
        with pytest.raises(TypeError, match=rf"{function.__name__}: complex numbers have no {function.__name__}; take"):
            function(x)
    for function in (flnb.less, flnb.maximum, flnb.remainder, flnb.atan2):
        with pytest.raises(TypeError, match="complex numbers have no"):
            function(x, x)
    with pytest.raises(TypeError, match=r"astype: .* to float32 loses the imaginary part; use flnb\.real"):
        x.astype("float32")


def test_what_operators_refuse():
    with pytest.raises(TypeError, match="bitwise_and: expected integer or bool tensors, got float32"):
        flnb.ones((2,)) & flnb.ones((2,))
    with pytest.raises(TypeError, match="bitwise_left_shift: expected integer tensors, got bool"):
        flnb.asarray([True]) << flnb.asarray([True])
    with pytest.raises(TypeError, match="add: bool tensors have no add; cast with"):
        flnb.asarray([True]) + flnb.asarray([True])


def test_numbers_keep_their_precision():
    """They become the tensor's dtype at once, not the default one first."""
    x = flnb.asarray(np.array([0.0]))
    assert flnb.where(flnb.asarray([True]), 0.1, x).tolist() == [0.1]
    assert flnb.where(flnb.asarray([True]), 0.1, flnb.asarray(np.array([1j]))).tolist() == [0.1]
    assert (x + 16777217j).tolist() == [16777217j]
    assert flnb.where(flnb.asarray([True, False]), 16777217, 0.1).dtype == np.float32


def test_a_number_that_does_not_fit_is_an_error():
    with pytest.raises(OverflowError, match=r"add: the number 300 does not fit uint8, the tensor's dtype, .* \.astype"):
        flnb.ones((2,), dtype="uint8") + 300
    with pytest.raises(OverflowError, match="maximum: the number -1 does not fit uint16"):
        flnb.clip(flnb.ones((2,), dtype="uint16"), -1, 5)


def test_questions_about_dtypes():
    assert [name for name in DTYPES if flnb.isdtype(DTYPES[name], "real floating")] == ["float16", "float32", "float64"]
    assert flnb.isdtype(flnb.bool, ("integral", flnb.bool))
    assert not flnb.isdtype(flnb.bool, "numeric")
    with pytest.raises(ValueError, match=r"one of bool, signed integer, .*, got 'float'"):
        flnb.isdtype(flnb.bool, "float")
    assert flnb.can_cast(flnb.int8, flnb.int16)
    assert not flnb.can_cast(flnb.ones((2,), dtype="int16"), flnb.int8)
    for dtype in ("float16", "float32", "float64"):
        known, found = np.finfo(dtype), flnb.finfo(flnb.ones((1,), dtype=dtype))
        assert (found.bits, found.eps, found.max, found.dtype) == (known.bits, known.eps, known.max, known.dtype)
    assert flnb.finfo(flnb.complex64) == flnb.finfo(flnb.float32)
    assert (flnb.iinfo(flnb.uint8).min, flnb.iinfo(flnb.uint8).max) == (0, 255)
    with pytest.raises(TypeError, match="iinfo: expected an integer dtype, got float32; use finfo"):
        flnb.iinfo(flnb.float32)
    with pytest.raises(TypeError, match="finfo: expected a floating-point dtype, got int8; use iinfo"):
        flnb.finfo(flnb.int8)
    with pytest.raises(ValueError, match="result_type: expected at least one tensor, dtype or number, got none"):
        flnb.result_type()


def test_in_place_operators_keep_the_dtype():
    x = flnb.ones((2,), dtype="int32")
    same = x
    x += 1
    x @= flnb.ones((2, 2), dtype="int32")
    x <<= 1
    assert x is same
    assert (x.tolist(), x.dtype) == ([8, 8], np.int32)
    with pytest.raises(ValueError, match=r"the result is float32\[2\] but out is int32\[2\]"):
        x += 0.5
    with pytest.raises(ValueError, match=r"matmul: the result is int32\[\] but out is int32\[2\]"):
        x @= x


@pytest.mark.parametrize(
    ("product", "bias", "dtype"),
    [
        ("int64", "float32", "float32"),
        ("float32", "float64", "float64"),
        ("float32", "complex64", "complex64"),
        ("int16", "float32", "float32"),
        ("float16", "float64", "float64"),
        ("float16", "float32", "float16"),  # as autocast computes it
    ],
)
def test_a_bias_widens_its_product_but_not_from_half_to_single_precision(product, bias, dtype):
    one, half = flnb.ones((1, 1), dtype=product), flnb.full((1,), 0.5 if bias != "complex64" else 0.5j, dtype=bias)
    y = flnb.linear(one, one, half)
    assert (y.dtype.name, y.item()) == (dtype, 1 + half.item())
