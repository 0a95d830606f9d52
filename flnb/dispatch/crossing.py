"""The crossing: the code through which every op passes, which runs it, emits its event and records it on the tape.

The steps of an op are written once, as text (`flnb.dispatch.templates`). `Entries` compiles the text for each *form* of
op: the number of operands, with or without attributes, into new memory or in place, or as a composite for which the
backend has a method. Every op has a copy of that code, its *entry*, which CPython specialises to the types of the op's
operands.

`flnb.interface.tape` describes nodes. The entries themselves make the nodes of the default tape; other tapes make them
in their method `record`.
"""

from __future__ import annotations

import itertools
import sys
from functools import lru_cache, partial
from threading import Lock, get_ident
from time import perf_counter, perf_counter_ns
from types import FunctionType
from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus, schema
from numpy import empty as new_array

from flnb.dispatch import source_lines, state
from flnb.dispatch.failure import failed, failed_call
from flnb.dispatch.plan import Plan, Spec
from flnb.dispatch.promotion import adopted, foreign, plan_for
from flnb.dispatch.state import ACTIVATION, INPUT, TEMPORARY
from flnb.dispatch.templates import CREATE, PULL, RECORD, SUM, UPDATE, Form, compiled, entry_text, function_text
from flnb.tensor import Tensor, detached

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.dispatch.state import State
    from flnb.dispatch.table import Op, Update

__all__ = ["accumulate", "call", "create", "detached", "next_seq", "node", "update", "write"]

next_seq = itertools.count(1).__next__
"""The global sequence number: tape nodes and in-place writes are ordered by it."""

last_write = 0
"""The sequence number of the latest in-place write. Nodes with larger numbers need not check their saved values."""

_writing = Lock()
"""A lock held while a write gets its number, so that `last_write` never decreases."""

scoped = state._get
new = object.__new__


@lru_cache(None)
def _maker(form: Form) -> Any:
    """Compile the template for a form of op; return a function that makes the entry of an op of this form."""
    return _compile(entry_text(form), f"<crossing {' '.join(str(part) for part in form)}>")["make"]


def _entry(op: Op, operands: int, into: str) -> Callable[..., Any]:
    """Return the function that runs an op on ``operands`` operands; ``into`` is "out" to write into a given tensor."""
    makes = "kept" if op.body is not None else "memory" if op.writes_out else "view"
    makes = "combined" if op.separately is not None else makes
    form = Form(operands, op.arity == 0, op.broadcasts, makes, into)
    made: Any = _maker(form)(op, op.plans, op.index)
    code = made.__code__.replace(
        co_name=op.name, co_qualname=op.name
    )  # a copy of its own: CPython specialises it to this op's types
    own_copy = FunctionType(code, made.__globals__, op.name, made.__defaults__, made.__closure__)
    own_copy.__kwdefaults__, own_copy.__module__ = made.__kwdefaults__, "flnb.ops"
    return own_copy


class Entries(dict[tuple[int, str], Any]):
    """A dict of the functions that run one op; a key is ``(number of operands, "out" or "")``.

    A function is compiled at the first access to its key.
    """

    def __init__(self, op: Op) -> None:
        self.op = op

    def __missing__(self, key: tuple[int, str]) -> Any:
        made = self[key] = _entry(self.op, *key) if self.op.index >= 0 else partial(_unregistered, self.op)
        return made


def _unregistered(op: Op, *arguments: Any) -> Any:
    """Run an op that is not in the op table, such as a user's op: by an interpreter, or else by its body."""
    *tensors, attributes = arguments
    here = scoped() or state.session
    if here.interpreters:
        return intercepted(op, tuple(tensors), attributes)
    return by_body(op, attributes, tuple(tensors), here)


# Ways in --------------------------------------------------------------------------------------------------------------


def call(op: Op, tensors: tuple[Any, ...], attributes: tuple[Any, ...] = ()) -> Tensor:
    """Run an op on tensors, with hashable attributes such as axes; returns its result, in new memory or as a view."""
    count = len(tensors)
    run = op.entries[count, ""]
    if op.arity:
        return run(*tensors)
    return run(tensors[0], attributes) if count == 1 else run(*tensors, attributes)  # a star takes longer


def write(op: Op, tensors: tuple[Any, ...], attributes: tuple[Any, ...], out: Any) -> Tensor:
    """Run an op and write its result into an existing tensor, which is returned."""
    run = op.entries[len(tensors), "out"]
    return run(*tensors, out) if op.arity else run(*tensors, attributes, out)


def enter(op: Op, tensors: tuple[Any, ...], attributes: tuple[Any, ...], out: Any = None) -> Any:
    """Run an op into new memory, or into the tensor ``out`` if one is given; returns the result."""
    return call(op, tensors, attributes) if out is None else write(op, tensors, attributes, out)


def create(op: Op, spec: Spec, arguments: tuple[Any, ...], category: int = 0) -> Tensor:
    """Run an op that makes a tensor from no tensor, such as ``full``; ``arguments`` go to the backend's method.

    The category of the tensor's memory is that of the scope (`flnb.category`), or else ``category``. Without both, the
    category is "input" if the tensor is made outside of modules and scopes, and "temporary" inside of these.
    """
    here = scoped() or state.session
    if here.interpreters:
        separately = op.separately
        return (
            separately(spec, *arguments) if separately else here.interpreters[-1].create(op, spec, arguments, category)
        )
    plan = op.plans.get(spec)
    if plan is None:
        if not here.backend.supports(spec.dtype):
            raise TypeError(f"{op.name}: backend {here.backend.name!r} does not support {spec.dtype.name}")
        plan = op.plans.setdefault(spec, Plan(op, (), (), spec))
    if op.separately is not None and here.whole(plan, op.index) is None:
        return op.separately(spec, *arguments)
    kind = here.category or category or (TEMPORARY if bus.threads.here.path else INPUT)
    return _created(plan, here, arguments, kind)


def update(op: Update, tensors: tuple[Any, ...], numbers: tuple[float, ...] = (), sources: int = 1) -> bool:
    """Update tensors in place by one call of a backend's method; return False if the method cannot be called.

    The method reads the first ``sources`` tensors and writes the others. Its arguments are the tensors' buffers and the
    numbers, which may change from call to call. The method is not called if the backend lacks it, or if the written
    tensors differ from the sources in dtype, device or (see `Update.reshapes`) shape. Written tensor number i is
    compared with source number i modulo ``sources``. After False, the caller runs ops instead, which raise errors for
    wrong tensors.
    """
    here = scoped() or state.session
    specs = tuple([x._spec for x in tensors])
    plan = op.plans.get(specs)
    if plan is None:
        plan = op.plans.setdefault(specs, Plan(op, specs, (), specs[-1]))
        each = [(s.size if op.reshapes else s.shape, s.dtype) for s in specs]
        alike = each == each[:sources] * (len(specs) // sources) and len({s.kind for s in specs}) == 1
        plan.primitives = op.primitives if alike else None
    fits = plan.kind is here.direct and plan.primitives is not None
    kernel = here.whole(plan, op.index) if fits else None
    if kernel is None:
        return False
    _updated(plan, kernel, tensors, numbers)
    _mark_all_written(tensors[sources:])
    return True


def pull_plan(plan: Plan) -> Plan:
    """Make a plan of a composite's gradient, for telemetry; store it in the composite's ``plan`` and return it."""
    plan.pull = Plan(plan.op.gradient, (plan.spec,), plan.attributes, plan.specs[0])
    plan.pull.weight = max(spec.nbytes for spec in plan.specs)
    return plan.pull


def node(plan: Plan, parents: tuple[Any, ...], saved: tuple[Any, ...]) -> list[Any] | None:
    """Record a node for a result that was computed without an op; return the node, or None if the tape drops it."""
    here, seq = state.current(), next_seq()
    if bus.lanes is not None:
        emit_edges(bus.lanes.lane, plan, seq, [p[2] if p is not None else 0 for p in parents])
    return _recorded(plan, parents, seq, here, saved)


# Ways around ----------------------------------------------------------------------------------------------------------


def missed(op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...], out: Any = None) -> Any:
    """Run an op on dtypes, shapes or attributes that are new to it, after converting the operands and making a plan."""
    here = scoped() or state.session
    if here.interpreters:
        return intercepted(op, operands, attributes, out)
    try:
        if op.separately is not None and not op.combines(operands, attributes):  # type: ignore[attr-defined]
            return op.separately(*operands, *attributes)
        if op.body is not None and here.table[op.index] is None:
            return by_body(op, attributes, operands, here)
        _, operands = plan_for(op, operands, attributes, here)
    except Exception as error:
        failed_call(error, op, operands)
        raise
    return enter(op, operands, attributes, out)


def intercepted(op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...], out: Any = None) -> Any:
    """Run an op in place of its entry, if there is an interpreter, or if tensors belong to another backend."""
    here = scoped() or state.session
    if op.separately is not None and not (here.interpreters and here.interpreters[-1].combines):
        return op.separately(*operands, *attributes)
    if not here.interpreters:
        return enter(op, adopted(op, operands, here), attributes, out)
    first = here.interpreters[-1]
    if op.body is not None and not first.takes(op):
        return by_body(op, attributes, operands, here)
    return first.apply(op, operands, attributes) if out is None else first.write(op, operands, attributes, out)


def by_body(op: Op, attributes: tuple[Any, ...], tensors: tuple[Any, ...], here: State) -> tuple[Any, tuple[Any, ...]]:
    """Run a composite as the ops that it consists of; the tape gets one node for all of them.

    ``body(*tensors, *attributes) -> (result, kept)`` is called with plain Tensors. If the gradient is itself
    differentiated, the body runs again on Variables (`flnb.autograd.walk`).

    Returns:
        The result, and a tuple of the other values that the gradient reads.
    """
    body: Any = op.body
    if here.backend.aliases:
        tensors = adopted(op, tensors, here)
    parents = tuple([x._node for x in tensors]) if here.grad else ()
    lift = next((x._lift for x in tensors if x._lift is not None), None)
    if lift is None:
        return body(*tensors, *attributes)
    plain = [detached(x._data, x._spec) for x in tensors]
    seq = next_seq() if any(p is not None for p in parents) else 0
    lane = bus.lanes.lane if bus.lanes is not None else None
    outer = lane.node if lane is not None else 0
    if lane is not None:
        lane.node = seq or outer
    try:
        made, kept = state.run_in(here.keeping() if seq else here, body, *plain, *attributes)
    except Exception as error:
        failed_call(error, op, tensors)
        raise
    finally:
        if lane is not None:
            lane.node = outer
    result = new(lift)
    result._data, result._spec, result._node = made._data, made._spec, None
    if seq:
        specs = tuple([x._spec for x in tensors])
        key = op.key(specs, attributes)
        plan = op.plans.get(key) or op.plans.setdefault(key, Plan(op, specs, attributes, made._spec))
        *keeps, keep_y = plan.saves[-1]
        result._root = getattr(made, "_root", made)
        saved = (
            *[x if keep else None for x, keep in zip(tensors, keeps, strict=True)],
            *kept,
            made if keep_y else None,
        )
        result._node = _recorded(plan, parents, seq, here, saved)
        if lane is not None:
            emit_edges(lane, plan, seq, [p[2] if p is not None else 0 for p in parents])
    return result, kept


def sync() -> None:
    """Wait until everything that the active backends of all threads have launched has finished.

    For CPU backends that compute eagerly, this returns immediately. A backend that defers ops runs all of them first.

    >>> import flnb
    >>> flnb.sync()
    """
    active = [here.backend for here in list(state.live)]
    for backend in dict.fromkeys([state.current().backend, *active]):
        backend.sync()


# Steps of the text that are not taken by every op ---------------------------------------------------------------------


def emit_edges(lane: Any, plan: Plan, seq: int, edges: list[int]) -> None:
    """Emit the parents (``edges``) of node ``seq`` that do not fit into the op's own event, five to an event."""
    code = schema.EDGE | plan.code & schema.PLAN_BITS
    for i in range(0, len(edges), 5):
        lane.pending += (code, perf_counter_ns(), seq, *edges[i : i + 5], 0, 0, 0, 0)[: schema.WORDS]


def note_cuts(plan: Plan, nodes: tuple[Any, ...]) -> None:
    """Emit an event for each node whose result was read by an op without a gradient; `run.tape.why` reports these.

    ``plan`` is that of the op, ``nodes`` are those of its operands; None is ignored.
    """
    reason = schema.INTEGER if plan.spec.dtype.kind in "biu" else schema.NO_RULE
    for place in nodes:
        if place is not None:
            source_lines.note_cut(reason, place[2])


def checked_target(op: Op, plan: Plan, here: State, tensors: tuple[Any, ...]) -> Tensor:
    """Return the last of ``tensors``, to which an op will write; raise an error if the op cannot write to it.

    ``here`` is the active state. A tensor of another backend is converted if the conversion shares memory.
    """
    out = tensors[-1]
    if not isinstance(out, Tensor):
        raise TypeError(f"{op.name}: out must be a flnb Tensor, got {type(out).__name__}")
    if here.grad and any(getattr(x, "_node", None) is not None for x in tensors):
        raise RuntimeError(
            f"{op.name}: cannot write in place into or from a Variable that requires grad while gradients are "
            f"recorded; wrap the update in `with flnb.no_grad():` or drop out= to make a new Variable"
        )
    if out._spec.kind is not plan.kind:
        if not here.backend.aliases:  # a converted copy would be written
            raise foreign(op, (out,), here)
        (out,) = adopted(op, (out,), here)
    if out._spec is not plan.spec:
        raise ValueError(f"{op.name}: the result is {plan.spec!r} but out is {out._spec!r}; they must be equal")
    if not op.writes_out:
        raise TypeError(f"{op.name}: got out=, but the result is a view; use flnb.assign(out, value)")
    return out


def mark_written(tensor: Tensor, own: bool = False) -> None:
    """Record an in-place write to a tensor's memory, in the tensor that owns the memory.

    If ``own`` is true, the write is recorded in ``tensor`` itself: the tensor was given other memory with new values.
    """
    global last_write
    root = tensor if own else getattr(tensor, "_root", tensor)
    with _writing:
        root._write_note[0] = last_write = next_seq()


def _mark_all_written(tensors: tuple[Tensor, ...]) -> None:
    """Record that one op has written to all of these tensors, as `mark_written` does for one."""
    global last_write
    with _writing:
        last_write = seq = next_seq()
        for x in tensors:
            getattr(x, "_root", x)._write_note[0] = seq


# The compiled text ----------------------------------------------------------------------------------------------------

_NAMES: dict[str, Any] = {
    "ACTIVATION": ACTIVATION, "TEMPORARY": TEMPORARY, "Tensor": Tensor, "by_body": by_body, "bus": bus,
    "checked_target": checked_target, "clock": perf_counter, "detached": detached, "EDGE": schema.EDGE,
    "failed": failed, "frame_at": sys._getframe, "get_ident": get_ident, "intercepted": intercepted,
    "location": source_lines.location, "locations": source_lines.locations, "mark_written": mark_written,
    "missed": missed, "new": new, "new_array": new_array, "next_seq": next_seq, "note_cuts": note_cuts,
    "now": perf_counter_ns, "outside": source_lines.outside, "own": source_lines.own, "plan_for": plan_for,
    "pull_plan": pull_plan, "scoped": scoped, "state": state, "write": write,
}  # fmt: skip
"""The global names that the compiled text uses."""


def _compile(text: str, filename: str) -> dict[str, Any]:
    """Compile source text made from the templates; return a dict of the names that the text defines."""
    return compiled(text, filename, dict(_NAMES))


def _function(name: str, parameters: str, body: str) -> Any:
    """Return the function with this name, parameters and source text as its body."""
    return _compile(function_text(name, parameters, body), f"<crossing {name}>")[name]


_created = _function("_created", "plan, here, arguments, category", CREATE)
_recorded = _function("_recorded", "plan, parents, seq, here, saved", RECORD)
_updated = _function("_updated", "plan, kernel, tensors, numbers", UPDATE)
pull_whole = _function("pull_whole", "plan, here, seq, g, saved, wanted", PULL)
accumulate: Callable[[Op, Tensor, Any], None] = _function("accumulate", "add, total, term", SUM)
accumulate.__doc__ = "Add into a tensor that nothing else refers to: an in-place write that needs no mark."
