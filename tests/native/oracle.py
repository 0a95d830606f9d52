"""Nests computed by NumPy: the oracle that kernels are compared with, and ways to call kernels."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.native.lanes import SideBySide
from flnb_backends.native.llvm import compiler
from flnb_backends.native.nests import kernel

from flnb.graph.loops import simplified
from flnb.graph.nests import Access, Nest, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]

FUNCTIONS: dict[str, Any] = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "atan2": np.arctan2, "pow": np.power, "round": np.rint, "conj": np.conjugate,
    "bitwise_invert": np.invert, "bitwise_left_shift": np.left_shift, "bitwise_right_shift": np.right_shift,
}  # fmt: skip
REDUCTIONS: dict[str, Any] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "any": np.logical_or,
    "all": np.logical_and,
}  # fmt: skip


def load(position: int, dtype: str = "f") -> Step:
    return Step("load", (), dtype, "", position)


def constant(number: float, dtype: str = "f") -> Step:
    return Step("constant", (), dtype, "", number)


def step(op: str, *inputs: int, dtype: str = "f", over: str = "") -> Step:
    return Step(op, inputs, dtype, over)


def access(array: Array, outer: Sequence[int] = (), inner: Sequence[int] = ()) -> Access:
    """The access of a nest to an array, whose strides are given in elements."""
    return Access(array.dtype.char, tuple(outer), tuple(inner))


def view(array: Array, nest: Nest, position: int) -> Array:
    """The elements of an array at all places of a nest's space, which starts at the array's first element."""
    way = nest.arrays[position]
    strides = [array.itemsize * s for s in (*way.outer, *way.inner)]
    return np.lib.stride_tricks.as_strided(array, nest.outer + nest.inner, strides)


def expected(nest: Nest, arrays: Sequence[Array], wide: bool = True) -> list[Array]:
    """The values of all steps over the whole space; sums in float64."""
    split = len(nest.outer)
    shape = nest.outer + nest.inner
    axes = {"outer": tuple(range(split)), "inner": tuple(range(split, len(shape)))}
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for each in nest.steps:
            operands = [values[i] for i in each.inputs]
            if each.op == "load":
                found = view(arrays[each.attribute], nest, each.attribute).astype(each.dtype)
            elif each.op == "constant":
                found = np.full(shape, each.attribute, each.dtype)
            elif each.over:
                many = "d" if wide and each.dtype == "f" else each.dtype
                found = REDUCTIONS[each.op].reduce(
                    operands[0],
                    axes[each.over],
                    many,
                    keepdims=True,
                    **(
                        {"initial": {"max": -np.inf, "min": np.inf}[each.op]}
                        if each.op in ("max", "min") and each.dtype in "fd" and 0 in shape
                        else {}
                    ),
                )
                found = np.broadcast_to(found.astype(each.dtype), shape)
            else:
                found = value(each.op, operands, each.dtype)
            values.append(found)
    return values


def value(op: str, operands: Sequence[Array], dtype: str) -> Array:
    """An op of the table, computed by NumPy, or by flnb's NumPy backend where that has no function for it."""
    if op in ("astype", "copy", "real"):
        return operands[0].astype(dtype)
    if op == "erf":
        from flnb_backends.tensor.erf import erf

        return erf(operands[0].astype("d")).astype(dtype)
    if op in ("floor", "ceil", "trunc", "round") and dtype not in "fd":
        return operands[0].astype(dtype)
    return np.asarray((FUNCTIONS.get(op) or getattr(np, op))(*operands)).astype(dtype)


def run(
    nest: Nest, arrays: Sequence[Array], ranges: Sequence[tuple[int, int]] | None = None, lane: int | None = None
) -> None:
    """Call a nest's kernel on arrays, which it writes; by default for the whole of the loop that can be divided.

    With ``lane`` the kernel computes the places of an outer loop, one of the simplified nest's, side by side.
    """
    found = kernel(nest)
    if lane is not None:
        writer = SideBySide(simplified(nest), lane)
        address = compiler().address("kernel", f"{lane} {nest!r}", writer.text)
        found = found._replace(address=address, scratch=writer.scratch, extent=writer.extent)
    scratch = np.full(2 * found.scratch + 8, 0xAB, np.uint8)
    pointers = (ctypes.c_void_p * (len(arrays) + 1))(*[a.ctypes.data for a in arrays], scratch.ctypes.data)
    words = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    function = ctypes.CFUNCTYPE(None, *words)(found.address)
    part = int(ranges is not None)
    for begin, end in [(0, found.extent)] if ranges is None else ranges:
        function(pointers, begin, end, part)
    assert (scratch[(1 + part) * found.scratch :] == 0xAB).all()
    assert (scratch[: part * found.scratch] == 0xAB).all()


def pointwise(op: str, operands: Sequence[Array], dtype: str) -> Array:
    """An op on arrays of one dimension, computed by a kernel."""
    (size,) = operands[0].shape
    out = np.zeros(size, dtype)
    arrays = [np.ascontiguousarray(x) for x in (*operands, out)]
    arrays[-1] = out
    loads = tuple(load(i, x.dtype.char) for i, x in enumerate(operands))
    steps = (*loads, step(op, *range(len(operands)), dtype=dtype))
    nest = Nest((), (size,), tuple(access(x, (), (1,)) for x in arrays), steps, ((len(operands), len(operands)),))
    run(nest, arrays)
    return out
