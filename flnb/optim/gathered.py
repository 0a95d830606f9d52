"""Updates of small parameters as one vector, to save the call overhead of updating each by itself.

An update of a few kilobytes spends its time on calls, not on arithmetic. If an algorithm treats every element alike and
consists of many ops (`Optimizer.gathers`), several parameters are copied into one vector, updated there, and copied
back. This takes three copies per parameter (data, gradient, and data again), in two calls if the backend has a method
`copy_each`, and the results are the same to the bit.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any

from flnb import ops
from flnb.autograd.variable import Variable, plain
from flnb.dispatch.crossing import update
from flnb.dispatch.state import current
from flnb.dispatch.table import Update

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.optim.optimizer import Optimizer
    from flnb.tensor import Tensor

LARGEST = 32 << 10
"""The size in bytes of the largest parameter that is copied; for larger ones, copies cost more than calls save."""
LONGEST = 256 << 10
"""The largest size in bytes of a vector, so that copied elements are still in the processor's cache when read."""


def assign_each(sources: list[Tensor], targets: list[Tensor]) -> None:
    """Copy each source to the target at the same position, by one op for each."""
    for source, target in zip(sources, targets, strict=True):
        ops.assign(target, source)


COPY_EACH = Update("copy_each", "movement", body=assign_each, primitives=frozenset({"copy"}))
"""The op that copies several tensors at once."""


class Gathered:
    """Updates parameters of one dtype as one vector, and holds the optimizer's state for them.

    Neighbours in the vector are updated together if they have a gradient and have been updated equally often; a
    parameter without a gradient separates its neighbours. A copied or unpickled optimizer has no such vectors, because
    its state does not consist of views of vectors.

    Args:
        slots: the names of the tensors that the optimizer stores for each parameter.
        members: the positions of the parameters in the optimizer's list.
        items: the parameters.
        room: work vectors for the data, the gradients and the optimizer's work tensors, each at least as long as all
            these parameters together; other objects of this class use the same work vectors.

    Attributes:
        states: for each parameter, a dict from the names in ``slots`` to views of the parameter's part of the state.
    """

    def __init__(
        self, slots: Sequence[str], members: Sequence[int], items: Sequence[Variable], room: Sequence[Tensor]
    ) -> None:
        self.members, self._items = members, items
        self._buffers: list[Any] = [item._data for item in items]
        self._ends = [0, *accumulate(item.size for item in items)]
        self._room = room
        self._state = {slot: ops.zeros_like(room[0][: self._ends[-1]]) for slot in slots}
        self._values, self._slopes = self._split(room[0]), self._split(room[1])
        split = {slot: self._split(whole) for slot, whole in self._state.items()}
        self.states = [{slot: views[i] for slot, views in split.items()} for i in range(len(items))]
        self._runs: dict[tuple[int, int], tuple[Any, ...]] = {}

    def _split(self, whole: Tensor) -> list[Tensor]:
        """Return, for each parameter, a view of its part of the vector ``whole``, in the parameter's shape."""
        ends = pairwise(self._ends)
        return [whole[a:b].reshape(item.shape) for item, (a, b) in zip(self._items, ends, strict=True)]

    def update(self, optimizer: Optimizer) -> set[int]:
        """Update each group of parameters that can be updated together; return their positions in the optimizer's list.

        A group is two or more parameters that are neighbours in the vector and fit; see the class.
        """
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
        """Return whether parameter ``i`` still has its original memory, and a gradient of its shape and dtype.

        If the memory was replaced, by `Module.to` for example, other parameters may share it; then the parameter is
        updated alone.
        """
        item = self._items[i]
        if item._data is not self._buffers[i]:
            self._buffers[i] = None
            return False
        return item.grad is not None and item.grad._spec is item._spec

    def _update(self, optimizer: Optimizer, first: int, last: int, count: int) -> None:
        """Update the parameters number ``first`` to ``last - 1`` together.

        For each of these parameters, this is update number ``count``.
        """
        members, values, slopes = self._items[first:last], self._values[first:last], self._slopes[first:last]
        data, gradient, state, work = self._runs.get((first, last)) or self._run(first, last)
        originals = [item.data for item in members]
        _copy_each([*originals, *[plain(item.grad) for item in members]], [*values, *slopes])
        for index in self.members[first:last]:
            optimizer._counts[index] = optimizer.count = count
        optimizer._update(data, gradient, state, work)
        _copy_each(values, originals)

    def _run(self, first: int, last: int) -> tuple[Any, ...]:
        """Make, store and return the arguments of `Optimizer.update` for the parameters ``first`` to ``last - 1``."""
        place = slice(self._ends[first], self._ends[last])
        data, gradient, *work = (whole[place] for whole in self._room)
        state = {slot: whole[place] for slot, whole in self._state.items()}
        if len(self._runs) > len(self.members):  # ever new patterns must not pile up
            self._runs.clear()
        self._runs[first, last] = found = data, gradient, state, work
        return found


def _copy_each(sources: list[Tensor], targets: list[Tensor]) -> None:
    """Copy each source to the target at the same position: in one call of the backend's method if it has one."""
    if not update(COPY_EACH, (*sources, *targets), sources=len(sources)):
        assign_each(sources, targets)


def gathered(optimizer: Optimizer, like: Sequence[Tensor]) -> list[Gathered]:
    """Make the vectors of an optimizer's small parameters; parameters that share memory with another are left out.

    The result is empty in three cases:
    (1) `Optimizer.gathers` is false;
    (2) the buffers are on a device, and the backend has one method for a whole update, which is one launch there;
    (3) the backend `defers`, so that a kernel updates several parameters anyway, and the user overrides none of its
    ops (otherwise the user's methods would be called more often than on other backends).

    Args:
        optimizer: the optimizer.
        like: for each parameter, a tensor of the shape and dtype in which it is updated.
    """
    here = current()
    whole = optimizer.whole is not None and here.table[optimizer.whole.index] is not None
    one_call = whole and here.backend.location not in ("", "host")
    if not optimizer.gathers or one_call or (here.backend.defers and not here.overridden):
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
    """Return a number that identifies a buffer's memory: the id of the array that owns it."""
    while (base := getattr(buffer, "base", None)) is not None:
        buffer = base
    return id(buffer)
