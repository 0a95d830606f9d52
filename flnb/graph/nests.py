"""Loop nests: the computation of one fused kernel as data, from which code generators make machine code.

A nest has an outer and an inner space. Each space is the index space of some nested loops. At each place (index tuple)
of the outer space, the steps of the nest run over the inner space, in as many passes as reductions need. For a softmax,
a first pass over a row finds the largest element, a second pass the sum of exponentials, and a third pass the results.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Access(NamedTuple):
    """The strides of an array, in elements, along each loop of a nest.

    Attributes:
        dtype: the elements' dtype as NumPy's character: "f", "d", "?", "l", ...
        outer, inner: the stride for each loop of the outer and of the inner space; 0 for a loop along which the element
            is the same (the array is broadcast, or the result of a reduction).
    """

    dtype: str
    outer: tuple[int, ...]
    inner: tuple[int, ...]


class Step(NamedTuple):
    """One scalar operation, load, constant or reduction of a nest.

    Attributes:
        op: the name of an op of the op table; or "load" or "constant".
        inputs: the numbers of the steps whose values this step reads.
        dtype: the dtype of the step's value, as NumPy's character.
        over: "" for a value at each place; "inner" for a reduction over the inner space, with a value for each place of
            the outer space; "outer" for a reduction over the outer space. No step of the same nest reads the value of
            an "outer" reduction.
        attribute: for "load" the position of the array, for "constant" the number.
    """

    op: str
    inputs: tuple[int, ...]
    dtype: str
    over: str = ""
    attribute: Any = None


class Nest(NamedTuple):
    """A loop nest over arrays: loop extents, scalar steps, and the arrays that they read and write.

    Attributes:
        outer, inner: the extents of the loops of the outer and of the inner space.
        arrays: the arrays that the nest reads and writes. Two arrays with equal strides may use the same memory.
        steps: the operations; a step reads the values of earlier steps only.
        stores: pairs of the number of a step and the position of the array to which its value is written, converted to
            the array's dtype. Results of reductions over the outer space are stored once, after the last pass.
    """

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    arrays: tuple[Access, ...]
    steps: tuple[Step, ...]
    stores: tuple[tuple[int, int], ...]
