"""Recurrent layers over time: simple, LSTM and GRU, in torch's layout of gates.

Sequences are (T, N, features). All inputs are multiplied by their weights at once, before the steps. The steps are one
composite, whose gradient goes backwards through time once: that of every step's slice would be as large as them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.brief import brief
from flnb.ops import elementwise as e
from flnb.ops.composite import Body, Composite, in_one_dtype, relu, sigmoid
from flnb.ops.creation import asarray
from flnb.ops.dtypes import finfo
from flnb.ops.elementwise import clip
from flnb.ops.linalg import linear, matmul
from flnb.ops.movement import concat, reshape, stack
from flnb.ops.reduction import sum

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, Tensor

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
NONLINEARITIES: dict[str, Callable[[Any], Any]] = {"tanh": e.tanh, "relu": relu}


def _rnn(inputs: Any, h: Any, w_hidden: Any, nonlinearity: str) -> Body:
    activate, weight, outputs = NONLINEARITIES[nonlinearity], w_hidden.mT, []
    for t in range(inputs.shape[0]):
        h = activate(e.add(inputs[t], matmul(h, weight)))
        outputs.append(h)
    return stack(outputs), ()


def _pull_rnn(g: Any, plan: Any, inputs: Any, h: Any, w_hidden: Any, y: Any) -> tuple[Any, ...]:
    relus = plan.attributes[0] == "relu"
    slopes = e.astype(e.greater(y, 0.0), y.dtype) if relus else e.subtract(1.0, e.square(y))
    g_h, g_gates = None, []
    for t in reversed(range(y.shape[0])):
        g_h = g[t] if g_h is None else e.add(g[t], g_h)
        g_gates.append(e.multiply(g_h, slopes[t]))
        g_h = matmul(g_gates[-1], w_hidden)
    g_inputs = stack(g_gates[::-1])
    return g_inputs, g_h, _of_weight(g_inputs, _before(h, y))


def _remake_rnn(plan: Any, inputs: Any, h: Any, w_hidden: Any, y: Any) -> Any:
    given = y if plan.attributes[0] == "relu" else _unsquashed(y)
    return e.subtract(given, linear(_before(h, y), w_hidden))


_rnn_op = Composite("rnn", "matmul", _rnn, _pull_rnn, {1, 2, "y"}, _remake_rnn)


def rnn(
    x: ArrayLike,
    state: ArrayLike,
    w_input: ArrayLike,
    w_hidden: ArrayLike,
    bias: ArrayLike | None = None,
    nonlinearity: str = "tanh",
) -> tuple[Tensor, Tensor]:
    """Recurrent layer over time, ``h = tanh(x W_input^T + h W_hidden^T + bias)`` for each of T steps (Elman 1990).

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
        raise ValueError(f"rnn: nonlinearity must be 'tanh' or 'relu', got {brief(nonlinearity)}")
    outputs = _run(_rnn_op, x, (state,), w_input, bias, (w_hidden,), (nonlinearity,))
    return outputs, outputs[-1]


def _halves(h: Any) -> tuple[Any, Any]:
    """Factor and offset by which one tanh serves all four gates: sigmoid(x) is tanh(x / 2) / 2 + 1 / 2."""
    half = asarray(np.repeat((0.5, 0.5, 1.0, 0.5), h.shape[-1]), dtype=h.dtype)
    return half, e.subtract(1.0, half)


def _lstm(inputs: Any, h: Any, c: Any, w_hidden: Any) -> Body:
    """All h followed by the last c, (T + 1, N, H); kept: the gates, c before each step, and tanh(c) after it."""
    (half, rest), weight = _halves(h), w_hidden.mT
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
    """Backpropagation through time; products that need no other step are computed for all steps at once."""
    i, f, new, o = _parts(gates, 4)
    slopes = [e.multiply(by, e.multiply(x, e.subtract(1.0, x))) for by, x in ((new, i), (before, f), (squashed, o))]
    slopes.insert(2, e.multiply(i, e.subtract(1.0, e.square(new))))
    of_gates, of_c = concat(slopes, axis=-1), e.multiply(o, e.subtract(1.0, e.square(squashed)))
    steps = gates.shape[0]
    g_h, g_c, g_gates = None, g[steps], []
    for t in reversed(range(steps)):
        g_h = g[t] if g_h is None else e.add(g[t], g_h)
        g_c = e.add(g_c, e.multiply(g_h, of_c[t]))
        g_gates.append(e.multiply(concat([g_c, g_c, g_c, g_h], axis=-1), of_gates[t]))
        g_h, g_c = matmul(g_gates[-1], w_hidden), e.multiply(g_c, f[t])
    g_inputs = stack(g_gates[::-1])
    return g_inputs, g_h, g_c, _of_weight(g_inputs, _before(h, y[:steps]))


def _remake_lstm(plan: Any, inputs: Any, h: Any, c: Any, w_hidden: Any, gates: Any, *more: Any) -> Any:
    half, rest = _halves(h)
    given = e.divide(_unsquashed(e.divide(e.subtract(gates, rest), half)), half)
    return e.subtract(given, linear(_before(h, more[-1][: gates.shape[0]]), w_hidden))


_lstm_op = Composite("lstm", "matmul", _lstm, _pull_lstm, {1, 2, 3, "y"}, _remake_lstm)


def lstm(
    x: ArrayLike,
    state: tuple[ArrayLike, ArrayLike],
    w_input: ArrayLike,
    w_hidden: ArrayLike,
    bias: ArrayLike | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    ``c = f c + i g`` and ``h = o tanh(c)``, with the gates stored in the order i, f, g, o.

    Args:
        x: (T, N, features).
        state: (h, c) before the first step, both (N, H).
        w_input: (4H, features).
        w_hidden: (4H, H).
        bias: (4H,).

    Returns:
        h after every step, (T, N, H), and (h, c) after the last.

    >>> import flnb
    >>> h = c = flnb.zeros((1, 2))
    >>> outputs, (h, c) = flnb.lstm(flnb.ones((3, 1, 5)), (h, c), flnb.ones((8, 5)), flnb.ones((8, 2)))
    >>> outputs.shape, h.shape
    ((3, 1, 2), (1, 2))
    """
    made = _run(_lstm_op, x, state, w_input, bias, (w_hidden,))
    return made[:-1], (made[-2], made[-1])


def _gru(inputs: Any, h: Any, w_hidden: Any, *bias: Any) -> Body:
    """All h; kept: the gates r, z, n, and the summand of n that r multiplies."""
    cut, outputs, gates, given = 2 * h.shape[-1], [], [], []
    for t in range(inputs.shape[0]):
        ours, theirs = inputs[t], linear(h, w_hidden, *bias)
        opened = sigmoid(e.add(ours[..., :cut], theirs[..., :cut]))
        r, z = _parts(opened, 2)
        given.append(theirs[..., cut:])
        n = e.tanh(e.add(ours[..., cut:], e.multiply(r, given[t])))
        gates.append(concat([opened, n], axis=-1))
        h = e.add(n, e.multiply(z, e.subtract(h, n)))
        outputs.append(h)
    return stack(outputs), (stack(gates), stack(given))


def _pull_gru(g: Any, plan: Any, inputs: Any, h: Any, w_hidden: Any, *more: Any) -> tuple[Any, ...]:
    """Backpropagation through time; r, z and n have equal slopes for both their summands, but r scales one of n's."""
    *bias, gates, given, y = more
    (r, z, n), before = _parts(gates, 3), _before(h, y)
    of_n = e.multiply(e.subtract(1.0, z), e.subtract(1.0, e.square(n)))
    of_r = e.multiply(e.multiply(of_n, given), e.multiply(r, e.subtract(1.0, r)))
    of_z = e.multiply(e.subtract(before, n), e.multiply(z, e.subtract(1.0, z)))
    ours, theirs = concat([of_r, of_z, of_n], axis=-1), concat([of_r, of_z, e.multiply(of_n, r)], axis=-1)
    g_h, arrived = None, []
    for t in reversed(range(y.shape[0])):
        g_h = g[t] if g_h is None else e.add(g[t], g_h)
        arrived.append(concat([g_h, g_h, g_h], axis=-1))
        g_h = e.add(e.multiply(g_h, z[t]), matmul(e.multiply(arrived[-1], theirs[t]), w_hidden))
    everywhere = stack(arrived[::-1])
    g_hidden = e.multiply(everywhere, theirs)
    g_bias = [sum(g_hidden, axis=(0, 1)) for _ in bias]
    return e.multiply(everywhere, ours), g_h, _of_weight(g_hidden, before), *g_bias


def _remake_gru(plan: Any, inputs: Any, h: Any, w_hidden: Any, *more: Any) -> Any:
    *bias, gates, given, y = more
    cut = 2 * h.shape[-1]
    opened, n = gates[..., :cut], gates[..., cut:]
    theirs = linear(_before(h, y), w_hidden, *bias)[..., :cut]
    ours = e.subtract(e.multiply(_unsquashed(e.subtract(e.multiply(opened, 2.0), 1.0)), 2.0), theirs)
    return concat([ours, e.subtract(_unsquashed(n), e.multiply(_parts(opened, 2)[0], given))], axis=-1)


_gru_op = Composite("gru", "matmul", _gru, _pull_gru, {1, 2, 3, "y"}, _remake_gru)


def gru(
    x: ArrayLike,
    state: ArrayLike,
    w_input: ArrayLike,
    w_hidden: ArrayLike,
    bias: ArrayLike | None = None,
    bias_hidden: ArrayLike | None = None,
) -> tuple[Tensor, Tensor]:
    """Gated recurrent units (Cho et al. 2014), with the reset gate after the product, as in cuDNN and torch.

    ``n = tanh(x W_n^T + b_n + r (h U_n^T + c_n))`` and ``h = (1 - z) n + z h``. The gates are stored in the order
    r, z, n.

    Args:
        x: (T, N, features).
        state: h before the first step, (N, H).
        w_input: (3H, features).
        w_hidden: (3H, H).
        bias: (3H,).
        bias_hidden: (3H,), added to h's product.

    Returns:
        h after every step, (T, N, H), and after the last, (N, H).

    >>> import flnb
    >>> outputs, h = flnb.gru(flnb.ones((3, 1, 5)), flnb.zeros((1, 2)), flnb.ones((6, 5)), flnb.ones((6, 2)))
    >>> outputs.shape, h.shape
    ((3, 1, 2), (1, 2))
    """
    hidden = (w_hidden,) if bias_hidden is None else (w_hidden, bias_hidden)
    outputs = _run(_gru_op, x, (state,), w_input, bias, hidden)
    return outputs, outputs[-1]


def _parts(gates: Any, count: int) -> list[Any]:
    """The gates stored side by side in the last axis."""
    n = gates.shape[-1] // count
    return [gates[..., i * n : (i + 1) * n] for i in range(count)]


def _before(h: Any, outputs: Any) -> Any:
    """h before every step."""
    return concat([reshape(h, (1, *h.shape)), outputs[:-1]])


def _of_weight(g: Any, before: Any) -> Any:
    """The gradient of w_hidden, from the cotangents of all products (T, N, gates H) and h before each (T, N, H)."""
    rows = g.shape[0] * g.shape[1]
    return matmul(reshape(g, (rows, g.shape[-1])), reshape(before, (rows, before.shape[-1])), transpose_a=True)


def _unsquashed(y: Any) -> Any:
    """The inverse of tanh; where y is 1 to all digits, a number that is large enough."""
    most = 1.0 - finfo(y.dtype).eps
    return e.atanh(clip(y, -most, most))


def _run(
    op: Composite, x: Any, state: tuple[Any, ...], w_input: Any, bias: Any, hidden: tuple[Any, ...],
    attributes: tuple[Any, ...] = (),
) -> Any:  # fmt: skip
    """Multiply the inputs of all steps by their weights in one product, then run the steps."""
    x, w_input, state, hidden = asarray(x), asarray(w_input), tuple(map(asarray, state)), tuple(map(asarray, hidden))
    _check(op.name, x, state, w_input, bias if bias is None else asarray(bias), *hidden)
    return op(*in_one_dtype(linear(x, w_input, bias), *state, *hidden), attributes=attributes)[0]


def _check(
    op: str, x: Any, state: tuple[Any, ...], w_input: Any, bias: Any, w_hidden: Any, bias_hidden: Any = None
) -> None:
    """Raise a ValueError that names the first shape that does not fit."""
    gates = GATES[op]
    if x.ndim != 3 or not x.shape[0]:
        raise ValueError(f"{op}: expected x (T, N, features) with T > 0, got {x.shape}")
    if w_hidden.ndim != 2 or w_hidden.shape[0] != gates * w_hidden.shape[1]:
        raise ValueError(f"{op}: expected w_hidden ({gates} H, H), got {w_hidden.shape}")
    (_, batch, features), (rows, hidden) = x.shape, w_hidden.shape
    for name, given, symbols, shape in (
        *((name, h, "N, H", (batch, hidden)) for name, h in zip(("the state h", "the state c"), state, strict=False)),
        ("w_input", w_input, f"{gates} H, features", (rows, features)),
        ("bias", bias, f"{gates} H,", (rows,)),
        ("bias_hidden", bias_hidden, f"{gates} H,", (rows,)),
    ):
        if given is not None and given.shape != shape:
            raise ValueError(
                f"{op}: expected {name} ({symbols}) = {shape}, got {given.shape}; x (T, N, features) is {x.shape}, "
                f"w_hidden ({gates} H, H) is {w_hidden.shape}"
            )
