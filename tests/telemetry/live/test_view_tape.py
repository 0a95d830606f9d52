"""The tape in frames: its gradients, the number of its step, one tape however long the backward pass takes."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus, pump, record, schema, step

if TYPE_CHECKING:
    import pytest


def test_gradients_that_are_not_finite_travel_as_null(new_browser: Any, program: Any, live: Any) -> None:
    live.begin()
    with step():
        node = program.forward("log", -1)
        program.gradient(node, float("inf"), bad=3)
        program.gradient(-1, float("nan"), bad=1, name="w")
        bus.emit(schema.STEP, program.t, program.t + 5, 0)
    pump.flush()
    browser = new_browser()
    browser.take(live.frame(keyframe=True))
    assert browser.tape is not None
    assert (browser.tape["nodes"][0]["norm"], browser.tape["nodes"][0]["bad"]) == (None, 3)
    assert (browser.tape["leaves"][0]["norm"], browser.tape["leaves"][0]["bad"]) == (None, 1)


def test_the_tape_of_a_step_that_takes_long_has_its_number(
    new_browser: Any, program: Any, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.begin()
    browser = new_browser()
    for number in range(2):
        program.gradient(program.forward("log", -1), 1.0)
        pump.flush()
        with monkeypatch.context() as later:
            later.setattr("flnb_telemetry.live.backward.clock", lambda: perf_counter_ns() + 10**9)
            browser.take(live.frame(keyframe=False))
        assert browser.tape is not None
        assert browser.tape["step"] == number
        bus.emit(schema.STEP, program.t, program.t + 5, number)
        program.t += 10


def test_a_tape_whose_gradients_take_long_to_come_is_one(
    new_browser: Any, program: Any, live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.begin()
    browser = new_browser()
    known = []
    with record() as run:
        node = program.forward("exp", -1)
        for _ in range(4):
            node = program.forward("log", node)
        for number in range(node, 0, -1):
            program.gradient(number, 1.0)
            pump.flush()
            with monkeypatch.context() as later:
                later.setattr("flnb_telemetry.live.backward.clock", lambda: perf_counter_ns() + 10**9)
                browser.take(live.frame(keyframe=False))
            assert browser.tape is not None
            known.append(sum(node["norm"] is not None for node in browser.tape["nodes"]))
            assert browser.tape["count"] == 5
        bus.emit(schema.STEP, 0, program.t + 5, 7)
    assert known == [1, 2, 3, 4, 5]
    browser.take(live.frame(keyframe=False))
    assert browser.tape["step"] == run.tape.index == 7
    assert [node["norm"] for node in browser.tape["nodes"]] == [node.norm for node in run.tape.nodes] == [1.0] * 5


def test_the_leaves_of_many_passes_are_stored_once_each(program: Any, live: Any) -> None:
    live.begin()
    for _ in range(50):
        program.node += 1
        program.gradient(program.node, 1.0)
        for leaf in (-1, -2):
            bus.emit(schema.LEAF, program.t, leaf, 0, 1)
    pump.flush()
    live.frame(keyframe=False)
    bus.emit(schema.LEAF, program.t, -3, 0, 1)
    pump.flush()
    live.frame(keyframe=False)
    assert live.history.leaves[:, 2].tolist() == [-1, -2, -3]
