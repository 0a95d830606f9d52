"""Views, indexing and joining on a CUDA device, by CuPy."""

from __future__ import annotations

from typing import Any

from flnb_telemetry.extras import require

from flnb.ops.indexing import basic, decode
from flnb_backends.tensor.cuda.base import Buffer, CudaBuffers

__all__ = ["Movement"]

cp = require("cupy", extra="cuda", purpose="the cuda backend")


class Movement(CudaBuffers):
    """Ops that take elements from places or put them there."""

    def reshape(self, x: Buffer, shape: tuple[int, ...]) -> Buffer:
        return x.reshape(shape)

    def permute_dims(self, x: Buffer, axes: tuple[int, ...]) -> Buffer:
        return x.transpose(axes)

    def flip(self, x: Buffer, axes: Any) -> Buffer:
        return cp.flip(x, axes)

    def broadcast_to(self, x: Buffer, shape: tuple[int, ...]) -> Buffer:
        return cp.broadcast_to(x, shape)

    def slice(self, x: Buffer, key: tuple[Any, ...]) -> Buffer:
        return x[basic(key)]

    def pad(self, x: Buffer, widths: tuple[tuple[int, int], ...], value: float, out: Buffer | None = None) -> Buffer:
        shape = tuple(n + b + a for n, (b, a) in zip(x.shape, widths, strict=True))
        out = self._filled(value, shape, x.dtype, out)
        out[tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, widths, strict=True))] = x
        return out

    def concat(self, *arguments: Any) -> Buffer:
        *parts, axis, out = arguments
        return cp.concatenate(parts, axis, out=out)

    def place(self, x: Buffer, shape: tuple[int, ...], key: tuple[Any, ...], out: Buffer | None = None) -> Buffer:
        out = self._filled(0, shape, x.dtype, out)
        out[basic(key)] = x
        return out

    def gather(self, x: Buffer, *arguments: Any) -> Buffer:
        *indices, key, out = arguments
        return self.finished(x[decode(key, tuple(indices))], out)

    def put(self, x: Buffer, values: Buffer, *arguments: Any) -> Buffer:
        *indices, key, out = arguments
        out = x if out is x else self.copy(x, out)
        out[decode(key, tuple(indices))] = values
        return out

    def _filled(self, value: Any, shape: tuple[int, ...], dtype: Any, out: Buffer | None) -> Buffer:
        out = self.new(shape, dtype) if out is None else out
        out.fill(value)
        return out
