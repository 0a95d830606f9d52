"""The communicator: how ranks exchange buffers. A rank is one of the processes (or threads) of a distributed program.

A communicator's method starts an operation on raw buffers and returns a `Work`, without checks or timing, and without
waiting. `flnb.dispatch.communication` compares the call with the calls of the other ranks, numbers it, waits for its
end, and emits events. So a communicator that a user defines in a notebook is checked and recorded like those of flnb.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from flnb.interface.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REDUCTIONS = ("sum", "max", "min")
"""The reductions that `all_reduce` and `reduce_scatter` can compute; a mean is a sum that is divided."""


class CollectiveError(RuntimeError):
    """Raised if ranks make different calls or a rank has ended; the message names the ranks and their calls.

    The communicator cannot be used afterwards, because the ranks may have received different data.
    """


class Work:
    """A running operation: implement `test`. Its buffers must not be used until `test` returns True."""

    def test(self) -> bool:
        """Return whether the operation has finished on this rank, without blocking; may also advance the operation."""
        raise NotImplementedError(f"{type(self).__name__} does not implement 'test': define test(self)")


class Done(Work):
    """An operation that is finished from the start."""

    def test(self) -> bool:
        """Return True."""
        return True


class Communicator(Part, kind="communicator"):
    """Base of all communicators: set `rank`, `size` and `board`, and implement the operations.

    Buffers are C-contiguous NumPy arrays. Every rank of a group makes the same collective calls in the same order, with
    the same dtypes and numbers of elements; `send` and `recv` concern two ranks alone.

    A communicator that wraps another one derives from `flnb.distributed.Forwarding`, which has an example.

    Attributes:
        rank: the number of this rank in the group, from 0.
        size: the number of ranks.
        group_name: the group's name in recordings, the same on all its ranks; if empty, the communicator's name.
        board: the shared memory in which the ranks of the group see each other's calls (`flnb.dispatch.board.Board`).
            Without a board, a rank that makes a different call or has ended is noticed only at the timeout. None for a
            single rank.
        timeout: the seconds after which a call that other ranks have not made raises an error.
        location: the device, such as "cuda:1", whose tensors collective calls accept besides NumPy arrays.
    """

    name: ClassVar[str] = "abstract"
    rank: int = 0
    size: int = 1
    group_name: str = ""
    board: Any = None
    timeout: float = 300.0
    location: str = "host"

    ranks_group: Any = None
    """The facts about the group of ranks that `flnb.dispatch.communication` stores."""
    arriving: Callable[[], None] | None = None
    """A function called before each call, before other ranks can see the call; None (the default) for no function."""

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """Replace each element of a buffer by the sum, maximum or minimum over ranks, with equal bits on all ranks."""
        raise self._missing("all_reduce")

    def all_reduce_multiple(self, buffers: Sequence[Any], op: str = "sum") -> Work:
        """Run `all_reduce` on several buffers as one operation; by default one after the other."""
        return All([self.all_reduce(buffer, op) for buffer in buffers])

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """Write the buffers of all ranks, concatenated in rank order, into ``out`` on every rank."""
        raise self._missing("all_gather")

    def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
        """Reduce a buffer of ``size`` equal parts over all ranks; rank i receives part i in ``out``."""
        raise self._missing("reduce_scatter")

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """Replace the buffer's elements on every rank by those of the rank ``root``."""
        raise self._missing("broadcast")

    def send(self, buffer: Any, to: int, tag: int = 0) -> Work:
        """Send a buffer to the rank ``to``, which must receive it under the same ``tag``."""
        raise self._missing("send")

    def recv(self, buffer: Any, source: int, tag: int = 0) -> Work:
        """Receive a message with this ``tag`` from rank ``source``, and write its data to ``buffer``."""
        raise self._missing("recv")

    def barrier(self) -> Work:
        """Wait until every rank has called this method."""
        raise self._missing("barrier")

    def split(self, color: int, key: int) -> Communicator:
        """Make a communicator of the ranks that pass the same ``color``, ordered by ``key``; all ranks call this."""
        raise self._missing("split")

    def close(self) -> None:
        """Release the communicator's resources, such as shared memory."""

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"communicator {self.name!r} does not implement {method!r}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} communicator {self.name!r}, rank {self.rank} of {self.size}>"


class All(Work):
    """Several operations combined into one, which is finished when all of them are finished."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._left = list(works)

    def test(self) -> bool:
        """Return whether all operations have finished."""
        self._left = [work for work in self._left if not work.test()]
        return not self._left


class Rendezvous:
    """A store in which ranks exchange a few bytes before they have a communicator: implement `put` and `get`.

    Attributes:
        rank: the number of this rank, from 0.
        size: the number of ranks.
    """

    rank: int = 0
    size: int = 1

    def put(self, key: str, value: bytes) -> None:
        """Store a value under a key that every rank can read; each key is used once."""
        raise NotImplementedError(f"{type(self).__name__} does not implement 'put': define put(self, key, value)")

    def get(self, key: str, timeout: float) -> bytes:
        """Return a key's value, waiting until some rank has stored it.

        Raises:
            TimeoutError: no rank has stored a value for the key within ``timeout`` seconds.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement 'get': define get(self, key, timeout)")

    def close(self) -> None:
        """Release the rendezvous's resources; values stored by this rank may be lost."""
