"""Recurrent layers over time: simple, LSTM and GRU, in torch's layout of gates.

Sequences are (T, N, features). All inputs are multiplied by their weights at once, before the steps; the gradient is
that of the steps, backwards through time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.ops import elementwise as e
from flnb.ops.composite import Composite, in_one_dtype, relu, sigmoid
from flnb.ops.creation import asarray
from flnb.ops.linalg import linear, matmul
from flnb.ops.movement import concat, reshape, stack

if TYPE_CHECKING:
    from collections.abc import Callable

NONLINEARITIES: dict[str, Callable[[Any], Any]] = {"tanh": e.tanh, "relu": relu}


def rnn(
    x: Any, state: Any, w_input: Any, w_hidden: Any, bias: Any = None, nonlinearity: str = "tanh"
) -> tuple[Any, Any]:
    """``h = tanh(x W_input^T + h W_hidden^T + bias)`` (Elman 1990) for each of T steps.

    Args:
        x: (T, N, features).
        state: h before the first step, (N, H).
        w_input: (H, features).
        w_hidden: (H, H).
        bias: (H,).
        nonlinearity: "tanh" or "relu".

    Returns:
        h after every step, (T, N, H), and after the last, (N, H).

    >>> import flnb
    >>> one = flnb.ones((1, 1))
    >>> outputs, last = flnb.rnn(flnb.ones((3, 1, 1)), flnb.zeros((1, 1)), one, one, nonlinearity="relu")
    >>> outputs.flatten().tolist(), last.item()
    ([1.0, 2.0, 3.0], 3.0)
    """
    if nonlinearity not in NONLINEARITIES:
        raise ValueError(f"rnn: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
    activate = NONLINEARITIES[nonlinearity]

    def step(gates: Any, h: Any) -> tuple[Any, ...]:
        return (activate(e.add(gates, linear(h, w_hidden))),)

    outputs, (h,) = _over_time("rnn", step, x, (state,), w_input, w_hidden, bias, 1)
    return outputs, h


def _lstm(inputs: Any, h: Any, c: Any, w_hidden: Any) -> tuple[Any, tuple[Any, ...]]:
    """All h, and behind them the last c, (T + 1, N, H); kept: the gates, c before each step, and tanh(c) after it.

    A sigmoid is a tanh of half as much, so that one tanh serves all four gates.
    """
    half = asarray(np.repeat((0.5, 0.5, 1.0, 0.5), h.shape[-1]), dtype=h.dtype)
    rest, weight = e.subtract(1.0, half), w_hidden.mT
    outputs, gates, before, squashed = [], [], [], []
    for t in range(inputs.shape[0]):
        given = e.multiply(e.add(inputs[t], matmul(h, weight)), half)
        gates.append(e.add(e.multiply(e.tanh(given), half), rest))
        before.append(c)
        i, f, g, o = _parts(gates[t], 4)
        c = e.add(e.multiply(f, c), e.multiply(i, g))
        squashed.append(e.tanh(c))
        h = e.multiply(o, squashed[t])
        outputs.append(h)
    return stack([*outputs, c]), (stack(gates), stack(before), stack(squashed))


def _pull_lstm(
    g: Any, plan: Any, inputs: Any, h: Any, c: Any, w_hidden: Any, gates: Any, before: Any, squashed: Any, y: Any
) -> tuple[Any, ...]:
    """Backwards through time; what no step needs of another is computed for all at once."""
    i, f, new, o = _parts(gates, 4)
    slopes = [e.multiply(by, e.multiply(x, e.subtract(1.0, x))) for by, x in ((new, i), (before, f), (squashed, o))]
    slopes.insert(2, e.multiply(i, e.subtract(1.0, e.square(new))))
    of_gates, of_c = concat(slopes, axis=-1), e.multiply(o, e.subtract(1.0, e.square(squashed)))
    steps = inputs.shape[0]
    g_h, g_c, g_gates = None, g[steps], []
    for t in reversed(range(steps)):
        g_h = g[t] if g_h is None else e.add(g[t], g_h)
        g_c = e.add(g_c, e.multiply(g_h, of_c[t]))
        g_gates.append(e.multiply(concat([g_c, g_c, g_c, g_h], axis=-1), of_gates[t]))
        g_h, g_c = matmul(g_gates[-1], w_hidden), e.multiply(g_c, f[t])
    g_inputs = stack(g_gates[::-1])
    outputs = concat([reshape(h, (1, *h.shape)), y[: steps - 1]])
    rows = steps * h.shape[0]
    g_weight = matmul(reshape(g_inputs, (rows, gates.shape[-1])).mT, reshape(outputs, (rows, h.shape[1])))
    return g_inputs, g_h, g_c, g_weight


_lstm_op = Composite("lstm", "matmul", _lstm, _pull_lstm)


def lstm(x: Any, state: tuple[Any, Any], w_input: Any, w_hidden: Any, bias: Any = None) -> tuple[Any, tuple[Any, Any]]:
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    ``c = f c + i g``, ``h = o tanh(c)``; the gates i, f, g, o lie in this order in w_input (4H, features), w_hidden
    (4H, H) and bias (4H,). ``state`` is (h, c), both (N, H).

    Returns:
        h after every step, (T, N, H), and (h, c) after the last.
    """
    x = asarray(x)
    _check("lstm", x, state, w_input, w_hidden, 4)
    made = _lstm_op(*in_one_dtype(linear(x, w_input, bias), *map(asarray, state), w_hidden))[0]
    steps = x.shape[0]
    return made[:steps], (made[steps - 1], made[steps])


def gru(x: Any, state: Any, w_input: Any, w_hidden: Any, bias: Any = None, bias_hidden: Any = None) -> tuple[Any, Any]:
    """Gated recurrent units (Cho et al. 2014), the reset gate after the product, as in cuDNN and torch.

    ``n = tanh(x W_n^T + b_n + r (h U_n^T + c_n))``, ``h = (1 - z) n + z h``; the gates r, z, n lie in this order in
    w_input (3H, features), w_hidden (3H, H), bias and bias_hidden (3H,).

    Returns:
        h after every step, (T, N, H), and after the last, (N, H).
    """

    def step(gates: Any, h: Any) -> tuple[Any, ...]:
        ours, theirs = _parts(gates, 3), _parts(linear(h, w_hidden, bias_hidden), 3)
        r, z = (sigmoid(e.add(a, b)) for a, b in zip(ours[:2], theirs[:2], strict=True))
        n = e.tanh(e.add(ours[2], e.multiply(r, theirs[2])))
        return (e.add(n, e.multiply(z, e.subtract(h, n))),)

    outputs, (h,) = _over_time("gru", step, x, (state,), w_input, w_hidden, bias, 3)
    return outputs, h


def _parts(gates: Any, count: int) -> list[Any]:
    """Gates that lie side by side in the last axis."""
    n = gates.shape[-1] // count
    return [gates[..., i * n : (i + 1) * n] for i in range(count)]


def _over_time(
    op: str, step: Callable[..., tuple[Any, ...]], x: Any, state: tuple[Any, ...], w_input: Any, w_hidden: Any,
    bias: Any, gates: int,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    """Run ``step(input gates, *state) -> state`` over the first axis; its first part after every step, and the last."""
    x = asarray(x)
    _check(op, x, state, w_input, w_hidden, gates)
    inputs = linear(x, w_input, bias)
    outputs = []
    for t in range(x.shape[0]):
        state = step(inputs[t], *state)
        outputs.append(state[0])
    return stack(outputs), state


def _check(op: str, x: Any, state: tuple[Any, ...], w_input: Any, w_hidden: Any, gates: int) -> None:
    """Refuse shapes that do not fit, naming all."""
    hidden = w_hidden.shape[-1]
    fits = x.ndim == 3 and x.shape[0] > 0 and w_input.shape == (gates * hidden, x.shape[-1])
    if not fits or w_hidden.shape != (gates * hidden, hidden) or any(s.shape != (x.shape[1], hidden) for s in state):
        raise ValueError(
            f"{op}: expected x (T, N, features) with T > 0, states (N, H), w_input ({gates} H, features) and w_hidden "
            f"({gates} H, H); got x {x.shape}, states {', '.join(str(s.shape) for s in state)}, w_input "
            f"{w_input.shape} and w_hidden {w_hidden.shape}"
        )
