"""Recurrent layers step by step by hand, and beside torch's. Gradients: tests/ops/test_table.py."""

import numpy as np
import pytest

import flnb
from flnb.testing import verify_grad

RNG = np.random.default_rng(17)
T, N, FEATURES, H = 4, 2, 3, 5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def parameters(gates):
    shapes = (T, N, FEATURES), (N, H), (gates * H, FEATURES), (gates * H, H), (gates * H,)
    return [RNG.normal(size=shape) for shape in shapes]


def test_rnn():
    x, h, w, u, b = parameters(1)
    outputs, last = flnb.rnn(*map(flnb.asarray, (x, h, w, u, b)))
    for t in range(T):
        h = np.tanh(x[t] @ w.T + h @ u.T + b)
        np.testing.assert_allclose(outputs[t].numpy(), h, rtol=1e-10)
    np.testing.assert_array_equal(last.numpy(), outputs[-1].numpy())


def test_lstm():
    x, h, w, u, b = parameters(4)
    c = RNG.normal(size=h.shape)
    outputs, (last, memory) = flnb.lstm(
        flnb.asarray(x), (flnb.asarray(h), flnb.asarray(c)), *map(flnb.asarray, (w, u, b))
    )
    for t in range(T):
        i, f, g, o = np.split(x[t] @ w.T + h @ u.T + b, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(outputs[t].numpy(), h, rtol=1e-10)
    np.testing.assert_allclose(memory.numpy(), c, rtol=1e-10)
    np.testing.assert_array_equal(last.numpy(), outputs[-1].numpy())


def test_gru():
    x, h, w, u, b = parameters(3)
    b_hidden = RNG.normal(size=b.shape)
    outputs, _ = flnb.gru(*map(flnb.asarray, (x, h, w, u, b, b_hidden)))
    for t in range(T):
        xr, xz, xn = np.split(x[t] @ w.T + b, 3, axis=-1)
        hr, hz, hn = np.split(h @ u.T + b_hidden, 3, axis=-1)
        z = sigmoid(xz + hz)
        h = (1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h
        np.testing.assert_allclose(outputs[t].numpy(), h, rtol=1e-10)


@pytest.mark.parametrize(("name", "gates"), [("RNN", 1), ("LSTM", 4), ("GRU", 3)])
def test_values_and_gradients_against_torch(name, gates):
    torch = pytest.importorskip("torch", reason="torch is not installed: the comparison by hand runs above")
    x, h, w, u, b = parameters(gates)
    layer = getattr(torch.nn, name)(FEATURES, H, dtype=torch.float64)
    zero = np.zeros_like(b)
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), (w, u, b, zero), strict=True):
            parameter.copy_(torch.tensor(value))
    start = torch.tensor(h)[None]
    expected, _ = layer(torch.tensor(x), (start, start) if name == "LSTM" else start)
    weights = RNG.normal(size=expected.shape)
    (expected * torch.tensor(weights)).sum().backward()
    variables = [flnb.Variable(a) for a in (w, u, b)]
    state = flnb.asarray(h)
    outputs, _ = getattr(flnb, name.lower())(flnb.asarray(x), (state, state) if name == "LSTM" else state, *variables)
    np.testing.assert_allclose(outputs.data.numpy(), expected.detach().numpy(), rtol=1e-11, atol=1e-13)
    (outputs * flnb.asarray(weights)).sum().backward()
    for v, p in zip(variables, layer.parameters(), strict=False):
        np.testing.assert_allclose(v.grad.numpy(), p.grad.numpy(), rtol=1e-9, atol=1e-11)


ZEROS = {"x": (T, N, FEATURES), "w_input": (3 * H, FEATURES), "w_hidden": (3 * H, H), "bias": (3 * H,), "state": (N, H)}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x": (2, 3)}, r"gru: expected x \(T, N, features\) with T > 0, got \(2, 3\)"),
        ({"x": (0, N, FEATURES)}, r"with T > 0, got \(0, 2, 3\)"),
        ({"w_hidden": ()}, r"gru: expected w_hidden \(3 H, H\), got \(\)"),
        ({"w_hidden": (5, 5)}, r"gru: expected w_hidden \(3 H, H\), got \(5, 5\)"),
        ({"state": (N, 4)}, r"gru: expected the state h \(N, H\) = \(2, 5\), got \(2, 4\); x .* is \(4, 2, 3\)"),
        ({"w_input": (3 * H, 9)}, r"gru: expected w_input \(3 H, features\) = \(15, 3\), got \(15, 9\)"),
        ({"w_input": ()}, r"gru: expected w_input \(3 H, features\) = \(15, 3\), got \(\)"),
        ({"bias": (1,)}, r"gru: expected bias \(3 H,\) = \(15,\), got \(1,\)"),
        ({"bias_hidden": (1,)}, r"gru: expected bias_hidden \(3 H,\) = \(15,\), got \(1,\); .* is \(15, 5\)"),
        ({"bias_hidden": (N, 3 * H)}, r"gru: expected bias_hidden \(3 H,\) = \(15,\), got \(2, 15\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(given, text):
    with pytest.raises(ValueError, match=text):
        flnb.gru(**{name: flnb.zeros(shape) for name, shape in (ZEROS | given).items()})


def test_errors():
    x, h, w, u, b = map(flnb.asarray, parameters(1))
    with pytest.raises(ValueError, match=r"rnn: expected bias \(1 H,\) = \(5,\), got \(1,\)"):
        flnb.rnn(x, h, w, u, b[:1])
    x, h, w, u, b = map(flnb.asarray, parameters(4))
    with pytest.raises(ValueError, match=r"lstm: expected the state c \(N, H\) = \(2, 5\), got \(1, 5\)"):
        flnb.lstm(x, (h, h[:1]), w, u)
    with pytest.raises(ValueError, match="nonlinearity must be 'tanh' or 'relu', got 'sine'"):
        flnb.rnn(x, h, w, u, nonlinearity="sine")


RUN = {
    "rnn": (1, lambda x, h, w, u, b: flnb.rnn(x, h, w, u, b)[0]),
    "rnn relu": (1, lambda x, h, w, u, b: flnb.rnn(x, h, w, u, b, "relu")[0]),
    "lstm": (4, lambda x, h, w, u, b: flnb.lstm(x, (h, h * 0.5), w, u, b)[0]),
    "gru": (3, lambda x, h, w, u, b: flnb.gru(x, h, w, u, b, b * 2.0)[0]),
}


@pytest.mark.parametrize("name", RUN)
@pytest.mark.parametrize("of", range(5))
def test_higher_derivatives_by_one_argument_alone(name, of):
    """What a composite does not save is made again from what it kept: no gradient may flow through that."""
    gates, run = RUN[name]
    arrays = parameters(gates)

    def slope(given):
        return flnb.grad(lambda v: (run(*arrays[:of], v, *arrays[of + 1 :]) ** 2).sum())(given)

    arrays = [flnb.asarray(a * 0.5) for a in arrays]
    assert verify_grad(slope, [arrays[of].numpy()], order=2) == 1


@pytest.mark.parametrize("name", RUN)
def test_saturated_gates_are_differentiated_twice(name):
    gates, run = RUN[name]
    x, h, w, u, b = map(flnb.asarray, parameters(gates))
    slope = flnb.grad(lambda x: (run(x, h, w, u, b) ** 2).sum())
    bend = flnb.grad(lambda x: (slope(x) ** 2).sum())(x * 1000.0)
    assert flnb.isfinite(bend).all()


@pytest.mark.parametrize("name", RUN)
def test_backward_computes_as_much_for_each_step(name):
    """The gradient of a slice is as large as what it was cut from: twice the steps would cost four times as much."""
    gates, run = RUN[name]
    _, *arrays = map(flnb.asarray, parameters(gates))
    moved = []
    for steps in (10, 20):
        with flnb.record() as record:
            x = flnb.Variable(flnb.ones((steps, N, FEATURES), dtype=flnb.float64))
            run(x, *arrays).sum().backward()
        moved.append(sum(row.bytes for row in record.ops))
    assert moved[1] < 2.2 * moved[0]
