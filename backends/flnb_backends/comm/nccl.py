"""Collective calls on tensors of CUDA devices by NCCL, through CuPy. Unmeasured: it has never run on a GPU.

NCCL moves data between devices and nothing else. Around it is another communicator, by which ranks agree on their calls
and exchange what the host has.
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

__all__ = ["Nccl"]

ID_BYTES = 128
TYPES = {
    "b": "INT8", "B": "UINT8", "i": "INT32", "I": "UINT32", "l": "INT64", "L": "UINT64", "q": "INT64", "Q": "UINT64",
    "f": "FLOAT32", "d": "FLOAT64",
}  # fmt: skip
WIDER = {"?": "B", "h": "i", "H": "i", "e": "f"}
"""What elements are reduced in that NCCL lacks, and half precision, as by the other communicators."""
HALVES = {"F": "f", "D": "d"}
"""What a complex number has two of."""


class Queued(Work):
    """A call in a stream of the device, finished when the event after it has happened."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver, self._event = driver, driver.event()
        driver.record(self._event, stream)

    def test(self) -> bool:
        """Whether the device has come to the event."""
        if self._event and self._driver.happened(self._event):
            self._driver.destroy_event(self._event)
            self._event = 0
        return not self._event


class Nccl(Forwarding):
    """Reduces, gathers and broadcasts tensors of a CUDA device where they are, in the present stream.

    Messages between two ranks, and all that is in the host's memory, are left to the communicator ``inner``, the active
    one if none is given: NCCL has no tags, and two ranks that both send first would wait for ever. A tensor of another
    device than the one that was active when this was made is copied through the host, too. Unmeasured: it has never run
    on a GPU, only over a stand-in of NCCL's library, below CuPy's own class, on emulated devices.

    Raises:
        ImportError: CuPy finds no NCCL.
        ValueError: the active backend is not "cuda".

    On each rank, where ``"mpi"`` or `run_threads` has joined them::

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
        run("all_gather", own, ids, on=self.inner)  # NCCL's own meeting cannot be interrupted: all have come by now
        with backend.gpu.driver.using(backend.gpu.ordinal):
            self._engine = nccl.NcclCommunicator(self.size, ids[0].tobytes(), self.rank)

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """``ncclAllReduce`` in place."""
        if isinstance(buffer, np.ndarray):
            return self.inner.all_reduce(buffer, op)
        return self._reduce("all_reduce", self._engine.allReduce, buffer, buffer, op)

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """``ncclAllGather`` of the bytes."""
        if isinstance(buffer, np.ndarray):
            return self.inner.all_gather(buffer, out)
        byte = self._nccl.NCCL_UINT8

        def gather(buffer: Any, out: Any) -> Any:
            self._engine.allGather(buffer.data.ptr, out.data.ptr, buffer.nbytes, byte, self._backend.gpu.stream())
            return out

        return self._queue("all_gather", gather, buffer, out)

    def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
        """``ncclReduceScatter``."""
        if isinstance(buffer, np.ndarray):
            return self.inner.reduce_scatter(buffer, out, op)
        return self._reduce("reduce_scatter", self._engine.reduceScatter, buffer, out, op)

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """``ncclBroadcast`` of the bytes, in place."""
        if isinstance(buffer, np.ndarray):
            return self.inner.broadcast(buffer, root)
        byte = self._nccl.NCCL_UINT8

        def send(buffer: Any) -> Any:
            address = buffer.data.ptr
            self._engine.broadcast(address, address, buffer.nbytes, byte, root, self._backend.gpu.stream())
            return buffer

        return self._queue("broadcast", send, buffer)

    def split(self, color: int, key: int) -> Communicator:
        """A group of the ranks of one color, with an NCCL communicator of its own."""
        return type(self)(self.inner.split(color, key))

    def close(self) -> None:
        """Release the NCCL communicator; after an error give up its calls, which would wait for ever."""
        broken = self.ranks_group is not None and self.ranks_group.broken
        (self._engine.abort if broken else self._engine.destroy)()

    def _reduce(self, name: str, call: Callable[..., None], buffer: Any, out: Any, op: str) -> Work:
        """Queue a reduction, of a wider dtype where NCCL lacks the buffer's."""
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
        """Run a function that queues a call in the present stream; there is none for buffers without elements."""
        if not buffers[0].size:
            return self.inner.barrier()
        self._backend.issued(f"nccl {name}", function)(*buffers)
        gpu = self._backend.gpu
        with gpu.driver.using(gpu.ordinal):
            return Queued(gpu.driver, gpu.stream())


def _library() -> Any:
    """CuPy's module for NCCL."""
    with warnings.catch_warnings():  # CuPy warns if there is no library
        warnings.simplefilter("ignore")
        nccl = require("cupy.cuda.nccl", extra="cuda", purpose="the communicator nccl")
    if not nccl.available:
        raise ImportError(
            "nccl: CuPy finds no NCCL library; install it with `python -m pip install nvidia-nccl-cu13` "
            "(nvidia-nccl-cu12 for CUDA 12), or exchange tensors through the host by 'mpi'"
        )
    return nccl
