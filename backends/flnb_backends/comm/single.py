"""The communicator of a program that runs alone: a group of one rank."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from flnb.interface.communicator import Communicator, Done, Work

DONE = Done()


class Single(Communicator):
    """A group of one rank: every collective returns the rank's own data.

    >>> import flnb
    >>> flnb.distributed.size()
    1
    """

    name: ClassVar[str] = "single"

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """Leave the buffer unchanged: a reduction over one rank returns its data."""
        return DONE

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """Copy the buffer to ``out``."""
        np.copyto(out.reshape(-1), buffer.reshape(-1))
        return DONE

    def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
        """Copy the buffer to ``out``."""
        return self.all_gather(buffer, out)

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """Leave the buffer unchanged: there is no other rank."""
        return DONE

    def barrier(self) -> Work:
        """Return a finished call: there is no other rank to wait for."""
        return DONE

    def split(self, color: int, key: int) -> Communicator:
        """Return another group of one rank."""
        return Single()
