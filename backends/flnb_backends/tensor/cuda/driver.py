"""The part of the CUDA driver API that flnb uses: one binding for NVIDIA's library and for the emulated device.

Addresses, streams, events, modules and kernels are the API's own handles, as ints. Other libraries that use the
device's primary context, such as CuPy, accept these handles. Source: "CUDA Driver API", NVIDIA.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import contextmanager
from ctypes import byref, c_float, c_size_t, c_void_p
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry import device_words

from flnb.dispatch import devices
from flnb_backends.tensor.cuda.api import DriverError
from flnb_backends.tensor.cuda.capture import Capture
from flnb_backends.tensor.cuda.compiler import compile_kernels
from flnb_backends.tensor.cuda.occupancy import Needs, needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Driver", "DriverError", "Memory", "default_driver", "use_driver"]

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
NON_BLOCKING, WITHOUT_TIME = 1, 2


def default_driver() -> Driver:
    """Return the driver API of this process: that of the machine's GPUs, or the one set by `use_driver`.

    Raises:
        RuntimeError: there is no NVIDIA driver, or it finds no device.
    """
    if not _default:
        try:
            _default.append(Driver())
        except (OSError, DriverError) as error:
            lacks = (
                "there is no NVIDIA driver" if isinstance(error, OSError) else "the NVIDIA driver finds no usable GPU"
            )
            raise RuntimeError(
                f"cuda: {lacks} ({error}); without a GPU, flnb.testing.cuda.emulate() makes a slow emulated "
                "device for tests"
            ) from error
    return _default[0]


def use_driver(driver: Driver) -> None:
    """Set the driver API of this process, for example that of the emulated device."""
    _default[:] = [driver]


_default: list[Driver] = []


class Memory(NamedTuple):
    """The available and the total memory of a device, in bytes."""

    available: int
    total: int


class Driver(Capture):
    """The driver API of the machine's GPUs, or of another library with the same functions.

    Every method raises `DriverError` if the API reports an error; an error of a kernel is reported by a later call.
    Sizes are in bytes; stream 0 is the legacy default stream.

    Attributes:
        emulated: None for GPUs; for emulated devices the order in which they run work, and its seed.
        current_stream: returns this thread's current stream on a device: that of CuPy if CuPy is in use, else 0.

    Args:
        path: the library, by default the GPU driver's.

    Raises:
        OSError: the library cannot be loaded, for example because no NVIDIA driver is installed.
        DriverError: the driver finds no usable device.
    """

    emulated: tuple[str, int] | None = None

    def __init__(self, path: str = LIBRARY) -> None:
        super().__init__(path)
        self._contexts: dict[int, int] = {}
        self._names: dict[int, str] = {}  # of kernels
        self._needs: dict[tuple[int, int, int], Needs] = {}  # of launches: by kernel, threads and shared memory
        self.current_stream: Callable[[int], int] = lambda _: 0
        self._pinned: dict[int, int] = {}  # bytes by address

    def _wait(self, name: str, *arguments: Any, **about: int) -> None:
        """Call the API's function ``name``, which blocks the host, and emit a wait event with the fields ``about``."""
        t0 = clock()
        self._run(name, *arguments)
        devices.host_waited(self, t0, **about)

    # devices

    def build(self, text: str, device: int = 0) -> bytes:
        """Compile CUDA C for a device; returns an image for `load`."""
        return compile_kernels(text, "sm_{}{}".format(*self.capability(device))).image

    def capability(self, device: int = 0) -> tuple[int, int]:
        """Return a device's compute capability, such as (9, 0)."""
        return self.attribute(75, device), self.attribute(76, device)

    def capacity(self, device: int = 0) -> int:
        """Return the bytes of a device's memory, without creating a context on it."""
        return int(self._get("cuDeviceTotalMem_v2", device))

    def version(self) -> int:
        """Return the newest CUDA version that the driver supports: 13010 for 13.1."""
        return int(self._get("cuDriverGetVersion"))

    def devices(self) -> int:
        """Return the number of devices."""
        return int(self._get("cuDeviceGetCount"))

    def name(self, device: int = 0) -> str:
        """Return a device's name."""
        text = ctypes.create_string_buffer(256)
        self._run("cuDeviceGetName", text, len(text), device)
        return text.value.decode()

    def attribute(self, number: int, device: int = 0) -> int:
        """Return an attribute of a device by its number in ``CUdevice_attribute``."""
        return int(self._get("cuDeviceGetAttribute", number, device))

    def use(self, device: int = 0) -> None:
        """Make a device the current device of this thread, by its primary context, which other libraries also use."""
        if device not in self._contexts:
            self._contexts[device] = self._get("cuDevicePrimaryCtxRetain", device)
        self._run("cuCtxSetCurrent", self._contexts[device])

    @contextmanager
    def using(self, device: int) -> Iterator[None]:
        """Make a device the current device of this thread inside a ``with`` block."""
        before = self._get("cuCtxGetCurrent")
        self.use(device)
        try:
            yield
        finally:
            self._run("cuCtxSetCurrent", before)

    def current(self) -> int:
        """Return the number of this thread's current device, 0 if there is none."""
        context = self._get("cuCtxGetCurrent")
        return next((device for device, each in self._contexts.items() if each == context), 0)

    def synchronize(self) -> None:
        """Wait until all work on the current device is done."""
        self._wait("cuCtxSynchronize")

    # memory

    def tell_unused(self, address: int, nbytes: int) -> None:
        """Inform an emulated device that a range of memory is reserved but has no blocks yet. Does nothing on a GPU."""

    def tell_free(self, address: int, nbytes: int, streams: Sequence[int]) -> None:
        """Inform an emulated device that a block, which ``streams`` have used, was freed. Does nothing on a GPU."""

    def tell_used(self, address: int, nbytes: int, stream: int) -> None:
        """Inform an emulated device of a new block, which later work of ``stream`` may use. Does nothing on a GPU."""

    def memory(self) -> Memory:
        """Return the available and the total memory of the current device."""
        available, total = c_size_t(), c_size_t()
        self._run("cuMemGetInfo_v2", byref(available), byref(total))
        return Memory(available.value, total.value)

    def allocate(self, nbytes: int) -> int:
        """Allocate memory on the current device; returns its address."""
        return int(self._get("cuMemAlloc_v2", nbytes))

    def free(self, address: int) -> None:
        """Free device memory, after waiting for all work on the device."""
        self._wait("cuMemFree_v2", address)

    def allocate_host(self, nbytes: int) -> int:
        """Allocate pinned (page-locked) host memory, which allows asynchronous copies; returns its address."""
        address = int(self._get("cuMemAllocHost_v2", nbytes))
        self._pinned[address] = nbytes
        return address

    def free_host(self, address: int) -> None:
        """Free pinned host memory."""
        self._pinned.pop(address, None)
        self._run("cuMemFreeHost", address)

    def upload(self, to: int, source: int, nbytes: int, stream: int = 0) -> None:
        """Copy ``nbytes`` bytes from the host address ``source`` to the device address ``to``, in a stream.

        If the source is pinned, it must not change until the copy has run.
        """
        self._copy(device_words.TO_DEVICE, "cuMemcpyHtoDAsync_v2", to, source, nbytes, stream)

    def download(self, to: int, source: int, nbytes: int, stream: int = 0) -> None:
        """Copy ``nbytes`` bytes from the device address ``source`` to the host address ``to``, in a stream.

        Blocks the host unless the target is pinned.
        """
        self._copy(device_words.TO_HOST, "cuMemcpyDtoHAsync_v2", to, source, nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int = 0) -> None:
        """Copy ``nbytes`` bytes from ``source`` to ``to``, two addresses on one device, in a stream."""
        self._copy(device_words.ON_DEVICE, "cuMemcpyDtoDAsync_v2", to, source, nbytes, stream)

    def copy_between(self, to: int, device: int, source: int, of: int, nbytes: int, stream: int = 0) -> None:
        """Copy from the address ``source`` on the device ``of`` to the address ``to`` on ``device``.

        `use` must have been called for both devices.
        """
        task = devices.begin(self, stream)
        self._run("cuMemcpyPeerAsync", to, self._contexts[device], source, self._contexts[of], nbytes, stream)
        if task is not None:
            task.copied(device_words.BETWEEN, nbytes, addresses=(to, source))

    def _copy(self, route: int, call: str, to: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy by the API's function ``call``, and emit an event.

        ``route`` says between which memories data is copied: one of the constants in `device_words`, such as
        `TO_DEVICE`.
        """
        task = devices.begin(self, stream)
        self._run(call, to, source, nbytes, stream)
        if task is not None:
            host = source if route == device_words.TO_DEVICE else to
            pinned = any(begin <= host < begin + size for begin, size in self._pinned.items())
            task.copied(route, nbytes, pinned, (to, source))

    def fill(self, to: int, byte: int, nbytes: int, stream: int = 0) -> None:
        """Set ``nbytes`` bytes of device memory to the value ``byte``."""
        task = devices.begin(self, stream)
        self._run("cuMemsetD8Async", to, byte, nbytes, stream)
        if task is not None:
            task.launched("fill", addresses=(to,))

    # streams and events

    def stream(self) -> int:
        """Create a non-blocking stream, which does not synchronize with the legacy default stream, 0."""
        return int(self._get("cuStreamCreate", NON_BLOCKING))

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream; work already queued in it still runs."""
        self._run("cuStreamDestroy_v2", stream)

    def wait(self, stream: int) -> None:
        """Wait until all work queued in a stream is done."""
        self._wait("cuStreamSynchronize", stream, stream=stream)

    def ready(self, stream: int) -> bool:
        """Return whether all work queued in a stream is done, without waiting."""
        return self._finished("cuStreamQuery", stream)

    def event(self, timed: bool = False) -> int:
        """Create an event; `seconds` takes only events that were created with ``timed``."""
        return int(self._get("cuEventCreate", 0 if timed else WITHOUT_TIME))

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        self._run("cuEventDestroy_v2", event)

    def record(self, event: int, stream: int = 0) -> None:
        """Record an event in a stream; the event happens when all work queued in the stream before it has run."""
        self._run("cuEventRecord", event, stream)
        devices.records(self, event, stream)

    def queue_event(self, event: int, stream: int = 0) -> None:
        """Record a CUDA event to time work for telemetry; errors are ignored, and those that last are found later."""
        self.try_call("cuEventRecord", event, stream)

    def wait_event(self, stream: int, event: int) -> None:
        """Make work that is queued in a stream from now on wait for an event; does not block the host."""
        self._run("cuStreamWaitEvent", stream, event, 0)
        devices.awaits(self, stream, event)

    def wait_for_stream(self, stream: int, other: int) -> None:
        """Make later work of ``stream`` wait for all work queued in ``other`` so far; does not block the host."""
        event = self.event()
        self.record(event, other)
        self.wait_event(stream, event)
        self.destroy_event(event)  # allowed: the API releases it once it has happened

    def happened(self, event: int) -> bool:
        """Return whether an event has happened, without waiting."""
        return self._finished("cuEventQuery", event)

    def await_event(self, event: int) -> None:
        """Wait until an event has happened."""
        self._wait("cuEventSynchronize", event, event=event)

    def seconds(self, begin: int, end: int) -> float:
        """Return the seconds between two timed events that have happened, to a precision of 0.5 us."""
        return float(self._get("cuEventElapsedTime_v2", begin, end)) / 1e3

    def seconds_if_over(self, begin: int, end: int) -> float | None:
        """Return the seconds between two timed events; None, without waiting or raising, if one has not happened."""
        found = c_float()
        failed = self.try_call("cuEventElapsedTime_v2", byref(found), begin, end)
        return None if failed else found.value / 1e3

    def counted(self, kernel: str) -> tuple[int, int, int, int]:
        """Return a kernel's memory traffic, the fields of `flnb.testing.cuda.Traffic`; all fields are 0 on a GPU."""
        return 0, 0, 0, 0

    # kernels

    def load(self, image: bytes) -> int:
        """Load compiled kernels (an image) on the current device; returns the module, for `kernel`."""
        return int(self._get("cuModuleLoadData", image))

    def kernel(self, module: int, name: str) -> int:
        """Look up a kernel of a module by its name."""
        kernel = int(self._get("cuModuleGetFunction", module, name.encode()))
        self._names[kernel] = name
        return kernel

    def launch(
        self, kernel: int, blocks: Sequence[int], threads: Sequence[int], arguments: Sequence[Any], stream: int = 0,
        shared: int = 0,
    ) -> None:  # fmt: skip
        """Launch a kernel; its arguments are copied before the call returns.

        Args:
            kernel: returned by the method `kernel`.
            blocks: the extents of the grid in blocks, one to three.
            threads: the extents of a block in threads, one to three.
            arguments: the kernel's arguments: ints for addresses and 64-bit parameters, for others NumPy scalars of the
                parameter's type, such as ``np.float32(2)``. The API cannot check the types.
            stream: the stream in which the kernel runs.
            shared: bytes of dynamic shared memory of each block.

        Raises:
            TypeError: an argument is of another type, such as a Python float, whose C type would be ambiguous.
        """
        held = [_parameter(argument) for argument in arguments]
        values = (c_void_p * len(held))(*[each.ctypes.data for each in held])
        sizes = [(*extent, 1, 1)[:3] for extent in (tuple(blocks), tuple(threads))]
        task = devices.begin(self, stream)
        self._run("cuLaunchKernel", kernel, *sizes[0], *sizes[1], shared, stream, values, None)
        if task is not None:
            key = kernel, sizes[1][0] * sizes[1][1] * sizes[1][2], shared
            known = self._needs.get(key) or self._needs.setdefault(key, needs(self, *key))
            task.launched(self._names.get(kernel, "kernel"), blocks, threads, shared, arguments, known)


def _parameter(value: Any) -> np.ndarray[Any, Any]:
    """Return a kernel's argument as an array; the launch reads the argument from the array's address."""
    if isinstance(value, int) and not isinstance(value, bool):
        return np.array(value, np.uint64)
    if isinstance(value, np.generic):
        return np.asarray(value)
    raise TypeError(
        f"launch: got {type(value).__name__} {value!r}; give NumPy scalars such as np.float32({value!r}), whose dtype "
        "is the parameter's type, and ints for addresses"
    )
