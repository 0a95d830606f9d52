"""Reductions and cumulative sums and products on a CUDA device, with the same results as the NumPy backend.

Half precision is summed in float32. Sums are trees that add in a fixed order, so that every run gives the same bits.
"""

from __future__ import annotations

from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.ops.reduction import reduced, summed
from flnb_backends.tensor.cuda.rows import RowKernels, Rows, accumulator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb_backends.tensor.cuda.base import Buffer

Axes = tuple[int, ...]
INDEX = np.dtype(np.int64)


def _lowest(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def _highest(dtype: np.dtype[Any]) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


def _stages(shape: tuple[int, ...], axes: Axes) -> list[Rows]:
    """Return the `Rows` of each launch that reduces a part of the axes of a C-contiguous array, the last axes first."""
    long = [i for i, extent in enumerate(shape) if extent != 1]
    runs = [(over, prod([shape[i] for i in run])) for over, run in groupby(long, axes.__contains__)]
    found, inner = list[Rows](), 1
    while runs:
        over, n = runs.pop()
        if not over:
            inner *= n
            continue
        outer = prod([extent for _, extent in runs])
        found.append(rows := Rows(outer, n, inner).cut())
        while rows.parts > 1:
            found.append(rows := Rows(outer, rows.parts, inner).cut())
    return found or [Rows(inner, 1, 1)]


class Reductions(RowKernels):
    """Reductions over axes, and cumulative sums and products: methods of the cuda backend."""

    def sum(self, x: Buffer, axes: Axes, keepdims: bool, out: Buffer | None = None) -> Buffer:
        return self._reduce("sum", x, axes, keepdims, summed(x.dtype), 0, out)

    def prod(self, x: Buffer, axes: Axes, keepdims: bool, out: Buffer | None = None) -> Buffer:
        return self._reduce("product", x, axes, keepdims, summed(x.dtype), 1, out)

    def max(self, x: Buffer, axes: Axes, keepdims: bool, out: Buffer | None = None) -> Buffer:
        return self._reduce("largest", x, axes, keepdims, x.dtype, _lowest(x.dtype), out)

    def min(self, x: Buffer, axes: Axes, keepdims: bool, out: Buffer | None = None) -> Buffer:
        return self._reduce("smallest", x, axes, keepdims, x.dtype, _highest(x.dtype), out)

    any, all = max, min

    def _reduce(
        self, name: str, x: Buffer, axes: Axes, keepdims: bool, dtype: np.dtype[Any], none: Any, out: Buffer | None
    ) -> Buffer:
        """Reduce x by the kernel ``name`` to the dtype ``dtype``; if there are no elements, the result is ``none``."""
        y = self.written(out, reduced(x.shape, axes, keepdims), dtype)
        x, computed = self.contiguous(x), accumulator(dtype)

        def launch(rows: Rows, x: Buffer, to: Buffer) -> None:
            self._launch(name, rows, x, to, computed, none)

        self._in_stages(_stages(x.shape, axes), x, y, computed, launch, launch)
        return self.finished(y, out)

    def sum_of(self, shape: tuple[int, ...], axes: Axes, y: Buffer, launch: Callable[[Rows, Buffer], None]) -> None:
        """Write to y the sums over axes of values that a kernel computes, such as products of two arrays.

        Args:
            shape: the shape of the values.
            axes: the axes to sum over.
            y: a contiguous buffer for the sums.
            launch: launches the kernel that sums the values of some rows into a buffer.
        """
        computed = accumulator(y.dtype)
        self._in_stages(
            _stages(shape, axes), None, y, computed, lambda rows, _, to: launch(rows, to),
            lambda rows, x, to: self._launch("sum", rows, x, to, computed, 0),
        )  # fmt: skip

    def _in_stages(
        self, stages: Sequence[Rows], x: Buffer, y: Buffer, dtype: np.dtype[Any], first: Any, further: Any
    ) -> None:
        """Launch a kernel for each stage (rows) on the result of the previous stage; the last stage writes to y.

        ``first`` launches the first stage's kernel, ``further`` that of a later stage; both are called with the rows,
        the input and the output. ``dtype`` is that of the results between stages.
        """
        for number, rows in enumerate(stages):
            size = rows.outer * rows.parts * rows.inner
            to = self.new((size,), dtype) if number < len(stages) - 1 else y
            (further if number else first)(rows, x, to)
            x = to

    def _launch(
        self, name: str, rows: Rows, x: Buffer, y: Buffer, computed: np.dtype[Any], none: Any, file: str = "reductions"
    ) -> None:
        types = {"T": x.dtype, "A": computed, "R": y.dtype}
        self.launch_rows(file, name, types, rows, x, y, computed.type(none))

    def argmax(self, x: Buffer, axes: Axes, keepdims: bool, out: Buffer | None = None) -> Buffer:
        return self._position("argmax", x, axes, keepdims, out)

    def argmin(self, x: Buffer, axes: Axes, keepdims: bool, out: Buffer | None = None) -> Buffer:
        return self._position("argmin", x, axes, keepdims, out)

    def _position(self, name: str, x: Buffer, axes: Axes, keepdims: bool, out: Buffer | None) -> Buffer:
        y = self.written(out, reduced(x.shape, axes, keepdims), INDEX)
        types = {"T": x.dtype, "A": accumulator(x.dtype)}
        x, stages = self.contiguous(x), _stages(x.shape, axes)

        def launch(rows: Rows, candidates: Buffer, to: Buffer) -> None:
            self.launch_rows("positions", name, types, rows, x, candidates, to, stages[0].n)

        self._in_stages(stages, 0, y, INDEX, launch, launch)
        return self.finished(y, out)

    def cumulative_sum(self, x: Buffer, axis: int, out: Buffer | None = None) -> Buffer:
        return self._scan("cumulative_sum", x, axis, 0, out)

    def cumulative_prod(self, x: Buffer, axis: int, out: Buffer | None = None) -> Buffer:
        return self._scan("cumulative_prod", x, axis, 1, out)

    def _scan(self, name: str, x: Buffer, axis: int, none: int, out: Buffer | None) -> Buffer:
        y = self.written(out, x.shape, summed(x.dtype))
        self._launch(name, Rows.along(x.shape, axis), self.contiguous(x), y, accumulator(y.dtype), none, "scans")
        return self.finished(y, out)
