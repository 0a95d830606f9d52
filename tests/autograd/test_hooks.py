"""Hooks on gradients of Variables, retained gradients, and what ops save passed through functions."""

import gc
import weakref

import numpy as np
import pytest

import flnb

X = np.array([1.0, 2.0, 3.0])


def test_a_hook_sees_the_whole_gradient_once_and_may_replace_it():
    x = flnb.Variable(X)
    y = x * 2.0
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.register_hook(lambda g: g * 10.0)
    (y + y * y).sum().backward()  # two paths meet in y
    assert seen == [(1 + 4 * X).tolist()]
    assert x.grad.tolist() == (20.0 * (1 + 4 * X)).tolist()


@pytest.mark.parametrize("leaf", [True, False])
def test_a_hook_can_be_removed(leaf):
    x = flnb.Variable(X)
    v = x if leaf else x * 1.0
    calls = []
    handle = v.register_hook(lambda g: calls.append(1))
    with v.register_hook(lambda g: g * 2.0):
        v.sum().backward(retain_graph=True)
    handle.remove()
    later = v.register_hook(lambda g: g * 3.0)
    handle.remove()  # takes nobody else's hook away
    v.sum().backward()
    later.remove()
    assert calls == [1]
    assert x.grad.tolist() == [5.0] * 3


def test_hooks_of_leaves_run_on_what_this_backward_adds():
    x = flnb.Variable(X)
    x.register_hook(lambda g: g + 1.0)
    for _ in range(2):
        (x * 2.0 + x).sum().backward()
    assert x.grad.tolist() == [8.0] * 3


def test_hooks_run_in_gradients_of_transforms_and_of_higher_order():
    def function(x):
        y = x * x
        y.register_hook(lambda g: g * 3.0)
        return (y * x).sum()

    x = flnb.asarray(X)
    np.testing.assert_allclose(flnb.grad(function)(x).numpy(), 7.0 * X**2)  # x * 2x * 3 + x^2
    np.testing.assert_allclose(flnb.vmap(flnb.grad(function))(x).numpy(), 7.0 * X**2)
    v = flnb.Variable(X)
    y = v * v
    y.register_hook(lambda g: g * g)
    y.sum().backward(create_graph=True)
    assert v.grad.requires_grad


def test_a_hook_in_vmap_sees_one_example():
    shapes = []

    def function(x):
        y = x * 2.0
        y.register_hook(lambda g: shapes.append(g.shape) or g * 5.0)
        return y.sum()

    g = flnb.vmap(flnb.grad(function))(np.ones((4, 3)))
    assert shapes == [(3,)]
    assert g.tolist() == [[10.0] * 3] * 4


def test_a_hook_at_the_place_a_gradient_is_asked_for():
    def function(x):
        x.register_hook(lambda g: g * 2.0)
        return (x * x).sum()

    assert flnb.grad(function)(flnb.asarray(X)).tolist() == (4.0 * X).tolist()


def test_what_a_hook_gives_must_be_like_the_gradient():
    x = flnb.Variable(X)

    def halve(g):
        return g[:2]

    (x * 2.0).register_hook(halve)
    y = x * 2.0
    y.register_hook(halve)
    expected = r"same shape and dtype, float64\[3\]; 'halve' returned float64\[2\] \(defined at .*test_hooks"
    with pytest.raises(ValueError, match=expected):
        y.sum().backward()


def test_where_no_gradient_arrives_no_hook_can_be():
    with pytest.raises(RuntimeError, match="register_hook: this Variable does not require grad"):
        flnb.Variable(X, requires_grad=False).register_hook(print)
    with pytest.raises(TypeError, match="expected a function of the gradient, got int"):
        flnb.Variable(X).register_hook(3)


def test_a_leaf_that_is_frozen_for_a_while_has_its_hooks_and_name_again_but_no_old_gradient():
    x = flnb.Variable([1.0, 2.0])
    x.name = "weight"
    x.register_hook(lambda g: g * 3.0)
    (x * 2.0).sum().backward()
    x.requires_grad = False
    assert x.grad is None
    assert x.name == ""
    x.requires_grad = True
    (x * 2.0).sum().backward()
    assert (x.grad.tolist(), x.name) == ([6.0, 6.0], "weight")


def test_retain_grad_keeps_what_hooks_made_and_once_however_often_it_is_called():
    x = flnb.Variable([1.0, 2.0])
    y = x * 2.0
    y.retain_grad()
    handle = y.register_hook(lambda g: g * 10.0)
    y.retain_grad()
    (y * y).sum().backward(retain_graph=True)
    assert (y.grad.tolist(), x.grad.tolist()) == ([40.0, 80.0], [80.0, 160.0])
    handle.remove()
    (y * y).sum().backward()
    assert y.grad.tolist() == [44.0, 88.0], "both backward passes are added, the second without the hook"


def test_retain_grad_keeps_and_adds_up():
    x = flnb.Variable(X)
    y = x * 2.0
    y.retain_grad()
    x.retain_grad()  # a leaf does anyway
    for _ in range(2):
        (y * y).sum().backward(retain_graph=True)
    assert y.grad.tolist() == (8.0 * X).tolist()
    assert x.grad.tolist() == (16.0 * X).tolist()
    assert (x * 3.0).grad is None


def test_hooks_keep_nothing_alive():
    gc.disable()
    try:
        x = flnb.Variable(X)
        y = x * 2.0
        y.retain_grad()
        y.register_hook(lambda g: None)
        gone = weakref.ref(y)
        del y
        assert gone() is None
    finally:
        gc.enable()


# Saved tensors --------------------------------------------------------------------------------------------------------


def tower(x, w):
    h = flnb.tanh(x @ w)
    return (flnb.softmax(h) * flnb.exp(h).sum(axis=0)).sum()


A, B = np.random.default_rng(0).normal(size=(4, 3)), np.random.default_rng(1).normal(size=(3, 3))


def test_packed_and_unpacked_gradients_are_the_same():
    packed, unpacked = [], []
    a, b = flnb.Variable(A), flnb.Variable(B)
    pack, unpack = lambda t: packed.append(1) or t.numpy().copy(), lambda v: unpacked.append(1) or flnb.asarray(v)
    with flnb.saved_tensors_hooks(pack, unpack):
        y = tower(a, b)
    y.backward(retain_graph=True)
    once = len(unpacked)
    expected = flnb.grad(tower, (0, 1))(flnb.asarray(A), flnb.asarray(B))
    np.testing.assert_array_equal(a.grad.numpy(), expected[0].numpy())
    np.testing.assert_array_equal(b.grad.numpy(), expected[1].numpy())
    assert once == len(packed) > 4
    y.backward()
    assert len(unpacked) == 2 * once


@pytest.mark.parametrize("tape", ["linked", "arena", "pruning"])
def test_second_order_and_other_tapes_through_packed_tensors(tape):
    a, b = flnb.asarray(A), flnb.asarray(B)
    expected = flnb.hvp(tower, (a, b), (a, b))
    with flnb.use_tape(tape), flnb.saved_tensors_hooks(lambda t: t.numpy().copy(), flnb.asarray):
        got = flnb.hvp(tower, (a, b), (a, b))
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g.numpy(), e.numpy(), rtol=1e-12)


def test_inner_hooks_take_the_place_of_outer_ones():
    names = []
    x = flnb.Variable(X)
    with flnb.saved_tensors_hooks(lambda t: names.append("outer") or t, lambda t: t):
        y = flnb.exp(x)
        with flnb.saved_tensors_hooks(lambda t: names.append("inner") or t, lambda t: t):
            y = flnb.exp(y)
    y.sum().backward()
    assert names == ["outer", "inner"]


def test_nothing_is_packed_outside_or_without_gradients():
    def fail(_):
        raise AssertionError

    with flnb.saved_tensors_hooks(fail, fail):
        flnb.exp(flnb.asarray(X))
        with flnb.no_grad():
            flnb.exp(flnb.Variable(X))
    flnb.exp(flnb.Variable(X)).sum().backward()


def test_unpack_must_give_back_what_was_packed():
    with flnb.saved_tensors_hooks(lambda t: t, lambda t: t[:1]):
        y = flnb.exp(flnb.Variable(X)).sum()
    with pytest.raises(
        TypeError,
        match=r"unpack must return the tensor that was packed, float64\[3\] saved by 'exp'; it returned float64\[1\]",
    ):
        y.backward()  # fmt: skip
