"""Small parameters updated as one vector: a dozen ops for all of them, in place of a dozen for each.

An update of a few kilobytes is spent on calls, not on arithmetic. Where an algorithm treats every element alike
(`Optimizer.gathers`), the elements of several parameters can be laid side by side: three copies a parameter, and
the same bits come out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb import ops
from flnb.autograd import Variable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.optim.optimizer import Optimizer
    from flnb.tensor import Tensor

__all__ = ["LARGEST", "Gathered"]

LARGEST = 64 << 10
"""Bytes of the largest parameter that is copied: of larger ones, the copies take as long as the calls."""


class Gathered:
    """Parameters of one dtype laid side by side, with the optimizer's state for them.

    Attributes:
        members: their positions among the optimizer's parameters.
        states: for each member, views of its part of every slot.
    """

    def __init__(self, optimizer: Optimizer, members: Sequence[int], like: Sequence[Tensor]) -> None:
        self.members = list(members)
        self._specs = [item._spec for item in like]
        sizes = [spec.size for spec in self._specs]
        empty = [ops.zeros((sum(sizes),), dtype=like[0].dtype) for _ in range(2 + optimizer.scratch)]
        self._data, self._gradient, *self._work = empty
        self._state = {slot: ops.zeros_like(self._data) for slot in optimizer.slots}
        places, start = [], 0
        for size in sizes:
            places.append(slice(start, start + size))
            start += size

        def parts(whole: Tensor) -> list[Tensor]:
            return [whole[place].reshape(spec.shape) for place, spec in zip(places, self._specs, strict=True)]

        self._parts = list(zip(parts(self._data), parts(self._gradient), strict=True))
        slots = {slot: parts(whole) for slot, whole in self._state.items()}
        self.states: list[dict[str, Tensor]] = [
            {slot: views[i] for slot, views in slots.items()} for i in range(len(self.members))
        ]

    def complete(self, optimizer: Optimizer) -> bool:
        """Whether all have a gradient, for the same update, and are what they were."""
        items = [optimizer.parameters[i] for i in self.members]
        return (
            all(item.grad is not None for item in items)
            and all(item._spec is spec for item, spec in zip(items, self._specs, strict=True))
            and len({optimizer._counts[i] for i in self.members}) == 1
        )

    def update(self, optimizer: Optimizer) -> None:
        """Update all; `complete` was true."""
        items = [optimizer.parameters[i] for i in self.members]
        for item, (data, gradient) in zip(items, self._parts, strict=True):
            ops.assign(data, item.data)
            ops.assign(gradient, plain(item.grad))
        optimizer.update(self._data, self._gradient, self._state, self._work)
        for item, (data, _) in zip(items, self._parts, strict=True):
            ops.assign(item.data, data)


def plain(gradient: Any) -> Tensor:
    """A gradient without its own graph, which ``backward(create_graph=True)`` makes."""
    return gradient.data if isinstance(gradient, Variable) else gradient
