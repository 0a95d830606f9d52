"""What a program tells: an event for each call and each kernel, from which every op can be counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import models, nn, optim


class StepOfOps(optim.SGD):
    """A subclass, whose step no backend computes by one op: programs have the ops of which it consists."""


def recorded_step(name: str, fuse: bool | None) -> flnb.Recording:
    """A recording of one step of a model; not captured if `fuse` is None."""
    flnb.manual_seed(0)
    recipe = models.get(name)
    model = recipe.build("small")
    batch = [flnb.asarray(a) for a in recipe.batch("small", size=2)]
    optimizer = StepOfOps(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        recipe.loss(model, *batch).backward()
        optimizer.step()

    run: Any = step if fuse is None else flnb.jit(step, fuse=fuse)
    for _ in range(3):
        run()
    with flnb.record() as recording:
        run()
    return recording


def counts(run: flnb.Recording) -> Counter[str]:
    views = ("reshape", "permute_dims", "slice", "broadcast_to")
    found = Counter({row.key[0]: row.count for row in run.ops if row.key[0] not in views})
    for combined, op in (("conv2d_bias", "conv2d"), ("linear", "matmul")):
        count = found.pop(combined, 0)  # in programs two ops, and the bias's gradient is copied
        found.update({op: count, "add": count, "copy": count})
    return found


def test_ops_of_an_unfused_program_are_those_of_the_function() -> None:
    eager, program = recorded_step("lenet", None), recorded_step("lenet", False)
    left_out = counts(eager) - counts(program)
    assert set(left_out) <= {"copy", "full"}  # a copy of what does not change, equal constants
    assert not counts(program) - counts(eager)
    assert not program.table("kernel")["t0"].size
    phases = {row.key[0]: row.count for row in program.ops.by("phase")}
    assert phases.pop("other") <= 6  # copies of the batch, and updates of what exists
    assert set(phases) == {"forward", "backward", "optimizer"}


def test_each_kernel_is_an_event_and_each_of_its_ops_has_a_share_of_its_time() -> None:
    run = recorded_step("lenet", True)
    kernels, ops = run.table("kernel"), run.table("op")
    estimated = ops["estimated"] == 1
    assert kernels["ops"].sum() == estimated.sum() > len(kernels["t0"]) > 5
    durations = (ops["t1"] - ops["t0"])[estimated]
    assert durations.sum() == (kernels["t1"] - kernels["t0"]).sum()
    assert (durations >= 0).all()
    at = 0
    for plan, t0, t1, n in zip(*(kernels[k].tolist() for k in ("plan", "t0", "t1", "ops")), strict=True):
        own = ops["plan"][estimated][at : at + n]
        names = {run.catalog.plans.items[p].op for p in own.tolist()}
        assert set(run.catalog.plans.items[plan].op.split("+")) == names
        assert ops["t0"][estimated][at] == t0
        assert ops["t1"][estimated][at + n - 1] == t1
        at += n
    names = counts(run)
    assert names["conv2d"] == 2
    assert names["matmul"] == counts(recorded_step("lenet", None))["matmul"]
    assert {row.key[0] for row in run.ops.by("phase")} >= {"forward", "backward", "optimizer"}
    assert {"lenet.features.c1", "lenet.classifier.f6"} <= {row.key[0] for row in run.ops.by("scope")}


def test_each_op_has_the_line_and_scope_of_what_called_it_also_in_backward() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.second(flnb.tanh(self.first(x)))

    net = Net()
    optimizer = optim.SGD(net.parameters(), lr=0.1)

    @flnb.jit
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    for fuse in (False, True):
        step.fuse = fuse
        step.captured.clear()
        for _ in range(3):
            step(flnb.ones((3, 4)))
        with flnb.record() as run:
            step(flnb.ones((3, 4)))
        found = {row.key: row.count for row in run.ops.by("op", "phase", "scope")}
        for scope in ("net.first", "net.second"):
            assert found["matmul", "forward", scope] == 1
            assert found["matmul", "backward", scope] == {"net.first": 1, "net.second": 2}[scope]
        rows = run.ops.by("phase", "line")
        lines = {(phase, line.partition(": ")[2]) for phase, line in (row.key for row in rows) if phase != "other"}
        assert lines - {("forward", "loss.backward()")} == {  # there the first gradient, a one, is made
            ("forward", "return self.second(flnb.tanh(self.first(x)))"),
            ("forward", "loss = (net(x) ** 2).mean()"),
            ("backward", "return self.second(flnb.tanh(self.first(x)))"),
            ("backward", "loss = (net(x) ** 2).mean()"),
            ("optimizer", "optimizer.step()"),
        }
        assert all(row.key[1].startswith("test_reporting.py:") or row.key[0] == "other" for row in rows)


def test_capturing_is_an_event() -> None:
    f = flnb.jit(lambda x: flnb.exp(x) * 2.0)
    x = flnb.asarray(np.ones(3, np.float32))
    f(x)
    with flnb.record() as run:
        f(x)
        f(x)
    compiled = run.table("compile")  # rows without calls are what an op's first call prepared
    compiled = {name: column[compiled["calls"] > 0] for name, column in compiled.items()}
    assert compiled["values"].tolist() == [2]
    assert compiled["calls"].tolist() == [1]
    assert (compiled["t1"] > compiled["t0"]).all()
    assert len(run.table("kernel")["t0"]) == 2


def test_a_recording_of_a_program_is_stored_and_loaded(tmp_path: Any) -> None:
    run = recorded_step("mlp", True)
    pytest.importorskip("pyarrow", reason="stored runs are Parquet")
    run.save(tmp_path / "run.flnb")
    loaded = flnb.load_run(tmp_path / "run.flnb")
    for kind in ("op", "kernel"):
        for column, values in run.table(kind).items():
            np.testing.assert_array_equal(loaded.table(kind)[column], values)
