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

from flnb_backends.native.composites import composite
from flnb_backends.native.sizes import row_bytes
from flnb_backends.tensor.convolution import scratch
from flnb_backends.tensor.whole import Whole

if TYPE_CHECKING:
    from flnb_backends.tensor.rows import Out

__all__ = ["Composites"]

BYTES = np.dtype(np.uint8)


class Call(NamedTuple):
    """A kernel of a composite, or of its gradient, for arrays of certain shapes.

    Attributes:
        function: the compiled function.
        pointer: returns the pointer to a C-contiguous array's elements; raises ValueError for another array.
        sizes: the number of elements of each input; 0 for one that is not read.
        shapes: the shape of each result; the position of an earlier result for one that is equal to that; None for an
            input without gradient.
        extents: the numbers of rows and columns.
        scratch: the bytes of scratch memory.
    """

    function: Callable[..., int]
    pointer: Callable[[Any], Any]
    sizes: tuple[int, ...]
    shapes: tuple[tuple[int, ...] | int | None, ...]
    extents: tuple[int, int]
    scratch: int

    def run(self, inputs: tuple[Any, ...], dtype: np.dtype[Any], out: Out) -> tuple[Any, ...] | None:
        """Compute the results, into the arrays ``out`` if they are given; returns None if the code cannot take them."""
        pointer, pointers = self.pointer, []
        results: list[Any] = []
        try:
            for x, size in zip(inputs, self.sizes, strict=True):
                if size:
                    if x.size != size or x.dtype is not dtype:
                        return None
                    pointers.append(pointer(x))
            for shape in self.shapes:
                if isinstance(shape, tuple):
                    y = None if out is None else out[len(results)]
                    if y is None:
                        y = np.empty(shape, dtype)
                    elif y.shape != shape or y.dtype is not dtype:
                        return None
                    results.append(y)
                    pointers.append(pointer(y))
                else:
                    results.append(None if shape is None else results[shape])
        except ValueError:  # an array is not contiguous
            return None
        room = scratch((self.scratch,), BYTES) if self.scratch else b""
        return tuple(results) if self.function(*pointers, pointer(room), *self.extents) else None


class Rows(NamedTuple):
    """How a composite's arrays are matrices.

    Attributes:
        attributes: the number of the composite's attributes.
        kept: the number of values that it keeps for its gradient.
        matrix: returns, for a number of axes and the attributes, how many of the last axes make a row, and the
            attributes for a matrix; None if the composite works along other axes.
    """

    attributes: int = 0
    kept: int = 0
    matrix: Callable[..., tuple[int, tuple[Any, ...]] | None] = lambda ndim, *attributes: (ndim, attributes)


def _last(ndim: int, axis: int) -> tuple[int, tuple[Any, ...]] | None:
    return (1, (1,)) if axis == ndim - 1 else None


COMPOSITES = {
    "relu": Rows(), "gelu": Rows(0, 1), "softmax": Rows(1, 0, _last), "log_softmax": Rows(1, 0, _last),
    "layer_norm": Rows(2, 3, lambda ndim, count, eps: (count, (1, eps))),
}  # fmt: skip
"""The composites that have machine code."""


@lru_cache(1024)
def call(
    name: str, pulls: bool, tensors: int, shape: tuple[int, ...], dtype: np.dtype[Any], attributes: tuple[Any, ...]
) -> Call | None:
    """Return the kernel of a composite for arrays of certain shapes; None if NumPy is to compute it.

    Args:
        name: the composite's name.
        pulls: whether its gradient is to be computed.
        tensors: the number of the arguments before the attributes.
        shape, dtype: those of the first argument.
        attributes: the composite's attributes.
    """
    rows = COMPOSITES[name]
    placed = rows.matrix(len(shape), *attributes)
    if placed is None or not math.prod(shape) or dtype.char not in "fd" or not dtype.isnative:
        return None
    count, attributes = placed
    found = composite(name, tensors - rows.kept - 2 if pulls else tensors, dtype, attributes, pulls)
    if found is None:
        return None
    split = len(shape) - count
    n, width = math.prod(shape[:split]), math.prod(shape[split:])
    sizes = {"full": n * width, "row": width, "column": n, None: 0}
    shapes = {"full": shape, "row": shape[split:], "column": (*shape[:split], *(1,) * count)}
    results = tuple([shapes[x] if isinstance(x, str) else x for x in found.results])
    room = found.slots * row_bytes(width)
    return Call(found.function, found.pointer, tuple([sizes[x] for x in found.inputs]), results, (n, width), room)


def method(name: str, pulls: bool = False) -> Callable[..., tuple[Any, ...]]:
    """Return the method for a composite, or for its pull, that uses machine code where there is some."""
    by_numpy = getattr(Whole, f"{name}_pull" if pulls else name)
    attributes = COMPOSITES[name].attributes

    def run(self: Any, *arguments: Any, out: Out = None) -> tuple[Any, ...]:
        count = len(arguments) - attributes
        first = arguments[0]
        found = call(name, pulls, count, first.shape, first.dtype, arguments[count:])
        made = found and found.run(arguments[:count], first.dtype, out)
        return made or by_numpy(self, *arguments, out=out)

    return run


class Composites:
    """Methods of the backend "cpu" for composites and their gradients."""

    relu, relu_pull = method("relu"), method("relu", True)
    gelu, gelu_pull = method("gelu"), method("gelu", True)
    softmax, softmax_pull = method("softmax"), method("softmax", True)
    log_softmax, log_softmax_pull = method("log_softmax"), method("log_softmax", True)
    layer_norm, layer_norm_pull = method("layer_norm"), method("layer_norm", True)
