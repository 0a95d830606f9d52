"""Programs on several streams that are right in every order, as long as the backend orders what they do."""

from __future__ import annotations

import ctypes
import gc
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.memory.cuda import CudaDevice
from flnb_backends.tensor.cuda.driver import DriverError
from flnb_backends.tensor.cuda.gpu import Staging

import flnb
from flnb.testing.cuda import build_kernels
from tests.backends.cuda.ordered_backend import (
    X,
    copied_elsewhere,
    destroyed,
    first_stream,
    fresh,
    given_room,
    in_a_stream,
    last_batch,
    new_gpu,
    numbers,
    one_layer,
    reader,
    reused,
    second_reader,
    temporaries,
    two_devices,
    two_streams,
)
from tests.testing.cuda.arrays import TEXT, Arrays

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice


def staged(cuda: EmulatedDevice) -> None:
    """Pinned memory is used again for the next upload."""
    driver, staging = cuda.driver, Staging(cuda.driver)
    driver.use(0)
    stream, arrays = driver.stream(), Arrays(driver)
    addresses = [arrays.empty(X.size) for _ in range(8)]
    for i, address in enumerate(addresses):
        for _ in range(4):  # asking for an event runs a task, which is not to be the upload
            driver.fill(address, 0, X.nbytes, stream)
        staging.upload(address, X * i, stream)
    found = np.empty_like(X)
    for i, address in enumerate(addresses):
        staging.download(found, address, stream)
        np.testing.assert_array_equal(found, X * i)
    for address in arrays.addresses:
        driver.free(address)


def bound(cuda: EmulatedDevice) -> None:
    """What a program does by the driver alone, in a stream."""
    driver, arrays = cuda.driver, Arrays(cuda.driver)
    driver.use(0)
    stream = driver.stream()
    x, y, z = arrays.put(X, stream), arrays.empty(64), arrays.empty(64)
    kernel = driver.kernel(driver.load(build_kernels(TEXT)), "scale")
    driver.launch(kernel, (1,), (64,), (x, y, np.float32(2), np.int32(64)), stream)
    driver.copy(z, y, 256, stream)
    driver.fill(y, 0, 256, stream)
    pinned = driver.allocate_host(512)
    host = np.ctypeslib.as_array((ctypes.c_float * 128).from_address(pinned))
    host[:] = -1
    driver.download(pinned, z, 256, stream)
    driver.wait(stream)
    np.testing.assert_array_equal(host[:64], 2 * X)
    for _ in range(4):
        driver.fill(y, 0, 256, stream)
    driver.download(pinned + 256, y, 256, stream)
    while not driver.ready(stream):
        pass
    np.testing.assert_array_equal(host[64:], 0 * X)
    driver.free_host(pinned)
    driver.destroy_stream(stream)
    for address in arrays.addresses:
        driver.free(address)


def recorded(cuda: EmulatedDevice) -> None:
    """A recording says in which stream each task ran, what was recorded and awaited there, and when the host waited."""
    driver = cuda.driver
    gc.collect()  # memory of earlier managers is freed, for which the host waits
    second = fresh(cuda, 1)  # lives longer than the recording: when its memory is freed, the host waits
    with flnb.use_backend("cuda") as backend, fresh(cuda), flnb.record(grad_interval=None) as run:
        with backend.stream() as stream:
            x = flnb.asarray(X)
            y = flnb.sort(x + x)
            driver.fill(x._data.data.ptr, 0, 256, stream)
            with flnb.use_backend("cuda:1") as to, second, to.stream():
                there = x.to("cuda:1")
            np.testing.assert_array_equal(backend.staged(y._data), 2 * X)  # waits for an event
        driver.wait(stream)
        backend.sync()
        driver.free(driver.allocate(64))
        del there
    contexts = run.catalog.contexts.items
    found = {
        kind: [(contexts[c].device, contexts[c].stream) for c in run.table(kind)["context"]]
        for kind in ("launch", "copy", "event_recorded", "event_awaited", "host_wait")
    }
    own, other, _ = found["copy"]
    main, second, everything = ("cuda:0", 0), ("cuda:1", 0), ("cuda:0", -1)
    assert own[1] > 0 < other[1]
    assert found == {
        "launch": [own] * 4, "copy": [own, other, own],  # an addition, a sort of two, a memset; there, between, back
        "event_recorded": [main, own, second, own, other, own],  # streams begin; staging; both devices; staging
        "event_awaited": [own, other, other, own], "host_wait": [everything, own, everything, everything],
    }  # fmt: skip
    assert (run.table("ran")["t1"] > run.table("ran")["t0"]).all()
    recorded, awaited = (run.table(kind)["event"].tolist() for kind in ("event_recorded", "event_awaited"))
    assert awaited == [recorded[0], *recorded[2:5]]


def jitted(cuda: EmulatedDevice) -> None:
    """A program in a second stream reads what is freed before it may have read it."""
    run = flnb.jit(lambda x: x * 2.0 + 1.0)
    with flnb.use_backend("cuda") as backend, fresh(cuda):
        x = flnb.asarray(X) * 3.0
        with backend.stream() as other:
            for _ in range(2):  # at once, and captured
                run(flnb.asarray(X))
            found = run(x) + 1.0
        del x
        others = flnb.asarray(X) * 7.0, flnb.asarray(X) * 8.0
        backend.wait_for(other)
        for got, right in zip((found, *others), (6 * X + 2, 7 * X, 8 * X), strict=True):
            np.testing.assert_array_equal(got.numpy(), right)


class Asked(flnb.memory.Caching):
    """A manager that remembers in which streams blocks were asked for."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self.streams = list[int]()

    def alloc(self, nbytes: int, stream: int = 0, hint: Any = None) -> Any:
        self.streams.append(stream)
        return super().alloc(nbytes, stream, hint)


def told(cuda: EmulatedDevice) -> None:
    """The emulated device names a use of memory that is no block's, and of a block that another stream has freed."""
    driver, manager = cuda.driver, Asked(CudaDevice(driver=cuda.driver))
    driver.use(0)
    kernel = driver.kernel(driver.load(build_kernels(TEXT)), "scale")

    def use(block: Any, stream: int, beyond: int = 0) -> None:
        given = block.address, block.address + beyond, np.float32(1), np.int32(256)
        driver.launch(kernel, (1,), (256,), given, stream)

    with flnb.use_backend("cuda"), flnb.use_memory_manager(manager), pytest.MonkeyPatch.context() as patch:
        one, other = two_streams()
        with one:
            block = flnb.memory.allocate(manager, 1024)
        with pytest.raises(DriverError, match=r"kernel scale failed: .* in a block that its manager has freed"):
            use(block, one.ptr, 1024)
            driver.wait(one.ptr)
        cuda.begin("eager")
        use(block, one.ptr)
        flnb.memory.release(manager, block)
        patch.setattr(driver, "wait_for_stream", lambda *_: None)
        with other:
            again = flnb.memory.allocate(manager, 1024)
        use(again, other.ptr)
    assert manager.streams == [one.ptr, other.ptr]
    assert again.address == block.address
    found = re.search(
        rf"scale on stream (\d+) \w+ 4 bytes of device memory that release of the block of 1024 bytes at "
        rf"{block.address:#x} on stream (\d+) wrote, with no event between at scale", "; ".join(cuda.reports),
    )  # fmt: skip
    assert found, cuda.reports
    assert found[1] != found[2]
    cuda.begin()


PROGRAMS = {
    "backend.CudaBackend.issued.issue": (second_reader, recorded),
    "backend.CudaBackend.sync": (reused,),
    "backend.CudaBackend.stream": (reader, first_stream, recorded),
    "backend.CudaBackend.wait_for": (one_layer, reader),
    "backend.CudaBackend.prefetch": (one_layer, last_batch),
    "backend.CudaBackend.prefetch.upload": (last_batch,),
    "backend.CudaBackend.settled": (numbers,),
    "backend.CudaBackend._fetched": (two_devices, copied_elsewhere),
    "backend.CudaBackend.to_numpy": (in_a_stream,),
    "backend.CudaBackend.staged": (in_a_stream,),
    "backend.note_uses": (second_reader, given_room),
    "driver.Driver.synchronize": (reused, recorded),
    "driver.Driver._wait": (recorded,),
    "driver.Driver.free": (recorded,),
    "driver.Driver.upload": (one_layer,),
    "driver.Driver.download": (in_a_stream,),
    "driver.Driver.copy": (bound,),
    "driver.Driver.copy_between": (two_devices, recorded),
    "driver.Driver._copy": (one_layer, recorded),
    "driver.Driver.fill": (bound, recorded),
    "driver.Driver.destroy_stream": (bound,),
    "driver.Driver.wait": (bound, recorded),
    "driver.Driver.ready": (bound,),
    "driver.Driver.record": (one_layer, recorded),
    "driver.Driver.queue_event": (recorded,),
    "driver.Driver.wait_event": (one_layer, recorded),
    "driver.Driver.wait_for_stream": (one_layer,),
    "driver.Driver.await_event": (staged, recorded),
    "driver.Driver.launch": (in_a_stream, recorded),
    "gpu.Staging.upload": (one_layer, staged),
    "gpu.Staging.download": (staged,),
    "gpu.Gpu.__init__": (new_gpu,),
    "backend.CudaBackend._uploaded": (one_layer,),
    "indexing.Indexing.scatter_add": (in_a_stream,),
    "launcher.Launcher.launch": (in_a_stream,),
    "backend.CudaBackend.uses": (jitted,),
    "programs.Segment.run": (jitted,),
    "cuda.CudaDevice.reserve": (told,),
    "cuda.EventOrder.freed": (one_layer, told),
    "cuda.EventOrder.given": (one_layer, temporaries, told),
    "cuda.EventOrder._wait": (one_layer, reused, destroyed),
    "memory.allocate": (one_layer, told),
    "freeing.free_own": (one_layer, told),
}
"""By function that orders streams: the programs of which one is wrong without any one of its places."""
