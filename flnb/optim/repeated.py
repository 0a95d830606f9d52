"""Optimizer steps on a deferred backend: a step with the same ops as an earlier step is recorded as one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb import ops
from flnb.autograd.variable import plain
from flnb.dispatch.state import current

if TYPE_CHECKING:
    from flnb.optim.optimizer import Optimizer
    from flnb.tensor import Tensor


def step_repeated(optimizer: Optimizer) -> bool:
    """Update all parameters that have a gradient, by the recorded ops of an earlier step if there is one like it.

    Coefficients such as the learning rate are tensors in the recorded ops, so their values may change between steps.

    Returns:
        True if the parameters were updated; False if this optimizer's steps cannot be repeated. Then nothing was done.
    """
    chosen = [i for i, item in enumerate(optimizer.parameters) if item.grad is not None]
    items = [optimizer.parameters[i] for i in chosen]
    gradients: list[Tensor] = [plain(item.grad) for item in items]
    states = [optimizer._state[i] for i in chosen]
    slots, plain_states = optimizer.slots, all(len(state) == len(optimizer.slots) for state in states)
    fitting = all(
        item._spec in optimizer._scratch and g._spec is item._spec for item, g in zip(items, gradients, strict=True)
    )
    if not (optimizer.repeats and plain_states and fitting) or optimizer._gathered:
        return False
    given: dict[Any, tuple[Tensor, ...]] = {}
    groups = [(optimizer._counts[i] + 1, item.dtype) for i, item in zip(chosen, items, strict=True)]
    for optimizer.count, dtype in dict.fromkeys(groups):
        given[optimizer.count, dtype] = tuple([ops.asarray(x, dtype=dtype) for x in optimizer.coefficients()])

    def update_each() -> None:
        optimizer._given = given
        try:
            for i, item, gradient, state in zip(chosen, items, gradients, states, strict=True):
                optimizer._advance(i)
                optimizer._update(item.data, gradient, state)
        finally:
            optimizer._given = {}

    order = {group: i for i, group in enumerate(given)}
    settings = [repr(getattr(optimizer, name)) for name in optimizer._settings if name != "lr"]
    key = type(optimizer), *[order[group] for group in groups], *settings
    written = [*items, *[state[slot] for state in states for slot in slots]]
    numbers = [x for group in given.values() for x in group]
    if not current().backend.repeated(key, update_each, [*written, *gradients, *numbers], len(written)):
        for i in chosen:
            optimizer._advance(i)
    return True
