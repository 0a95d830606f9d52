"""The board: memory that all ranks of a host share, in which each of them writes what it does.

Every rank has a row: its process, its state, and its last calls by sequence number. Ranks read it to find out whether
the others make the same call, and who has died, stopped or not come. It outlives the ranks that wrote it.
"""

from __future__ import annotations

import threading
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CALLS", "FAILED", "GAVE_UP", "INSIDE", "LEFT", "NOT_BEGUN", "OUTSIDE", "STATES", "Board", "Row"]

NOT_BEGUN, OUTSIDE, INSIDE, LEFT, FAILED, GAVE_UP = range(6)
"""States of a rank: before its first call, between calls, in one; ended as it should, by an error of its own, or
because of other ranks (a `CollectiveError`)."""
STATES = ("has not begun", "is between calls", "is in a call", "has ended", "has failed", "has given up")

CALLS = 64
"""Calls of each rank that the board holds, the last ones."""
TEXT = 88
"""Bytes of the text that describes a call, in UTF-8."""

_HEAD = Struct("@qqqd")  # process or thread, state, sequence number of the last call, time of the last change
_CALL = Struct(f"@qq{TEXT}s")  # sequence number, a number that stands for the whole call, text
_ROW = _HEAD.size + CALLS * _CALL.size


class Row(NamedTuple):
    """What the board says of one rank: ``seconds`` since it last changed, and its last call (0 and "": none)."""

    process: int
    state: int
    seq: int
    seconds: float
    call: str


class Board:
    """The rows of a group's ranks in shared memory.

    Args:
        memory: writable bytes that all ranks see, `Board.nbytes` of them, zero at first.
        rank: the row that is written here; the others are only read.
        alive: tells of the process (or thread) in a row: "" while it runs, "gone", or "stopped".
    """

    def __init__(self, memory: Any, rank: int, size: int, alive: Callable[[int], str]) -> None:
        self.memory, self.rank, self.size, self._alive = memory, rank, size, alive
        self._row = rank * _ROW
        self._process = self._last = 0
        self._others = [other for other in range(size) if other != rank]
        self._first_words = [(other * _ROW + _HEAD.size) // 8 for other in self._others]  # of their calls

    @staticmethod
    def nbytes(size: int) -> int:
        """Bytes of shared memory for so many ranks."""
        return size * _ROW

    def begin(self, process: int) -> None:
        """Write that this rank has begun, as a process (or thread) of this number."""
        self._process = process
        self._words = memoryview(self.memory).cast("q")  # reading one is three times as quick as unpacking
        _HEAD.pack_into(self.memory, self._row, process, OUTSIDE, 0, monotonic())

    def end(self, state: int = LEFT) -> None:
        """Write that this rank makes no more calls, and why: `LEFT`, `FAILED` or `GAVE_UP`. The first word stands."""
        process, before, seq, _ = _HEAD.unpack_from(self.memory, self._row)
        if before < LEFT:
            _HEAD.pack_into(self.memory, self._row, process, state, seq, monotonic())

    def resume(self) -> None:
        """Write that this rank makes calls again after it had ended as it should, in the next cell of a notebook."""
        process, before, seq, _ = _HEAD.unpack_from(self.memory, self._row)
        if before == LEFT:
            _HEAD.pack_into(self.memory, self._row, process, OUTSIDE, seq, monotonic())

    def enter(self, seq: int, call: bytes, key: int = 0) -> None:
        """Write that this rank begins a call; ``key`` is a number that equal calls alone have in common."""
        row = self._row
        _CALL.pack_into(self.memory, row + _HEAD.size + seq % CALLS * _CALL.size, seq, key, call)
        _HEAD.pack_into(self.memory, row, self._process, INSIDE, seq, monotonic())
        self._last = seq

    def leave(self, seq: int) -> None:
        """Write that the call has finished here. One that was made after it may have finished before."""
        _HEAD.pack_into(self.memory, self._row, self._process, OUTSIDE, max(seq, self._last), monotonic())

    def agrees(self, seq: int, key: int) -> bool:
        """Whether all ranks that have come to a call make this one."""
        words, at = self._words, seq % CALLS * (_CALL.size // 8)
        for first in self._first_words:  # noqa: SIM110  # in a hot path
            if words[first + at] == seq and words[first + at + 1] != key:
                return False
        return True

    def differing(self, seq: int, call: bytes) -> list[int]:
        """The ranks that made another call under this sequence number, of those that have come to it."""
        at = _HEAD.size + seq % CALLS * _CALL.size
        mine = self.memory[self._row + at : self._row + at + _CALL.size]
        found = []
        for other in self._others:
            begin = other * _ROW + at
            theirs = self.memory[begin : begin + _CALL.size]
            if theirs != mine and _CALL.unpack(theirs)[0] == seq:
                found.append(other)
        return found

    def call(self, rank: int, seq: int) -> str:
        """What a rank did under a sequence number, "" if the board does not hold it."""
        known, _, text = _CALL.unpack_from(self.memory, rank * _ROW + _HEAD.size + seq % CALLS * _CALL.size)
        return text.rstrip(b"\0").decode(errors="replace") if known == seq else ""

    def row(self, rank: int) -> Row:
        """A rank's row."""
        process, state, seq, since = _HEAD.unpack_from(self.memory, rank * _ROW)
        return Row(process, state, seq, monotonic() - since, self.call(rank, seq))

    def missing(self, seq: int) -> list[int]:
        """The ranks that have not come to a call."""
        return [other for other in self._others if self.row(other).seq < seq]

    def unfinished(self, seq: int) -> list[int]:
        """The ranks that have not come to a call, or not to its end."""
        rows = [(other, self.row(other)) for other in self._others]
        return [other for other, row in rows if row.seq < seq or (row.seq == seq and row.state not in (OUTSIDE, LEFT))]

    def gone(self, ranks: list[int]) -> dict[int, str]:
        """A sentence about each of these ranks that will not come: it ended, died, or is stopped for a second."""
        found = {}
        for rank in ranks:
            row = self.row(rank)
            life = self._alive(row.process) if row.state != NOT_BEGUN else ""
            if row.state >= LEFT:
                found[rank] = f"rank {rank} {STATES[row.state]}; {self.last(rank)}"
            elif life == "gone":
                found[rank] = f"rank {rank} (process {row.process}) has died; {self.last(rank)}"
            elif life == "stopped" and row.seconds > 1.0:
                found[rank] = f"rank {rank} (process {row.process}) is stopped (SIGSTOP); {self.last(rank)}"
        return found

    def last(self, rank: int) -> str:
        """A sentence about a rank's last call."""
        row = self.row(rank)
        if not row.seq:
            return "it has made no call"
        return f"its last call was {row.seq}, {row.call}, {row.seconds:.1f} s ago"

    def history(self) -> list[dict[str, Any]]:
        """Everything on the board, for `flight.json`: of each rank its process, state and last calls."""
        return [
            {
                "rank": rank, "process": row.process, "state": STATES[row.state], "sequence": row.seq,
                "seconds_since": row.seconds,
                "calls": {seq: self.call(rank, seq) for seq in range(max(1, row.seq - CALLS + 1), row.seq + 1)},
            }
            for rank in range(self.size)
            for row in [self.row(rank)]
        ]  # fmt: skip


def process_alive(process: int) -> str:
    """Whether a process of this host runs: "", "gone" or "stopped"."""
    try:
        with open(f"/proc/{process}/stat") as file:
            state = file.read().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(state, "")


def thread_alive(ident: int) -> str:
    """Whether a thread of this process runs: "" or "gone"."""
    return "" if any(thread.ident == ident for thread in threading.enumerate()) else "gone"
