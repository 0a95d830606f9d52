"""The tensor backend ``"cuda"``: ops on a CUDA device by CuPy, NVIDIA's libraries and flnb's own kernels."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property, wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flnb_telemetry import bus, device_words
from flnb_telemetry.extras import require
from flnb_telemetry.withblock import with_block

from flnb.dispatch import devices
from flnb.dispatch.plan import residents
from flnb.interface import TensorBackend
from flnb.ops.creation import asarray
from flnb_backends.tensor.cuda.activations import Activations
from flnb_backends.tensor.cuda.complex import ComplexNumbers
from flnb_backends.tensor.cuda.convolution import Convolution
from flnb_backends.tensor.cuda.cudnn import cudnn_of
from flnb_backends.tensor.cuda.driver import DriverError
from flnb_backends.tensor.cuda.elementwise import Elementwise
from flnb_backends.tensor.cuda.gpu import block_of, gpu_at
from flnb_backends.tensor.cuda.linalg import LinearAlgebra
from flnb_backends.tensor.cuda.normalization import Normalization
from flnb_backends.tensor.cuda.optimizers import OptimizerSteps
from flnb_backends.tensor.cuda.pooling import Pooling
from flnb_backends.tensor.cuda.random import RandomNumbers
from flnb_backends.tensor.cuda.softmax import Softmax
from flnb_backends.tensor.numpy import NumpyBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flnb.interface.memory import MemoryManager
    from flnb.tensor import Tensor
    from flnb_backends.tensor.cuda.base import Buffer
    from flnb_backends.tensor.cuda.cudnn import Cudnn
    from flnb_backends.tensor.cuda.launcher import Launcher

cp = require("cupy", extra="cuda", purpose="the cuda backend")
_numpy = NumpyBackend()


class CudaBackend(
    ComplexNumbers, RandomNumbers, Pooling, Convolution, Softmax, Normalization, Activations,
    OptimizerSteps, Elementwise, LinearAlgebra, TensorBackend,
):  # fmt: skip
    """Tensor backend for CUDA devices: CuPy, cuBLAS, and flnb's own kernels for rows, windows, sorting, random numbers.

    Buffers are `cupy.ndarray` views of blocks of the active memory manager, which also allocates CuPy's temporaries.
    Work runs in CuPy's current stream. Without a GPU, `flnb.testing.cuda.emulate` provides a slow device for tests.

    Args:
        ordinal: the device's number; ``"cuda:1"`` is the second device.
        tf32: whether float32 matrix products and convolutions may use TF32 tensor cores, which round inputs to 10 bits.
        cudnn: whether cuDNN computes convolutions if it and its frontend are installed; else they are matrix products.

    Raises:
        ImportError: CuPy is not installed.
        RuntimeError: there is no NVIDIA driver, or it finds no device.
        ValueError: there is no device of that number.
    """

    name: ClassVar[str] = "cuda"
    buffer: ClassVar[str] = "cuda"
    location: str = "cuda"
    plain_buffers: ClassVar[bool] = True
    programs: ClassVar[bool] = True
    whole_dtypes: ClassVar[str] = "fd"
    own_numbers: ClassVar[bool] = True
    shorthand: ClassVar[str] = "ordinal"

    def __init__(self, ordinal: int | str = 0, tf32: bool | str = False, cudnn: bool | str = True) -> None:
        self.gpu = gpu_at(int(ordinal))
        self.tf32, self.cudnn = (each in (True, "true", "True", "1") for each in (tf32, cudnn))
        self.name = self.buffer = self.location = self.gpu.name  # type: ignore[misc]
        residents.setdefault(self.name, self)

    @property
    def launcher(self) -> Launcher:  # type: ignore[override]
        """Return the launcher of flnb's own kernels on this device."""
        return self.gpu.launcher

    @cached_property
    def by_cudnn(self) -> Cudnn | None:  # type: ignore[override]
        """Return the `Cudnn` of this device; None if cuDNN is not installed or ``cudnn=False`` was given."""
        return cudnn_of(self.gpu, self.tf32) if self.cudnn else None

    def own_manager(self) -> MemoryManager:
        """Return the device's memory manager, which all backends on the device share."""
        return self.gpu.manager

    def method(self, name: str) -> Callable[..., Any] | None:
        """Return the method of the op ``name``, wrapped by `issued`; None if this backend does not have the op."""
        function = getattr(self, name, None)
        return None if function is None else self.issued(name, function)

    def kernels(self) -> Any:
        return self.gpu.kernels

    def queue(self) -> int:
        return self.gpu.stream()

    def uses(self, buffers: Iterable[Buffer]) -> None:
        stream = self.gpu.stream()
        if self.gpu.several_streams:
            note_uses(stream, tuple(buffers))

    def viewer(self, name: str) -> Any:
        return getattr(_numpy, name)

    def issued(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that queues GPU work: the wrapper selects the device and emits a launch event.

        ``name`` is the name of the work in events and errors. If the device reports an error, the wrapper raises a
        `DriverError` with the names of the ops that may have caused the error.
        """
        gpu = self.gpu

        @wraps(function)
        def issue(*arguments: Any, **named: Any) -> Any:
            before = gpu.enter()
            gpu.driver.recent.append(name)
            try:
                stream = gpu.stream()
                if gpu.several_streams:
                    note_uses(stream, (*arguments, *named.values()))
                task = devices.begin(gpu.driver, stream) if bus.lanes is not None else None
                result = function(*arguments, **named)
                if task is not None:
                    report_launch(task, name, (*arguments, *named.values()), result)
                return result
            except cp.cuda.driver.CUDADriverError as error:
                known = str(error).partition(":")[0]
                raise DriverError(name, known, f"{error}{gpu.driver.blame(known)}") from error
            finally:
                gpu.leave(before)

        return issue

    def sync(self) -> None:
        """Wait until all work on the device is done."""
        with self.gpu.driver.using(self.gpu.ordinal):
            self.gpu.driver.synchronize()

    def supports(self, dtype: Any) -> bool:
        """Return whether CuPy has this dtype."""
        return np.dtype(dtype).char in "?bhilqBHILQefdFD"

    # Streams

    @with_block
    def stream(self) -> Iterator[int]:
        """Run a ``with`` block in another stream, and yield the stream's handle (an int).

        The block's stream first waits for the work queued in the current stream.

        The current stream does not wait for the block's stream; call `wait_for` if it must. Streams are reused and
        never destroyed, because the records of free memory refer to the streams that have used it.
        """
        gpu = self.gpu
        before = gpu.enter()
        outer = gpu.stream()
        chosen = None
        try:
            with suppress(IndexError):  # another thread may take the last one
                chosen = gpu.idle_streams.pop()
            chosen = chosen or cp.cuda.Stream(non_blocking=True)
            with chosen:
                gpu.driver.wait_for_stream(chosen.ptr, outer)
                yield chosen.ptr
        finally:
            if chosen is not None:
                gpu.idle_streams.append(chosen)
            gpu.leave(before)

    def wait_for(self, stream: int) -> None:
        """Make later work of the current stream wait for all work queued in ``stream`` so far, without blocking."""
        with self.gpu.driver.using(self.gpu.ordinal):
            self.gpu.driver.wait_for_stream(self.gpu.stream(), stream)

    def prefetch(self, batches: Iterable[Sequence[Any]]) -> Iterator[list[Tensor]]:
        """Upload batches in a separate stream: each batch is uploaded while the program uses the previous batch.

        Args:
            batches: sequences of arrays or nested lists of numbers.

        Yields:
            For each batch, a list of tensors on this device; the current stream waits for their upload.
        """

        def upload(batch: Sequence[Any]) -> tuple[int, list[Tensor]]:
            with self.stream() as stream:
                return stream, [asarray(values) for values in batch]

        ahead = None
        for batch in batches:
            if ahead is not None:
                self.wait_for(ahead[0])  # queued now, lest it also wait for the next upload
            ready, ahead = ahead, upload(batch)
            if ready is not None:
                yield ready[1]
        if ahead is not None:
            self.wait_for(ahead[0])
            yield ahead[1]

    # Buffers

    def empty(self, spec: Any, manager: Any, min_block: int, code: int = 0, category: int = 0) -> tuple[Buffer, int]:
        array = self.gpu.array(manager, spec, code, category)
        block = block_of(array)
        return array, block.id if block is not None else 0

    def new(self, shape: tuple[int, ...], dtype: Any) -> Buffer:
        """Return an uninitialized C-contiguous buffer."""
        return cp.empty(shape, dtype)

    def contiguous(self, x: Buffer) -> Buffer:
        """Return x if it is C-contiguous, else a C-contiguous copy."""
        return x if x.flags.c_contiguous else cp.ascontiguousarray(x).reshape(x.shape)

    def from_numpy(self, array: Any, out: Buffer | None = None) -> Buffer:
        """Copy an array of the host, or of any CUDA device, to ``out`` or a new buffer."""
        before = self.gpu.enter()
        try:
            return self._uploaded(array, out)
        finally:
            self.gpu.leave(before)

    def settled(self, buffer: Buffer) -> Buffer:
        """Wait until a buffer is uploaded, and return the buffer, which a cache may then share among streams."""
        with self.gpu.driver.using(self.gpu.ordinal):
            self.gpu.driver.wait(self.gpu.stream())
        return buffer

    def _uploaded(self, array: Any, out: Buffer | None) -> Buffer:
        if isinstance(array, cp.ndarray):
            return self.copy(array, out) if array.data.device_id == self.gpu.ordinal else self._fetched(array, out)
        values = np.asarray(array)
        values = np.array(values, values.dtype.newbyteorder("=") if out is None else out.dtype, order="C", copy=None)
        y = self.written(out, values.shape, values.dtype)
        if values.nbytes:
            self.gpu.staging.upload(y.data.ptr, values, self.gpu.stream())
        return self.finished(y, out)

    def _fetched(self, array: Buffer, out: Buffer | None) -> Buffer:
        """Copy an array from another device; the current streams of both devices wait for each other by events."""
        there = gpu_at(array.data.device_id)
        with there.driver.using(there.ordinal):
            source, event, theirs = cp.ascontiguousarray(array), there.driver.event(), there.stream()
            note_uses(theirs, (source,))  # which waits for the copy below
            there.driver.record(event, theirs)
        y = self.written(out, array.shape, array.dtype)
        here, stream = self.gpu, self.gpu.stream()
        here.driver.wait_event(stream, event)
        if y.nbytes:
            here.driver.copy_between(y.data.ptr, here.ordinal, source.data.ptr, there.ordinal, y.nbytes, stream)
        copied = here.driver.event()  # of this device: an event can be recorded only in streams of its own device
        here.driver.record(copied, stream)
        with there.driver.using(there.ordinal):  # its memory may be freed and reused only after the copy
            there.driver.wait_event(theirs, copied)
        for each in (event, copied):
            here.driver.destroy_event(each)
        return self.finished(y, out)

    def to_numpy(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        """Copy a buffer to a NumPy array; waits for the current stream."""
        before = self.gpu.enter()
        try:
            values = np.empty(buffer.shape, buffer.dtype)
            whole = self.contiguous(buffer)  # kept until it is read: another thread might reuse its memory
            if values.nbytes:
                self.gpu.driver.download(values.ctypes.data, whole.data.ptr, values.nbytes, self.gpu.stream())
            return values
        finally:
            self.gpu.leave(before)

    def staged(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        """Copy a buffer to a NumPy array through pinned memory, the reverse of the copy by `from_numpy`."""
        with self.gpu.driver.using(self.gpu.ordinal):
            values = np.empty(buffer.shape, buffer.dtype)
            whole = self.contiguous(buffer)
            if values.nbytes:
                self.gpu.staging.download(values, whole.data.ptr, self.gpu.stream())
            return values

    def base_of(self, buffer: Buffer) -> Buffer | None:
        return buffer.base

    def is_contiguous(self, buffer: Buffer) -> bool:
        return bool(buffer.flags.c_contiguous)


_noting = Lock()


def report_launch(task: devices.Task, name: str, arguments: tuple[Any, ...], result: Any) -> None:
    """Emit one launch event for all kernels that CuPy has launched for the op ``name``; none if the result is a view.

    If an op also launches flnb's own kernels, CuPy's launches in it are not recorded. ``task`` was begun before the op;
    ``arguments`` and ``result`` are those of the op's method.
    """
    given = [x for x in arguments if isinstance(x, cp.ndarray)]
    made = [x for x in (result if isinstance(result, (tuple, list)) else (result,)) if isinstance(x, cp.ndarray)]
    outs = {id(x) for x in given}  # a program's values share the memory of its block
    written = [x for x in made if id(x) in outs or all(x.data.mem is not y.data.mem for y in given)]
    addresses = [x.data.ptr for x in (*given, *made)]
    if made and not written:
        task.drop()
    elif name == "copy" and task.alone and given[0].dtype == made[0].dtype and given[0].flags.c_contiguous:
        task.copied(device_words.ON_DEVICE, made[0].nbytes, addresses=addresses)
    else:
        task.launched_by(f"cupy {name}", addresses)


def note_uses(stream: int, arguments: tuple[Any, ...]) -> None:
    """Store in the memory blocks of an op's arguments that a stream uses them; arguments may be nested lists."""
    for x in arguments:
        if isinstance(x, cp.ndarray):
            block = block_of(x)
            if block is not None and stream not in block.streams:
                with _noting:  # another thread may note another stream
                    block.streams += (stream,)
        elif isinstance(x, (tuple, list)):
            note_uses(stream, tuple(x))
