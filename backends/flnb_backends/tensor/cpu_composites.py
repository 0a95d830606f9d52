"""Composites of the backend "cpu" by machine code that passes over memory once, called as `whole` describes.

The code is used from the first call on, so that results do not depend on how often an op has run. NumPy computes
arrays that are not contiguous, aligned float32 (or float64, without exponentials), and everything without llvmlite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_backends.native.composites import MATRIX, Shape, composite
from flnb_backends.tensor.convolution import scratch
from flnb_backends.tensor.whole import Whole

if TYPE_CHECKING:
    from flnb_backends.tensor.rows import Array, Out

__all__ = ["Composites"]

BYTES = np.dtype(np.uint8)


class Call(NamedTuple):
    """A kernel of a composite, or of its gradient, for arrays of certain shapes.

    Attributes:
        function: the compiled function.
        pointer: returns the pointer to a C-contiguous array's elements; raises ValueError for another array.
        reads: for each argument that is read: its position, number of elements, and dtype.
        numbers: the pointers between those to arguments and to results: to the numbers of columns, or none.
        dtype: the dtype of the results.
        shapes: the shape of each result; the position of an earlier result for one that is equal to that; None for an
            input without gradient.
        extents: the numbers of rows and columns.
        scratch: the bytes of scratch memory.
    """

    function: Callable[..., int]
    pointer: Callable[[Any], Any]
    reads: tuple[tuple[int, int, np.dtype[Any]], ...]
    numbers: tuple[Any, ...]
    dtype: np.dtype[Any]
    shapes: tuple[Shape | int | None, ...]
    extents: tuple[int, int]
    scratch: int

    def run(self, arguments: tuple[Any, ...], out: Out) -> tuple[Any, ...] | None:
        """Compute the results, into the arrays ``out`` if they are given; returns None if the code cannot take them."""
        pointer, dtype = self.pointer, self.dtype
        results: list[Any] = []
        try:
            pointers = []
            for i, size, kind in self.reads:
                x = arguments[i]
                if x.size != size or x.dtype is not kind:
                    return None
                pointers.append(pointer(x))
            pointers += self.numbers
            for shape in self.shapes:
                if type(shape) is tuple:
                    y = None if out is None else out[len(results)]
                    if y is None:
                        y = np.empty(shape, dtype)
                    elif y.shape != shape or y.dtype is not dtype:
                        return None
                    results.append(y)
                    pointers.append(pointer(y))
                else:
                    results.append(None if shape is None else results[shape])  # type: ignore[index]
        except ValueError:  # an array is not contiguous
            return None
        room = scratch((self.scratch,), BYTES) if self.scratch else b""
        return tuple(results) if self.function(*pointers, pointer(room), *self.extents) else None


@lru_cache(16)
def numbers(count: int) -> Array:
    """Return the numbers of this many columns."""
    return np.arange(count)


class Rows(NamedTuple):
    """How a composite's arrays are matrices.

    Attributes:
        attributes: the number of the composite's attributes.
        kept: the number of values that it keeps for its gradient.
        matrix: returns, for the shape of the first input and the attributes, how many of the last axes make a row, and
            the attributes for a matrix; None if there is no machine code.
        more: the shape, for a `MATRIX`, of the inputs after the first, and their dtype, None for that of the first.
        leader: the argument of the pull that has the shape of the first input.
        across: whether columns are reduced, rather than rows.
    """

    attributes: int = 0
    kept: int = 0
    matrix: Callable[..., tuple[int, tuple[Any, ...]] | None] = lambda shape, *attributes: (len(shape), attributes)
    more: tuple[Shape, np.dtype[Any] | None] = (MATRIX[1:], None)
    leader: int = 0
    across: bool = False


def _last(shape: Shape, axis: int) -> tuple[int, tuple[Any, ...]] | None:
    return (1, (1,)) if axis == len(shape) - 1 else None


COMPOSITES = {
    "relu": Rows(), "gelu": Rows(0, 1), "softmax": Rows(1, 0, _last), "log_softmax": Rows(1, 0, _last),
    "layer_norm": Rows(2, 3, lambda shape, count, eps: (count, (1, eps))),
    "batch_norm": Rows(1, 4, lambda shape, eps: (1, (eps,)) if len(shape) == 2 else None, across=True),
    "cross_entropy": Rows(1, 1, lambda shape, reduction: (1, (reduction,)), (MATRIX[:1], np.dtype("l")), 3),
}  # fmt: skip
"""The composites that have machine code."""


@lru_cache(1024)
def call(
    name: str, pulls: bool, tensors: int, shape: Shape, dtype: np.dtype[Any], attributes: tuple[Any, ...]
) -> Call | None:
    """Return the kernel of a composite for arrays of certain shapes; None if NumPy is to compute it.

    Args:
        name: the composite's name.
        pulls: whether its gradient is to be computed.
        tensors: the number of the arguments before the attributes.
        shape, dtype: those of the composite's first input.
        attributes: the composite's attributes.
    """
    rows = COMPOSITES[name]
    placed = rows.matrix(shape, *attributes)
    if placed is None or not math.prod(shape) or dtype.char not in "fd" or not dtype.isnative:
        return None
    count, attributes = placed
    more = tensors - 1 - (rows.kept + 2 if pulls else 0)
    inputs = (MATRIX, dtype), *[(rows.more[0], rows.more[1] or dtype)] * more
    found = composite(name, inputs, attributes, pulls, rows.across)
    if found is None:
        return None
    split = len(shape) - count
    n, width = math.prod(shape[:split]), math.prod(shape[split:])

    def placed_as(typical: Shape) -> Shape:
        """Return the shape of an array, given its shape for a `MATRIX`."""
        if typical == (MATRIX[0], 1):
            return (*shape[:split], *(1,) * count)
        extents = {MATRIX[0]: shape[:split], MATRIX[1]: shape[split:], 1: (1,)}
        return tuple([extent for each in typical for extent in extents[each]])

    reads = [(i, math.prod(placed_as(each[0])), each[1]) for i, each in enumerate(found.inputs) if each is not None]
    shapes = [placed_as(each) if isinstance(each, tuple) else each for each in found.results]
    between = (found.pointer(numbers(width)),) if found.numbers else ()
    made = found.function, found.pointer, tuple(reads), between, dtype, tuple(shapes), (n, width), found.room(width)
    return Call(*made)


def method(name: str, pulls: bool = False) -> Callable[..., tuple[Any, ...]]:
    """Return the method for a composite, or for its pull, that uses machine code where there is some."""
    by_numpy = getattr(Whole, f"{name}_pull" if pulls else name)
    attributes = COMPOSITES[name].attributes
    leader = COMPOSITES[name].leader if pulls else 0

    def run(self: Any, *arguments: Any, out: Out = None) -> tuple[Any, ...]:
        count = len(arguments) - attributes
        first = arguments[leader]
        found = call(name, pulls, count, first.shape, first.dtype, arguments[count:])
        made = found and found.run(arguments, out)
        return made or by_numpy(self, *arguments, out=out)

    return run


class Composites:
    """Methods of the backend "cpu" for composites and their gradients."""

    relu, relu_pull = method("relu"), method("relu", True)
    gelu, gelu_pull = method("gelu"), method("gelu", True)
    softmax, softmax_pull = method("softmax"), method("softmax", True)
    log_softmax, log_softmax_pull = method("log_softmax"), method("log_softmax", True)
    cross_entropy, cross_entropy_pull = method("cross_entropy"), method("cross_entropy", True)
    batch_norm, batch_norm_pull = method("batch_norm"), method("batch_norm", True)
    layer_norm, layer_norm_pull = method("layer_norm"), method("layer_norm", True)
