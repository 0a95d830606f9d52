"""Errors of ops: add a note with the op, its inputs and the user's line, and emit an event to recordings.

The event refers to leaves of the tape by number. Separate events give recordings the names of these leaves.
"""

from __future__ import annotations

from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb_telemetry import bus, intern, schema

from flnb.dispatch import source_lines
from flnb.dispatch.plan import Spec
from flnb.interface.tape import PARENTS, PLAN, SEQ, Node
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flnb.dispatch.plan import Plan
    from flnb.dispatch.table import Op

SHOWN = 8  # tensors in a note
NAME, PARAMETER = 4, 5  # of a leaf's node
MOST = 4096
"""The largest number of nodes that are searched for leaves."""


class Untraceable(Exception):
    """Raised if a traced function reads a value or writes in place; the function then runs untraced instead."""


def failed(error: Exception, plan: Plan, inputs: tuple[Any, ...]) -> None:
    """Add a note with op and line to an error that a backend's method raised, and emit an event."""
    _tell(error, plan.op, inputs, plan.spec)


def failed_call(error: Exception, op: Op, inputs: tuple[Any, ...]) -> None:
    """Like `failed`, for errors outside of the backend's method: invalid inputs, or a failed allocation."""
    _tell(error, op, inputs, None)


class _Called(NamedTuple):
    """Used in place of an `Op` in error events about a public function that is not an op."""

    name: str
    family: str


def failed_function(error: Exception, name: str, family: str, arguments: Iterable[Any]) -> None:
    """Emit an error event for a public function, as if it were an op on the tensors among its arguments.

    ``family`` is the kind of this op, see `flnb.dispatch.table.Op`.
    """
    tensors = tuple(_tensors(arguments))
    if not isinstance(error, Untraceable):
        _tell(error, _Called(name, family), tensors, None)


def refused(error: Exception, name: str, *tensors: Tensor) -> Exception:
    """Emit and return the error of a function on ``tensors``: ``raise refused(ValueError(...), "reshape", x)``.

    This is for functions that are called too often to be wrapped by `flnb.ops.documentation.public`.
    """
    failed_function(error, name, "matmul" if name == "matmul" else "movement", tensors)
    return error


def _tensors(arguments: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among a function's arguments, including those in lists."""
    found: list[Tensor] = []
    for x in arguments:
        found += [x] if isinstance(x, Tensor) else _tensors(x) if isinstance(x, (tuple, list)) else []
    return found


def _tell(error: Exception, op: Op | _Called, inputs: tuple[Any, ...], expected: Spec | None) -> None:
    """Add a note to an error and emit an event, once per error; ``expected`` is the spec planned for the result."""
    _hide_lookup(error)
    if hasattr(error, "__notes__"):  # an op inside this one has spoken
        return
    specs = [getattr(x, "_spec", None) for x in inputs]
    each = [repr(s) if isinstance(s, Spec) else _brief(x) for s, x in zip(specs, inputs, strict=True)]
    each[SHOWN:] = [f"{len(each) - SHOWN} more"] if len(each) > SHOWN else []
    given = f" of {' and '.join(each)}" if each else ""
    giving = f", giving {expected!r}" if expected is not None else ""
    error.add_note(f"in {op.name!r}{given}{giving}, called at {source_lines.caller()}")
    if bus.lanes is not None:
        lane = bus.lanes.lane
        shapes = tuple(s.shape if isinstance(s, Spec) else () for s in specs)
        result = expected or next((s for s in specs if isinstance(s, Spec)), None)
        dtype = result.dtype.name if result is not None else ""
        about = intern.Plan(op.name, op.family, expected.shape if expected else (), dtype, 0, 0, shapes)
        message = intern.strings.id_of(f"{type(error).__name__}: {error}\n{error.__notes__[0]}")
        emit_leaves_above(lane, inputs)
        parents = [node[2] for node in (getattr(x, "_node", None) for x in inputs) if node is not None]
        code = schema.OP_FAILED | intern.plans.id_of(about) << schema.PLAN_SHIFT
        lane.emit(code, clock(), message, lane.node, source_lines.here(lane.context), *[*parents, 0, 0][:2])


def _hide_lookup(error: BaseException) -> None:
    """Remove from an error's chain of contexts the failed search for a plan, with which an op's first call begins."""
    while (earlier := error.__context__) is not None:
        trace = earlier.__traceback__
        if trace is not None and "<crossing" in trace.tb_frame.f_code.co_filename:
            error.__context__ = None
            return
        error = earlier


def _brief(x: Any) -> str:
    """Return the note's text for an input that is not a tensor: a number itself, or the name of the input's type."""
    return repr(x) if isinstance(x, (int, float, complex)) else type(x).__name__


def emit_leaf(lane: Any, leaf: Node, spec: Spec) -> tuple[int, int]:
    """Emit an event with a leaf's name.

    Returns:
        Two numbers for other events about the leaf: the code of its shape and dtype, which is added to the event's
        kind, and the number of its name.
    """
    plan = intern.plans.id_of(intern.Plan("leaf", "memory", spec.shape, spec.dtype.name, spec.nbytes))
    name = intern.strings.id_of(leaf[NAME]) if leaf[NAME] else 0
    code = plan << schema.PLAN_SHIFT
    lane.emit(schema.LEAF | code, clock(), leaf[SEQ], name, int(leaf[PARAMETER]))
    return code, name


def emit_leaves_above(lane: Any, tensors: tuple[Any, ...]) -> None:
    """Emit the names of the leaves from which tensors were computed; at most `MOST` nodes are searched."""
    waiting = [(node, x._spec) for x in tensors for node in [getattr(x, "_node", None)] if node is not None]
    seen: set[int] = set()
    while waiting and len(seen) < MOST:
        node, spec = waiting.pop()
        if node[SEQ] in seen:
            continue
        seen.add(node[SEQ])
        if node[PLAN] is None:
            emit_leaf(lane, node, spec)
        else:
            above = zip(node[PARENTS] or (), node[PLAN].specs, strict=False)
            waiting += [(p, s) for p, s in above if p is not None and isinstance(s, Spec)]
