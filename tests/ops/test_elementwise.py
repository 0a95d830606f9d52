"""Elementwise functions and reductions in every dtype, beside NumPy's of the same name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

import flnb
from flnb.dispatch.table import OPS
from flnb.ops.dtypes import dtypes_of_kind

FLOATS = dtypes_of_kind("real floating")
INTEGERS = dtypes_of_kind("integral")
ELEMENTWISE = [op for op in OPS.values() if op.arity and op.name != "erf"]  # which NumPy does not have
ARRAYS = nps.arrays(
    st.sampled_from([*FLOATS, *INTEGERS]).map(np.dtype),
    nps.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4),
    elements={"min_value": 0, "max_value": 100, "allow_nan": False},
)  # fmt: skip


def accepted(op):
    """The dtypes a row of the table takes, as it says itself."""
    names = {
        "any": ("bool", *INTEGERS, *FLOATS), "numeric": (*INTEGERS, *FLOATS), "float": FLOATS, "integer": INTEGERS,
        "bits": ("bool", *INTEGERS), "bool": ("bool",),
    }[op.accepts]  # fmt: skip
    return names if op.real or op.accepts not in ("any", "numeric", "float") else (*names, "complex64", "complex128")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_values_and_dtypes_are_numpys(op):
    ours, theirs = getattr(flnb.ops, op.name), getattr(np, op.name)
    for dtype in accepted(op):
        kind = np.dtype(dtype).kind
        values = [0, 1, 2, 3, 5, 100] + ([-1, -2, -3] if kind in "ifc" and op.name != "pow" else [])
        unusual = [np.nan, np.inf, -np.inf, -0.0, -2.0] if kind in "fc" else []
        array = np.asarray(values + unusual).astype(dtype)
        second = np.asarray([0, 1, 3], dtype) if "shift" in op.name else array
        arrays = [array] if op.arity == 1 else [array[:, None], second]
        expected = theirs(*arrays)
        if kind in "iu" and op.name in ("floor", "ceil", "trunc"):
            expected = array  # NumPy before 2.1 makes floats of integers
        got = ours(*[flnb.asarray(a) for a in arrays])
        assert got.dtype == expected.dtype, dtype
        np.testing.assert_array_equal(got.numpy(), expected)


@settings(max_examples=100, deadline=None)
@given(ARRAYS, st.booleans(), st.data())
def test_reductions_are_numpys(source, keepdims, data):
    axes = st.none() | (nps.valid_tuple_axes(source.ndim, min_size=1) if source.ndim else st.none())
    axis = data.draw(axes)
    x = flnb.asarray(source)
    wide = {"f": source.dtype, "i": np.dtype(np.int64), "u": np.dtype(np.uint64)}[source.dtype.kind]
    for name in ("max", "min", "any", "all"):
        got, expected = getattr(flnb, name)(x, axis, keepdims), getattr(np, name)(source, axis, keepdims=keepdims)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(got.numpy(), expected)
    exact = source.astype(np.float64)
    floating = source.dtype if source.dtype.kind == "f" else np.dtype(np.float32)
    for name, dtype in (("sum", wide), ("mean", floating), ("var", floating), ("std", floating)):
        got = getattr(flnb, name)(x, axis=axis, keepdims=keepdims)
        expected = getattr(np, name)(exact, axis, keepdims=keepdims)
        assert (got.dtype, got.shape) == (dtype, expected.shape)
        if dtype != np.float16:
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_sums_and_products(axis):
    source = np.arange(1.0, 7.0).reshape(2, 3)
    x = flnb.asarray(source)
    assert np.array_equal(flnb.cumulative_sum(x, axis=axis).numpy(), np.cumsum(source, axis))
    assert np.array_equal(flnb.cumulative_prod(x, axis=axis).numpy(), np.cumprod(source, axis))
    for function, first in ((flnb.cumulative_sum, 0.0), (flnb.cumulative_prod, 1.0)):
        whole = np.moveaxis(function(x, axis=axis, include_initial=True).numpy(), axis, 0)
        assert (whole[0] == first).all()
        assert np.array_equal(whole[1:], np.moveaxis(function(x, axis=axis).numpy(), axis, 0))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_logaddexp_of_empty_sums_has_a_gradient(dtype):
    """log(0 + 0) and log(0 + 1): minus infinity is the log of an empty sum, and no NaN may come back from it."""
    a = flnb.Variable(np.asarray([-np.inf, -np.inf, 0.0], dtype))
    b = flnb.Variable(np.asarray([-np.inf, 0.0, 0.0], dtype))
    y = flnb.logaddexp(a, b)
    (flnb.where(flnb.isfinite(y), y, 0.0)).sum().backward()
    assert a.grad.tolist() == [0.0, 0.0, 0.5]
    assert b.grad.tolist() == [0.0, 1.0, 0.5]


def test_clip_keeps_the_dtype_and_broadcasts():
    x = flnb.asarray([[1, 5, 9]], dtype="int8")
    assert flnb.clip(x, 2, 6).tolist() == [[2, 5, 6]]
    assert flnb.clip(x, flnb.asarray([[0], [7]]), None).tolist() == [[1, 5, 9], [7, 7, 9]]
    assert flnb.clip(x, flnb.asarray(2), flnb.asarray(6)).dtype == np.int8
    assert flnb.clip(x) is x


def test_clip_passes_the_gradient_on_at_its_bounds():
    x = flnb.Variable([0.0, 1.0, 0.5, 2.0, -1.0, np.nan])
    low, high = flnb.Variable(flnb.zeros(6)), flnb.Variable(flnb.ones(6))
    flnb.clip(x, 0.0, 1.0)[:5].sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    flnb.clip(x, low, high)[:5].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0, 0.0, 0.0, 0.0]
    assert low.grad.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    assert high.grad.tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert np.isnan(flnb.clip(x, 0.0, 1.0).data[5].item())
    assert flnb.grad(lambda v: flnb.clip(v, [0.0, 1.0], None).sum())(flnb.asarray([0.0, 0.0])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("exponent", [0, 0.0, flnb.asarray(0.0)], ids=str)
def test_to_the_power_of_zero_has_slope_zero(exponent):
    for _ in range(2):  # the second node of a plan takes the straight pull
        x = flnb.Variable([0.0, 2.0, np.inf, -np.inf, np.nan])
        (x**exponent).sum().backward()
        assert x.grad.tolist() == [0.0] * 5


@pytest.mark.parametrize("base", [0, 0.0, flnb.asarray(0.0)], ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_powers_of_zero_by_their_exponent(base):
    y = flnb.Variable([-1.0, 0.0, 0.5, 2.0, np.inf, -np.inf])
    for _ in range(2):
        (base**y).sum().backward()
        assert y.grad.tolist() == [-np.inf, 0.0, 0.0, 0.0, 0.0, -np.inf]
        y.zero_grad()
