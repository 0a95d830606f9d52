"""Recurrent layers over time: simple, LSTM and GRU, with the gates in torch's order.

Sequences are (T, N, features): T time steps of N examples. The inputs of all steps are multiplied by their weights in
one product. Then all steps are one composite op (`flnb.ops.composite`), whose backward function goes through time once.
If each step were recorded by itself, the gradient of each step's slice would be as large as the whole sequence.

In the backward functions, ``g`` is the gradient of all outputs (T, N, H), and ``y`` holds the outputs.
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
from flnb.ops.linalg import linear
from flnb.ops.movement import concat, reshape, stack
from flnb.ops.reduction import sum

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, Tensor

GATES = {"rnn": 1, "lstm": 4, "gru": 3}
NONLINEARITIES: dict[str, Callable[[Any], Any]] = {"tanh": e.tanh, "relu": relu}


def _rnn(inputs: Any, h: Any, w_hidden: Any, nonlinearity: str) -> Body:
    """Run all steps of a simple recurrent layer; ``inputs`` (T, N, H) are already multiplied by the weights."""
    activate, weight, outputs = NONLINEARITIES[nonlinearity], w_hidden.mT, []
    for t in range(inputs.shape[0]):
        h = activate(inputs[t] + h @ weight)
        outputs.append(h)
    return stack(outputs), ()


def _pull_rnn(g: Any, plan: Any, inputs: Any, h: Any, w_hidden: Any, y: Any) -> tuple[Any, ...]:
    """Backpropagation through time: gradients of inputs, h and w_hidden."""
    slopes = e.astype(y > 0.0, y.dtype) if plan.attributes[0] == "relu" else 1.0 - e.square(y)
    g_h, g_gates = None, []
    for t in reversed(range(y.shape[0])):
        g_h = g[t] if g_h is None else g[t] + g_h
        g_gates.append(g_h * slopes[t])
        g_h = g_gates[-1] @ w_hidden
    g_inputs = stack(g_gates[::-1])
    return g_inputs, g_h, _of_weight(g_inputs, _before(h, y))


def _remake_rnn(plan: Any, inputs: Any, h: Any, w_hidden: Any, y: Any) -> Any:
    """Recompute the argument ``inputs`` of `_rnn`, which was not saved, from the saved outputs y (T, N, H).

    The nonlinearity is inverted (a ReLU's input is taken to be y), and ``h @ w_hidden^T`` of each step is subtracted.
    """
    given = y if plan.attributes[0] == "relu" else _unsquashed(y)
    return given - linear(_before(h, y), w_hidden)


_rnn_op = Composite("rnn", "matmul", _rnn, _pull_rnn, {1, 2, "y"}, _remake_rnn)


def rnn(
    x: ArrayLike, state: ArrayLike, w_input: ArrayLike, w_hidden: ArrayLike, bias: ArrayLike | None = None,
    nonlinearity: str = "tanh",
) -> tuple[Tensor, Tensor]:  # fmt: skip
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

    Raises:
        ValueError: x, the weights or the state have other shapes than described.

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
    """Return a factor and an offset (4H,) by which one tanh computes all four gates of an LSTM.

    The gates i, f and o are sigmoids, and sigmoid(x) is tanh(x / 2) / 2 + 1 / 2.
    """
    half = asarray(np.repeat((0.5, 0.5, 1.0, 0.5), h.shape[-1]), dtype=h.dtype)
    return half, 1.0 - half


def _lstm(inputs: Any, h: Any, c: Any, w_hidden: Any) -> Body:
    """Run all steps of an LSTM; ``inputs`` (T, N, 4H) are already multiplied by the weights.

    The result (T + 1, N, H) holds h after each step, then the last c. Kept for the gradient are the gates of each step,
    c before each step, and tanh(c) after each step.
    """
    (half, rest), weight = _halves(h), w_hidden.mT
    outputs, gates, before, squashed = [], [], [], []
    for t in range(inputs.shape[0]):
        gates.append(e.tanh((inputs[t] + h @ weight) * half) * half + rest)
        before.append(c)
        i, f, g, o = _parts(gates[t], 4)
        c = f * c + i * g
        squashed.append(e.tanh(c))
        h = o * squashed[t]
        outputs.append(h)
    return stack([*outputs, c]), (stack(gates), stack(before), stack(squashed))


def _pull_lstm(
    g: Any, plan: Any, inputs: Any, h: Any, c: Any, w_hidden: Any, gates: Any, before: Any, squashed: Any, y: Any
) -> tuple[Any, ...]:
    """Backpropagation through time: gradients of inputs, h, c and w_hidden.

    Products that do not depend on another step's gradient are computed for all steps at once.
    """
    i, f, new, o = _parts(gates, 4)
    slopes = [by * (x * (1.0 - x)) for by, x in ((new, i), (before, f), (squashed, o))]
    slopes.insert(2, i * (1.0 - e.square(new)))
    of_gates, of_c = concat(slopes, axis=-1), o * (1.0 - e.square(squashed))
    steps = gates.shape[0]
    g_h, g_c, g_gates = None, g[steps], []
    for t in reversed(range(steps)):
        g_h = g[t] if g_h is None else g[t] + g_h
        g_c = g_c + g_h * of_c[t]
        g_gates.append(concat([g_c, g_c, g_c, g_h], axis=-1) * of_gates[t])
        g_h, g_c = g_gates[-1] @ w_hidden, g_c * f[t]
    g_inputs = stack(g_gates[::-1])
    return g_inputs, g_h, g_c, _of_weight(g_inputs, _before(h, y[:steps]))


def _remake_lstm(plan: Any, inputs: Any, h: Any, c: Any, w_hidden: Any, gates: Any, *more: Any) -> Any:
    """Recompute the argument ``inputs`` of `_lstm`, which was not saved, from the saved gates of each step."""
    half, rest = _halves(h)
    return _unsquashed((gates - rest) / half) / half - linear(_before(h, more[-1][: gates.shape[0]]), w_hidden)


_lstm_op = Composite("lstm", "matmul", _lstm, _pull_lstm, {1, 2, 3, "y"}, _remake_lstm)


def lstm(
    x: ArrayLike, state: tuple[ArrayLike, ArrayLike], w_input: ArrayLike, w_hidden: ArrayLike,
    bias: ArrayLike | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
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

    Raises:
        ValueError: x, the weights or the state have other shapes than described.

    >>> import flnb
    >>> h = c = flnb.zeros((1, 2))
    >>> outputs, (h, c) = flnb.lstm(flnb.ones((3, 1, 5)), (h, c), flnb.ones((8, 5)), flnb.ones((8, 2)))
    >>> outputs.shape, h.shape
    ((3, 1, 2), (1, 2))
    """
    made = _run(_lstm_op, x, state, w_input, bias, (w_hidden,))
    return made[:-1], (made[-2], made[-1])


def _gru(inputs: Any, h: Any, w_hidden: Any, *bias: Any) -> Body:
    """Run all steps of gated recurrent units; ``inputs`` (T, N, 3H) are already multiplied by the weights.

    The result holds h after each step. Two more tensors are returned for the gradient. The first has the gates r, z and
    n of each step, the second the term ``h U_n^T + c_n`` of each step, which r multiplies.
    """
    cut, outputs, gates, given = 2 * h.shape[-1], [], [], []
    for t in range(inputs.shape[0]):
        ours, theirs = inputs[t], linear(h, w_hidden, *bias)
        opened = sigmoid(ours[..., :cut] + theirs[..., :cut])
        r, z = _parts(opened, 2)
        given.append(theirs[..., cut:])
        n = e.tanh(ours[..., cut:] + r * given[t])
        gates.append(concat([opened, n], axis=-1))
        h = n + z * (h - n)
        outputs.append(h)
    return stack(outputs), (stack(gates), stack(given))


def _pull_gru(g: Any, plan: Any, inputs: Any, h: Any, w_hidden: Any, *more: Any) -> tuple[Any, ...]:
    """Backpropagation through time: gradients of inputs, h, w_hidden and, if there is one, the bias of w_hidden.

    The argument of each gate is a sum of a part from the inputs and a part from h. In the code, ``ours`` are
    the derivatives of the outputs with respect to the first parts, and ``theirs`` those with respect to the second
    parts. The two differ for n only, where the part from h is multiplied by r.
    """
    *bias, gates, given, y = more
    (r, z, n), before = _parts(gates, 3), _before(h, y)
    of_n = (1.0 - z) * (1.0 - e.square(n))
    of_r = of_n * given * (r * (1.0 - r))
    of_z = (before - n) * (z * (1.0 - z))
    ours, theirs = concat([of_r, of_z, of_n], axis=-1), concat([of_r, of_z, of_n * r], axis=-1)
    g_h, arrived = None, []
    for t in reversed(range(y.shape[0])):
        g_h = g[t] if g_h is None else g[t] + g_h
        arrived.append(concat([g_h, g_h, g_h], axis=-1))
        g_h = g_h * z[t] + (arrived[-1] * theirs[t]) @ w_hidden
    everywhere = stack(arrived[::-1])
    g_hidden = everywhere * theirs
    g_bias = [sum(g_hidden, axis=(0, 1)) for _ in bias]
    return everywhere * ours, g_h, _of_weight(g_hidden, before), *g_bias


def _remake_gru(plan: Any, inputs: Any, h: Any, w_hidden: Any, *more: Any) -> Any:
    """Recompute the argument ``inputs`` of `_gru`, which was not saved, from the saved gates of each step."""
    *bias, gates, given, y = more
    cut = 2 * h.shape[-1]
    opened, n = gates[..., :cut], gates[..., cut:]
    theirs = linear(_before(h, y), w_hidden, *bias)[..., :cut]
    ours = _unsquashed(opened * 2.0 - 1.0) * 2.0 - theirs
    return concat([ours, _unsquashed(n) - _parts(opened, 2)[0] * given], axis=-1)


_gru_op = Composite("gru", "matmul", _gru, _pull_gru, {1, 2, 3, "y"}, _remake_gru)


def gru(
    x: ArrayLike, state: ArrayLike, w_input: ArrayLike, w_hidden: ArrayLike, bias: ArrayLike | None = None,
    bias_hidden: ArrayLike | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gated recurrent units (Cho et al. 2014), with the reset gate after the product, as in cuDNN and torch.

    ``n = tanh(x W_n^T + b_n + r (h U_n^T + c_n))`` and ``h = (1 - z) n + z h``. The gates are stored in the order
    r, z, n.

    Args:
        x: (T, N, features).
        state: h before the first step, (N, H).
        w_input: (3H, features).
        w_hidden: (3H, H).
        bias: (3H,).
        bias_hidden: (3H,), the vectors c, which are added to the products of h.

    Returns:
        h after every step, (T, N, H), and after the last, (N, H).

    Raises:
        ValueError: x, the weights or the state have other shapes than described.

    >>> import flnb
    >>> outputs, h = flnb.gru(flnb.ones((3, 1, 5)), flnb.zeros((1, 2)), flnb.ones((6, 5)), flnb.ones((6, 2)))
    >>> outputs.shape, h.shape
    ((3, 1, 2), (1, 2))
    """
    hidden = (w_hidden,) if bias_hidden is None else (w_hidden, bias_hidden)
    outputs = _run(_gru_op, x, (state,), w_input, bias, hidden)
    return outputs, outputs[-1]


def _parts(gates: Any, count: int) -> list[Any]:
    """Split a tensor along its last axis into ``count`` gates of equal size."""
    n = gates.shape[-1] // count
    return [gates[..., i * n : (i + 1) * n] for i in range(count)]


def _before(h: Any, outputs: Any) -> Any:
    """Return h before every step, (T, N, H), from the initial h and the outputs of the steps."""
    return concat([reshape(h, (1, *h.shape)), outputs[:-1]])


def _of_weight(g: Any, before: Any) -> Any:
    """Return the gradient of w_hidden, given the gradient ``g`` of the products h w_hidden^T at all steps.

    ``before`` is h before each step, (T, N, H).
    """
    rows = g.shape[0] * g.shape[1]
    return reshape(g, (rows, g.shape[-1])).mT @ reshape(before, (rows, before.shape[-1]))


def _unsquashed(y: Any) -> Any:
    """Return the inverse of tanh at y; it is finite also where y was rounded to 1 or -1."""
    most = 1.0 - finfo(y.dtype).eps
    return e.atanh(e.clip(y, -most, most))


def _run(
    op: Composite, x: Any, state: tuple[Any, ...], w_input: Any, bias: Any, hidden: tuple[Any, ...],
    attributes: tuple[Any, ...] = (),
) -> Any:  # fmt: skip
    """Check the arguments, multiply the inputs of all steps by their weights in one product, and run the steps.

    ``hidden`` holds w_hidden and, if a GRU has one, ``bias_hidden``. Returns the result of the composite ``op``.
    """
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
    states = zip(("the state h", "the state c"), state, strict=False)
    checks: list[Any] = [(name, h, "N, H", (batch, hidden)) for name, h in states]
    checks += [("w_input", w_input, f"{gates} H, features", (rows, features))]
    checks += [(name, b, f"{gates} H,", (rows,)) for name, b in (("bias", bias), ("bias_hidden", bias_hidden))]
    for name, given, symbols, shape in checks:
        if given is not None and given.shape != shape:
            raise ValueError(
                f"{op}: expected {name} ({symbols}) = {shape}, got {given.shape}; x (T, N, features) is {x.shape}, "
                f"w_hidden ({gates} H, H) is {w_hidden.shape}"
            )
