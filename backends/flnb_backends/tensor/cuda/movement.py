"""Views, indexing and joining on a CUDA device, by CuPy."""

from __future__ import annotations

from typing import Any

from flnb_telemetry.extras import require

from flnb.ops.indexing import decode
from flnb_backends.tensor import movement
from flnb_backends.tensor.cuda.base import Buffer, CudaBuffers

cp = require("cupy", extra="cuda", purpose="the cuda backend")


class Movement(CudaBuffers, movement.Movement):
    """Methods of the cuda backend for views, gathering and filling."""

    reshape, permute_dims = staticmethod(cp.ndarray.reshape), staticmethod(cp.ndarray.transpose)
    flip, broadcast_to = staticmethod(cp.flip), staticmethod(cp.broadcast_to)

    def gather(self, x: Buffer, *arguments: Any) -> Buffer:
        *indices, key, out = arguments
        return self.finished(x[decode(key, tuple(indices))], out)

    def filled(self, value: Any, shape: tuple[int, ...], dtype: Any, out: Buffer | None) -> Buffer:
        out = self.new(shape, dtype) if out is None else out
        out.fill(value)
        return out
