"""Recipe: everything needed to build a model of the literature, to feed it, and to train it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb import ops

if TYPE_CHECKING:
    from flnb.nn import Module

__all__ = ["Batch", "Draw", "Recipe", "classification"]

Batch = tuple[np.ndarray[Any, Any], ...]
"""The model's inputs, then the targets."""
Draw = Callable[[np.random.Generator, int], Batch]
"""Makes a batch of so many examples."""


def classification(model: Module, x: Any, targets: Any) -> Any:
    """Mean cross-entropy of the model's logits (N, classes) and integer targets (N,)."""
    return ops.cross_entropy(model(x), targets)


@dataclass(frozen=True, eq=False, repr=False)
class Recipe:
    """A model in two scales, "paper" and "small": one class, other settings.

    Attributes:
        name: its name for `flnb.models.get`.
        model: the class; ``model(**settings[scale])`` is the model.
        source: the paper, with the section or table that describes the architecture.
        settings: keyword arguments of the class, by scale.
        parameters: exactly how many numbers are trained, by scale.
        batch_sizes: examples in a batch, by scale; of "paper", as it was measured there.
        draws: makes a batch of random examples, by scale.
        loss: ``loss(model, *batch)`` returns a scalar Variable.

    >>> import flnb
    >>> recipe = flnb.models.get("mlp")
    >>> recipe
    Recipe('mlp': MLP, 266,610 parameters, batches of 64; LeCun et al. 1998, section III.C.4: 784-300-100-10)
    >>> [x.shape for x in recipe.batch("paper")]
    [(64, 784), (64,)]
    """

    name: str
    model: Callable[..., Module]
    source: str
    settings: Mapping[str, Mapping[str, Any]]
    parameters: Mapping[str, int]
    batch_sizes: Mapping[str, int]
    draws: Mapping[str, Draw]
    loss: Callable[..., Any] = classification

    def build(self, scale: str = "paper") -> Module:
        """A new model, with initial values drawn from the session's generator (`flnb.manual_seed`).

        Raises:
            ValueError: a scale that the recipe does not have.
        """
        return self.model(**self._of(self.settings, scale))

    def batch(self, scale: str = "paper", seed: int = 0, size: int | None = None) -> Batch:
        """Random examples of the shapes and dtypes that the model takes: the same ones for the same seed.

        Args:
            scale: "paper" or "small".
            seed: of NumPy's generator.
            size: how many examples, by default the recipe's batch size.

        Raises:
            ValueError: a scale that the recipe does not have, or no example.
        """
        size = self._of(self.batch_sizes, scale) if size is None else size
        if size < 1:
            raise ValueError(f"{self.name}: expected a batch of 1 example or more, got {size}")
        draw: Draw = self._of(self.draws, scale)
        return draw(np.random.default_rng(seed), size)

    def _of(self, table: Mapping[str, Any], scale: str) -> Any:
        if scale not in table:
            raise ValueError(f"{self.name}: expected the scale {' or '.join(map(repr, table))}, got {scale!r}")
        return table[scale]

    def __repr__(self) -> str:
        kind = getattr(self.model, "__name__", repr(self.model))
        told = f"{self.parameters['paper']:,} parameters, batches of {self.batch_sizes['paper']}"
        return f"Recipe({self.name!r}: {kind}, {told}; {self.source})"
