"""Predictions of steps on other links and more ranks, and of the memory that divided state takes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flnb_backends.comm import modelled
from flnb_telemetry import bus

import flnb
from flnb import distributed, nn, optim
from flnb.dispatch import communication
from flnb.distributed import Topology, simulation
from tests.distributed.test_ranks import recording

LINK = Topology(latency=1e-3, bandwidth=1e6)


def made(times: list[list[tuple[int, int, int]]], size: int = 1, op: str = "all_reduce", nbytes: int = 1000) -> Any:
    """A recording of one step of 100 ms: for each rank the times (ms) at which calls begin, are asked for, and end."""
    of = np.array(times, np.int64) * 1_000_000 + 10**9  # rank, call, moment
    calls = of.shape[1]
    step = {"index": np.array([0]), "t0": np.array([10**9]), "t1": np.array([10**9 + 100_000_000])}
    return SimpleNamespace(
        partial="", ranks=tuple(range(len(of))), op=np.array([op] * calls, object), nbytes=np.full(calls, nbytes),
        step=np.zeros(calls, np.int64), begin=of[:, :, 0], asked=of[:, :, 1], end=of[:, :, 2],
        waited=of[:, :, 2] - of[:, :, 1], views=[SimpleNamespace(table=lambda kind: step)] * len(of),
    )  # fmt: skip


def test_a_step_replayed_by_hand() -> None:
    """50 ms of computing, a call of which 20 ms are beside more computing, and 10 ms of rest.

    On two ranks the link needs 2 (1 + 0.5) = 3 ms for 1000 bytes, on four 6 (1 + 0.25) = 7.5 ms: nothing is exposed.
    """
    run = made([[(50, 70, 90)], [(50, 70, 90)]])
    for ranks in (2, 4):
        found = distributed.simulate(run, ranks, LINK)
        assert found.step_ms == pytest.approx(80.0)
        assert found.exposed_ms == found.late_ms == 0.0
        assert found.hidden == found.efficiency == 1.0
    assert found.calls["all_reduce"]["wire_ms"] == pytest.approx(7.5)
    slow = distributed.simulate(run, 2, Topology(latency=1e-3, bandwidth=2e4))  # 2 (1 + 25) ms
    assert slow.step_ms == pytest.approx(50 + 52 + 10)
    assert slow.exposed_ms == pytest.approx(32.0)
    assert slow.hidden == pytest.approx(20 / 52)


def test_calls_queue_and_late_ranks_are_told_apart() -> None:
    """Rank 1 computes 10 ms longer; two calls of 3 ms are waited for at once."""
    run = made([[(50, 52, 90), (51, 90, 91)], [(60, 62, 90), (61, 90, 91)]])
    found = distributed.simulate(run, 2, LINK)
    # rank 0 asks at 52 for what ends at 60 + 3, rank 1 at 62; the second call ends at 66
    assert found.step_ms == pytest.approx(66 + 9)
    assert found.exposed_ms == pytest.approx((14 + 4) / 2)
    assert found.late_ms == pytest.approx((8 + 0) / 2)


def test_at_the_end_nothing_is_hidden() -> None:
    run = made([[(20, 80, 85), (40, 85, 86), (60, 86, 90)]] * 2)
    hidden = distributed.simulate(run, 2, LINK)
    exposed = distributed.simulate(run, 2, LINK, "at the end")
    assert hidden.step_ms == pytest.approx(80 + 10)
    assert exposed.step_ms == pytest.approx(80 + 10)  # 20 ms of computing follow the last call
    late = Topology(latency=10e-3, bandwidth=1e9)
    assert distributed.simulate(run, 2, late).step_ms == pytest.approx(80 + 10, abs=0.01)
    assert distributed.simulate(run, 2, late, "at the end").step_ms == pytest.approx(60 + 60 + 10, abs=0.01)


@pytest.mark.parametrize(("stage", "gathers"), [(1, 3), (2, 3), (3, 6)])
def test_sharded_strategies_move_what_zero_moves(stage: int, gathers: int) -> None:
    """Rajbhandari et al., section 7: stages 1 and 2 move as much as data parallel, stage 3 half as much again."""
    run = made([[(20, 80, 85), (40, 85, 86), (60, 86, 90)]] * 2)
    whole = distributed.simulate(run, 8, LINK)
    found = distributed.simulate(run, 8, LINK, f"sharded {stage}")
    assert found.calls["reduce_scatter"]["count"] == 3
    assert found.calls["all_gather"]["count"] == gathers
    wire = sum(row["wire_ms"] for row in found.calls.values())
    assert wire == pytest.approx(whole.calls["all_reduce"]["wire_ms"] * (1.5 if stage == 3 else 1.0))
    assert found.compute_ms == pytest.approx(whole.compute_ms)


def test_ten_thousand_ranks() -> None:
    run = made([[(50, 70, 90)], [(55, 70, 90)]])
    found = distributed.simulate(run, 10_000, Topology(1e-6, 1e9, "halving"))
    assert found.ranks == 10_000
    assert repr(found).startswith("10,000 ranks: ")
    assert "all_reduce" in found._repr_html_()


class Clock:
    """A clock of each thread of its own, which goes on when the thread computes or asks a link that is under way."""

    def __init__(self) -> None:
        self.local = threading.local()

    def __call__(self) -> int:
        return int(getattr(self.local, "t", 10**9))

    def asked(self) -> float:
        """The time in seconds, for the modelled link."""
        self.advance(2e-5)
        return self() * 1e-9

    def advance(self, seconds: float) -> None:
        self.local.t = self() + round(seconds * 1e9)


def steps_on(clock: Clock, ranks: int, latency: float, bandwidth: float) -> tuple[Any, float]:
    """A recording of five steps in simulated time on a modelled link, and what they took (ms)."""

    def work() -> None:
        link = modelled.Modelled(latency, bandwidth)
        with distributed.use_communicator(link):
            for number in range(5):
                with flnb.step():
                    clock.advance(0.010)
                    pending = []
                    for bucket in range(4):
                        clock.advance(0.005 + 0.002 * ((distributed.rank() + number) % 2))
                        buffer = np.ones(25_000, np.float32)
                        pending.append(communication.start("all_reduce", buffer, "sum", bucket=bucket))
                    for one in pending:
                        one.wait()
                    clock.advance(0.003)
                    communication.run("all_reduce", np.ones(1), "max")

    with flnb.record() as run:
        distributed.run_threads(ranks, work)
    table = run.table("step")
    return run, float((table["t1"] - table["t0"]).mean()) / 1e6


@pytest.mark.parametrize("bandwidth", [5e6, 5e7])
def test_steps_on_a_modelled_link_are_predicted(bandwidth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a recording on two ranks, for two and four, on a link that hides everything and on one that does not."""
    clock = Clock()
    monkeypatch.setattr(communication, "clock", clock)
    monkeypatch.setattr(bus, "clock", clock)
    monkeypatch.setattr(modelled, "clock", clock.asked)
    run, two = steps_on(clock, 2, 1e-4, bandwidth)
    _, four = steps_on(clock, 4, 1e-4, bandwidth)
    link = Topology(1e-4, bandwidth)
    assert distributed.simulate(run, 2, link).step_ms == pytest.approx(two, rel=0.02)
    assert distributed.simulate(run, 4, link).step_ms == pytest.approx(four, rel=0.02)
    free = distributed.simulate(run, 2, Topology(0.0, 1e12))
    assert (
        free.exposed_ms == pytest.approx(free.late_ms, rel=0.01) == pytest.approx(4.0, rel=0.02)
    )  # 8 ms on one of two ranks


def test_more_ranks_on_a_link_without_cost_take_no_longer() -> None:
    """Steps of 60 ms, in one of which the recorded rank 1 stalls for 120 ms: so do its copies, in the same one."""
    compute = np.full((12, 2), 0.05)
    compute[5, 1] += 0.12
    program = simulation.Program(
        [simulation.Call("all_reduce", 1000)],
        [simulation.Point(compute, 0, False), simulation.Point(0.0, 0, True)],
        np.full((12, 2), 0.01),
    )
    free = Topology(latency=0.0, bandwidth=1e30)
    found = {ranks: simulation._replayed(program, ranks, free) for ranks in (1, 2, 3, 64, 10_000)}
    assert found[1].summary().startswith("1 rank: ")
    assert found[1].step_ms == pytest.approx(60.0)
    assert [found[ranks].step_ms for ranks in (2, 3, 64, 10_000)] == pytest.approx([60 + 120 / 12] * 4)
    assert [one.late_ms for one in found.values()] == pytest.approx([0, 5, 10 * 2 / 3, 5, 5])
    assert [one.compute_ms for one in found.values()] == pytest.approx([60, 65, 60 + 10 / 3, 65, 65])
    assert all(one.exposed_ms == pytest.approx(one.late_ms) for one in found.values())


def test_the_recording_of_one_rank_alone_is_answered() -> None:
    with pytest.raises(
        ValueError, match=r"simulate: the recording contains only rank 0 of 2; merge the others, by flnb merge"
    ):
        distributed.simulate(recording(0, [(10, 20)]), 4, LINK)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, LINK), "got 0 ranks, expected 1 or more"),
        ((2, LINK, "zero"), "got strategy 'zero', expected one of recorded, at the end, sharded 1"),
    ],
)
def test_wrong_arguments_are_answered(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        distributed.simulate(made([[(50, 70, 90)]] * 2), *arguments)


def test_a_recording_without_calls_is_answered() -> None:
    with flnb.record() as run, flnb.step():
        flnb.ones(3)
    with pytest.raises(ValueError, match="has no training steps with collective calls of all ranks"):
        distributed.simulate(run, 2, LINK)


WIDTH, COUNT = 160, 4
WEIGHT = WIDTH * WIDTH * 4


def program() -> None:
    """Two steps of a network of square layers with Adam."""
    net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(COUNT)])
    optimizer = optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        (net(flnb.ones((2, WIDTH))) ** 2).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_memory_of_the_stages(ranks: int) -> None:
    """By figure 1 of Rajbhandari et al.; `test_sharded` measures the same on real ranks."""
    stages = distributed.zero_memory(flnb.memory.dry_run(program), ranks).stages
    whole, part = COUNT * WEIGHT, COUNT * 4 * -(-WIDTH * WIDTH // ranks)
    assert [row["parameter"] for row in stages] == [whole, whole, whole, part]
    assert [row["gradient"] for row in stages] == [whole, whole, part, part]
    assert stages[0]["optimizer_state"] >= 2 * whole
    assert [row["optimizer_state"] for row in stages[1:]] == [stages[1]["optimizer_state"]] * 3
    assert stages[1]["optimizer_state"] == pytest.approx(stages[0]["optimizer_state"] / ranks, rel=0.001)
    assert len({row["other"] for row in stages}) == 1


def test_a_dry_run_without_steps_is_answered() -> None:
    with pytest.raises(ValueError, match="has no training step"):
        distributed.zero_memory(flnb.memory.dry_run(lambda: flnb.ones(3)), 2)
