"""The part of the cuda backend that its own kernels need: buffers, and the launcher of the current device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from flnb_backends.tensor.cuda.launcher import Launcher

__all__ = ["Buffer", "CudaBuffers", "Out"]

Buffer = Any
"""An array in a device's memory: a `cupy.ndarray`, of which methods use what describes it and ``data.ptr``."""
Out = tuple[Buffer | None, ...] | None


class CudaBuffers(ABC):
    """Base of the classes whose methods launch flnb's own kernels, parts of the cuda backend.

    Attributes:
        launcher: launches kernels on the current device, in the current stream.
    """

    launcher: Launcher

    @abstractmethod
    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Buffer:
        """Return a C-contiguous buffer whose elements are not set."""

    @abstractmethod
    def contiguous(self, x: Buffer) -> Buffer:
        """Return x, or a C-contiguous copy if it is not so."""

    @abstractmethod
    def copy(self, x: Buffer, out: Buffer | None = None) -> Buffer:
        """Copy x to ``out``, which may have any strides; without it, to a new buffer."""

    def target(self, out: Out, index: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Buffer:
        """Return the buffer given for result number ``index`` of a composite, or a new one."""
        if out is None or out[index] is None:
            return self.new(shape, dtype)
        return out[index]

    def written(self, out: Buffer | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Buffer:
        """Return a C-contiguous buffer for a kernel to write: ``out`` if it is one, or else a new one.

        Give what the kernel has written to `finished`.
        """
        if out is not None and out.flags.c_contiguous and out.dtype == dtype:
            return out
        return self.new(shape, dtype)

    def finished(self, y: Buffer, out: Buffer | None) -> Buffer:
        """Return the result that a kernel has written to y; first copy it to ``out`` if y is not that buffer."""
        return y if out is None or y is out else self.copy(y, out)
