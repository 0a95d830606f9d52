"""Linear layer, embeddings of integers and of positions, and dropout."""

from __future__ import annotations

from typing import Any

from flnb import ops, random
from flnb.nn import init
from flnb.nn.module import Module, Parameter

__all__ = ["Dropout", "Embedding", "Linear", "PositionEmbedding", "SinusoidalPositionEmbedding"]


class Linear(Module):
    """Linear layer: (..., in_features) -> (..., out_features), x @ weight.T + bias.

    The parameters are weight (out_features, in_features) and bias (out_features,), both initialised with uniform random
    numbers between -b and b, b = 1 / sqrt(in_features), as in torch.

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
    """Look up a row of the weight for each integer: indices of any shape -> (*shape, features).

    The parameter ``weight`` (entries, features) is initialised from the standard normal distribution.

    Raises:
        IndexError: an index is not in range(entries).

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
    """In training mode, set each element to zero with probability ``p`` and multiply the others by 1 / (1 - p).

    In evaluation mode x is returned unchanged. Srivastava et al. 2014, "Dropout".

    Raises:
        ValueError: ``p`` is negative, or 1 or more.

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
    """Add a learnt vector for each position to x (N, T, features), with T at most ``max_length``.

    The parameter ``weight`` (max_length, features) is initialised from a normal distribution with deviation 0.02, as in
    BERT. Gehring et al. 2017, "Convolutional sequence to sequence learning".

    Raises:
        ValueError: x has another shape.

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
    """Add sines and cosines of the position to x (N, T, features), with T at most ``max_length``.

    At position t, feature 2i is increased by sin(t / 10000^(2i / features)), feature 2i + 1 by the cosine. There are no
    parameters or buffers. Vaswani et al. 2017, section 3.5.

    Raises:
        ValueError: ``features`` is odd, or x has another shape.

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
    """Check that x is (N, T, features) and return the first T rows of a table (max_length, features)."""
    length, features = table.shape
    if x.ndim != 3 or x.shape[1] > length or x.shape[2] != features:
        raise ValueError(f"{name}: expected x (N, T, {features}) with T at most {length}, got {x.shape}")
    return table[: x.shape[1]]
