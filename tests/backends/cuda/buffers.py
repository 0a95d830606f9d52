"""Arrays in the memory of the emulated device, and a class of kernels' methods that works on them without CuPy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.tensor.cuda.base import CudaBuffers
from flnb_backends.tensor.cuda.launcher import Launcher

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice


class Block:
    """Memory of the device."""

    def __init__(self, device: EmulatedDevice, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes
        self.address = device.driver.allocate(max(nbytes, 1))

    def __del__(self) -> None:
        self.device.driver.free(self.address)


class DeviceArray:
    """An array on the emulated device, of which kernels' methods may use what they use of a `cupy.ndarray`."""

    def __init__(self, block: Block, like: np.ndarray, offset: int = 0) -> None:
        self.block, self.offset, self._like = block, offset, like
        self.data = SimpleNamespace(ptr=block.address + offset)
        for name in ("shape", "dtype", "size", "ndim", "strides", "nbytes"):
            setattr(self, name, getattr(like, name))
        self.flags = SimpleNamespace(c_contiguous=like.flags.c_contiguous)

    def _viewed(self, view: np.ndarray) -> DeviceArray:
        moved = view.__array_interface__["data"][0] - self._like.__array_interface__["data"][0]
        return DeviceArray(self.block, view, self.offset + moved)

    def __getitem__(self, key: Any) -> DeviceArray:
        return self._viewed(self._like[key])

    def reshape(self, *shape: Any) -> DeviceArray:
        assert self.flags.c_contiguous
        return self._viewed(self._like.reshape(*shape))

    def swapaxes(self, one: int, other: int) -> DeviceArray:
        return self._viewed(self._like.swapaxes(one, other))

    def numpy(self) -> np.ndarray:
        """The values, with the array's strides."""
        whole = np.empty(self.block.nbytes, np.uint8)
        if self.block.nbytes:
            self.block.device.driver.download(whole.ctypes.data, self.block.address, whole.nbytes)
        return np.ndarray(self.shape, self.dtype, whole.data, self.offset, self.strides)


class Buffers(CudaBuffers):
    """The base of methods that launch kernels, on the emulated device."""

    def __init__(self, device: EmulatedDevice) -> None:
        self.device, self.launcher = device, Launcher(device.driver)

    def put(self, array: Any) -> DeviceArray:
        """Copy an array, and what it is a view of, to the device."""
        array = np.asarray(array)
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        if not (base.flags.c_contiguous or base.flags.f_contiguous):
            base = array = np.ascontiguousarray(array)
        block = Block(self.device, base.nbytes)
        if base.nbytes:
            self.device.driver.upload(block.address, base.ctypes.data, base.nbytes)
        return DeviceArray(block, array, array.ctypes.data - base.ctypes.data if array.size else 0)

    def new(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        like = np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, np.empty(shape, dtype).strides)
        return DeviceArray(Block(self.device, like.nbytes), like)

    def contiguous(self, x: DeviceArray) -> DeviceArray:
        return x if x.flags.c_contiguous else self.put(np.ascontiguousarray(x.numpy()))

    def copy(self, x: DeviceArray, out: DeviceArray | None = None) -> DeviceArray:
        if out is None:
            return self.put(x.numpy().copy())
        if out.flags.c_contiguous:
            given = np.ascontiguousarray(x.numpy())
            self.device.driver.upload(out.data.ptr, given.ctypes.data, given.nbytes)
            return out
        whole = out.numpy()
        whole[...] = x.numpy()
        base = whole.base.obj if isinstance(whole.base, memoryview) else whole.base
        self.device.driver.upload(out.block.address, base.ctypes.data, out.block.nbytes)
        return out

    def matmul(self, a: DeviceArray, b: DeviceArray, out: DeviceArray) -> DeviceArray:
        return self.copy(self.put(np.matmul(a.numpy(), b.numpy())), out)
