"""Kernels: compiled machine code of loop nests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from flnb.graph.loops import simplified
from flnb.graph.scalars import REDUCTIONS, supported
from flnb_backends.native.lanes import SideBySide, lane_of
from flnb_backends.native.llvm import compiler
from flnb_backends.native.rows import PlaceByPlace

if TYPE_CHECKING:
    from flnb.graph.nests import Nest
    from flnb_backends.native.generator import Generator

LEAST_WORK = 1 << 18
"""The number of steps, for all places, from which on another thread takes part: with fewer, the wait costs more."""


class Kernel(NamedTuple):
    """The compiled machine code of a nest.

    Attributes:
        address: the address of the function ``void f(void **arrays, int64 begin, int64 end, int64 part)``. Its
            arguments are pointers to the nest's arrays, followed by a pointer to scratch memory, the range of
            iterations of one loop that the call computes, and the number of the part of scratch memory that it uses.
        extent: the number of iterations of that loop. A call with the range from 0 to ``extent`` computes the whole
            nest. Calls with other ranges are independent, and may run in any order and at the same time.
        scratch: the bytes of scratch memory, aligned for the largest dtype, for all calls that run at the same time.
        begin: the first iteration of a call that computes the whole nest.
        parts: into how many calls, which run at the same time, the range is to be divided.
    """

    address: int
    extent: int
    scratch: int
    begin: int = 0
    parts: int = 1


_kernels: dict[str, Kernel] = {}


def generator(nest: Nest) -> Generator:
    """Return one of two code generators for a nest: the first vectorizes an outer loop, the second the innermost loop.

    The loop along which more arrays are contiguous is vectorized.
    """
    simple = simplified(nest)
    lane = lane_of(simple)
    return PlaceByPlace(simple) if lane is None else SideBySide(simple, lane)


def kernel(nest: Nest) -> Kernel:
    """Return the kernel of a nest, which is compiled at the first call with an equal nest.

    Raises:
        ImportError: llvmlite is not installed.
        TypeError: the nest has a step for which `flnb.graph.scalars.supported` is false.
    """
    key = repr(nest)  # as a tuple the constants 0.0 and -0.0 would be equal
    found = _kernels.get(key)
    if found is None:
        _check(nest)
        writer = generator(nest)
        address = compiler().address("kernel", key, writer.text)
        found = _kernels[key] = Kernel(address, writer.extent, writer.scratch)
    return found


def divided(found: Kernel, nest: Nest, threads: int) -> Kernel:
    """Return the kernel ``found``, divided into as many parts as threads, or fewer if the nest takes little time."""
    work = math.prod((*nest.outer, *nest.inner, len(nest.steps)))
    parts = max(1, min(threads, found.extent, work // LEAST_WORK))
    return found._replace(parts=parts, scratch=parts * found.scratch)


def _check(nest: Nest) -> None:
    """Raise a TypeError if no machine code can be generated for a step of a nest."""
    for step in nest.steps:
        inputs = [nest.steps[i].dtype for i in step.inputs]
        op = step.op
        if op in ("load", "constant"):
            op, inputs = "copy", [nest.arrays[step.attribute].dtype if op == "load" else step.dtype]
        if not supported(op, inputs, step.dtype):
            raise TypeError(
                f"{step.op} of {inputs} with a result of dtype {step.dtype!r} has no machine code: "
                f"flnb.graph.scalars.supported is False for this op with these dtypes"
            )
        if bool(step.over) != (op in REDUCTIONS):
            raise TypeError(
                f"{step.op} with over={step.over!r} has no machine code: expected over='inner' or 'outer' for a "
                f"reduction, '' for any other op"
            )
