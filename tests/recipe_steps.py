"""A training step of a model's recipe, for tests that run it at once and as a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.models import Recipe
    from flnb.nn import Module
    from flnb.optim import Optimizer


def training_step(recipe: Recipe, model: Module, optimizer: Optimizer) -> Callable[..., Any]:
    """Return a function of a batch that updates the model once and returns the loss."""

    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        loss = recipe.loss(model, *batch)
        loss.backward()
        optimizer.step()
        return loss

    return step
