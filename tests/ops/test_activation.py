"""Activations, attention and weighted losses by hand. Gradients: tests/ops/test_table.py."""

import math

import numpy as np
import pytest

import flnb

RNG = np.random.default_rng(13)


def close(got, expected):
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, atol=1e-14)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def test_activations():
    x = RNG.normal(size=(3, 4))
    t = flnb.asarray(x)
    close(flnb.gelu(t), x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2)
    close(flnb.gelu(t, approximate="tanh"), x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2)
    close(flnb.swish(t), x * sigmoid(x))
    close(flnb.swish(t, beta=2), x * sigmoid(2 * x))
    close(flnb.glu(t), x[:, :2] * sigmoid(x[:, 2:]))
    close(flnb.glu(t[:2], axis=0), x[:1] * sigmoid(x[1:2]))


def test_a_query_whose_added_mask_is_minus_infinity_everywhere_gets_zeros():
    rng = np.random.default_rng(3)
    x, hidden = flnb.asarray(rng.normal(size=(3, 4))), np.zeros((3, 3))
    hidden[1] = hidden[2, 0] = -np.inf
    attend = flnb.scaled_dot_product_attention
    y, pull = flnb.vjp(lambda x: attend(x, x, x, mask=hidden), x)
    wanted, pull_wanted = flnb.vjp(lambda x: attend(x, x, x, mask=np.isfinite(hidden)), x)
    assert y[1].tolist() == [0.0] * 4
    close(y, wanted)
    close(pull(flnb.ones_like(y))[0], pull_wanted(flnb.ones_like(y))[0])


def test_attention():
    q, k, v = (RNG.normal(size=(2, *shape)) for shape in ((3, 4), (5, 4), (5, 6)))
    tensors = [flnb.asarray(a) for a in (q, k, v)]
    scores = q @ k.swapaxes(-1, -2)
    close(flnb.scaled_dot_product_attention(*tensors), softmax(scores / 2) @ v)
    bias = RNG.normal(size=(3, 5))
    close(flnb.scaled_dot_product_attention(*tensors, mask=bias, scale=1.0), softmax(scores + bias) @ v)
    causal = np.where(np.tri(3, 5, dtype=bool), scores / 2, -np.inf)
    close(flnb.scaled_dot_product_attention(*tensors, is_causal=True), softmax(causal) @ v)
    both = flnb.scaled_dot_product_attention(*tensors, is_causal=True, bias=bias)
    close(both, softmax(causal + bias) @ v)
    bias[:, 0] = -np.inf  # the first query then has nothing left to attend to, and must not look ahead
    both = flnb.scaled_dot_product_attention(*tensors, is_causal=True, bias=bias)
    close(both[:, 0], np.zeros((2, 6)))
    close(both[:, 1:], softmax((causal + bias)[:, 1:]) @ v)
    nothing = np.zeros((3, 5), bool)
    close(flnb.scaled_dot_product_attention(*tensors, mask=nothing), np.zeros((2, 3, 6)))
    whole, ones = flnb.scaled_dot_product_attention, flnb.ones((1, 5, 1), dtype=flnb.float64)
    dropped = whole(tensors[0], tensors[1], ones, dropout_p=0.5, generator=flnb.random.Generator(0)).numpy()
    assert not np.allclose(dropped, 1.0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_no_score_is_so_large_that_a_later_position_is_seen(dtype):
    query = flnb.asarray([[-200.0], [-200.0]], dtype=dtype)
    key = flnb.asarray([[200.0], [-150.0]], dtype=dtype)  # scores of -40000, and 30000 for what comes later
    value = flnb.asarray([[1.0], [7.0]], dtype=dtype)
    seen = flnb.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert seen.dtype.name == dtype
    assert seen.tolist() == [[1.0], [7.0]]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weighted_losses(reduction):
    logits, targets, weight = RNG.normal(size=(5, 3)), np.array([0, 2, 1, 1, 0]), np.array([0.2, 1.0, 3.0])
    log_p = np.log(softmax(logits))
    losses = -log_p[np.arange(5), targets] * weight[targets]
    expected = {"mean": losses.sum() / weight[targets].sum(), "sum": losses.sum(), "none": losses}[reduction]
    close(flnb.cross_entropy(flnb.asarray(logits), targets, reduction, weight), expected)
    close(flnb.nll_loss(flnb.asarray(log_p), targets, reduction, weight), expected)


def test_gradient_of_more_classes_than_the_targets_dtype_counts():
    logits = flnb.Variable(RNG.normal(size=(2, 300)))
    flnb.cross_entropy(logits, flnb.asarray([3, 255], dtype="uint8"), "sum").backward()
    expected = np.exp(logits.detach().numpy())
    expected /= expected.sum(axis=1, keepdims=True)
    expected[[0, 1], [3, 255]] -= 1.0
    close(logits.grad, expected)


def test_gradient_of_no_example():
    logits = flnb.Variable(np.zeros((0, 3)))
    flnb.cross_entropy(logits, np.zeros(0, int)).backward(flnb.asarray(1.0))
    assert logits.grad.shape == (0, 3)


def test_scalars_keep_the_precision_of_the_tensor_beside_them():
    x = flnb.asarray(np.array([0.0]))
    assert flnb.where(x > 1.0, x, 0.1).tolist() == [0.1]
    assert flnb.where(True, 0.1, x).tolist() == [0.1]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: flnb.glu(x), r"glu: expected an even number of elements along axis -1, got float32\[2,3\]"),
        (lambda x: flnb.gelu(x, approximate="yes"), "gelu: approximate must be 'none' or 'tanh', got 'yes'"),
        (lambda x: flnb.scaled_dot_product_attention(x, x.T, x), r"query \(\.\.\., L, E\).*float32\[3,2\]"),
        (lambda x: flnb.scaled_dot_product_attention(x, x, x, mask=x, is_causal=True), "a mask or is_causal, not both"),
        (lambda x: flnb.cross_entropy(x, [0, 1], weight=x[0, :2]), r"for each of 3 classes, got float32\[2\]"),
        (lambda x: flnb.cross_entropy(x, [0, 1], "max"), "reduction must be 'mean', 'sum' or 'none', got 'max'"),
    ],
)  # fmt: skip
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call(flnb.ones((2, 3)))


def test_activations_with_a_corner():
    x = RNG.normal(size=(3, 4))
    t = flnb.asarray(x)
    close(flnb.elu(t, 0.4), np.where(x > 0, x, 0.4 * np.expm1(x)))
    close(flnb.leaky_relu(t, 0.1), np.where(x > 0, x, 0.1 * x))
    close(flnb.hardtanh(t, -0.2, 0.9), np.clip(x, -0.2, 0.9))
    close(flnb.relu6(10.0 * t), np.clip(10 * x, 0, 6))
    close(flnb.threshold(t, -0.3, 2.0), np.where(x > -0.3, x, 2.0))
    close(flnb.prelu(t, flnb.asarray(x[0])), np.where(x > 0, x, x * x[0]))


@pytest.mark.parametrize(
    ("function", "at", "slopes"),
    [
        (flnb.elu, [-1e4, 0.0, 1e4], [0.0, 1.0, 1.0]),
        (lambda x: flnb.leaky_relu(x, 0.25), [-1.0, 0.0, 1.0], [0.25, 0.25, 1.0]),
        (flnb.relu6, [-1.0, 0.0, 3.0, 6.0, 7.0], [0.0, 0.0, 1.0, 0.0, 0.0]),
        (lambda x: flnb.threshold(x, 2.0), [2.0, 2.5], [0.0, 1.0]),
    ],
)
def test_slopes_at_corners_and_far_out(function, at, slopes):
    x = flnb.Variable(flnb.asarray(at))
    function(x).sum().backward()
    assert x.grad.tolist() == slopes


@pytest.mark.parametrize("x", [-2.0, [-2.0], [[-2.0, 1.0]]], ids=str)
@pytest.mark.parametrize("weight", [0.25, [0.25]], ids=str)
def test_prelu_of_any_shape_with_one_slope(x, weight):
    values, slope = flnb.Variable(x), flnb.Variable(weight)
    y = flnb.prelu(values, slope)
    assert y.tolist() == np.where(np.asarray(x) > 0, x, 0.25 * np.asarray(x)).tolist()
    y.sum().backward()
    assert slope.grad.tolist() == (np.asarray(weight) * 0 - 2.0).tolist()
    assert values.grad.tolist() == np.where(np.asarray(x) > 0, 1.0, 0.25).tolist()
