"""The communicator: how ranks exchange buffers. A rank is one of the processes (or threads) of a distributed program.

A method starts an operation on raw buffers and returns its `Work`. It checks nothing, times nothing and never waits:
`flnb.dispatch.communication` compares the call with those of the other ranks, numbers it, waits, and emits its events.
So a communicator typed into a cell is checked and recorded like the ones that flnb ships.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from flnb.interface.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["REDUCTIONS", "All", "CollectiveError", "Communicator", "Done", "Rendezvous", "Work"]

REDUCTIONS = ("sum", "max", "min")
"""What `all_reduce` and `reduce_scatter` may compute of the ranks' elements; a mean is a sum that is divided."""


class CollectiveError(RuntimeError):
    """The ranks do not make the same call, or one of them is gone: the message names the ranks and their calls.

    The communicator cannot be used afterwards: what the ranks have received may differ.
    """


class Work:
    """An operation under way: implement `test`. Buffers given to it must not be used until it returns True."""

    def test(self) -> bool:
        """Whether the operation has finished here; returns at once, and may carry the operation on."""
        raise NotImplementedError(f"{type(self).__name__} does not implement 'test'")


class Done(Work):
    """An operation that had nothing to wait for."""

    def test(self) -> bool:
        """True."""
        return True


class Communicator(Part, kind="communicator"):
    """Base of all communicators: give `rank`, `size` and `board`, and implement the operations.

    Buffers are C-contiguous NumPy arrays. Every rank of a group makes the same collective calls in the same order, with
    the same dtypes and numbers of elements; `send` and `recv` concern two ranks alone.

    One that changes another one derives from `flnb.distributed.Forwarding`, which has an example.

    Attributes:
        rank: the number of this rank in the group, from 0.
        size: the number of ranks.
        group_name: what recordings call the group, the same on all its ranks; the communicator's name if empty.
        board: where the ranks of the group see each other's calls (`flnb.dispatch.board.Board`), without which a rank
            that makes another call or is gone is noticed at the timeout only; None for one rank.
        timeout: seconds after which a call that other ranks have not joined is an error.
        location: where the tensors are that collective calls take besides NumPy arrays, such as "cuda:1".
    """

    name: ClassVar[str] = "abstract"
    rank: int = 0
    size: int = 1
    group_name: str = ""
    board: Any = None
    timeout: float = 300.0
    location: str = "host"

    ranks_group: Any = None
    """What the crossing knows of the group; it is set there."""
    arriving: Callable[[], None] | None = None
    """A method called before each call, before other ranks can see it; None, the default, is quicker."""

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """Replace the elements by their sum, maximum or minimum over all ranks, which all get the same bits."""
        raise self._missing("all_reduce")

    def all_reduce_multiple(self, buffers: Sequence[Any], op: str = "sum") -> Work:
        """`all_reduce` of several buffers as one operation; here one after the other."""
        return All([self.all_reduce(buffer, op) for buffer in buffers])

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """Write the buffers of all ranks one behind the other, in the order of ranks, into ``out`` on every rank."""
        raise self._missing("all_gather")

    def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
        """Reduce a buffer of ``size`` equal parts over all ranks, of which rank i receives part i in ``out``."""
        raise self._missing("reduce_scatter")

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """Replace the elements by those of the rank ``root``."""
        raise self._missing("broadcast")

    def send(self, buffer: Any, to: int, tag: int = 0) -> Work:
        """Send a buffer to the rank ``to``, which must receive it under the same ``tag``."""
        raise self._missing("send")

    def recv(self, buffer: Any, source: int, tag: int = 0) -> Work:
        """Receive what the rank ``source`` sends under this ``tag``."""
        raise self._missing("recv")

    def barrier(self) -> Work:
        """Finish when every rank has come here."""
        raise self._missing("barrier")

    def split(self, color: int, key: int) -> Communicator:
        """Make a communicator of the ranks that give the same ``color``, ordered by ``key``. All ranks call it."""
        raise self._missing("split")

    def close(self) -> None:
        """Release what the communicator holds, such as shared memory."""

    def _missing(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"communicator {self.name!r} does not implement {method!r}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} communicator {self.name!r}, rank {self.rank} of {self.size}>"


class All(Work):
    """Several operations, finished when all of them are."""

    def __init__(self, works: Sequence[Work]) -> None:
        self._left = list(works)

    def test(self) -> bool:
        """Whether every one has finished."""
        self._left = [work for work in self._left if not work.test()]
        return not self._left


class Rendezvous:
    """A place where ranks exchange a few bytes before they can communicate: implement `put` and `get`.

    Attributes:
        rank: the number of this rank, from 0.
        size: the number of ranks.
    """

    rank: int = 0
    size: int = 1

    def put(self, key: str, value: bytes) -> None:
        """Store a value that every rank can get. A key is used once."""
        raise NotImplementedError(f"{type(self).__name__} does not implement 'put'")

    def get(self, key: str, timeout: float) -> bytes:
        """The value of a key, as soon as a rank has stored it.

        Raises:
            TimeoutError: no rank has stored it within ``timeout`` seconds.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement 'get'")

    def close(self) -> None:
        """Release what the rendezvous holds; what this rank has put may be gone then."""
