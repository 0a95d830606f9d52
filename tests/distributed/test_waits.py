"""Waits of ranks end, and say why: for ranks that ended, died, were interrupted, or have other calls under way."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import distributed
from flnb.dispatch import communication
from flnb.dispatch.board import FAILED, Board
from flnb.interface import CollectiveError, Communicator, Work


def test_a_rank_that_ends_after_its_last_call_has_finished_it() -> None:
    memory = bytearray(Board.nbytes(2))
    root, other = (Board(memory, rank, 2, lambda _: "") for rank in range(2))
    for board in (root, other):
        board.begin(1)
        board.enter(1, b"broadcast")
    assert other.unfinished(1) == [0]
    root.leave()
    root.end()  # a root need not wait for the others
    assert not other.unfinished(1)
    assert list(other.gone(other.unfinished(2), 2)) == [0]
    root.resume()  # in the next cell of a notebook
    assert not other.gone([0], 2)
    root.end(FAILED)
    root.resume()
    assert list(other.gone([0], 2)) == [0], "only what has ended as it should goes on"


def test_a_rank_that_died_with_later_calls_under_way_is_seen_by_those_in_an_earlier_one() -> None:
    memory = bytearray(Board.nbytes(2))
    alive, dead = (Board(memory, rank, 2, lambda _: "gone") for rank in range(2))
    for board in (alive, dead):
        board.begin(1)
    for seq in (1, 2, 3):
        dead.enter(seq, b"all_reduce")
    assert list(alive.gone(alive.unfinished(1), 1)) == [1]
    dead.leave()  # calls 2 and 3 are still under way
    assert list(alive.gone(alive.unfinished(3), 3)) == [1]


def test_more_calls_under_way_than_the_board_holds() -> None:
    def work() -> list[Any]:
        def begin(count: int) -> list[Any]:
            return [communication.start("all_reduce", np.ones(2), "sum") for _ in range(count)]

        rank = distributed.rank()
        pending = begin(100 if rank == 0 else 3 * rank % 6)  # rank 0 looks at calls that the board has no more
        if rank:
            time.sleep(0.4)
            pending += begin(100 - len(pending))
        for one in pending:
            one.wait()
        return [one.test() for one in pending]

    assert distributed.run_threads(3, work, timeout=10.0) == [[True] * 100] * 3


def test_a_message_needs_its_two_ranks_alone() -> None:
    def work() -> Any:
        if distributed.rank() == 0:
            time.sleep(0.4)
            distributed.send([5.0], to=1)
        if distributed.rank() == 1:
            return distributed.recv([0.0], source=0).tolist()
        return None

    assert distributed.run_threads(3, work, timeout=10.0)[1] == [5.0], "rank 2 had ended before"


def test_buffers_outlive_an_operation_that_nobody_waits_for() -> None:
    def work() -> list[bool]:
        buffer = np.ones(3)
        known = weakref.ref(buffer)
        if distributed.rank():
            distributed.recv(0.0, source=0)
        communication.start("all_reduce", buffer, "sum")
        del buffer
        found = [known() is not None]
        if not distributed.rank():
            distributed.send(1.0, to=1)
        distributed.barrier()
        distributed.barrier()
        return [*found, known() is not None]

    assert distributed.run_threads(2, work, timeout=10.0)[0] == [True, False]


def test_a_communicator_without_a_board_has_a_timeout() -> None:
    class Silent(Communicator):
        size, timeout = 2, 0.2

        def barrier(self) -> Work:
            return Never()

    class Never(Work):
        def test(self) -> bool:
            return False

    with distributed.use_communicator(Silent()), pytest.raises(CollectiveError, match=r"timed out after .* barrier"):
        distributed.barrier()


def test_an_interrupt_ends_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, ended = [0], threading.Event()

    def work() -> None:
        try:
            while True:
                distributed.barrier()
                steps[0] += 1
        except CollectiveError:
            ended.set()
            raise

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        time.sleep(0.2)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            distributed.run_threads(2, work)
    assert ended.wait(5.0)
    assert steps[0] > 0


def test_a_communicator_around_another_goes_on_with_its_numbers() -> None:
    """A rank that is early must not take the first call of before for the first call of the wrapper."""

    class Counting(Communicator):
        def __init__(self) -> None:
            self.inner, self.nbytes = distributed.current(), 0
            self.rank, self.size, self.board = self.inner.rank, self.inner.size, self.inner.board

        def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
            self.nbytes += buffer.nbytes
            return self.inner.all_reduce(buffer, op)

    def work() -> int:
        distributed.all_reduce(flnb.ones(3))
        time.sleep(0.2 * distributed.rank())
        with distributed.use_communicator(Counting) as counting:
            distributed.all_reduce(flnb.ones(5))
        distributed.all_reduce(flnb.ones(7))
        return counting.nbytes

    assert distributed.run_threads(2, work) == [20, 20]


def test_a_rank_that_ends_after_calls_that_finish_in_another_order_has_made_them_all() -> None:
    """Its last row on the board is the later call's: a rank that comes to it afterwards does not find it missing."""

    def work() -> float:
        x = np.ones(3)
        first = communication.start("all_reduce", x, "sum")
        y = np.ones(2)
        communication.run("all_reduce", y, "max")
        first.wait()
        if distributed.rank() == 0:
            assert distributed.current().board.row(0).seq == 2
        return float(x[0])

    assert distributed.run_threads(2, work) == [2.0, 2.0]


def test_half_a_call_is_not_read() -> None:
    """A rank that is halted while it writes its call, for however long, has not come yet."""
    memory = bytearray(Board.nbytes(2))
    writer, reader = (Board(memory, rank, 2, lambda _: "") for rank in range(2))
    for board in (writer, reader):
        board.begin(1)
        board.enter(1, b"barrier", 7)
    reader.enter(65, b"all_reduce", 8)  # in the place of call 1
    halted = []

    class Words:
        def __setitem__(self, at: int, value: int) -> None:
            halted.append((value, reader.agrees(65, 8), reader.differing(65)))

    writer._words = Words()  # type: ignore[assignment]
    writer.enter(65, b"broadcast", 9)
    assert halted == [(65, True, [])]
