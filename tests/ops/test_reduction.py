"""Gradients of reductions where a formula alone would be NaN."""

import numpy as np
import pytest

import flnb

ZEROS = [(), ((0, 1, 0),), ((0, 1, 0), (1, 1, 0)), ((0, 1, 0), (0, 2, 0), (1, 0, 1))]


@pytest.mark.parametrize("axis", [None, (), 0, 1, (0, 2), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("zeros", ZEROS, ids=len)
def test_products_of_zeros(axis, zeros):
    """A derivative by an element is the product without it, a second derivative that without both, by hand."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, (2, 3, 2))
    for place in zeros:
        x[place] = 0.0

    def without(*places):
        """The product that has these factors, without them; 0 if no product has them all."""
        others, has = x.copy(), np.zeros(x.shape)
        for place in places:
            others[place], has[place] = 1.0, 1.0
        whole = np.sum(has, axis) == len(places)
        return np.prod(others, axis)[whole].sum()

    def product(v):
        return flnb.prod(v, axis=axis).sum()

    places = list(np.ndindex(x.shape))
    first = np.reshape([without(p) for p in places], x.shape)
    second = np.reshape([without(p, q) if p != q else 0.0 for p in places for q in places], x.shape * 2)
    np.testing.assert_allclose(flnb.grad(product)(x).numpy(), first, rtol=1e-12)
    np.testing.assert_allclose(flnb.hessian(product)(x).numpy(), second, rtol=1e-12)


def test_the_product_of_nothing_and_of_one_element():
    for shape, axis in (((0, 3), None), ((0, 3), 1), ((3, 0), 1), ((), None)):
        v = flnb.Variable(np.ones(shape))
        flnb.prod(v, axis=axis).sum().backward()
        assert v.grad.tolist() == np.ones(shape).tolist()


@pytest.mark.parametrize("axis", [None, 1])
def test_std_of_equal_elements_has_gradient_zero(axis):
    x = flnb.Variable(np.array([[2.0, 2.0], [2.0, 2.0]]))
    flnb.std(x, axis=axis).sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    mixed = flnb.Variable(np.array([[2.0, 2.0], [1.0, 3.0]]))
    flnb.std(mixed, axis=1).sum().backward()
    assert mixed.grad.tolist() == [[0.0, 0.0], [-0.5, 0.5]]
    assert np.isnan(flnb.std(flnb.Variable([1.0, np.nan])).item())


@pytest.mark.parametrize(("correction", "divisor"), [(0, 3), (-1, 4), (2.5, 0.5), (3, np.nan), (4, np.nan)])
def test_the_variance_of_too_few_is_nan(correction, divisor):
    x = np.array([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])
    expected = ((x - x.mean(1, keepdims=True)) ** 2).sum(1) / divisor
    np.testing.assert_allclose(flnb.var(x, axis=1, correction=correction).numpy(), expected)
    np.testing.assert_allclose(flnb.std(x, axis=1, correction=correction).numpy(), np.sqrt(expected))


def test_an_axis_of_a_0d_tensor_may_be_0_or_minus_1_as_in_numpy():
    for axis in (0, -1, (), None):
        assert flnb.sum(2.0, axis=axis).item() == flnb.median(2.0, axis=axis).item() == 2.0
    for axis in (1, -2):
        with pytest.raises(ValueError, match=f"sum: axis {axis} is out of range for a tensor of 0 dimensions"):
            flnb.sum(2.0, axis=axis)


def test_argmax_and_its_kin_take_the_axes_of_a_0d_tensor():
    for name in ("argmax", "argmin"):
        for axis in (0, -1, None):
            for keepdims in (False, True):
                found = getattr(flnb, name)(3.0, axis=axis, keepdims=keepdims)
                assert (found.item(), found.shape) == (0, ())
        with pytest.raises(ValueError, match=f"{name}: axis 1 is out of range for a tensor of 0 dimensions"):
            getattr(flnb, name)(3.0, axis=1)
    for function in (flnb.max_with_indices, flnb.min_with_indices):
        x = flnb.Variable(3.0)
        for found in (function(x), function(x, axis=0, keepdims=True)):
            assert (found.values.shape, found.indices.shape) == ((), ())
            assert (found.values.item(), found.indices.item()) == (3.0, 0)
        function(x).values.backward()
        assert x.grad.item() == 1.0
        with pytest.raises(ValueError, match="axis 1 is out of range"):
            function(x, axis=1)


@pytest.mark.parametrize("axis", [0.0, flnb.asarray(0.0), np.array([0, 1]), (0.0,), "0"], ids=repr)
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_an_axis_that_is_no_integer_is_a_type_error(axis, shape):
    with pytest.raises(TypeError, match=r"integer|index|0-d"):
        flnb.sum(flnb.ones(shape), axis=axis)
