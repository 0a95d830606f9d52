"""Computes recorded values op by op, through the crossing: with blocks of memory and events as if they ran at once."""

from __future__ import annotations

from threading import RLock
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus, schema

from flnb.dispatch import state
from flnb.dispatch.crossing import call, create, pull_whole, write
from flnb.dispatch.plan import Plan, spec_of
from flnb.dispatch.promotion import plan_of_composite
from flnb.dispatch.table import OPS
from flnb.graph.values import ITEM, PUT, Value, reachable
from flnb.tensor import detached

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flnb.dispatch.state import State
    from flnb.dispatch.table import Op

__all__ = ["at_once", "compute"]

_running = RLock()


def at_once(backend: Any, category: int) -> State:
    """Return the present state, changed so that ops run on a backend at once; their memory is of this category."""
    here = state.current()
    name = f"at once {id(backend)} {category}"
    return here.variant(name, backend=backend, category=category, grad=False, interpreters=())


def compute(values: Iterable[Value]) -> None:
    """Compute values, and what they depend on, each on its backend.

    A value that was computed forgets its inputs, so that memory lives as long as it would if ops ran at once: until
    the last use.
    """
    with _running:  # another thread may want a value that both depend on
        wanted = list(values)
        waiting = reachable(wanted)[::-1]
        if not waiting:
            return
        t0, count, number = perf_counter_ns(), len(waiting), wanted[0].number if len(wanted) == 1 else 0
        lane = bus.lanes.lane if bus.lanes is not None else None
        context = lane.context if lane is not None else -1
        try:
            while waiting:
                value = waiting.pop()
                if lane is not None and value.context >= 0:
                    lane.context = value.context
                with state.entered(at_once(value.backend, value.category)):
                    value.tensor = _run(value, value.backend.buffer)
                value.inputs = ()
        finally:
            if lane is not None:
                lane.context = context
        bus.emit(schema.MATERIALIZE, t0, perf_counter_ns(), number, count, 0, 0, context)


def _run(value: Value, family: str) -> Any:
    """Run the op of a value, whose inputs are computed; returns a tensor of a family, or several."""
    op: Any = value.op
    tensors = tuple([x.tensor for x in value.inputs])
    if op is PUT:
        step, attributes = value.attributes
        whole = call(OPS["copy"], tensors[:1])
        write(OPS["copy"], tensors[1:], (), call(step, (whole,), attributes))
        return whole
    if op is ITEM:
        return tensors[0][value.attributes[0]]
    if op.body is not None:
        return _run_whole(op, tensors, value.attributes, family)
    if not tensors and op.family == "memory":
        return create(op, spec_of(value.spec.shape, value.spec.dtype, family), value.attributes)
    return call(op, tensors, value.attributes)


def _run_whole(op: Op, tensors: tuple[Any, ...], attributes: tuple[Any, ...], family: str) -> tuple[Any, ...]:
    """Run a composite, or the gradient of one; returns all results, None for those that are not wanted.

    Attributes: the composite's plan on the buffers on which it was recorded, which arguments are tensors (bools; the
    others are None), which results are wanted (bools).
    """
    plan: Plan
    plan, given, wanted = attributes
    if op is plan.op:
        result, more = call(op, tensors, plan.attributes)
        return result, *more
    specs = tuple([spec_of(s.shape, s.dtype, family) for s in plan.specs])
    own = plan_of_composite(plan.op, specs, plan.attributes)
    following = iter(tensors)
    g, *saved = [next(following)._data if here else None for here in given]
    made = pull_whole(own, state.current(), 0, g, saved, wanted)
    return tuple([m if m is None else detached(m, s) for m, s in zip(made, specs, strict=True)])
