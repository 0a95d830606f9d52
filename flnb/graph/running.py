"""Execution of recorded values op by op, with the same allocations and events as in eager execution."""

from __future__ import annotations

from threading import RLock
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

from flnb_telemetry import bus, schema
from flnb_telemetry.lane import Lane
from flnb_telemetry.withblock import with_block

from flnb.dispatch import state
from flnb.dispatch.crossing import call, create, pull_whole, write
from flnb.dispatch.plan import Plan, spec_of
from flnb.dispatch.promotion import plan_of_composite
from flnb.dispatch.source_lines import pinned
from flnb.dispatch.table import OPS
from flnb.graph.segments import unfolded
from flnb.graph.values import ITEM, PUT, Place, Value
from flnb.tensor import detached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flnb.dispatch.state import State
    from flnb.dispatch.table import Op

T = TypeVar("T")
running = RLock()
"""A lock that is held while values are computed, because two threads may need the same value."""
_states: dict[tuple[Any, int], State] = {}
MOST = 32
"""The largest number of cached states."""


def at_once(place: Place, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function with ops run eagerly, on the backend and memory manager of ``place``."""
    backend, manager, category, _ = place
    with running:
        found = _states.get((backend, category))
        if found is None:
            if len(_states) >= MOST:
                _states.clear()
            found = _states[backend, category] = state.session.lasting()
            found.change(backend=backend, category=category, grad=False, interpreters=())
        before = found.manager, found.min_block
        found.manager, found.min_block = manager, max(manager.min_block, 0)
        try:
            with state.entered(found):
                return function(*arguments)
        finally:
            found.manager, found.min_block = before


@with_block
def materializing() -> Iterator[list[int]]:
    """Emit an event with the time of the ``with`` block and the number of values computed in it.

    Yield a list with one element, in which the block counts the computed values.
    """
    t0, count = perf_counter_ns(), [0]
    lane = bus.lanes.lane if bus.lanes is not None else Lane(0)
    before = lane.context, lane.node
    lane.node = 0  # what is computed here is not part of the op that is under way
    try:
        yield count
    finally:
        lane.context, lane.node = before
        bus.emit(schema.MATERIALIZE, t0, perf_counter_ns(), count[0], 0, 0, 0, before[0])


def compute(values: Sequence[Value]) -> None:
    """Compute values and their inputs, each on the backend of its `Place`.

    After the computation, a value no longer refers to its inputs, so that the inputs' memory is freed after the last
    use, as in eager execution.
    """
    with running:
        waiting = unfolded(values)[::-1]
        if not waiting:
            return
        lane = bus.lanes.lane if bus.lanes is not None else Lane(0)
        with materializing() as count:
            context = lane.context
            while waiting:
                value = waiting.pop()
                if value.tensor is None:
                    lane.context = pinned(value.context) if value.context >= 0 else context
                    _compute(value)
                count[0] += 1


def _compute(value: Value) -> None:
    """Compute a value, all of whose inputs are computed; each of several results is stored in a value of its own."""
    try:
        found = at_once(value.place, run, value, tuple([x.tensor for x in value.inputs]), value.place.backend.buffer)
    except Exception as error:
        error.add_note("flnb: recorded earlier on a backend that defers, and computed when a value was asked for")
        raise
    value.tensor = found
    value.inputs = ()
    if isinstance(found, tuple):
        for item in value.attributes[3]:
            if (wanted := item()) is not None:
                wanted.tensor = found[wanted.attributes[0]]
                wanted.inputs = ()
        value.tensor = ()  # what no item refers to is not needed


def run(value: Value, tensors: tuple[Any, ...], family: str) -> Any:
    """Run a value's op on ``tensors`` in place of its inputs; returns a tensor, or a tuple of several results.

    ``family`` is the family of the tensors' buffers.
    """
    op: Any = value.op
    if op is PUT:
        step, attributes = value.attributes
        whole = call(OPS["copy"], tensors[:1])
        write(OPS["copy"], tensors[1:], (), call(step, (whole,), attributes))
        return whole
    if op is ITEM:  # Ctrl-C came when the others had been given theirs
        return tensors[0][value.attributes[0]]
    if op.body is not None:
        return _run_whole(op, tensors, value.attributes, family)
    if not tensors and op.family == "memory":
        return create(op, spec_of(value.spec.shape, value.spec.dtype, family), value.attributes)
    return call(op, tensors, value.attributes)


def _run_whole(op: Op, tensors: tuple[Any, ...], attributes: tuple[Any, ...], family: str) -> tuple[Any, ...]:
    """Run a composite op or its gradient; returns a tuple of results, None for those that are not requested.

    Args:
        op: the composite, or its gradient.
        tensors: the arguments that are tensors.
        attributes: a tuple of the composite's plan at recording; for each argument whether it is a tensor (other
            arguments are None); for each result whether it is needed; and weak references to the values of the results.
        family: the family of the tensors' buffers.
    """
    plan: Plan
    plan, given, wanted, _ = attributes
    if op is plan.op:
        result, more = call(op, tensors, plan.attributes)
        return result, *more
    specs = tuple([spec_of(s.shape, s.dtype, family) for s in plan.specs])
    own: Any = plan_of_composite(plan.op, specs, plan.attributes)
    following = iter(tensors)
    g, *saved = [next(following) if here else None for here in given]
    buffers = [x if x is None else x._data for x in (g, *saved)]
    made = pull_whole(own, state.current(), 0, buffers[0], buffers[1:], wanted)
    if made is None:  # it is recorded anew, as the ops that it consists of
        return tuple(own.joint(g, own, *saved))
    return tuple([m if m is None else detached(m, s) for m, s in zip(made, specs, strict=True)])
