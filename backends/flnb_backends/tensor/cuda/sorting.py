"""Sorting and searching on a CUDA device, for real dtypes.

A first kernel sorts pieces of rows in shared memory by a bitonic network (Batcher, 1968, "Sorting networks and their
applications"); further launches merge pairs of sorted pieces. Sorts are stable.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flnb_backends.tensor.cuda import launcher
from flnb_backends.tensor.cuda.base import Buffer, CudaBuffers
from flnb_backends.tensor.cuda.rows import Rows

PIECE = 2048
"""The number of elements that a block sorts; with 12 bytes each, they use half of the 48 KiB of shared memory."""
SORTING_THREADS = 256
COUNTING_THREADS = 256
INDEX = np.dtype(np.int64)
Bits = np.dtype[Any]


def bits_of(dtype: np.dtype[Any], op: str) -> Bits:
    """Return the unsigned integer dtype with the size of a dtype; raise TypeError for a complex dtype (no order)."""
    if dtype.kind == "c":
        raise TypeError(f"{op}: got {dtype}, which has no order on the backend 'cuda'; expected a real dtype")
    return np.dtype(f"u{dtype.itemsize}")


def key_rules(dtype: np.dtype[Any], bits: Bits) -> tuple[Any, Any]:
    """Return the constants from which sort keys are made: a mask of the sign bit, and the bits of infinity.

    The mask is 0 for a dtype without a sign, the bits of infinity are 0 for a dtype that is not floating-point.
    """
    is_float = dtype.kind in "fV"  # bfloat16 is of kind "V"
    top = 1 << 8 * dtype.itemsize - 1 if is_float or dtype.kind == "i" else 0
    infinity = np.array(np.inf, dtype).view(bits)[()] if is_float else 0
    return bits.type(top), bits.type(infinity)


class Sorting(CudaBuffers):
    """The methods of the cuda backend for sorting and searching."""

    def sort(self, x: Buffer, axis: int, descending: bool, stable: bool, out: Buffer | None = None) -> Buffer:
        bits = bits_of(x.dtype, "sort")
        x, y = self.contiguous(x), self.written(out, x.shape, x.dtype)
        if x.size:
            _, n, inner, _ = Rows.along(x.shape, axis)
            places = self._places(x, axis, False, n, "sort")
            sizes = x.size, n, inner, int(descending)
            self.launcher.launch_each("sorting", "write_values", {"K": bits}, x.size, places, x, y, *sizes)
        return self.finished(y, out)

    def argsort(self, x: Buffer, axis: int, descending: bool, stable: bool, out: Buffer | None = None) -> Buffer:
        return self._argsort(x, axis, x.shape[axis], descending, out, "argsort")

    def argtopk(self, x: Buffer, axis: int, k: int, largest: bool, out: Buffer | None = None) -> Buffer:
        return self._argsort(x, axis, k, largest, out, "argtopk")

    def _argsort(self, x: Buffer, axis: int, keep: int, descending: bool, out: Buffer | None, op: str) -> Buffer:
        """Sort x along an axis; return the positions, before sorting, of the first ``keep`` elements along the axis."""
        y = self.written(out, (*x.shape[:axis], keep, *x.shape[axis + 1 :]), INDEX)
        if y.size:
            x = self.contiguous(x)
            _, n, inner, _ = Rows.along(x.shape, axis)
            places = self._places(x, axis, descending, keep, op)
            types = {"K": bits_of(x.dtype, op)}
            self.launcher.launch_each("sorting", "write_places", types, y.size, places, y, y.size, n, inner, keep)
        return self.finished(y, out)

    def _places(self, x: Buffer, axis: int, descending: bool, keep: int, op: str) -> Buffer:
        """Sort the rows of x; rows of the result (rows, n) begin with the positions of the first ``keep`` elements."""
        outer, n, inner, _ = Rows.along(x.shape, axis)
        rows = outer * inner
        bits = bits_of(x.dtype, op)
        rules = *key_rules(x.dtype, bits), bits.type(np.iinfo(bits).max if descending else 0)
        width = min(1 << max(n - 1, 1).bit_length(), PIECE)
        now = self.new((rows, n), bits), self.new((rows, n), INDEX)
        other = (self.new((rows, n), bits), self.new((rows, n), INDEX)) if width < n else now
        blocks, threads = min(rows * -(-n // width), launcher.BLOCKS), max(32, min(width // 2, SORTING_THREADS))
        self.launcher.launch(
            "sorting", "sort_pieces", {"K": bits}, (blocks,), (threads,), x, *now, rows, n, inner, width, *rules,
            shared=width * (bits.itemsize + 4),
        )  # fmt: skip
        run = width
        while run < n:
            sizes = rows, n, run, keep
            self.launcher.launch_each("sorting", "merge_runs", {"K": bits}, rows * n, *now, *other, *sizes)
            now, other, run = other, now, 2 * run
        return now[1]

    def searchsorted(self, x: Buffer, values: Buffer, side: str, out: Buffer | None = None) -> Buffer:
        bits = bits_of(x.dtype, "searchsorted")
        y = self.written(out, values.shape, INDEX)
        x, values = self.contiguous(x), self.contiguous(values)
        sizes = x.size, y.size, int(side == "right")
        rules = key_rules(x.dtype, bits)
        self.launcher.launch_each("sorting", "searchsorted", {"K": bits}, y.size, x, values, y, *sizes, *rules)
        return self.finished(y, out)

    def nonzero(self, x: Buffer, count: int, out: Buffer | None = None) -> Buffer:
        y = self.written(out, (x.ndim, count), INDEX)
        if y.size:
            x = self.contiguous(x)
            types, mask = {"K": np.dtype(f"u{x.dtype.itemsize}")}, _mask(x.dtype)
            blocks = -(-x.size // COUNTING_THREADS)
            counts = self.new((blocks,), INDEX)
            grid = (min(blocks, launcher.BLOCKS),), (COUNTING_THREADS,)
            self.launcher.launch("nonzero", "count_nonzero", types, *grid, x, counts, x.size, mask)
            self.launcher.launch("nonzero", "add_before", types, (1,), (1024,), counts, blocks)
            extents = np.zeros((), [("of", np.int64, 64)])
            extents["of"][: x.ndim] = x.shape
            sizes = x.size, mask, count, x.ndim, extents[()]
            self.launcher.launch("nonzero", "write_nonzero", types, *grid, x, counts, y, *sizes)
        return self.finished(y, out)


def _mask(dtype: np.dtype[Any]) -> Any:
    """Return the bit mask that is zero only for zero elements: all bits except the sign of floats."""
    number = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    bits = np.dtype(f"u{number.itemsize}")
    parts = dtype.itemsize // number.itemsize
    part = np.iinfo(bits).max ^ (1 << 8 * bits.itemsize - 1 if number.kind in "fV" else 0)
    return np.dtype(f"u{dtype.itemsize}").type(sum(part << 8 * bits.itemsize * i for i in range(parts)))
