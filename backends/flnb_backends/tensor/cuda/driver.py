"""The documented CUDA driver API, as far as flnb uses it: one binding for the GPU's library and the emulated device.

Addresses, streams, events, modules and kernels are the API's own handles, as ints: libraries that share the device's
primary context, such as CuPy, take them as they are.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_void_p
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry import device_words

from flnb.dispatch import devices
from flnb_backends.tensor.cuda.api import CAPTURE, LASTING, SIGNATURES, DriverError
from flnb_backends.tensor.cuda.capture import Capture
from flnb_backends.tensor.cuda.compiler import compile_kernels
from flnb_backends.tensor.cuda.occupancy import Needs, needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Driver", "DriverError", "Memory", "default_driver", "use_driver"]

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
NOT_READY = 600
NON_BLOCKING, WITHOUT_TIME = 1, 2


def default_driver() -> Driver:
    """The driver API of this process: that of the machine's GPUs, or what was put into its place.

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
                f"cuda: {lacks} ({error}); without a GPU, flnb.testing.cuda.emulate() makes a device of host "
                "memory, for its numbers and order, not for its speed"
            ) from error
    return _default[0]


def use_driver(driver: Driver) -> None:
    """Make another library the driver API of this process from now on."""
    _default[:] = [driver]


_default: list[Driver] = []


class Memory(NamedTuple):
    """Bytes of a device's memory."""

    available: int
    total: int


class Driver(Capture):
    """The driver API of a machine's devices, or of another library with the same functions.

    Every method raises `DriverError` where the API reports an error; that of a kernel is reported by a later call.

    Attributes:
        emulated: None for GPUs; for emulated devices how they order their work, and by which seed.
        recent: names of the last ops that were launched.
        failed: whether a kernel's error was reported, after which every call fails.
        current_stream: returns the stream in which this thread's work on a device runs: the default one, or CuPy's.
        emulated: None for GPUs; for emulated devices how they order their work, and by which seed.

    Args:
        path: the library, by default the GPU driver's.

    Raises:
        OSError: there is no such library: no NVIDIA driver is installed.
    """

    emulated: tuple[str, int] | None = None

    def __init__(self, path: str = LIBRARY) -> None:
        self.path = path
        library = ctypes.CDLL(path)
        self._calls: dict[str, Any] = {}
        self.capturing = set()
        for name, types in (SIGNATURES | CAPTURE).items():
            call = getattr(library, name, None)
            if call is None and name in CAPTURE:
                continue
            if call is None:  # elapsed time has no second version before CUDA 12.8
                call = getattr(library, name.removesuffix("_v2"))
            call.argtypes, call.restype = types, c_int
            self._calls[name] = call
        self._run("cuInit", 0)
        self._contexts: dict[int, int] = {}
        self._names: dict[int, str] = {}  # of kernels
        self._needs: dict[tuple[int, int, int], Needs] = {}  # of launches: by kernel, threads and shared memory
        self.recent: deque[str] = deque(maxlen=8)
        self.failed = False
        self.current_stream: Callable[[int], int] = lambda _: 0
        self._pinned: dict[int, int] = {}  # bytes by address

    def blame(self, error: str) -> str:
        """Return which ops may have caused an error by which a device fails for good, at its first report."""
        if error not in LASTING:
            return ""
        if self.failed:
            return "; it failed before: every further call does, until the process ends"
        self.failed = True
        newest = ", ".join(reversed(self.recent)) or "none"
        return f"; {self.culprit() or 'a kernel that was launched before'}; the last ops, the newest first: {newest}"

    def culprit(self) -> str:
        """Return which kernel has failed, if that is known: a GPU does not say it."""
        return ""

    def _check(self, name: str, error: int) -> None:
        if error:
            said = [c_char_p(), c_char_p()]
            for call, found in zip(("cuGetErrorName", "cuGetErrorString"), said, strict=True):
                self._calls[call](error, byref(found))
            words = [(each.value or f"error {error}".encode()).decode() for each in said]
            raise DriverError(name, words[0], f"{words[1]}{self.blame(words[0])}")

    def _run(self, name: str, *arguments: Any) -> None:
        self._check(name, self._calls[name](*arguments))

    def try_call(self, name: str, *arguments: Any) -> int:
        """Call a function of the API; returns its status, 0 for success, and raises nothing."""
        return int(self._calls[name](*arguments))

    def _wait(self, name: str, *arguments: Any, **about: int) -> None:
        """Run a call for which the host waits, and emit that; ``about`` what it waits for."""
        t0 = clock()
        self._run(name, *arguments)
        devices.host_waited(self, t0, **about)

    def _get(self, name: str, *arguments: Any) -> Any:
        """Run a call whose first argument is a pointer to its result; returns that result."""
        found = self._calls[name].argtypes[0]._type_()
        self._run(name, byref(found), *arguments)
        return found.value

    # devices

    def build(self, text: str, device: int = 0) -> bytes:
        """Compile kernels for a device; returns an image for `load`."""
        return compile_kernels(text, "sm_{}{}".format(*self.capability(device))).image

    def capability(self, device: int = 0) -> tuple[int, int]:
        """A device's compute capability, such as (9, 0)."""
        return self.attribute(75, device), self.attribute(76, device)

    def capacity(self, device: int = 0) -> int:
        """The bytes of a device's memory; needs no context on it."""
        return int(self._get("cuDeviceTotalMem_v2", device))

    def version(self) -> int:
        """The newest CUDA version that the driver knows, 1000 times the major and 10 times the minor number."""
        return int(self._get("cuDriverGetVersion"))

    def devices(self) -> int:
        """The number of devices."""
        return int(self._get("cuDeviceGetCount"))

    def name(self, device: int = 0) -> str:
        """A device's name."""
        text = ctypes.create_string_buffer(256)
        self._run("cuDeviceGetName", text, len(text), device)
        return text.value.decode()

    def attribute(self, number: int, device: int = 0) -> int:
        """A property of a device by its number in ``CUdevice_attribute``."""
        return int(self._get("cuDeviceGetAttribute", number, device))

    def use(self, device: int = 0) -> None:
        """Make a device the one of this thread, by its primary context, which other libraries share."""
        if device not in self._contexts:
            self._contexts[device] = self._get("cuDevicePrimaryCtxRetain", device)
        self._run("cuCtxSetCurrent", self._contexts[device])

    @contextmanager
    def using(self, device: int) -> Iterator[None]:
        """Make a device the one of this thread inside a ``with`` block."""
        before = self._get("cuCtxGetCurrent")
        self.use(device)
        try:
            yield
        finally:
            self._run("cuCtxSetCurrent", before)

    def current(self) -> int:
        """The device of this thread, 0 if it has none."""
        context = self._get("cuCtxGetCurrent")
        return next((device for device, each in self._contexts.items() if each == context), 0)

    def synchronize(self) -> None:
        """Wait for all work of this thread's device."""
        self._wait("cuCtxSynchronize")

    # memory

    def tell_unused(self, address: int, nbytes: int) -> None:
        """Note that new memory is a manager's, and of no block yet. Does nothing on a GPU."""

    def tell_free(self, address: int, nbytes: int, streams: Sequence[int]) -> None:
        """Note that a manager has freed a block which these streams have used. Does nothing on a GPU."""

    def tell_used(self, address: int, nbytes: int, stream: int) -> None:
        """Note that memory is a block of a manager's from here on in a stream's order. Does nothing on a GPU."""

    def memory(self) -> Memory:
        """The memory of this thread's device."""
        available, total = c_size_t(), c_size_t()
        self._run("cuMemGetInfo_v2", byref(available), byref(total))
        return Memory(available.value, total.value)

    def allocate(self, nbytes: int) -> int:
        """Allocate memory on this thread's device; returns its address."""
        return int(self._get("cuMemAlloc_v2", nbytes))

    def free(self, address: int) -> None:
        """Free memory of a device, which waits for all its work."""
        self._wait("cuMemFree_v2", address)

    def allocate_host(self, nbytes: int) -> int:
        """Allocate pinned memory of the host, which copies read and write while the program goes on."""
        address = int(self._get("cuMemAllocHost_v2", nbytes))
        self._pinned[address] = nbytes
        return address

    def free_host(self, address: int) -> None:
        """Free pinned memory."""
        self._pinned.pop(address, None)
        self._run("cuMemFreeHost", address)

    def upload(self, to: int, source: int, nbytes: int, stream: int = 0) -> None:
        """Copy from the host's memory to the device's; pinned memory must stay as it is until the copy has run."""
        self._copy(device_words.TO_DEVICE, "cuMemcpyHtoDAsync_v2", to, source, nbytes, stream)

    def download(self, to: int, source: int, nbytes: int, stream: int = 0) -> None:
        """Copy from the device's memory to the host's; where that is pinned, the call does not wait."""
        self._copy(device_words.TO_HOST, "cuMemcpyDtoHAsync_v2", to, source, nbytes, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int = 0) -> None:
        """Copy within a device's memory."""
        self._copy(device_words.ON_DEVICE, "cuMemcpyDtoDAsync_v2", to, source, nbytes, stream)

    def copy_between(self, to: int, device: int, source: int, of: int, nbytes: int, stream: int = 0) -> None:
        """Copy from the memory of the device ``of`` to that of ``device``; both have been in `use`."""
        task = devices.begin(self, stream)
        self._run("cuMemcpyPeerAsync", to, self._contexts[device], source, self._contexts[of], nbytes, stream)
        if task is not None:
            task.copied(device_words.BETWEEN, nbytes, addresses=(to, source))

    def _copy(self, route: int, call: str, to: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy and emit its event."""
        task = devices.begin(self, stream)
        self._run(call, to, source, nbytes, stream)
        if task is not None:
            host = source if route == device_words.TO_DEVICE else to
            pinned = any(begin <= host < begin + size for begin, size in self._pinned.items())
            task.copied(route, nbytes, pinned, (to, source))

    def fill(self, to: int, byte: int, nbytes: int, stream: int = 0) -> None:
        """Set bytes of the device's memory."""
        task = devices.begin(self, stream)
        self._run("cuMemsetD8Async", to, byte, nbytes, stream)
        if task is not None:
            task.launched("fill", addresses=(to,))

    # streams and events

    def stream(self) -> int:
        """Make a stream that does not wait for the legacy default stream, number 0."""
        return int(self._get("cuStreamCreate", NON_BLOCKING))

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream; its queued work still runs."""
        self._run("cuStreamDestroy_v2", stream)

    def wait(self, stream: int) -> None:
        """Wait until a stream has done all it has to do."""
        self._wait("cuStreamSynchronize", stream, stream=stream)

    def ready(self, stream: int) -> bool:
        """Whether a stream has done all it has to do; returns at once."""
        return self._finished("cuStreamQuery", stream)

    def event(self, timed: bool = False) -> int:
        """Make an event."""
        return int(self._get("cuEventCreate", 0 if timed else WITHOUT_TIME))

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        self._run("cuEventDestroy_v2", event)

    def record(self, event: int, stream: int = 0) -> None:
        """Queue an event in a stream: it happens when all work queued before it has run."""
        self._run("cuEventRecord", event, stream)
        devices.records(self, event, stream)

    def queue_event(self, event: int, stream: int = 0) -> None:
        """Queue an event of telemetry's own: no error, no event of telemetry; a later call reports what went wrong."""
        self.try_call("cuEventRecord", event, stream)

    def wait_event(self, stream: int, event: int) -> None:
        """Let a stream's further work wait for an event; the program goes on."""
        self._run("cuStreamWaitEvent", stream, event, 0)
        devices.awaits(self, stream, event)

    def wait_for_stream(self, stream: int, other: int) -> None:
        """Let a stream's further work wait for all that another one has to do now; the program goes on."""
        event = self.event()
        self.record(event, other)
        self.wait_event(stream, event)
        self.destroy_event(event)  # as documented, once it has happened

    def happened(self, event: int) -> bool:
        """Whether an event has happened; returns at once."""
        return self._finished("cuEventQuery", event)

    def await_event(self, event: int) -> None:
        """Wait until an event has happened."""
        self._wait("cuEventSynchronize", event, event=event)

    def seconds(self, begin: int, end: int) -> float:
        """The time between two timed events that have happened, in seconds; the API's precision is 0.5 us."""
        return float(self._get("cuEventElapsedTime_v2", begin, end)) / 1e3

    def seconds_if_over(self, begin: int, end: int) -> float | None:
        """The seconds between two timed events, None if they have not happened or cannot be read; never waits."""
        found = c_float()
        failed = self.try_call("cuEventElapsedTime_v2", byref(found), begin, end)
        return None if failed else found.value / 1e3

    def counted(self, kernel: str) -> tuple[int, int, int, int]:
        """What a kernel's warps have asked of memory; an emulated device counts it, a GPU does not."""
        return 0, 0, 0, 0

    def _finished(self, name: str, handle: int) -> bool:
        error = self._calls[name](handle)
        if error != NOT_READY:
            self._check(name, error)
        return bool(error == 0)

    # kernels

    def load(self, image: bytes) -> int:
        """Load a module, a compiled image with kernels."""
        return int(self._get("cuModuleLoadData", image))

    def kernel(self, module: int, name: str) -> int:
        """Look up a kernel of a module."""
        kernel = int(self._get("cuModuleGetFunction", module, name.encode()))
        self._names[kernel] = name
        return kernel

    def launch(
        self, kernel: int, blocks: Sequence[int], threads: Sequence[int], arguments: Sequence[Any], stream: int = 0,
        shared: int = 0,
    ) -> None:  # fmt: skip
        """Launch a kernel; its arguments are read now.

        Args:
            kernel: from `kernel`.
            blocks: up to three numbers of blocks, and ``threads`` those of threads in each.
            arguments: NumPy scalars (``np.float32(2)``), or ints: addresses. The API cannot check their types, which
                must be those of the kernel's parameters.
            stream: in which the kernel runs.
            shared: bytes of dynamically shared memory of each block.

        Raises:
            TypeError: an argument is a Python float, whose size does not tell the parameter's.
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
    """A kernel's argument in memory."""
    if isinstance(value, int) and not isinstance(value, bool):
        return np.array(value, np.uint64)
    if isinstance(value, np.generic):
        return np.asarray(value)
    raise TypeError(
        f"launch: got {type(value).__name__} {value!r}; give NumPy scalars such as np.float32({value!r}), whose dtype "
        "is the parameter's type, and ints for addresses"
    )
