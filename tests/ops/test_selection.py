"""Choosing by order, padding by elements, iota and rows of a table. Gradients: tests/ops/test_table.py."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import flnb

RNG = np.random.default_rng(11)
NUMBERS = arrays.arrays(np.float64, arrays.array_shapes(max_dims=3, max_side=5), elements=st.integers(-3, 3))


@settings(deadline=None)
@given(NUMBERS, st.data())
def test_topk_is_the_head_of_a_stable_sort(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    k = data.draw(st.integers(0, x.shape[axis]))
    largest = data.draw(st.booleans())
    values, indices = flnb.topk(flnb.asarray(x), k, axis, largest)
    expected = np.take(np.sort(-x if largest else x, axis), range(k), axis)
    np.testing.assert_array_equal(values.numpy(), -expected if largest else expected)
    np.testing.assert_array_equal(np.take_along_axis(x, indices.numpy(), axis), values.numpy())
    ordered = np.sort(indices.numpy(), axis)
    assert k < 2 or (np.diff(ordered, axis=axis) > 0).all(), "no index twice"


@settings(deadline=None)
@given(NUMBERS, st.data())
def test_median_and_extrema(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    keepdims = data.draw(st.booleans())
    t = flnb.asarray(x)
    np.testing.assert_array_equal(flnb.median(t, axis, keepdims).numpy(), np.median(x, axis, keepdims=keepdims))
    assert flnb.median(t).item() == np.median(x)
    for name in ("max", "min"):
        values, indices = getattr(flnb, f"{name}_with_indices")(t, axis, keepdims)
        np.testing.assert_array_equal(values.numpy(), getattr(x, name)(axis, keepdims=keepdims))
        np.testing.assert_array_equal(indices.numpy(), getattr(x, f"arg{name}")(axis, keepdims=keepdims))


def test_median_of_nan_is_nan():
    assert np.isnan(flnb.median(flnb.asarray([1.0, float("nan"), 2.0])).item())


@pytest.mark.parametrize("mode", ["constant", "edge", "symmetric", "reflect"])
def test_padding(mode):
    x = RNG.normal(size=(3, 4))
    widths = ((2, 0), (1, 3))
    np.testing.assert_array_equal(flnb.pad(flnb.asarray(x), widths, mode=mode).numpy(), np.pad(x, widths, mode))


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("float16", 0.0, 1.0), ("float16", -3.0, 5.0), ("float32", 1.0, 1.000001)]
)
def test_uniform_numbers_are_below_the_upper_limit_in_every_dtype(dtype, low, high):
    x = flnb.random.uniform((20_000,), low, high, dtype, flnb.random.Generator(0)).numpy()
    assert low <= x.min() < x.max() < x.dtype.type(high)
    assert x.max() == np.nextafter(x.dtype.type(high), x.dtype.type(low))
    assert (flnb.random.uniform((3,), 2.0, 2.0, dtype) == 2.0).all()


def test_iota_and_random_shapes():
    assert flnb.iota(3).tolist() == [0, 1, 2]
    assert flnb.iota((2, 1), (1, 2), dtype=flnb.float32).tolist() == [[0.0, 0.0], [1.0, 1.0]]
    flnb.manual_seed(1)
    x = flnb.rand(2, 3)
    flnb.manual_seed(1)
    assert (x == flnb.random.uniform((2, 3))).all()
    assert flnb.randn(4, dtype=flnb.float64).dtype == flnb.float64


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: flnb.topk(x, 4),
            ValueError,
            r"expected k from 0 to 3, .* axis -1 of float32\[2,3\], got 4",
        ),
        (lambda x: flnb.topk(x[0, 0], 0), ValueError, "topk: axis -1 is out of range for a tensor of 0"),
        (lambda x: flnb.median(x[:0], axis=0), ValueError, r"median: expected one element or more along axis 0"),
        (lambda x: flnb.pad(x, ((1, 1), (0, 0)), mode="wrap"), ValueError, "mode must be 'constant', .* got 'wrap'"),
        (lambda x: flnb.pad(x[:0], ((1, 1), (0, 0)), mode="edge"), ValueError, r"pad: axis 0 of float32\[0,3\] has no"),
        (lambda x: flnb.embedding([0], x[0]), ValueError, r"expected a weight \(entries, features\), got float32\[3\]"),
        (lambda x: flnb.embedding([2], x), IndexError, "index 2 is out of range for axis 0"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call(flnb.ones((2, 3)))
