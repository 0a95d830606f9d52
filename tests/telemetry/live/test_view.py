"""Frames: a browser that adds them up must hold what a recording of the same events says."""

from __future__ import annotations

import json
import threading
import time
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import bus, log, pump, record, schema, step
from flnb_telemetry.live.memory import EVENTS, FINISHED, POINTS
from flnb_telemetry.live.recording import LiveRecording
from flnb_telemetry.live.tallies import GROUPS
from flnb_telemetry.live.view import Live
from flnb_telemetry.tally import WORST


def simulate(program: Any, steps: int, rng: Any) -> None:
    """Training steps: parameters stay, activations come and go, a segment is added and one released."""
    held: dict[int, tuple[int, int]] = {}
    for i in range(steps):
        with step(total=steps):
            program.t = time.perf_counter_ns()
            program.segment(10 + i, (10 + i) << 24, 1 << 24)
            with bus.scope("net"):
                node = -1
                for k in range(int(rng.integers(3, 20))):
                    address, size = ((10 + i) << 24) + 8192 * k, 512 * int(rng.integers(1, 16))
                    category = schema.CATEGORIES[int(rng.integers(0, 7))]
                    block = program.alloc(address, size, size - 12, segment=10 + i, category=category)
                    held[block] = (address, size)
                    line, shape = f"train.py:{k % 3}: y = f({k % 3})" if k % 4 else "", (k % 3 + 1, 8)
                    spent = int(rng.lognormal(8, 1))
                    node = program.forward(f"op{k % 5}", node, spent=spent, block=block, line=line, shape=shape)
                    if k % 4 == 3:
                        program.resize(10 + i, (10 + i) << 24, (1 << 24) - 4096 * k)
            if rng.random() < 0.5:
                pump.flush()  # what knows the scopes of this backward's nodes may come with an earlier batch
            with bus.phase("backward"):
                for number in range(node, node - 3, -1):
                    program.op(f"op{number % 5}_grad", int(rng.lognormal(8, 1)), node=number)
                program.gradient(node, 1.0 + i)
                program.gradient(-1, 0.5, name="weight")
            log(loss=float(rng.random()))
            for block in [b for b in held if rng.random() < 0.7]:
                address, size = held.pop(block)
                program.free(block, address, size, segment=address >> 24)
            if i > 2 and not any(address >> 24 == 7 + i for address, _ in held.values()):
                program.release(7 + i, (7 + i) << 24, 1 << 24)
            while time.perf_counter_ns() < program.t:
                pass  # the step ends after what happened in it
        pump.flush()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("every", [1, 3, 100])
def test_frames_add_up_to_what_the_recording_says(
    new_browser: Any, program: Any, live: Any, seed: int, every: int
) -> None:
    rng, browser = np.random.default_rng(seed), new_browser()
    live.begin()
    with record() as run:
        for i in range(12):
            simulate(program, 2, rng)
            if i % every == 0:
                browser.take(live.frame(keyframe=i == 6))
        live._table_due = 0.0
        browser.take(live.frame(keyframe=False))
    state = run.memory.at(1e9)
    blocks = {b.id: (s.id, b.offset, b.size, b.requested, b.category) for s in state.segments for b in s.blocks}
    seen = {
        number: (b["segment"], b["offset"], b["size"], b["requested"], schema.CATEGORIES[int(b["category"])])
        for number, b in browser.blocks.items()
    }
    assert seen == blocks
    ops = run.table("op")
    made = dict(zip(ops["alloc_id"].tolist(), ops["node"].tolist(), strict=True))
    assert {number: b["node"] for number, b in browser.blocks.items()} == {n: made[n] for n in blocks}
    assert {number: size for number, (_, size) in browser.segments.items()} == {s.id: s.size for s in state.segments}
    frees = run.table("free_completed")
    told = dict(zip(frees["alloc_id"].tolist(), (frees["t"] - live.start) / 1e9, strict=True))
    assert browser.freed
    assert {number: told[number] for number in browser.freed} == pytest.approx(browser.freed)
    assert set(browser.lines) == {"", *(f"train.py:{k}: y = f({k})" for k in range(3))}
    assert set(browser.shapes) == {"8×8", "1×8", "2×8", "3×8"}
    for table, rows in ((browser.ops, run.ops), *((getattr(browser, f"{key}s"), run.ops.by(key)) for key in GROUPS)):
        assert table.keys() == {row.key[0] for row in rows}
        for row in rows:
            got = table[row.key[0]]
            for key in ("count", "total", "max", "bytes"):
                assert got[key] == getattr(row, key)
            assert got["p99"] == pytest.approx(row.p99, rel=1.01 * WORST)
    assert [index for index, *_ in browser.steps] == run.steps["index"].tolist()
    t1 = [(ns - live.start) / 1e9 for ns in run.table("step")["t1"]]
    assert [end for *_, end in browser.steps] == pytest.approx(t1)
    assert [value for *_, value in browser.metrics] == run.metrics["loss"]["value"].tolist()
    assert {name for name, *_ in browser.metrics} == {"loss"}
    counters = browser.content["counters"]
    assert counters["events"] == run.events
    assert (counters["dropped"], counters["dropped_first_step"], counters["dropped_last_step"]) == (0, None, None)
    assert counters["step"] == run.steps["index"][-1]
    assert counters["steps_total"] == 2
    tape = browser.tape
    assert tape is not None
    final = run.tape
    assert [node["id"] for node in tape["nodes"]] == [node.id for node in final.nodes]
    assert [node["norm"] for node in tape["nodes"]] == [node.norm for node in final.nodes]
    assert [browser.names["plans"][node["plan"]]["op"] for node in tape["nodes"]] == [node.op for node in final.nodes]
    assert [leaf["name"] for leaf in tape["leaves"]] == ["weight"]
    assert tape["step"] == final.index


def test_a_keyframe_alone_gives_the_whole_picture(new_browser: Any, program: Any, live: Any) -> None:
    live.begin()
    steady, late = new_browser(), new_browser()
    rng = np.random.default_rng(5)
    for i in range(10):
        simulate(program, 1, rng)
        steady.take(live.frame(keyframe=i == 0))
    content, buffer = live.frame(keyframe=True)
    late.take((content, buffer))
    assert content["keyframe"]
    assert late.blocks == steady.blocks
    assert late.segments == steady.segments
    assert late.freed == steady.freed
    assert late.steps == steady.steps
    assert late.metrics == steady.metrics
    assert late.names == steady.names
    assert late.tape == steady.tape is not None


def test_frames_without_news_are_small(
    new_browser: Any, program: Any, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = perf_counter_ns()
    monkeypatch.setattr("flnb_telemetry.live.view.clock", lambda: now)  # tables are told again after a while
    live.begin()
    browser = new_browser()
    program.op("add")
    pump.flush()
    browser.take(live.frame(keyframe=True))
    content, buffer = live.frame(keyframe=False)
    assert content["arrays"] == {}
    assert buffer == b""
    assert not any(name in content for name in ("strings", "plans", "contexts", "tape"))
    assert len(json.dumps(content)) < 1200


def test_a_keyframe_tells_the_latest_finished_lifetimes(new_browser: Any, program: Any, live: Any) -> None:
    live.begin()
    program.segment(1, 0, 1 << 30)
    for _ in range(FINISHED + 100):
        program.free(program.alloc(0, 512), 0, 512)
    last = program.alloc(4096, 512)
    pump.flush()
    browser = new_browser()
    browser.take(live.frame(keyframe=True))
    assert set(browser.freed) == set(range(101, FINISHED + 101))
    assert set(browser.blocks) == {last}


def test_too_many_memory_events_are_thinned_and_what_lives_stays_exact(
    new_browser: Any, program: Any, live: Any
) -> None:
    live.begin()
    browser = new_browser()
    browser.take(live.frame(keyframe=True))
    with record() as run:
        program.segment(1, 0, 1 << 30)
        kept = [program.alloc(1 << 20, 2048, category="gradient")]
        for i in range(EVENTS):
            block = program.alloc(0, 512 * (1 + i % 7))
            program.free(block, 0, 512 * (1 + i % 7))
        kept.append(program.alloc(2 << 20, 1024, category="parameter"))
    content = browser.take(live.frame(keyframe=False))
    assert content["counters"]["memory_thinned"]
    assert set(browser.blocks) == set(kept)
    points = browser.arrays
    assert 100 < len(points["memory.t"]) <= POINTS
    assert (np.diff(points["memory.t"]) >= 0).all()
    categories = sum(points[f"memory.c{i}"] for i in range(7))
    np.testing.assert_array_equal(categories, points["memory.allocated"])
    line = run.memory.timeline()
    at = np.searchsorted(line.t, points["memory.t"] + (live.start - run.start) / 1e9 + 1e-12, "right") - 1
    np.testing.assert_array_equal(points["memory.allocated"], line.allocated[at])
    np.testing.assert_array_equal(points["memory.reserved"], line.reserved[at])
    assert points["memory.allocated"].max() == line.allocated.max()
    assert not live.frame(keyframe=False)[0]["counters"]["memory_thinned"]


def test_more_new_blocks_than_a_frame_takes_bring_a_keyframe(new_browser: Any, program: Any, live: Any) -> None:
    live.begin()
    browser = new_browser()
    browser.take(live.frame(keyframe=True))
    program.segment(1, 0, 1 << 30)
    for i in range(EVENTS + 500):
        program.alloc(512 * i, 512)
    pump.flush()
    browser.take(live.frame(keyframe=False))
    content = browser.take(live.frame(keyframe=False))
    assert content["keyframe"]
    assert len(browser.blocks) == EVENTS + 500


def test_drops_are_counted_and_placed_in_steps(program: Any, live: Any) -> None:
    live.buffer = 1024
    live.begin()
    pump.flush()
    with step(), step(index=0):
        pass
    pump.flush()
    with step(index=1):
        program.t = time.perf_counter_ns()
        for _ in range(100):
            program.op(spent=1)
    pump.flush()
    counters = live.frame(keyframe=True)[0]["counters"]
    assert counters["dropped"] > 50
    assert counters["events"] + counters["dropped"] == 103
    assert counters["dropped_first_step"] is not None
    assert counters["buffer_capacity"] == 1024
    assert 0 < counters["telemetry_share"] <= 1


@pytest.mark.parametrize("total", [None, 20])
def test_the_figures_of_a_run_that_has_ended_stand(program: Any, live: Any, total: int | None) -> None:
    live.begin()
    with record() as run:
        for index in range(1000, 1010):
            with step(index, total):
                program.op()
    live.finish()
    seen = [live.frame(keyframe=False)[0]["counters"] for _ in range(3) if time.sleep(0.01) is None]
    shown = [(one["events_per_s"], one["t"], one["step"], one["steps_total"]) for one in seen]
    assert shown == [shown[0]] * 3
    rate, seconds, *steps = shown[0]
    assert rate == pytest.approx(live.events / seconds)
    assert rate > 0
    assert steps == [1009, total or 1010]
    counters = next(iter(LiveRecording(run).frames()))[0]["counters"]
    assert [counters["step"], counters["steps_total"]] == steps
    assert counters["events_per_s"] == pytest.approx(run.events / run.seconds)
    assert "10 steps (1000 to 1009)" in run.summary()[0]


@pytest.mark.parametrize("history", [8, 1000], ids=["shortened", "whole"])
def test_the_time_of_a_step_is_that_of_the_last_ten_and_at_the_end_that_of_all(
    program: Any, live: Any, history: int
) -> None:
    live.history.most = history
    live.begin()
    with record() as run:
        for index in range(24):
            with step(index):
                program.op()
                time.sleep(0.01 if index == 0 else 0)
            if index % 6 == 5:
                pump.flush()
                running = live.frame(keyframe=False)[0]["counters"]["step_seconds"]
    live.finish()
    table = run.table("step")
    seconds = (table["t1"] - table["t0"]) / 1e9
    assert running == pytest.approx(seconds[-10:].mean())
    ended = [live.frame(keyframe=True)[0]["counters"], next(iter(LiveRecording(run).frames()))[0]["counters"]]
    assert [one["step_seconds"] for one in ended] == pytest.approx([seconds.mean()] * 2)
    assert running != pytest.approx(seconds.mean())


def test_small_outputs_outside_blocks_are_added_up(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "describers", [lambda: {"min_block": 1024, "backend": "numpy", "capacity": 1 << 30}])
    live = Live()
    live.begin()
    program.op("add", shape=(10,))  # 40 bytes
    program.op("reshape", shape=(20,), family="movement")  # a view
    program.op("add", shape=(1000,), block=7)
    program.op("exp", shape=(5,), block=8)
    program.op("add", shape=(1000,))  # written into an existing block
    pump.flush()
    content, _ = live.frame(keyframe=True)
    live.finish()
    assert content["counters"]["small_bytes"] == 40
    assert content["run"]["backend"] == "numpy"
    assert content["run"]["capacity"] == 1 << 30
    assert content["run"]["min_block"] == 1024


def test_a_run_waits_records_and_ends(program: Any) -> None:
    live = Live("digits")
    assert live.frame(keyframe=True)[0]["run"]["state"] == "waiting"
    live.begin()
    pump.flush()
    assert live.frame(keyframe=False)[0]["run"]["state"] == "waiting"
    program.op()
    pump.flush()
    assert live.frame(keyframe=False)[0]["run"]["state"] == "recording"
    live.finish(ValueError("shapes differ"))
    about = live.frame(keyframe=False)[0]["run"]
    assert (about["name"], about["state"], about["error"]) == ("digits", "failed", "ValueError: shapes differ")


def test_what_happens_reaches_a_live_view_by_itself(program: Any, live: Any) -> None:
    live.begin()
    program.op()
    deadline = time.monotonic() + 10
    while not live.events and time.monotonic() < deadline:
        time.sleep(0.01)
    assert live.events == 1


def test_a_long_run_does_not_grow_without_bound(new_browser: Any, program: Any, live: Any) -> None:
    live.begin()
    for i in range(12_000):
        bus.emit(schema.STEP, program.t + i, program.t + i + 1, i)
        log(loss=i, accuracy=i)
    pump.flush()
    live.frame(keyframe=False)
    browser = new_browser()
    browser.take(live.frame(keyframe=True))
    assert len(browser.steps) <= 9_000
    assert browser.steps[-1][0] == 11_999
    assert {name for name, *_ in browser.metrics} == {"loss", "accuracy"}
    assert max(value for *_, value in browser.metrics) == 11_999


def test_a_view_receives_what_was_emitted_just_now_when_it_is_refreshed(
    new_browser: Any, program: Any, live: Any
) -> None:
    live.buffer = 1 << 20
    pump.attach(live, interval=60)
    live.refresh()
    program.op()
    browser = new_browser()
    live.refresh()
    browser.take(live.frame(keyframe=True))
    assert browser.ops["add"]["count"] == 1
    pump.detach(live)
    live.end = live.start
    live.refresh()  # of a run that has ended nothing comes any more


def test_the_timeline_is_sent_often_only_where_it_is_shown(
    program: Any, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten frames in a second."""
    now = [time.perf_counter_ns()]
    monkeypatch.setattr("flnb_telemetry.live.timeline.clock", lambda: now[0])
    monkeypatch.setattr("flnb_telemetry.live.timeline.thread_time_ns", lambda: 0)
    live.begin()
    live.frame(keyframe=True)

    def sections(tab: str | None) -> int:
        found = 0
        for _ in range(10):
            now[0] += 100_000_000
            if tab is not None:
                live.look(tab)
            program.op()
            pump.flush()
            found += "timeline" in live.frame(keyframe=False)[0]
        return found

    assert sections(None) == 10  # no browser has told what it shows
    assert sections("overview") == 1
    assert sections("timeline") == 10
    assert 1 <= sections("memory") <= 10  # it was shown a moment ago
    assert sections("memory") == 1


def test_frames_can_be_taken_while_others_emit(new_browser: Any, program: Any, live: Any) -> None:
    live.begin()
    stop = threading.Event()

    def emit() -> None:
        while not stop.is_set():
            bus.emit(schema.OP | program.plan("add") << 24, time.perf_counter_ns(), time.perf_counter_ns() + 5)

    threads = [threading.Thread(target=emit) for _ in range(2)]
    for thread in threads:
        thread.start()
    browser = new_browser()
    for i in range(20):
        browser.take(live.frame(keyframe=i % 7 == 0))
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    pump.flush()
    live._table_due = 0.0
    browser.take(live.frame(keyframe=False))
    assert browser.ops["add"]["count"] == browser.content["counters"]["events"] > 1000
    assert browser.content["counters"]["dropped"] == 0 or browser.ops["add"]["count"] > 0
