"""Custom ops: gradients of every order, under vmap, in telemetry, and every wrong rule named with the user's line."""

import numpy as np
import pytest

import flnb
from flnb.autograd.custom import GradientRuleError
from flnb.testing import GradientError, verify_grad

X = np.random.default_rng(0).normal(size=(3, 4))
W = np.random.default_rng(1).normal(size=4)


def swish():
    """x * sigmoid(w x), its gradient by ops of flnb."""

    @flnb.custom_op
    def swish(x, w):
        return x * flnb.sigmoid(x * w)

    @swish.def_vjp
    def rule(g, y, x, w):
        s = flnb.sigmoid(x * w)
        curve = x * s * (1.0 - s)
        return g * (s + w * curve), (g * x * curve).sum(axis=0)

    return swish


def by_numpy(jvp=True):
    """tanh(x) * scale by NumPy in both directions."""

    @flnb.custom_op
    def squash(x, *, scale=1.0):
        return np.tanh(x.numpy()) * scale

    @squash.def_vjp
    def rule(g, y, x, *, scale):
        return flnb.asarray(g.numpy() * (1.0 - np.tanh(x.numpy()) ** 2) * scale)

    if jvp:

        @squash.def_jvp
        def push(tangents, y, x, *, scale):
            squash.pushed = True
            return flnb.asarray(tangents[0].numpy() * (1.0 - np.tanh(x.numpy()) ** 2) * scale)

    return squash


def test_gradients_of_first_and_second_order():
    assert verify_grad(swish(), [X, W]) == 2


def test_transforms_of_a_custom_op_equal_those_of_its_ops():
    op = swish()
    plain = lambda x, w: x * flnb.sigmoid(x * w)  # noqa: E731
    x, w = flnb.asarray(X), flnb.asarray(W)
    for transform in (
        lambda f: flnb.grad(lambda x, w: f(x, w).sum(), 1)(x, w),
        lambda f: flnb.jvp(f, (x, w), (x, w))[1],
        lambda f: flnb.hvp(lambda w: f(x, w).sum(), w, w),
        lambda f: flnb.jacobian(f, 1)(x, w),
        lambda f: flnb.vmap(f, (0, None))(x[:, None], w),
        lambda f: flnb.vmap(flnb.grad(lambda x, w: f(x, w).sum(), 1), (0, None))(x[:, None], w),
        lambda f: flnb.hessian(lambda w: f(x, w).sum())(w),
    ):
        np.testing.assert_allclose(transform(op).numpy(), transform(plain).numpy(), rtol=1e-10, atol=1e-12)


def test_an_op_by_numpy_in_every_first_order_transform():
    op = by_numpy()
    x = flnb.asarray(X)
    slope = (1 - np.tanh(X) ** 2) * 2.0
    f = lambda x: op(x, scale=2.0)  # noqa: E731
    np.testing.assert_allclose(flnb.grad(lambda x: f(x).sum())(x).numpy(), slope)
    np.testing.assert_allclose(flnb.jvp(f, x, x)[1].numpy(), slope * X)
    assert op.pushed
    np.testing.assert_allclose(flnb.vmap(f)(x).numpy(), np.tanh(X) * 2.0)
    np.testing.assert_allclose(np.einsum("ijij->ij", flnb.jacobian(f)(x).numpy()), slope)


def test_a_second_derivative_through_numpy_is_an_error_not_a_zero():
    op = by_numpy()
    with pytest.raises(RuntimeError, match="requires grad, and a NumPy array has no gradient"):
        flnb.hvp(lambda x: op(x).sum(), flnb.asarray(X), flnb.asarray(X))


def test_the_stated_jvp_is_differentiated_again_by_the_rules():
    op = swish()

    @op.def_jvp
    def push(tangents, y, x, w):
        s = flnb.sigmoid(x * w)
        curve = x * s * (1.0 - s)
        return tangents[0] * (s + w * curve) + tangents[1] * x * curve

    plain = lambda x, w: x * flnb.sigmoid(x * w)  # noqa: E731
    x, w = flnb.asarray(X), flnb.asarray(W)
    for transform in (
        lambda f: flnb.jvp(f, (x, w), (x, w))[1],
        lambda f: flnb.grad(lambda w: flnb.jvp(f, (x, w), (x, w))[1].sum())(w),
        lambda f: flnb.hvp(lambda x, w: f(x, w).sum(), (x, w), (x, w))[1],
        lambda f: flnb.grad(lambda w: flnb.hvp(lambda x, w: f(x, w).sum(), (x, w), (x, w))[0].sum())(w),
    ):
        np.testing.assert_allclose(transform(op).numpy(), transform(plain).numpy(), rtol=1e-9, atol=1e-12)


def test_an_op_on_any_number_of_tensors():
    @flnb.custom_op
    def total(*tensors):
        return sum(t.numpy() for t in tensors)

    total.def_vjp(lambda g, y, *tensors: tuple(g * 1.0 for _ in tensors))
    assert verify_grad(total, [X, X, X], order=1) == 3
    total.def_vjp(lambda g, y, *tensors: (g, g[0], g))
    with pytest.raises(GradientRuleError, match=r"float64\[4\] as the gradient of argument 1 \(1\)"):
        total(*[flnb.Variable(X)] * 3).sum().backward()


def test_its_name_is_in_the_record_and_on_the_tape():
    with flnb.record() as run:
        y = by_numpy()(flnb.Variable(X))
        z = swish()(flnb.Variable(X), W)
    assert run.ops["squash"].count == 1
    assert ("swish",) in {row.key for row in run.ops.by("scope")}
    assert "from squash" in repr(y)
    assert "from swish" in repr(z)


def test_a_cell_that_defines_an_op_can_run_again():
    for _ in range(2):
        assert by_numpy()(flnb.asarray(X)).shape == (3, 4)


def wrong(rule):
    @flnb.custom_op
    def twice(x, w):
        return x * 2.0 * w

    twice.def_vjp(rule)
    return twice


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda g, y, x, w: g * 2.0 * w, r"returned 1 gradients, expected 2, one for each of x, w"),
        (lambda g, y, x, w: (g * 2.0 * w, g), r"returned float64\[3,4\] .* argument 1 \(w\), expected float64\[4\]"),
        (lambda g, y, x, w: ((g * 2.0 * w).astype("float32"), None), r"returned float32\[3,4\] .* argument 0 \(x\)"),
    ],
    ids=["count", "shape", "dtype"],
)  # fmt: skip
def test_a_wrong_rule_is_an_error_with_its_line(rule, text):
    with pytest.raises(GradientRuleError, match=text) as caught:
        wrong(rule)(flnb.Variable(X), flnb.Variable(W)).sum().backward()
    assert f"test_custom.py:{rule.__code__.co_firstlineno}" in str(caught.value)


def test_a_wrong_value_is_found_by_verify_grad():
    with pytest.raises(GradientError, match=r"argument 0.*first order"):
        verify_grad(wrong(lambda g, y, x, w: (g * w, (g * 2.0 * x).sum(axis=0))), [X, W])


def test_an_error_inside_a_rule_names_the_op_and_both_lines():
    def rule(g, y, x, w):
        return g @ x, None

    op = wrong(rule)
    y = op(flnb.Variable(X), W)
    with pytest.raises(ValueError, match="matmul: ") as caught:
        y.sum().backward()
    notes = "\n".join(caught.value.__notes__)
    assert "in the vjp of custom op 'twice'" in notes
    assert f"test_custom.py:{rule.__code__.co_firstlineno}" in notes


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: flnb.custom_op(3), TypeError, "expected a Python function, got int"),
        (lambda: by_numpy()(X, X), TypeError, r"squash: takes 1 tensors \(x\), got 2; give attributes by keyword"),
        (lambda: by_numpy()(X, size=1), TypeError, r"no attribute named 'size'; it has \['scale'\]"),
        (lambda: flnb.custom_op(lambda x: None)(X), TypeError, "returns one tensor, this returned NoneType"),
        (lambda: flnb.custom_op(lambda x, *, k: x)(X), TypeError, "give the attribute 'k' as a keyword"),
    ],
)
def test_what_is_wrong_in_a_call_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_without_a_rule_backward_says_how_to_give_one():
    @flnb.custom_op
    def opaque(x):
        return np.sort(x.numpy())

    y = opaque(flnb.Variable(X))
    with pytest.raises(GradientRuleError, match=r"'opaque' has no gradient: define it with @opaque\.def_vjp"):
        y.sum().backward()


def test_a_jvp_of_another_shape_is_an_error():
    op = by_numpy()
    op.def_jvp(lambda tangents, y, x, *, scale: tangents[0].sum())
    with pytest.raises(
        GradientRuleError, match=r"jvp of custom op 'squash' returned float64\[\], expected float64\[3,4\]"
    ):
        flnb.jvp(op, flnb.asarray(X), flnb.asarray(X))


def test_an_attribute_that_can_change_is_refused_by_name():
    @flnb.custom_op
    def scaled(x, *, by=(1.0,)):
        return x * by[0]

    assert scaled(flnb.ones((2,)), by=(2.0,)).tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match=r"scaled: the attribute by is a list, which is not hashable; .* a tuple"):
        scaled(flnb.ones((2,)), by=[2.0])


def test_rules_for_complex_numbers_are_taken_as_they_are():
    @flnb.custom_op
    def squared(z):
        return z * z

    squared.def_vjp(lambda g, y, z: g * flnb.conj(z) * 2.0)
    x, v = np.array([1 + 2j, 0.5 - 1j]), np.array([1j, 2 + 1j])
    for _ in range(2):  # derived from the vjp, then by a rule of its own
        _, pull = flnb.vjp(squared, x)
        np.testing.assert_allclose(pull(v)[0].numpy(), 2 * x.conj() * v)
        np.testing.assert_allclose(flnb.jvp(squared, x, v)[1].numpy(), 2 * x * v)
        squared.def_jvp(lambda tangents, y, z: tangents[0] * z * 2.0)
