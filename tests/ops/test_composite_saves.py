"""Composites keep for backward what their pull reads and no more, and can be differentiated again all the same."""

import numpy as np
import pytest

import flnb
from flnb.memory import Native
from flnb.testing import verify_grad
from tests.backends.test_meta import EveryTensor

N, C = 6, 5
WEIGHT, BIAS = np.linspace(0.5, 2.0, C), np.linspace(-1.0, 1.0, C)
CASES = {
    "relu": (flnb.relu, 1),  # its result
    "sigmoid": (flnb.sigmoid, 1),
    "softmax": (flnb.softmax, 1),
    "log_softmax": (flnb.log_softmax, 1),
    "hardtanh": (flnb.hardtanh, 1),
    "leaky_relu": (flnb.leaky_relu, 1),  # its input
    "gelu": (flnb.gelu, 2),  # its input, and the distribution function of it
    "gelu, tanh": (lambda x: flnb.gelu(x, "tanh"), 2),  # likewise
    "cross_entropy": (lambda x: flnb.cross_entropy(x, flnb.asarray([0, 4, 2, 2, 1, 0])), 1),  # log-probabilities
    "layer_norm": (lambda x: flnb.layer_norm(x, C, flnb.asarray(WEIGHT), flnb.asarray(BIAS)), 1),  # normalised values
    "layer_norm, plain": (lambda x: flnb.layer_norm(x, C), 1),
    "batch_norm": (lambda x: flnb.batch_norm(x, flnb.asarray(WEIGHT), flnb.asarray(BIAS)), 1),
}
RECURRENT = {  # of the steps' inputs, which are as large as the gates, none is kept: only gates and numbers of size H
    "rnn": (1, flnb.rnn, 0),
    "lstm": (4, lambda x, h, *w: flnb.lstm(x, (h, h), *w)[0], 1),
    "gru": (3, flnb.gru, 1),
}


def values(seed=0):
    return np.random.default_rng(seed).normal(size=(N, C))


@pytest.mark.parametrize(("function", "expected"), CASES.values(), ids=CASES)
def test_what_the_pull_does_not_read_is_freed(function, expected):
    with flnb.use_memory_manager(Native(EveryTensor())) as manager:
        x = flnb.Variable(values())
        loss = function(x * 1.5).sum()
        live = [block for segment in manager.snapshot() for block in segment.blocks if block.id]
        assert sum(block.requested == x.nbytes for block in live) - 1 == expected
        loss.backward()
        assert x.grad.shape == (N, C)


@pytest.mark.parametrize(("gates", "function", "expected"), RECURRENT.values(), ids=RECURRENT)
def test_recurrences_keep_no_inputs_of_their_steps(gates, function, expected):
    steps, n, hidden = 7, 3, 5
    x, h, w_input, w_hidden = (
        flnb.ones(shape) for shape in ((steps, n, 2), (n, hidden), (gates * hidden, 2), (gates * hidden, hidden))
    )
    with flnb.use_memory_manager(Native(EveryTensor())) as manager:
        result = function(flnb.Variable(x), h, w_input, w_hidden)
        outputs = result[0] if isinstance(result, tuple) else result
        live = [block.requested for segment in manager.snapshot() for block in segment.blocks if block.id]
    wide = steps * n * gates * hidden * 4
    of_outputs = outputs.nbytes == wide  # of one gate, h after every step is as large
    assert live.count(wide) - of_outputs == expected


@pytest.mark.parametrize(("function", "_"), CASES.values(), ids=CASES)
def test_second_and_third_derivatives_are_those_of_differences(function, _):
    def slope(x):
        return flnb.grad(lambda x: (function(x * 1.5) ** 3).sum())(x)

    assert verify_grad(slope, [values(1)], order=2) == 1


@pytest.mark.parametrize(("function", "_"), CASES.values(), ids=CASES)
def test_gradients_under_vmap_are_those_of_each_example(function, _):
    batch = flnb.asarray(np.stack([values(seed) for seed in range(3)]))
    slope = flnb.grad(lambda x: (function(x) ** 2).sum())
    each = np.stack([slope(x).numpy() for x in batch])
    np.testing.assert_allclose(flnb.vmap(slope)(batch).numpy(), each, rtol=1e-12, atol=1e-14)
    twice = flnb.grad(lambda x: (slope(x) ** 2).sum())
    each = np.stack([twice(x).numpy() for x in batch])
    np.testing.assert_allclose(flnb.vmap(twice)(batch).numpy(), each, rtol=1e-9, atol=1e-12)


def test_an_input_may_be_written_once_nothing_needs_it():
    x = flnb.Variable([-1.0, 2.0])
    h = x * 3.0
    y = flnb.relu(h)
    with flnb.no_grad():
        flnb.assign(h.data, 0.0)
    y.sum().backward()
    assert x.grad.tolist() == [0.0, 3.0]
    y = flnb.relu(x * 3.0)
    loss = y.sum()
    with flnb.no_grad():
        flnb.assign(y.data, 0.0)
    with pytest.raises(RuntimeError, match="relu"):
        loss.backward()
