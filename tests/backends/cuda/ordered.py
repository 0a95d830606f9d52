"""Programs on several streams that are right in every order, as long as the backend orders what they do."""

from __future__ import annotations

import ctypes
import gc
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.memory.cuda import CudaDevice
from flnb_backends.tensor.cuda.driver import DriverError
from flnb_backends.tensor.cuda.gpu import Gpu, Staging, gpu_at

import flnb
from flnb import nn
from flnb.dispatch.table import OPS
from flnb.testing.cuda import build_kernels
from tests.testing.cuda.arrays import TEXT, Arrays

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

X = np.arange(1, 65, dtype=np.float32)
RATE = 0.125


def fresh(cuda: EmulatedDevice, ordinal: int = 0) -> Any:
    """A manager of its own, whose memory no other program has used."""
    return flnb.use_memory_manager(flnb.memory.Caching(CudaDevice(driver=cuda.driver, ordinal=ordinal)))


def one_layer(cuda: EmulatedDevice, backend: Any = "cuda") -> None:
    """Train a linear layer, whose batches are uploaded in a stream of their own."""
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=(8, 2)).astype(np.float32)) for _ in "four"]
    w, b = rng.normal(size=(2, 4)).astype(np.float32), np.zeros(2, np.float32)
    with flnb.use_backend(backend) as active, fresh(cuda):
        layer = nn.Linear(4, 2)
        layer.load_state_dict({"weight": flnb.asarray(w), "bias": flnb.asarray(b)})
        optimizer, losses = flnb.optim.SGD(layer.parameters(), lr=RATE), []
        for x, y in active.prefetch(batches):
            loss = ((layer(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        found = [x.numpy() for x in (*losses, layer.weight.detach(), layer.bias.detach())]
    wanted: list[Any] = []
    for x, y in batches:
        error = x @ w.T + b - y
        wanted.append((error**2).mean())
        w, b = w - RATE * error.T @ x / 8, b - RATE * error.sum(0) / 8
    for got, right in zip(found, (*wanted, w, b), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)


def new_gpu(cuda: EmulatedDevice) -> None:
    """The same on a device that is set up anew, and a kernel of flnb's own in a stream."""
    from flnb_backends.tensor.cuda.backend import CudaBackend

    backend, stream = CudaBackend(), cuda.driver.current_stream
    backend.gpu = Gpu(cuda.driver, 0)
    try:
        one_layer(cuda, backend)
        with flnb.use_backend(backend), backend.stream():
            np.testing.assert_array_equal(flnb.sort(flnb.asarray(X), descending=True).numpy(), X[::-1])
    finally:
        cuda.driver.current_stream = stream


def last_batch(cuda: EmulatedDevice) -> None:
    """Look only at a batch that no other follows; it is uploaded in another stream than the one it is used in."""
    with flnb.use_backend("cuda") as backend, fresh(cuda), flnb.record(grad_interval=None) as run:
        for (x,) in backend.prefetch([(X,)]):
            np.testing.assert_array_equal((x + x).numpy(), 2 * X)
    copied, launched = (run.table(kind)["context"] for kind in ("copy", "launch"))
    contexts = run.catalog.contexts.items
    assert contexts[copied[0]].stream != contexts[launched[0]].stream


def reader(cuda: EmulatedDevice) -> None:
    """A stream uses what another has made, whose memory nobody has had before."""
    with flnb.use_backend("cuda") as backend, fresh(cuda), backend.stream():
        x = flnb.asarray(X)
        y = x + x
        with backend.stream() as other:
            z = y + y
        backend.wait_for(other)
        np.testing.assert_array_equal(z.numpy(), 4 * X)


@cache
def two_streams() -> tuple[Any, Any]:
    """Two streams that the program enters as it likes, in which work waits for nothing but what it uses."""
    gpu_at().several_streams = True
    one, other = (gpu_at().cupy.cuda.Stream(non_blocking=True) for _ in "ab")
    return one, other


def reused(cuda: EmulatedDevice) -> None:
    """A block of one stream is used again in another."""
    with flnb.use_backend("cuda") as backend, fresh(cuda):
        one, other = two_streams()
        x, y = flnb.asarray(X), flnb.asarray(-X)
        flnb.sync()
        with one:
            temporary = x * 2.0
            first = temporary * 5.0
            del temporary  # its memory goes to the next request
        with other:
            temporary = y * 1.0
            second = temporary + 0.0
            del temporary
        backend.wait_for(one.ptr)
        backend.wait_for(other.ptr)
        np.testing.assert_array_equal(first.numpy(), 10 * X)
        np.testing.assert_array_equal(second.numpy(), -X)


def numbers(cuda: EmulatedDevice) -> None:
    """A number that an op stores when it is first used, in one stream, is read by the same op in another."""
    for plan in OPS["multiply"].plans.values():
        plan.constants.clear()
    with flnb.use_backend("cuda") as backend, fresh(cuda):
        one, other = two_streams()
        x, y = flnb.asarray(X), flnb.asarray(-X)
        flnb.sync()
        with one:
            first = x * 3.0
        with other:
            second = y * 3.0
        backend.wait_for(one.ptr)
        backend.wait_for(other.ptr)
        np.testing.assert_array_equal(first.numpy(), 3 * X)
        np.testing.assert_array_equal(second.numpy(), -3 * X)


def temporaries(cuda: EmulatedDevice) -> None:
    """Memory that CuPy takes for itself in one stream, then in another, and again in the first."""
    with flnb.use_backend("cuda") as backend, fresh(cuda):
        one, other = two_streams()
        x = gpu_at().cupy.asarray(X)
        flnb.sync()
        for stream in (one, other):
            with stream:
                x * 2
        with one:
            y = x * 3
        backend.wait_for(one.ptr)
        np.testing.assert_array_equal(backend.to_numpy(y), 3 * X)


def second_reader(cuda: EmulatedDevice) -> None:
    """What a second stream reads, alone and among several tensors, is freed before it may have read it."""
    with flnb.use_backend("cuda") as backend, fresh(cuda):
        x, y = flnb.asarray(X) * 3.0, flnb.asarray(X) * 4.0
        with backend.stream() as other:
            found = x + 1.0, flnb.concat([y, y])
        del x, y
        others = flnb.asarray(X) * 7.0, flnb.asarray(X) * 8.0
        backend.wait_for(other)
        wanted = 3 * X + 1, np.tile(4 * X, 2), 7 * X, 8 * X
        for got, right in zip((*found, *others), wanted, strict=True):
            np.testing.assert_array_equal(got.numpy(), right)


def in_a_stream(cuda: EmulatedDevice) -> None:
    """An upload, kernels of CuPy's and flnb's own, a memset, copies to the host both ways; without an event between."""
    with flnb.use_backend("cuda") as backend, fresh(cuda), backend.stream():
        x = flnb.asarray(X) * 2.0
        np.testing.assert_array_equal(flnb.sort(x, descending=True).numpy(), 2 * X[::-1])
        np.testing.assert_array_equal(backend.staged((x + 1.0)._data), 2 * X + 1)
        rows = flnb.Variable(x.reshape((16, 4)))
        rows[flnb.asarray([3, 3, 5])].sum().backward()
        assert rows.grad is not None
        np.testing.assert_array_equal(rows.grad.numpy().sum(1), [0, 0, 0, 8, 0, 4, *[0] * 10])


def two_devices(cuda: EmulatedDevice) -> None:
    """A tensor that is no array of C's goes from a stream of one device to one of another, by a copy that is reused."""
    square = X.reshape(8, 8)
    with flnb.use_backend("cuda:1") as there, flnb.use_backend("cuda") as here, fresh(cuda), here.stream():
        x = flnb.asarray(square)
        turned = (x + x).T
        with flnb.use_backend(there), there.stream():
            y = turned.to("cuda:1")
            z = y + y  # no number, which would stay on the device
            with flnb.use_backend(here):
                again = [flnb.asarray(square) for _ in range(4)]
            np.testing.assert_array_equal(z.numpy(), 4 * square.T)
        for each in again:
            np.testing.assert_array_equal(each.numpy(), square)


def copied_elsewhere(cuda: EmulatedDevice) -> None:
    """Another device copies a tensor in a second stream; its memory is used again only after the copy."""
    with flnb.use_backend("cuda") as backend:
        x = flnb.asarray(X) * 1.0
        flnb.sync()
        with backend.stream() as stream:
            y = x.to("cuda:1")
        del x  # its memory goes to one of the next requests, in the default stream
        kept = [flnb.asarray(-X) * 1.0 for _ in range(3)]
        backend.wait_for(stream)
    np.testing.assert_array_equal(y.numpy(), X)
    assert kept[0].shape == X.shape


def given_room(cuda: EmulatedDevice) -> None:
    """Several results are written to memory of another stream, one of which is freed before they are there."""
    rows = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    with flnb.use_backend("cuda") as backend, fresh(cuda):
        x, labels = flnb.asarray(rows), flnb.asarray(np.arange(8) % 2)
        y, log_p = flnb.asarray(np.float32(0)), flnb.asarray(rows)
        with backend.stream() as other:
            backend.method("cross_entropy")(x._data, labels._data, "mean", (y._data, log_p._data))
        del log_p
        again = flnb.asarray(-rows)
        backend.wait_for(other)
        wanted = np.log(np.exp(rows).sum(1)) - rows[np.arange(8), np.arange(8) % 2]
        np.testing.assert_allclose(y.numpy(), wanted.mean(), rtol=1e-5)
        np.testing.assert_array_equal(again.numpy(), -rows)


def destroyed(cuda: EmulatedDevice) -> None:
    """Memory that was used in a stream which the program has destroyed."""
    gpu = gpu_at()
    gpu.several_streams = True
    with flnb.use_backend("cuda"), fresh(cuda):
        x = flnb.asarray(X)
        flnb.sync()
        own = gpu.cupy.cuda.Stream(non_blocking=True)
        with own:
            y = x * 2.0
        del y
        del own  # CuPy destroys it
        np.testing.assert_array_equal((x * 3.0).numpy(), 3 * X)


def first_stream(cuda: EmulatedDevice) -> None:
    """The first stream of a program beside the default one is made while blocks are in use."""
    gpu_at().several_streams = False
    second_reader(cuda)


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
