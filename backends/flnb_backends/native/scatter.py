"""Adding rows to rows chosen by indices, the gradient of an embedding, as machine code: `numpy.add.at` for whole rows.

Rows are added in the same order as by NumPy, so the results have the same bits.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_backends.native.instructions import type_of
from flnb_backends.native.llvm import compiler
from flnb_backends.native.preparation import prepares

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["USES", "add_rows"]

USES = 8
"""The number of calls that NumPy computes before the code is compiled."""
INDEX = np.dtype(np.int64)

_TEXT = """
define void @add_rows(ptr %out, ptr %rows, ptr %g, i64 %count, i64 %width, i64 %length) {{
entry:
  %any = icmp sgt i64 %count, 0
  %wide = icmp sgt i64 %width, 0
  %some = and i1 %any, %wide
  br i1 %some, label %row, label %done
row:
  %i = phi i64 [ 0, %entry ], [ %following, %end ]
  %place = getelementptr i64, ptr %rows, i64 %i
  %index = load i64, ptr %place
  %inside = icmp ult i64 %index, %length
  br i1 %inside, label %add, label %wrap
wrap:
  %rest = srem i64 %index, %length
  %negative = icmp slt i64 %rest, 0
  %wrapped = add i64 %rest, %length
  %found = select i1 %negative, i64 %wrapped, i64 %rest
  br label %add
add:
  %target = phi i64 [ %index, %row ], [ %found, %wrap ]
  %to = mul nsw i64 %target, %width
  %from = mul nsw i64 %i, %width
  %sums = getelementptr {type}, ptr %out, i64 %to
  %terms = getelementptr {type}, ptr %g, i64 %from
  br label %column
column:
  %j = phi i64 [ 0, %add ], [ %next, %column ]
  %a = getelementptr {type}, ptr %sums, i64 %j
  %b = getelementptr {type}, ptr %terms, i64 %j
  %x = load {type}, ptr %a
  %y = load {type}, ptr %b
  %sum = fadd {type} %x, %y
  store {type} %sum, ptr %a
  %next = add nsw i64 %j, 1
  %more = icmp slt i64 %next, %width
  br i1 %more, label %column, label %end
end:
  %following = add nsw i64 %i, 1
  %again = icmp slt i64 %following, %count
  br i1 %again, label %row, label %done
done:
  ret void
}}
"""
"""LLVM IR of the function; {type} is the type of the elements. An index is taken modulo the number of rows, so that the
code never accesses memory outside of the array."""

_calls = count()


@cache
@prepares
def _function(dtype: str) -> tuple[Callable[..., None], Any] | None:
    """Return the compiled function for a dtype, and cffi's ``ffi`` object; None if llvmlite or cffi is missing."""
    if find_spec("llvmlite") is None or find_spec("cffi") is None:
        return None
    ffi: Any = import_module("_cffi_backend").FFI()  # its methods are C functions; those of `cffi.FFI` call these
    text = _TEXT.format(type=type_of(dtype))
    address = compiler().address("add_rows", text, lambda: text)
    function = ffi.cast("void (*)(void *, void *, void *, int64_t, int64_t, int64_t)", address)
    return function, ffi.from_buffer


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
    function, pointer = found
    function(pointer(out), pointer(rows), pointer(g), rows.size, out.size // len(out), len(out))
    return True
