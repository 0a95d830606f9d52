"""Capture of streams on the emulated device: graphs run when launched, as of their dependencies, in any order."""

from __future__ import annotations

import os
import shutil
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda.api import CAPTURE
from flnb_backends.tensor.cuda.driver import Driver, DriverError

import flnb
from tests.testing.cuda.arrays import Arrays, launch

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

if shutil.which("g++") is None and "CI" not in os.environ:
    pytest.skip("g++ is not installed", allow_module_level=True)

X = np.arange(1, 257, dtype=np.float32)


class Program:
    """Kernels in two streams."""

    def __init__(self, device: EmulatedDevice, module: int, arrays: Arrays) -> None:
        self.device, self.driver, self.module, self.arrays = device, device.driver, module, arrays
        self.one, self.other = self.driver.stream(), self.driver.stream()

    def scale(self, x: int, y: int, by: float, stream: int) -> None:
        launch(self.device, self.module, "scale", (1,), (256,), x, y, np.float32(by), np.int32(256), stream=stream)

    def order(self, first: int, then: int) -> None:
        self.driver.wait_for_stream(then, first)

    def captured(self, work: Any) -> int:
        self.driver.begin_capture(self.one)
        work()
        return self.driver.instantiate(self.driver.end_capture(self.one))


@pytest.fixture
def program(device: EmulatedDevice, module: int, arrays: Arrays) -> Any:
    yield Program(device, module, arrays)
    device.driver.capturing.clear()
    device.begin("eager")


def branches(p: Program, x: int, y: int, z: int, joined: bool = True) -> None:
    """Two kernels after one, each in a stream, and one after both, in the first stream."""
    p.scale(x, y, 2, p.one)
    p.order(p.one, p.other)
    p.scale(y, z, 3, p.other)
    p.scale(x, x, 1, p.one)
    if joined:
        p.order(p.other, p.one)
        p.scale(z, z, 5, p.one)


@pytest.mark.parametrize(("order", "seed"), [("eager", 0), ("lazy", 0), *[("random", seed) for seed in range(20)]])
def test_a_graph_runs_when_it_is_launched(order: Any, seed: int, program: Program) -> None:
    p, driver = program, program.driver
    p.device.begin(order, seed)
    x, y, z = p.arrays.put(X), p.arrays.empty(256), p.arrays.put(0 * X)
    driver.synchronize()
    instance = p.captured(lambda: branches(p, x, y, z))
    assert not p.arrays.get(z, 256).any()
    third = driver.stream()
    for by in (1, 2):  # on what is in memory at the launch
        given = by * X
        driver.upload(x, given.ctypes.data, X.nbytes, third)
        driver.launch_graph(instance, third)
        np.testing.assert_array_equal(p.arrays.get(z, 256, third), 30 * by * X)
    assert p.device.reports == []
    driver.destroy_instance(instance)
    with pytest.raises(DriverError, match="INVALID_VALUE"):
        driver.launch_graph(instance, third)


def test_one_launch_of_a_graph_comes_after_another_in_whatever_streams(program: Program) -> None:
    p, driver = program, program.driver
    for seed in range(10):
        p.device.begin(seed=seed)
        x = p.arrays.put(X)
        driver.synchronize()
        instance = p.captured(lambda x=x: p.scale(x, x, 2, p.one))
        for stream in (p.one, p.other, p.one):
            driver.launch_graph(instance, stream)
        driver.synchronize()
        np.testing.assert_array_equal(p.arrays.get(x, 256), 8 * X)
        assert p.device.reports == []


def test_all_branches_come_after_what_was_queued_before_the_launch(program: Program) -> None:
    p, driver = program, program.driver
    for seed in range(10):
        p.device.begin(seed=seed)
        x, y = p.arrays.put(X), p.arrays.empty(256)
        driver.synchronize()

        def branch_at_once(x: int = x, y: int = y) -> None:
            p.order(p.one, p.other)
            p.scale(x, y, 2, p.other)
            p.order(p.other, p.one)

        instance = p.captured(branch_at_once)
        p.scale(x, x, 5, p.one)
        driver.launch_graph(instance, p.one)
        np.testing.assert_array_equal(p.arrays.get(y, 256, p.one), 10 * X)
        assert p.device.reports == []


def test_branches_are_not_in_order(program: Program) -> None:
    p = program
    x, y, z = p.arrays.put(X), p.arrays.empty(256), p.arrays.empty(256)
    p.driver.synchronize()

    def race() -> None:
        p.order(p.one, p.other)
        p.scale(x, y, 2, p.other)
        p.scale(y, z, 3, p.one)
        p.order(p.other, p.one)

    instance = p.captured(race)
    assert p.device.reports == []
    p.driver.launch_graph(instance, p.one)
    p.driver.wait(p.one)
    assert any("scale" in report for report in p.device.reports)


def unmatched(p: Program, x: int) -> None:
    p.order(p.one, p.other)
    p.driver.end_capture(p.other)


def from_a_thread(p: Program, x: int) -> None:
    errors: list[Exception] = []

    def end() -> None:
        p.driver.use(0)
        try:
            p.driver.end_capture(p.one)
        except DriverError as error:
            errors.append(error)

    thread = Thread(target=end)
    thread.start()
    thread.join()
    raise errors[0]


def uncaptured(p: Program, x: int) -> None:
    p.order(p.other, p.one)


def captured_event(p: Program, x: int) -> None:
    event = p.driver.event()
    p.driver.record(event, p.one)
    p.driver.happened(event)


MISTAKES = {
    "STREAM_CAPTURE_UNSUPPORTED": [
        lambda p, x: p.driver.wait(p.one), lambda p, x: p.driver.ready(p.one), lambda p, x: p.driver.synchronize(),
        lambda p, x: p.driver.allocate(4), lambda p, x: p.driver.allocate_host(4), lambda p, x: p.driver.free(x),
        lambda p, x: p.driver.upload(x, X.ctypes.data, 4, p.one), lambda p, x: p.driver.begin_capture(0),
    ],
    "STREAM_CAPTURE_UNMATCHED": [unmatched],
    "STREAM_CAPTURE_WRONG_THREAD": [from_a_thread],
    "STREAM_CAPTURE_ISOLATION": [uncaptured],
    "CAPTURED_EVENT": [captured_event],
    "INVALID_VALUE": [lambda p, x: p.driver.begin_capture(p.one), lambda p, x: p.driver.end_capture(p.other)],
    "NOT_SUPPORTED": [lambda p, x: p.driver._check("cuLaunchHostFunc", host_function(p))],
}  # fmt: skip
AFTER = {"STREAM_CAPTURE_UNSUPPORTED", "STREAM_CAPTURE_ISOLATION"}
"""Mistakes after which the capture is invalid."""


def host_function(p: Program) -> int:
    import ctypes

    call = ctypes.CDLL(p.driver.path).cuLaunchHostFunc
    call.argtypes = [ctypes.c_void_p] * 3
    return int(call(p.one, None, None))


@pytest.mark.parametrize(("error", "mistake"), [(error, each) for error, made in MISTAKES.items() for each in made])
def test_mistakes_are_the_documented_errors(error: str, mistake: Any, program: Program) -> None:
    p = program
    x = p.arrays.put(X)
    p.driver.synchronize()
    p.scale(x, x, 2, p.other)
    p.driver.begin_capture(p.one)
    with pytest.raises(DriverError, match=f"CUDA_ERROR_{error} "):
        mistake(p, x)
    p.device.driver.capturing.clear()
    p.device.begin()
    np.testing.assert_array_equal(p.arrays.get(x, 256), 2 * X)  # the device works on


def test_a_capture_is_invalid_after_a_forbidden_call(program: Program) -> None:
    p = program
    p.driver.begin_capture(p.one)
    with pytest.raises(DriverError, match="UNSUPPORTED"):
        p.driver.synchronize()
    with pytest.raises(DriverError, match="CAPTURE_INVALIDATED"):
        p.driver.end_capture(p.one)
    p.driver.begin_capture(p.one, relaxed=True)
    p.driver.free(p.driver.allocate(4))
    p.driver.destroy_graph(p.driver.end_capture(p.one))


def test_streams_must_have_been_joined(program: Program) -> None:
    p = program
    x, y, z = (p.arrays.put(X) for _ in range(3))
    p.driver.begin_capture(p.one)
    branches(p, x, y, z, joined=False)
    with pytest.raises(DriverError, match="CAPTURE_UNJOINED"):
        p.driver.end_capture(p.one)


def test_recordings_show_launches_of_graphs(program: Program) -> None:
    p = program
    x = p.arrays.put(X)
    p.driver.synchronize()
    with flnb.record(grad_interval=None) as run:
        instance = p.captured(lambda: p.scale(x, x, 2, p.one))
        p.driver.launch_graph(instance, p.one)
        p.driver.wait(p.one)
    kernels = run.devices.task["kernel"].tolist()
    assert [run.catalog.kernels.items[number].name for number in kernels] == ["graph"]


def test_a_library_without_the_calls(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.driver.captures
    monkeypatch.setitem(CAPTURE, "cuGraphThatIsAbsent", ())
    driver = Driver(device.driver.path)
    assert not driver.captures
    with pytest.raises(NotImplementedError, match="the driver's library lacks cuGraphThatIsAbsent"):
        driver.begin_capture(1)
