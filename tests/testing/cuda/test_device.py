"""The emulated device: right kernels give right numbers in every order, and every planted mistake is named."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import shutil
import signal
from typing import Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda.driver import Driver, DriverError

from flnb.testing.cuda import CompileError, EmulatedDevice, build_kernels, kernel_names
from tests.testing.cuda.arrays import TEXT, Arrays, launch

if shutil.which("g++") is None and "CI" not in os.environ:
    pytest.skip("g++ is not installed", allow_module_level=True)

ORDERS = [("eager", 0), ("lazy", 0), *[("random", seed) for seed in range(4)]]


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_kernels_agree_with_numpy_in_every_order(
    order: Any, seed: int, device: EmulatedDevice, module: int, arrays: Arrays
) -> None:
    device.begin(order, seed)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(3000).astype(np.float32)
    total = arrays.put(np.zeros(1, np.float32))
    launch(device, module, "block_sum", (4,), (128,), arrays.put(x), total, np.int32(x.size))
    assert arrays.get(total, 1)[0] == pytest.approx(x.sum(dtype=np.float64), abs=1e-3)

    a, b = rng.standard_normal((37, 45)).astype(np.float32), rng.standard_normal((45, 53)).astype(np.float32)
    c = arrays.empty(37 * 53)
    sizes = np.int32(37), np.int32(53), np.int32(45)
    launch(device, module, "matmul", (4, 3), (16, 16), arrays.put(a), arrays.put(b), c, *sizes)
    np.testing.assert_allclose(arrays.get(c, (37, 53)), a @ b, atol=2e-5)

    rows = 5 * rng.standard_normal((7, 300)).astype(np.float32)
    y = arrays.empty(rows.size)
    launch(device, module, "softmax", (7,), (128,), arrays.put(rows), y, np.int32(300), shared=16)
    wanted = np.exp(rows - rows.max(1, keepdims=True))
    np.testing.assert_allclose(arrays.get(y, rows.shape), wanted / wanted.sum(1, keepdims=True), atol=1e-6)

    out = arrays.empty(4)
    launch(device, module, "votes", (1,), (128,), out)
    assert arrays.get(out, 4, dtype=np.int32).tolist() == [0, 1, 64, 1]
    assert device.reports == []
    assert device.count("launches") == 4


@pytest.mark.parametrize(
    ("name", "blocks", "threads", "given", "error", "told"),
    [
        ("without_barrier", 1, 256, "xy", "", "racecheck: without_barrier"),
        ("unwritten_shared", 1, 256, "y", "", "initcheck: unwritten_shared reads 4 bytes of shared memory that no"),
        ("one_too_many", 2, 256, "xyn", "ILLEGAL_ADDRESS", "memcheck: one_too_many writes 4 bytes of device memory"),
        ("divergent_barrier", 1, 256, "y", "LAUNCH_FAILED", "100 of 256 threads wait at a barrier to which the"),
        ("absent_lanes", 1, 32, "y", "LAUNCH_FAILED", "a shuffle reads a lane that has ended"),
        ("unnamed_lane", 1, 32, "y", "LAUNCH_FAILED", "a shuffle reads a lane that its mask does not name"),
        ("racing_blocks", 8, 1, "y", "", "racecheck: racing_blocks writes 4 bytes of device memory that"),
        ("reads", 1, 256, "hy", "ILLEGAL_ADDRESS", "memcheck: reads reads 4 bytes of device memory which is the"),
        ("reads", 1, 256, "uy", "", "initcheck: reads reads 4 bytes of device memory that nothing has written"),
        ("reads", 1, 256, "fy", "ILLEGAL_ADDRESS", "in freed memory"),
    ],
)  # fmt: skip
def test_mistakes_in_kernels_are_named(
    name: str, blocks: int, threads: int, given: str, error: str, told: str, device: EmulatedDevice, module: int,
    arrays: Arrays,
) -> None:  # fmt: skip
    host, freed, kept = np.ones(256, np.float32), device.driver.allocate(1024), arrays.empty(256)
    device.driver.free(freed)
    values: dict[str, Any] = {"x": arrays.put(host), "y": arrays.empty(256), "u": kept, "n": np.int32(256)}
    values |= {"h": host.ctypes.data, "f": freed}
    device.driver.synchronize()
    launch(device, module, name, (blocks,), (threads,), *[values[key] for key in given])
    if error:
        with pytest.raises(DriverError, match=error):
            device.driver.synchronize()
        with pytest.raises(DriverError, match=error):  # it stays
            device.driver.allocate(4)
    else:
        device.driver.synchronize()
    assert any(told in report for report in device.reports), device.reports


def test_the_host_cannot_touch_device_memory(device: EmulatedDevice, arrays: Arrays) -> None:
    address = arrays.empty(4)
    child = os.fork()
    if not child:
        faulthandler.disable()
        ctypes.string_at(address, 4)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV


def test_shared_memory_that_cannot_be_checked_is_named(device: EmulatedDevice, arrays: Arrays) -> None:
    """That of a template, which g++ 12 does not put into its section."""
    text = """
    template <class V> static __device__ V *memory() { __shared__ V values[32]; return values; }
    extern "C" __global__ void templated(float *y) { memory<float>()[threadIdx.x] = 1; y[threadIdx.x] = 2; }
    """
    driver, y = device.driver, arrays.empty(32)
    kernel = driver.kernel(driver.load(build_kernels(text)), "templated")
    try:
        driver.launch(kernel, (1,), (32,), [y])
        driver.synchronize()
    except DriverError:
        assert any("of a variable in no section" in report for report in device.reports)
    else:
        assert device.traffic("templated").shared_requests == 1


def test_text_that_is_no_kernel_is_refused_with_its_line() -> None:
    with pytest.raises(CompileError, match=r"kernels\.cu:2:.*nonsense"):
        build_kernels('extern "C" __global__ void one(float *x) {\n  x[0] = nonsense;\n}\n')
    assert kernel_names(TEXT)[:3] == ["scale", "block_sum", "matmul"]
    text = "__global__ __launch_bounds__(128) void a(int) {}\n// __global__ void b() {}\n/* __global__ void c() {} */"
    assert kernel_names(text) == ["a"]


def test_memory_is_counted_limited_and_given_back(device: EmulatedDevice, arrays: Arrays) -> None:
    driver = device.driver
    before = driver.memory()
    arrays.empty(1000)
    assert before.available - driver.memory().available == 4096
    device.set_capacity(before.total - before.available + (1 << 20))  # others of this process may hold some
    try:
        with pytest.raises(DriverError, match=r"cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY \(out of memory\)") as raised:
            driver.allocate(1 << 20)
        assert raised.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
        driver.free(driver.allocate(1 << 19))  # it goes on
    finally:
        device.set_capacity(0)


def test_sectors_and_bank_conflicts_are_those_of_the_programming_guide(device: EmulatedDevice, arrays: Arrays) -> None:
    text = """
    extern "C" __global__ void strided(const float *x, float *y, int by) { y[threadIdx.x] = x[by * threadIdx.x]; }
    extern "C" __global__ void banks(float *y, int by) {
      __shared__ float s[1024];
      s[by * threadIdx.x] = threadIdx.x;
      __syncthreads();
      y[threadIdx.x] = s[by * (31 - threadIdx.x)];
    }
    """
    module = device.driver.load(build_kernels(text))
    x, y = arrays.put(np.ones(1024, np.float32)), arrays.empty(32)
    for by, sectors in ((1, 4), (2, 8), (8, 32), (32, 32), (0, 1)):
        device.begin()
        launch(device, module, "strided", (1,), (32,), x, y, np.int32(by))
        device.driver.synchronize()
        assert device.traffic("strided") == (2, sectors + 4, 0, 0)
    device.begin()
    launch(device, module, "strided", (4,), (20,), x, y, np.int32(1))  # each block's lanes are a warp of their own
    device.driver.synchronize()
    assert device.traffic("strided")[:2] == (8, 24)
    for by, turns in ((1, 1), (2, 2), (4, 4), (32, 32), (31, 1)):
        device.begin()
        launch(device, module, "banks", (1,), (32,), y, np.int32(by))
        device.driver.synchronize()
        assert device.traffic("banks") == (1, 4, 2, 2 * (turns - 1))
        assert device.traffic("banks").sectors_per_request == 4.0


def test_arguments_whose_type_does_not_tell_the_parameters_are_refused(device: EmulatedDevice, module: int) -> None:
    with pytest.raises(TypeError, match="got ndarray"):
        launch(device, module, "scale", (1,), (1,), np.zeros(3), 0, np.float32(2), np.int32(1))
    with pytest.raises(TypeError, match=r"got float 2\.0; give NumPy scalars such as np\.float32\(2\.0\)"):
        launch(device, module, "scale", (1,), (1,), 0, 0, 2.0, np.int32(1))


def test_without_a_driver_there_is_a_clear_error(device: EmulatedDevice) -> None:
    with pytest.raises(OSError, match=r"no_such_driver\.so"):
        Driver("no_such_driver.so")
    with pytest.raises(DriverError, match=r"cuModuleGetFunction: CUDA_ERROR_NOT_FOUND \(named symbol not found\)"):
        device.driver.kernel(device.driver.load(build_kernels('extern "C" __global__ void one() {}')), "two")
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_IMAGE"):
        device.driver.load(b"no image")


def test_threads_that_have_ended_are_not_waited_for(device: EmulatedDevice, arrays: Arrays) -> None:
    """As of compute capability 7.0: barriers wait for all threads that have not ended."""
    text = """
    extern "C" __global__ void some(int *out) {
      if (threadIdx.x >= 40) return;
      __syncthreads();
      int all = __all_sync(0xffffffffu, 1), count = __syncthreads_count(threadIdx.x < 8);
      __syncwarp();
      if (threadIdx.x == 39) out[0] = all, out[1] = count;
    }
    """
    out = arrays.put(np.zeros(2, np.int32))
    device.driver.launch(device.driver.kernel(device.driver.load(build_kernels(text)), "some"), (1,), (100,), [out])
    assert arrays.get(out, 2, dtype=np.int32).tolist() == [1, 8]
    assert device.reports == []


@pytest.mark.parametrize("order", ["lazy", "random"])
def test_who_asks_again_and_again_finds_work_done(
    order: Any, device: EmulatedDevice, module: int, arrays: Arrays
) -> None:
    device.begin(order, 1)
    stream, event = device.driver.stream(), device.driver.event()
    x = arrays.put(np.ones(256, np.float32), stream)
    launch(device, module, "scale", (1,), (256,), x, x, np.float32(2), np.int32(256), stream=stream)
    device.driver.record(event, stream)
    assert any(device.driver.happened(event) for _ in range(1000))
    assert any(device.driver.ready(stream) for _ in range(1000))
    assert device.count("cuEventQuery") >= 1


def test_what_ran_before_a_new_beginning_races_with_nothing(
    device: EmulatedDevice, module: int, arrays: Arrays
) -> None:
    x = arrays.put(np.ones(256, np.float32))
    for _ in range(3):
        device.begin()
        launch(device, module, "scale", (1,), (256,), x, x, np.float32(2), np.int32(256))
        device.driver.synchronize()
        assert device.reports == []


def test_copies_between_two_devices_and_times_of_events(device: EmulatedDevice, arrays: Arrays) -> None:
    driver = device.driver
    assert (driver.devices(), driver.name(1)) == (2, "flnb emulated device (on the CPU)")
    x = np.arange(5, dtype=np.float32)
    here = arrays.put(x)
    driver.use(1)
    there, begin, end = driver.allocate(20), driver.event(timed=True), driver.event(timed=True)
    driver.synchronize()
    driver.record(begin)
    driver.copy_between(there, 1, here, 0, 20)
    driver.record(end)
    found = np.empty(5, np.float32)
    driver.download(found.ctypes.data, there, 20)
    assert found.tolist() == x.tolist()
    driver.await_event(end)
    assert driver.happened(end)
    assert 0 <= driver.seconds(begin, end) < 60
    driver.free(there)
    driver.use(0)
