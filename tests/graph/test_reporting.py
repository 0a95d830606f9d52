"""What a program tells: an event for each call and each kernel, from which every op can be counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import models, optim


def recorded_step(name: str, fuse: bool | None) -> flnb.Recording:
    """A recording of one step of a model; not captured if `fuse` is None."""
    flnb.manual_seed(0)
    recipe = models.get(name)
    model = recipe.build("small")
    batch = [flnb.asarray(a) for a in recipe.batch("small", size=2)]
    optimizer = optim.SGD(model.parameters(), lr=0.1)

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
    return Counter({row.key[0]: row.count for row in run.ops if row.key[0] not in views})


def test_ops_of_an_unfused_program_are_those_of_the_function() -> None:
    eager, program = recorded_step("lenet", None), recorded_step("lenet", False)
    left_out = counts(eager) - counts(program)
    assert set(left_out) <= {"copy", "full"}  # a copy of what does not change, equal constants
    assert not counts(program) - counts(eager)
    assert not program.table("kernel")["t0"].size
    phases = {row.key[0]: row.count for row in program.ops.by("phase")}
    assert phases.pop("other") <= 8  # what neither gradient nor step depends on: the loss as a result, say
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


def test_capturing_is_an_event() -> None:
    f = flnb.jit(lambda x: flnb.exp(x) * 2.0)
    x = flnb.asarray(np.ones(3, np.float32))
    f(x)
    with flnb.record() as run:
        f(x)
        f(x)
    compiled = run.table("compile")
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
