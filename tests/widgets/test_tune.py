"""`flnb.memory.tune`: each move of a control replays the trace, and only the newest settings are drawn."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
from benchmarks.tune import FirstFit, example
from flnb.interface import Block, MemoryManager

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb.widgets.tuner import Tuner

pytest.importorskip("ipywidgets")
pytest.importorskip("plotly")


@pytest.fixture(scope="module")
def trace() -> Any:
    return example(400)


@pytest.fixture
def tuner(trace: Any) -> Iterator[Tuner]:
    made = flnb.memory.tune(trace, flnb.memory.Caching, seconds=0.1)
    yield made
    made.close()


def named(tuner: Tuner, begins: str) -> Any:
    return next(line for line in tuner.figure.data if line.name.startswith(begins))


def test_a_move_draws_what_a_replay_with_these_settings_measures(tuner: Tuner, trace: Any) -> None:
    tuner.controls["split_limit"].value = tuner.tunables["split_limit"].values.index("1MiB")  # as a browser does
    tuner.wait()
    expected = flnb.memory.replay(trace, ["caching:split_limit=1MiB", "caching"], seconds=0.1)
    row, default = expected.rows
    assert tuner.settings == {"split_limit": "1MiB"}
    assert tuner.current is not None
    assert tuner.current.peak_reserved == row.peak_reserved != default.peak_reserved
    assert np.array_equal(tuner.current.reserved, row.reserved)
    drawn = named(tuner, "reserved, ")
    assert max(drawn.y) == row.peak_reserved / 2**20
    assert max(named(tuner, "reserved default").y) == default.peak_reserved / 2**20
    assert max(named(tuner, "live").y) == trace.peak_live / 2**20
    assert max(named(tuner, "packed offline").y) == tuner.packing.height / 2**20
    assert len(named(tuner, "native calls, ").x) == np.count_nonzero(np.diff(row.reserved, prepend=0))
    assert tuner.line == 'flnb.set_memory_manager("caching:split_limit=1MiB")'
    assert [r.manager for r in tuner.table().rows] == ["caching", "caching(split_limit=1MiB)"]
    assert tuner.line in tuner._code.value.replace("&quot;", '"')
    assert "caching(split_limit=1MiB)" in tuner._table.value
    drawing = tuner._drawing()
    assert "reserved default" in drawing
    assert "caching(split_limit=1MiB)" in drawing
    tuner.reset()
    assert (tuner.settings, tuner.line) == ({}, 'flnb.set_memory_manager("caching")')


def test_the_printed_line_activates_a_manager_with_the_settings(tuner: Tuner) -> None:
    tuner.set(recycling_limit="2MiB", split_limit="8MiB")
    active = flnb.dispatch.state.current().manager
    try:
        exec(tuner.line, {"flnb": flnb})
        manager = flnb.dispatch.state.current().manager
        assert manager.name == "caching"
        assert manager.constructor_arguments == {"split_limit": "8MiB", "recycling_limit": "2MiB"}
    finally:
        flnb.set_memory_manager(active)


def test_a_manager_written_in_a_cell_is_tuned(trace: Any) -> None:
    tuner = flnb.memory.tune(trace, FirstFit, seconds=0.1)
    tuner.set(slab=16 << 20)
    assert tuner.current is not None
    assert tuner.current.reserved[0] == 16 << 20
    assert tuner.line == "flnb.set_memory_manager(FirstFit(slab=16777216))"
    tuner.close()


def test_a_setting_without_a_default_is_passed_also_at_its_first_value(trace: Any) -> None:
    class Needy(flnb.memory.Caching):
        def __init__(self, device: Any = None, *, least: int) -> None:
            super().__init__(device)

    tuner = flnb.memory.tune(trace, Needy, seconds=0.1, least=[600, 700])
    assert (tuner.error, tuner.settings) == ("", {"least": 600})
    assert tuner.line == "flnb.set_memory_manager(Needy(least=600))"
    assert tuner.default is tuner.current is not None
    tuner.set(least=700)
    assert (tuner.settings, len(tuner.table().rows)) == ({"least": 700}, 2)
    tuner.reset()
    assert (tuner.settings, tuner.error) == ({"least": 600}, "")
    tuner.close()


def test_the_lowest_peak_so_far_stays_in_the_table(tuner: Tuner) -> None:
    peaks = {}
    for value in ("1MiB", "4MiB", "512B"):
        tuner.set(split_limit=value)
        assert tuner.current is not None
        peaks[tuner.current.manager] = tuner.current.peak_reserved
    assert tuner.default is not None
    assert tuner.best is not None
    peaks["caching"] = tuner.default.peak_reserved
    assert tuner.best.peak_reserved == min(peaks.values())
    assert tuner.best.manager in [row.manager for row in tuner.table().rows]


def test_settings_that_the_class_refuses_are_reported_and_leave_the_picture(trace: Any) -> None:
    class Picky(flnb.memory.Caching):
        def __init__(self, device: Any = None, least: int = 1024) -> None:
            if least > 1024:
                raise ValueError("least is too large")
            super().__init__(device)

    tuner = flnb.memory.tune(trace, Picky, seconds=0.1)
    tuner.set(least=2048)
    assert "least is too large" in tuner.error
    assert "least is too large" in tuner._said.value
    assert (tuner.settings, tuner.line) == ({}, "flnb.set_memory_manager(Picky())")
    tuner.set(least=512)
    assert (tuner.settings, tuner.error) == ({"least": 512}, "")
    tuner.close()


def slow(begun: threading.Event, go_on: threading.Event, ends: list[int]) -> tuple[Any, Any]:
    """A manager that waits in its first call if its number is 1 and stores the number at the end; and a trace."""

    class Slow(MemoryManager):
        """Waits at the first call if it is to, then goes on."""

        def __init__(self, device: Any = None, number: int = 0) -> None:
            super().__init__(device)
            self.number, self.calls = number, 0

        def alloc(self, nbytes: int, stream: int = 0, hint: Any = None) -> Block:
            self.calls += 1
            if self.number == 1 and self.calls == 1:
                begun.set()
                assert go_on.wait(30)
            if self.calls == 20_000:
                ends.append(self.number)
            segment = self.device.reserve(nbytes)
            return Block(segment.address, nbytes, segment)

        def free(self, block: Block) -> None:
            self.device.release(block.segment)

    calls = np.arange(1, 20_001)
    return Slow, flnb.memory.Trace.of_calls(np.stack([calls, -calls], 1).ravel(), np.full(20_000, 512))


def test_closing_gives_up_the_replay_that_runs() -> None:
    begun, go_on, ends = threading.Event(), threading.Event(), list[int]()
    manager, trace = slow(begun, go_on, ends)
    tuner = flnb.memory.tune(trace, manager, seconds=0.1)
    tuner.controls["number"].value = tuner.tunables["number"].values.index(1)
    assert begun.wait(30)
    tuner.close()
    go_on.set()
    tuner.wait()
    assert (tuner.settings, ends) == ({}, [0])


def test_a_replay_that_is_out_of_date_is_given_up() -> None:
    begun, go_on, ends = threading.Event(), threading.Event(), list[int]()
    manager, trace = slow(begun, go_on, ends)
    tuner = flnb.memory.tune(trace, manager, seconds=0.1)
    control, values = tuner.controls["number"], tuner.tunables["number"].values
    control.value = values.index(1)
    assert begun.wait(30)
    control.value = values.index(2)  # dropped: a newer one comes before its turn
    control.value = values.index(4)
    go_on.set()
    tuner.wait()
    assert (tuner.settings, ends) == ({"number": 4}, [0, 4])
    tuner.close()


def test_what_is_wrong_is_said(trace: Any, tuner: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"expected the class of a memory manager, such as flnb.memory.Caching.*got 3"):
        flnb.memory.tune(trace, 3)
    with pytest.raises(ValueError, match="unknown memory manager 'cashing'"):
        flnb.memory.tune(trace, "cashing")
    with pytest.raises(TypeError, match="no setting 'limit'; Caching has split_limit, recycling_limit"):
        tuner.set(limit=3)
    with pytest.raises(ValueError, match=r"split_limit='3MB' is not one of its choices: default, 512B, 1KiB"):
        tuner.set(split_limit="3MB")
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(
        ImportError, match=r"flnb.memory.tune needs ipywidgets; install it with: pip install 'flnb\[lab\]'"
    ):
        flnb.memory.tune(trace)
