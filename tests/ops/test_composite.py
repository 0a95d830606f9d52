"""Composites at the edges of what they take."""

import numpy as np
import pytest

import flnb


@pytest.mark.parametrize("function", [flnb.softmax, flnb.log_softmax])
@pytest.mark.parametrize(("shape", "axis"), [((2, 0), -1), ((2, 0), 0), ((0, 3), 0), ((0, 3), 1), ((0,), 0)])
def test_softmax_of_nothing_is_nothing(function, shape, axis):
    x = flnb.Variable(np.ones(shape))
    y = function(x, axis)
    assert (y.shape, y.dtype) == (shape, np.float64)
    y.sum().backward()
    assert x.grad.shape == shape
    assert flnb.vmap(lambda v: function(v, axis))(flnb.ones((2, *shape))).shape == (2, *shape)
