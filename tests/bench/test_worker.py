"""Objects in processes of their own: what they answer, what becomes of errors, and that none stays behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from flnb.bench import Worker, WorkerError


class Probe:
    """Lives in a worker."""

    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise ValueError(f"expected a start of 0 or more, got {start}")
        self.value = start

    def add(self, number: int) -> int:
        print("what is printed is no answer")
        self.value += number
        return self.value

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def process(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        raise KeyError("nothing there")

    def leave(self) -> None:
        os._exit(7)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> str:
    """This module, importable in a new process."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return f"{Path(__file__).stem}:Probe"


def test_it_keeps_its_object_and_ends_with_the_block(target: str) -> None:
    with Worker("probe", target, {"start": 2}) as worker:
        assert worker.call("add", number=3) == 5
        assert worker.call("add", number=1) == 6
        process = worker.call("process")
        assert process != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_the_environment_is_that_process_s_alone(target: str) -> None:
    with Worker("probe", target, {}, {"FLNB_PROBE": "x"}) as worker:
        assert worker.call("variable", name="FLNB_PROBE") == "x"
    assert "FLNB_PROBE" not in os.environ


def test_an_error_says_whose_and_where_and_the_worker_lives_on(target: str) -> None:
    with Worker("probe", target, {}) as worker:
        with pytest.raises(WorkerError, match=r"^probe: 'fail' failed: KeyError: 'nothing there'$"):
            worker.call("fail")
        with pytest.raises(WorkerError, match=r"'dance' failed: AttributeError"):
            worker.call("dance")
        assert worker.call("add", number=1) == 1


def test_an_object_that_cannot_be_made(target: str) -> None:
    with pytest.raises(WorkerError, match=r"probe: .* failed: ValueError: expected a start of 0 or more, got -1"):
        Worker("probe", target, {"start": -1})
    with pytest.raises(WorkerError, match=r"probe: 'no_such_module:A' failed: ModuleNotFoundError"):
        Worker("probe", "no_such_module:A", {})


def test_a_process_that_died_is_named_with_its_status(target: str) -> None:
    with Worker("probe", target, {}) as worker:
        with pytest.raises(WorkerError, match=r"^probe: the process ended during 'leave', with status 7$"):
            worker.call("leave")
        with pytest.raises(WorkerError, match=r"^probe: the process ended during 'add', with status 7$"):
            worker.call("add", number=1)
    with Worker("probe", target, {}) as worker:
        os.kill(worker.call("process"), signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"with status -9$"):
            worker.call("add", number=1)
