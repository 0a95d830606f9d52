"""Shapes that broadcast_to refuses, as an op and as the NumPy backend's method."""

import numpy as np
import pytest
from flnb_backends.tensor.numpy import NumpyBackend

import flnb


@pytest.mark.parametrize(("x", "shape"), [([1.0], (-1,)), (1.0, (-1,)), (1.0, (2, -3)), ([1.0], (-2, 1))])
def test_negative_extents_are_refused(x, shape):
    with pytest.raises(
        ValueError, match=r"broadcast_to: shape \(.*\) does not broadcast to .*; extents must be at lea"
    ):
        flnb.broadcast_to(flnb.asarray(x), shape)


@pytest.mark.parametrize(("n", "shape"), [(2, (3,)), (2, (2, 1)), (2, (1,)), (1, (-1,)), (2, ()), (1, ())])
def test_the_method_refuses_what_numpy_refuses(n, shape):
    for x in (np.arange(float(n)), np.arange(2.0 * n)[::2]):
        for broadcast in (np.broadcast_to, NumpyBackend().broadcast_to):
            with pytest.raises(ValueError):
                broadcast(x, shape)


@pytest.mark.parametrize(("n", "shape"), [(1, (3,)), (2, (3, 2)), (1, (0,)), (1, (2, 0, 1)), (2, (0, 2))])
def test_the_method_broadcasts_as_numpy_does(n, shape):
    x = np.arange(float(n))
    np.testing.assert_array_equal(NumpyBackend().broadcast_to(x, shape), np.broadcast_to(x, shape))
