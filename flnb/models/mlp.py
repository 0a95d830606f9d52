"""The multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from flnb import ops
from flnb.models.recipe import Recipe, noise
from flnb.nn import Dropout, Linear, Module, ModuleList


class MLP(Module):
    """Linear layers from each width to the next, with ReLU and dropout between them: (N, ...) -> (N, widths[-1]).

    All axes of x but the first are flattened to ``widths[0]`` features.

    >>> import flnb
    >>> flnb.models.MLP((784, 32, 10))(flnb.ones((2, 1, 28, 28))).shape
    (2, 10)

    Raises:
        ValueError: fewer than two widths, or an x of another shape.
    """

    def __init__(self, widths: Sequence[int], dropout: float = 0.0) -> None:
        if len(widths) < 2:
            raise ValueError(f"MLP: expected two widths or more, from inputs to outputs, got {tuple(widths)}")
        self.widths = tuple(widths)
        self.layers = ModuleList(Linear(before, after) for before, after in pairwise(widths))
        self.dropout = Dropout(dropout)

    def forward(self, x: Any) -> Any:
        features = math.prod(x.shape[1:])
        if x.ndim < 2 or features != self.widths[0]:
            raise ValueError(f"MLP: expected x (N, ...) of {self.widths[0]} features, got {x.shape}")
        x = ops.reshape(x, (x.shape[0], features))
        *hidden, last = self.layers
        for layer in hidden:
            x = self.dropout(ops.relu(layer(x)))
        return last(x)


MLP_RECIPE = Recipe(
    name="mlp",
    model=MLP,
    source="LeCun et al. 1998, section III.C.4: 784-300-100-10",
    settings={"paper": {"widths": (784, 300, 100, 10)}, "small": {"widths": (64, 32, 16, 10)}},
    parameters={"paper": 266_610, "small": 2_778},
    batch_sizes={"paper": 64, "small": 64},
    draws={"paper": noise((784,), 10), "small": noise((64,), 10)},
)
