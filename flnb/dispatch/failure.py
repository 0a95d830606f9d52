"""An op that failed: its error learns the op, the inputs and the user's line, and a recording that it failed."""

from __future__ import annotations

from functools import wraps
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from flnb_telemetry import bus, intern, schema

from flnb.dispatch import stacks
from flnb.dispatch.plan import Spec
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.dispatch.plan import Plan
    from flnb.ops.table import Op

__all__ = ["failed", "failed_call", "telling"]

Function = TypeVar("Function", bound="Callable[..., Any]")


def failed(error: Exception, plan: Plan, inputs: tuple[Any, ...]) -> None:
    """A backend's method raised an error: say where, and record it."""
    _tell(error, plan.op, inputs, plan.spec)


def failed_call(error: Exception, op: Op, inputs: tuple[Any, ...]) -> None:
    """A call with these inputs is wrong, or its result cannot be made."""
    if isinstance(error.__context__, (KeyError, AttributeError)) and error.__cause__ is None:
        error.__suppress_context__ = True  # that no plan was found is how calls begin
    _tell(error, op, inputs, None)


class _Called(NamedTuple):
    """A public function that is no op itself: what is told of it."""

    name: str
    family: str


def telling(family: str) -> Callable[[Function], Function]:
    """A decorator for a function of several ops that checks its tensors itself: what fails is told as of an op."""

    def decorate(function: Function) -> Function:
        called = _Called(function.__name__, family)

        @wraps(function)
        def told(*arguments: Any, **keywords: Any) -> Any:
            try:
                return function(*arguments, **keywords)
            except Exception as error:
                inputs = (*arguments, *keywords.values())
                _tell(error, called, tuple([x for x in inputs if isinstance(x, Tensor)]), None)
                raise

        return told  # type: ignore[return-value]

    return decorate


def _tell(error: Exception, op: Op | _Called, inputs: tuple[Any, ...], expected: Spec | None) -> None:
    if hasattr(error, "__notes__"):  # an op inside this one has spoken
        return
    specs = [getattr(x, "_spec", None) for x in inputs]
    given = " and ".join(repr(s) if isinstance(s, Spec) else _brief(x) for s, x in zip(specs, inputs, strict=True))
    giving = f", giving {expected!r}" if expected is not None else ""
    error.add_note(f"in {op.name!r} of {given}{giving}, called at {stacks.caller()}")
    if bus.lanes is not None:
        lane = bus.lanes.lane
        shapes = tuple(s.shape if isinstance(s, Spec) else () for s in specs)
        result = expected or next((s for s in specs if isinstance(s, Spec)), None)
        dtype = result.dtype.name if result is not None else ""
        about = intern.Plan(op.name, op.family, expected.shape if expected else (), dtype, 0, 0, shapes)
        message = intern.strings.id_of(f"{type(error).__name__}: {error}\n{error.__notes__[0]}")
        parents = [node[2] for node in (getattr(x, "_node", None) for x in inputs) if node is not None]
        code = schema.OP_FAILED | intern.plans.id_of(about) << schema.PLAN_SHIFT
        lane.emit(code, clock(), message, lane.node, lane.context, *[*parents, 0, 0][:2])


def _brief(x: Any) -> str:
    return repr(x) if isinstance(x, (int, float, complex)) else type(x).__name__
