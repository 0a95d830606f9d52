"""Machine code for composites and their gradients, such as softmax and its pull, in a single pass over memory.

The op table has the body of each composite, a function of simpler ops. The body is traced on a matrix of typical
extents (`flnb_backends.native.sizes`), and the traced ops become a loop nest. The nest's kernel works for matrices of
any shape.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb.dispatch.plan import Plan, spec_of
from flnb.dispatch.state import current, use
from flnb.dispatch.table import OPS
from flnb.dispatch.tracing import Traced, Tracing
from flnb.graph.emitter import Scalar
from flnb.graph.nests import Step
from flnb.graph.scalars import APPROXIMATE, REDUCTIONS, supported
from flnb_backends.native.instructions import type_of
from flnb_backends.native.llvm import function
from flnb_backends.native.preparation import prepares
from flnb_backends.native.sizes import COLUMNS, ROWS, SHARES, ByColumns, ByRows, nest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from flnb.dispatch.plan import Spec
    from flnb.dispatch.table import Op
    from flnb.dispatch.tracing import TracedOp
    from flnb.graph.nests import Nest
    from flnb_backends.native.llvm import Function
    from flnb_backends.native.sizes import AnySize

MATRIX = int(ROWS), int(COLUMNS)
"""The shape of the matrix on which a composite's ops are traced."""
Shape = tuple[int, ...]
Laid = tuple[Shape, np.dtype[Any]]


class Composite(NamedTuple):
    """The machine code of a composite or of its gradient.

    Attributes:
        function: the compiled function (`AnySize`); it takes pointers to the inputs that it reads, to the results and
            to scratch memory, and the numbers of rows and columns.
        pointer: returns the pointer to a C-contiguous array's elements; raises ValueError for another array.
        inputs: the shape and dtype of each input when the first one is a `MATRIX`; None for an input that the function
            ignores.
        numbers: whether the function takes the numbers of the columns, int64, after the inputs.
        results: for each result its shape when the input is a `MATRIX`. If the result equals an earlier one, the
            position of the earlier one replaces the shape. None stands for a gradient that does not exist.
        room: returns the bytes of scratch memory for a number of columns.
    """

    function: Callable[..., int]
    pointer: Callable[[Any], Any]
    inputs: tuple[Laid | None, ...]
    numbers: bool
    results: tuple[Shape | int | None, ...]
    room: Callable[[int], int]


class _Tracing(Tracing):
    """A trace whose list ``numbers`` has the traced arrays that contain the numbers of the columns (0, 1, ...)."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[Traced] = []

    def create(self, op: Op, spec: Spec, arguments: tuple[Any, ...], category: int) -> Any:
        made = super().create(op, spec, arguments, category)
        if op.name == "arange" and spec.shape == MATRIX[1:] and arguments == (0, 1):
            self.numbers.append(made)
        return made


class _Lowering:
    """Turns the ops of a trace into the steps of a nest.

    Args:
        across: whether reductions over rows (axis 0), rather than those over columns, belong to the nest's inner space.
    """

    def __init__(self, across: bool) -> None:
        self.over = {(0,): "inner", (1,): "outer"} if across else {(0,): "outer", (1,): "inner"}
        self.arrays: list[tuple[str, Shape]] = []
        self.steps: list[Step] = []
        self.known: dict[int, int] = {}
        self.numbers = -1

    def loads(self, x: Traced | None) -> Laid | None:
        """Add a step that loads the elements of the input x; return x's shape and dtype, or None if x is None."""
        if x is None:
            return None
        self.known[id(x)] = self.load(x._spec.dtype.char, x._spec.shape)
        return x._spec.shape, x._spec.dtype

    def load(self, dtype: str, shape: Shape) -> int:
        """Add an array to the nest, and a step that loads its elements; returns the step's number."""
        self.arrays.append((dtype, shape))
        return self.step(Step("load", (), dtype, attribute=len(self.arrays) - 1))

    def step(self, step: Step) -> int:
        """Add a step to the nest; returns its number."""
        self.steps.append(step)
        return len(self.steps) - 1

    def number(self) -> int:
        """Return the number of the step that loads the numbers of the columns (0, 1, ...)."""
        if self.numbers < 0:
            self.numbers = self.load("l", MATRIX[1:])
        return self.numbers

    def computes(self, traced: TracedOp, numbers: Collection[Traced]) -> None:
        """Add the steps of a traced op to the nest.

        ``numbers`` lists the traced arrays whose elements are the numbers of the columns (0, 1, ...).
        """
        plan, operands, result = traced
        name, dtype = plan.op.name, result._spec.dtype.char
        if name == "gather":  # one element of each row, a sum with zeros
            x, _, places = operands
            hit = self.step(Step("equal", (self.number(), self.known[id(places)]), "?"))
            chosen = self.step(Step("where", (hit, self.known[id(x)], self.operand(0.0, dtype)), dtype))
            self.known[id(result)] = self.step(Step("sum", (chosen,), dtype, "inner"))
            return
        self.known.update({id(x): self.number() for x in operands if any(x is one for one in numbers)})
        of_numbers = next(x._spec.dtype.char for x in operands if isinstance(x, Traced))
        inputs = [self.operand(x, of_numbers) for x in operands]
        if name == "reshape":
            self.known[id(result)] = inputs[0]
            return
        last = len(self.steps) - 1
        if name == "multiply" and inputs == [last - 1, last] and self.steps[last - 1].over == "outer":
            self.known[id(result)] = self.sum_of_products()
            return
        over = self.over[plan.attributes[0]] if name in REDUCTIONS else ""
        dtypes = [self.steps[i].dtype for i in inputs]
        known = supported(name, dtypes, dtype)
        if not known or any(self.steps[i].over == "outer" for i in inputs):
            why = "an operand is a reduction over the outer space" if known else "loop nests cannot compute this op"
            raise TypeError(f"{name} of {dtypes} with a result of dtype {dtype!r} has no machine code: {why}")
        self.known[id(result)] = self.step(Step(name, tuple(inputs), dtype, over))

    def sum_of_products(self) -> int:
        """Replace the nest's last two steps, a sum over the outer space and its factor, by one sum of products.

        Instead of the sum, each of its terms is multiplied: sum(x) * factor becomes sum(x * factor). Return the number
        of the new sum's step.
        """
        total, factor = self.steps[-2:]
        self.steps[-2:] = [factor]
        product = self.step(Step("multiply", (*total.inputs, len(self.steps) - 1), total.dtype))
        return self.step(total._replace(inputs=(product,)))

    def operand(self, x: Any, dtype: str) -> int:
        """Return the number of the step that computes an operand, which is a traced array or a Python number."""
        if isinstance(x, Traced):
            return self.known[id(x)]
        return self.step(Step("constant", (), dtype, attribute=next((share for share in SHARES if share == x), x)))

    def stores(self, results: Iterable[Traced | None]) -> tuple[list[tuple[int, int]], list[Shape | int | None]]:
        """Add an array to the nest for each result; returns the nest's stores and `Composite`'s ``results``."""
        first: dict[int, int] = {}
        stores: list[tuple[int, int]] = []
        shapes: list[Shape | int | None] = []
        for position, x in enumerate(results):
            j = self.known[id(x)] if x is not None else -1
            if x is None or j in first:
                shapes.append(first.get(j))
                continue
            first[j] = position
            stores.append((j, len(self.arrays)))
            self.arrays.append((x._spec.dtype.char, x._spec.shape))
            shapes.append(x._spec.shape)
        return stores, shapes


def lowered(
    name: str, inputs: tuple[Laid, ...], attributes: tuple[Any, ...], pulls: bool, across: bool = False
) -> tuple[Nest, list[Laid | None], bool, list[Shape | int | None]]:
    """Return the nest of a composite for matrices of any size, and `Composite`'s ``inputs``, ``numbers``, ``results``.

    Args:
        name: the composite's name.
        inputs: the shape and dtype of each input; the first is a `MATRIX`.
        attributes: the composite's attributes for an input that is a matrix.
        pulls: whether to return the nest of the composite's gradient. Its inputs are the cotangent, the composite's
            inputs, the values that the composite saves, and its result.
        across: whether the composite reads sums (or other reductions) of columns, as batch norm does, instead of rows.

    Raises:
        TypeError: the composite has an op that loop nests cannot compute.
    """
    op, trace, made = OPS[name], _Tracing(), _Lowering(across)
    given = [trace.input(spec_of(shape, dtype, current().kind)) for shape, dtype in inputs]
    with use(interpreters=(trace,), grad=False):
        result, kept = op.body(*given, *attributes)  # type: ignore[misc]
        reads: list[Traced | None] = [*given]
        results: Iterable[Traced | None] = (result, *kept)
        if pulls:
            trace.steps.clear()
            plan = Plan(op, tuple([x._spec for x in given]), attributes, result._spec)
            *saves, saves_result = plan.saves[-1]
            saved = [x if save else None for x, save in zip(given, saves, strict=True)]
            reads = [trace.input(result._spec), *saved, *kept, result if saves_result else None]
            results = op.joint(*reads[:1], plan, *reads[1:])  # type: ignore[misc]
    laid = [made.loads(x) for x in reads]
    for traced in trace.steps:
        made.computes(traced, trace.numbers)
    trace.steps.clear()
    stores, stored = made.stores(results)
    return nest_of(made.arrays, made.steps, stores, across), laid, made.numbers >= 0, stored


@lru_cache(None)
def composite(
    name: str, inputs: tuple[Laid, ...], attributes: tuple[Any, ...], pulls: bool, across: bool
) -> Composite | None:
    """Return the machine code of a composite or of its gradient, which is compiled at the first call.

    The arguments are those of `lowered`. Returns None if llvmlite or cffi is not installed. It also returns
    None if the code would call the C library for each element, as for exponentials in float64, where NumPy is faster.
    """
    if any(each in SHARES for each in attributes):  # such a number would be taken for the reciprocal of an extent
        return None
    nest, laid, numbers, results = lowered(name, inputs, attributes, pulls, across)
    if any(step.op in APPROXIMATE and step.dtype == "d" for step in nest.steps):
        return None
    writer = (ByColumns if across else ByRows)(nest)
    found = function_of(writer)
    return found and Composite(*found, tuple(laid), numbers, tuple(results), writer.room)


def function_of(writer: AnySize) -> Function | None:
    """Compile a nest of any size; returns its function and the attribute ``pointer``, as in `Composite`."""
    pointers = "void *, " * (len(writer.nest.arrays) + 1)
    signature = f"int64_t (*)({pointers}int64_t, int64_t)"
    return function("kernel", signature, f"any size: {writer.nest!r}", writer.text)


class _Selecting(ByRows):
    """Writes the code of a nest that selects one of two values, such that LLVM can vectorize the code.

    LLVM would replace the two loads by one load from one of two addresses, and could not use vectors then. Therefore
    loaded values are frozen (LLVM's instruction ``freeze``).
    """

    def _value(self, j: int, values: dict[int, Scalar], places: Sequence[str]) -> Scalar:
        found, step = super()._value(j, values, places), self.nest.steps[j]
        if step.op != "load":
            return found
        return Scalar(self.code, self.code.add(f"freeze {type_of(step.dtype)} {found.value}"), step.dtype)


@lru_cache(None)
@prepares
def _selection(dtype: str, numbers: tuple[bool, bool]) -> Function | None:
    """Compile the selection of elements from two arrays; returns None if llvmlite or cffi is not installed.

    Args:
        dtype: the dtype of both arrays, as NumPy's character.
        numbers: for each of the two arrays, whether it is 0-d, that is, a single number.
    """
    shapes = [() if number else MATRIX for number in numbers]
    arrays = [("?", MATRIX), *[(dtype, shape) for shape in shapes], (dtype, MATRIX)]
    loads = [Step("load", (), kind, attribute=i) for i, (kind, _) in enumerate(arrays[:3])]
    return function_of(_Selecting(nest_of(arrays, [*loads, Step("where", (0, 1, 2), dtype)], [(3, 3)])))


def select(condition: Any, a: Any, b: Any, out: Any) -> bool:
    """Write to ``out`` the elements of a where ``condition`` is true, and elsewhere those of b; a and b may be 0-d.

    Return whether the elements were written. If False, nothing was written, and NumPy must do the selection: ``out`` is
    neither float32 nor float64, a or b has another dtype or another shape than ``out``, an array is not contiguous, or
    arrays share memory.
    """
    dtype, shape = out.dtype, out.shape
    if dtype.char not in "fd" or a.dtype is not dtype or b.dtype is not dtype or condition.dtype.char != "?":
        return False
    numbers = not a.ndim, not b.ndim
    if condition.shape != shape or not shape or any(x.ndim and x.shape != shape for x in (a, b)):
        return False
    found = _selection(dtype.char, numbers)
    if found is None:
        return False
    choose, pointer = found
    try:
        return bool(choose(*map(pointer, (condition, a, b, out)), pointer(b""), 1, out.size))
    except ValueError:  # an array is not contiguous
        return False
