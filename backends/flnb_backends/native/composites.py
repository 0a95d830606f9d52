"""Machine code for composites and their gradients, such as softmax and its pull, in a single pass over memory.

The nest is made from the ops of which the op table says that the composite consists: they are traced on a matrix of
typical extents (`flnb_backends.native.sizes`). So one kernel serves all shapes, and is ready at the first call.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb.dispatch.plan import Plan, spec_of
from flnb.dispatch.state import current, use
from flnb.dispatch.table import OPS
from flnb.dispatch.tracing import Traced, Tracing
from flnb.graph.nests import Step
from flnb.graph.scalars import APPROXIMATE, REDUCTIONS, supported
from flnb_backends.native.llvm import compiler
from flnb_backends.native.sizes import COLUMNS, ROWS, SHARE, AnySize, nest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flnb.dispatch.tracing import TracedOp
    from flnb.graph.nests import Nest

__all__ = ["Composite", "composite", "lowered"]

MATRIX = int(ROWS), int(COLUMNS)
"""The shape of what is traced."""
LAYOUTS = {
    MATRIX: "full", (MATRIX[0], 1): "column", (1, MATRIX[1]): "row", MATRIX[1:]: "row",
}  # fmt: skip
"""From the shape of a traced array to its layout, a key of `flnb_backends.native.sizes.STRIDES`."""


class Composite(NamedTuple):
    """The machine code of a composite or of its gradient.

    Attributes:
        function: the compiled function (`AnySize`); it takes pointers to the inputs that it reads, to the results and
            to scratch memory, and the numbers of rows and columns.
        pointer: returns the pointer to a C-contiguous array's elements; raises ValueError for another array.
        inputs: the layout of each input, None for one that the function does not read.
        results: the layout of each result; the position of an earlier result for one that is equal to that; None for
            an input without gradient.
        slots: the number of rows of scratch memory.
    """

    function: Callable[..., int]
    pointer: Callable[[Any], Any]
    inputs: tuple[str | None, ...]
    results: tuple[str | int | None, ...]
    slots: int


class _Lowering:
    """Turns the ops of a trace into the steps of a nest."""

    def __init__(self) -> None:
        self.arrays: list[tuple[str, str]] = []
        self.steps: list[Step] = []
        self.known: dict[int, int] = {}

    def loads(self, x: Traced | None) -> str | None:
        """Add a step that loads an input's elements; returns the input's layout, None if there is no input."""
        if x is None:
            return None
        self.known[id(x)] = self.step(Step("load", (), x._spec.dtype.char, attribute=len(self.arrays)))
        return self.array(x)

    def array(self, x: Traced) -> str:
        """Add an array to the nest; returns its layout."""
        layout = LAYOUTS[x._spec.shape]
        self.arrays.append((x._spec.dtype.char, layout))
        return layout

    def step(self, step: Step) -> int:
        """Add a step to the nest; returns its number."""
        self.steps.append(step)
        return len(self.steps) - 1

    def computes(self, traced: TracedOp) -> None:
        """Add the step of a traced op."""
        plan, operands, result = traced
        name, dtype = plan.op.name, result._spec.dtype.char
        of_numbers = next(x._spec.dtype.char for x in operands if isinstance(x, Traced))
        inputs = tuple([self.operand(x, of_numbers) for x in operands])
        over = {(0,): "outer", (1,): "inner"}[plan.attributes[0]] if name in REDUCTIONS else ""
        dtypes = [self.steps[i].dtype for i in inputs]
        if not supported(name, dtypes, dtype) or any(self.steps[i].over == "outer" for i in inputs):
            raise TypeError(
                f"{name} of {dtypes} with a result of dtype {dtype!r} has no machine code: expected ops that loop "
                f"nests can compute, of values that are no sums of columns"
            )
        self.known[id(result)] = self.step(Step(name, inputs, dtype, over))

    def operand(self, x: Any, dtype: str) -> int:
        """Return the number of the step that has an operand's value; the operand is a traced array or a number."""
        if isinstance(x, Traced):
            return self.known[id(x)]
        return self.step(Step("constant", (), dtype, attribute=SHARE if x == SHARE else x))

    def stores(self, results: Iterable[Traced | None]) -> tuple[list[tuple[int, int]], list[str | int | None]]:
        """Add the arrays of results; returns the nest's stores and the attribute ``results`` of `Composite`."""
        first: dict[int, int] = {}
        stores: list[tuple[int, int]] = []
        layouts: list[str | int | None] = []
        for position, x in enumerate(results):
            j = self.known[id(x)] if x is not None else -1
            if x is None or j in first:
                layouts.append(first.get(j))
                continue
            first[j] = position
            stores.append((j, len(self.arrays)))
            layouts.append(self.array(x))
        return stores, layouts


def lowered(name: str, inputs: int, dtype: Any, attributes: tuple[Any, ...], pulls: bool) -> tuple[Nest, Any, Any]:
    """Return the nest of a composite for any number of rows and columns, and the layouts of its inputs and results.

    Args:
        name: the composite's name.
        inputs: the number of its inputs; the first is a matrix, others have an element for each column.
        dtype: the dtype of all of them.
        attributes: the composite's attributes, as for a matrix.
        pulls: whether the nest is that of the composite's gradient, whose inputs are the cotangent, the composite's
            inputs, what it keeps, and its result.

    Raises:
        TypeError: the composite has an op that loop nests cannot compute.
    """
    op, trace, made = OPS[name], Tracing(), _Lowering()
    shapes = [MATRIX, *[MATRIX[1:]] * (inputs - 1)]
    given = [trace.input(spec_of(shape, dtype, current().kind)) for shape in shapes]
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
    layouts = [made.loads(x) for x in reads]
    for traced in trace.steps:
        made.computes(traced)
    trace.steps.clear()
    stores, stored = made.stores(results)
    return nest_of(made.arrays, made.steps, stores), layouts, stored


@lru_cache(None)
def composite(name: str, inputs: int, dtype: Any, attributes: tuple[Any, ...], pulls: bool) -> Composite | None:
    """Return the machine code of a composite or of its gradient, which is compiled at the first call.

    The arguments are those of `lowered`. Returns None without llvmlite or cffi; and where a function of the C library
    would compute element by element what NumPy computes in vectors: exponentials and the like in float64.
    """
    if find_spec("llvmlite") is None or find_spec("cffi") is None:
        return None
    found, layouts, results = lowered(name, inputs, dtype, attributes, pulls)
    if any(step.op in APPROXIMATE and step.dtype == "d" for step in found.steps):
        return None
    ffi: Any = import_module("_cffi_backend").FFI()  # its methods are C functions; those of `cffi.FFI` call these
    writer = AnySize(found)
    address = compiler().address("kernel", f"any size: {found!r}", writer.text)
    pointers = "void *, " * (len(found.arrays) + 1)
    function = ffi.cast(f"int64_t (*)({pointers}int64_t, int64_t)", address)
    return Composite(function, ffi.from_buffer, tuple(layouts), tuple(results), len(writer.slots))
