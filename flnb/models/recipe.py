"""Recipe: everything needed to build a published model, feed it and train it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb import ops

if TYPE_CHECKING:
    from flnb.nn import Module

Batch = tuple[np.ndarray[Any, Any], ...]
"""The arrays that a loss takes after the model: the model's inputs, then the targets."""
Draw = Callable[[np.random.Generator, int], Batch]
"""A function that is called with a NumPy generator and a number of examples, and returns a batch of random examples."""


def noise(shape: Sequence[int], classes: int, targets: Sequence[int] = ()) -> Draw:
    """Return a function that draws random batches: float32 inputs (N, *shape) and integer targets (N, *targets).

    Targets are from 0 to ``classes`` - 1.

    >>> import numpy as np
    >>> [x.shape for x in noise((3, 8, 8), 10)(np.random.default_rng(0), 2)]
    [(2, 3, 8, 8), (2,)]
    """

    def draw(generator: np.random.Generator, size: int) -> Batch:
        x = generator.standard_normal((size, *shape), dtype=np.float32)
        return x, generator.integers(classes, size=(size, *targets))

    return draw


def classification(model: Module, x: Any, targets: Any) -> Any:
    """Return the mean cross-entropy of the model's logits (N, classes) for integer targets (N,)."""
    return ops.cross_entropy(model(x), targets)


@dataclass(frozen=True, eq=False, repr=False)
class Recipe:
    """How to build a published model, random batches for it, and its loss; each in the scales "paper" and "small".

    Attributes:
        name: the model's name for `flnb.models.get`.
        model: the model's class, which is called as ``model(**settings[scale])``.
        source: the paper, with the section or table that describes the architecture.
        settings: for each scale, the keyword arguments for the class.
        parameters: for each scale, the exact number of trained numbers.
        batch_sizes: for each scale, the number of examples in a batch; for "paper", that of the paper.
        draws: for each scale, a function that is called with a NumPy generator and a number of examples, and returns a
            batch of random examples.
        loss: a function that is called as ``loss(model, *batch)`` and returns a scalar Variable.

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
        """Build a new model, with initial values drawn from the session's generator (`flnb.manual_seed`).

        >>> import flnb
        >>> flnb.models.get("mlp").build("small")(flnb.ones((2, 64))).shape
        (2, 10)

        Raises:
            ValueError: a scale that the recipe does not have.
        """
        return self.model(**self._of(self.settings, scale))

    def batch(self, scale: str = "paper", seed: int = 0, size: int | None = None) -> Batch:
        """Return a batch of random examples with the shapes and dtypes that the loss expects.

        Equal seeds give equal batches.

        Args:
            scale: "paper" or "small".
            seed: the seed of a NumPy generator.
            size: the number of examples, by default the recipe's batch size.

        Returns:
            The model's inputs, then the targets, as NumPy arrays with the examples along the first axis.

        Raises:
            ValueError: a scale that the recipe does not have, or a size below 1.

        >>> import flnb
        >>> x, labels = flnb.models.get("mlp").batch("small", size=3)
        >>> x.shape, labels.shape
        ((3, 64), (3,))
        """
        size = self._of(self.batch_sizes, scale) if size is None else size
        if size < 1:
            raise ValueError(f"{self.name}: expected a batch of 1 example or more, got {size}")
        draw: Draw = self._of(self.draws, scale)
        return draw(np.random.default_rng(seed), size)

    def _of(self, table: Mapping[str, Any], scale: str) -> Any:
        """Return the entry of ``table``, a dict by scale, for ``scale``; for an unknown scale raise a ValueError."""
        if scale not in table:
            raise ValueError(f"{self.name}: expected the scale {' or '.join(map(repr, table))}, got {scale!r}")
        return table[scale]

    def __repr__(self) -> str:
        kind = getattr(self.model, "__name__", repr(self.model))
        sizes = f"{self.parameters['paper']:,} parameters, batches of {self.batch_sizes['paper']}"
        return f"Recipe({self.name!r}: {kind}, {sizes}; {self.source})"
