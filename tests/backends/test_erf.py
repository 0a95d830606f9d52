"""The error function against Python's, in all its intervals and at their ends."""

import math

import numpy as np
import pytest
from flnb_backends.tensor.erf import erf, normal_distribution

ENDS = [0.0, 0.46875, 4.0, 6.0, 40.0, math.inf]
POINTS = np.concatenate([np.linspace(-8.0, 8.0, 20001), ENDS, np.negative(ENDS)])


def test_relative_error_in_double_precision():
    expected = np.array([math.erf(x) for x in POINTS])
    np.testing.assert_allclose(erf(POINTS), expected, rtol=1e-15, atol=0)


def test_relative_error_in_single_precision():
    points = np.concatenate([POINTS, np.logspace(-30, 0, 1000)]).astype(np.float32)
    y = erf(points)
    np.testing.assert_allclose(y, [math.erf(x) for x in points], rtol=5e-7, atol=0)
    assert abs(y).max() == 1.0
    np.testing.assert_array_equal(erf(points[::-1]), y[::-1])  # strided, and cut into other pieces
    np.testing.assert_array_equal(erf(points[:21000].reshape(7, -1).T), y[:21000].reshape(7, -1).T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_result_may_be_written_over_the_input(dtype):
    x = POINTS.astype(dtype)
    y = erf(x)
    assert erf(x, x) is x
    np.testing.assert_array_equal(x, y)


def test_distribution_of_a_normal_variable():
    for dtype, error in ((np.float32, 3e-7), (np.float64, 1e-15)):
        x = POINTS.astype(dtype)
        below = np.empty_like(x)
        normal_distribution(x, below, np.empty_like(x))
        expected = [(1.0 + math.erf(value / math.sqrt(2.0))) / 2.0 for value in x.tolist()]
        np.testing.assert_allclose(below, expected, rtol=0, atol=error)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtype_shape_and_what_is_no_number_are_kept(dtype):
    x = np.array([[math.nan, -0.0], [0.5, -5.0]], dtype)
    y = erf(x)
    assert (y.dtype, y.shape) == (dtype, (2, 2))
    assert math.isnan(y[0, 0])
    assert math.copysign(1.0, y[0, 1]) == -1.0
    assert erf(x[1, 0]).shape == ()
    assert erf(np.empty((0, 3), dtype)).shape == (0, 3)
