"""Normalisations beside each other and in mixed precision. By hand: tests/nn; gradients: tests/ops/test_table.py."""

import numpy as np
import pytest

import flnb

X = np.random.default_rng(8).normal(size=(3, 4, 5)).astype(np.float32)


def close(a, b):
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


def test_one_group_is_layer_norm_and_a_group_for_each_channel_is_over_its_extents():
    x = flnb.asarray(X)
    close(flnb.group_norm(x, 1), flnb.layer_norm(x, (4, 5)))
    close(flnb.group_norm(x, 4), flnb.layer_norm(x, 5))
    close(flnb.layer_norm(x, 5, eps=1e-12), flnb.normalize(x - flnb.mean(x, axis=-1, keepdims=True)) * 5.0**0.5)


def test_normalize_leaves_zero_where_it_is():
    x = flnb.Variable(flnb.zeros((2, 3)))
    y = flnb.normalize(x)
    y.sum().backward()
    assert y.detach().tolist() == [[0.0] * 3] * 2
    assert bool(flnb.all(flnb.isfinite(x.grad)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["layer_norm", "batch_norm", "group_norm"])
def test_the_gradient_of_each_argument_has_its_dtype(name, dtype):
    x = flnb.Variable(flnb.asarray(X[:, :, 0].astype(dtype)))
    weight, bias = flnb.Variable(flnb.ones(4)), flnb.Variable(flnb.zeros(4))
    call = {
        "layer_norm": lambda: flnb.layer_norm(x, 4, weight, bias),
        "batch_norm": lambda: flnb.batch_norm(x, weight, bias),
        "group_norm": lambda: flnb.group_norm(x, 2, weight, bias),
    }[name]
    y = call()
    (y * y * y).sum().backward()
    assert y.dtype == (dtype if name == "batch_norm" else np.result_type(dtype, np.float32))
    assert [v.grad.dtype.name for v in (x, weight, bias)] == [dtype, "float32", "float32"]
    assert float(flnb.sum(flnb.abs(weight.grad))) > 0
