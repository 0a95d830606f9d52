"""Recurrent layers step by step by hand, and beside torch's. Gradients: tests/ops/test_table.py."""

import numpy as np
import pytest

import flnb

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


def test_errors():
    x, h, w, u, _ = map(flnb.asarray, parameters(1))
    with pytest.raises(ValueError, match=r"rnn: expected x \(T, N, features\).* got x \(2, 3\), states \(2, 5\)"):
        flnb.rnn(x[0], h, w, u)
    with pytest.raises(ValueError, match=r"gru: expected .* w_input \(3 H, features\)"):
        flnb.gru(x, h, w, u)
    with pytest.raises(ValueError, match="nonlinearity must be 'tanh' or 'relu', got 'sine'"):
        flnb.rnn(x, h, w, u, nonlinearity="sine")
