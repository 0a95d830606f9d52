"""Gradient clipping against NumPy (and torch): in place, every norm, what is not finite."""

import numpy as np
import pytest

import flnb
import flnb.nn as nn
import flnb.optim as optim

SHAPES = [(4, 3), (3,), ()]


def parameters(scale=1.0, dtype=np.float32):
    rng = np.random.default_rng(0)
    found = [nn.Parameter(flnb.zeros(shape, dtype=dtype)) for shape in SHAPES]
    for item in found:
        item.grad = flnb.asarray(np.asarray(rng.normal(size=item.shape) * scale, dtype))
    return found


def values(found):
    return [item.grad.numpy().copy() for item in found]


@pytest.mark.parametrize("p", [1.0, 2.0, 3.5, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_the_common_norm_is_limited_in_place(p, max_norm):
    found = parameters()
    before, buffers = values(found), [item.grad.numpy().ctypes.data for item in found]
    flat = np.concatenate([g.ravel() for g in before]).astype(np.float64)
    norm = optim.clip_grad_norm(found, max_norm, p)
    assert norm == pytest.approx(np.linalg.norm(flat, p), rel=1e-6)
    factor = min(1.0, max_norm / (norm + 1e-6))
    for item, old in zip(found, before, strict=True):
        np.testing.assert_allclose(item.grad.numpy(), old * factor, rtol=1e-6)
    assert [item.grad.numpy().ctypes.data for item in found] == buffers


@pytest.mark.parametrize("p", [1.0, 2.0, float("inf")])
def test_clipping_follows_torch(p):
    torch = pytest.importorskip("torch", reason="torch is not installed: the comparison by hand runs above")
    found, theirs = parameters(), []
    for item in found:
        theirs.append(torch.nn.Parameter(torch.zeros(item.shape)))
        theirs[-1].grad = torch.from_numpy(item.grad.numpy().copy())
    ours = optim.clip_grad_norm(found, 0.5, p)
    assert ours == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs, 0.5, p)), rel=1e-6)
    optim.clip_grad_value(found, 0.05)
    torch.nn.utils.clip_grad_value_(theirs, 0.05)
    for item, other in zip(found, theirs, strict=True):
        np.testing.assert_allclose(item.grad.numpy(), other.grad.numpy(), rtol=1e-6)


def test_values_are_limited_in_place():
    found = parameters()
    before, buffers = values(found), [item.grad.numpy().ctypes.data for item in found]
    optim.clip_grad_value(found, 0.25)
    for item, old in zip(found, before, strict=True):
        np.testing.assert_array_equal(item.grad.numpy(), np.clip(old, -0.25, 0.25))
    assert [item.grad.numpy().ctypes.data for item in found] == buffers


def test_gradients_that_backward_made_are_clipped_once_each():
    a, b, unused = (flnb.Variable([1.0, 2.0]) for _ in range(3))
    flnb.sum(a + b).backward()  # the same cotangent for both
    assert optim.clip_grad_norm([a, b, unused], 1.0) == pytest.approx(2.0)
    assert a.grad.tolist() == pytest.approx([0.5, 0.5], rel=1e-5)
    assert b.grad.tolist() == pytest.approx([0.5, 0.5], rel=1e-5)
    assert unused.grad is None
    assert optim.clip_grad_norm([unused], 1.0) == 0.0


def test_a_norm_in_float16_does_not_overflow():
    found = parameters(1000.0, np.float16)
    exact = np.linalg.norm(np.concatenate([g.ravel() for g in values(found)]).astype(np.float64))
    assert optim.clip_grad_norm(found, 1.0) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_norm_that_is_not_finite(bad):
    found = parameters()
    found[1].grad = flnb.asarray(np.float32([1.0, bad, 2.0]))
    before = values(found)
    with pytest.raises(FloatingPointError, match=r"is (nan|inf), first that of gradient 1, of shape \(3,\); look for"):
        optim.clip_grad_norm(found, 1.0, error_if_nonfinite=True)
    for item, old in zip(found, before, strict=True):
        np.testing.assert_array_equal(item.grad.numpy(), old)
    assert not np.isfinite(optim.clip_grad_norm(found, 1.0))
    assert all(np.isnan(g).all() for g in values(found))


def test_errors_say_what_was_got():
    found = parameters()
    with pytest.raises(ValueError, match="clip_grad_norm: max_norm must be above 0, got 0"):
        optim.clip_grad_norm(found, 0.0)
    with pytest.raises(ValueError, match=r"clip_grad_norm: p must be at least 1, got 0\.5"):
        optim.clip_grad_norm(found, 1.0, p=0.5)
    with pytest.raises(ValueError, match="clip_grad_value: value must be above 0, got nan"):
        optim.clip_grad_value(found, float("nan"))
