"""The state of one CUDA device that all backends on it share: memory, kernels, streams, staging buffers."""

from __future__ import annotations

import ctypes
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.extras import require

from flnb.dispatch import state
from flnb.dispatch.devices import own_managers
from flnb.dispatch.memory import Owner, owner_of
from flnb.dispatch.memory import allocate as request
from flnb.dispatch.plan import spec_of
from flnb_backends.memory.caching import Caching
from flnb_backends.memory.cuda import CudaDevice, location_of
from flnb_backends.tensor.cuda.driver import Driver, default_driver
from flnb_backends.tensor.cuda.launcher import Launcher
from flnb_backends.tensor.cuda.programs import Kernels

if TYPE_CHECKING:
    from flnb.interface.memory import Block, MemoryManager

BYTE = np.dtype(np.uint8)
LEAST_PIECE = 1 << 16


class Staging:
    """Pinned host buffers through which arrays are copied to a device asynchronously, and back.

    A buffer is reused once its last copy is done.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pieces: list[tuple[int, int, int]] = []  # size, address, event
        self._lock = Lock()

    def upload(self, address: int, values: np.ndarray[Any, Any], stream: int) -> None:
        """Queue a copy of a C-contiguous array to a device address; ``values`` may be changed afterwards."""
        with self._lock:
            size, piece, event = self._take(values.nbytes)
            ctypes.memmove(piece, values.ctypes.data, values.nbytes)
            self._driver.upload(address, piece, values.nbytes, stream)
            self._driver.record(event, stream)
            self._pieces.append((size, piece, event))

    def download(self, values: np.ndarray[Any, Any], address: int, stream: int) -> None:
        """Copy from a device address to a C-contiguous array, after the work queued in a stream; waits for the copy."""
        with self._lock:
            size, piece, event = self._take(values.nbytes)
        self._driver.download(piece, address, values.nbytes, stream)
        self._driver.record(event, stream)
        self._driver.await_event(event)
        ctypes.memmove(values.ctypes.data, piece, values.nbytes)
        with self._lock:
            self._pieces.append((size, piece, event))

    def _take(self, nbytes: int) -> tuple[int, int, int]:
        """Take a free staging buffer from the list, or allocate one; returns size, address and event."""
        for i, (size, _, event) in enumerate(self._pieces):
            if nbytes <= size <= max(LEAST_PIECE, 4 * nbytes) and self._driver.happened(event):
                return self._pieces.pop(i)
        size = max(LEAST_PIECE, 1 << (nbytes - 1).bit_length())
        return size, self._driver.allocate_host(size), self._driver.event()


class Gpu:
    """A CUDA device: its memory, kernels and streams.

    Attributes:
        cupy: the module ``cupy``.
        driver: the CUDA driver API.
        ordinal: the device's number.
        name: the location of the device's tensors, such as ``"cuda:1"``.
        memory: the memory device, from which managers reserve segments.
        manager: the memory manager used unless another one is set for this device.
        launcher: launches flnb's own kernels.
        kernels: compiles and launches the kernels of programs.
        staging: pinned buffers for copies from and to the host.
        idle_streams: CuPy streams that no ``with backend.stream()`` uses now.
        several_streams: whether a stream other than the default one was ever used. If so, blocks store the streams
            that use them.

    Raises:
        ValueError: there is no device of that number.
    """

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.cupy = require("cupy", extra="cuda", purpose="the cuda backend")
        count = driver.devices()
        if ordinal not in range(count):
            raise ValueError(f"cuda: got device {ordinal}, expected a number from 0 to {count - 1} (devices: {count})")
        self.driver, self.ordinal, self.name = driver, ordinal, location_of(ordinal)
        self.memory = CudaDevice(driver=driver, ordinal=ordinal)
        driver.current_stream = lambda device: _gpu(driver, device).stream()
        self.manager = Caching(self.memory)
        own_managers.add(self.manager)
        self.launcher = Launcher(driver, ordinal, self.stream)
        self.kernels = Kernels(self)
        self.staging = Staging(driver)
        self.several_streams = False
        self.idle_streams: list[Any] = []
        self._current = self.cupy.cuda.get_current_stream
        self._runtime = self.cupy.cuda.runtime
        self.cupy.cuda.set_allocator(allocate)

    def stream(self) -> int:
        """Return this thread's current stream on the device, which the program may have set through CuPy."""
        found = int(self._current(self.ordinal).ptr)
        if found:
            self.several_streams = True
        return found

    def enter(self) -> int:
        """Make this device the thread's current device; return the number of the previous device, for `leave`."""
        before = int(self._runtime.getDevice())
        if before != self.ordinal:
            self._runtime.setDevice(self.ordinal)
        return before

    def leave(self, before: int) -> None:
        """Restore the device that was current before `enter`."""
        if before != self.ordinal:
            self._runtime.setDevice(before)

    def array(self, manager: MemoryManager, spec: Any, code: int, category: int) -> Any:
        """Allocate an uninitialized array of a spec from a manager; an array without elements has no block.

        ``code`` (the number of the op's plan) and ``category`` (a number) are fields of the allocation's event.
        """
        if not spec.nbytes:
            return self.cupy.ndarray(spec.shape, spec.dtype, self._pointer(None, 0))
        owner = request(manager, spec.nbytes, code, category, spec, owner_of)
        return self.cupy.ndarray(spec.shape, spec.dtype, self._pointer(owner, spec.nbytes))

    def _pointer(self, owner: Owner | None, nbytes: int) -> Any:
        """Wrap a block's memory for CuPy; the block is freed with the last array that refers to it."""
        memory = self.cupy.cuda.memory
        address = 0 if owner is None else owner.block.address
        return memory.MemoryPointer(memory.UnownedMemory(address, nbytes, owner, self.ordinal), 0)

    def active_manager(self) -> MemoryManager:
        """Return the active memory manager if it manages this device, else the device's own manager."""
        manager = state.current().manager
        return manager if manager.device.location == self.name else self.manager

    def temporary(self, nbytes: int) -> Any:
        """Allocate bytes for a temporary of CuPy; returns a ``cupy.cuda.MemoryPointer``."""
        if not nbytes:
            return self._pointer(None, 0)
        like = spec_of((nbytes,), BYTE)
        return self._pointer(request(self.active_manager(), nbytes, 0, state.TEMPORARY, like, owner_of), nbytes)


def allocate(nbytes: int) -> Any:
    """Allocate memory on the thread's current device. This function is set as CuPy's allocator."""
    found = gpu_at(int(require("cupy", extra="cuda").cuda.runtime.getDevice()))
    return found.temporary(nbytes)


def gpu_at(ordinal: int = 0) -> Gpu:
    """Return the one `Gpu` of this process for a device's number.

    Raises:
        RuntimeError: there is no NVIDIA driver, or it finds no device.
        ImportError: CuPy is not installed.
        ValueError: there is no device of that number.
    """
    return _gpu(default_driver(), ordinal)


@cache
def _gpu(driver: Driver, ordinal: int) -> Gpu:
    return Gpu(driver, ordinal)


def block_of(buffer: Any) -> Block | None:
    """Return the block that holds an array; None if the array's memory does not come from a memory manager of flnb."""
    return getattr(getattr(buffer.data.mem, "_owner", None), "block", None)
