"""Composites of the backend "cpu" by machine code that passes over memory once, called as `whole` describes.

The code is used from the first call on, so that results do not depend on how often an op has run. The machine code is
for contiguous, aligned arrays of float32, and of float64 if the composite has no exponentials. NumPy computes all other
arrays, and all arrays if llvmlite is not installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb.dispatch.dtypes import are_positions
from flnb.dispatch.templates import compiled
from flnb_backends.native.composites import MATRIX, Composite, Shape, composite
from flnb_backends.native.preparation import prepares
from flnb_backends.tensor.convolution import brief_scratch
from flnb_backends.tensor.whole import Whole

if TYPE_CHECKING:
    from flnb_backends.tensor.rows import Array, Out

Run = Callable[..., tuple[Any, ...] | None]
"""A function of a composite's arguments and of ``out``, which returns the results; None if NumPy has to compute them.

``out`` is a tuple with the arrays to write, each may be None, or None.
"""
TEXT = """
def make(function, pointer, empty, dtype, rows, columns, room, between, sizes, dtypes, shapes):
    {unpacked}
    def run({arguments}, out):
        if {unfit}:
            return None
        if out is None:
            {new}
        else:
            {given}, = out
            {missing}
            if {other}:
                return None
        try:
            done = function({pointers}, {room}, rows, columns)
        except ValueError:  # an array is not contiguous
            done = False
        return ({results}) if done else None
    return run
"""
"""The text of a `Run`: without loops over arrays it takes half the time, which counts for small ones."""


@lru_cache(None)
def maker(name: str, pulls: bool, found: Composite, tensors: int, attributes: int) -> Callable[..., Run]:
    """Return a factory of `Run` functions, each of which runs a composite's machine code on arrays of one shape.

    Args:
        name: the composite's name.
        pulls: whether the machine code is that of the composite's gradient.
        found: the machine code.
        tensors, attributes: the numbers of the arguments that are arrays or None, and of the attributes after them.
    """
    read = [i for i, each in enumerate(found.inputs) if each is not None]
    made = [i for i, each in enumerate(found.results) if isinstance(each, tuple)]
    results = [f"y{i if i in made else each}" if each is not None else "None" for i, each in enumerate(found.results)]
    lists = {"n": ("sizes", read), "k": ("dtypes", read), "p": ("shapes", made)}
    between = ["between"] if found.numbers else []
    unfit = [f"x{i}.size != n{i} or x{i}.dtype is not k{i}" for i in read]
    if found.numbers and not pulls:  # NumPy's method raises the error
        unfit += [f"not are_positions(x{i}, columns)" for i in read if found.inputs[i][1].kind == "i"]  # type: ignore[index]
    text = TEXT.format(
        unpacked="; ".join(f"{''.join(f'{x}{i}, ' for i in places)}= {name}" for x, (name, places) in lists.items()),
        arguments=", ".join(f"x{i}" for i in range(tensors + attributes)),
        unfit=" or ".join(unfit),
        new="; ".join(f"y{i} = empty(p{i}, dtype)" for i in made),
        given=", ".join(f"y{i}" for i in range(len(results))),
        missing="; ".join(f"y{i} = empty(p{i}, dtype) if y{i} is None else y{i}" for i in made),
        other=" or ".join(f"y{i}.shape != p{i} or y{i}.dtype is not dtype" for i in made),
        pointers=", ".join([*[f"pointer(x{i})" for i in read], *between, *[f"pointer(y{i})" for i in made]]),
        room="pointer(scratch(room))" if found.room(1) else "NOTHING",
        results="".join(f"{name}, " for name in results),
    )
    known = {"scratch": brief_scratch, "NOTHING": found.pointer(b""), "are_positions": are_positions}
    names = compiled(text, f"<composite {name}{'_pull' if pulls else ''}>", known)
    return names["make"]


@lru_cache(16)
def numbers(count: int) -> Array:
    """Return the column numbers 0 to ``count`` - 1."""
    return np.arange(count)


class Rows(NamedTuple):
    """Describes how the arrays of a composite can be treated as matrices.

    Attributes:
        attributes: the number of the composite's attributes.
        kept: the number of values that the composite stores for its gradient.
        matrix: a function of the shape of the first input and the attributes. It returns the number of the last axes
            that make a row, and the attributes for a matrix; None if there is no machine code.
        more: the shape, for a `MATRIX`, and the dtype of the inputs after the first; a dtype of None is that of the
            first input.
        leader: the number of the pull's argument that has the shape of the first input.
        across: whether the composite reduces columns (over the rows) rather than rows.
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
@prepares
def call(
    name: str, pulls: bool, tensors: int, shape: Shape, dtype: np.dtype[Any], attributes: tuple[Any, ...]
) -> Run | None:
    """Return the function that runs a composite's machine code on arrays of certain shapes; None if there is none.

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
        """Return the shape of an array, given the shape that it would have if the input were a `MATRIX`."""
        if typical == (MATRIX[0], 1):
            return (*shape[:split], *(1,) * count)
        extents = {MATRIX[0]: shape[:split], MATRIX[1]: shape[split:], 1: (1,)}
        return tuple([extent for each in typical for extent in extents[each]])

    reads = [(math.prod(placed_as(each[0])), each[1]) for each in found.inputs if each is not None]
    shapes = [placed_as(each) for each in found.results if isinstance(each, tuple)]
    between = found.pointer(numbers(width)) if found.numbers else None
    return maker(name, pulls, found, tensors, rows.attributes)(
        found.function, found.pointer, np.empty, dtype, n, width, found.room(width), between,
        [size for size, _ in reads], [kind for _, kind in reads], shapes,
    )  # fmt: skip


def method(name: str, pulls: bool = False) -> Callable[..., tuple[Any, ...]]:
    """Return the method for a composite, or for its pull, that uses machine code where there is some."""
    by_numpy = getattr(Whole, f"{name}_pull" if pulls else name)
    attributes = COMPOSITES[name].attributes
    leader = COMPOSITES[name].leader if pulls else 0

    def run(self: Any, *arguments: Any, out: Out = None) -> tuple[Any, ...]:
        count = len(arguments) - attributes
        first = arguments[leader]
        found = call(name, pulls, count, first.shape, first.dtype, arguments[count:])
        return (found and found(*arguments, out)) or by_numpy(self, *arguments, out=out)

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
