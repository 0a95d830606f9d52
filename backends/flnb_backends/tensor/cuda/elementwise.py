"""Elementwise ops and creation on a CUDA device, by CuPy's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from flnb_telemetry.extras import require

from flnb_backends.tensor.cuda.base import Buffer, CudaBuffers
from flnb_backends.tensor.numpy import NumpyBackend, rounding

cp = require("cupy", extra="cuda", purpose="the cuda backend")
special = require("cupyx.scipy.special", extra="cuda")

where = cp.ElementwiseKernel("bool c, T a, T b", "T y", "y = c ? a : b", "flnb_where")


class Elementwise(CudaBuffers):
    """The methods of the cuda backend for elementwise ops: mostly CuPy's ufuncs, which take (x, out) or (a, b, out)."""

    floor, ceil, trunc, round = rounding(cp.floor), rounding(cp.ceil), rounding(cp.trunc), rounding(cp.rint)
    maximum, minimum, erf = cp.maximum, cp.minimum, special.erf
    real, imag, empty_like = NumpyBackend.real, NumpyBackend.imag, NumpyBackend.empty_like

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


for _name, _ufunc in vars(NumpyBackend).items():  # CuPy's ufuncs have the names of NumPy's
    if isinstance(_ufunc, np.ufunc):
        setattr(Elementwise, _name, getattr(cp, _ufunc.__name__))
