"""What recordings of an emulated device say: tasks and the ops that asked for them, bytes, blocks and their streams."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.memory.cuda import CudaDevice
from flnb_telemetry import device_words
from flnb_telemetry.analysis.devices import EMULATED, Gap, devices
from flnb_telemetry.analysis.memory import NEVER
from flnb_telemetry.device_words import DeviceInfo
from flnb_telemetry.intern import Catalog, Context, Plan, Table
from flnb_telemetry.live import devices as livedevices
from flnb_telemetry.live.recording import LiveRecording
from flnb_telemetry.live.view import Live
from flnb_telemetry.schema import KINDS, rows, table

import flnb
from tests.testing.cuda.arrays import launch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb.testing.cuda import EmulatedDevice

if shutil.which("g++") is None and "CI" not in os.environ:
    pytest.skip("g++ is not installed", allow_module_level=True)

N = 256


class Program:
    """Blocks of a manager on the device, and launches on two streams."""

    def __init__(self, device: EmulatedDevice, module: int) -> None:
        self.device, self.driver, self.module = device, device.driver, module
        memory = CudaDevice("8MiB", driver=self.driver)
        self.manager = flnb.memory.Caching(memory)
        self.one, self.other = self.driver.stream(), self.driver.stream()
        self.stream = 0  # in which blocks are allocated
        memory.order.stream = lambda: self.stream  # type: ignore[method-assign]

    def block(self, stream: int = 0) -> Any:
        self.stream = stream
        return flnb.memory.allocate(self.manager, 4 * N)

    def scale(self, x: Any, y: Any, stream: int = 0) -> None:
        given = x.address, y.address, np.float32(2), np.int32(N)
        launch(self.device, self.module, "scale", (1,), (N,), *given, stream=stream)

    def step(self, x: Any, host: np.ndarray[Any, Any]) -> None:
        """Upload, compute on one stream, use the result on another, free it before that has run."""
        self.driver.upload(x.address, host.ctypes.data, host.nbytes, self.one)
        y = self.block(self.one)
        self.scale(x, y, self.one)
        event = self.driver.event()
        self.driver.record(event, self.one)
        self.driver.wait_event(self.other, event)
        z = self.block(self.other)
        self.scale(y, z, self.other)
        self.driver.record(event, self.other)
        y.streams = (self.one, self.other)
        flnb.memory.release(self.manager, y)
        flnb.memory.release(self.manager, z)


def blocks_since(run: Any, first: Any) -> Any:
    """The blocks of a recording from one on; other tests' may be alive."""
    block = run.devices.block
    return {name: column[block["alloc_id"] >= first.id] for name, column in block.items()}


@pytest.fixture
def program(device: EmulatedDevice, module: int) -> Iterator[Program]:
    device.begin("lazy")
    device.driver.use(0)
    made = Program(device, module)
    with flnb.use_memory_manager(made.manager):
        yield made
    device.begin("eager")
    made.manager.release_cached()


def test_steps_have_their_launches_copies_bytes_and_waits(program: Program) -> None:
    x, host = program.block(), np.ones(N, np.float32)
    with flnb.record() as run:
        for _ in range(3):
            with flnb.step():
                program.step(x, host)
        with flnb.step():
            program.driver.synchronize()
            program.driver.download(host.ctypes.data, x.address, 512)
        program.driver.synchronize()
    found = run.devices
    sums = [(one.launches, one.copies, one.to_device, one.to_host, one.waits) for one in found.steps]
    assert sums == [(2, 1, 1024, 0, 0)] * 3 + [(0, 1, 0, 512, 2)]
    assert len(found) == 10
    assert sorted(found.task["slot"].tolist()) == list(range(10))
    assert np.isnan(found.queued).all()  # an emulated device has no durations
    assert found.gaps("cuda:0") == []
    assert EMULATED in repr(found)
    assert "(lazy order, seed 0)" in repr(found)
    flnb.memory.release(program.manager, x)


def test_a_launch_belongs_to_the_op_during_which_it_was_made(program: Program) -> None:
    """An op of the NumPy backend that also launches something, as an op of the cuda backend does."""
    x, y = program.block(), program.block()

    class Both(flnb.backends.NumpyBackend):
        def exp(self, value: Any, out: Any = None) -> Any:
            program.scale(x, y)
            return super().exp(value, out=out)

    with flnb.use_memory_manager(flnb.memory.Caching()), flnb.use_backend(Both()), flnb.record() as run:
        flnb.exp(flnb.ones(3))
        program.scale(x, y)
    plans = [run.catalog.plans.items[number].op for number in run.devices.task["plan"]]
    assert plans == ["exp", ""]
    flnb.memory.release(program.manager, x)
    flnb.memory.release(program.manager, y)


def test_blocks_name_the_streams_that_used_them_and_what_a_freed_one_waits_for(program: Program) -> None:
    x, host = program.block(), np.ones(N, np.float32)
    with flnb.record() as run:
        program.step(x, host)  # lazy: nothing has run when y is freed
        program.driver.synchronize()
    found, block = run.devices, blocks_since(run, x)
    ids = block["alloc_id"].tolist()
    first, second = (run.catalog.contexts.items[found.task["context"][row]].stream for row in (1, 2))
    assert [run.catalog.strings.items[number] for number in block["place"]] == ["cuda:0"] * 3
    assert block["streams"].tolist() == [1 << first, 1 << first | 1 << second, 1 << second]
    assert block["own"].tolist() == [first, first, second]
    uses = zip(found.use["task"].tolist(), found.block["alloc_id"][found.use["block"]].tolist(), strict=True)
    assert [(task, ids.index(number)) for task, number in uses] == [
        (0, 0),
        (1, 0),
        (1, 1),
        (2, 1),
        (2, 2),
    ]  # upload of x, y = 2 x, z = 2 y
    y = 1
    launched = found.event["event"][(found.event["awaited"] == 0) & (found.event["stream"] == second)]
    assert block["event"].tolist() == [0, launched[0], 0]  # the event recorded after its last use
    assert block["on"].tolist() == [-1, second, -1]
    assert block["until"][y] == found.task["seen"][2] > block["end"][y]
    assert not block["until"][[0, 2]].any()  # one is not freed, the other was used by its own stream only
    flnb.memory.release(program.manager, x)


def test_a_freed_block_waits_for_nothing_once_its_memory_is_given_away_or_its_use_is_over(program: Program) -> None:
    x, host = program.block(), np.ones(N, np.float32)
    with flnb.record() as run:
        program.step(x, host)
        again = program.block()  # the same memory
        program.driver.synchronize()
    block = blocks_since(run, x)
    assert block["address"][3] == block["address"][1]
    assert block["until"][1] == block["t"][3]
    flnb.memory.release(program.manager, again)
    with flnb.record() as run:
        y, z = program.block(), program.block()
        program.scale(x, y, program.one)
        program.scale(y, z, program.other)
        program.driver.synchronize()
        flnb.memory.release(program.manager, y)
    assert not blocks_since(run, x)["until"].any()
    for one in (x, z):
        flnb.memory.release(program.manager, one)


def test_the_live_view_says_what_the_recording_says(program: Program) -> None:
    x, host = program.block(), np.ones(N, np.float32)
    live = Live("session", grad_interval=None)
    live.begin()
    with flnb.record() as run:
        for _ in range(4):
            with flnb.step():
                program.step(x, host)
        program.driver.synchronize()
    live.finish()
    for content, buffer in (live.frame(keyframe=True), next(LiveRecording(run).frames())):
        about = content["devices"]
        assert about["note"] == EMULATED
        assert about["devices"][0] | {"bound_ns": 0} == {
            "place": "cuda:0", "name": "flnb emulated device (on the CPU)", "emulated": True, "order": "lazy",
            "seed": 0, "bound_ns": 0,
        }  # fmt: skip
        assert about["rows"] == 12
        assert [step["launches"] for step in about["steps"]] == [2] * 4
        assert [kernel["name"] for kernel in about["kernels"]] == ["", "scale"]
        columns = {
            name.removeprefix("devices."): np.frombuffer(buffer, np.float64, length, offset)
            for name, (_, offset, length) in content["arrays"].items()
            if name.startswith("devices.")
        }
        assert columns["seq"].tolist() == run.devices.task["seq"].tolist()
        assert sorted(columns["slot"].tolist()) == list(range(12))
        assert columns["nbytes"].sum() == 4 * 1024
        assert set(columns["segment_size"].tolist()) == {2 << 20}
        assert len(columns["block_id"]) == len(run.devices.block["t"])
        assert (columns["block_offset"] >= 0).all()
    flnb.memory.release(program.manager, x)


def test_a_run_without_devices_has_no_such_section(program: Program) -> None:
    live = Live("session", grad_interval=None)
    live.begin()
    with flnb.use_memory_manager(flnb.memory.Caching()), flnb.record() as run:
        flnb.exp(flnb.ones(3))
    live.finish()
    for content, _ in (live.frame(keyframe=True), next(LiveRecording(run).frames())):
        assert "devices" not in content
    assert repr(run.devices) == "no device events"


def test_a_long_run_keeps_the_blocks_that_are_in_use(program: Program) -> None:
    x, host = program.block(), np.ones(N, np.float32)
    window = livedevices.Window(Catalog(), limit=200)
    with flnb.record() as run:
        y = program.block()
        for _ in range(40):
            program.step(x, host)
            flnb.telemetry.flush()
        program.driver.synchronize()
    for lane, records in run._batches:
        window.take([(lane, records)])
    assert len(window.table("launch")["seq"]) < 40
    block = devices(window).block
    alive = block["alloc_id"][block["end"] == NEVER]
    assert {x.id, y.id} <= set(alive.tolist())
    for one in (x, y):
        flnb.memory.release(program.manager, one)


class Written:
    """Tables written by hand: two streams of a GPU, as a recording of one would say."""

    def __init__(self) -> None:
        here, there = Context("net", 1, "cuda:0", 0), Context("net", 1, "cuda:0", 1)
        self.catalog = Catalog(
            Table([""]), Table([Plan("", "", (), "", 0), Plan("take", "movement", (), "", 0)]),
            Table([Context("", 0), here, there]),
        )  # fmt: skip
        self.catalog.devices = Table([DeviceInfo("", ""), DeviceInfo("cuda:0", "GPU")])
        self.catalog.kernels = Table([device_words.Kernel(""), device_words.Kernel("k", (2,), (64,))])
        self.found = {
            "device": {"t": [0], "info": [1]},
            # host: launch 1 at 100, 2 at 200, then an op from 300 to 900, launch 3 at 900; 5 waits for an event
            "launch": {
                "t0": [100, 200, 900, 910], "t1": [110, 210, 910, 920], "seq": [1, 2, 3, 6], "context": [1, 1, 1, 1],
                "kernel": [1, 1, 1, 1],
            },
            "copy": {
                "t0": [915], "t1": [918], "seq": [4], "nbytes": [4096], "pinned": [1], "context": [2], "route": [1],
            },
            "ran": {
                "t0": [120, 300, 950, 1000, 2000], "t1": [300, 400, 1000, 1800, 2100], "seq": [1, 2, 3, 4, 6],
                "bound": [2] * 5, "seen": [500, 500, 2500, 2500, 2500],
            },
            "event_awaited": {"t": [919], "seq": [5], "event": [7], "context": [1]},
            "op": {"t0": [90, 220], "t1": [215, 905], "plan": [0, 1]},
        }  # fmt: skip

    def table(self, kind: str) -> Any:
        what = KINDS[kind]
        if kind not in self.found:
            return table(what, [])
        given = self.found[kind]
        count = len(next(iter(given.values())))
        names = [name for name in (what.aux, what.plan, *what.words) if name]
        columns = {name: np.array(given.get(name, [0] * count), np.int64) for name in names}
        return table(what, [(1, rows(what, columns))])


def test_idle_gaps_name_their_cause_and_what_the_host_did() -> None:
    found = devices(Written())
    assert found.task["seq"].tolist() == [1, 2, 3, 4, 6]
    assert found.task["plan"].tolist() == [0, 0, 1, 0, 0]
    assert found.queued.tolist() == [10, 90, 40, 82, 1080]
    assert found.gaps("cuda:0") == [
        Gap("cuda:0", 400, 950, "host", 2, 1),  # launched at 910, of 550 ns 510; most of it inside `take`
        Gap("cuda:0", 1800, 2000, "event", 4, 0),  # launched long before
    ]
    assert not found.emulated
    assert repr(found) == "cuda:0 GPU: 4 launches, 4.00 KiB to the device; 2 streams"


def test_a_frame_has_the_latest_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livedevices, "TASKS", 2)
    head, arrays = livedevices.section(Written(), 0, 3000)
    about = head["devices"]
    assert arrays["devices.seq"].tolist() == [4, 6]
    assert about["rows"] == 2
    assert [(gap["cause"], gap["seq"]) for gap in about["gaps"]] == [("event", 6)]
    assert about["origin_ms"] == pytest.approx(915e-6)  # the call of the first of them
    np.testing.assert_allclose(arrays["devices.ran0"], [85e-6, 1085e-6])
