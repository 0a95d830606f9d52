"""Machine code for nests of any size: the numbers of rows and columns are arguments of the function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flnb.graph.emitter import Scalar
from flnb.graph.nests import Access, Nest
from flnb_backends.native.accumulators import CHUNK
from flnb_backends.native.generator import ALIGNMENT, Generator
from flnb_backends.native.instructions import Code
from flnb_backends.native.lanes import SideBySide
from flnb_backends.native.rows import PlaceByPlace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.graph.nests import Step


class Size(int):
    """An extent that is known only at run time, when it is passed as a parameter of the generated function.

    As an int it is a typical extent, by which the code generator decides, for example, that sums need chunks. As text
    it is the parameter's name, which the generator writes into the code.
    """

    name: str

    def __new__(cls, typical: int, name: str) -> Size:
        self = super().__new__(cls, typical)
        self.name = name
        return self

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


class Share(float):
    """The reciprocal 1 / extent of a `Size`, used as the constant of a step."""

    size: Size

    def __new__(cls, size: Size) -> Share:
        self = super().__new__(cls, 1.0 / int(size))
        self.size = size
        return self

    def __repr__(self) -> str:
        return f"1 / {self.size}"


ROWS, COLUMNS = Size(1009, "%rows"), Size(2 * CHUNK + 3, "%columns")
"""Typical extents: primes, so that no other number of a nest is equal to them, and larger than all thresholds."""
SHARES = Share(ROWS), Share(COLUMNS)
WIDEST = 8
"""The bytes of an element of the widest dtype."""


def nest_of(
    arrays: Sequence[tuple[str, tuple[int, ...]]], steps: Sequence[Step], stores: Sequence[tuple[int, int]],
    across: bool = False,
) -> Nest:  # fmt: skip
    """Return a nest over a matrix of `ROWS` and `COLUMNS`.

    Args:
        arrays: the dtype's character and the shape of each array: a matrix, one row or column of it, or a number.
        steps, stores: those of the nest.
        across: whether the nest's inner loops run over the rows (to reduce columns) instead of over the columns.
    """
    laid = []
    for dtype, shape in arrays:
        row, column = (COLUMNS if COLUMNS in shape else 1) * (ROWS in shape), int(COLUMNS in shape)
        row = COLUMNS if row == COLUMNS else row
        laid.append(Access(dtype, (column,), (row,)) if across else Access(dtype, (row,), (column,)))
    extents = ((COLUMNS,), (ROWS,)) if across else ((ROWS,), (COLUMNS,))
    return Nest(*extents, tuple(laid), tuple(steps), tuple(stores))


class AnySize(Generator):
    """Writes the function ``int64 kernel(void *array, ..., void *scratch, int64 rows, int64 columns)`` of a nest.

    The function returns 1. It returns 0, without doing anything, if an address is not aligned for its array's dtype, or
    if a result partly overlaps another array. (Two arrays of the same shape may have the same address.)
    """

    together = 16  # as precise as a product with ones by BLAS, which has several accumulators

    def __init__(self, nest: Nest, *lane: int):
        super().__init__(nest, *lane)
        # No product is contracted with a sum: what cancels in NumPy's methods is to cancel here.
        self.rounded = {j for j, step in enumerate(nest.steps) if step.op != "divide"}

    def _divided(self) -> int:
        return -1

    def room(self, columns: int) -> int:
        """Return the bytes of scratch memory that the function needs for this number of columns."""
        return self.scratch

    def text(self) -> str:
        self.bases = [f"%array{i}" for i in range(len(self.nest.arrays))]
        self.memory = "%scratch"
        pointers = "".join(f"ptr {name}, " for name in (*self.bases, self.memory))
        self.code = code = Code("kernel", f"{pointers}i64 {ROWS}, i64 {COLUMNS}", self.width, "i64")
        fits = self._fits()
        self.shares = {}
        for share in SHARES:
            extent = code.add(f"sitofp i64 {share.size} to double")
            self.shares[share] = Scalar(code, code.add(f"fdiv double 1.0, {extent}"), "d")
        more = code.add(f"add nsw i64 {code.add(f'mul nsw i64 {COLUMNS}, {WIDEST}')}, {ALIGNMENT - 1}")
        self.row = code.add(f"and i64 {more}, {-ALIGNMENT}")
        with code.when(fits):
            self._write_loops()
        return code.text(code.add(f"zext i1 {fits} to i64"))

    def _fits(self) -> str:
        """Emit a test that all addresses are aligned and no result overlaps another array; returns the result."""
        add, arrays = self.code.add, self.nest.arrays
        starts, stops, tests = [], [], []
        for base, array in zip(self.bases, arrays, strict=True):
            size = str(np.dtype(array.dtype).itemsize)
            strides = (*array.outer, *array.inner)
            for extent, stride in zip((*self.nest.outer, *self.nest.inner), strides, strict=True):
                size = add(f"mul nsw i64 {size}, {extent}") if stride else size
            starts.append(add(f"ptrtoint ptr {base} to i64"))
            stops.append(add(f"add i64 {starts[-1]}, {size}"))
            rest = add(f"and i64 {starts[-1]}, {np.dtype(array.dtype).itemsize - 1}")
            tests.append(add(f"icmp eq i64 {rest}, 0"))
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

    def _operand(self, j: int, values: dict[int, Scalar]) -> Scalar:
        step = self.nest.steps[j]
        if isinstance(step.attribute, Share):
            return self.shares[step.attribute].to(step.dtype)
        return super()._operand(j, values)


class ByRows(AnySize, PlaceByPlace):
    """Writes the code of a nest whose inner space is a row; scratch memory has one row for each entry of ``slots``."""

    def room(self, columns: int) -> int:
        return len(self.slots) * (-(-columns * WIDEST // ALIGNMENT) * ALIGNMENT)

    def _reserve(self, use: str, j: int, dtype: str, count: int) -> None:
        self.slots[use, j] = len(self.slots)

    def _slot(self, use: str, j: int, dtype: str, index: str) -> str:
        base = self.code.element(self.memory, "b", self.row, self.slots[use, j])
        return self.code.element(base, dtype, index)


class ByColumns(AnySize, SideBySide):
    """Writes the code of a nest whose inner space is a column, for blocks of neighbouring columns."""

    def __init__(self, nest: Nest):
        super().__init__(nest, 0)
        if self.plan.kept and max(self.plan.kept.values()) < 0:
            raise TypeError("got a nest of columns that stores values in scratch memory between passes, expected none")
