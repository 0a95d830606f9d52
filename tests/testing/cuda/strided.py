"""Arrays with strides on the emulated device, and a backend of own kernels over them: what CuPy is for the backend."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda.launcher import Launcher

if TYPE_CHECKING:
    from flnb_backends.tensor.cuda.driver import Driver

    from flnb.testing.cuda import EmulatedDevice


class Strided:
    """A view of device memory: the attributes of a `cupy.ndarray` that own kernels need."""

    def __init__(self, start: int, memory: tuple[int, int], like: np.ndarray[Any, Any]) -> None:
        self.memory, self._like = memory, like  # address and bytes of the allocation; a view of no memory
        self.data = SimpleNamespace(ptr=start)
        self.shape, self.dtype, self.strides, self.ndim = like.shape, like.dtype, like.strides, like.ndim
        self.size, self.nbytes = math.prod(like.shape), math.prod(like.shape) * like.itemsize
        self.flags = SimpleNamespace(c_contiguous=like.flags.c_contiguous)

    def _viewed(self, view: np.ndarray[Any, Any]) -> Strided:
        moved = view.__array_interface__["data"][0] - self._like.__array_interface__["data"][0]
        return Strided(self.data.ptr + moved, self.memory, view)

    def __getitem__(self, key: Any) -> Strided:
        return self._viewed(self._like[key])

    def reshape(self, *shape: Any) -> Strided:
        assert self.flags.c_contiguous
        return self._viewed(self._like.reshape(*shape))

    def swapaxes(self, one: int, other: int) -> Strided:
        return self._viewed(self._like.swapaxes(one, other))


class OwnKernels:
    """What the classes of own kernels expect of the backend, over `Strided` arrays; copies pass through the host."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.launcher = driver, Launcher(driver)
        self.addresses: list[int] = []

    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Strided:
        like = np.empty(shape, dtype)
        nbytes = max(like.nbytes, 1)
        self.addresses.append(self.driver.allocate(nbytes))
        return Strided(self.addresses[-1], (self.addresses[-1], nbytes), like)

    def put(self, array: Any) -> Strided:
        array = np.asarray(array)
        made = self.new(array.shape, array.dtype)
        self.put_into(made, array)
        return made

    def put_into(self, to: Strided, values: Any) -> None:
        """Write values to a view; what is between its elements must have been written."""
        if to.flags.c_contiguous:
            given = np.ascontiguousarray(np.broadcast_to(values, to.shape), to.dtype)
            if given.size:
                self.driver.upload(to.data.ptr, given.ctypes.data, given.nbytes)
            return
        whole, view = self._on_host(to)
        view[...] = values
        self.driver.upload(to.memory[0], whole.ctypes.data, whole.nbytes)

    def get(self, x: Strided) -> np.ndarray[Any, Any]:
        if not x.flags.c_contiguous:
            return self._on_host(x)[1].copy()
        found = np.empty(x.shape, x.dtype)
        if found.size:
            self.driver.download(found.ctypes.data, x.data.ptr, found.nbytes)
        return found

    def _on_host(self, x: Strided) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The bytes of an allocation, and the view in them."""
        whole = np.empty(x.memory[1], np.uint8)
        self.driver.download(whole.ctypes.data, x.memory[0], whole.nbytes)
        return whole, np.ndarray(x.shape, x.dtype, whole.data, x.data.ptr - x.memory[0], x.strides)

    def contiguous(self, x: Strided) -> Strided:
        return x if x.flags.c_contiguous else self.put(self.get(x))

    def copy(self, x: Strided, out: Strided | None = None) -> Strided:
        if out is None:
            return self.put(self.get(x))
        self.put_into(out, self.get(x))
        return out

    def matmul(self, a: Strided, b: Strided, out: Strided) -> Strided:
        assert out.flags.c_contiguous
        self.put_into(out, self.get(a) @ self.get(b))
        return out

    def broadcast_to(self, x: Strided, shape: tuple[int, ...]) -> Strided:
        return self.put(np.broadcast_to(self.get(x), shape))

    def free(self) -> None:
        for address in self.addresses:
            self.driver.free(address)


def backend_fixture(*classes: type) -> Any:
    """Make a fixture: the methods of some classes of own kernels on the emulated device, in random order."""
    made = type("Backend", (OwnKernels, *classes), {})

    @pytest.fixture
    def backend(device: EmulatedDevice) -> Any:
        device.begin("random", 1)
        device.driver.use(0)
        given = made(device.driver)
        yield given
        reports = device.reports
        device.begin("eager")
        given.free()
        assert reports == []

    return backend
