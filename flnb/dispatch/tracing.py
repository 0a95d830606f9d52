"""Tracing: runs functions on tensors without values to list the ops that they call.

A trace is the list of these ops with their plans and operands. The plan of a composite op is made from a trace
(`flnb.dispatch.table.Op.outline`), and so is the text of a compiled gradient (`flnb.autograd.compiled_pulls`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from flnb.dispatch import state
from flnb.dispatch.failure import Untraceable
from flnb.dispatch.interpreter import Interpreter
from flnb.dispatch.promotion import plan_for
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from flnb.dispatch.plan import Plan, Spec
    from flnb.dispatch.table import Op


class TracedOp(NamedTuple):
    """One op of a trace: its plan, operands (tensors or numbers) and result."""

    plan: Plan
    operands: tuple[Any, ...]
    result: Traced


class Traced(Tensor):
    """A tensor with a spec but without elements, on which a function can be traced.

    Attributes:
        contiguous: whether the elements of the real tensor will be in row-major order without gaps; None if this is
            not known before the trace is used.
    """

    __slots__ = ("_trace", "contiguous")

    def __init__(self, trace: Tracing, spec: Spec, contiguous: bool | None) -> None:
        self._trace, self._spec, self.contiguous = trace, spec, contiguous

    @property
    def _data(self) -> NoReturn:
        raise Untraceable

    def _values(self) -> NoReturn:
        raise Untraceable

    def _bounds(self) -> tuple[Any, Any]:
        return 0, 0  # values were checked before what is traced was called

    def _are_positions(self, n: int) -> bool:
        return True

    def _is_contiguous(self) -> bool:
        if self.contiguous is None:
            self._trace.assumed.append(self)
            self.contiguous = True
        if not self.contiguous:
            raise Untraceable
        return True


class Tracing(Interpreter):
    """Lists the ops that are called on traced tensors; ops on other tensors run normally.

    Attributes:
        steps: the ops in order.
        assumed: inputs that must be contiguous whenever the trace is used.
    """

    def __init__(self) -> None:
        self.steps: list[TracedOp] = []
        self.assumed: list[Traced] = []

    def input(self, spec: Spec) -> Traced:
        """Return a new traced tensor for an input of the traced function."""
        return Traced(self, spec, None)

    def apply(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        if not any(isinstance(x, Traced) for x in operands):
            return self.run(op, operands, attributes)
        return self.add(*plan_for(op, operands, attributes, state.current()))

    def add(self, plan: Plan, operands: tuple[Any, ...]) -> Traced:
        """Add an op to the list; return a traced tensor for its result."""
        result = Traced(self, plan.spec, plan.op.writes_out or plan.op.name == "reshape")
        self.steps.append(TracedOp(plan, operands, result))
        return result

    def create(self, op: Op, spec: Spec, arguments: tuple[Any, ...], category: int) -> Any:
        return Traced(self, spec, True)

    def write(self, *_: Any) -> NoReturn:
        raise Untraceable
