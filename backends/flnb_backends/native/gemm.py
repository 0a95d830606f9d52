"""The product of two matrices by oneDNN's `dnnl_sgemm`.

`dnnl_sgemm` packs its operands itself and needs no preparation, so for most single products it is faster than a
prepared primitive.
"""

from __future__ import annotations

from collections.abc import Sequence

from flnb_backends.native.onednn import OneDnnError, library
from flnb_backends.native.prepared import Shape, Unsuitable, span


class Product:
    """Multiplies float32 matrices of fixed shapes; has the methods of `flnb_backends.native.prepared.Prepared`.

    Args:
        operands: pairs of a shape and strides (in elements): those of the two factors and of the result.

    Attributes:
        dnn: the oneDNN library.
        extents: for each factor and the result, the bytes from the first to the end of the last element.
        implementation: the name of oneDNN's function, "sgemm".
        scratch: the bytes of scratch memory that a run needs: 0.

    Raises:
        Unsuitable: the result's rows are not contiguous, or neither the rows nor the columns of a factor are.
        ImportError: oneDNN is not installed.
    """

    implementation, scratch = "sgemm", 0

    def __init__(self, operands: Sequence[tuple[Shape, Shape]]) -> None:
        (_, inner), (rows, columns) = operands[0][0], operands[2][0]
        self.dnn, self.extents = library(), [span(*each) for each in operands]
        (how_a, lda), (how_b, ldb), (how_y, self._ldy) = (layout(*each) for each in operands)
        if how_y != b"N":
            raise Unsuitable("dnnl_sgemm needs a result with contiguous rows, got contiguous columns")
        self._gemm, self._lda, self._ldb = self.dnn.lib.dnnl_sgemm, lda, ldb
        self._head = how_a, how_b, rows, columns, inner, 1.0

    def run(self, addresses: Sequence[int], scratch: int = 0) -> None:
        """Multiply the matrices at the first two addresses, and write the product to the third; ``scratch`` is unused.

        Raises:
            OneDnnError: oneDNN reports a failure.
        """
        a, b, y = addresses
        status = self._gemm(*self._head, a, self._lda, b, self._ldb, 0.0, y, self._ldy)
        if status:
            rows, columns, inner = self._head[2:5]
            raise OneDnnError(status, f"product of float32[{rows}, {inner}] and float32[{inner}, {columns}]")


def layout(shape: Shape, strides: Shape) -> tuple[bytes, int]:
    """Return a matrix's arguments for `dnnl_sgemm`: whether it is transposed, and its leading dimension in elements.

    Returns:
        (b"N", distance between rows) if the rows are contiguous, else (b"T", distance between columns).

    Raises:
        Unsuitable: neither rows nor columns are contiguous.
    """
    (rows, columns), (down, along) = shape, strides
    if columns == 1 or along == 1:
        return b"N", max(columns, 1 if rows == 1 else down)
    if rows == 1 or down == 1:
        return b"T", max(rows, along)
    raise Unsuitable(f"dnnl_sgemm needs contiguous rows or columns, got the shape {shape} with the strides {strides}")
