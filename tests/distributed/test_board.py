"""The board: what ranks of other hosts report, and how processes are looked at where there is no /proc."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from flnb.dispatch.board import Board, _state_by_ps


def boards(life: str = "") -> tuple[Board, Board]:
    """Two ranks on two hosts, each with memory of its own; the process of rank 1 is as given."""
    made = []
    for rank in range(2):
        board = Board(bytearray(Board.nbytes(2)), rank, 2, lambda process: life if process == 101 else "", host=rank)
        board.lag = 1.0
        board.begin(100 + rank)
        made.append(board)
    return made[0], made[1]


def test_rows_of_another_host_are_copied() -> None:
    here, there = boards()
    there.enter(1, b"barrier")
    assert here.missing(1) == [1]
    assert here.take(there.report()) == 1
    assert here.call(1, 1) == "barrier"
    assert not here.missing(1)
    there.end()
    here.take(there.report())
    assert here.gone([1], 2) == {1: f"rank 1 has ended; {here.last(1)}"}


@pytest.mark.parametrize(("life", "words"), [("gone", "has died"), ("stopped", "is stopped (SIGSTOP)")])
def test_the_life_of_a_process_is_what_its_own_host_says(life: str, words: str) -> None:
    here, there = boards(life)
    here.take(there.report())
    if life == "stopped":
        assert not here.gone([1], 1), "it may go on within a second"
        time.sleep(1.1)
    assert words in here.gone([1], 1)[1]
    assert "(process 101)" in here.gone([1], 1)[1]


def test_the_server_passes_on_the_rows_of_third_hosts_alone() -> None:
    first, second, third = (Board(bytearray(Board.nbytes(3)), rank, 3, lambda _: "", host=rank) for rank in range(3))
    for board in (first, second, third):
        board.begin(7)
        first.take(board.report())
    second.take(first.report(to=1))
    assert [second.row(rank).state for rank in range(3)] == [1, 1, 1]
    assert len(first.report(to=1)) == len(first.report()) * 2 - 8


def test_a_host_that_is_not_heard_of_is_named() -> None:
    here, there = boards()
    here.take(there.report())
    assert not here.gone([1], 1)
    here.silence(1)
    assert "rank 1 (process 101) is on a host without a sign of life" in here.gone([1], 1)[1]
    here.take(there.report())
    assert not here.gone([1], 1), "it was late"


def test_a_difference_is_found_after_the_call_has_left_the_board() -> None:
    here, there = boards()
    for seq in range(1, 200):
        for board in (here, there):
            board.enter(seq, b"all_reduce float32[2], sum" if seq != 3 or board is here else b"barrier")
    assert not here.trouble()
    here.take(there.report())
    assert here.trouble() > 199 - 64
    here.clear_trouble()
    assert not here.trouble()


def test_equal_calls_are_no_difference() -> None:
    here, there = boards()
    for seq in range(1, 200):
        here.enter(seq, b"barrier")
        if seq < 150:
            there.enter(seq, b"barrier")
    here.take(there.report())
    assert not here.trouble()


@pytest.mark.skipif(shutil.which("ps") is None, reason="there is no ps")
def test_processes_are_seen_without_proc() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert _state_by_ps(process.pid) not in ("T", "Z", "X", "")
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert _state_by_ps(process.pid) == "T"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert _state_by_ps(process.pid) == "Z"
    process.wait()
    assert _state_by_ps(process.pid) == "X"
