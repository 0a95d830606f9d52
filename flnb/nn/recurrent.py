"""Recurrent networks over (T, N, features), stacked, in one or both directions; parameters are named as in torch."""

from __future__ import annotations

from typing import Any, ClassVar

from flnb import ops
from flnb.nn import init
from flnb.nn.module import Module, Parameter

__all__ = ["GRU", "LSTM", "RNN"]


class _Recurrent(Module):
    """Base of the recurrent modules: calls `_run`, which a subclass defines, for each layer and direction.

    Class attributes of the subclass are the number of gates, whose weights are stacked in one matrix, and the number of
    states (1 for h, 2 for h and c).
    """

    gates: ClassVar[int]
    states: ClassVar[int] = 1

    def __init__(
        self, in_features: int, hidden: int, layers: int = 1, bias: bool = True, bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        self.in_features, self.hidden, self.layers = in_features, hidden, layers
        self.bidirectional, self.dropout = bidirectional, dropout
        directions = 2 if bidirectional else 1
        for suffix in self._suffixes():
            inputs = in_features if suffix.startswith("l0") else hidden * directions
            wide = self.gates * hidden
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (wide, inputs), "weight_hh": (wide, hidden)}
            shapes |= {"bias_ih": (wide,), "bias_hh": (wide,)} if bias else {}
            for name, shape in shapes.items():
                setattr(self, f"{name}_{suffix}", Parameter(init.by_inputs(shape, hidden)))

    def _suffixes(self) -> list[str]:
        """Return the suffixes of the parameters' names: "l0" or "l0_reverse", one for every layer and direction."""
        ends = ("", "_reverse") if self.bidirectional else ("",)
        return [f"l{layer}{end}" for layer in range(self.layers) for end in ends]

    def _run(self, x: Any, state: tuple[Any, ...], *parameters: Any) -> tuple[Any, tuple[Any, ...]]:
        """Run one layer in one direction: x (T, N, features), each state (N, hidden).

        Args:
            x, state: the inputs, and a tuple of the initial states.
            parameters: the weight of the input, the weight of the state, the bias of the input, the bias of the state.
                The biases are None if the module has none.

        Returns:
            The outputs (T, N, hidden) and the last states.
        """
        raise NotImplementedError

    def forward(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        if x.ndim != 3 or x.shape[0] == 0 or x.shape[2] != self.in_features:
            raise ValueError(f"{type(self).__name__}: expected x (T, N, {self.in_features}) with T > 0, got {x.shape}")
        suffixes = self._suffixes()
        first = self._first(x, state, len(suffixes))
        lasts, outputs = [], []
        for index, suffix in enumerate(suffixes):
            parameters = [vars(self).get(f"{n}_{suffix}") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            back = suffix.endswith("_reverse")
            y, last = self._run(ops.flip(x, axis=0) if back else x, tuple(s[index] for s in first), *parameters)
            outputs.append(ops.flip(y, axis=0) if back else y)
            lasts.append(last)
            if back or not self.bidirectional:
                x, outputs = ops.concat(outputs, axis=-1) if back else outputs[0], []
                if self.dropout and self.training and index + 1 < len(suffixes):
                    x = ops.dropout(x, self.dropout)
        last_states = tuple(ops.stack(list(each)) for each in zip(*lasts, strict=True))
        return x, last_states if self.states > 1 else last_states[0]

    def _first(self, x: Any, state: Any, count: int) -> tuple[Any, ...]:
        """Return a tuple of the initial states, (``count``, N, hidden) each: those passed as ``state``, or zeros.

        ``count`` is the number of layers times the number of directions.
        """
        shape = (count, x.shape[1], self.hidden)
        if state is None:
            return (ops.zeros(shape, dtype=x.dtype),) * self.states
        states = tuple(state) if self.states > 1 else (state,)
        if len(states) != self.states or any(s.shape != shape for s in states):
            got = ", ".join(str(s.shape) for s in states)
            raise ValueError(f"{type(self).__name__}: expected {self.states} state(s) of shape {shape}, got {got}")
        return states


class RNN(_Recurrent):
    """Elman's recurrent network: h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or ReLU with ``nonlinearity="relu"``.

    Called as ``rnn(x, state)``: x (T, N, in_features); the state (layers * directions, N, hidden) is zero by default.
    Returns the last layer's outputs (T, N, hidden * directions) and the last state. Dropout is applied between layers.

    >>> import flnb, flnb.nn as nn
    >>> outputs, last = nn.RNN(3, 4, layers=2)(flnb.ones((7, 5, 3)))
    >>> outputs.shape, last.shape
    ((7, 5, 4), (2, 5, 4))
    """

    gates = 1

    def __init__(
        self, in_features: int, hidden: int, layers: int = 1, bias: bool = True, bidirectional: bool = False,
        dropout: float = 0.0, nonlinearity: str = "tanh",
    ) -> None:  # fmt: skip
        super().__init__(in_features, hidden, layers, bias, bidirectional, dropout)
        self.nonlinearity = nonlinearity

    def _run(self, x: Any, state: tuple[Any, ...], *parameters: Any) -> tuple[Any, tuple[Any, ...]]:
        w_input, w_hidden, b_input, b_hidden = parameters
        y, last = ops.rnn(x, state[0], w_input, w_hidden, _sum(b_input, b_hidden), self.nonlinearity)
        return y, (last,)


class LSTM(_Recurrent):
    """Long short-term memory (`flnb.lstm` has the formulas); called like `RNN`, but its state is a pair (h, c).

    x (T, N, in_features) -> outputs (T, N, hidden * directions), (h, c), each (layers * directions, N, hidden).

    >>> import flnb, flnb.nn as nn
    >>> outputs, (h, c) = nn.LSTM(3, 4, bidirectional=True)(flnb.ones((7, 5, 3)))
    >>> outputs.shape, h.shape, c.shape
    ((7, 5, 8), (2, 5, 4), (2, 5, 4))
    """

    gates = 4
    states = 2

    def _run(self, x: Any, state: tuple[Any, ...], *parameters: Any) -> tuple[Any, tuple[Any, ...]]:
        w_input, w_hidden, b_input, b_hidden = parameters
        y, last = ops.lstm(x, (state[0], state[1]), w_input, w_hidden, _sum(b_input, b_hidden))
        return y, last


class GRU(_Recurrent):
    """Gated recurrent units (`flnb.gru` has the formulas); called like `RNN`, with a state of the same shape.

    >>> import flnb, flnb.nn as nn
    >>> outputs, h = nn.GRU(5, 4)(flnb.ones((3, 2, 5)))
    >>> outputs.shape, h.shape
    ((3, 2, 4), (1, 2, 4))
    """

    gates = 3

    def _run(self, x: Any, state: tuple[Any, ...], *parameters: Any) -> tuple[Any, tuple[Any, ...]]:
        y, last = ops.gru(x, state[0], *parameters)
        return y, (last,)


def _sum(b_input: Any, b_hidden: Any) -> Any:
    """Return the sum of the input's and the state's bias, which are two parameters as in torch; None without biases."""
    return None if b_input is None else b_input + b_hidden
