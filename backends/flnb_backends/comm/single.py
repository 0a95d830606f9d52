"""A group of one rank, which is what a program has until it asks for more."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from flnb.interface.communicator import Communicator, Done, Work

__all__ = ["Single"]

DONE = Done()


class Single(Communicator):
    """One rank: results are its own buffers.

    >>> import flnb
    >>> flnb.distributed.size()
    1
    """

    name: ClassVar[str] = "single"

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """Leave the buffer as it is."""
        return DONE

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """Copy the buffer to ``out``."""
        np.copyto(out.reshape(-1), buffer.reshape(-1))
        return DONE

    def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
        """Copy the buffer to ``out``."""
        return self.all_gather(buffer, out)

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """Leave the buffer as it is."""
        return DONE

    def barrier(self) -> Work:
        """Finish at once."""
        return DONE

    def split(self, color: int, key: int) -> Communicator:
        """Make another group of one."""
        return Single()
