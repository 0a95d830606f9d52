"""Layers on features: linear maps, lookups, positions, dropout."""

from __future__ import annotations

from typing import Any

from flnb import ops, random
from flnb.nn import init
from flnb.nn.module import Module, Parameter

__all__ = ["Dropout", "Embedding", "Linear", "PositionEmbedding", "SinusoidalPositionEmbedding"]


class Linear(Module):
    """Affine map of the last axis, (..., in_features) -> (..., out_features): x @ weight.T + bias.

    Its parameters are weight (out, in) and bias (out,).

    >>> import flnb, flnb.nn as nn
    >>> nn.Linear(3, 2)(flnb.ones((7, 3))).shape
    (7, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(init.by_inputs((out_features, in_features), in_features))
        self.bias = Parameter(init.by_inputs((out_features,), in_features)) if bias else None

    def forward(self, x: Any) -> Any:
        return ops.linear(x, self.weight, self.bias)


class Embedding(Module):
    """Rows of a weight (entries, features) for integers of any shape -> (..., features); at first normal(0, 1).

    >>> import flnb, flnb.nn as nn
    >>> nn.Embedding(10, 4)(flnb.asarray([[1, 2, 9]])).shape
    (1, 3, 4)
    """

    def __init__(self, entries: int, features: int) -> None:
        self.entries, self.features = entries, features
        self.weight = Parameter(random.normal((entries, features)))

    def forward(self, indices: Any) -> Any:
        return ops.embedding(indices, self.weight)


class Dropout(Module):
    """Zero each element with probability `p` in training, and scale the others by 1 / (1 - p).

    >>> import flnb, flnb.nn as nn
    >>> nn.Dropout(0.5).eval()(flnb.ones((2,))).numpy().tolist()
    [1.0, 1.0]
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p < 1.0:
            raise ValueError(f"flnb: Dropout's p is the share to drop, at least 0 and below 1; got {p}")
        self.p = p

    def forward(self, x: Any) -> Any:
        return ops.dropout(x, self.p) if self.training and self.p else x


class PositionEmbedding(Module):
    """Add a learnt row for each position to x (N, T, features), T at most ``max_length`` (Gehring et al. 2017).

    Rows begin normal with std 0.02, as in BERT (Devlin et al. 2019).

    >>> import flnb, flnb.nn as nn
    >>> nn.PositionEmbedding(16, 4)(flnb.ones((2, 10, 4))).shape
    (2, 10, 4)
    """

    def __init__(self, max_length: int, features: int) -> None:
        self.max_length, self.features = max_length, features
        self.weight = Parameter(random.normal((max_length, features), 0.0, 0.02))

    def forward(self, x: Any) -> Any:
        return x + _positions("PositionEmbedding", x, self.weight)


class SinusoidalPositionEmbedding(Module):
    """Add sin and cos of the position to x (N, T, features), T at most ``max_length`` (Vaswani et al. 2017).

    Feature 2 i has sin(t / 10000^(2 i / features)), feature 2 i + 1 the cosine (section 3.5). Nothing is learnt or
    saved.

    >>> import flnb, flnb.nn as nn
    >>> nn.SinusoidalPositionEmbedding(16, 4)(flnb.zeros((1, 2, 4)))[0, 0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """

    def __init__(self, max_length: int, features: int) -> None:
        if features % 2:
            raise ValueError(f"SinusoidalPositionEmbedding: expected an even number of features, got {features}")
        self.max_length, self.features = max_length, features
        rates = 10000.0 ** (-ops.arange(0, features, 2, dtype="float64") / features)
        angles = ops.arange(max_length, dtype="float64")[:, None] * rates
        self._table = ops.reshape(ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1), (max_length, features))

    def forward(self, x: Any) -> Any:
        return x + ops.astype(_positions("SinusoidalPositionEmbedding", x, self._table), x.dtype)


def _positions(name: str, x: Any, table: Any) -> Any:
    """The first rows of a table, one for each position of x."""
    length, features = table.shape
    if x.ndim != 3 or x.shape[1] > length or x.shape[2] != features:
        raise ValueError(f"{name}: expected x (N, T, {features}) with T at most {length}, got {x.shape}")
    return table[: x.shape[1]]
