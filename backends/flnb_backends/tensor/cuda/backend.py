"""The cuda backend: CuPy's kernels and flnb's own on a CUDA device, over the active memory manager's blocks."""

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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from flnb.interface.memory import MemoryManager
    from flnb.tensor import Tensor
    from flnb_backends.tensor.cuda.base import Buffer
    from flnb_backends.tensor.cuda.cudnn import Cudnn
    from flnb_backends.tensor.cuda.launcher import Launcher

__all__ = ["CudaBackend"]

cp = require("cupy", extra="cuda", purpose="the cuda backend")


class CudaBackend(
    ComplexNumbers, RandomNumbers, Pooling, Convolution, Softmax, Normalization, Activations,
    OptimizerSteps, Elementwise, LinearAlgebra, TensorBackend,
):  # fmt: skip
    """Computes on a CUDA device: by CuPy, and by kernels of flnb's own for rows, windows, sorting and random numbers.

    Buffers are `cupy.ndarray`, views of blocks of the active memory manager; so is CuPy's temporary memory. Work runs
    in CuPy's current stream. Without a GPU, `flnb.testing.cuda.emulate` makes a device for its numbers and order.

    Args:
        ordinal: which device; ``"cuda:1"`` is the second.
        tf32: whether products of float32 may round their inputs to 10 bits, for the tensor cores of newer GPUs.
        cudnn: whether cuDNN computes convolutions, where it and its frontend are installed; else they are products.
    """

    name: ClassVar[str] = "cuda"
    buffer: ClassVar[str] = "cuda"
    location: str = "cuda"
    plain_buffers: ClassVar[bool] = True
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
        """Launches flnb's own kernels on this device."""
        return self.gpu.launcher

    @cached_property
    def by_cudnn(self) -> Cudnn | None:  # type: ignore[override]
        """CuDNN, if it is installed and wanted."""
        return cudnn_of(self.gpu, self.tf32) if self.cudnn else None

    def own_manager(self) -> MemoryManager:
        """Return the device's own manager, which all backends on it share."""
        return self.gpu.manager

    def method(self, name: str) -> Callable[..., Any] | None:
        """Return the method for an op, which runs on this device and notes the stream that uses its buffers."""
        function = getattr(self, name, None)
        return None if function is None else self.issued(name, function)

    def issued(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function on buffers that queues work, as one that does so on this device and is recorded."""
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
        """Wait until the device has done all its work."""
        with self.gpu.driver.using(self.gpu.ordinal):
            self.gpu.driver.synchronize()

    def supports(self, dtype: Any) -> bool:
        """Whether CuPy has this dtype."""
        return np.dtype(dtype).char in "?bhilqBHILQefdFD"

    # Streams

    @with_block
    def stream(self) -> Iterator[int]:
        """Run what is inside the block in a stream of its own, which waits for the present one; yields its handle.

        The other way round the program orders streams itself: `wait_for`. Streams are used again, never destroyed:
        free memory remembers those that have used it.
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
        """Let the present stream's further work wait for all that another has to do now; the program goes on."""
        with self.gpu.driver.using(self.gpu.ordinal):
            self.gpu.driver.wait_for_stream(self.gpu.stream(), stream)

    def prefetch(self, batches: Iterable[Sequence[Any]]) -> Iterator[list[Tensor]]:
        """Upload batches in a stream of their own, each while the program works on the one before it.

        Args:
            batches: sequences of arrays or nested lists of numbers.

        Yields:
            For each batch a list of tensors on this device, for which the present stream waits.
        """

        def upload(batch: Sequence[Any]) -> tuple[int, list[Tensor]]:
            with self.stream() as stream:
                return stream, [asarray(values) for values in batch]

        ahead = None
        for batch in batches:
            if ahead is not None:
                self.wait_for(ahead[0])  # before the next upload is queued, which it would wait for, too
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
        """Return a C-contiguous buffer whose elements are not set."""
        return cp.empty(shape, dtype)

    def contiguous(self, x: Buffer) -> Buffer:
        """Return x, or a C-contiguous copy if it is not so."""
        return x if x.flags.c_contiguous else cp.ascontiguousarray(x).reshape(x.shape)

    def from_numpy(self, array: Any, out: Buffer | None = None) -> Buffer:
        """Copy an array of the host, or of a device, to a buffer."""
        before = self.gpu.enter()
        try:
            return self._uploaded(array, out)
        finally:
            self.gpu.leave(before)

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
        """Copy an array of another device; each of the two devices' streams waits for what the other has to do."""
        there = gpu_at(array.data.device_id)
        before = there.enter()
        source, event, theirs = cp.ascontiguousarray(array), there.driver.event(), there.stream()
        there.driver.record(event, theirs)
        there.leave(before)
        y = self.written(out, array.shape, array.dtype)
        here, stream = self.gpu, self.gpu.stream()
        here.driver.wait_event(stream, event)
        if y.nbytes:
            here.driver.copy_between(y.data.ptr, here.ordinal, source.data.ptr, there.ordinal, y.nbytes, stream)
        copied = here.driver.event()  # of this device: an event is recorded in streams of its own alone
        here.driver.record(copied, stream)
        with there.driver.using(there.ordinal):  # the source may be freed, and used again, only after the copy
            there.driver.wait_event(theirs, copied)
        for each in (event, copied):
            here.driver.destroy_event(each)
        return self.finished(y, out)

    def to_numpy(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        """Copy a buffer to an array of the host, which waits for what the stream has to do."""
        before = self.gpu.enter()
        try:
            values = np.empty(buffer.shape, buffer.dtype)
            whole = self.contiguous(buffer)  # stays allocated until it was read: other threads allocate, too
            if values.nbytes:
                self.gpu.driver.download(values.ctypes.data, whole.data.ptr, values.nbytes, self.gpu.stream())
            return values
        finally:
            self.gpu.leave(before)

    def staged(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        """Copy a buffer to an array of the host through pinned memory, as `from_numpy` does the other way."""
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
    """Emit that CuPy launched kernels for an op, as one task; nothing where the result is a view of an argument.

    What CuPy launches in an op that also launches kernels of flnb's own is not seen.
    """
    given = [x for x in arguments if isinstance(x, cp.ndarray)]
    made = [x for x in (result if isinstance(result, (tuple, list)) else (result,)) if isinstance(x, cp.ndarray)]
    written = [x for x in made if all(x.data.mem is not y.data.mem or x is y for y in given)]
    addresses = [x.data.ptr for x in (*given, *made)]
    if made and not written:
        task.drop()
    elif name == "copy" and task.alone and given[0].dtype == made[0].dtype and given[0].flags.c_contiguous:
        task.copied(device_words.ON_DEVICE, made[0].nbytes, addresses=addresses)
    else:
        task.launched_by(f"cupy {name}", addresses)


def note_uses(stream: int, arguments: tuple[Any, ...]) -> None:
    """Note in the blocks of buffers, also of those in a tuple of results, that a stream uses them."""
    for x in arguments:
        if isinstance(x, cp.ndarray):
            block = block_of(x)
            if block is not None and stream not in block.streams:
                with _noting:  # another thread may note another stream
                    block.streams += (stream,)
        elif isinstance(x, (tuple, list)):
            note_uses(stream, tuple(x))
