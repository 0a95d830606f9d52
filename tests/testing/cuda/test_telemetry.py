"""Events of a device: what the host asked for, what the device did, in which order; without waiting for it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from itertools import chain
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import flnb_telemetry
import numpy as np
import pytest
from flnb_backends.memory.cuda import CudaDevice
from flnb_backends.tensor.cuda.driver import DriverError
from flnb_backends.tensor.cuda.occupancy import Needs
from flnb_telemetry import device_words

import flnb
from flnb.dispatch import devices
from tests.testing.cuda.arrays import Arrays, launch

if TYPE_CHECKING:
    from pathlib import Path

    from flnb.testing.cuda import EmulatedDevice

if shutil.which("g++") is None and "CI" not in os.environ:
    pytest.skip("g++ is not installed", allow_module_level=True)

X = np.arange(1, 257, dtype=np.float32)
WAITS = "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuMemFree_v2"


class Steps:
    """Launches of one kernel, and what a recording says of them."""

    def __init__(self, device: EmulatedDevice, module: int, arrays: Arrays) -> None:
        self.device, self.driver, self.module, self.arrays = device, device.driver, module, arrays
        self.one, self.other = self.driver.stream(), self.driver.stream()

    def scale(self, x: int, y: int, stream: int = 0) -> None:
        given = x, y, np.float32(2), np.int32(256)
        launch(self.device, self.module, "scale", (1,), (256,), *given, stream=stream)


@pytest.fixture
def steps(device: EmulatedDevice, module: int, arrays: Arrays) -> Steps:
    return Steps(device, module, arrays)


def order(run: Any) -> list[int]:
    """The numbers of launches and copies of a recording in the order in which the device has run them."""
    ran, asked = run.table("ran"), [*run.table("launch")["seq"], *run.table("copy")["seq"]]
    return [seq for seq in ran["seq"][np.argsort(ran["t1"], kind="stable")].tolist() if seq in asked]


def test_a_launch_names_its_kernel_grid_scope_stream_and_memory(steps: Steps) -> None:
    x, y = steps.arrays.put(X), steps.arrays.empty(256)
    with flnb.record() as run:
        with flnb.scope("net"), flnb.phase("forward"):
            steps.scale(x, y)
            steps.scale(x, y, steps.one)
        steps.driver.synchronize()
    found = run.table("launch")
    kernels = [run.catalog.kernels.items[number] for number in found["kernel"]]
    assert kernels == [device_words.Kernel("scale", (1,), (256,), 0, static=0)] * 2  # g++ gives it no registers
    here, there = (run.catalog.contexts.items[number] for number in found["context"])
    assert here[:4] == ("net", 1, "cuda:0", 0)
    assert there[:3] == ("net", 1, "cuda:0")
    assert there.stream > 0
    addresses = run.table("addresses")
    assert addresses["seq"].tolist() == found["seq"].tolist()
    assert addresses["address0"].tolist() == [x] * 2
    assert addresses["address1"].tolist() == [y] * 2
    assert not addresses["address2"].any()  # the number of elements is no address
    assert (found["t0"] < found["t1"]).all()


def test_what_the_driver_says_of_a_kernel_stands_in_its_launches(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    as_for_a_gpu = Needs(96, 33_792, 2, 2048, "registers")
    monkeypatch.setitem(steps.driver._needs, (steps.driver.kernel(steps.module, "scale"), 256, 0), as_for_a_gpu)
    with flnb.record() as run:
        steps.scale(steps.arrays.put(X), steps.arrays.empty(256))
    (number,) = run.table("launch")["kernel"]
    kernel = device_words.Kernel("scale", (1,), (256,), 0, 96, 33_792, 2, 2048, "registers")
    assert run.catalog.kernels.items[number] == kernel
    run.save(tmp_path / "run.flnb")
    assert flnb.load_run(tmp_path / "run.flnb").catalog.kernels.items[number] == kernel


def test_a_file_whose_kernels_have_fewer_fields_is_read(steps: Steps, tmp_path: Path) -> None:
    with flnb.record() as run:
        steps.scale(steps.arrays.put(X), steps.arrays.empty(256))
    run.save(tmp_path / "new.flnb")
    with ZipFile(tmp_path / "new.flnb") as new, ZipFile(tmp_path / "old.flnb", "w") as old:
        for name in new.namelist():
            content = new.read(name)
            if name == "manifest.json":
                manifest = json.loads(content)
                manifest["kernels"] = [kernel[:6] for kernel in manifest["kernels"]]
                content = json.dumps(manifest).encode()
            old.writestr(name, content)
    found = flnb.load_run(tmp_path / "old.flnb")
    assert device_words.Kernel("scale", (1,), (256,), static=0) in found.catalog.kernels.items


def test_what_the_device_is_stands_in_every_recording(steps: Steps) -> None:
    steps.device.begin("random", 17)
    for _ in range(2):
        with flnb.record() as run:
            steps.scale(steps.arrays.put(X), steps.arrays.empty(256))
        about = [run.catalog.devices.items[number] for number in run.table("device")["info"]]
        about = [info for info in about if info.place == "cuda:0"]
        assert about[-1] == ("cuda:0", "flnb emulated device (on the CPU)", True, "random", 17)


@pytest.mark.parametrize("mode", ["eager", "lazy", "random"])
def test_each_launch_and_copy_is_joined_to_when_the_device_ran_it(mode: Any, steps: Steps) -> None:
    steps.device.begin(mode, 3)
    with flnb.record() as run:
        x, y, z = steps.arrays.put(X), steps.arrays.empty(256), steps.arrays.empty(256)
        steps.driver.synchronize()
        for _ in range(20):
            steps.scale(x, y, steps.one)
            steps.scale(x, z, steps.other)
        steps.driver.synchronize()
    asked = sorted([*run.table("launch")["seq"].tolist(), *run.table("copy")["seq"].tolist()])
    assert len(asked) == 41
    assert sorted(order(run)) == asked
    ran, contexts = run.table("ran"), run.catalog.contexts.items
    ran = {name: column[np.isin(ran["seq"], asked)] for name, column in ran.items()}  # of earlier ones others are left
    assert (ran["t0"] <= ran["t1"]).all()
    assert len(np.unique(ran["t1"])) == 41  # each has a slot of its own
    assert set(ran["bound"].tolist()) == {devices.EMULATED}
    assert (ran["seen"] >= run.start).all()
    streams = np.array([contexts[number].stream for number in run.table("launch")["context"]])
    for stream in np.unique(streams):  # within a stream nothing is overtaken
        own = run.table("launch")["seq"][streams == stream].tolist()
        assert [seq for seq in order(run) if seq in own] == own
    overtaken = order(run) != asked
    assert overtaken == (mode != "eager")  # other streams are, unless everything runs at once


def test_an_event_that_a_stream_awaits_orders_what_ran(steps: Steps) -> None:
    orders = set()
    for seed in range(12):
        steps.device.begin("random", seed)
        x, y, z, u = steps.arrays.put(X), *(steps.arrays.empty(256) for _ in range(3))
        steps.driver.synchronize()
        event = steps.driver.event()
        with flnb.record() as run:
            steps.scale(x, u, steps.other)
            steps.scale(x, y, steps.one)
            steps.driver.record(event, steps.one)
            steps.driver.wait_event(steps.other, event)
            steps.scale(y, z, steps.other)
            steps.driver.synchronize()
        free, first, then = run.table("launch")["seq"].tolist()
        ran = order(run)
        assert ran.index(first) < ran.index(then)
        orders.add(ran.index(free) < ran.index(first))
        recorded, awaited = run.table("event_recorded"), run.table("event_awaited")
        assert recorded["event"].tolist() == awaited["event"].tolist() != [0]
        contexts = [run.catalog.contexts.items[t["context"][0]].stream for t in (recorded, awaited)]
        launched = [run.catalog.contexts.items[number].stream for number in run.table("launch")["context"]]
        assert contexts == launched[1:]
        assert first < recorded["seq"][0] < awaited["seq"][0] < then
    assert orders == {True, False}  # the launch that nothing orders runs before or after


def test_copies_have_their_route_bytes_and_kind_of_memory(steps: Steps) -> None:
    driver = steps.driver
    pinned = driver.allocate_host(1024)
    with flnb.record() as run:
        x, y = steps.arrays.put(X), steps.arrays.empty(256)
        driver.upload(y, pinned, 512)
        driver.copy(y, x, 1000)
        driver.download(pinned + 512, y, 256)
        np.testing.assert_array_equal(steps.arrays.get(y, 16), X[:16])
    driver.free_host(pinned)
    found = run.table("copy")
    routes = [device_words.ROUTES[number] for number in found["route"]]
    assert routes == ["to the device"] * 2 + ["on a device"] + ["to the host"] * 2
    assert found["nbytes"].tolist() == [1024, 512, 1000, 256, 64]
    assert found["pinned"].tolist() == [0, 1, 0, 1, 0]
    for route in ("to the device", "to the host"):
        nbytes = found["nbytes"][found["route"] == device_words.ROUTES.index(route)].sum()
        assert nbytes == steps.device.count(f"bytes {route}")


def test_copies_between_devices_name_the_device_they_go_to(steps: Steps) -> None:
    driver, x = steps.driver, steps.arrays.put(X)
    with driver.using(1):
        there = driver.allocate(1024)
        with flnb.record() as run:
            driver.copy_between(there, 1, x, 0, 1024)
            driver.synchronize()
        driver.free(there)
    assert run.table("copy")["route"].tolist() == [device_words.BETWEEN]
    assert run.catalog.contexts.items[run.table("copy")["context"][0]].device == "cuda:1"
    assert order(run) == run.table("copy")["seq"].tolist()


def test_the_host_waits_only_where_the_program_says_so(steps: Steps) -> None:
    device, driver = steps.device, steps.driver
    x, y = steps.arrays.put(X), steps.arrays.empty(256)
    driver.synchronize()
    with flnb.record() as run:
        device.begin("random", 5)
        for _ in range(300):
            steps.scale(x, y, steps.one)
        assert [device.count(name) for name in WAITS] == [0] * len(WAITS)
        driver.synchronize()
        driver.wait(steps.one)
        device.begin("random", 6)
        for _ in range(50):
            steps.scale(x, y, steps.one)
        assert device.count("cuEventCreate") == 0  # events are used again
    waits = run.table("host_wait")
    assert [run.catalog.contexts.items[number].stream > 0 for number in waits["context"]] == [False, True]
    assert set(run.table("launch")["seq"][:300]) <= set(order(run))


def test_without_a_recording_the_device_gets_nothing_else_to_do(steps: Steps) -> None:
    x, y = steps.arrays.put(X), steps.arrays.empty(256)
    steps.device.begin("eager")
    steps.scale(x, y)
    counts = [steps.device.count(name) for name in ("cuEventRecord", "cuEventCreate", "cuEventElapsedTime_v2")]
    assert counts == [0, 0, 0]


@pytest.mark.parametrize("recorded", [False, True])
def test_a_recording_hides_no_race(recorded: bool, steps: Steps) -> None:
    """Asking whether events are over must not order anything: a consumer on another stream lacks its event."""
    found = 0
    for seed in range(10):
        steps.device.begin("random", seed)
        x, y, z = steps.arrays.put(X), steps.arrays.empty(256), steps.arrays.empty(256)
        steps.driver.synchronize()
        with flnb.record() if recorded else flnb.scope(""):
            steps.scale(x, y, steps.one)
            steps.scale(y, z, steps.other)
            steps.driver.synchronize()
        found += any("scale" in report for report in steps.device.reports)
    assert found == 10  # by vector clocks in every order


def test_anchors_are_made_anew_and_times_lie_in_the_recording(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, which has a clock of its own; the emulated one's slots pass for that."""
    monkeypatch.setattr(devices, "ANCHOR_NS", 0)
    monkeypatch.setattr(devices, "_watches", {})
    steps.device.begin("eager")
    monkeypatch.setattr(steps.driver, "emulated", None)
    x, y = steps.arrays.put(X), steps.arrays.empty(256)
    with flnb.record() as run:
        for _ in range(5):
            steps.scale(x, y)
        steps.driver.synchronize()
    ran = run.table("ran")
    assert len(ran["seq"]) == 5
    assert (ran["bound"] >= devices.PRECISION_NS).all()
    assert len(np.unique(ran["bound"])) > 1  # measured each time
    (watch,) = devices._watches.values()
    assert not any(watch.queued.values())


def test_a_file_keeps_kernels_and_devices(steps: Steps, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with flnb.record() as run:
        steps.scale(steps.arrays.put(X), steps.arrays.empty(256))
        steps.driver.synchronize()
    run.save(tmp_path / "a.flnb")
    back = flnb_telemetry.load_run(tmp_path / "a.flnb")
    for kind in ("device", "launch", "copy", "ran", "host_wait", "addresses"):
        there, here = run.table(kind), back.table(kind)
        assert len(there["lane"]) > 0
        for name, column in there.items():
            np.testing.assert_array_equal(here[name], column)
    for name in "kernel", "context":  # of the launches; a file has no others, which earlier tests may have interned
        there, here = (getattr(each.catalog, f"{name}s").items for each in (run, back))
        assert [here[number] for number in run.table("launch")[name]] == [
            there[number] for number in run.table("launch")[name]
        ]
    assert [back.catalog.devices.items[number] for number in run.table("device")["info"]] == [
        run.catalog.devices.items[number] for number in run.table("device")["info"]
    ]


def test_what_kernels_asked_of_memory_is_recorded_as_it_was_counted(steps: Steps) -> None:
    steps.device.begin("random", 3)
    with flnb.record() as run:
        steps.scale(steps.arrays.put(X), steps.arrays.empty(256))
        steps.driver.synchronize()
    requests, sectors, shared, _ = run.devices.traffic["scale"]
    assert (requests, sectors, shared) == (16, 64, 0)  # 8 warps load and store 128 bytes each
    assert run.devices.traffic["scale"] == steps.device.traffic("scale")


def test_a_recording_ends_though_a_kernel_has_failed(steps: Steps) -> None:
    x = steps.arrays.put(X)
    with pytest.raises(DriverError, match="ILLEGAL_ADDRESS"), flnb.record() as run:
        steps.scale(x, 1 << 40)  # no memory of the device
        steps.driver.synchronize()
    assert run.state == "failed"
    assert len(run.table("launch")["seq"]) == 1
    steps.device.begin("eager")
    with flnb.record() as run:
        steps.scale(x, steps.arrays.empty(256))
        steps.driver.synchronize()
    assert set(run.table("launch")["seq"]) <= set(run.table("ran")["seq"])


def test_a_librarys_launch_is_emitted_though_another_thread_launches_meanwhile(steps: Steps) -> None:
    x, y = steps.arrays.put(X), steps.arrays.empty(256)
    with flnb.record() as run:
        task = devices.begin(steps.driver, 0)
        assert task is not None

        def launches() -> None:
            steps.driver.use(0)
            steps.scale(x, y)

        thread = Thread(target=launches)
        thread.start()
        thread.join()
        task.launched_by("cupy add", (x, y))
    names = [run.catalog.kernels.items[number].name for number in run.table("launch")["kernel"]]
    assert sorted(names) == ["cupy add", "scale"]


def test_streams_are_told_apart_though_threads_use_them_first_at_once(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_watches", {})  # other tests number few streams
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    errors: list[BaseException] = []
    streams = [[steps.driver.stream() for _ in range(40)] for _ in range(4)]
    start = Barrier(4)

    def use(mine: list[int]) -> None:
        try:
            steps.driver.use(0)
            start.wait()
            for stream in mine:
                task = devices.begin(steps.driver, stream)
                assert task is not None
                task.launched("none")
        except BaseException as error:
            errors.append(error)

    try:
        with flnb.record() as run:
            threads = [Thread(target=use, args=(mine,)) for mine in streams]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
        for stream in chain(*streams):
            steps.driver.destroy_stream(stream)
    assert errors == []
    contexts = run.catalog.contexts.items
    assert len({contexts[number].stream for number in run.table("launch")["context"]}) == 160


def test_a_block_may_be_used_in_many_streams(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_watches", {})  # other tests number few streams
    manager = flnb.memory.Caching(CudaDevice("4MiB", driver=steps.driver))
    streams = [steps.driver.stream() for _ in range(70)]
    with flnb.use_memory_manager(manager), flnb.record() as run:
        block = flnb.memory.allocate(manager, 1024)
        steps.driver.synchronize()
        for stream in streams:
            steps.driver.fill(block.address, 0, 1024, stream)
            steps.driver.wait(stream)
    flnb.memory.release(manager, block)
    for stream in streams:
        steps.driver.destroy_stream(stream)
    used = run.devices.block["streams"][run.devices.block["alloc_id"] == block.id]
    assert used >> 62 == 1  # stands for all streams from 62 on
