"""Module hooks: inputs, outputs and gradients seen and replaced, in one call and under transforms."""

import gc
from copy import deepcopy

import numpy as np
import pytest

import flnb
from flnb import nn

X = np.array([[1.0, 2.0, 3.0]], np.float32)


class Scale(nn.Module):
    def __init__(self, by):
        self.by = nn.Parameter(np.float32(by))

    def forward(self, x, *more, shift=0.0):
        return x * self.by + shift if not more else [x * self.by, {"second": more[0] * x}]


def test_forward_hooks_see_and_replace_in_order():
    m, seen = Scale(2.0), []
    m.register_forward_pre_hook(lambda module, inputs: seen.append((module, inputs[0].shape)))
    m.register_forward_pre_hook(lambda module, inputs: inputs[0] + 1.0)
    m.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].tolist()))
    m.register_forward_hook(lambda module, inputs, output: output * 10.0)
    y = m(flnb.asarray(X), shift=0.5)
    assert y.tolist() == [[45.0, 65.0, 85.0]]
    assert seen == [(m, (1, 3)), [[2.0, 3.0, 4.0]]]


def test_hooks_can_be_removed():
    m, calls = Scale(2.0), []
    handles = [
        m.register_forward_pre_hook(lambda *_: calls.append("before")),
        m.register_forward_hook(lambda *_: calls.append("after")),
        m.register_full_backward_hook(lambda *_: calls.append("back")),
    ]
    m(flnb.Variable(X)).sum().backward()
    assert calls == ["before", "after", "back"]
    for handle in handles:
        handle.remove()
    m(flnb.Variable(X)).sum().backward()
    assert len(calls) == 3


def test_a_backward_hook_sees_both_gradients_and_may_replace_the_inputs():
    m, x = Scale(2.0), flnb.Variable(X)
    seen = []
    m.register_full_backward_hook(
        lambda module, gi, go: seen.append((gi[0].tolist(), go[0].tolist())) or (gi[0] * 5.0,)
    )
    (m(x) * 3.0).sum().backward()
    assert seen == [([[6.0] * 3], [[3.0] * 3])]
    assert x.grad.tolist() == [[30.0] * 3]
    assert m.by.grad.item() == 18.0


def test_only_the_gradient_of_this_call_is_seen():
    m, x = Scale(2.0), flnb.Variable(X)
    seen = []
    m.register_full_backward_hook(lambda module, gi, go: seen.append(gi[0].tolist()))
    (m(x) + x * 100.0).sum().backward()
    assert seen == [[[2.0] * 3]]
    assert x.grad.tolist() == [[102.0] * 3]


def test_several_inputs_and_outputs_in_containers():
    m, x, z = Scale(2.0), flnb.Variable(X), flnb.Variable(X.astype(np.float64) * 2.0)
    seen = []

    def tell(module, grad_input, grad_output):
        seen.append((grad_input, grad_output))
        return grad_input[0] * 10.0, grad_input[1] * 0.0, None

    m.register_full_backward_hook(tell)
    first, second = m(x, z, flnb.asarray(X))
    (first.sum() + 3.0 * second["second"].sum()).backward()
    ((grad_input, grad_output),) = seen
    assert [g.tolist() for g in grad_output] == [[[1.0] * 3], [[3.0] * 3]]
    np.testing.assert_allclose(grad_input[0].numpy(), 2.0 + 3.0 * z.detach().numpy())
    np.testing.assert_allclose(grad_input[1].numpy(), 3.0 * X)
    assert grad_input[2] is None
    assert {type(g) for g in grad_output} == {flnb.Tensor}
    np.testing.assert_allclose(x.grad.numpy(), 10.0 * grad_input[0].numpy())
    assert not z.grad.numpy().any()


def test_what_replaces_gradients_must_be_like_them():
    m = Scale(2.0)
    m.register_full_backward_hook(lambda module, gi, go: gi[0][:, :2])
    with pytest.raises(ValueError, match=r"hook of Scale .* \[\(\(1, 3\), 'float32'\)\]; it returned \[\(\(1, 2\)"):
        m(flnb.Variable(X)).sum().backward()


def test_no_input_that_needs_a_gradient():
    m, seen = Scale(2.0), []
    m.register_full_backward_hook(lambda module, gi, go: seen.append((gi, go[0].tolist())))
    m(flnb.asarray(X)).sum().backward()
    assert seen == [((None,), [[1.0] * 3])]
    assert m.by.grad.item() == 6.0


def test_hooks_under_transforms():
    m, shapes = Scale(2.0), []
    m.register_full_backward_hook(lambda module, gi, go: shapes.append(gi[0].shape) or (gi[0] * 2.0,))
    g = flnb.vmap(flnb.grad(lambda x: m(x).sum()))(np.ones((4, 3), np.float32))
    assert g.tolist() == [[4.0] * 3] * 4
    assert shapes == [(3,)]
    h = flnb.hvp(lambda x: (m(x) ** 2).sum(), flnb.asarray(X), flnb.ones((1, 3)))
    assert h.tolist() == [[32.0] * 3]  # both derivatives pass the hook: 8 without it


def test_a_call_that_is_never_walked_back_leaves_nothing():
    m = Scale(2.0)
    m.register_full_backward_hook(lambda *_: None)
    gc.collect()
    gc.disable()
    try:
        m(flnb.Variable(X), flnb.Variable(X))
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_without_gradients_nobody_is_told():
    m = Scale(2.0)
    m.register_full_backward_hook(lambda *_: pytest.fail("told"))
    with flnb.no_grad():
        m(flnb.Variable(X))
    assert deepcopy(m)(flnb.asarray(X)).shape == (1, 3)
