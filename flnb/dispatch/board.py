"""The board: memory shared by the ranks of a host, where each rank writes its state and its latest calls.

Every rank has a row: its process, its state, and its last calls by sequence number. Ranks read the rows of the others
to find out whether all make the same call, and which ranks have died, stopped or not started the call. The board
outlives the ranks that wrote to it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_BEGUN, OUTSIDE, INSIDE, LEFT, FAILED, GAVE_UP = range(6)
"""The states of a rank: before its first call, between two calls, inside a call, ended normally, ended by an error of
its own, or ended because of other ranks (a `CollectiveError`)."""
STATES = ("has not begun", "is between calls", "is in a call", "has ended", "has failed", "has given up")

CALLS = 64
"""The number of most recent calls that the board stores for each rank."""
TEXT = 88
"""The largest size, in bytes of UTF-8, of the text that describes a call."""

_HEAD = Struct("@qqqd")  # process or thread, state, sequence number of the last call, time of the last change
_PLACE = Struct("@qqq")  # number of the rank among all that were started, host, what its host reports of its life
_CALLS = _HEAD.size + _PLACE.size
_CALL = Struct(f"@qqq{TEXT}s")  # sequence number, number that stands for the call, digest of all calls so far, text
_WHAT = Struct(f"@qq{TEXT}s")  # a call without its sequence number
_ROW = _CALLS + CALLS * _CALL.size
LIVES = ("", "gone", "stopped", "silent")
"""The states of a process: running, ended, stopped (SIGSTOP), or on a host that has stopped sending messages."""
FATES = {"gone": "has died", "stopped": "is stopped (SIGSTOP)", "silent": "is on a host without a sign of life"}
"""How messages describe a process in one of these states."""
LASTING = 1.0
"""Seconds for which a rank must be stopped, or have ended normally, before it is reported to those that wait for it."""


class Row(NamedTuple):
    """One rank's row of the board: its process, its state and its last call.

    Attributes:
        seq, call: the number and the text of the last call; 0 and "" if there was none.
        seconds: the time since the rank last changed its row.
        number: the rank's number among all ranks of the program, for messages. In a smaller group, the rank may have
            another number.
    """

    process: int
    state: int
    seq: int
    seconds: float
    call: str
    number: int
    host: int
    life: int


class Board:
    """A table in shared memory with one row for each rank of a group.

    Args:
        memory: writable memory that all ranks share, of `Board.nbytes` bytes, initially zero.
        rank: this rank; the object writes the row of this rank and only reads the other rows.
        alive: a function from the number of a process (or thread) to its state: "" while it runs, "gone" or "stopped".
        host: the number of this rank's host; rows of ranks on other hosts are copies, which `take` stores.
    """

    lag = 0.0
    """The largest delay in seconds of changes by ranks on other hosts; 0 if all ranks are on one host."""
    _digest = 0

    def __init__(self, memory: Any, rank: int, size: int, alive: Callable[[int], str], host: int = 0) -> None:
        self.memory, self.rank, self.size, self._alive = memory, rank, size, alive
        self._row = rank * _ROW
        self._process, self._last, self._host = 0, 0, host
        self._others = [other for other in range(size) if other != rank]
        self._first_words = [(other * _ROW + _CALLS) // 8 for other in self._others]  # of their calls

    @staticmethod
    def nbytes(size: int) -> int:
        """Return the bytes of shared memory needed for ``size`` ranks."""
        return size * _ROW + 8

    @staticmethod
    def size_of(memory: Any) -> int:
        """Return the number of ranks whose rows fit into ``memory``."""
        return len(memory) // _ROW

    def begin(self, process: int, number: int | None = None) -> None:
        """Write that this rank has started, with the id of its process (or thread) and its number among all ranks."""
        self._process = process
        self._words = memoryview(self.memory).cast("q")  # reading one is three times as quick as unpacking
        _PLACE.pack_into(self.memory, self._row + _HEAD.size, self.rank if number is None else number, self._host, 0)
        _HEAD.pack_into(self.memory, self._row, process, OUTSIDE, 0, monotonic())

    def end(self, state: int = LEFT) -> None:
        """Write that this rank makes no more calls, and the reason: `LEFT`, `FAILED` or `GAVE_UP`.

        A second call does not change the reason.
        """
        process, before, seq, _ = _HEAD.unpack_from(self.memory, self._row)
        if before < LEFT:
            _HEAD.pack_into(self.memory, self._row, process, state, seq, monotonic())

    def resume(self) -> None:
        """Write that this rank makes calls again after it ended normally, as in the next cell of a notebook."""
        process, before, seq, _ = _HEAD.unpack_from(self.memory, self._row)
        if before == LEFT:
            _HEAD.pack_into(self.memory, self._row, process, OUTSIDE, seq, monotonic())

    def enter(self, seq: int, call: bytes, key: int = 0) -> None:
        """Write that this rank starts call ``seq``, described by the text ``call``; equal calls have equal keys."""
        row, at = self._row, self._row + _CALLS + seq % CALLS * _CALL.size
        if self.lag:  # rows of other hosts are compared now and then only
            self._digest = crc32(call, self._digest)
        _WHAT.pack_into(self.memory, at + 8, key, self._digest, call)
        self._words[at // 8] = seq  # last: a rank may be halted here, and others must not read half a call
        _HEAD.pack_into(self.memory, row, self._process, INSIDE, seq, monotonic())
        self._last = seq

    def leave(self) -> None:
        """Write that this rank is between calls, because one of its calls has finished."""
        _HEAD.pack_into(self.memory, self._row, self._process, OUTSIDE, self._last, monotonic())

    def agrees(self, seq: int, key: int) -> bool:
        """Return whether all ranks that have started call number ``seq`` made the call that ``key`` identifies."""
        words, at = self._words, seq % CALLS * (_CALL.size // 8)
        for first in self._first_words:  # noqa: SIM110  # in a hot path
            if words[first + at] == seq and words[first + at + 1] != key:
                return False
        return True

    def differing(self, seq: int, key: int = 0) -> list[int]:
        """Return the ranks whose call number ``seq`` differs from this rank's call.

        If more than `CALLS` calls are running, this rank's row no longer has the call; then ``key`` is compared.
        """
        at = _CALLS + seq % CALLS * _CALL.size
        mine = self.memory[self._row + at : self._row + at + _CALL.size]
        held = _CALL.unpack(mine)[0] == seq
        found = []
        for other in self._others:
            theirs = self.memory[other * _ROW + at : other * _ROW + at + _CALL.size]
            known, of_theirs, *_ = _CALL.unpack(theirs)
            if known == seq and (theirs != mine if held else key not in (0, of_theirs)):
                found.append(other)
        return found

    def call(self, rank: int, seq: int) -> str:
        """Return the text of a rank's call number ``seq``; "" if that call is not on the board, or not any more."""
        known, _, _, text = _CALL.unpack_from(self.memory, rank * _ROW + _CALLS + seq % CALLS * _CALL.size)
        return text.rstrip(b"\0").decode(errors="replace") if known == seq else ""

    def row(self, rank: int) -> Row:
        """Return the row of a rank."""
        process, state, seq, since = _HEAD.unpack_from(self.memory, rank * _ROW)
        place = _PLACE.unpack_from(self.memory, rank * _ROW + _HEAD.size)
        return Row(process, state, seq, monotonic() - since, self.call(rank, seq), *place)

    def name(self, rank: int) -> str:
        """Return the name of a rank for messages: "rank 3", with its number among all ranks of the program."""
        return f"rank {self.row(rank).number}" if self.row(rank).state != NOT_BEGUN else f"rank {rank}"

    def missing(self, seq: int) -> list[int]:
        """Return the ranks that have not started call number ``seq``."""
        return [other for other in self._others if self.row(other).seq < seq]

    def unfinished(self, seq: int) -> list[int]:
        """Return the ranks for which call ``seq`` may still wait: all except those that started it and ended normally.

        A rank that has started later calls may not have finished this call, because several calls can run at once.
        """
        rows = [(other, self.row(other)) for other in self._others]
        return [other for other, row in rows if row.seq < seq or row.state != LEFT]

    def gone(self, ranks: list[int], seq: int) -> dict[int, str]:
        """Return a dict from each of ``ranks`` that will not make call ``seq`` to the reason: ended, died, or stopped.

        A rank that started the call and then ended normally is not reported in the first second, because its last data
        may still arrive. For a message (``seq`` 0), this applies to every rank that ended normally.
        """
        found: dict[int, str] = {}
        for rank in sorted(ranks, key=lambda rank: self.row(rank).state == GAVE_UP):  # causes first
            row = self.row(rank)
            life = self._life(row)
            if row.state == NOT_BEGUN or (life == "stopped" and row.seconds <= LASTING):
                continue
            if row.state >= LEFT and not (row.state == LEFT and row.seq >= seq and row.seconds <= LASTING):
                found[rank] = f"{self.name(rank)} {STATES[row.state]}; {self.last(rank)}"
            elif row.state < LEFT and life:
                found[rank] = f"{self.name(rank)} (process {row.process}) {FATES[life]}; {self.last(rank)}"
        return found

    def _life(self, row: Row) -> str:
        """Return the state of a rank's process, "" if it is running; for another host, the last reported state."""
        if row.state == NOT_BEGUN:
            return ""
        return self._alive(row.process) if row.host == self._host else LIVES[row.life]

    def last(self, rank: int) -> str:
        """Return a clause for a message: a rank's last call, and how long ago the rank last changed its row."""
        row = self.row(rank)
        if not row.seq:
            return "it has made no call"
        return f"its last call was {row.seq}, {row.call}, {row.seconds:.1f} s ago"

    def report(self, to: int | None = None) -> bytes:
        """Return rows as bytes, for `take` on another host; by default the rows of this host's ranks.

        If ``to``, the number of a host, is given, the result has the rows of all ranks that are not on that host.
        """
        found = [self._host.to_bytes(8, "little")]
        for rank in range(self.size):
            row = self.row(rank)
            if row.state != NOT_BEGUN and (row.host == self._host if to is None else row.host != to):
                copy = bytearray(self.memory[rank * _ROW : (rank + 1) * _ROW])
                _HEAD.pack_into(copy, 0, row.process, row.state, row.seq, row.seconds)  # clocks differ
                _PLACE.pack_into(copy, _HEAD.size, row.number, row.host, LIVES.index(self._life(row)))
                found += [rank.to_bytes(8, "little"), bytes(copy)]
        return b"".join(found)

    def take(self, report: bytes) -> int:
        """Store the rows that another host reported, and compare their calls with this rank's.

        Returns the number of the host that made the report.
        """
        for begin in range(8, len(report), 8 + _ROW):
            rank = int.from_bytes(report[begin : begin + 8], "little")
            row = bytearray(report[begin + 8 : begin + 8 + _ROW])
            process, state, seq, seconds = _HEAD.unpack_from(row)
            _HEAD.pack_into(row, 0, process, state, seq, monotonic() - seconds)
            self.memory[rank * _ROW : (rank + 1) * _ROW] = bytes(row)
            for call in range(max(1, seq - CALLS + 1), seq + 1):
                if self.call(self.rank, call) and rank in self.differing(call) and not self.trouble():
                    self.memory[-8:] = call.to_bytes(8, "little")
        return int.from_bytes(report[:8], "little")

    def silence(self, host: int) -> None:
        """Mark a host as silent: store in the row of each of its ranks that no reports arrive any more."""
        for rank in range(self.size):
            row = self.row(rank)
            if row.state != NOT_BEGUN and row.host == host:
                place = rank * _ROW + _HEAD.size
                _PLACE.pack_into(self.memory, place, row.number, host, LIVES.index("silent"))

    def trouble(self) -> int:
        """Return the number of the call in which ranks of different hosts seem to differ; 0 if none is suspected."""
        return int.from_bytes(self.memory[-8:], "little")

    def clear_trouble(self) -> None:
        """Clear a suspected difference that a second check did not confirm."""
        self.memory[-8:] = bytes(8)

    def history(self) -> list[dict[str, Any]]:
        """Return each rank's process, state and last calls, as a list of dicts for `flight.json`."""
        return [
            {
                "rank": row.number if row.state != NOT_BEGUN else rank, "process": row.process,
                "state": STATES[row.state], "sequence": row.seq,
                "seconds_since": row.seconds,
                "calls": {seq: self.call(rank, seq) for seq in range(max(1, row.seq - CALLS + 1), row.seq + 1)},
            }
            for rank in range(self.size)
            for row in [self.row(rank)]
        ]  # fmt: skip


def process_alive(process: int) -> str:
    """Return the state of a process of this host: "" if it runs, "gone" or "stopped"."""
    try:
        with open(f"/proc/{process}/stat") as file:
            state = file.read().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        state = "X" if os.path.isdir("/proc/self") else _state_by_ps(process)
    return {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}.get(state, "")


def _state_by_ps(process: int) -> str:
    """Return the letter for a process's state that ``ps`` prints, for systems without /proc (macOS)."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return "X"
    except PermissionError:
        pass
    if shutil.which("ps") is None:
        return ""
    found = subprocess.run(["ps", "-o", "state=", "-p", str(process)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1]


def thread_alive(ident: int) -> str:
    """Return "" if the thread ``ident`` of this process runs, else "gone"."""
    return "" if any(thread.ident == ident for thread in threading.enumerate()) else "gone"
