"""Ranks as threads of one process, for laptops, notebooks and tests; data is exchanged in shared memory.

The rank that calls last computes the result of a collective from the buffers of all ranks, in the order of ranks. So
the result has the same bits whichever rank is late.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any, ClassVar

import numpy as np

from flnb.dispatch.board import Board, thread_alive
from flnb.dispatch.communication import run
from flnb.interface.communicator import CollectiveError, Communicator, Work

REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum}

_numbers = itertools.count(1)  # of worlds


class World:
    """State shared by the ranks of a group: a board, and the calls in progress."""

    def __init__(self, size: int, name: str = "") -> None:
        self.size, self.name = size, name or f"threads {next(_numbers)}"
        self.lock = threading.Lock()
        self.rows = bytearray(Board.nbytes(size))
        self.meetings: dict[Any, Meeting] = {}
        self.groups: dict[tuple[int, int], World] = {}

    def communicator(self, rank: int) -> Threads:
        """Make the communicator of a rank, for use by one thread."""
        return Threads(self, rank)


class Meeting:
    """A collective call, or a message between two ranks: collects the ranks' buffers, and then stores the result."""

    def __init__(self, size: int) -> None:
        self.given: dict[int, Any] = {}
        self.left = size
        self.result: Any = None
        self.complete = False


class Met(Work):
    """One rank's handle of a `Meeting`; `test` copies the result to this rank's buffer once all ranks have called."""

    def __init__(self, world: World, key: Any, rank: int, count: int, given: Any, result: Any, take: Any) -> None:
        self._world, self._key, self._take, self._over = world, key, take, False
        with world.lock:
            meeting = self._meeting = world.meetings.setdefault(key, Meeting(count))
            meeting.given[rank] = given
            if len(meeting.given) == count:
                meeting.result = result([meeting.given[rank] for rank in sorted(meeting.given)])
                meeting.complete = True

    def test(self) -> bool:
        """Return whether all ranks have called; if so, the result is in this rank's buffer."""
        if self._over or not self._meeting.complete:
            return self._over
        self._take(self._meeting.result)
        self._over = True
        with self._world.lock:
            self._meeting.left -= 1
            if not self._meeting.left:
                del self._world.meetings[self._key]
        return True


class Threads(Communicator):
    """The communicator of a rank that is a thread of this process; `flnb.distributed.run_threads` creates them.

    >>> import flnb
    >>> def double():
    ...     return flnb.distributed.all_reduce(flnb.ones(2)).tolist()
    >>> flnb.distributed.run_threads(2, double)
    [[2.0, 2.0], [2.0, 2.0]]
    """

    name: ClassVar[str] = "threads"

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.size, self.group_name = world, rank, world.size, world.name
        self.number = rank
        self.board = Board(world.rows, rank, world.size, thread_alive) if world.size > 1 else None
        self._count = 0
        self._messages: dict[Any, int] = {}
        self._splits = 0

    def begin(self) -> None:
        """Register the calling thread as this rank on the board."""
        if self.board is not None:
            self.board.begin(threading.get_ident(), self.number)

    def _meet(self, given: Any, result: Any, take: Any) -> Work:
        self._count += 1
        return Met(self.world, self._count, self.rank, self.size, given, result, take)

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """Reduce the ranks' buffers in rank order, in place."""
        return self._meet(buffer.copy(), lambda all: _reduced(all, op), lambda result: np.copyto(buffer, result))

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """Write the ranks' buffers to ``out``, in rank order."""
        return self._meet(buffer.reshape(-1).copy(), np.concatenate, lambda result: np.copyto(out.reshape(-1), result))

    def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
        """Reduce the ranks' buffers, and write this rank's part to ``out``."""
        part = slice(self.rank * out.size, (self.rank + 1) * out.size)
        return self._meet(
            buffer.reshape(-1).copy(),
            lambda all: _reduced(all, op),
            lambda result: np.copyto(out.reshape(-1), result[part]),
        )

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """Copy the root's buffer to all ranks."""
        return self._meet(buffer.copy(), lambda all: all[root], lambda result: np.copyto(buffer, result))

    def send(self, buffer: Any, to: int, tag: int = 0) -> Work:
        """Store a copy of the buffer for rank ``to``, the receiver."""
        return self._message((self.rank, to, tag), 0, buffer.copy(), lambda result: None)

    def recv(self, buffer: Any, source: int, tag: int = 0) -> Work:
        """Copy the data of rank ``source`` into the buffer, once ``source`` has sent the data."""

        def take(sent: Any) -> None:
            if (sent.shape, sent.dtype) != (buffer.shape, buffer.dtype):
                raise CollectiveError(
                    f"recv: rank {source} sent {sent.dtype.name}{list(sent.shape)}, rank {self.rank} expected "
                    f"{buffer.dtype.name}{list(buffer.shape)}"
                )
            np.copyto(buffer, sent)

        return self._message((source, self.rank, tag), 1, None, take)

    def _message(self, channel: tuple[int, int, int], end: int, given: Any, take: Any) -> Work:
        self._messages[channel] = number = self._messages.get(channel, 0) + 1
        return Met(self.world, (channel, number), end, 2, given, lambda all: all[0], take)

    def barrier(self) -> Work:
        """Start a barrier; the returned `Work` ends when all ranks of the group have called."""
        return self._meet(None, lambda all: None, lambda result: None)

    def split(self, color: int, key: int) -> Communicator:
        """Return a communicator of the ranks with the same ``color``, ordered by ``key``, with its own shared state."""
        everyone = np.empty((self.size, 2), np.int64)
        run("all_gather", np.array([color, key]), everyone, on=self)
        ranks = [rank for rank in range(self.size) if everyone[rank, 0] == color]
        ranks.sort(key=lambda rank: (everyone[rank, 1], rank))
        self._splits += 1
        made = World(len(ranks), f"{self.group_name}/{self._splits}.{color}")
        with self.world.lock:
            world = self.world.groups.setdefault((self._splits, color), made)
        found = world.communicator(ranks.index(self.rank))
        found.number = self.number
        found.begin()
        return found


def _reduced(buffers: list[Any], op: str) -> Any:
    """Reduce buffers in rank order; half precision is summed in float32."""
    wide = np.float32 if buffers[0].dtype.itemsize == 2 and buffers[0].dtype.kind not in "iu" else buffers[0].dtype
    total = buffers[0].astype(wide)
    for buffer in buffers[1:]:
        total = np.asarray(REDUCE[op](total, buffer.astype(wide)))
    return total.astype(buffers[0].dtype)
