"""Machine code for nests of any size: the numbers of rows and columns are arguments of the function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flnb.graph.emitter import Scalar
from flnb.graph.loops import Simplified
from flnb.graph.nests import Access, Nest
from flnb_backends.native.accumulators import CHUNK
from flnb_backends.native.generator import ALIGNMENT
from flnb_backends.native.instructions import Code
from flnb_backends.native.rows import PlaceByPlace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.graph.nests import Step

__all__ = ["COLUMNS", "ROWS", "SHARE", "AnySize", "nest_of", "row_bytes"]


class Size(int):
    """An extent that is known at run time: as a number a typical one, as text the name of a function's parameter.

    The generator decides by the number, for example that sums need chunks, and writes the text.
    """

    def __new__(cls, typical: int, name: str) -> Size:
        self = super().__new__(cls, typical)
        self.name = name
        return self

    name: str

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


class Share(float):
    """The reciprocal of the number of columns, as the constant of a step."""

    def __repr__(self) -> str:
        return f"1 / {COLUMNS}"


ROWS, COLUMNS = Size(1009, "%rows"), Size(2 * CHUNK + 3, "%columns")
"""Typical extents: primes, so that no other number of a nest is equal to them, and larger than all thresholds."""
SHARE = Share(1.0 / int(COLUMNS))
WIDEST = 8
"""The bytes of an element of the widest dtype."""
STRIDES = {"full": (COLUMNS, 1), "column": (1, 0), "row": (0, 1)}
"""The strides along rows and columns of an array with an element for each place, for each row, and for each column."""


def nest_of(arrays: Sequence[tuple[str, str]], steps: Sequence[Step], stores: Sequence[tuple[int, int]]) -> Nest:
    """Return a nest over rows and columns of arrays, each given as its dtype's character and a key of `STRIDES`."""
    laid = [Access(dtype, (STRIDES[form][0],), (STRIDES[form][1],)) for dtype, form in arrays]
    return Nest((ROWS,), (COLUMNS,), tuple(laid), tuple(steps), tuple(stores))


class AnySize(PlaceByPlace):
    """Writes the function ``int64 kernel(void *array, ..., void *scratch, int64 rows, int64 columns)`` of a nest.

    The function returns 1; or 0, having done nothing, if an address is not aligned for its array's dtype, or if a
    result shares a part of its memory with another array (two arrays of one layout may be the same). Scratch memory is
    one row, of `row_bytes`, for each entry of ``slots``.
    """

    together = 16  # as precise as a product with ones by BLAS, which has several accumulators

    def __init__(self, nest: Nest):
        super().__init__(Simplified(nest, 0, 1))
        # No product is contracted with a sum: what cancels in NumPy's methods is to cancel here.
        self.rounded = {j for j, step in enumerate(nest.steps) if step.op != "divide"}

    def text(self) -> str:
        self.bases = [f"%array{i}" for i in range(len(self.nest.arrays))]
        self.memory, self.range = "%scratch", ("0", str(ROWS))
        pointers = "".join(f"ptr {name}, " for name in (*self.bases, self.memory))
        self.code = code = Code("kernel", f"{pointers}i64 {ROWS}, i64 {COLUMNS}", self.width, "i64")
        fits = self._fits()
        more = code.add(f"add nsw i64 {code.add(f'mul nsw i64 {COLUMNS}, {WIDEST}')}, {ALIGNMENT - 1}")
        self.row = code.add(f"and i64 {more}, {-ALIGNMENT}")
        share = code.add(f"fdiv double 1.0, {code.add(f'sitofp i64 {COLUMNS} to double')}")
        self.share = Scalar(code, share, "d")
        with code.when(fits):
            self._write_loops()
        return code.text(code.add(f"zext i1 {fits} to i64"))

    def _fits(self) -> str:
        """Emit the test whether all addresses are aligned, and no result overlaps another array; returns its result."""
        add, arrays = self.code.add, self.nest.arrays
        full = add(f"mul nsw i64 {ROWS}, {COLUMNS}")
        counts = {"full": full, "column": str(ROWS), "row": str(COLUMNS)}
        starts, stops, tests = [], [], []
        for base, array in zip(self.bases, arrays, strict=True):
            size, layout = np.dtype(array.dtype).itemsize, (array.outer[0], array.inner[0])
            count = next(counts[name] for name, strides in STRIDES.items() if strides == layout)
            starts.append(add(f"ptrtoint ptr {base} to i64"))
            stops.append(add(f"add i64 {starts[-1]}, {add(f'mul nsw i64 {count}, {size}')}"))
            tests.append(add(f"icmp eq i64 {add(f'and i64 {starts[-1]}, {size - 1}')}, 0"))
        written = [j for _, j in self.nest.stores]
        for i, j in [(i, j) for j in written for i in range(len(arrays)) if i < j or (i > j and i not in written)]:
            after, before = add(f"icmp uge i64 {starts[i]}, {stops[j]}"), add(f"icmp uge i64 {starts[j]}, {stops[i]}")
            tests.append(add(f"or i1 {after}, {before}"))
            if arrays[i] == arrays[j]:
                tests[-1] = add(f"or i1 {tests[-1]}, {add(f'icmp eq i64 {starts[i]}, {starts[j]}')}")
        fits = "true"
        for test in tests:
            fits = add(f"and i1 {fits}, {test}")
        return fits

    def _reserve(self, use: str, j: int, dtype: str, count: int) -> None:
        self.slots[use, j] = len(self.slots)

    def _slot(self, use: str, j: int, dtype: str, index: str) -> str:
        base = self.code.element(self.memory, "b", self.row, self.slots[use, j])
        return self.code.element(base, dtype, index)

    def _operand(self, j: int, values: dict[int, Scalar]) -> Scalar:
        step = self.nest.steps[j]
        return self.share.to(step.dtype) if step.attribute is SHARE else super()._operand(j, values)


def row_bytes(columns: int) -> int:
    """Return the bytes of a row of scratch memory for this number of columns."""
    return -(-columns * WIDEST // ALIGNMENT) * ALIGNMENT
