"""Recordings of the cuda backend: launches and copies, CuPy's and own, as the device itself counts them."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema  # nbformat needs it
import numpy as np
import pytest
from flnb_backends.tensor.cuda.gpu import gpu_at
from flnb_telemetry import device_words, schema

import flnb
from flnb import nn

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice


def training(module: nn.Module, optimizer: Any) -> None:
    x = flnb.asarray(np.random.default_rng(0).normal(size=(32, 64)).astype(np.float32))
    labels = flnb.asarray(np.arange(32) % 10)
    with flnb.step():
        flnb.cross_entropy(module(x), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_training_step_is_recorded_as_the_device_counts_it(cuda: EmulatedDevice) -> None:
    with flnb.use_backend("cuda"):
        module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimizer = flnb.optim.Adam(module.parameters(), lr=0.01)
        gc.collect()
        gpu_at(0).manager.release_cached()  # memory that a destroyed stream of another test used is waited for
        for _ in range(4):  # then the step's blocks are those of the steps before
            training(module, optimizer)
            flnb.sync()
        what = "launches", "bytes to the device", "bytes to the host", "bytes on the device"
        before = [cuda.count(name) for name in what]
        with flnb.record(grad_interval=None) as run:
            training(module, optimizer)
            training(module, optimizer)
            flnb.sync()
        launches, *moved = (cuda.count(name) - first for name, first in zip(what, before, strict=True))
    found = run.devices
    names = [run.catalog.kernels.items[number].name for number in found.task["kernel"][found.task["route"] == 0]]
    elsewhere = names.count("cupy full") + names.count("cupy matmul")  # a memset; cuBLAS, which is not counted
    assert launches - 2 * 3 <= len(names) - elsewhere <= launches  # CuPy's inside of own ops are not seen
    assert {"cupy matmul", "cupy add", "relu", "log_softmax", "cross_entropy"} <= set(names)
    for route, count in zip(device_words.ROUTES[1:], moved, strict=False):
        nbytes = found.task["nbytes"][found.task["route"] == device_words.ROUTES.index(route)].sum()
        assert nbytes == count, route
    assert (found.task["ran1"] > 0).all()
    assert [(one.to_host, one.waits) for one in found.steps] == [(0, 0)] * 2  # a recording makes nobody wait
    asked = {run.catalog.plans.items[number].op for number in found.task["plan"]}
    assert {"matmul", "add", "cross_entropy", "from_numpy"} <= asked
    assert len({run.catalog.contexts.items[number].phase for number in found.task["context"]}) > 1


@pytest.mark.parametrize(
    ("run_op", "name"),
    [
        (lambda x: x + x, "cupy add"), (flnb.sqrt, "cupy sqrt"), (lambda x: x * 2.0, "cupy multiply"),
        (lambda x: flnb.sum(x, axis=0), "sum"), (lambda x: flnb.ones((4, 4)), "cupy full"), (flnb.relu, "relu"),
    ],
)  # fmt: skip
def test_an_op_is_the_launches_that_the_device_counts(run_op: Any, name: str, cuda: EmulatedDevice) -> None:
    with flnb.use_backend("cuda"):
        x = flnb.asarray(np.ones((32, 8), np.float32))
        flnb.sync()
        before = cuda.count("launches")
        with flnb.record(grad_interval=None) as run:
            run_op(x)
            flnb.sync()
    task = run.devices.task
    kernels = task["kernel"][task["route"] == 0]  # a number is copied to the device, too
    assert cuda.count("launches") - before == len(kernels) == 1
    assert run.catalog.kernels.items[kernels[0]].name == name
    assert (task["ran1"] > 0).all()


def test_a_view_launches_nothing(cuda: EmulatedDevice) -> None:
    with flnb.use_backend("cuda"):
        x = flnb.asarray(np.ones((4, 6), np.float32))
        with flnb.record(grad_interval=None) as run:
            x.reshape((6, 4))[1:].T  # noqa: B018
            flnb.sync()
    assert len(run.devices) == 0


def test_blocks_are_those_of_tensors_with_their_scope(cuda: EmulatedDevice) -> None:
    with flnb.use_backend("cuda"):
        x = flnb.asarray(np.ones((64, 64), np.float32))
        with flnb.record(grad_interval=None) as run:
            with flnb.scope("net"):
                y = x @ x
            z = flnb.exp(y)
            flnb.sync()
            assert z.shape == (64, 64)
    found = run.devices
    block, use = found.block, found.use
    made = {run.catalog.plans.items[number].op: row for row, number in enumerate(block["plan"].tolist())}
    contexts = run.catalog.contexts.items
    assert contexts[block["context"][made["matmul"]]].scope == "net"
    kernels = [run.catalog.kernels.items[number].name for number in found.task["kernel"]]
    users = [kernels[task] for task, row in zip(use["task"], use["block"], strict=True) if row == made["matmul"]]
    assert users == ["cupy matmul", "cupy exp"]
    assert not block["until"].any()


def test_blocks_of_both_devices_are_known_though_one_is_active(cuda: EmulatedDevice) -> None:
    with flnb.use_backend("cuda:1"):
        there = flnb.asarray(np.ones((16, 16), np.float32))
    with flnb.use_backend("cuda"):
        here = flnb.asarray(np.ones((8, 8), np.float32))
        with flnb.record(grad_interval=None) as run:
            moved = here.to("cuda:1")
            flnb.sync()
    with flnb.use_backend("cuda:1"):
        flnb.sync()
    block = run.devices.block
    found = {
        (run.catalog.strings.items[block["place"][row]], int(block["requested"][row])) for row in range(len(block["t"]))
    }
    assert {("cuda:1", there.nbytes), ("cuda:0", here.nbytes), ("cuda:1", moved.nbytes)} <= found
    del there, moved
    gpu_at(1).manager.release_cached()
    with flnb.use_memory_manager(flnb.memory.Caching()), flnb.record() as run:
        flnb.exp(flnb.ones((64, 64)))
    assert not run.devices.block["place"].any()  # a recording in which no device is used has only the host's


def test_a_trace_has_what_the_device_ran(cuda: EmulatedDevice, tmp_path: Path) -> None:
    with flnb.use_backend("cuda"):
        x = flnb.asarray(np.ones((32, 8), np.float32))
        flnb.sync()
        with flnb.record(grad_interval=None) as run, flnb.step():
            flnb.relu(x + x)
            flnb.asarray(np.ones((16, 8), np.float32))
            flnb.sync()
    run.save_trace(tmp_path / "run.json")
    whole = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    form = json.loads((Path(__file__).parents[2] / "telemetry" / "traces" / "kineto.schema.json").read_text())
    assert [error.message for error in jsonschema.Draft202012Validator(form).iter_errors(whole)] == []
    events = whole["traceEvents"]
    task, kernels = run.devices.task, run.catalog.kernels.items
    ran = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy") and e["pid"] >= 1000]
    launches, copies = ([e for e in ran if e["cat"] == name] for name in ("kernel", "gpu_memcpy"))
    order = np.argsort(task["slot"])
    ran.sort(key=lambda e: e["ts"])
    assert [e["args"]["correlation"] for e in ran] == task["seq"][order].tolist()
    assert [e["name"] for e in launches] == [kernels[n].name for n in task["kernel"][task["route"] == 0]]
    assert {e["args"]["op"] for e in launches} == {"add", "relu"}
    assert all(e["args"]["emulated"] == 1 and e["dur"] == 1 for e in launches)
    assert sum(e["args"]["bytes"] for e in copies) == task["nbytes"].sum() > 0
    arrows = [{e["id"] for e in events if e["ph"] == mark and e["cat"] == "ac2g"} for mark in "sf"]
    assert arrows == [set(task["seq"].tolist())] * 2
    calls = [e for e in events if e.get("cat") == "cuda_runtime"]
    assert len(calls) == len(task["seq"]) + len(run.devices.wait["t0"])


def test_a_trace_of_a_device_is_read_again(cuda: EmulatedDevice, tmp_path: Path) -> None:
    with (
        flnb.use_backend("cuda") as backend,
        flnb.record(grad_interval=None) as run,
        flnb.step(),
        flnb.scope("net"),
        backend.stream(),
    ):
        x = flnb.asarray(np.ones((32, 8), np.float32))
        with backend.stream() as other:
            y = flnb.relu(x)
        backend.wait_for(other)
        (y + x).numpy()
        flnb.sync()
    run.save_trace(tmp_path / "run.json")
    again = flnb.load_run(tmp_path / "run.json")
    kinds = (
        "device",
        "launch",
        "copy",
        "ran",
        "event_recorded",
        "event_awaited",
        "host_wait",
        "op",
        "segment_alloc",
        "alloc",
    )
    assert all(len(run.table(kind)["lane"]) for kind in kinds)
    assert {kind: len(again.table(kind)["lane"]) for kind in kinds} == {
        kind: len(run.table(kind)["lane"]) for kind in kinds
    }
    assert "not read" not in again.meta
    assert (again.devices.infos, again.seconds, repr(again.devices)) == (
        run.devices.infos,
        run.seconds,
        repr(run.devices),
    )
    ours, theirs = run.devices.task, again.devices.task
    for name in ("seq", "route", "nbytes", "pinned", "device", "stream", "slot"):
        assert ours[name].tolist() == theirs[name].tolist(), name
    for name in ("t0", "t1"):
        assert (ours[name] - run.start).tolist() == (theirs[name] - again.start).tolist()
    for mine, read in zip(
        schema.tuples(ours, "kernel", "plan", "context"),
        schema.tuples(theirs, "kernel", "plan", "context"),
        strict=True,
    ):
        kernels = [one.catalog.kernels.items[number[0]] for one, number in ((run, mine), (again, read))]
        assert kernels[0][:4] == kernels[1][:4]
        assert run.catalog.plans.items[mine[1]].op == again.catalog.plans.items[read[1]].op
        assert run.catalog.contexts.items[mine[2]] == again.catalog.contexts.items[read[2]]
    for name in ("event", "awaited", "stream"):
        assert run.devices.event[name].tolist() == again.devices.event[name].tolist()
    places = [
        [one.catalog.strings.items[number] for number in one.devices.block["place"].tolist()] for one in (run, again)
    ]
    assert places[0] == places[1] != []
