"""Ctrl-C while a trace is replayed leaves a step that can be repeated, and no lock."""

from __future__ import annotations

import linecache
import random
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from flnb_backends.tensor import deferred, recorded_buffers, replay, trace_log

import flnb
from flnb.graph import repetition
from tests.backends.replays import X, chain, compare, exact, is_lock_free

if TYPE_CHECKING:
    from collections import Counter


class Interrupting:
    """Raises KeyboardInterrupt at the ``when``-th line of the trace cache's modules."""

    MODULES = replay, recorded_buffers, deferred, trace_log, repetition
    FILES: ClassVar[set[str | None]] = {module.__file__ for module in MODULES}

    def __init__(self, when: int) -> None:
        self.left = when

    def __enter__(self) -> Interrupting:
        sys.settrace(self.called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def called(self, frame: Any, event: str, _: Any) -> Any:
        return self.line if frame.f_code.co_filename in self.FILES else None

    def line(self, frame: Any, event: str, _: Any) -> Any:
        # Ctrl-C does not come between a block's end and the release of its lock, whose line is that of `with`,
        # nor at a `try`, which is no instruction that looks for signals
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not text.startswith(("with ", "try:")):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.line


def interrupted_step(when: int, reads: bool) -> bool:
    """Repeat a step, the sixth time with Ctrl-C at a line; returns whether that step came to its end."""

    def step(w: Any, made: dict[str, Any]) -> None:
        made["y"] = flnb.tanh(w * 2.0) + 1.0
        if reads and "read" in made:
            made["y"].numpy()
        made["z"] = flnb.exp(made["y"] * w)
        flnb.sync()

    ended = True
    with flnb.use_backend(exact()):
        kept = []
        for i in range(7):
            made: dict[str, Any] = {"read": None} if i == 5 else {}
            x = X + 1 - i / 10
            try:
                with Interrupting(when if i == 5 else 0):
                    step(flnb.asarray(x), made)
            except KeyboardInterrupt:
                ended = False
            made.pop("read", None)
            y = np.tanh(x * 2) + 1
            for name, value in made.items():
                np.testing.assert_allclose(value.numpy(), {"y": y, "z": np.exp(y * x)}[name], rtol=2e-5, err_msg=name)
            kept += [(value, value.numpy().copy()) for value in made.values()]
        for value, elements in kept:
            np.testing.assert_array_equal(value.numpy(), elements)
    return ended


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="an error of a trace function comes where Python looks for no signal"
)
@pytest.mark.parametrize("reads", [False, True])
def test_ctrl_c_at_a_line_of_a_repetition_leaves_a_step_that_can_be_repeated(reads: bool, seen: Counter[str]) -> None:
    when = 1
    while not interrupted_step(when, reads):
        when += 17
        assert is_lock_free(), when
    assert when > 100
    assert seen["repeated"] > 40


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer that sends a signal")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a callback of the garbage collector
def test_signals_at_random_moments_leave_no_lock_and_right_results(seen: Counter[str]) -> None:
    moments, interrupted = random.Random(0), 0
    limit = signal.setitimer(signal.ITIMER_REAL, 0.0)  # of pytest
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with flnb.use_backend(exact()):
            w = flnb.asarray(X)
            for _ in range(200):
                with suppress(KeyboardInterrupt):
                    try:
                        signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 2e-3))
                        for i in range(6):
                            chain(flnb.asarray(X + i), w).numpy()
                    except KeyboardInterrupt:
                        interrupted += 1
                    signal.setitimer(signal.ITIMER_REAL, 0.0)
                assert is_lock_free()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *limit)
    assert interrupted > 10
    compare(lambda: [chain(flnb.asarray(X + i), flnb.asarray(X)).numpy() for i in range(8)])
