"""The base class of the cuda backend's parts: allocation of buffers, and the launcher of the device's kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from flnb_backends.tensor.cuda.launcher import Launcher

Buffer = Any
"""An array in device memory: a `cupy.ndarray`, or an object with its shape, dtype, strides, flags and ``data.ptr``."""
Out = tuple[Buffer | None, ...] | None
"""The buffers for the results of a composite op; None in place of a buffer (or of all) for new buffers."""


class CudaBuffers(ABC):
    """The base class of the parts of the cuda backend, whose methods launch flnb's own kernels.

    Attributes:
        launcher: launches kernels on the backend's device, in the current stream.
    """

    launcher: Launcher

    @abstractmethod
    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Buffer:
        """Return an uninitialized C-contiguous buffer."""

    @abstractmethod
    def contiguous(self, x: Buffer) -> Buffer:
        """Return x if it is C-contiguous, else a C-contiguous copy."""

    @abstractmethod
    def copy(self, x: Buffer, out: Buffer | None = None) -> Buffer:
        """Copy x to ``out``, which may have any strides, or to a new C-contiguous buffer."""

    def target(self, out: Out, index: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Buffer:
        """Return ``out[index]``, the buffer for a result of a composite op, or a new one if there is none."""
        if out is None or out[index] is None:
            return self.new(shape, dtype)
        return out[index]

    def written(self, out: Buffer | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Buffer:
        """Return a C-contiguous buffer for a kernel's result: ``out`` if it is suitable, else a new buffer.

        After the launch, pass the buffer to `finished`.
        """
        if out is not None and out.flags.c_contiguous and out.dtype == dtype:
            return out
        return self.new(shape, dtype)

    def finished(self, y: Buffer, out: Buffer | None) -> Buffer:
        """Return ``out``, to which a kernel's result y is copied if y is another buffer; without ``out`` return y."""
        return y if out is None or y is out else self.copy(y, out)
