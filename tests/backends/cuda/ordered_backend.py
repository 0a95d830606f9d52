"""Programs on several streams that are right as long as the backend and its order of blocks wait."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.memory.cuda import CudaDevice
from flnb_backends.tensor.cuda.gpu import Gpu, gpu_at

import flnb
from flnb import nn
from flnb.dispatch.table import OPS

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """A stream reads a tensor that another stream has just computed, in memory that was never used before."""
    with flnb.use_backend("cuda") as backend, fresh(cuda), backend.stream():
        x = flnb.asarray(X)
        y = x + x
        with backend.stream() as other:
            z = y + y
        backend.wait_for(other)
        np.testing.assert_array_equal(z.numpy(), 4 * X)


@cache
def two_streams() -> tuple[Any, Any]:
    """Return two non-blocking streams; work in them waits only for the tensors that it reads."""
    gpu_at().several_streams = True
    one, other = (gpu_at().cupy.cuda.Stream(non_blocking=True) for _ in "ab")
    return one, other


def in_both(cuda: EmulatedDevice, first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Any:
    """Return the values of ``first`` of X and ``second`` of -X, each computed in one of the two streams."""
    with flnb.use_backend("cuda") as backend, fresh(cuda):
        x, y = flnb.asarray(X), flnb.asarray(-X)
        flnb.sync()
        results = []
        for stream, function, argument in zip(two_streams(), (first, second), (x, y), strict=True):
            with stream:
                results.append(function(argument))
        for stream in two_streams():
            backend.wait_for(stream.ptr)
        return [result.numpy() for result in results]


def reused(cuda: EmulatedDevice) -> None:
    """A block of one stream is used again in another: each function frees a temporary."""
    first, second = in_both(cuda, lambda x: (x * 2.0) * 5.0, lambda y: (y * 1.0) + 0.0)
    np.testing.assert_array_equal(first, 10 * X)
    np.testing.assert_array_equal(second, -X)


def numbers(cuda: EmulatedDevice) -> None:
    """A number that an op stores when it is first used, in one stream, is read by the same op in another."""
    for plan in OPS["multiply"].plans.values():
        plan.constants.clear()
    first, second = in_both(cuda, lambda x: x * 3.0, lambda y: y * 3.0)
    np.testing.assert_array_equal(first, 3 * X)
    np.testing.assert_array_equal(second, -3 * X)


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
    """Tensors that a second stream reads, one alone and one among several, are freed before it has read them."""
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
