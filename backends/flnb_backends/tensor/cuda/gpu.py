"""A CUDA device of this process, with what all backends on it share: memory, kernels, streams, staging."""

from __future__ import annotations

import ctypes
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.extras import require

from flnb.dispatch import state
from flnb.dispatch.devices import own_managers
from flnb.dispatch.memory import Owner, owner_in
from flnb_backends.memory.caching import Caching
from flnb_backends.memory.cuda import CudaDevice, location_of
from flnb_backends.tensor.cuda.driver import Driver, default_driver
from flnb_backends.tensor.cuda.launcher import Launcher

if TYPE_CHECKING:
    from flnb.interface.memory import Block, MemoryManager

__all__ = ["Gpu", "gpu_at"]

BYTE = np.dtype(np.uint8)
LEAST_PIECE = 1 << 16


class Staging:
    """Pinned memory of the host through which arrays are copied to a device while the program goes on, and back.

    A piece is used again once its copy has happened.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pieces: list[tuple[int, int, int]] = []  # size, address, event
        self._lock = Lock()

    def upload(self, address: int, values: np.ndarray[Any, Any], stream: int) -> None:
        """Copy a C-contiguous array to the device, in a stream."""
        with self._lock:
            size, piece, event = self._take(values.nbytes)
            ctypes.memmove(piece, values.ctypes.data, values.nbytes)
            self._driver.upload(address, piece, values.nbytes, stream)
            self._driver.record(event, stream)
            self._pieces.append((size, piece, event))

    def download(self, values: np.ndarray[Any, Any], address: int, stream: int) -> None:
        """Copy to a C-contiguous array what a stream has computed by now, and wait for it."""
        with self._lock:
            size, piece, event = self._take(values.nbytes)
        self._driver.download(piece, address, values.nbytes, stream)
        self._driver.record(event, stream)
        self._driver.await_event(event)
        ctypes.memmove(values.ctypes.data, piece, values.nbytes)
        with self._lock:
            self._pieces.append((size, piece, event))

    def _take(self, nbytes: int) -> tuple[int, int, int]:
        """Remove a piece whose copy has happened from the list, or make one."""
        for i, (size, _, event) in enumerate(self._pieces):
            if nbytes <= size <= max(LEAST_PIECE, 4 * nbytes) and self._driver.happened(event):
                return self._pieces.pop(i)
        size = max(LEAST_PIECE, 1 << (nbytes - 1).bit_length())
        return size, self._driver.allocate_host(size), self._driver.event()


class Gpu:
    """A CUDA device: its memory, kernels and streams.

    Attributes:
        cupy: the module.
        driver: the driver API.
        ordinal: its number; ``name`` is what tensors on it say, such as ``"cuda:1"``.
        memory: what managers reserve segments from; ``manager`` the one used where none was chosen for this device.
        launcher: launches flnb's own kernels.
        idle_streams: CuPy's streams that no block uses now.
        several_streams: whether there are streams besides the default one, so that uses of blocks have to be noted.
    """

    def __init__(self, driver: Driver, ordinal: int) -> None:
        self.cupy = require("cupy", extra="cuda", purpose="the cuda backend")
        count = driver.devices()
        if ordinal not in range(count):
            raise ValueError(f"cuda: got device {ordinal}, expected one of the {count} devices from 0 on")
        self.driver, self.ordinal, self.name = driver, ordinal, location_of(ordinal)
        self.memory = CudaDevice(driver=driver, ordinal=ordinal)
        driver.current_stream = lambda device: _gpu(driver, device).stream()
        self.manager = Caching(self.memory)
        own_managers.add(self.manager)
        self.launcher = Launcher(driver, ordinal, self.stream)
        self.staging = Staging(driver)
        self.several_streams = False
        self.idle_streams: list[Any] = []
        self._current = self.cupy.cuda.get_current_stream
        self._runtime = self.cupy.cuda.runtime
        self.cupy.cuda.set_allocator(allocate)

    def stream(self) -> int:
        """The stream in which this thread's work on the device runs now; the program may have made it by CuPy."""
        found = int(self._current(self.ordinal).ptr)
        if found:
            self.several_streams = True
        return found

    def enter(self) -> int:
        """Make this the device of the thread; returns the one before."""
        before = int(self._runtime.getDevice())
        if before != self.ordinal:
            self._runtime.setDevice(self.ordinal)
        return before

    def leave(self, before: int) -> None:
        """Make the device before `enter` the thread's again."""
        if before != self.ordinal:
            self._runtime.setDevice(before)

    def array(self, manager: MemoryManager, spec: Any, code: int, category: int) -> Any:
        """Allocate an array whose elements are not set; without elements it has no block."""
        if not spec.nbytes:
            return self.cupy.ndarray(spec.shape, spec.dtype, self._pointer(None, 0))
        owner = owner_in(manager, Owner, spec.shape, spec.dtype, spec.nbytes, code, category)
        return self.cupy.ndarray(spec.shape, spec.dtype, self._pointer(owner, spec.nbytes))

    def _pointer(self, owner: Owner | None, nbytes: int) -> Any:
        """CuPy's object for the memory of a block, which it releases when the last array in it is gone."""
        memory = self.cupy.cuda.memory
        address = 0 if owner is None else owner.block.address
        return memory.MemoryPointer(memory.UnownedMemory(address, nbytes, owner, self.ordinal), 0)

    def active_manager(self) -> MemoryManager:
        """The manager chosen for this device, or else its own."""
        manager = state.current().manager
        return manager if manager.device.location == self.name else self.manager

    def temporary(self, nbytes: int) -> Any:
        """Allocate memory for CuPy."""
        if not nbytes:
            return self._pointer(None, 0)
        return self._pointer(
            owner_in(self.active_manager(), Owner, (nbytes,), BYTE, nbytes, 0, state.TEMPORARY), nbytes
        )


def allocate(nbytes: int) -> Any:
    """Allocate memory of the thread's device; CuPy's allocator."""
    found = gpu_at(int(require("cupy", extra="cuda").cuda.runtime.getDevice()))
    return found.temporary(nbytes)


def gpu_at(ordinal: int = 0) -> Gpu:
    """Return a device of this process, which all that use it share.

    Raises:
        RuntimeError: there is no NVIDIA driver.
        ImportError: CuPy is not installed.
        ValueError: there are fewer devices.
    """
    return _gpu(default_driver(), ordinal)


@cache
def _gpu(driver: Driver, ordinal: int) -> Gpu:
    return Gpu(driver, ordinal)


def block_of(buffer: Any) -> Block | None:
    """The block in which an array is; None for memory that is not from a manager of flnb."""
    return getattr(getattr(buffer.data.mem, "_owner", None), "block", None)
