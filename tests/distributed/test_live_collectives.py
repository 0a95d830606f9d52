"""The section about collective calls in a live view's frames."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import intern, schema
from flnb_telemetry.analysis.joining import DIFFERS
from flnb_telemetry.live import collectives as livecollectives
from flnb_telemetry.live.collectives import PAUSE, ROWS, Window
from flnb_telemetry.live.recording import LiveRecording

import flnb
from flnb import distributed, nn

DTYPES = {"f64": np.float64, "u32": np.uint32}


def columns(content: dict[str, Any], buffer: bytes) -> dict[str, Any]:
    """The section's arrays."""
    found = {name: place for name, place in content["arrays"].items() if name.startswith("collectives.")}
    return {
        name.removeprefix("collectives."): np.frombuffer(buffer, DTYPES[code], count, at)
        for name, (code, at, count) in found.items()
    }


def train(steps: int = 3, hold: float = 0.0) -> None:
    """Some steps, in which rank 1 loads its data slowly; then rank 1 does not come for some time."""
    model = distributed.DataParallel(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), bucket=None)
    for _ in range(steps):
        with flnb.step():
            with flnb.scope("data"), flnb.scope("take"):
                time.sleep(0.06 if distributed.rank() == 1 else 0.0)
            model(flnb.ones((4, 16))).sum().backward()
            with flnb.phase("optimizer"):
                flnb.ones(4) * 2.0
    model.close()
    if distributed.rank() == 1:
        time.sleep(hold)
    distributed.barrier()
    time.sleep(0.2)


def frame(live: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    live.refresh()
    content, buffer = live.frame(keyframe=True)
    json.dumps(content["collectives"], allow_nan=False)
    return content["collectives"], columns(content, buffer)


def test_the_section_of_ranks_as_threads() -> None:
    live = flnb.telemetry.Live("threads")
    live.begin()
    distributed.run_threads(3, train)
    live.finish()
    about, cols = frame(live)
    assert [one["rank"] for one in about["ranks"]] == [0, 1, 2]
    assert about["rows"] == len(cols["seq"]) == 4 + 3 * 5 + 1
    assert about["ops"] == ["broadcast", "all_reduce", "barrier"]
    assert [about["names"][number] for number in cols["holds"]][4:10] == [
        "1.bias",
        "1.weight",
        "0.bias",
        "0.weight",
        "",
        "1.bias",
    ]
    bucket = np.flatnonzero(cols["bucket"] == 0)[0]  # the last layer's bias
    assert (about["dtypes"][cols["dtype"][bucket]], cols["elements"][bucket], cols["nbytes"][bucket]) == (
        "float32",
        16,
        64,
    )
    begin, end = (cols[name].reshape(3, -1) for name in ("begin", "end"))
    assert (begin <= end).all()
    assert np.nanmin(begin) >= 0
    np.testing.assert_allclose(cols["last"], begin.max(axis=0))
    late = cols["late_rank"][cols["step"] >= 0]
    assert (late == 1).mean() > 0.5
    assert (about["late"][0]["rank"], about["late"][0]["scope"]) == (1, "data.take")
    assert [one["step"] for one in about["steps"]] == [0, 1, 2]
    assert all(one["exposed_ms"] > 10 for one in about["steps"])
    kinds = dict(zip(*np.unique(cols["span_kind"], return_counts=True), strict=True))
    assert [kinds[kind] for kind in range(4)] == [9, 9, 9, 9]
    named = {about["names"][number] for number in cols["span_name"][cols["span_kind"] == 4]}
    assert {"data", "data.take"} <= named
    assert "matmul" in {about["families"][number] for number in cols["act_family"]}
    assert about["stuck"] is None
    assert any(one["scope"] == "data.take" for one in about["reasons"])


def test_a_call_that_one_rank_does_not_join_is_stuck() -> None:
    live = flnb.telemetry.Live("stuck")
    live.begin()
    runner = threading.Thread(target=lambda: distributed.run_threads(3, train, 1, 3.5))
    runner.start()
    time.sleep(3.2)
    about, _ = frame(live)
    runner.join()
    stuck = about["stuck"]
    assert stuck["text"].endswith("rank 1 has not come")
    assert [row["state"] for row in stuck["rows"]] == ["waits", "has not come", "waits"]
    assert stuck["rows"][1]["last"] == "9, all_reduce"
    assert stuck["seconds"] > 2
    live.finish()
    about, _ = frame(live)
    assert about["stuck"] is None


def test_a_call_with_other_dtypes_on_ranks_has_none() -> None:
    def mismatched() -> None:
        distributed.all_reduce(flnb.ones(8, dtype="int32" if distributed.rank() == 1 else "float32"))

    with flnb.record() as run, pytest.raises(Exception, match="int32"):
        distributed.run_threads(3, mismatched)
    found = run.collectives
    assert (found.dtype.tolist(), found.elements.tolist()) == ([DIFFERS], [8])


def test_a_program_without_ranks_has_no_section_and_no_window() -> None:
    live = flnb.telemetry.Live("alone")
    live.begin()
    distributed.all_reduce(flnb.ones(2))
    live.finish()
    content, _ = live.frame(keyframe=True)
    assert "collectives" not in content
    assert not live.collectives.window.seen


def test_the_section_is_sent_when_it_changes() -> None:
    live = flnb.telemetry.Live("changes")
    live.begin()
    distributed.run_threads(2, distributed.barrier)
    flnb.telemetry.flush()
    assert "collectives" in live.frame(False)[0]
    assert "collectives" not in live.frame(False)[0]
    distributed.run_threads(2, distributed.barrier)
    flnb.telemetry.flush()
    assert "collectives" not in live.frame(False)[0], "not due yet"
    live.collectives._due = 0
    assert "collectives" in live.frame(False)[0]
    live.finish()


def test_a_window_is_bounded_and_merges_ops() -> None:
    with flnb.record() as run:
        distributed.run_threads(2, distributed.barrier)
    begun = run.table("collective_begin")
    window = Window(run.catalog)
    window.take([(1, schema.rows(schema.KINDS["collective_begin"], begun))])
    plan = intern.plans.id_of(intern.Plan("f", "matmul", (), "float32", 0))
    run.catalog.refresh()
    ops = np.zeros((1000, schema.WORDS), np.int64)
    ops[:, 0] = schema.OP | plan << schema.PLAN_SHIFT
    ops[:, 1] = np.arange(1000) * 1000 + np.where(np.arange(1000) < 500, 0, 2 * PAUSE)
    ops[:, 2] = ops[:, 1] + 900
    window.take([(1, ops)])
    bars = window.table("op")
    assert bars["t0"].tolist() == [0, 500_000 + 2 * PAUSE]
    assert bars["t1"].tolist() == [499_900, 999_900 + 2 * PAUSE]
    for _ in range(200):
        window.take([(1, schema.rows(schema.KINDS["scope"], {
            "t": np.arange(1000), "context": np.zeros(1000, np.int64), "enter": np.ones(1000, np.int64),
        }))])  # fmt: skip
    assert len(window.table("scope")["t"]) <= ROWS


def test_sections_come_in_time_though_ranks_that_are_threads_take_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a section waits for is not what it costs: one that took 0.2 s beside busy ranks is followed 0.1 s later."""
    live = flnb.telemetry.Live("busy")
    live.begin()
    distributed.run_threads(2, train, 1)
    live.finish()
    real = livecollectives.section

    def slowed(*given: Any) -> Any:
        time.sleep(0.2)
        return real(*given)

    live.frame(keyframe=True)  # what is imported late, and columns
    monkeypatch.setattr(livecollectives, "section", slowed)
    assert live.collectives.news(live, keyframe=True)[0]
    live.collectives.window.version += 1
    began = time.monotonic()
    while not live.collectives.news(live, keyframe=False)[0]:
        time.sleep(0.01)
    assert time.monotonic() - began < 1


def test_a_recording_that_has_ended_is_shown_like_a_live_one() -> None:
    with flnb.record("ended") as run:
        distributed.run_threads(3, train)
    content, buffer = next(LiveRecording(run).frames())
    about, cols = content["collectives"], columns(content, buffer)
    json.dumps(about, allow_nan=False)
    assert about["rows"] == len(cols["seq"]) == 4 + 3 * 5 + 1
    assert (about["late"][0]["rank"], about["late"][0]["scope"]) == (1, "data.take")
    assert "matmul" in {about["families"][number] for number in cols["act_family"]}
    with flnb.record("alone") as run:
        flnb.ones(2)
    assert "collectives" not in next(LiveRecording(run).frames())[0]
