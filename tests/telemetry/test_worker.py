"""Work on a thread of its own: in order, on one thread, and on a new one after the end."""

from __future__ import annotations

import threading

import pytest
from flnb_telemetry.worker import Worker


def test_functions_run_in_order_on_one_thread_until_it_is_stopped() -> None:
    worker, seen, gate = Worker("flnb-test"), [], threading.Event()
    worker.start(lambda: seen.append(gate.wait(10)))
    assert worker.busy
    for number in range(5):
        worker.start(lambda number=number: seen.append((number, threading.get_ident())))  # type: ignore[misc]
    gate.set()
    worker.wait()
    assert not worker.busy
    assert [number for number, _ in seen[1:]] == [0, 1, 2, 3, 4]
    assert seen[0] is True
    assert len({thread for _, thread in seen[1:]}) == 1
    assert "flnb-test" in [thread.name for thread in threading.enumerate()]
    worker.stop()
    worker.stop()
    assert "flnb-test" not in [thread.name for thread in threading.enumerate()]
    worker.start(lambda: seen.append(6))
    worker.stop()
    assert seen[-1] == 6


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_function_that_raises_is_reported_and_the_next_one_runs() -> None:
    worker, seen, told, hook = Worker("flnb-test"), [], [], threading.excepthook
    threading.excepthook = lambda args: told.append((args.exc_type, args.thread.name if args.thread else ""))
    try:
        worker.start(lambda: seen.append(1 // 0))
        worker.start(lambda: seen.append(2))
        worker.stop()
    finally:
        threading.excepthook = hook
    assert seen == [2]
    assert told == [(ZeroDivisionError, "flnb-test")]


def test_after_an_interrupted_stop_functions_run_on_a_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, seen, join = Worker("flnb-test"), [], threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        monkeypatch.setattr(threading.Thread, "join", join)
        raise KeyboardInterrupt

    worker.start(lambda: seen.append(1))
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        worker.stop()
    worker.start(lambda: seen.append(2))
    worker.stop()
    assert seen == [1, 2]


def test_a_worker_whose_thread_cannot_start_can_be_stopped_and_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, seen = Worker("flnb-test"), []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("flnb_telemetry.worker.start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            worker.start(lambda: seen.append(1))
    worker.stop()
    worker.start(lambda: seen.append(2))
    worker.stop()
    assert seen == [2]
