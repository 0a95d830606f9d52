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


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, float("inf")])
def test_the_gradient_of_a_norm_is_finite_at_zero(p):
    x = flnb.asarray([[0.0, 0.0], [0.0, 3.0]], dtype=flnb.float64)
    gradient = flnb.grad(lambda x: flnb.norm(x, p, axis=1).sum())(x)
    np.testing.assert_allclose(gradient[1], [0.0, 1.0])
    assert gradient[0].tolist() == ([0.0, 0.0])


@pytest.mark.parametrize("p", [-1.0, -0.5])
def test_a_norm_of_negative_order_with_a_zero_is_zero(p):
    value, gradient = flnb.value_and_grad(lambda x: flnb.norm(x, p))(flnb.asarray([0.0, 3.0]))
    assert (value.item(), gradient.tolist()) == (0.0, [0.0, 0.0])


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


@pytest.mark.parametrize("given", [np.asarray, np.ndarray.tolist], ids=["arrays", "lists"])
def test_parameters_may_be_arrays_and_lists(given):
    x, w, b = np.ones((2, 3, 4, 4), np.float32), np.arange(3.0, dtype=np.float32), np.ones(3, np.float32)
    kernel, rows = np.ones((3, 3, 1, 1), np.float32), np.ones((4, 3), np.float32)
    calls = {
        "layer_norm": lambda to: flnb.layer_norm(to(x[:, :, 0, 0]), 3, to(w), to(b)),
        "group_norm": lambda to: flnb.group_norm(to(x), 3, to(w), to(b)),
        "batch_norm": lambda to: flnb.batch_norm(to(x), to(w), to(b)),
        "conv2d": lambda to: flnb.conv2d(to(x), to(kernel), to(b)),
        "embedding": lambda to: flnb.embedding(to(np.asarray([3, 0])), to(rows)),
    }
    for name, call in calls.items():
        np.testing.assert_array_equal(call(given).numpy(), call(flnb.asarray).numpy(), err_msg=name)


@pytest.mark.parametrize(
    ("training", "eps", "message"),
    [
        (True, 0.0, r"training needs eps > 0, got 0\.0"),
        (True, -1.0, "eps > 0, got"),
        (False, -1e-5, r"eps >= 0, got -1e-05"),
    ],
)
def test_batch_norm_refuses_an_eps_with_which_it_would_divide_by_zero(training, eps, message):
    with pytest.raises(ValueError, match=rf"batch_norm: .*{message}"):
        flnb.batch_norm(flnb.ones((2, 3)), flnb.ones(3), flnb.ones(3), flnb.zeros(3), flnb.ones(3), training, eps=eps)


def test_batch_norm_of_given_statistics_takes_no_eps():
    x, variance = flnb.asarray([[2.0], [4.0]]), flnb.asarray([4.0])
    y = flnb.batch_norm(x, flnb.ones(1), flnb.zeros(1), flnb.zeros(1), variance, training=False, eps=0.0)
    assert y.tolist() == [[1.0], [2.0]]


def test_numbers_of_windows_may_be_numpys():
    x, kernel = flnb.ones((1, 1, 5, 5)), flnb.ones((1, 1, 2, 2))
    assert flnb.conv2d(x, kernel, stride=np.int64(2), padding=np.array([0, 1])).shape == (1, 1, 2, 3)
    assert flnb.max_pool2d(x, np.int32(2)).shape == (1, 1, 2, 2)
    with pytest.raises(ValueError, match=r"conv2d: stride must be one or two ints >= 1, got 1\.5"):
        flnb.conv2d(x, kernel, stride=1.5)
