"""Matrix products by cuBLAS; decompositions and Fourier transforms by cuSOLVER and cuFFT through CuPy.

Untested: decompositions and transforms have never run, because the emulated device lacks these libraries.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from flnb_telemetry.extras import require

from flnb_backends.tensor import linalg
from flnb_backends.tensor.cuda.base import Buffer, CudaBuffers

cp = require("cupy", extra="cuda", purpose="the cuda backend")

TYPES = {"e": 2, "f": 0, "d": 1, "F": 4, "D": 5}
"""The cudaDataType of each dtype, by its character."""
COMPUTE_32F, COMPUTE_64F, FAST_TF32 = 68, 70, 77
"""Values of cublasComputeType_t; float16 is multiplied in float32."""
DEFAULT_ALGORITHM = -1


class Operand(NamedTuple):
    """A matrix, or a batch of matrices at equal distances in memory, in the form that cuBLAS takes.

    Attributes:
        data: the buffer.
        transposed: whether the matrix is stored column by column rather than row by row.
        leading: the leading dimension: the distance, in elements, between the starts of neighbouring rows (or columns,
            if ``transposed``).
        stride: the distance, in elements, between neighbouring matrices of the batch; 0 if all are the same matrix.
    """

    data: Buffer
    transposed: bool
    leading: int
    stride: int


def _matrix(x: Buffer) -> tuple[bool, int] | None:
    """Return whether a matrix is stored transposed, and its leading dimension; None for strides unfit for cuBLAS."""
    rows, columns = x.shape[-2:]
    down, right = (stride // x.itemsize for stride in x.strides[-2:])
    if (right == 1 or columns == 1) and (down >= max(columns, 1) or rows == 1):
        return False, max(down if rows > 1 else columns, columns, 1)
    if (down == 1 or rows == 1) and (right >= max(rows, 1) or columns == 1):
        return True, max(right if columns > 1 else rows, rows, 1)
    return None


def _distance(x: Buffer, batch: tuple[int, ...]) -> int | None:
    """Return the distance, in elements, between matrices of a batch; 0 for a broadcast batch, None if it varies."""
    if x.ndim == 2 or all(stride == 0 or n == 1 for stride, n in zip(x.strides[:-2], x.shape[:-2], strict=True)):
        return 0
    if x.shape[:-2] != batch:
        return None
    steps = [(n, stride) for n, stride in zip(batch, x.strides, strict=False) if n > 1]
    if any(stride != n * following for (_, stride), (n, following) in itertools.pairwise(steps)):
        return None
    return int(steps[-1][1] // x.itemsize) if steps else 0


def operand(x: Buffer, batch: tuple[int, ...]) -> Operand:
    """Describe x for cuBLAS, with batch axes broadcast to ``batch``; copies x if cuBLAS cannot take its strides."""
    layout, distance = _matrix(x), _distance(x, batch)
    if layout is None or distance is None:
        x = cp.ascontiguousarray(x if distance is not None else cp.broadcast_to(x, (*batch, *x.shape[-2:])))
        layout, distance = _matrix(x), _distance(x, batch)
    assert layout is not None
    assert distance is not None
    return Operand(x, *layout, distance)


class LinearAlgebra(CudaBuffers, linalg.LinearAlgebra):
    """Matrix products, decompositions, solvers and Fourier transforms.

    Attributes:
        tf32: whether float32 products may use TF32 tensor cores, which round inputs to 10 bits.
    """

    tf32: bool = False

    def matmul(self, a: Buffer, b: Buffer, out: Buffer | None = None) -> Buffer:
        if a.ndim == 1 or b.ndim == 1:
            left, right = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
            axes = (*([-2] if a.ndim == 1 else []), *([-1] if b.ndim == 1 else []))
            values = cp.squeeze(self.matmul(left, right), axes)
            return self.finished(values, out)
        if a.dtype.char not in TYPES:
            values = cp.matmul(a, b)
            return self.finished(values, out)
        y = self.written(out, (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
        if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous:  # one product instead of one for each example
            rows = math.prod(a.shape[:-1])
            self._multiply(a.reshape(rows, a.shape[-1]), b, y.reshape(rows, b.shape[1]))
        else:
            self._multiply(a, b, y)
        return self.finished(y, out)

    def _multiply(self, a: Buffer, b: Buffer, y: Buffer) -> None:
        """Write the matrix products of a and b into y, which is C-contiguous.

        cuBLAS assumes column-major matrices, so it reads and writes the transpose of each matrix here. The transpose of
        y is ``b.T @ a.T``; therefore b is the first factor in the call.
        """
        batch, (m, k), n = y.shape[:-2], a.shape[-2:], b.shape[-1]
        if not y.size or not k:
            y.fill(0)
            return
        first, second = operand(b, batch), operand(a, batch)
        kind = TYPES[y.dtype.char]
        compute = (
            COMPUTE_64F if y.dtype.char in "dD" else FAST_TF32 if self.tf32 and y.dtype.char == "f" else COMPUTE_32F
        )
        scalar = np.dtype("f" if y.dtype.char == "e" else y.dtype)
        one, zero = np.ones((), scalar), np.zeros((), scalar)
        cublas = cp.cuda.cublas
        cublas.gemmStridedBatchedEx(
            cp.cuda.device.get_cublas_handle(), int(first.transposed), int(second.transposed), n, m, k,
            one.ctypes.data, first.data.data.ptr, kind, first.leading, first.stride,
            second.data.data.ptr, kind, second.leading, second.stride,
            zero.ctypes.data, y.data.ptr, kind, n, m * n, math.prod(batch), compute, DEFAULT_ALGORITHM,
        )  # fmt: skip

    def _lapack(self, name: str, x: Buffer, *arguments: Any, **options: Any) -> Any:
        return getattr(cp.linalg, name)(x, *arguments, **options)

    def _transformed(self, name: str, x: Buffer, sizes: Any, axes: Any, norm: Any, out: Buffer | None) -> Buffer:
        return self.finished(getattr(cp.fft, name)(x, sizes, axes=axes, norm=norm), out)

    def _into(self, values: Buffer, x: Buffer, out: Buffer | None) -> Buffer:
        return self.finished(values, out)
