"""Elementwise ops and creation on a CUDA device, by CuPy's kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry.extras import require

from flnb_backends.tensor.cuda.base import Buffer, CudaBuffers

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Elementwise"]

cp = require("cupy", extra="cuda", purpose="the cuda backend")
special = require("cupyx.scipy.special", extra="cuda")

where = cp.ElementwiseKernel("bool c, T a, T b", "T y", "y = c ? a : b", "flnb_where")
whole_steps = cp.ElementwiseKernel("int64 start, int64 step", "T y", "y = (T)(start + i * step)", "flnb_steps")
steps = cp.ElementwiseKernel("float64 start, float64 step", "T y", "y = (T)(start + i * step)", "flnb_real_steps")
diagonal = cp.ElementwiseKernel("int64 columns, int64 k", "T y", "y = i / columns + k == i % columns", "flnb_eye")


def _rounding(function: Any) -> Any:
    def method(self: Any, x: Buffer, out: Buffer | None = None) -> Buffer:
        return self.copy(x, out) if x.dtype.kind in "iu" else function(x, out)  # integers are round, and stay integers

    return method


class Elementwise(CudaBuffers):
    """Ops on each element by itself: CuPy's ufuncs take (x, out) and (a, b, out) as they are."""

    negative, positive, abs, sign, conj = cp.negative, cp.positive, cp.absolute, cp.sign, cp.conjugate
    exp, expm1, log, log1p, log2, log10 = cp.exp, cp.expm1, cp.log, cp.log1p, cp.log2, cp.log10
    sqrt, square, reciprocal = cp.sqrt, cp.square, cp.reciprocal
    sin, cos, tan, asin, acos, atan = cp.sin, cp.cos, cp.tan, cp.arcsin, cp.arccos, cp.arctan
    sinh, cosh, tanh, asinh, acosh, atanh = cp.sinh, cp.cosh, cp.tanh, cp.arcsinh, cp.arccosh, cp.arctanh
    floor, ceil, trunc, round = _rounding(cp.floor), _rounding(cp.ceil), _rounding(cp.trunc), _rounding(cp.rint)
    isnan, isinf, isfinite, signbit = cp.isnan, cp.isinf, cp.isfinite, cp.signbit
    logical_not, bitwise_invert = cp.logical_not, cp.invert
    add, subtract, multiply, divide = cp.add, cp.subtract, cp.multiply, cp.divide
    floor_divide, remainder, pow = cp.floor_divide, cp.remainder, cp.power
    atan2, hypot, logaddexp, copysign, nextafter = cp.arctan2, cp.hypot, cp.logaddexp, cp.copysign, cp.nextafter
    equal, not_equal, less, less_equal = cp.equal, cp.not_equal, cp.less, cp.less_equal
    greater, greater_equal = cp.greater, cp.greater_equal
    logical_and, logical_or, logical_xor = cp.logical_and, cp.logical_or, cp.logical_xor
    bitwise_and, bitwise_or, bitwise_xor = cp.bitwise_and, cp.bitwise_or, cp.bitwise_xor
    bitwise_left_shift, bitwise_right_shift = cp.left_shift, cp.right_shift
    maximum, minimum, erf = cp.maximum, cp.minimum, special.erf

    def real(self, x: Buffer, out: Buffer | None = None) -> Buffer:
        return self.copy(x.real, out)

    def imag(self, x: Buffer, out: Buffer | None = None) -> Buffer:
        return self.copy(x.imag, out)

    def where(self, condition: Buffer, a: Buffer, b: Buffer, out: Buffer | None = None) -> Buffer:
        return where(condition, a, b) if out is None else where(condition, a, b, out)

    def astype(self, x: Buffer, dtype: np.dtype[Any], out: Buffer | None = None) -> Buffer:
        return x.astype(dtype) if out is None else self.copy(x, out)

    def copy(self, x: Buffer, out: Buffer | None = None) -> Buffer:
        if out is None:
            return x.copy("C")
        cp.copyto(out, x, casting="unsafe")
        return out

    # Creation

    def full(self, value: complex, out: Buffer) -> Buffer:
        out.fill(value)
        return out

    def arange(self, start: float, step: float, out: Buffer) -> Buffer:
        kernel = steps if isinstance(start, float) or isinstance(step, float) else whole_steps
        return kernel(start, step, out)

    def eye(self, k: int, out: Buffer) -> Buffer:
        return diagonal(max(out.shape[1], 1), k, out)

    def empty_like(self, out: Buffer) -> Buffer:
        return out
