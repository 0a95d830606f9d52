"""Small parameters updated as one vector: a dozen ops for all of them, in place of a dozen for each.

An update of a few kilobytes is spent on calls, not on arithmetic. If an algorithm treats every element alike, in
many ops (`Optimizer.gathers`), the elements of several parameters are stored side by side: three copies a parameter,
and the same bits result.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any

from flnb import ops
from flnb.autograd import Variable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.optim.optimizer import Optimizer
    from flnb.tensor import Tensor

__all__ = ["LARGEST", "Gathered", "gathered", "plain"]

LARGEST = 32 << 10
"""Bytes of the largest parameter that is copied: of larger ones, the copies take as long as the calls."""
LONGEST = 256 << 10
"""Most bytes of a vector: the copy is still in the cache when it is read."""


class Gathered:
    """Parameters of one dtype side by side in one vector, with the optimizer's state for them.

    Those that follow each other, have a gradient and have been updated as often are updated together: one without a
    gradient separates its neighbours. Copied or unpickled, the optimizer has none of these, as its tensors are no
    views.

    Args:
        members: the parameters' positions among the optimizer's.
        items: the parameters.
        room: vectors as long as these together or longer: for data, gradients and scratch, shared with others.

    Attributes:
        states: for each member, views of its part of every slot.
    """

    def __init__(
        self, slots: Sequence[str], members: Sequence[int], items: Sequence[Variable], room: Sequence[Tensor]
    ) -> None:
        self.members, self._items = members, items
        self._buffers: list[Any] = [item._data for item in items]
        self._ends = [0, *accumulate(item.size for item in items)]
        self._room = room
        self._state = {slot: ops.zeros_like(room[0][: self._ends[-1]]) for slot in slots}
        self._parts = list(zip(self._split(room[0]), self._split(room[1]), strict=True))
        split = {slot: self._split(whole) for slot, whole in self._state.items()}
        self.states = [{slot: views[i] for slot, views in split.items()} for i in range(len(items))]
        self._runs: dict[tuple[int, int], tuple[Any, ...]] = {}

    def _split(self, whole: Tensor) -> list[Tensor]:
        ends = pairwise(self._ends)
        return [whole[a:b].reshape(item.shape) for item, (a, b) in zip(self._items, ends, strict=True)]

    def update(self, optimizer: Optimizer) -> set[int]:
        """Update the parameters that can be updated together; returns their positions."""
        counts = [optimizer._counts[index] if self._fits(i) else -1 - i for i, index in enumerate(self.members)]
        done: set[int] = set()
        first = 0
        for count, run in groupby(counts):
            last = first + len(list(run))
            if last - first > 1:
                self._update(optimizer, first, last, count + 1)
                done.update(self.members[first:last])
            first = last
        return done

    def _fits(self, i: int) -> bool:
        """Whether a member has a gradient of its spec, and still its memory: shared since, it is updated alone."""
        item = self._items[i]
        if item._data is not self._buffers[i]:
            self._buffers[i] = None
            return False
        return item.grad is not None and item.grad._spec is item._spec

    def _update(self, optimizer: Optimizer, first: int, last: int, count: int) -> None:
        """Update the members from ``first`` to before ``last``."""
        members, parts = self._items[first:last], self._parts[first:last]
        data, gradient, state, work = self._runs.get((first, last)) or self._run(first, last)
        for item, (value, slope) in zip(members, parts, strict=True):
            ops.assign(value, item.data)
            ops.assign(slope, plain(item.grad))
        for index in self.members[first:last]:
            optimizer._counts[index] = optimizer.count = count
        optimizer.update(data, gradient, state, work)
        for item, (value, _) in zip(members, parts, strict=True):
            ops.assign(item.data, value)

    def _run(self, first: int, last: int) -> tuple[Any, ...]:
        """The arguments of `Optimizer.update` for some members: views that are stored."""
        place = slice(self._ends[first], self._ends[last])
        data, gradient, *work = (whole[place] for whole in self._room)
        state = {slot: whole[place] for slot, whole in self._state.items()}
        if len(self._runs) > len(self.members):  # ever new patterns must not pile up
            self._runs.clear()
        self._runs[first, last] = found = data, gradient, state, work
        return found


def gathered(optimizer: Optimizer, like: Sequence[Tensor]) -> list[Gathered]:
    """Make vectors of an optimizer's small parameters that have memory of their own, of one dtype each.

    Args:
        like: for each parameter, a tensor of the dtype in which it is updated.
    """
    if not optimizer.gathers:
        return []
    items = optimizer.parameters
    owners = Counter(_owner(item._data) for item in items)
    by_dtype: dict[Any, list[list[int]]] = {}
    filled: dict[Any, int] = {}
    for index, (item, data) in enumerate(zip(items, like, strict=True)):
        dtype, nbytes = data.dtype, data._spec.nbytes
        if dtype == item.dtype and nbytes <= LARGEST and owners[_owner(item._data)] == 1:
            filled[dtype] = filled.get(dtype, LONGEST) + nbytes
            vectors = by_dtype.setdefault(dtype, [])
            if filled[dtype] > LONGEST:
                vectors.append([])
                filled[dtype] = nbytes
            vectors[-1].append(index)
    found = []
    for dtype, vectors in by_dtype.items():
        several = [[items[i] for i in members] for members in vectors if len(members) > 1]
        longest = max((sum(item.size for item in some) for some in several), default=0)
        room = [ops.zeros((longest,), dtype=dtype) for _ in range(2 + optimizer.scratch)] if several else []
        kept = [members for members in vectors if len(members) > 1]
        found += [Gathered(optimizer.slots, *pair, room) for pair in zip(kept, several, strict=True)]
    return found


def _owner(buffer: Any) -> int:
    """The memory of a buffer; that of a view is its base's."""
    while (base := getattr(buffer, "base", None)) is not None:
        buffer = base
    return id(buffer)


def plain(gradient: Any) -> Tensor:
    """A gradient without its own graph, which ``backward(create_graph=True)`` makes."""
    return gradient.data if isinstance(gradient, Variable) else gradient
