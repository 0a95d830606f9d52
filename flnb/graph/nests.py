"""Loop nests: the computation of one fused kernel as data, from which code generators make machine code.

A nest visits every place of an outer and an inner space. For each place of the outer space its steps run over the inner
space, in as many passes as its reductions ask for: the elements of a softmax are known only after a first pass over its
row has found the largest one, and a second one their sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Access", "Nest", "Step"]


class Access(NamedTuple):
    """An array's access pattern in a nest: its stride, in elements, along each loop.

    Attributes:
        dtype: the elements' dtype as NumPy's character: "f", "d", "?", "l", ...
        outer, inner: a stride for each loop of the outer and the inner space; 0 where the array has one element for all
            places (it is broadcast, or the result of a reduction).
    """

    dtype: str
    outer: tuple[int, ...]
    inner: tuple[int, ...]


class Step(NamedTuple):
    """One scalar operation, load, constant or reduction of a nest.

    Attributes:
        op: the name of a row of the op table; or "load", "constant".
        inputs: the numbers of the steps whose values it reads.
        dtype: the dtype of its value, as NumPy's character.
        over: "" for a value at each place; "inner" for a reduction over the inner space, with a value for each
            place of the outer one; "outer" for one over the outer space, whose value no step of the same nest reads.
        attribute: of "load" the position of the array, of "constant" the number.
    """

    op: str
    inputs: tuple[int, ...]
    dtype: str
    over: str = ""
    attribute: Any = None


class Nest(NamedTuple):
    """A loop nest over arrays: loop extents, scalar steps, and the arrays that they read and write.

    Attributes:
        outer, inner: the extents of the loops; equal nests have equal machine code.
        arrays: the arrays that it reads and writes. Two of them may be the same memory, if they are gone through in the
            same way.
        steps: the operations; a step reads only earlier ones.
        stores: pairs of the number of a step and the position of the array that its value is written to, converted to
            the array's dtype. Results of reductions over the outer space are stored once, after the last pass.
    """

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    arrays: tuple[Access, ...]
    steps: tuple[Step, ...]
    stores: tuple[tuple[int, int], ...]
