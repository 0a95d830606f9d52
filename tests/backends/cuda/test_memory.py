"""Memory and streams of the cuda backend: every byte is a block's, every use is waited for, errors are told once."""

from __future__ import annotations

import gc
import random
import sys
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.memory.cuda import CudaDevice
from flnb_backends.tensor.cuda.gpu import block_of, gpu_at

import flnb
from flnb.interface.memory import Block, OutOfMemoryError

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

X = np.arange(1, 65, dtype=np.float32)


def test_blocks_are_all_the_memory_that_cupy_takes_at_every_moment(cuda: EmulatedDevice) -> None:
    cupy, rng, held = gpu_at().cupy, random.Random(0), list[Any]()
    flnb.memory.release_cached(gpu_at().manager)
    elsewhere = cuda.driver.memory().available + gpu_at().manager.stats()["reserved"]
    cuda.begin("eager", checks=False)
    with flnb.use_backend("cuda"):
        manager = gpu_at().active_manager()
        for _ in range(1000):
            if held and rng.random() < 0.5:
                held.pop(rng.randrange(len(held)))
            elif rng.random() < 0.5:
                held.append(flnb.ones((rng.randrange(1, 4000),)))
            else:
                held.append(cupy.ones(rng.randrange(1, 4000), np.float32)[::2] + 1)  # and temporaries
            blocks = [block for segment in manager.snapshot() for block in segment.blocks]
            assert sum(block.size for block in blocks) == elsewhere - cuda.driver.memory().available
            taken = sum(
                x.nbytes if hasattr(x, "_spec") else x.base.nbytes if x.base is not None else x.nbytes for x in held
            )
            assert sum(block.requested for block in blocks if block.id) >= taken
    held.clear()


def test_out_of_memory_is_reported_as_on_the_host_and_the_process_goes_on(cuda: EmulatedDevice) -> None:
    manager = flnb.memory.Native(CudaDevice("64KiB", driver=cuda.driver))
    with flnb.use_backend("cuda"), flnb.use_memory_manager(manager):
        x = flnb.ones((1 << 13,))
        with pytest.raises(OutOfMemoryError) as caught:
            flnb.concat([x, x])
        assert caught.value.capacity == 64 << 10
        assert "concat" in str(caught.value.report)
        y = x[:10] + 1
        assert float(y[0]) == 2.0


def test_a_block_of_a_stream_is_used_again_in_another_after_its_work(cuda: EmulatedDevice) -> None:
    for seed in range(8):
        cuda.begin("random", seed)
        with flnb.use_backend("cuda") as backend:
            x, y = flnb.asarray(X), flnb.asarray(-X)
            flnb.sync()
            with backend.stream() as one:
                temporary = x * 2.0
                first = temporary * 5.0
                del temporary  # its memory goes to the next request
            with backend.stream() as other:
                temporary = y * 1.0
                second = temporary + 0.0
                del temporary
            backend.wait_for(one)
            backend.wait_for(other)
            np.testing.assert_array_equal(first.numpy(), 10 * X)
            np.testing.assert_array_equal(second.numpy(), -X)
        assert cuda.reports == []


def test_what_a_second_stream_reads_is_not_used_again_before_it_has_read(cuda: EmulatedDevice) -> None:
    for seed in range(8):
        cuda.begin("random", seed)
        with flnb.use_backend("cuda") as backend:
            x = flnb.asarray(X) * 3.0
            with backend.stream() as other:
                y = x + 1.0
            del x  # freed while the other stream may not have read it
            z = flnb.asarray(X) * 7.0
            backend.wait_for(other)
            np.testing.assert_array_equal(y.numpy(), 3 * X + 1)
            np.testing.assert_array_equal(z.numpy(), 7 * X)
        assert cuda.reports == []


def work_in_a_stream(cuda: EmulatedDevice, orders: int) -> None:
    """An upload, a kernel of CuPy's, one of flnb's own and a download, without an event between."""
    for seed in range(orders):
        cuda.begin("random", seed)
        with flnb.use_backend("cuda") as backend:
            with backend.stream():
                x = flnb.asarray(X)
                found = flnb.sort(x * 2.0, descending=True).numpy()
            np.testing.assert_array_equal(found, 2 * X[::-1])
        assert cuda.reports == []


def test_all_kinds_of_work_run_in_the_stream(cuda: EmulatedDevice) -> None:
    work_in_a_stream(cuda, orders=4)


def test_two_devices_exchange_tensors_without_the_host(cuda: EmulatedDevice) -> None:
    x = flnb.asarray(X).to("cuda:0")
    before = {what: cuda.count(what) for what in ("bytes to the host", "cuMemcpyPeerAsync")}
    y = x.to("cuda:1")
    assert cuda.count("bytes to the host") == before["bytes to the host"]
    assert cuda.count("cuMemcpyPeerAsync") == before["cuMemcpyPeerAsync"] + 1
    assert "cuda:1" in repr(y)
    with flnb.use_backend("cuda:1"):
        z = y * 2.0
        with pytest.raises(TypeError, match="'cuda:0' buffers but the active backend 'cuda:1'"):
            x + z
    np.testing.assert_array_equal(z.numpy(), 2 * X)  # also outside
    np.testing.assert_array_equal(z.to("cuda").to("numpy").numpy(), 2 * X)
    assert cuda.reports == []


def test_what_another_device_copies_is_not_used_again_before_the_copy(cuda: EmulatedDevice) -> None:
    stream = gpu_at().cupy.cuda.Stream(non_blocking=True)
    for seed in range(8):
        cuda.begin("random", seed)
        with flnb.use_backend("cuda") as backend:
            x = flnb.asarray(X) * 1.0
            flnb.sync()
            with stream:
                y = x.to("cuda:1")
            del x  # its memory goes to one of the next requests, in the default stream
            kept = [flnb.asarray(-X) * 1.0 for _ in range(3)]
            backend.wait_for(stream.ptr)
        np.testing.assert_array_equal(y.numpy(), X)
        assert kept[0].shape == X.shape
        assert cuda.reports == []


def test_a_copy_that_fails_on_the_other_device_leaves_the_threads_device(
    cuda: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy = gpu_at().cupy
    with flnb.use_backend("cuda:1"):
        x = flnb.asarray(X)
    there = cupy.cuda.runtime.getDevice()
    monkeypatch.setattr(cuda.driver, "event", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        x.to("cuda:0")
    assert cupy.cuda.runtime.getDevice() == there == 0


def test_numbers_of_every_kind_go_to_the_device_and_back(cuda: EmulatedDevice) -> None:
    values = [np.float64(2.5), np.arange(6).reshape(2, 3).T, np.zeros((0, 3)), np.array([1 + 2j]), np.array(True)]
    with flnb.use_backend("cuda"):
        for value in values:
            tensor = flnb.asarray(value)
            np.testing.assert_array_equal(tensor.numpy(), value)
            assert tensor.shape == np.shape(value)


def test_the_pool_can_be_reserved_up_front(cuda: EmulatedDevice) -> None:
    """T10: the share of the device's memory that the first allocation takes at once."""
    gc.collect()
    manager = flnb.memory.Reserved(CudaDevice("32MiB", driver=cuda.driver), reserve=0.5)
    with flnb.use_backend("cuda"), flnb.use_memory_manager(manager):
        before = cuda.count("cuMemAlloc_v2")
        tensors = [flnb.ones((1000,)) for _ in range(20)]
        assert cuda.count("cuMemAlloc_v2") - before <= 1
        assert manager.stats()["reserved"] == 16 << 20
    assert len(tensors) == 20


def test_a_kernel_that_fails_is_told_once_with_its_name_and_the_ops(cuda: EmulatedDevice) -> None:
    from flnb_backends.tensor.cuda.backend import CudaBackend
    from flnb_backends.tensor.cuda.driver import DriverError

    text = 'extern "C" __global__ void one_too_many(float *x, int n) { if (threadIdx.x <= n) x[threadIdx.x] = 1; }'
    kernel = gpu_at().cupy.RawKernel(text, "one_too_many")

    class Faulty(CudaBackend):
        def exp(self, x: Any, out: Any = None) -> Any:
            kernel((1,), (1024,), (x, np.int32(512)))
            return super().exp(x, out)

    manager = flnb.memory.Caching(CudaDevice(driver=cuda.driver))
    with flnb.use_backend(Faulty), flnb.use_memory_manager(manager):
        x = flnb.ones((128,))
        with pytest.raises(
            DriverError,
            match=r"ILLEGAL_ADDRESS .*kernel one_too_many failed: illegal address.*newest first: .*exp",
        ):
            flnb.exp(x).numpy()
        with pytest.raises(DriverError, match="it failed before: every further call does"):
            (x + 1.0).numpy()
    cuda.begin()


def test_memory_that_a_destroyed_stream_has_used_is_used_again(cuda: EmulatedDevice) -> None:
    cupy = gpu_at().cupy
    gpu_at().several_streams = True
    with flnb.use_backend("cuda"), flnb.use_memory_manager(flnb.memory.Caching(CudaDevice(driver=cuda.driver))):
        x = flnb.asarray(X)
        flnb.sync()
        own = cupy.cuda.Stream(non_blocking=True)
        with own:
            y = x * 2.0
        del y
        del own  # CuPy destroys it
        z = x * 3.0
        np.testing.assert_array_equal(z.numpy(), 3 * X)


def test_a_manager_that_is_dropped_gives_its_memory_back(cuda: EmulatedDevice) -> None:
    flnb.memory.stats()  # frees what other tests have dropped
    gc.collect()
    before = cuda.driver.memory().available
    with flnb.use_backend("cuda"), flnb.use_memory_manager(flnb.memory.Caching(CudaDevice(driver=cuda.driver))):
        x = flnb.ones((1000,))
        assert cuda.driver.memory().available < before
    del x
    flnb.memory.stats()
    gc.collect()
    assert cuda.driver.memory().available == before


def test_streams_that_the_program_makes_by_cupy_are_noted(cuda: EmulatedDevice) -> None:
    cupy = gpu_at().cupy
    stream = cupy.cuda.Stream(non_blocking=True)
    for seed in range(8):
        cuda.begin("random", seed)
        gpu_at().several_streams = False  # as before any other test
        with flnb.use_backend("cuda") as backend:
            x = flnb.asarray(X) * 1.0
            flnb.sync()
            with stream:
                y = x * 2.0
            del x  # its memory goes to the next request of the same size, in the default stream
            z = flnb.asarray(-X) * 1.0
            backend.wait_for(stream.ptr)
            assert y.tolist() == (2 * X).tolist()
            assert z.tolist() == (-X).tolist()
        assert cuda.reports == []


def test_a_batch_does_not_wait_for_the_upload_of_the_next(cuda: EmulatedDevice) -> None:
    cuda.begin("lazy")
    cuda.driver.synchronize()
    gpu_at().memory.order.forget(0, 1 << 62)  # what earlier tests have freed is waited for, too
    batches = [[np.full(8, i, np.float32)] for i in range(4)]
    with flnb.use_backend("cuda") as backend, flnb.record() as run:
        one = flnb.ones((8,))
        kept = [(x, x + one) for (x,) in backend.prefetch(batches)]  # no memory is used again
    assert [y.tolist()[0] for _, y in kept] == [1.0, 2.0, 3.0, 4.0]
    event, task = run.devices.event, run.devices.task
    uploads = task["seq"][(task["route"] == 1) & (task["stream"] != 0)].tolist()
    recorded = dict(zip(event["event"][event["awaited"] == 0], event["seq"][event["awaited"] == 0], strict=True))
    own = task["stream"] == 0
    adds = task["seq"][own & (task["route"] == 0) & (np.arange(len(own)) > 0)].tolist()[-4:]
    awaits = (event["awaited"] == 1) & (event["stream"] == 0)
    awaited = list(zip(event["seq"][awaits].tolist(), event["event"][awaits].tolist(), strict=True))
    assert len(uploads) == len(adds) == 4
    for upload, add, following in zip(uploads, adds, [*uploads[1:], 1 << 62], strict=True):
        before = [recorded[number] for seq, number in awaited if seq < add]
        assert upload < max(before) < following


def test_an_interrupted_allocation_forgets_no_stream(cuda: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = CudaDevice("4MiB", driver=cuda.driver)
    manager, streams = flnb.memory.Caching(memory), [cuda.driver.stream() for _ in range(3)]
    memory.order.stream = lambda: streams[0]  # type: ignore[method-assign]
    flnb.memory.release(manager, flnb.memory.allocate(manager, 512))
    waited: list[tuple[int, int]] = []

    def interrupted(stream: int, other: int) -> None:
        raise KeyboardInterrupt

    memory.order.stream = lambda: streams[1]  # type: ignore[method-assign]
    monkeypatch.setattr(cuda.driver, "wait_for_stream", interrupted)
    with pytest.raises(KeyboardInterrupt):
        flnb.memory.allocate(manager, 512)
    monkeypatch.setattr(cuda.driver, "wait_for_stream", lambda *pair: waited.append(pair))
    memory.order.stream = lambda: streams[2]  # type: ignore[method-assign]
    flnb.memory.release(manager, flnb.memory.allocate(manager, 512))
    assert (streams[2], streams[0]) in waited


def test_what_is_used_while_a_segment_goes_back_is_not_forgotten(
    cuda: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may get the same address from the device before the first one has returned."""
    memory = CudaDevice("64KiB", driver=cuda.driver)
    segment = memory.reserve(4096)
    free = cuda.driver.free

    def free_and_use(address: int) -> None:
        free(address)
        block = Block(address, 512, segment)
        block.streams = (7, 8)
        memory.order.freed(block)

    monkeypatch.setattr(cuda.driver, "free", free_and_use)
    memory.release(segment)
    assert [streams for *_, streams in memory.order._free] == [(7, 8)]


def test_a_stream_is_noted_though_another_thread_notes_one(cuda: EmulatedDevice) -> None:
    with flnb.use_backend("cuda"):
        x = flnb.ones((8,))
    from flnb_backends.tensor.cuda.backend import note_uses  # imports CuPy: not before the device is emulated

    block = block_of(x._data)
    assert block is not None
    numbers, start = range(1000, 3000), Barrier(4)

    def note(mine: range) -> None:
        start.wait()
        for number in mine:
            note_uses(number, (x._data,))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [Thread(target=note, args=(numbers[i::4],)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(block.streams) >= set(numbers)
    finally:
        sys.setswitchinterval(interval)
        block.streams = (0,)


def test_a_block_that_a_failed_wait_kept_from_its_caller_goes_back(
    cuda: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flnb_backends.tensor.cuda.driver import DriverError

    def failed(block: Block) -> None:
        raise DriverError("cuEventCreate", "CUDA_ERROR_UNKNOWN", "unknown error")

    memory = CudaDevice("4MiB", driver=cuda.driver)
    manager = flnb.memory.Caching(memory)
    flnb.memory.release(manager, flnb.memory.allocate(manager, 512))
    known = list(memory.order._free)
    monkeypatch.setattr(memory.order, "given", failed)
    for nbytes in (512, 512, 1 << 20):
        with pytest.raises(DriverError):
            flnb.memory.allocate(manager, nbytes)
    monkeypatch.undo()
    stats = manager.stats()
    assert (stats["live"], stats["allocated"]) == (0, 0)
    assert memory.order._free == known  # who has used the memory
    flnb.memory.release_cached(manager)
    assert manager.stats()["reserved"] == 0  # nothing holds the segment
