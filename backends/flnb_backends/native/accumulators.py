"""Accumulators of reductions in generated code, in registers or in a row of memory.

Sums of floating-point numbers are reordered, so that they can be vectorized. They stay precise, because at most `CHUNK`
elements (or `ROWS` places of the outer space) are added in the sum's own dtype; partial sums are added in float64.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flnb.graph.emitter import Scalar, kind, select
from flnb.graph.scalars import apply, identity
from flnb_backends.native.instructions import type_of

if TYPE_CHECKING:
    from flnb_backends.native.instructions import Code

CHUNK = 2048
ROWS = 128
_PAIRWISE = {
    "sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "any": "logical_or", "all": "logical_and",
}  # fmt: skip


def wide(op: str, dtype: str) -> str:
    """Return the dtype for combining the results of chunks: float64 for sums and products of floats, else ``dtype``."""
    return "d" if op in ("sum", "prod") and kind(dtype) == "f" else dtype


def combine(op: str, a: Scalar, b: Scalar) -> Scalar:
    """Combine two scalars of the same dtype by the reduction ``op``; return, for example, their sum or maximum."""
    if a.dtype == "?" and op in ("max", "min"):
        op = {"max": "any", "min": "all"}[op]
    return apply(_PAIRWISE[op], [a, b], a.dtype)


class Accumulator:
    """The local variables in which generated code reduces elements: one for the current chunk, one for earlier chunks.

    Args:
        code: the function that is being generated.
        op: the name of the reduction, such as "sum".
        dtype: the dtype of the reduction's result.
        chunks: whether there is more than one chunk.
    """

    def __init__(self, code: Code, op: str, dtype: str, chunks: bool):
        self.code, self.op, self.dtype, self.chunks = code, op, dtype, chunks
        self.first = Scalar(code, code.constant(identity(op, dtype), dtype), dtype)
        self.flagged = op in ("max", "min") and kind(dtype) == "f"
        self.part = code.variable(self.first)
        self.flag = code.variable(Scalar(code, "false", "?")) if self.flagged else ""
        self.total = code.variable(self.first.to(wide(op, dtype))) if chunks else ""

    def begin_chunk(self) -> None:
        """Emit the reset of the current chunk's variable to the reduction's initial value."""
        self.code.set(self.part, self.first)

    def add(self, x: Scalar) -> None:
        """Emit the accumulation of an element in the current chunk."""
        code, now = self.code, self.code.get(self.part, self.dtype)
        x = x.to(self.dtype)
        if self.flagged:
            self._extremum(x, now)
        elif self.op in ("sum", "prod") and kind(self.dtype) == "f":
            name = {"sum": "fadd", "prod": "fmul"}[self.op]
            value = code.add(f"{name} reassoc contract {type_of(self.dtype)} {now.value}, {x.value}")
            code.set(self.part, Scalar(code, value, self.dtype))
        else:
            code.set(self.part, combine(self.op, now, x))

    def _extremum(self, x: Scalar, now: Scalar) -> None:
        """Emit the update of an extremum, whose value so far is ``now``, by an element x.

        The comparison ignores NaN, so that the loop vectorizes; another variable stores whether there was a NaN.
        """
        code, name = self.code, type_of(self.dtype)
        test = {"max": "ogt", "min": "olt"}[self.op]
        better = code.add(f"fcmp nnan nsz {test} {name} {x.value}, {now.value}")
        value = code.add(f"select nnan nsz i1 {better}, {name} {x.value}, {name} {now.value}")
        code.set(self.part, Scalar(code, value, self.dtype))
        code.set(self.flag, code.get(self.flag, "?") | x.not_equal(x))

    def end_chunk(self) -> None:
        """Emit the combination of the current chunk's result with the result of the earlier chunks."""
        if self.chunks:
            dtype = wide(self.op, self.dtype)
            part = self.code.get(self.part, self.dtype).to(dtype)
            self.code.set(self.total, combine(self.op, self.code.get(self.total, dtype), part))

    def result(self) -> Scalar:
        """Return the scalar to which all chunks were reduced."""
        if self.chunks:
            found = self.code.get(self.total, wide(self.op, self.dtype)).to(self.dtype)
        else:
            found = self.code.get(self.part, self.dtype)
        return select(self.code.get(self.flag, "?"), math.nan, found) if self.flagged else found
