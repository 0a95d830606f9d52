"""The product of two matrices by oneDNN's `dnnl_sgemm`.

It packs its operands itself and needs no preparation, which makes it quicker than a primitive for most single products.
"""

from __future__ import annotations

from collections.abc import Sequence

from flnb_backends.native.onednn import OneDnnError, library
from flnb_backends.native.prepared import Shape, Unsuitable, span

__all__ = ["Product"]


class Product:
    """One product of float32 matrices of fixed shapes, called like `flnb_backends.native.prepared.Prepared`.

    Args:
        operands: shape and strides, in elements, of both factors and of the result.

    Attributes:
        dnn: the library.
        extents: the bytes from the first to the last element of each operand and of the result.
        implementation: "sgemm".
        scratch: 0.

    Raises:
        Unsuitable: the rows of the result, or neither rows nor columns of a factor, are contiguous.
        ImportError: there is no library.
    """

    implementation, scratch = "sgemm", 0

    def __init__(self, operands: Sequence[tuple[Shape, Shape]]) -> None:
        (_, inner), (rows, columns) = operands[0][0], operands[2][0]
        self.dnn, self.extents = library(), [span(*each) for each in operands]
        (how_a, lda), (how_b, ldb), (how_y, self._ldy) = (layout(*each) for each in operands)
        if how_y != b"N":
            raise Unsuitable("the columns of the result are contiguous")
        self._gemm, self._lda, self._ldb = self.dnn.lib.dnnl_sgemm, lda, ldb
        self._head = how_a, how_b, rows, columns, inner, 1.0

    def run(self, addresses: Sequence[int], scratch: int = 0) -> None:
        """Multiply the matrices at the first two addresses into the one at the third.

        Raises:
            OneDnnError: oneDNN reports a failure.
        """
        a, b, y = addresses
        status = self._gemm(*self._head, a, self._lda, b, self._ldb, 0.0, y, self._ldy)
        if status:
            rows, columns, inner = self._head[2:5]
            raise OneDnnError(status, f"product of float32[{rows}, {inner}] and float32[{inner}, {columns}]")


def layout(shape: Shape, strides: Shape) -> tuple[bytes, int]:
    """Return (b"N", row distance) of a matrix with contiguous rows, or (b"T", column distance) with columns.

    Raises:
        Unsuitable: neither are.
    """
    (rows, columns), (down, along) = shape, strides
    if columns == 1 or along == 1:
        return b"N", max(columns, 1 if rows == 1 else down)
    if rows == 1 or down == 1:
        return b"T", max(rows, along)
    raise Unsuitable("neither rows nor columns of a matrix are contiguous")
