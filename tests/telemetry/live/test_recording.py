"""A recording told whole: what adds its frames up must hold what the recording itself answers, at any time of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import load_run, record, schema
from flnb_telemetry.intern import Frame
from flnb_telemetry.live import recording as liverecording
from flnb_telemetry.live.recording import LiveRecording
from flnb_telemetry.live.tallies import GROUPS, Tallies
from flnb_telemetry.live.view import packed

import flnb
from tests.browser.stage import remembered
from tests.telemetry.live.test_view import simulate

if TYPE_CHECKING:
    from flnb_telemetry.recording import Recording


class Lives:
    """The lives of blocks and segments, added up from frames."""

    def __init__(self, frames: Any) -> None:
        self.content: list[dict[str, Any]] = []
        self.blocks: dict[int, dict[str, float]] = {}
        self.segments: dict[int, dict[str, float]] = {}
        self.sizes: list[dict[str, float]] = []  # that segments had before their last one
        kinds = {"f64": np.float64, "u32": np.uint32, "u8": np.uint8}
        for content, buffer in frames:
            json.dumps(content, allow_nan=False)
            self.content.append(content)
            arrays = {
                name: np.frombuffer(buffer, kinds[code], count, offset).tolist()
                for name, (code, offset, count) in content["arrays"].items()
            }
            for lives, born, gone in ((self.blocks, "alloc", "free"), (self.segments, "segment", "release")):
                names = [name.partition(".")[2] for name in arrays if name.startswith(f"{born}.")]
                for row in zip(*(arrays[f"{born}.{name}"] for name in names), strict=True):
                    life = dict(zip(names, row, strict=True)) | {"end": np.inf}
                    if born == "segment" and int(life["id"]) in lives:  # of another size from now on
                        self.sizes.append(lives[int(life["id"])] | {"end": life["t"]})
                        del lives[int(life["id"])]
                    assert lives.setdefault(int(life["id"]), life) is life, "told once"
                for number, t in zip(arrays.get(f"{gone}.id", ()), arrays.get(f"{gone}.t", ()), strict=True):
                    assert lives[int(number)]["end"] == np.inf
                    lives[int(number)]["end"] = t

    def reserved(self, t: float) -> int:
        every = [*self.sizes, *self.segments.values()]
        return int(sum(segment["size"] for segment in every if segment["t"] <= t < segment["end"]))

    def at(self, t: float) -> dict[int, tuple[int, ...]]:
        keys = ("segment", "offset", "size", "requested", "category")
        live = ((number, life) for number, life in self.blocks.items() if life["t"] <= t < life["end"])
        return {number: tuple(int(life[key]) for key in keys) for number, life in live}


def held(run: Recording, t: float) -> dict[int, tuple[int, ...]]:
    category = schema.CATEGORIES.index
    return {
        b.id: (s.id, b.offset, b.size, b.requested, category(b.category))
        for s in run.memory.at(t).segments
        for b in s.blocks
    }


@pytest.mark.parametrize("part", [7, 100, 1 << 20])
def test_frames_hold_every_moment_of_a_recording(program: Any, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr(liverecording, "PART", part)
    with record("whole") as run:
        simulate(program, 12, np.random.default_rng(part))
    lives = Lives(LiveRecording(run).frames())
    line = run.memory.timeline()
    for t in np.linspace(0, run.seconds, 60).tolist():
        assert lives.at(t) == held(run, t)
    assert lives.sizes, "some segments grew"
    for t, allocated, reserved, _, by_category in zip(*line, strict=True):
        # in the middle of a moment and the next: times travel as float64 seconds
        live = lives.at(t + 1e-10)
        assert sum(size for _, _, size, _, _ in live.values()) == allocated == by_category.sum()
        assert lives.reserved(t + 1e-10) == reserved
    first, last = lives.content[0], lives.content[-1]
    assert (first["keyframe"], first["part"][0], last["part"][0]) == (True, 0, last["part"][1])
    assert not any(content["keyframe"] for content in lives.content[1:])
    assert [content["seq"] for content in lives.content] == list(range(1, len(lives.content) + 1))
    assert (len(lives.content) > 3) == (part == 7 or part == 100)
    assert first["run"]["whole"]
    assert "note" not in first["run"]


def test_the_first_frame_holds_what_the_recording_says(new_browser: Any, program: Any) -> None:
    with record("whole") as run:
        simulate(program, 12, np.random.default_rng(1))
    browser = new_browser()
    content = browser.take(next(LiveRecording(run).frames()))
    for table, rows in ((browser.ops, run.ops), *((getattr(browser, f"{key}s"), run.ops.by(key)) for key in GROUPS)):
        figures = ("count", "total", "p99", "max", "bytes")
        assert {name: [row[figure] for figure in figures] for name, row in table.items()} == {
            row.key[0]: [getattr(row, figure) for figure in figures] for row in rows
        }
    assert [index for index, *_ in browser.steps] == run.steps["index"].tolist()
    assert [value for *_, value in browser.metrics] == run.metrics["loss"]["value"].tolist()
    assert [node["id"] for node in browser.tape["nodes"]] == [node.id for node in run.tape.nodes]
    counters = content["counters"]
    assert (counters["events"], counters["dropped"], counters["step"]) == (run.events, 0, run.steps["index"][-1])
    assert counters["t"] == pytest.approx(run.seconds)
    assert content["run"]["state"] == "finished"


def test_a_loaded_recording_is_told_like_the_one_that_was_saved(tmp_path: Any, program: Any) -> None:
    with record("whole") as run:
        simulate(program, 5, np.random.default_rng(2))
    run.save(tmp_path / "whole.flnb")
    told, again = (Lives(LiveRecording(one).frames()) for one in (run, load_run(tmp_path / "whole.flnb")))
    assert told.blocks == again.blocks
    assert told.segments == again.segments
    plans, stored = (lives.content[0]["plans"]["items"] for lives in (told, again))
    used = np.unique(run.table("op")["plan"]).tolist()
    assert [plans[number] for number in used] == [stored[number] for number in used]


def test_of_a_long_recording_the_blocks_around_the_peak_are_told_and_that_is_said() -> None:
    run = remembered(5000, live=100)
    lives = Lives(LiveRecording(run, blocks=1000).frames())
    assert lives.content[0]["run"]["note"] == "the 1000 blocks around the peak of 5000"
    assert 1000 <= len(lives.blocks) < 1000 + 250  # with those that lived when the first of them was made
    since = min(life["t"] for life in lives.blocks.values())
    until = max(life["t"] for life in lives.blocks.values())
    assert since < run.memory.peak.t < until
    for t in np.linspace(since, until, 20).tolist():
        assert lives.at(t) == held(run, t)


def test_a_recording_without_memory_is_told() -> None:
    with record("nothing") as run:
        pass
    (content, _), (last, _) = LiveRecording(run).frames()
    assert content["part"] == [0, 1]
    assert last["arrays"] == {}


def test_the_call_stack_of_a_block_is_told_when_it_is_asked_for(program: Any) -> None:
    with record("stacks") as run:
        simulate(program, 2, np.random.default_rng(3))
    without = LiveRecording(run)
    assert not next(without.frames())[0]["run"]["stacks"]
    assert without.answer({"type": "stack", "context": 1}) == {"type": "stack", "context": 1, "lines": []}
    line = Frame(name="step", filename="C:\\work\\train.py", line=3)
    run.meta["stacks"] = True
    run.catalog.stacks = {5: (line, Frame(name="main", filename="a/b.py", line=1))}
    told = LiveRecording(run)
    assert next(told.frames())[0]["run"]["stacks"]
    assert told.answer({"type": "stack", "context": 5}) == {
        "type": "stack", "context": 5, "lines": ["train.py:3 step", "b.py:1 main"],
    }  # fmt: skip
    assert told.answer({"type": "stack", "context": 6})["lines"] == []  # type: ignore[index]
    tape = told.answer({"type": "tape", "search": "op1"})
    assert tape is not None
    assert tape["search"]["count"] > 0


def test_the_tape_of_any_step_is_sent_or_why_there_is_none() -> None:
    with flnb.record("steps") as run:
        for step in range(3):
            with flnb.step():
                x = flnb.Variable(flnb.ones(4), requires_grad=True)
                for _ in range(step + 1):
                    x = flnb.exp(x)
                x = flnb.where(x > 0, x, x * 2)  # of three inputs, which are events of their own
                if step != 1:
                    x.sum().backward()
        with flnb.step(), flnb.no_grad():
            flnb.exp(flnb.ones(4))
    view = LiveRecording(run)
    for step in (0, 2):
        answer = view.answer({"type": "tape", "at": step})
        assert answer is not None
        assert (answer["at"], answer["tape"]["step"], answer["tape"]["count"]) == (step, step, step + 4)
        assert answer["tape"]["count"] == len(run.tape.step(step).nodes)
        more = view.answer({"type": "tape", "open": []})  # later requests are about the tape that is shown
        assert more is not None
        assert more["step"] == step
    assert view.answer({"type": "tape", "at": 3}) == {
        "type": "tape", "at": 3, "missing": "nothing was differentiated in it",
    }  # fmt: skip
    assert view.answer({"type": "tape", "at": 9}) == {
        "type": "tape", "at": 9, "missing": "the recording has no such step",
    }  # fmt: skip
    live = flnb.telemetry.Live("live")
    live.begin()
    live.finish()
    found = live.answer({"type": "tape", "at": 0})
    assert found is not None
    assert "flnb.view(run)" in found["missing"]


def test_arrays_are_packed_at_multiples_of_eight() -> None:
    arrays = {"alloc.category": [1, 2, 3], "alloc.plan": [4], "alloc.t": [0.5], "free.id": []}
    index, buffer = packed({name: np.array(values) for name, values in arrays.items()})
    assert list(index.values()) == [["u8", 0, 3], ["u32", 8, 1], ["f64", 16, 1], ["f64", 24, 0]]
    assert len(buffer) == 24
    assert np.frombuffer(buffer, np.float64, 1, 16)[0] == 0.5


AT_EXIT = """
import atexit, flnb
with flnb.record() as run:
    flnb.ones(3) * 2.0
@atexit.register
def show():  # no module can be imported any more that registers itself with `threading`
    from flnb_telemetry.live.recording import LiveRecording
    live = LiveRecording(run)
    print(len(list(live.frames())), live.tallies.columns()["op.count"].sum())
"""


def test_a_recording_is_shown_at_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("2 2\n", "")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_while_ops_are_counted_is_raised_and_does_not_leave_half_the_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with flnb.record() as run:
        flnb.ones(3) * 2.0
    settle, calls = Tallies.settle, []

    def fail(self: Tallies, *arguments: Any) -> None:
        calls.append(threading.current_thread().name)
        if len(calls) < failing:
            raise MemoryError("no memory left")
        settle(self, *arguments)

    monkeypatch.setattr(Tallies, "settle", fail)
    failing = 3
    with pytest.raises(MemoryError, match="no memory left"):
        LiveRecording(run)
    assert calls == ["flnb-tallies", "MainThread"]
    calls.clear()
    failing = 2
    assert LiveRecording(run).tallies.columns()["op.count"].sum() == 2
