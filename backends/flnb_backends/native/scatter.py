"""Adding rows to rows chosen by indices, the gradient of an embedding, as machine code: `numpy.add.at` for whole rows.

Rows are added in the same order as by NumPy, so the results have the same bits.
"""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.graph.emitter import Scalar, select
from flnb_backends.native.instructions import Code
from flnb_backends.native.llvm import function
from flnb_backends.native.preparation import prepares

if TYPE_CHECKING:
    from flnb_backends.native.llvm import Function

USES = 8
"""The number of calls that NumPy computes before the code is compiled."""
INDEX = np.dtype(np.int64)

_calls = count()


def _text(dtype: str) -> str:
    """Return the LLVM IR of ``void add_rows(out, rows, g, count, width, length)`` for elements of a dtype.

    An index is taken modulo the number of rows, so that the code never accesses memory outside of the array.
    """
    code = Code("add_rows", "ptr %out, ptr %rows, ptr %g, i64 %count, i64 %width, i64 %length")
    with code.loop("0", "%count") as i:
        index = code.word("%rows", i)
        found = code.variable(index)
        with code.when(code.add(f"icmp uge i64 {index.value}, %length")):
            rest = index.make("remainder", length := Scalar(code, "%length", "q"))
            code.set(found, select(rest < 0, rest + length, rest))
        row = code.get(found, "q").value
        sums = code.element("%out", dtype, code.add(f"mul nsw i64 {row}, %width"))
        terms = code.element("%g", dtype, code.add(f"mul nsw i64 {i}, %width"))
        with code.loop("0", "%width") as j:
            here = code.element(sums, dtype, j)
            code.store(code.load(dtype, here) + code.load(dtype, code.element(terms, dtype, j)), here)
    return code.text()


@cache
@prepares
def _function(dtype: str) -> Function | None:
    """Return the compiled function for a dtype; None if llvmlite or cffi is missing."""
    types = "void *, void *, void *, int64_t, int64_t, int64_t"
    return function("add_rows", f"void (*)({types})", dtype, lambda: _text(dtype))


def _readable(x: Any) -> bool:
    """Return whether an array is C-contiguous, aligned, and in this machine's byte order."""
    flags = x.flags
    return bool(flags.c_contiguous and flags.aligned and x.dtype.isnative)


def add_rows(out: Any, rows: Any, g: Any) -> bool:
    """Add row i of ``g`` to row ``rows[i]`` of ``out``, both float32 or float64 arrays, in order of i.

    Args:
        out: an array of shape (k, ...), which is written.
        rows: int64 indices of any shape with n elements; negative ones count from the end.
        g: an array of n rows, each with as many elements as a row of ``out``.

    Returns:
        Whether the rows were added. If False, nothing was written: arrays are not contiguous or have other dtypes or
        shapes, a row is one element, llvmlite is not installed, or this is one of the first `USES` calls.
    """
    if out.dtype.char not in "fd" or g.dtype != out.dtype or rows.dtype != INDEX or not out.size:
        return False
    if not (out.flags.carray and _readable(rows) and _readable(g)) or g.size * len(out) != rows.size * out.size:
        return False
    if out.size == len(out) or next(_calls) < USES:  # NumPy adds single elements in half the time
        return False
    found = _function(out.dtype.char)
    if found is None:
        return False
    add, pointer = found
    add(pointer(out), pointer(rows), pointer(g), rows.size, out.size // len(out), len(out))
    return True
