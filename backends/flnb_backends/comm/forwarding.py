"""The base class of communicators written in a notebook cell: passes every operation on to another communicator."""

from __future__ import annotations

from typing import Any, ClassVar

from flnb.dispatch.groups import current
from flnb.interface.communicator import Communicator, Work


class Forwarding(Communicator):
    """Passes every operation on to the communicator ``inner``, by default the active one.

    Override methods to change operations. This class counts bytes:

    >>> import flnb
    >>> class Counting(flnb.distributed.Forwarding):
    ...     nbytes = 0
    ...     def all_reduce(self, buffer, op="sum"):
    ...         self.nbytes += buffer.nbytes
    ...         return self.inner.all_reduce(buffer, op)
    >>> with flnb.distributed.use_communicator(Counting) as counting:
    ...     y = flnb.distributed.all_reduce(flnb.ones(3))
    >>> counting.nbytes
    12
    """

    name: ClassVar[str] = "forwarding"

    def __init__(self, inner: Communicator | None = None) -> None:
        self.inner = inner or current()
        self.rank, self.size = self.inner.rank, self.inner.size
        self.group_name = self.inner.group_name or self.inner.name
        self.board, self.timeout = self.inner.board, self.inner.timeout

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """Call the inner communicator's `all_reduce`."""
        return self.inner.all_reduce(buffer, op)

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """Call the inner communicator's `all_gather`."""
        return self.inner.all_gather(buffer, out)

    def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
        """Call the inner communicator's `reduce_scatter`."""
        return self.inner.reduce_scatter(buffer, out, op)

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """Call the inner communicator's `broadcast`."""
        return self.inner.broadcast(buffer, root)

    def send(self, buffer: Any, to: int, tag: int = 0) -> Work:
        """Call the inner communicator's `send`."""
        return self.inner.send(buffer, to, tag)

    def recv(self, buffer: Any, source: int, tag: int = 0) -> Work:
        """Call the inner communicator's `recv`."""
        return self.inner.recv(buffer, source, tag)

    def barrier(self) -> Work:
        """Call the inner communicator's `barrier`."""
        return self.inner.barrier()

    def split(self, color: int, key: int) -> Communicator:
        """Return the inner communicator's new group, which is not wrapped."""
        return self.inner.split(color, key)
