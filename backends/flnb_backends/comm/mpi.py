"""Communicator of MPI processes through mpi4py, started by mpiexec, Slurm or ipyparallel.

Every operation uses MPI's non-blocking function. Ranks of one host share the board through a file without a name.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from functools import cache
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
from flnb_telemetry.extras import require

from flnb.dispatch.board import FAILED, GAVE_UP, LEFT, Board
from flnb.dispatch.communication import difference, run
from flnb.interface.communicator import All, CollectiveError, Communicator, Work
from flnb_backends.comm.hosts import end_exchange, make_board
from flnb_backends.comm.rendezvous import Folder, Messages

if TYPE_CHECKING:
    from collections.abc import Callable

FLIGHT = "FLNB_FLIGHT"
"""Environment variable with the folder that `flnb launch` reads after the ranks have ended."""


SUMMED = frozenset(np.dtype(code) for code in "bhilqBHILQfdgFDG")
"""Dtypes that MPI can sum."""
SHARED = ("/dev/shm/mpich_shm_", "/dev/shm/sm_segment.")
"""The prefixes of the names of shared-memory files of MPICH and Open MPI."""


class Converted(Work):
    """An MPI request on a copy of a buffer, converted to a dtype that MPI can reduce.

    When the request has finished, `test` converts the result to the buffer's dtype and writes it to the buffer.
    """

    def __init__(self, request: Any, wide: Any, buffer: Any, sent: Any = None) -> None:
        self._request, self._wide, self._buffer = request, wide, buffer
        self._sent = sent  # MPI reads it until the end, and mpi4py does not hold it

    def test(self) -> bool:
        """Return whether the request has finished."""
        if self._request is not None and self._request.Test():
            np.copyto(self._buffer, self._wide, casting="unsafe")
            self._request = None
        return self._request is None


class Mpi(Communicator):
    """The ranks of an MPI communicator, by default MPI's world.

    Half precision is reduced in float32, because MPI has no bfloat16, and not every MPI library has float16.

    Raises:
        ImportError: mpi4py is not installed (extra "mpi").
    """

    name: ClassVar[str] = "mpi"

    def __init__(self, communicator: Any = None, group: str = "") -> None:
        if communicator is None:
            _join()
        mpi = _library()
        self._engine = (mpi.COMM_WORLD if communicator is None else communicator).Dup()
        self.rank, self.size, self.group_name = self._engine.rank, self._engine.size, group
        self._splits = 0
        self._all_reduce, self._in_place = self._engine.Iallreduce, mpi.IN_PLACE
        flight = os.environ.get(FLIGHT)
        if flight:
            Path(flight, f"shared_{os.getpid()}").write_text("\n".join(_shared_files()))
        expected = int(os.environ.get("FLNB_RANKS", 0))
        if communicator is None and expected and expected != self.size:
            raise RuntimeError(
                f"flnb launch started {expected} ranks, but MPI knows {self.size}: mpiexec does not belong to the "
                f"library {mpi.Get_library_version().splitlines()[0]!r}; name the right mpiexec in FLNB_MPIEXEC"
            )
        self._kinds = {dtype: mpi.Datatype.fromcode(dtype.char) for dtype in SUMMED}  # quicker than to have it found
        self._work: Callable[[Any], Work] = _requests(mpi)
        self._receiving: WeakValueDictionary[tuple[int, int], Receiving] = WeakValueDictionary()
        self._operations = {"sum": mpi.SUM, "max": mpi.MAX, "min": mpi.MIN}
        self.board = None
        if self.size > 1:
            prefix = f"board_{len(_boards):03d}_" if flight else "flnb_board_"
            meeting = self._engine.Dup()
            self.board = make_board(Messages(meeting), mpi.COMM_WORLD.rank, flight, prefix, self.timeout)
            meeting.Free()
            _watch_end(self.board)

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """Reduce a buffer over all ranks in place, by ``MPI_Iallreduce``."""
        if kind := self._kinds.get(buffer.dtype):
            return self._work(self._all_reduce(self._in_place, (buffer, kind), self._operations[op]))
        wide = _wide(buffer)
        return Converted(self._all_reduce(self._in_place, wide, self._operations[op]), wide, buffer)

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """Gather the buffers of all ranks into ``out``, by ``MPI_Iallgather``."""
        return self._work(self._engine.Iallgather(_bytes(buffer), _bytes(out)))

    def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
        """Reduce the buffers of all ranks, and write this rank's part to ``out``, by ``MPI_Ireduce_scatter_block``."""
        wide, operation = _wide(buffer), self._operations[op]
        if wide is buffer:
            return self._work(self._engine.Ireduce_scatter_block(buffer, out, operation))
        made = np.empty(out.shape, wide.dtype)
        request = self._engine.Ireduce_scatter_block(wide, made, operation)
        return Converted(request, made, out, wide)

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """Copy the buffer of rank ``root`` to the buffers of all ranks, by ``MPI_Ibcast``."""
        return self._work(self._engine.Ibcast(_bytes(buffer), root))

    def send(self, buffer: Any, to: int, tag: int = 0) -> Work:
        """Send a header (dtype and number of elements) and the buffer, by ``MPI_Isend``."""
        works = [self._work(self._engine.Isend(_bytes(each), to, tag)) for each in (_header(buffer), buffer)]
        return All(works)

    def recv(self, buffer: Any, source: int, tag: int = 0) -> Work:
        """Receive the header, then the buffer if the header matches, by ``MPI_Irecv``."""
        before = self._receiving.get((source, tag))
        work = self._receiving[source, tag] = Receiving(self._engine, buffer, source, tag, before)
        return work

    def barrier(self) -> Work:
        """Start a barrier by ``MPI_Ibarrier``; the returned `Work` ends when all ranks have called."""
        return self._work(self._engine.Ibarrier())

    def split(self, color: int, key: int) -> Communicator:
        """Return a communicator of the ranks with the same ``color``, ordered by ``key``, by ``MPI_Comm_split``."""
        run("barrier", on=self)  # MPI's call blocks: a rank that will not come is found here
        self._splits += 1
        part = self._engine.Split(color, key)
        made = Mpi(part, f"{self.group_name or self.name}/{self._splits}.{color}")
        part.Free()
        return made

    def close(self) -> None:
        """Free the MPI communicator (MPI allows about 2000); every rank of the group must call this."""
        if self.board is not None and self.board in _boards[1:]:  # the first one tells of the process
            _boards.remove(self.board)
            end_exchange(self.board)
        if self.board is None or self.board.row(self.rank).state not in (FAILED, GAVE_UP):  # else some may not come
            self._engine.Free()


HEADER = Struct("=q24s")  # number of elements, name of the dtype


def _header(buffer: Any) -> Any:
    """Return the header that is sent before a message: dtype and number of elements, which the receiver checks."""
    return np.frombuffer(HEADER.pack(buffer.size, buffer.dtype.name.encode()), np.uint8)


class Receiving(Work):
    """An incoming message, header first; ``before`` is the previous message of the same rank and tag, if any.

    A message is requested from MPI only after the previous message, because MPI delivers headers and buffers in the
    order in which they were requested.
    """

    def __init__(self, engine: Any, buffer: Any, source: int, tag: int, before: Receiving | None) -> None:
        self._engine, self._buffer, self._channel, self._before = engine, buffer, (source, tag), before
        self._header = np.empty(HEADER.size, np.uint8)
        self._request: Any = None
        self._checked = False
        self._asked()

    def _asked(self) -> bool:
        """Request the next part of the message (header, then buffer) if possible; return whether all is requested."""
        if self._checked:
            return True
        if self._before is not None and not self._before._asked():
            return False
        self._before = None
        if self._request is None:
            self._request = self._engine.Irecv(self._header, *self._channel)
        if self._request.Test():
            self._checked = True
            self._check()
            self._request = self._engine.Irecv(_bytes(self._buffer), *self._channel)
        return self._checked

    def test(self) -> bool:
        """Return whether the message has arrived; raises an error if its dtype or size differ from the buffer's."""
        return self._asked() and bool(self._request.Test())

    def _check(self) -> None:
        size, name = HEADER.unpack(self._header.tobytes())
        sent = f"{name.rstrip(bytes(1)).decode()}[{size}]"
        expected = f"{self._buffer.dtype.name}[{self._buffer.size}]"
        if sent != expected:
            raise CollectiveError(
                f"recv: rank {self._channel[0]} sent {sent}, rank {self._engine.rank} expected {expected}"
            )


def _bytes(buffer: Any) -> Any:
    """View a buffer as bytes, so that MPI can move any dtype."""
    return buffer.reshape(-1).view(np.uint8) if buffer.size else np.empty(0, np.uint8)


def _wide(buffer: Any) -> Any:
    """Return the buffer if MPI can sum its dtype, else a copy in a wider dtype."""
    if buffer.dtype in SUMMED:
        return buffer
    return buffer.astype(np.int32 if buffer.dtype.kind == "b" else np.float32)


def _shared_files() -> list[str]:
    """Return the paths of the shared memory files that MPI has created in this process."""
    if not os.path.exists("/proc/self/maps"):
        return []
    with open("/proc/self/maps") as maps:
        return sorted({line.split()[-1] for line in maps if any(name in line for name in SHARED)})


def _join() -> None:
    """Wait for all ranks of `flnb launch`, because MPI's own wait for them cannot be interrupted or diagnosed.

    Raises:
        CollectiveError: a rank has ended, or has not come before the timeout.
    """
    flight, rank, size = (os.environ.get(name, "") for name in (FLIGHT, "FLNB_RANK", "FLNB_RANKS"))
    if not flight or not rank or not size:
        return
    meeting = Folder(flight, int(rank), int(size))
    meeting.put(f"joined_{rank}", b"")
    if "mpi4py.MPI" in sys.modules:
        return  # the script itself has begun MPI
    end = time.monotonic() + Mpi.timeout
    for other in range(meeting.size):
        while True:
            ended = Path(flight, f"ended_{other}").exists()  # before the look for its arrival
            try:
                meeting.get(f"joined_{other}", timeout=0.0 if ended else 0.1)
                break
            except TimeoutError as error:
                if ended or time.monotonic() > end:
                    what = "has ended without calling" if ended else f"has not called within {Mpi.timeout:g} s"
                    raise CollectiveError(
                        f"rank {other} {what} flnb.distributed.init(); rank {rank} waits in it"
                    ) from error


def _library() -> Any:
    """Import ``mpi4py.MPI`` without its call of MPI_Finalize at exit, which `_watch_end` and `_finalize` replace."""
    if "mpi4py.MPI" not in sys.modules:
        require("mpi4py", "mpi", "communication between processes").rc.finalize = False
        atexit.register(_finalize, os.getpid())
    return require("mpi4py.MPI", "mpi", "communication between processes")


@cache
def _requests(mpi: Any) -> Any:
    """Return a subclass of mpi4py's ``Request`` that has the method `test`; wrapper objects would be slower."""

    class Request(mpi.Request):  # type: ignore[misc]
        """An MPI request with the method `test`."""

        test = mpi.Request.Test

    return Request


_boards: list[Board] = []
"""The boards of all groups that this process belongs to."""


def _watch_end(board: Board) -> None:
    """Write to the board how this process ends: normally, or by an uncaught exception."""
    _boards.append(board)
    if len(_boards) > 1:
        return
    before, process = sys.excepthook, os.getpid()

    def hook(*error: Any) -> None:
        for each in _boards if os.getpid() == process else ():  # a fork is not a rank
            each.end(FAILED)
        before(*error)

    sys.excepthook = hook


def _others_end(board: Board) -> bool:
    """Wait until the other ranks end; return False if one failed, in which case MPI_Finalize would block forever."""
    others = [rank for rank in range(board.size) if rank != board.rank]
    while (states := {board.row(rank).state for rank in others}) - {LEFT}:
        if states & {FAILED, GAVE_UP}:
            return False
        time.sleep(0.002)
    return True


def _finalize(process: int) -> None:
    """End MPI at exit, unless a rank has failed (MPI would wait forever) or this is a forked child.

    ``process`` is the id of the process that began to use MPI; a forked child has another id.
    """
    if os.getpid() != process:
        return
    failed = any(board.row(board.rank).state in (FAILED, GAVE_UP) for board in _boards)
    for board in _boards:
        board.end()
    if failed or (_boards and not _others_end(_boards[0])):
        if flight := os.environ.get(FLIGHT):
            Path(flight, f"parted_{os.environ.get('FLNB_RANK')}").touch()
        return
    time.sleep(max((board.lag for board in _boards), default=0.0))  # for the last calls of other hosts
    said = [difference(board, seq) for board in _boards if board.lag and (seq := board.trouble())]
    if any(said):
        print(f"CollectiveError: {'; '.join(filter(None, said))}; what the ranks received is wrong", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    sys.modules["mpi4py.MPI"].Finalize()
