"""The traces of the study: the allocations and frees of training, at the paper's sizes and at small ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import flnb
from flnb.bench.contestant import LEARNING_RATE, MOMENTUM
from flnb.memory import HostDevice, Native
from flnb.optim import SGD

if TYPE_CHECKING:
    from flnb.memory import Trace
    from flnb.models import Recipe

__all__ = ["KINDS", "sizes", "traced"]

KINDS = {
    "paper": "batches of the paper's size, on the meta backend",
    "varying": "batches of the paper's size and smaller ones (as the last of an epoch is, or utterances of other "
    "lengths), on the meta backend",
    "cpu": "the models and batches of scale 'small', computed by NumPy in the host's memory",
}
"""The kinds of traces, each with a description of the training that is traced."""

PARTS = {"paper": (1.0, 1.0), "varying": (0.7, 1.0, 0.55, 0.85), "cpu": (1.0, 1.0)}
"""For each kind of trace, the batch size of each training step as a fraction of the model's usual batch size.

There are several steps, because the first one differs from the others: it allocates the momentum.
"""


def sizes(kind: str, whole: int) -> list[int]:
    """Return the batch size of every training step in a trace of this kind; ``whole`` is the model's usual size."""
    return [max(1, round(part * whole)) for part in PARTS[kind]]


def traced(model: str, kind: str) -> Trace:
    """Trace the allocations of some training steps (forward, backward, SGD with momentum) and of building the model."""
    recipe = flnb.models.get(model)
    if kind == "cpu":
        with flnb.use_memory_manager(Native(HostDevice())), flnb.record(f"{model}, small", grad_interval=None) as run:
            trained(recipe, "small", kind)
    else:
        run = flnb.memory.dry_run(lambda: trained(recipe, "paper", kind), manager="native").run
    return flnb.memory.trace(run)


def trained(recipe: Recipe, scale: str, kind: str) -> None:
    """Build a new model and train it, one step for each batch size of this kind of trace (see `sizes`)."""
    flnb.manual_seed(0)
    model = recipe.build(scale)
    optimizer = SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    for size in sizes(kind, recipe.batch_sizes[scale]):
        batch = [flnb.asarray(array) for array in recipe.batch(scale, size=size)]
        optimizer.zero_grad()
        recipe.loss(model, *batch).backward()
        optimizer.step()
