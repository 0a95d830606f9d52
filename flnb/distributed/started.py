"""Asynchronous sums over ranks, which run while the program computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from flnb.autograd.variable import plain
from flnb.dispatch.communication import Pending, start, start_multiple
from flnb.dispatch.groups import current
from flnb.distributed.staging import compute, room, values, write
from flnb.ops.creation import asarray, empty
from flnb.ops.elementwise import copy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.tensor import ArrayLike, Tensor


class Started:
    """A sum over ranks that was started by `start_all_reduce`: `test` polls it, `wait` returns the result."""

    def __init__(self, pending: Pending, result: Tensor, memory: Any) -> None:
        self._pending, self._result, self._memory = pending, result, memory
        self._others = _under_way.setdefault(current(), [])
        self._others.append(self)

    def test(self) -> bool:
        """Return whether the result is available, without waiting."""
        if self._pending.test():
            self._leave()
            return True
        return False

    def wait(self) -> Tensor:
        """Wait for the result, and return it.

        Raises:
            CollectiveError: another rank makes a different call, has died, or does not call before the timeout.
        """
        try:
            self._pending.wait()
        finally:
            self._leave()
        if self._memory is not None:
            write(self._result, self._memory)
            self._memory = None
        return self._result

    def _leave(self) -> None:
        """Remove this sum from the list that `sync` waits for."""
        if self in self._others:
            self._others.remove(self)


_under_way: WeakKeyDictionary[Any, list[Started]] = WeakKeyDictionary()
"""For each communicator the collective calls that were started and that the program has not waited for."""


def start_all_reduce(x: ArrayLike, op: str = "sum") -> Started:
    """Start an `all_reduce` in the background, without gradients; returns a handle at once.

    Args:
        x: this rank's tensor, which is copied; its shape and dtype are the same on every rank.
        op: ``"sum"``, ``"max"`` or ``"min"``.

    Raises:
        CollectiveError: another rank makes a different call.

    >>> import flnb
    >>> def overlap():
    ...     started = flnb.distributed.start_all_reduce([1.0, 2.0])
    ...     y = flnb.exp(flnb.zeros(3))  # meanwhile
    ...     return started.wait().tolist()
    >>> flnb.distributed.run_threads(2, overlap)
    [[2.0, 4.0], [2.0, 4.0]]
    """
    y = copy(plain(asarray(x)))
    memory = values(y)
    return Started(start("all_reduce", memory, op), y, memory)


def all_reduce_multiple(xs: Sequence[ArrayLike], op: str = "sum", contiguous: bool = False) -> list[Tensor]:
    """Return the sums (or maxima, or minima) of several tensors over ranks, from one operation without gradients.

    Args:
        xs: the tensors, of any shapes and dtypes, which are the same on every rank.
        op: ``"sum"``, ``"max"`` or ``"min"``.
        contiguous: whether to copy the tensors of each dtype into one buffer first; this is quicker for many small
            tensors.

    Raises:
        CollectiveError: as `all_reduce`.

    >>> import flnb
    >>> def both():
    ...     return [y.tolist() for y in flnb.distributed.all_reduce_multiple([[1, 2], 3.0], contiguous=True)]
    >>> flnb.distributed.run_threads(2, both)
    [[[2, 4], 6.0], [[2, 4], 6.0]]
    """
    made = [copy(plain(asarray(x))) for x in xs]
    buffers = [values(y) for y in made]
    if not contiguous:
        if buffers:
            start_multiple(buffers, op).wait()
        for y, b in zip(made, buffers, strict=True):
            write(y, b)
        return made
    kinds = {b.dtype: room(empty((sum(a.size for a in buffers if a.dtype == b.dtype),), b.dtype)) for b in buffers}
    places, ends = [], dict.fromkeys(kinds, 0)
    for b in buffers:
        flat, begin = kinds[b.dtype], ends[b.dtype]
        ends[b.dtype] = begin + b.size
        places.append(flat[begin : begin + b.size].reshape(b.shape))
        compute("copy", b, out=places[-1])
    if kinds:
        start_multiple([*kinds.values()], op).wait()
    for y, place in zip(made, places, strict=True):
        write(y, place)
    return made


def sync() -> None:
    """Wait until every sum that this rank began by `start_all_reduce` has finished.

    Raises:
        CollectiveError: as `all_reduce`.

    >>> import flnb
    >>> flnb.distributed.sync()
    """
    for started in list(_under_way.get(current(), ())):
        started.wait()
