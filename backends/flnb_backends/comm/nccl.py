"""Collectives of CUDA tensors by NCCL, through CuPy. Unmeasured: this module has never run on a GPU.

NCCL only moves data between devices. A second communicator is used to compare the ranks' calls, and to exchange data in
host memory.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flnb_telemetry.extras import require

from flnb.dispatch import state
from flnb.dispatch.communication import run
from flnb.interface.communicator import Communicator, Work
from flnb_backends.comm.forwarding import Forwarding

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_backends.tensor.cuda.driver import Driver

ID_BYTES = 128
TYPES = {
    "b": "INT8", "B": "UINT8", "i": "INT32", "I": "UINT32", "l": "INT64", "L": "UINT64", "q": "INT64", "Q": "UINT64",
    "f": "FLOAT32", "d": "FLOAT64",
}  # fmt: skip
WIDER = {"?": "B", "h": "i", "H": "i", "e": "f"}
"""The dtype in which a buffer is reduced, for dtypes that NCCL does not support, and float32 for half precision."""
HALVES = {"F": "f", "D": "d"}
"""The dtype of the real and the imaginary part of a complex dtype."""


class Queued(Work):
    """A collective call queued in a stream, followed by an event; the call is done when the event has happened."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver, self._event = driver, driver.event()
        driver.record(self._event, stream)

    def test(self) -> bool:
        """Return whether the call is done, without waiting."""
        if self._event and self._driver.happened(self._event):
            self._driver.destroy_event(self._event)
            self._event = 0
        return not self._event


class Nccl(Forwarding):
    """Reduces, gathers and broadcasts tensors on a CUDA device by NCCL, without copies to the host.

    Calls are queued in the current stream. Messages between two ranks, and arrays in host memory, go through the
    communicator ``inner``: NCCL has no tags, and two ranks that both send first would deadlock. A tensor on any device
    but the one active when this communicator was created is copied through the host. Unmeasured: this class has never
    run on a GPU, only on emulated devices with a substitute for NCCL's library.

    Args:
        inner: the communicator for host memory and messages; by default the active one.

    Raises:
        ImportError: CuPy finds no NCCL library.
        ValueError: the active backend is not "cuda".

    On each rank, once ``"mpi"`` or `run_threads` has connected the ranks::

        flnb.set_backend(f"cuda:{local_rank}")
        flnb.distributed.set_communicator("nccl")
    """

    name: ClassVar[str] = "nccl"

    def __init__(self, inner: Communicator | None = None) -> None:
        super().__init__(inner)
        self._nccl = nccl = _library()
        backend: Any = state.current().backend
        if not hasattr(backend, "gpu"):
            raise ValueError(
                f"nccl: the active backend is {backend.name!r}, expected that of this rank's device; choose it first, "
                "for example with flnb.set_backend('cuda:1')"
            )
        self._backend, self.location = backend, backend.location
        own, ids = np.zeros(ID_BYTES, np.uint8), np.zeros((self.size, ID_BYTES), np.uint8)
        if self.rank == 0:
            own[:] = np.frombuffer(nccl.get_unique_id(), np.uint8)
        run("all_gather", own, ids, on=self.inner)  # joining NCCL cannot be interrupted: all ranks are here by then
        with backend.gpu.driver.using(backend.gpu.ordinal):
            self._engine = nccl.NcclCommunicator(self.size, ids[0].tobytes(), self.rank)

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """Reduce a buffer over all ranks in place, by ``ncclAllReduce``."""
        if isinstance(buffer, np.ndarray):
            return self.inner.all_reduce(buffer, op)
        return self._reduce("all_reduce", self._engine.allReduce, buffer, buffer, op)

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """Gather the buffers of all ranks into ``out``, by ``ncclAllGather``."""
        if isinstance(buffer, np.ndarray):
            return self.inner.all_gather(buffer, out)
        byte = self._nccl.NCCL_UINT8

        def gather(buffer: Any, out: Any) -> Any:
            self._engine.allGather(buffer.data.ptr, out.data.ptr, buffer.nbytes, byte, self._backend.gpu.stream())
            return out

        return self._queue("all_gather", gather, buffer, out)

    def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
        """Reduce the buffers of all ranks, and write this rank's part to ``out``, by ``ncclReduceScatter``."""
        if isinstance(buffer, np.ndarray):
            return self.inner.reduce_scatter(buffer, out, op)
        return self._reduce("reduce_scatter", self._engine.reduceScatter, buffer, out, op)

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """Copy the buffer of rank ``root`` to the buffers of all ranks, by ``ncclBroadcast``."""
        if isinstance(buffer, np.ndarray):
            return self.inner.broadcast(buffer, root)
        byte = self._nccl.NCCL_UINT8

        def send(buffer: Any) -> Any:
            address = buffer.data.ptr
            self._engine.broadcast(address, address, buffer.nbytes, byte, root, self._backend.gpu.stream())
            return buffer

        return self._queue("broadcast", send, buffer)

    def split(self, color: int, key: int) -> Communicator:
        """Return a communicator of the ranks with the same ``color``, ordered by ``key``."""
        return type(self)(self.inner.split(color, key))

    def close(self) -> None:
        """Destroy the NCCL communicator; after an error, abort its pending calls, which would never finish."""
        broken = self.ranks_group is not None and self.ranks_group.broken
        (self._engine.abort if broken else self._engine.destroy)()

    def _reduce(self, name: str, call: Callable[..., None], buffer: Any, out: Any, op: str) -> Work:
        """Queue a reduction by the function ``call``; dtypes that NCCL does not support are reduced in wider ones.

        ``name`` is the name of the call in telemetry.
        """
        char = buffer.dtype.char
        kind = HALVES.get(char) or WIDER.get(char, char)
        rule = getattr(self._nccl, f"NCCL_{'MAX' if char == '?' and op == 'sum' else op.upper()}")
        number = getattr(self._nccl, f"NCCL_{TYPES[kind]}")

        def reduce(buffer: Any, out: Any) -> Any:
            if char in HALVES:
                sent, received = (x.reshape(-1).view(kind) for x in (buffer, out))
            else:
                sent = buffer.astype(kind, copy=False)
                received = sent if out is buffer else out if kind == char else self._backend.new(out.shape, kind)
            call(sent.data.ptr, received.data.ptr, received.size, number, rule, self._backend.gpu.stream())
            return self._backend.copy(received, out) if char in WIDER else out

        return self._queue(name, reduce, buffer, out)

    def _queue(self, name: str, function: Callable[..., Any], *buffers: Any) -> Work:
        """Run a function that queues a collective call in the current stream; if buffers are empty, start a barrier.

        ``name`` is the name of the call in telemetry.
        """
        if not buffers[0].size:
            return self.inner.barrier()
        self._backend.issued(f"nccl {name}", function)(*buffers)
        gpu = self._backend.gpu
        with gpu.driver.using(gpu.ordinal):
            return Queued(gpu.driver, gpu.stream())


def _library() -> Any:
    """Import CuPy's module for NCCL; raises ImportError if CuPy finds no NCCL library."""
    with warnings.catch_warnings():  # CuPy warns if there is no library
        warnings.simplefilter("ignore")
        nccl = require("cupy.cuda.nccl", extra="cuda", purpose="the communicator nccl")
    if not nccl.available:
        raise ImportError(
            "nccl: CuPy finds no NCCL library; install it with `python -m pip install nvidia-nccl-cu13` "
            "(nvidia-nccl-cu12 for CUDA 12), or exchange tensors through the host by 'mpi'"
        )
    return nccl
