"""Blocks end however they are left: Ctrl-C is raised at every line of `begin`, `end` and what calls them."""

from __future__ import annotations

import gc
import sys
import threading
import time
from contextlib import ExitStack
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry import bus, pump, recorder, recording, run, withblock
from flnb_telemetry.withblock import WithBlock, holding, with_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

kept: list[BaseException] = []
"""Errors with their tracebacks, as a notebook keeps the last one."""


def interrupt(work: Callable[[], Any], moment: int, files: set[str]) -> bool:
    """Run something and raise KeyboardInterrupt at the n-th line of these files; False if there are fewer."""

    def line(frame: Any, event: str, argument: Any) -> Any:
        nonlocal moment
        if event == "line":
            moment -= 1
            if moment == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: line if frame.f_code.co_filename in files else None)
    try:
        work()
    except KeyboardInterrupt as error:
        kept.append(error)
        return True
    finally:
        sys.settrace(before)
    return False


def everywhere(work: Callable[[], Any], check: Callable[[], None], *modules: Any) -> int:
    """Interrupt something at every line of modules and check each time; how many lines there were."""
    moment = 1
    while interrupt(work, moment, {module.__file__ for module in modules}):
        check()
        moment += 1
    return moment - 1


class Counted(WithBlock[int]):
    inside = 0

    def __init__(self) -> None:
        self.entered = False

    def begin(self) -> int:
        self.entered = True
        Counted.inside += 1
        return Counted.inside

    def end(self, error: BaseException | None) -> None:
        if self.entered:
            self.entered = False
            Counted.inside -= 1


@with_block
def counted() -> Iterator[int]:
    with Counted() as number:
        yield number


@pytest.mark.parametrize("make", [Counted, counted])
def test_a_block_ends_once_wherever_ctrl_c_arrives(make: Callable[[], WithBlock[int]]) -> None:
    def nested() -> None:
        with make() as one, make() as two:
            assert (one, two) == (1, 2)

    def check() -> None:
        assert Counted.inside == 0

    assert everywhere(nested, check, withblock) > 15


def test_a_phase_a_scope_and_a_step_end() -> None:
    def nested() -> None:
        with bus.step(3), bus.scope("a"), bus.phase("backward"):
            assert (bus.threads.here.path, bus.threads.here.step) == ("a", 3)

    def check() -> None:
        here = bus.threads.here
        assert (here.phase, here.path, here.step) == (0, "", None)

    assert everywhere(nested, check, withblock, bus) > 60


def test_a_recording_ends_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace function may raise at a ``with`` line before the lock is released; CPython's Ctrl-C never does."""
    monkeypatch.setattr(pump, "_lock", threading.RLock())  # that of the process is never left locked

    def recorded() -> None:
        with recorder.record():
            bus.emit(1, 2)

    def check() -> None:
        monkeypatch.setattr(pump, "_lock", threading.RLock())
        assert pump.session is bus.lanes is None
        deadline = time.monotonic() + 2
        while "flnb-telemetry" in [thread.name for thread in threading.enumerate()]:
            assert time.monotonic() < deadline
        with recorder.record() as found:
            bus.log(number=1.0)
        assert found.metrics["number"]["value"].tolist() == [1.0]

    assert everywhere(recorded, check, withblock, pump, recorder, recording, run) > 100


def test_a_block_knows_the_error_that_left_it() -> None:
    seen: list[Any] = []

    class Told(WithBlock[None]):
        def begin(self) -> None: ...

        def end(self, error: BaseException | None) -> None:
            seen.append(error)

    with Told():
        pass
    with pytest.raises(ZeroDivisionError), Told():
        raise ZeroDivisionError
    with ExitStack() as stack:
        stack.enter_context(Told())
    Told()(lambda: None)()
    assert [type(error) for error in seen] == [type(None), ZeroDivisionError, type(None), type(None)]


def test_blocks_leave_no_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            with counted(), Counted():
                pass
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_decorated_function_enters_a_block_of_its_own_for_each_call() -> None:
    @counted()
    def depth(left: int) -> int:
        return depth(left - 1) if left else Counted.inside

    assert depth(2) == 3
    assert Counted.inside == 0


def test_an_error_in_a_block_has_no_frame_of_the_block() -> None:
    @with_block
    def made() -> Iterator[None]:
        try:
            yield
        finally:
            kept.clear()

    def fails() -> None:
        with made():
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        fails()
    assert [entry.name for entry in caught.traceback][1:] == ["fails"]


def test_a_decorated_function_that_holds_a_value_may_run_in_several_threads_at_once() -> None:
    """Each call has a token of its own: that of another thread could not be given back."""
    variable = ContextVar("held", default=0)
    entered, left, seen = threading.Barrier(2), threading.Event(), list[int]()

    @holding(variable, 1)
    def inside(first: bool) -> int:
        entered.wait(10)
        assert first or left.wait(10)
        return variable.get()

    def work() -> None:
        seen.extend((inside(True), variable.get()))
        left.set()

    other = threading.Thread(target=work)
    other.start()
    assert (inside(False), variable.get(), seen) == (1, 0, [1, 0])
    other.join()
