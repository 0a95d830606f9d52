"""Ctrl-C while machine code runs: it is raised when the program's call ends, and what was computed is whole."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

import flnb

pytest.importorskip("llvmlite")
SIZE, LONG = 1 << 18, 60


def test_an_interrupt_within_a_program_is_raised_after_its_last_kernel() -> None:
    counts = flnb.zeros((SIZE,))

    def step() -> None:
        x = counts
        for _ in range(LONG):
            x = flnb.tanh(flnb.exp(x * -1.0))
        flnb.add(counts, 1.0 + 0.0 * x, out=counts)

    captured = flnb.jit(step)
    for _ in range(3):
        captured()
    assert len(captured.programs[0].steps) == 1  # no Python runs between kernels
    done, begun, deadline = 3, threading.Event(), time.monotonic() + 20

    def interrupt() -> None:
        if begun.wait(10):  # so that it comes within the block below, and while calls run
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    with pytest.raises(KeyboardInterrupt):
        begun.set()
        while time.monotonic() < deadline:
            captured()
            done += 1
    waiting.join(10)
    assert done > 3, "it came before the first call had ended"
    (count,) = np.unique(counts.numpy())  # in the interrupted call every element was written, or none
    assert count in (done, done + 1)
    captured()
    assert np.unique(counts.numpy()).tolist() == [count + 1]
