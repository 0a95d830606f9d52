"""MPI by mpi4py: the processes that mpiexec, Slurm or ipyparallel started.

Every operation is MPI's non-blocking one. Ranks of one host share the board through a file without a name.
"""

from __future__ import annotations

import atexit
import mmap
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flnb_telemetry.extras import require

from flnb.dispatch.board import FAILED, GAVE_UP, Board, process_alive
from flnb.dispatch.communication import run
from flnb.interface.communicator import Communicator, Work

__all__ = ["Mpi"]

FLIGHT = "FLNB_FLIGHT"
"""Environment variable with the folder that `flnb launch` looks through when the ranks have ended."""


SUMMED = frozenset(np.dtype(code) for code in "bhilqBHILQfdgFDG")
"""Dtypes that MPI can sum."""


class Request(Work):
    """An MPI request."""

    def __init__(self, request: Any) -> None:
        self.test = request.Test  # type: ignore[method-assign]  # one call less


class Converted(Work):
    """An MPI request on a copy of a buffer in another dtype, which is copied back when it has finished."""

    def __init__(self, request: Any, wide: Any, buffer: Any) -> None:
        self._request, self._wide, self._buffer = request, wide, buffer

    def test(self) -> bool:
        """Whether it has finished."""
        if self._request is not None and self._request.Test():
            np.copyto(self._buffer, self._wide, casting="unsafe")
            self._request = None
        return self._request is None


class Mpi(Communicator):
    """The ranks of an MPI communicator, the world's if none is given.

    Half precision travels in float32 where it is summed: MPI has no bfloat16, and not every library has float16.

    Raises:
        ImportError: mpi4py is not installed (extra "mpi").
    """

    name: ClassVar[str] = "mpi"

    def __init__(self, communicator: Any = None, group: str = "") -> None:
        mpi = self._mpi = _library()
        self._engine = (communicator or mpi.COMM_WORLD).Dup()
        self.rank, self.size, self.group_name = self._engine.rank, self._engine.size, group
        self._splits = 0
        self._all_reduce, self._in_place = self._engine.Iallreduce, mpi.IN_PLACE
        self._operations = {"sum": mpi.SUM, "max": mpi.MAX, "min": mpi.MIN}
        self.board = None
        if self.size > 1:
            self.board = Board(self._shared(), self.rank, self.size, process_alive)
            self.board.begin(os.getpid())
            self._engine.Barrier()
            _watch_end(self.board)
            if flight := os.environ.get(FLIGHT):  # `flnb launch` removes what MPI leaves where a job is killed
                Path(flight, f"shared_{os.getpid()}").write_text("\n".join(_shared_files()))

    def _shared(self) -> mmap.mmap:
        """Memory that all ranks see: a file that has lost its name when all have opened it."""
        path, nbytes = None, Board.nbytes(self.size)
        flight = os.environ.get(FLIGHT)  # `flnb launch` reads the board when all ranks are gone
        if self.rank == 0:
            folder = flight or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
            handle, path = tempfile.mkstemp(prefix="board_" if flight else "flnb_board_", dir=folder)
            os.truncate(handle, nbytes)
        path = self._engine.bcast(path)
        if self.rank:
            handle = os.open(path, os.O_RDWR)
        memory = mmap.mmap(handle, nbytes)
        os.close(handle)
        self._engine.Barrier()
        if self.rank == 0 and not flight:
            os.unlink(path)
        return memory

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """``MPI_Iallreduce`` in place."""
        wide = buffer if buffer.dtype in SUMMED else _wide(buffer)
        request = self._all_reduce(self._in_place, wide, self._operations[op])
        return Request(request) if wide is buffer else Converted(request, wide, buffer)

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """``MPI_Iallgather``."""
        return Request(self._engine.Iallgather(_bytes(buffer), _bytes(out)))

    def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
        """``MPI_Ireduce_scatter_block``."""
        wide, operation = _wide(buffer), self._operations[op]
        if wide is buffer:
            return Request(self._engine.Ireduce_scatter_block(buffer, out, operation))
        made = np.empty(out.shape, wide.dtype)
        request = self._engine.Ireduce_scatter_block(wide, made, operation)
        return Converted(request, made, out)

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """``MPI_Ibcast``."""
        return Request(self._engine.Ibcast(_bytes(buffer), root))

    def send(self, buffer: Any, to: int, tag: int = 0) -> Work:
        """``MPI_Isend``."""
        return Request(self._engine.Isend(_bytes(buffer), to, tag))

    def recv(self, buffer: Any, source: int, tag: int = 0) -> Work:
        """``MPI_Irecv``."""
        return Request(self._engine.Irecv(_bytes(buffer), source, tag))

    def barrier(self) -> Work:
        """``MPI_Ibarrier``."""
        return Request(self._engine.Ibarrier())

    def split(self, color: int, key: int) -> Communicator:
        """``MPI_Comm_split``."""
        run("barrier", on=self)  # MPI's call blocks: a rank that will not come is found here
        self._splits += 1
        return Mpi(self._engine.Split(color, key), f"{self.group_name or self.name}/{self._splits}.{color}")


def _bytes(buffer: Any) -> Any:
    """A buffer as bytes: MPI need not know the dtype of what it only moves."""
    return buffer.reshape(-1).view(np.uint8) if buffer.size else np.empty(0, np.uint8)


def _wide(buffer: Any) -> Any:
    """The buffer, or a copy in a dtype that MPI can sum."""
    if buffer.dtype in SUMMED:
        return buffer
    return buffer.astype(np.uint8 if buffer.dtype.kind == "b" else np.float32)


def _shared_files() -> list[str]:
    """The files in shared memory that MPI has made for this process."""
    with open("/proc/self/maps") as maps:
        return sorted({line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line})


def _library() -> Any:
    """mpi4py's MPI, which does not end itself when the process does: `_watch_end` sees to that."""
    if "mpi4py.MPI" not in sys.modules:
        require("mpi4py", "mpi", "communication between processes").rc.finalize = False
        atexit.register(_finalize)
    return require("mpi4py.MPI", "mpi", "communication between processes")


_boards: list[Board] = []
"""Of all groups of this process."""


def _watch_end(board: Board) -> None:
    """Write on the board how this process ends: by an exception that nobody catches, or as it should."""
    _boards.append(board)
    if len(_boards) > 1:
        return
    before = sys.excepthook

    def hook(*error: Any) -> None:
        for each in _boards:
            each.end(FAILED)
        before(*error)

    sys.excepthook = hook


def _finalize() -> None:
    """End MPI, which waits for all ranks; where a group has failed one of them may never come."""
    failed = any(board.row(board.rank).state in (FAILED, GAVE_UP) for board in _boards)
    for board in _boards:
        board.end()
    if not failed:
        sys.modules["mpi4py.MPI"].Finalize()
