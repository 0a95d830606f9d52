"""Running a planned op: the active backend's method, the event of it, and the node where an input is on the tape.

What has no plan yet, or runs under autocast or on another backend's buffers, finds its way from here.
"""

from __future__ import annotations

import itertools
import sys
from threading import get_ident
from time import perf_counter as clock
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus, schema
from numpy import empty as new_array

from flnb.dispatch import stacks, state
from flnb.dispatch.failure import failed, failed_call
from flnb.dispatch.miss import foreign, plan_for
from flnb.dispatch.state import ACTIVATION, TEMPORARY
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from flnb.dispatch.plan import Plan
    from flnb.dispatch.state import State
    from flnb.ops.table import Op

__all__ = [
    "constant", "detached", "elsewhere", "emit_edges", "empty", "execute", "missed", "next_seq", "node", "recorded",
    "run",
]  # fmt: skip

next_seq = itertools.count(1).__next__
"""The global sequence number: tape nodes and in-place writes are ordered by it."""

_scoped = state._get
_new = object.__new__
_frame = sys._getframe


def detached(data: Any, spec: Any) -> Tensor:
    """A Tensor around a buffer."""
    tensor: Tensor = _new(Tensor)
    tensor._data = data
    tensor._spec = spec
    return tensor


def missed(op: Op, arguments: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
    """First call with a signature: make the plan, then run on the canonical inputs. Batched tensors have no plan."""
    for x in arguments:
        if getattr(x, "_level", None) is not None:
            return x._apply(op, arguments, attributes)
    here = _scoped() or state.session
    if here.autocast is not None:
        return here.autocast.call(here, op, arguments, attributes)
    try:
        plan, tensors = plan_for(op, arguments, attributes, here)
    except Exception as error:
        failed_call(error, op, arguments)
        raise
    return op.apply(*tensors) if op.apply is not None else run(plan, tensors)


def elsewhere(op: Op, plan: Plan, arguments: tuple[Any, ...], attributes: tuple[Any, ...], here: State) -> Any:
    """A plan was found that is not direct here: autocast sees ops first, or the tensors are another backend's."""
    if here.autocast is None:
        raise foreign(op, plan, here)
    return here.autocast.call(here, op, arguments, attributes)


def run(plan: Plan, tensors: tuple[Any, ...]) -> Any:
    here = _scoped() or state.session
    op = plan.op
    if plan.kind is not here.direct:
        return elsewhere(op, plan, tensors, plan.attributes, here)
    parents: tuple[Any, ...] = ()
    seq = alloc = 0
    if plan.differentiable and here.grad:
        parents = tuple([getattr(x, "_node", None) for x in tensors])
        if parents.count(None) < len(parents):
            seq = next_seq()
    elif bus.lanes is not None and here.grad and plan.spec.dtype.kind in "biu":
        for x in tensors:
            if getattr(x, "_node", None) is not None:
                stacks.note_cut(schema.INTEGER, x._node[2])
    if not op.writes_out:
        data = execute(plan, here, tensors, (), 0, seq, parents)
    elif plan.weight < here.min_block:
        buffer = plan.blank and new_array((), plan.blank)
        data = execute(plan, here, tensors, (buffer,), 0, seq, parents)
    else:
        buffer, alloc = empty(plan, here, seq != 0)
        data = execute(plan, here, tensors, (buffer,), alloc, seq, parents)
    lift = None
    for x in tensors:
        lift = lift or getattr(x, "_lift", None)
    result = _new(lift or Tensor)
    result._data = data
    result._spec = plan.spec
    if not op.writes_out:
        result._root = getattr(tensors[0], "_root", tensors[0])
    if lift is not None:
        result._node = tape_node(plan, parents, seq, here, tensors, result) if seq else None
    return result


def execute(
    plan: Plan, here: State, tensors: tuple[Any, ...], out: tuple[Any, ...], alloc: int, seq: int,
    parents: tuple[Any, ...],
) -> Any:  # fmt: skip
    """Call the backend's method and record the event; the method's result."""
    function = here.table[plan.op.index]
    data = [x._data if isinstance(x, Tensor) else constant(plan, x, here) for x in tensors]
    lanes = bus.lanes
    t0 = clock() if lanes is not None else 0.0
    try:
        result = function(*data, *plan.attributes, *out)
    except Exception as error:
        failed(error, plan, tensors)
        raise
    if lanes is None:
        return result
    t1 = clock()
    lane = lanes.last
    if lane.ident != get_ident():
        lane = lanes.lane
    p0 = p1 = 0
    if seq:
        told = [p[2] if p is not None else 0 for p in parents]
        p0 = told[0]
        if len(told) > 1:
            p1 = told[1]
            if len(told) > 2:
                emit_edges(lane, plan, seq, told[2:])
    lane.pending += (plan.code, t0, t1, alloc, seq or lane.node, lane.context, p0, p1)
    return result


def empty(plan: Plan, here: State, taped: bool) -> Any:
    category = ACTIVATION if taped else here.category or TEMPORARY
    return here.backend.empty(plan.spec, here.manager, here.min_block, plan.code, category)


def node(plan: Plan, parents: tuple[Any, ...], saved: tuple[Any, ...]) -> list[Any] | None:
    """A new node for what was computed by other means than an op's call."""
    here, seq = state.current(), next_seq()
    if bus.lanes is not None:
        emit_edges(bus.lanes.lane, plan, seq, [p[2] if p is not None else 0 for p in parents])
    return recorded(plan, parents, seq, here, saved)


def recorded(plan: Plan, parents: tuple[Any, ...], seq: int, here: State, saved: tuple[Any, ...]) -> list[Any] | None:
    """A new node, seen by the active tape."""
    frame = stacks.outside(_frame(1))
    node = [plan, parents, seq, here.mark, frame.f_code, frame.f_lasti, *saved]
    return node if here.mark is None else here.tape.record(node)


def tape_node(
    plan: Plan, parents: tuple[Any, ...], seq: int, here: State, tensors: tuple[Any, ...], result: Any
) -> list[Any] | None:
    """The node of a result: what the pulls of the arguments that need a gradient will read.

    A saved output is a Tensor of its own, which the result names as its root: so the node does not point back at the
    result, and a write to the result is seen on what was saved.
    """
    mask = 0
    if len(tensors) <= 2:
        mask = sum(1 << i for i, p in enumerate(parents) if p is not None)
    *keep, keep_y = plan.saves[mask]
    saved = [x if k else None for x, k in zip(tensors, keep, strict=True)]
    kept = None
    if keep_y:
        kept = detached(result._data, plan.spec)
        if hasattr(result, "_root"):
            kept._root = result._root
        else:
            result._root = kept
    return recorded(plan, parents, seq, here, (*saved, kept))


def emit_edges(lane: Any, plan: Plan, seq: int, edges: list[int]) -> None:
    """Record parents that do not fit the op's own record, five at a time."""
    code = schema.EDGE | plan.code >> 24 << 24
    for i in range(0, len(edges), 5):
        lane.pending += (code, perf_counter_ns(), seq, *edges[i : i + 5], 0, 0, 0, 0)[: schema.WORDS]


def constant(plan: Plan, value: Any, here: State) -> Any:
    kept = plan.constants.get(value)
    return plan.constant(value, here.backend) if kept is None else kept
