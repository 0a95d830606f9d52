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

    from flnb.dispatch.plan import Spec
    from flnb.optim.optimizer import Optimizer
    from flnb.tensor import Tensor

__all__ = ["LARGEST", "Gathered", "gathered", "plain"]

LARGEST = 32 << 10
"""Bytes of the largest parameter that is copied: of larger ones, the copies take as long as the calls."""
LONGEST = 256 << 10
"""Bytes of a vector at most: what is copied is still in the cache when it is read."""


class Gathered:
    """Parameters of one dtype laid side by side, with the optimizer's state for them.

    Args:
        specs: of the members.
        room: vectors as long as these together or longer: for data, gradients and scratch, shared with others.

    Attributes:
        members: their positions among the optimizer's parameters.
        states: for each member, views of its part of every slot.
    """

    def __init__(
        self, slots: Sequence[str], members: Sequence[int], specs: Sequence[Spec], room: Sequence[Tensor]
    ) -> None:
        self.members, self._specs = members, specs
        places, start = [], 0
        for spec in specs:
            places.append(slice(start, start + spec.size))
            start += spec.size
        self._data, self._gradient, *self._work = (whole[:start] for whole in room)
        self._state = {slot: ops.zeros_like(self._data) for slot in slots}

        def parts(whole: Tensor) -> list[Tensor]:
            return [whole[place].reshape(spec.shape) for place, spec in zip(places, specs, strict=True)]

        self._parts = list(zip(parts(self._data), parts(self._gradient), strict=True))
        parts_of = {slot: parts(whole) for slot, whole in self._state.items()}
        self.states: list[dict[str, Tensor]] = [
            {slot: views[i] for slot, views in parts_of.items()} for i in range(len(members))
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


def gathered(optimizer: Optimizer, like: Sequence[Tensor]) -> list[Gathered]:
    """Vectors of an optimizer's small parameters, which are computed in what ``like`` is, of one dtype each."""
    by_dtype: dict[Any, list[list[int]]] = {}
    filled: dict[Any, int] = {}
    for index, (item, data) in enumerate(zip(optimizer.parameters, like, strict=True)):
        nbytes = data._spec.nbytes
        if optimizer.gathers and data.dtype == item.dtype and nbytes <= LARGEST:
            filled[data.dtype] = filled.get(data.dtype, LONGEST) + nbytes
            vectors = by_dtype.setdefault(data.dtype, [])
            if filled[data.dtype] > LONGEST:
                vectors.append([])
                filled[data.dtype] = nbytes
            vectors[-1].append(index)
    found = []
    for dtype, vectors in by_dtype.items():
        several = [members for members in vectors if len(members) > 1]
        longest = max((sum(like[i].size for i in members) for members in several), default=0)
        room = [ops.zeros((longest,), dtype=dtype) for _ in range(2 + optimizer.scratch)] if several else []
        found += [Gathered(optimizer.slots, members, [like[i]._spec for i in members], room) for members in several]
    return found


def plain(gradient: Any) -> Tensor:
    """A gradient without its own graph, which ``backward(create_graph=True)`` makes."""
    return gradient.data if isinstance(gradient, Variable) else gradient
