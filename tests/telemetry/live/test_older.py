"""A live timeline asked for older times than it stores: it answers with the recording's events, or says why not."""

from __future__ import annotations

import importlib.util
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import bus, device_words, intern, schema
from flnb_telemetry.device_words import Kernel
from flnb_telemetry.formats import folder
from flnb_telemetry.live import older
from flnb_telemetry.live.older import NONE_LEFT, READING
from flnb_telemetry.live.recording import LiveRecording
from flnb_telemetry.live.timeline import LiveTimeline
from flnb_telemetry.live.view import Live

import flnb
from flnb import nn, optim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flnb_telemetry.recording import Recording

DEVICES = importlib.util.find_spec("flnb_telemetry.live.devices") is not None  # a tool, which the core alone lacks
NAMES = ("t0", "t1", "what", "context", "count")


def launch(numbers: range) -> None:
    """Emit the events of kernels that a device runs in a stream, one after another."""
    assert bus.lanes is not None
    context = intern.contexts.id_of(("", 0, "cuda:0", 3, ""))
    kernel = intern.kernels.id_of(Kernel("k"))
    for number in numbers:
        t = time.perf_counter_ns()
        bus.lanes.lane.emit(device_words.LAUNCH | kernel << schema.PLAN_SHIFT, t, t + 500, number, 0, 0, 0, context)
        bus.emit(device_words.RAN, t + 600, t + 900, number, 50, t + 900)


def trained(path: Path | None, live: Live) -> Iterator[Recording]:
    """Yield the recording of a training, which a live view with few events follows, in the middle and at the end."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = optim.SGD(model.parameters(), lr=1e-2)
    x, y = flnb.randn(8, 8), flnb.asarray([i % 4 for i in range(8)])
    live.timeline = LiveTimeline(live, most=600)
    live.begin()
    with flnb.record(path=path) as run, flnb.scope("whole"):
        live.timeline.read_from(run)
        for number in range(240):
            with flnb.step(), flnb.scope("outer"):
                optimizer.zero_grad()
                loss = flnb.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                if DEVICES:
                    launch(range(4 * number + 1, 4 * number + 5))
            if number % 20 == 0:
                live.refresh()  # the recording receives events in pieces
            if number == 200:
                live.frame(keyframe=True)
                yield run
    live.finish()
    live.frame(keyframe=True)
    yield run


def answered(live: Live, window: list[float]) -> dict[str, Any]:
    """The last answer about a window: earlier ones say that older events are being read."""
    until = time.monotonic() + 20
    while True:
        found = live.timeline.answer({"id": 1, "window": window, "older": True})
        if found["pieces"][0].get("note") != READING or time.monotonic() > until:
            return found
        assert found["pieces"][0]["reading"]
        live.timeline.queries.older._thread.join(20)  # type: ignore[union-attr]


def rows_of(found: dict[str, Any]) -> dict[str, Any]:
    """By row, the columns of its bars."""
    columns = found["columns"]
    return {
        f"{row['kind']} {row['depth']}": np.array([columns[name][columns["row"] == number] for name in NAMES])
        for number, row in enumerate(found["rows"])
    }


@pytest.fixture(params=["disk", "memory"])
def runs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(folder, "ROWS", 1500)
    monkeypatch.setattr(older, "AROUND", 3_000_000)
    live = Live("older")
    steps = trained(tmp_path / "run.flnb" if request.param == "disk" else None, live)
    yield live, steps
    steps.close()
    live.finish()
    assert "flnb-older" not in [thread.name for thread in threading.enumerate()]


def test_old_windows_have_every_event_of_the_recording(runs: Any) -> None:
    """While it runs and after its end, from disk and from memory, also those whose scopes began before."""
    live, steps = runs
    for run in steps:
        if run.folder is not None and run.end is None:
            deadline = time.monotonic() + 10
            while (run._written is None or run._written.batches < 3) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert run._written is not None
            assert run._written.batches >= 3
        step = run.table("step")
        middle = (step["t0"][21] + step["t1"][21]) // 2  # within scopes
        t0, t1 = ((t - live.start) / 1e6 for t in (middle, step["t1"][23]))
        assert live.timeline.rows.rows[max(live.timeline.rows.rows)].since(1) > step["t1"][30]
        whole = LiveRecording(run)
        whole.start = live.start
        expected = rows_of(whole.timeline.answer({"id": 1, "window": [t0, t1, 16384]}))
        found = answered(live, [t0, t1, 16384])
        assert "note" not in found["pieces"][0]
        own = rows_of(found)
        assert list(own) == list(expected)
        assert expected["op 0"].shape[1] > 30
        assert not DEVICES or 4 <= expected["task 3"].shape[1] <= 12
        for name, bars in expected.items():
            own[name][1], bars[1] = np.minimum(own[name][1], t1), np.minimum(bars[1], t1)  # a scope may go on
            np.testing.assert_array_equal(own[name], bars, err_msg=name)
        op = run.table("op")
        counted = live.timeline.answer({"id": 2, "measure": [t0, t1]})["measure"]
        assert counted["complete"]
        begun = (op["t0"] >= middle) & (op["t0"] < step["t1"][23])
        assert abs(counted["counts"]["op"] - int(begun.sum())) <= 1  # times are rounded to floats
        place = [row["kind"] for row in found["rows"]].index("op")
        row = found["rows"][place]
        number = int(found["columns"]["number"][found["columns"]["row"] == place][3])
        event = live.timeline.answer({"id": 3, "event": [row["thread"], "op", 0, number]})["event"]
        at = int(np.flatnonzero((op["t0"] - live.start) / 1e6 == event["t0"])[0])
        assert [event["block"], event["node"]] == [op["alloc_id"][at], op["node"][at]]
        assert any(op["node"] == event["node"])
        # an event of a picture that was drawn before it left the memory: its number is stored no more
        for stale in (3, 5 << 32):
            request = {"id": 4, "event": [row["thread"], "op", 0, stale, float((op["t0"][60] - live.start) / 1e6)]}
            answer = live.timeline.answer(request)
            while answer.get("reading"):
                live.timeline.queries.older._thread.join(20)
                answer = live.timeline.answer(request)
            assert answer["event"]["block"] == op["alloc_id"][60]
            assert answer["event"]["what"] == op["plan"][60]
        assert live.timeline.answer({"id": 4, "event": [row["thread"], "op", 0, 3]})["event"] is None


def test_a_read_that_fails_as_the_folder_becomes_a_file_is_tried_again(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, steps = runs
    run = list(steps)[-1]
    t0, t1 = ((run.table("step")["t0"][at] - live.start) / 1e6 for at in (20, 30))
    whole, between = [FileNotFoundError("the folder was renamed")], run.between
    monkeypatch.setattr(run, "between", lambda *given: between(*given) if not whole else _raise(whole.pop()))
    assert "note" not in answered(live, [t0, t1, 16384])["pieces"][0]
    assert not whole
    live.timeline.read_from(run)
    monkeypatch.setattr(run, "between", lambda *given: _raise(FileNotFoundError("the folder was deleted")))
    assert answered(live, [t0, t1, 16384])["pieces"][0]["note"] == NONE_LEFT


def _raise(error: Exception) -> None:
    raise error


def test_what_was_not_read_is_said(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    live, steps = runs
    run = list(steps)[-1]
    t0, t1 = ((run.table("step")["t0"][at] - live.start) / 1e6 for at in (20, 30))
    window = [t0, t1, 16384]
    monkeypatch.setattr(older, "MOST", 100)
    found = answered(live, window)["pieces"][0]
    assert found["note"] == "merged: zoom in to read older events, at most 100"
    assert found["until"] > 0
    assert not found["reading"]
    run.over_limit = 1  # events were lost: the recording has less than the levels
    live.timeline.read_from(run)
    assert answered(live, window)["pieces"][0]["note"] == NONE_LEFT
    live.timeline.queries.older = None
    assert answered(live, window)["pieces"][0]["note"] == NONE_LEFT
    asked = live.timeline.answer({"id": 1, "window": window})  # a view that follows the run asks for nothing older
    assert "note" not in asked["pieces"][0]
