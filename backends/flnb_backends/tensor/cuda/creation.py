"""Ranges and identity matrices on a CUDA device."""

from __future__ import annotations

from typing import Any

import numpy as np

from flnb_backends.tensor.cuda.base import Buffer, CudaBuffers


class Creation(CudaBuffers):
    """The methods of the cuda backend for ranges and identity matrices."""

    def arange(self, start: float, step: float, out: Buffer) -> Buffer:
        number: Any = np.int64 if isinstance(start, int) and isinstance(step, int) else np.float64
        y = self.written(out, out.shape, out.dtype)
        types = {"T": out.dtype, "A": np.dtype(number)}
        self.launcher.launch_each("creation", "arange", types, y.size, y, y.size, number(start), number(step))
        return self.finished(y, out)

    def eye(self, k: int, out: Buffer) -> Buffer:
        y = self.written(out, out.shape, out.dtype)
        types = {"T": out.dtype, "A": np.dtype(np.float64)}
        self.launcher.launch_each("creation", "eye", types, y.size, y, y.size, out.shape[1], np.int64(k))
        return self.finished(y, out)
