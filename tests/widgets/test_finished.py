"""`flnb.view`: what it takes, what its widget tells a browser that says hello, and what stands there without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import RunFileError
from flnb_telemetry.live.recording import LiveRecording

import flnb

if TYPE_CHECKING:
    from pathlib import Path

    from flnb_telemetry.recording import Recording

pytest.importorskip("anywidget")


@pytest.fixture(scope="module")
def run() -> Recording:
    net = flnb.nn.Linear(64, 64)
    with flnb.record("finished") as run:
        for _ in range(3):
            with flnb.step():
                net(flnb.asarray(np.ones((64, 64), np.float32))).sum().backward()
    return run


def told(widget: Any, monkeypatch: pytest.MonkeyPatch, message: dict[str, Any]) -> list[tuple[dict[str, Any], Any]]:
    sent: list[tuple[dict[str, Any], Any]] = []
    monkeypatch.setattr(widget, "send", lambda content, buffers=None: sent.append((content, buffers)))
    widget._receive(message)
    return sent


def test_a_browser_that_says_hello_is_told_the_recording(run: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    widget = flnb.view(run, height=400)
    assert (widget.height, widget.only) == (400, "")
    for _ in range(2):  # two cells may show it
        sent = told(widget, monkeypatch, {"type": "hello"})
        assert [content["seq"] for content, _ in sent] == list(range(1, len(sent) + 1))
        assert sent[0][0]["run"]["name"] == "finished"
        assert sent[0][0]["run"]["settings"].startswith("in memory (at most 1.00 GiB, 16.0 MiB for each thread); grad")
        assert sent[0][0]["tape"]["count"] == len(run.tape.nodes)
        assert all(len(buffers) == 1 for _, buffers in sent)
        allocated = sum(content["arrays"].get("alloc.id", (0, 0, 0))[2] for content, _ in sent)
        assert allocated == len(run.memory.block["t"]) > 0
    assert told(widget, monkeypatch, {"type": "ack", "seq": 1}) == []
    ((answer, _),) = told(widget, monkeypatch, {"type": "tape", "search": "linear"})
    assert answer["search"]["count"] > 0
    ((code, _),) = told(widget, monkeypatch, {"type": "code", "op": "linear"})
    assert "record(inputs=True)" in code["said"]
    html = widget._drawing()
    assert "finished" in html
    assert "<svg" in html
    widget.close()


def test_locks_pending_blocks_and_what_was_given_back_are_told() -> None:
    manager = flnb.memory.Caching(flnb.memory.HostDevice("64MiB"))
    with flnb.use_memory_manager(manager), flnb.record() as run:
        x = flnb.zeros((256, 256))
        block = flnb.memory.block_of(x._values())
        assert block is not None
        number = block.id
        manager.user_lock(block)
        del x
        flnb.zeros((64, 64))  # at the next allocation it is seen that the array went
        manager.user_unlock(block)
        flnb.memory.release_cached(manager)
    found: dict[str, Any] = {}
    for content, buffer in LiveRecording(run).frames():
        for name, (kind, offset, count) in content["arrays"].items():
            dtype = {"f64": np.float64, "u32": np.uint32, "u8": np.uint8}[kind]
            found[name] = np.frombuffer(buffer, dtype, count, offset)
    assert found["locked.alloc_id"].tolist() == [number, number]
    assert found["locked.locks"].tolist() == [1, 0]
    freed = found["free.id"].tolist().index(number)
    locked, unlocked = found["locked.t"].tolist()
    assert locked < found["free.asked"][freed] < unlocked <= found["free.t"][freed]
    assert found["released.nbytes"].tolist() == [2 << 20]
    assert found["released.segments"].tolist() == [1]


def test_two_recordings_are_told_as_two_sides(run: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flnb.widgets.model import STATIC

    run.save(tmp_path / "saved.flnb")
    widget = flnb.view(run, tmp_path / "saved.flnb")
    assert widget._esm == (STATIC / "comparison.js").read_text(encoding="utf-8")
    sent = told(widget, monkeypatch, {"type": "hello"})
    *frames, (compared, _) = sent
    assert compared["type"] == "comparison"
    assert "all numbers of one" in compared["summary"]
    assert {(row[0], row[-1]) for row in compared["rows"]} == {(stats.key[0], "") for stats in run.ops}
    names = {content["side"]: content["run"]["name"] for content, _ in frames}
    assert names == {0: "finished", 1: "finished (saved.flnb)"}
    assert len({content["run"]["id"] for content, _ in frames}) == 2
    widget.close()


def test_what_it_cannot_show_it_refuses_by_name(run: Recording, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected one recording, or two to compare, got 0"):
        flnb.view()
    with pytest.raises(TypeError, match="expected one recording, or two to compare, got 3"):
        flnb.view(run, run, run)
    with pytest.raises(TypeError, match=r"expected a recording .*, got int"):
        flnb.view(3)
    with pytest.raises(ValueError, match="got height=100; expected at least 200"):
        flnb.view(run, height=100)
    with pytest.raises(FileNotFoundError, match="no file"):
        flnb.view(tmp_path / "none.flnb")
    (tmp_path / "bad.flnb").write_text("nothing")
    with pytest.raises(RunFileError, match="damaged"):
        flnb.view(tmp_path / "bad.flnb")
