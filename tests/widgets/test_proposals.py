"""What the capacity line of the memory view asks its kernel, and what the step takes under the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import flnb
import flnb.nn as nn
from flnb.memory import HostDevice, Native
from flnb.widgets import dashboard
from flnb.widgets.proposals import Proposals

if TYPE_CHECKING:
    from flnb_telemetry import Recording


class Program:
    """A recorded training step, its model, and its manager."""

    def __init__(self) -> None:
        self.manager = Native(HostDevice("256MiB"))
        self.x = flnb.random.normal((1024, 128))
        with flnb.use_memory_manager(self.manager), flnb.record("step") as self.run:
            parts = [nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()) for _ in range(4)]
            self.net = nn.Sequential(*parts)
            self.step()
        self.reserved = int(self.run.memory.timeline().reserved.max())

    def step(self) -> None:
        self.net.zero_grad()
        with flnb.use_memory_manager(self.manager):
            self.net(self.x).sum().backward()


@pytest.fixture(scope="module")
def program() -> Program:
    return Program()


def asked(program: Program, *messages: dict[str, Any], step: bool = True, run: Any = ...) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    found: Recording | None = program.run if run is ... else run
    with flnb.use_memory_manager(program.manager):
        given = (program.net, program.step) if step else (None, None)
        proposals = Proposals(lambda: found, sent.append, *given)
    for message in messages:
        proposals.receive(message)
        proposals.wait()
    return sent


def test_below_the_peak_it_is_told_what_to_do_to_which_module(program: Program) -> None:
    capacity = int(0.7 * program.reserved)
    working, answer = asked(program, {"type": "fit", "capacity": capacity}, step=False)
    assert working == {"type": "fit", "capacity": capacity, "state": "working"}
    assert answer["fits"]
    assert answer["peak"] <= capacity < answer["before"]["peak"] == program.reserved
    assert answer["peak_live"] < answer["before"]["live"]
    plan = flnb.memory.fit(program.run, capacity, program.manager)
    rows = {(row["scope"], row["what"]): row for row in answer["choices"]}
    done = {(scope, "recompute") for scope in plan.recompute} | {(scope, "offload") for scope in plan.offload}
    assert done == {key for key in rows if key[1] != "keep"}
    assert done
    assert all(rows[key]["seconds"] > 0 for key in done if rows[key]["bytes"])
    held = [row["bytes"] for row in answer["choices"] if row["what"] != "keep"]
    assert held == sorted(held, reverse=True)
    assert held[0] > 0
    assert not answer["runs"]


def test_the_code_does_what_the_plan_does(program: Program) -> None:
    (_, answer) = asked(program, {"type": "fit", "capacity": int(0.7 * program.reserved)}, step=False)
    with flnb.use_memory_manager(program.manager):
        program.manager.release_cached()
        with flnb.record() as after:
            exec(answer["code"], {"flnb": flnb, "model": program.net, "step": program.step})
    assert flnb.memory.trace(after).peak_live == pytest.approx(answer["peak_live"], rel=0.02)


def test_applied_it_tells_what_the_step_took(program: Program) -> None:
    capacity = int(0.7 * program.reserved)
    *_, running, done = asked(program, {"type": "fit", "capacity": capacity}, {"type": "apply", "capacity": capacity})
    assert running["state"] == "running"
    assert running["runs"]
    assert done["state"] == ""
    assert done["measured"]["peak"] == pytest.approx(done["peak"], rel=0.02)
    assert done["measured"]["live"] == pytest.approx(done["peak_live"], rel=0.02)
    assert done["measured"]["seconds"] > 0


def test_an_error_of_the_step_is_told_and_the_plan_is_taken_off(program: Program) -> None:
    sent: list[dict[str, Any]] = []

    def step() -> None:
        raise ValueError("no data left")

    with flnb.use_memory_manager(program.manager):
        proposals = Proposals(lambda: program.run, sent.append, program.net, step)
    message = {"type": "fit", "capacity": int(0.7 * program.reserved)}
    proposals.receive(message)
    proposals.wait()
    proposals.receive(message | {"type": "apply"})
    assert sent[-1]["error"] == "ValueError: no data left"
    assert not any("forward" in module.__dict__ for _, module in program.net.named_modules())


def test_nothing_is_run_that_was_not_proposed(program: Program) -> None:
    capacity = int(0.7 * program.reserved)
    assert asked(program, {"type": "apply", "capacity": capacity}) == []
    assert len(asked(program, {"type": "fit", "capacity": capacity}, {"type": "apply", "capacity": capacity + 1})) == 2
    assert (
        len(asked(program, {"type": "fit", "capacity": capacity}, {"type": "apply", "capacity": capacity}, step=False))
        == 2
    )
    for capacity in (True, 0, -1, "1MiB", None, 2.5):
        assert asked(program, {"type": "fit", "capacity": capacity}) == []


def test_why_there_is_no_plan_is_said(program: Program) -> None:
    with flnb.record("no model") as bare:
        flnb.ones((512, 512)) + 1.0
    for run, reason in ((bare, "saved anything for a backward"), (None, "a recording that has ended")):
        _, answer = asked(program, {"type": "fit", "capacity": 1 << 20}, run=run)
        assert reason in answer["error"]


def test_the_view_takes_model_and_step_together(program: Program) -> None:
    pytest.importorskip("anywidget")
    with pytest.raises(TypeError, match="give both model= and step="):
        flnb.view(program.run, model=program.net)
    widget = flnb.view(program.run, model=program.net, step=program.step)
    sent: list[dict[str, Any]] = []
    widget.answers.proposals._send = sent.append
    widget._receive({"type": "fit", "capacity": program.reserved})
    widget.answers.proposals.wait()
    assert [answer["state"] for answer in sent] == ["working", ""]
    assert sent[1]["fits"]
    widget.close()


def test_the_live_dashboard_answers_for_the_recording_it_followed(program: Program) -> None:
    pytest.importorskip("anywidget")
    with flnb.use_memory_manager(program.manager):
        widget = flnb.dashboard()
        with flnb.record("followed") as run:
            program.step()
        sent: list[dict[str, Any]] = []
        widget.proposals._send = sent.append
        peak = int(run.memory.timeline().reserved.max())
        widget._receive({"type": "fit", "capacity": peak})
        widget.proposals.wait()
        widget._receive({"type": "apply", "capacity": peak})
    dashboard.close()
    assert [answer["state"] for answer in sent] == ["working", ""], "without the step there is nothing to run"
    assert sent[1]["before"]["peak"] == peak
    assert not sent[1]["runs"]
