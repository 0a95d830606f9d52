"""verify_grad finds what is wrong, however small, and says where."""

import re

import numpy as np
import pytest

import flnb
from flnb.dispatch.table import OPS
from flnb.ops.composite import Composite
from flnb.testing import GradientError, verify_grad

X = np.random.default_rng(2).uniform(0.5, 1.5, (3, 4))


@pytest.fixture
def op():
    """Makes a function of a body and a gradient, as one op of the table."""
    made = []

    def make(body, pull):
        made.append(Composite(f"made{len(made)}", "elementwise", lambda *x: (body(*x), ()), pull))
        return lambda *x: made[-1](*x)[0]

    yield make
    for composite in made:
        del OPS[composite.name]


def said(error):
    """Argument, position, and both values of a message."""
    found = re.match(
        r"argument (\d+), position (\(.*?\)), (.*?): the gradient says (\S+), finite differences say (\S+) ", str(error)
    )
    assert found, error
    return int(found[1]), eval(found[2]), found[3], float(found[4]), float(found[5])


def test_what_is_right_passes_in_both_orders(op):
    assert verify_grad(op(lambda x: x**3, lambda g, plan, x, y: (g * 3.0 * x**2,)), [X]) == 1
    assert verify_grad(lambda x: flnb.floor(x), [X]) == 1
    assert verify_grad(lambda x, i: x[i], [X, np.array([0, 0, 2])]) == 1
    assert verify_grad(lambda x: x > 1.0, [X]) == 0


def test_the_wrong_element_is_named_with_both_values(op):
    factor = np.ones((3, 4))
    factor[1, 2] = 1.25
    planted = op(lambda x, y: x * y, lambda g, plan, x, y, z: (g * y, g * x * flnb.asarray(factor)))
    with pytest.raises(GradientError) as caught:
        verify_grad(planted, [X, X + 0.1])
    argument, position, order, says, measured = said(caught.value)
    assert (argument, position, order) == (1, (1, 2), "first order")
    assert says == pytest.approx(1.25 * measured)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_errors_are_relative(op, scale):
    slightly = op(lambda x: x * x * scale, lambda g, plan, x, y: (g * x * (2.0 * scale * (1 + 3e-6)),))
    with pytest.raises(GradientError, match=r"relative error 3\.0\de-06, allowed 1e-06"):
        verify_grad(slightly, [X])
    verify_grad(slightly, [X], order=1, tolerance=1e-5)


def test_a_gradient_that_is_cut_is_found_in_second_order():
    @flnb.custom_op
    def squared(x):
        return x * x

    squared.def_vjp(lambda g, y, x: g * 2.0 * flnb.stop_gradient(x))
    assert verify_grad(squared, [X], order=1) == 1
    with pytest.raises(GradientError, match=r"argument 0, position .*, second order"):
        verify_grad(squared, [X])


def test_nan_is_no_gradient(op):
    nan = op(lambda x: x * 2.0, lambda g, plan, x, y: (g * float("nan"),))
    with pytest.raises(GradientError, match="the gradient says nan"):
        verify_grad(nan, [X])


def test_inputs_that_would_not_be_checked_are_refused():
    with pytest.raises(TypeError, match=r"verify_grad: nothing to check: only float64 .*; got float32, int64"):
        verify_grad(lambda x, i: x[i] * 2.0, [X.astype(np.float32), np.array([0, 1])])
    with pytest.raises(TypeError, match=r"got complex128; give complex inputs by their parts: lambda a, b: flnb\.real"):
        verify_grad(flnb.sigmoid, [X + 1j])
    assert verify_grad(flnb.isnan, [X.astype(np.float32)]) == 0
    assert verify_grad(lambda x: flnb.ones((2,)), [X.astype(np.float32)]) == 0  # the output is no Variable


def test_an_output_that_is_wholly_cut_from_the_tape_is_found():
    for cut in (
        lambda x: flnb.stop_gradient(x) * 2.0,
        lambda x: flnb.asarray(flnb.stop_gradient(x).numpy() ** 2),
        lambda x: flnb.full((3,), x.sum().item()),
    ):
        with pytest.raises(GradientError, match=r"first order, where no gradient arrives: the gradient says 0\.0"):
            verify_grad(cut, [X])
    assert verify_grad(lambda x: flnb.ones((2,), dtype=np.float64), [X]) == 0
