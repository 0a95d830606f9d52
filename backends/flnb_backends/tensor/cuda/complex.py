"""Complex numbers on a CUDA device, for ops whose kernels in flnb are for real numbers only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry.extras import require

from flnb_backends.tensor.cuda.indexing import Indexing
from flnb_backends.tensor.cuda.movement import Movement
from flnb_backends.tensor.cuda.reductions import Reductions

if TYPE_CHECKING:
    from flnb_backends.tensor.cuda.base import Buffer

cp = require("cupy", extra="cuda", purpose="the cuda backend")


def _over_axes(name: str) -> Any:
    def method(self: Any, x: Buffer, axes: tuple[int, ...], keepdims: bool, out: Buffer | None = None) -> Buffer:
        if x.dtype.kind != "c":
            return getattr(super(ComplexNumbers, self), name)(x, axes, keepdims, out)
        return self.finished(getattr(cp, name)(x, axis=axes, keepdims=keepdims), out)

    return method


def _along(name: str, of_cupy: str) -> Any:
    def method(self: Any, x: Buffer, axis: int, out: Buffer | None = None) -> Buffer:
        if x.dtype.kind != "c":
            return getattr(super(ComplexNumbers, self), name)(x, axis, out)
        return self.finished(getattr(cp, of_cupy)(x, axis=axis), out)

    return method


class ComplexNumbers(Reductions, Indexing, Movement):
    """Methods of the cuda backend that call CuPy for complex numbers, or handle real and imaginary part separately."""

    sum, prod = _over_axes("sum"), _over_axes("prod")
    cumulative_sum, cumulative_prod = _along("cumulative_sum", "cumsum"), _along("cumulative_prod", "cumprod")

    def place(self, x: Buffer, shape: tuple[int, ...], key: Any, out: Buffer | None = None) -> Buffer:
        return (Movement if x.dtype.kind == "c" else Indexing).place(self, x, shape, key, out)

    def scatter_add(self, g: Buffer, *arguments: Any) -> Buffer:
        if g.dtype.kind != "c":
            return Indexing.scatter_add(self, g, *arguments)
        *indices, shape, key, out = arguments
        y = self.new(shape, g.dtype) if out is None else out
        for part, to in ((g.real, y.real), (g.imag, y.imag)):
            Indexing.scatter_add(self, part, *indices, shape, key, to)
        return y
