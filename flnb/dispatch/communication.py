"""The crossing for communication: every operation between ranks passes through here, is checked, and emits events.

The calls of a group of ranks are numbered. Before any data is sent, a call is written on the group's board and compared
with the calls that other ranks have already written. Then the call is started. A wait polls the operation and yields
the processor in between, so that the wait can be interrupted, and ends when a rank has died. When an operation is
complete, all ranks have written their calls, and the calls are compared once more.
"""

from __future__ import annotations

import os
from threading import get_ident
from time import monotonic, sleep
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from flnb_telemetry import bus, intern

from flnb.dispatch import source_lines
from flnb.dispatch.board import CALLS, GAVE_UP, LEFT, Board
from flnb.dispatch.calls import Call, described
from flnb.dispatch.groups import Group, abandon, current, usable_group
from flnb.interface.communicator import CollectiveError, Communicator, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

K = TypeVar("K")

EAGER = 300
"""The number of polls of a wait before it yields the processor."""
YIELDS = 1000
"""The number of times a wait yields the processor before it sleeps instead; a sleep takes at least 90 us on Linux."""
STANDS = 20_000
"""If starting an operation, or its last poll, takes at least so many ns, a wait event is emitted."""
LOOK = 0.1
"""Seconds between two checks, during a wait, of whether the other ranks make the same call and are alive."""
LONG = 1.0
"""Seconds after which a wait polls only once per millisecond, because the late rank may need the processor."""

_yield: Callable[[], object] = getattr(os, "sched_yield", lambda: sleep(0))


def run(name: str, *arguments: Any, on: Communicator | None = None, bucket: int = -1, holds: str = "") -> None:
    """Run the operation ``name`` of a communicator and wait until it is done: ``run("all_reduce", array, "sum")``.

    The communicator is ``on``, or else the active one; ``bucket`` and ``holds`` label the operation in recordings.

    Raises:
        CollectiveError: another rank makes another call, has died, or has not made the call before the timeout.
        ValueError: arguments that would be wrong on every rank.
    """
    pending = _begin(name, arguments, on, bucket, holds)
    pending.wait(pending._begun)


def start(name: str, *arguments: Any, on: Communicator | None = None, bucket: int = -1, holds: str = "") -> Pending:
    """Start the operation ``name`` of a communicator without waiting; the arguments are those of `run`."""
    return _started(_begin(name, arguments, on, bucket, holds))


def _started(pending: Pending) -> Pending:
    """Emit a wait event if starting the operation blocked for long; returns ``pending``."""
    if bus.lanes is not None and (now := clock()) - pending._begun > STANDS:
        lane, group = bus.lanes.lane, pending._group.number
        lane.emit(pending._call.waits, pending._begun, now, pending._seq, group, 0, 0, lane.context)
    return pending


def _begin(name: str, arguments: tuple[Any, ...], on: Communicator | None, bucket: int, holds: str) -> Pending:
    communicator = on or current()
    group = usable_group(communicator, name)
    call = described(group.calls, communicator, name, arguments)
    return Pending(communicator, group, call, arguments, bucket, holds)


def start_multiple(buffers: Sequence[Any], op: str, on: Communicator | None = None) -> Pending:
    """Start to reduce several buffers in one operation, without waiting; all ranks must pass the same sizes.

    ``op`` is "sum", "max" or "min". The communicator is ``on``, or else the active one.
    """
    communicator = on or current()
    group = usable_group(communicator, "all_reduce_multiple")
    sizes = ",".join(f"{b.dtype.name}[{b.size}]" for b in buffers)
    about = f"{len(buffers)} buffers {crc32(sizes.encode()):08x}"  # the board's rows are short
    call = described(group.calls, communicator, "all_reduce_multiple", (*buffers, about, op))
    return _started(Pending(communicator, group, call, (buffers, op)))


def wait_any(pending: Mapping[K, Pending]) -> K:
    """Wait, without a timeout, until one of several operations has finished; returns the key of that operation.

    Raises:
        CollectiveError: a rank has died, or made another call.
    """
    look, asked = monotonic(), 0
    while True:
        for key, one in pending.items():
            if one.test():
                return key
        asked += 1
        _yield() if asked < YIELDS else sleep(0)
        if monotonic() - look > LOOK:
            look = monotonic()
            for one in pending.values():
                one._look(0.0, one._work.test)


def difference(board: Board, seq: int, call: Call | None = None) -> str:
    """Return a sentence that names the ranks whose call ``seq`` differs; "" if a second look shows no difference."""
    sleep(0.002)  # a row may have been read while it was written
    words, ranks = board.call(board.rank, seq), board.differing(seq, call.key if call else 0)
    words = words or (call.words if call else "")
    others = [(rank, board.call(rank, seq)) for rank in ranks]
    ran = ", ".join(f"{board.name(rank)} ran {call}" for rank, call in others)
    if others and all(call == words for _, call in others):
        ran += ", after another call that the board does not hold any more"
    return f"{board.name(board.rank)} ran {words} as call {seq}, {ran}" if others else ""


class Pending:
    """A started operation: `test` polls it, `wait` waits for its end."""

    __slots__ = (
        "_asked", "_begun", "_bucket", "_buffers", "_call", "_communicator", "_context", "_group", "_over", "_peer",
        "_seq",
        "_work",
    )  # fmt: skip

    def __init__(
        self, communicator: Communicator, group: Group, call: Call, arguments: Any, bucket: int = -1, holds: str = ""
    ) -> None:
        self._communicator, self._group, self._call, self._over = communicator, group, call, False
        self._bucket, self._asked, self._context = bucket, 0, 0
        self._buffers = arguments  # mpi4py does not refer to all of them
        board = communicator.board
        if communicator.arriving is not None:
            communicator.arriving()
        if call.numbered:
            group.seq += 1
        self._seq = seq = group.seq
        self._peer = None if call.numbered else arguments[1]
        self._begun = begun = clock()
        lanes = bus.lanes
        if lanes is not None:
            lane = lanes.last
            if lane.ident != get_ident():
                lane = lanes.lane
            held = intern.strings.id_of(holds) if holds else 0
            self._context = context = source_lines.here(lane.context)
            lane.pending += (call.begins, begun, seq, group.number, held, 0, bucket, context)
        if board is not None and call.numbered:
            board.enter(seq, call.text, call.key)
            if not board.agrees(seq, call.key):
                self._refuse("nothing was sent")
            if board.lag and (before := board.trouble()):
                self._refuse("what the ranks received is wrong", before)
        try:
            self._work: Work = getattr(communicator, call.name)(*arguments)
        except KeyboardInterrupt:  # the ranks' engines would count their calls differently from now on
            abandon(communicator, f"{call.words} was interrupted as it began")
            raise

    def test(self) -> bool:
        """Return whether the operation has finished, without waiting.

        Raises:
            CollectiveError: the operation has finished, but other ranks made another call.
        """
        try:
            if not self._over and self._work.test():
                self._finish()
        except Exception as error:
            self._explain(error)
            raise
        return self._over

    def wait(self, since: int = 0) -> None:
        """Wait until the operation has finished.

        ``since`` is the time (ns) at which the wait began, if it was before this call.

        Raises:
            CollectiveError: another rank makes another call, has ended, or has not come before the timeout.
        """
        if self._over:
            return
        test, asked, began = self._work.test, 0, since or clock()
        try:
            if test():
                if since or clock() - began > STANDS:  # an engine may work in its calls, for example copy the result
                    self._asked = began
            else:
                self._asked = began
                while not test():
                    asked += 1
                    if asked > EAGER:
                        self._wait_long(test)
                        break
        except Exception as error:
            self._explain(error)
            raise
        self._finish()

    def _explain(self, error: Exception) -> None:
        """Make the group unusable after an error; if other ranks are the cause, raise an error that says so."""
        board = self._communicator.board
        end = monotonic() + (board.lag if board is not None else 0.0)
        while not isinstance(error, CollectiveError) and monotonic() < end:
            sleep(LOOK)
            self._look(0.0)
        if not self._group.broken:
            self._give_up(str(error))

    def _wait_long(self, test: Callable[[], bool]) -> None:
        """Call ``test`` until it returns that the operation has finished, and check the other ranks at intervals."""
        began = look = monotonic()
        timeout = self._communicator.timeout
        asked, pause = 0, 0.0
        while not test():
            _yield() if asked < YIELDS else sleep(pause)
            asked += 1
            if asked % 16 == 0 and (now := monotonic()) - look > LOOK:
                look = now
                if now - began > LONG:
                    pause = 0.001
                self._look(now - began if now - began > timeout else 0.0, test)

    def _look(self, waited: float, test: Callable[[], bool] | None = None) -> None:
        """Raise an error if a rank makes another call or has died, or if the timeout is over.

        Args:
            waited: the seconds waited if the timeout is over, else 0.
            test: returns whether the operation has finished; if so, dead ranks and the timeout are ignored.
        """
        board, call, seq = self._communicator.board, self._call, self._seq
        if board is None:
            if waited:
                self._fail(f"timed out after {waited:.1f} s in call {seq}, {call.words}")
            return
        if call.numbered and board.differing(seq, call.key):
            self._refuse("it has not finished")
        if board.lag and (before := board.trouble()):
            self._refuse("it has not finished" if before == seq else "what the ranks received is wrong", before)
        collective = self._peer is None
        gone = board.gone(board.unfinished(seq) if collective else [self._peer], seq if collective else 0)
        if not (gone or waited) or (test is not None and test()):
            return
        last = self._group.seq  # another call than the one that is waited for may be why
        for other in (each for each in range(max(1, last - CALLS + 1), last + 1) if board.differing(each)):
            self._refuse("it has not finished", other)
        others = [rank for rank in range(board.size) if rank != board.rank and board.row(rank).state != LEFT]
        said = [f"timed out after {waited:.1f} s"] if waited else []
        said += ({**board.gone(others, seq), **gone}).values()
        late = [rank for rank in (board.missing(seq) if collective else [self._peer]) if rank not in gone]
        said += [f"{self._not_done(board.name(rank))} {board.last(rank)}" for rank in late]
        place = f"call {seq}, {call.words}" if collective else call.words
        self._fail(f"{'; '.join(said)}; {board.name(board.rank)} waits in {place}")

    def _not_done(self, name: str) -> str:
        """Return the beginning of a message: "rank 3 has not come:", or which message to or from that rank is missing.

        ``name`` is the name of the rank, such as "rank 3".
        """
        if self._peer is None:
            return f"{name} has not come:"
        tag = self._buffers[2] if len(self._buffers) > 2 else 0
        come = f"no message with tag {tag} has come from {name}"
        done = come if self._call.name == "recv" else f"{name} has not received the message with tag {tag}"
        return f"{done}; apart from messages,"

    def _finish(self) -> None:
        """Compare the calls of all ranks, which are now on the board, and emit this operation's event."""
        self._over = True
        communicator, call, seq = self._communicator, self._call, self._seq
        board = communicator.board
        if board is not None and call.numbered:
            if call.meets and not board.agrees(seq, call.key):
                self._refuse("what the ranks received is wrong")
            board.leave()
        lanes = bus.lanes
        if lanes is not None:
            lane = lanes.last
            if lane.ident != get_ident():
                lane = lanes.lane
            now, number, context = clock(), self._group.number, self._context or lane.context
            lane.pending += (call.ends, self._begun, now, seq, number, 0, self._bucket, context)
            if self._asked:
                lane.pending += (call.waits, self._asked, now, seq, number, 0, 0, context)

    def _refuse(self, outcome: str, seq: int = 0) -> None:
        """Check once more whether the ranks' calls number ``seq`` differ, and raise an error if they do.

        ``seq`` 0 stands for this operation's number. ``outcome`` is the end of the message: a clause that says what
        follows from the difference.
        """
        board = self._communicator.board
        if message := difference(board, seq or self._seq, None if seq else self._call):
            self._fail(f"{message}; {outcome}")
        elif seq:
            board.clear_trouble()

    def _fail(self, message: str) -> None:
        self._give_up(message)
        raise CollectiveError(message)

    def _give_up(self, message: str) -> None:
        """Make all further calls raise an error with the text ``message``, and notify ranks that wait for this rank."""
        self._group.broken = message
        if self._communicator.board is not None:
            self._communicator.board.end(GAVE_UP)

    def __del__(self) -> None:
        if not self._over and hasattr(self, "_work"):
            self._group.unfinished.append((self._work, self._buffers))
