"""The driver's methods one by one, and what the emulated device refuses as the API does."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda.driver import DriverError

from flnb.testing.cuda import build_kernels
from tests.testing.cuda.arrays import TEXT, launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.testing.cuda import EmulatedDevice
    from tests.testing.cuda.arrays import Arrays

if shutil.which("g++") is None and "CI" not in os.environ:
    pytest.skip("g++ is not installed", allow_module_level=True)


def test_bytes_are_filled_and_copied_on_a_stream(device: EmulatedDevice, arrays: Arrays) -> None:
    driver, stream = device.driver, device.driver.stream()
    x, y = arrays.put(np.zeros(8, np.int32), stream), arrays.empty(8)
    driver.fill(x + 4, 0x11, 12, stream)
    driver.copy(y, x, 32, stream)
    assert arrays.get(y, 8, stream, np.int32).tolist() == [0, *[0x11111111] * 3, *[0] * 4]
    assert device.reports == []
    driver.fill(x + 32, 0, 4, stream)
    with pytest.raises(DriverError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        driver.wait(stream)
    assert device.reports == ["memcheck: memset writes device memory outside every allocation"]


def test_a_stream_is_ready_when_its_work_is_done(device: EmulatedDevice, arrays: Arrays) -> None:
    device.begin("lazy")
    driver, stream = device.driver, device.driver.stream()
    assert driver.ready(stream)
    x, pinned = arrays.put(np.ones(4, np.float32), stream), driver.allocate_host(16)
    driver.wait(stream)
    driver.download(pinned, x, 16, stream)
    driver.download(pinned, x, 16, stream)
    assert not driver.ready(stream)  # who asks lets one of the two copies run
    driver.wait(stream)
    assert driver.ready(stream)
    driver.free_host(pinned)


def test_facts_of_the_devices(device: EmulatedDevice) -> None:
    driver = device.driver
    assert (driver.version(), driver.devices()) == (13000, 2)
    assert [driver.attribute(number) for number in (1, 10, 75, 76)] == [1024, 32, 9, 0]  # threads, warp, capability
    driver.use(0)
    with driver.using(1):
        before = driver.memory().available
        elsewhere = driver.allocate(4)
        assert driver.memory().available < before
        driver.free(elsewhere)
        with driver.using(0):
            pass
        assert driver.memory().available == before <= driver.memory().total
    with pytest.raises(DriverError, match=r"cuDevicePrimaryCtxRetain: CUDA_ERROR_INVALID_DEVICE"):
        driver.use(2)


def test_without_checks_mistakes_are_not_looked_for(device: EmulatedDevice, module: int, arrays: Arrays) -> None:
    for checks in (True, False):
        device.begin(checks=checks)
        launch(device, module, "without_barrier", (1,), (256,), arrays.put(np.ones(256, np.float32)), arrays.empty(256))
        device.driver.synchronize()
        assert bool(device.reports) == checks
        assert bool(device.traffic("without_barrier").requests) == checks
    unchecked = device.driver.load(build_kernels(TEXT, checks=False))
    device.begin()
    x = arrays.put(np.ones(256, np.float32))
    launch(device, unchecked, "scale", (1,), (256,), x, x, np.float32(2), np.int32(256))
    assert arrays.get(x, 256).tolist() == [2] * 256
    assert device.traffic("scale").requests == 0


@pytest.mark.parametrize("call", ["copy", "fill", "wait", "ready", "wait_event", "record", "launch", "destroy_stream"])
def test_a_stream_that_was_destroyed_is_refused(call: str, device: EmulatedDevice, module: int, arrays: Arrays) -> None:
    driver, x = device.driver, arrays.put(np.ones(4, np.float32))
    stream, event = driver.stream(), driver.event()
    calls: dict[str, Any] = {
        "copy": lambda: driver.copy(x, x, 4, stream),
        "fill": lambda: driver.fill(x, 0, 4, stream),
        "wait": lambda: driver.wait(stream),
        "ready": lambda: driver.ready(stream),
        "wait_event": lambda: driver.wait_event(stream, event),
        "record": lambda: driver.record(event, stream),
        "launch": lambda: launch(device, module, "scale", (1,), (4,), x, x, np.float32(2), np.int32(4), stream=stream),
        "destroy_stream": lambda: driver.destroy_stream(stream),
    }
    if call != "destroy_stream":
        calls[call]()
    driver.destroy_stream(stream)  # what it was given still runs
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_HANDLE \(invalid resource handle\)"):
        calls[call]()
    driver.synchronize()
    driver.destroy_event(event)


@pytest.mark.parametrize("call", ["record", "wait_event", "happened", "await_event", "seconds", "destroy_event"])
def test_an_event_that_was_destroyed_is_refused(call: str, device: EmulatedDevice) -> None:
    driver = device.driver
    stream, event, other = driver.stream(), driver.event(timed=True), driver.event(timed=True)
    for each in (event, other):
        driver.record(each, stream)
    driver.wait(stream)
    calls: dict[str, Any] = {
        "record": lambda: driver.record(event, stream),
        "wait_event": lambda: driver.wait_event(stream, event),
        "happened": lambda: driver.happened(event),
        "await_event": lambda: driver.await_event(event),
        "seconds": lambda: driver.seconds(other, event),
        "destroy_event": lambda: driver.destroy_event(event),
    }
    driver.destroy_event(event)
    assert driver.event() != event  # one at the address of the old would pass for it
    with pytest.raises(DriverError, match=r"CUDA_ERROR_INVALID_HANDLE \(invalid resource handle\)"):
        calls[call]()


MISALIGNED = """
extern "C" __global__ void from(const char *x, float *y, int by) { y[threadIdx.x] = *(const float *)(x + by); }
extern "C" __global__ void shared_from(double *y, int by) {
  FLNB_DYNAMIC_SHARED(char, memory);
  *(double *)(memory + by) = 1;
  y[threadIdx.x] = *(double *)(memory + by);
}
extern "C" __global__ void counted(char *y, int by) { atomicAdd((int *)(y + by), 1); }
"""


@pytest.mark.parametrize(
    ("name", "by", "told"),
    [
        ("from", 2, "memcheck: from reads 4 bytes of device memory at an address that is no multiple of 4"),
        ("shared_from", 4, "memcheck: shared_from writes 8 bytes of shared memory at an address that is no multiple"),
        ("counted", 1, "memcheck: counted updates 4 bytes of device memory at an address that is no multiple of 4"),
    ],
)
def test_an_address_must_be_a_multiple_of_what_is_read_there(
    name: str, by: int, told: str, device: EmulatedDevice, arrays: Arrays
) -> None:
    module = device.driver.load(build_kernels(MISALIGNED))
    for at, error in ((8, None), (by, "CUDA_ERROR_MISALIGNED_ADDRESS")):
        x, y = arrays.put(np.zeros(64, np.int32)), arrays.empty(64)
        given = (x, y) if name == "from" else (x,)
        launch(device, module, name, (1,), (1,), *given, np.int32(at), shared=64)
        if error is None:
            device.driver.synchronize()
            assert device.reports == []
            continue
        with pytest.raises(DriverError, match=error):
            device.driver.synchronize()
        assert told in device.reports[0]


def test_more_shared_memory_than_a_block_has_is_refused(device: EmulatedDevice, arrays: Arrays) -> None:
    text = """
    __device__ float *mine() { __shared__ float part[1024]; return part; }
    extern "C" __global__ void small(float *y) { FLNB_DYNAMIC_SHARED(float, more); y[0] = more[0] = mine()[0] = 1; }
    extern "C" __global__ void large(float *y) {
      __shared__ float own[8192];
      FLNB_DYNAMIC_SHARED(float, more);
      own[(int)y[0]] = more[0] = mine()[0] = 1;
      y[0] = own[(int)y[0]];
    }
    """
    module, y = device.driver.load(build_kernels(text)), arrays.put(np.zeros(1, np.float32))
    for name, static in (("small", 4096), ("large", 4096 + 4 * 8192)):
        launch(device, module, name, (1,), (1,), y, shared=49152 - static)
        with pytest.raises(DriverError, match=r"cuLaunchKernel: CUDA_ERROR_INVALID_VALUE"):
            launch(device, module, name, (1,), (1,), y, shared=49152 - static + 4)
    assert arrays.get(y, 1)[0] == 1


def interrupt(call: Callable[[], None]) -> None:
    """Press Ctrl-C while a call runs: again and again, as one that comes before a kernel begins does not end it."""
    over = threading.Event()

    def press() -> None:
        while not over.wait(0.3):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            try:
                call()
            finally:
                over.set()
    finally:
        thread.join()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("body", ["while (x[0] == 0);", "while (true) __syncthreads();", "while (!atomicAdd(x, 0));"])
def test_ctrl_c_ends_a_kernel_without_end(body: str, device: EmulatedDevice, arrays: Arrays) -> None:
    text = f'extern "C" __global__ void endless(volatile int *x) {{ {body.replace("(x,", "((int *)x,")} }}'
    module, x = device.driver.load(build_kernels(text)), arrays.put(np.zeros(1, np.int32))
    launch(device, module, "endless", (2,), (40,), x)
    interrupt(device.driver.synchronize)
    assert device.reports == ["kernel endless failed: the program was interrupted"]
    with pytest.raises(DriverError, match="CUDA_ERROR_LAUNCH_FAILED"):
        device.driver.synchronize()


@pytest.mark.timeout(60)
def test_ctrl_c_ends_a_kernel_where_a_library_has_put_its_own_handler_before_pythons(
    device: EmulatedDevice, arrays: Arrays
) -> None:
    pytest.importorskip("polars")
    text = 'extern "C" __global__ void endless(volatile int *x) { while (x[0] == 0); }'
    module, x = device.driver.load(build_kernels(text)), arrays.put(np.zeros(1, np.int32))
    launch(device, module, "endless", (2,), (40,), x)
    interrupt(device.driver.synchronize)
    assert device.reports == ["kernel endless failed: the program was interrupted"]


def test_an_event_is_recorded_in_streams_of_its_own_device_alone(device: EmulatedDevice) -> None:
    driver = device.driver
    event = driver.event()
    driver.use(1)
    try:
        stream = driver.stream()
        for other in (stream, 0):
            with pytest.raises(DriverError, match=r"cuEventRecord: CUDA_ERROR_INVALID_HANDLE"):
                driver.record(event, other)
        driver.wait_event(stream, event)  # any stream may wait for it
    finally:
        driver.use(0)
    driver.record(event)
