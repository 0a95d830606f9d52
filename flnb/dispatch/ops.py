"""The one crossing for compute: every op of every mode passes through here, is run, and becomes one event.

`unary` and `binary` make the fast entry points, `call` takes any number of tensors and attributes. All three look
the plan up, call the active backend's bound method, record the event and, where an input is on the tape, the node.

`flnb.interface.tape` says what a node is. The default tape's are made right here; another one is asked (`record`).
"""

from __future__ import annotations

import sys
from threading import get_ident
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus
from numpy import empty as new_array

from flnb.dispatch import stacks, state
from flnb.dispatch.execution import (
    detached,
    elsewhere,
    emit_edges,
    empty,
    missed,
    next_seq,
    node,
    recorded,
    run,
)
from flnb.dispatch.failure import failed, failed_call
from flnb.dispatch.plan import Plan, Spec
from flnb.dispatch.state import TEMPORARY
from flnb.dispatch.writing import accumulate, write_into
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.ops.table import Op

__all__ = ["accumulate", "binary", "call", "composite", "create", "detached", "next_seq", "node", "unary"]

_scoped = state._get
_enter, _leave = state._scoped.set, state._scoped.reset
_new = object.__new__
_frame = sys._getframe
_own = stacks.own


def unary(op: Op) -> Callable[..., Any]:
    """The public function of an op on one tensor without attributes."""
    plans, index, differentiable = op.plans, op.index, op.differentiable

    def apply(x: Any, /, out: Any = None) -> Any:
        if out is not None:
            return write_into(op, (x,), (), out)
        try:
            plan = plans[x._spec]
        except (KeyError, AttributeError):
            return missed(op, (x,), ())
        here = _scoped() or state.session
        if plan.kind is not here.direct:
            return elsewhere(op, plan, (x,), (), here)
        node = x._node if differentiable and here.grad else None
        if plan.weight >= here.min_block:
            buffer, alloc = empty(plan, here, node is not None)
        else:
            buffer, alloc = plan.blank and new_array((), plan.blank), 0
        lanes = bus.lanes
        if lanes is not None:
            t0 = clock()
        try:
            data = here.table[index](x._data, buffer)
        except Exception as error:
            failed(error, plan, (x,))
            raise
        seq = next_seq() if node is not None else 0
        if lanes is not None:
            t1 = clock()
            lane = lanes.last
            if lane.ident != get_ident():
                lane = lanes.lane
            p0 = node[2] if node is not None else 0
            lane.pending += (plan.code, t0, t1, alloc, seq or lane.node, lane.context, p0, 0)
        if x._lift is None:
            result = _new(Tensor)
            result._data = data
            result._spec = plan.spec
            return result
        result = _new(x._lift)
        result._data = data
        result._spec = plan.spec
        if node is None:
            result._node = None
        else:
            keep_x, keep_y = plan.saves[1]
            if keep_y:
                result._root = detached(data, plan.spec)
            frame = _frame(1)
            code = frame.f_code
            if _own[code.co_filename]:
                frame = stacks.outside(frame)
                code = frame.f_code
            mark = here.mark
            result._node = [
                plan, (node,), seq, mark, code, frame.f_lasti,
                x if keep_x else None, result._root if keep_y else None,
            ]  # fmt: skip
            if mark is not None:
                if here.keep is not None:
                    here.keep(result._node)
                else:
                    result._node = here.tape.record(result._node)
        return result

    op.apply = _named(apply, op)
    return op.apply


def binary(op: Op) -> Callable[..., Any]:
    """The public function of an op on two tensors, or a tensor and a Python number."""
    plans, index, differentiable = op.plans, op.index, op.differentiable

    def apply(a: Any, b: Any, /, out: Any = None) -> Any:
        if out is not None:
            return write_into(op, (a, b), (), out)
        ta, tb = type(a), type(b)
        try:
            sa = ta if ta is float or ta is int else a._spec
            sb = tb if tb is float or tb is int else b._spec
            plan = plans[sa, sb]
        except (KeyError, AttributeError):
            return missed(op, (a, b), ())
        here = _scoped() or state.session
        if plan.kind is not here.direct:
            return elsewhere(op, plan, (a, b), (), here)
        na: Any = None
        nb: Any = None
        lift = None
        if sa is ta:
            da = plan.constants.get(a)
            if da is None:
                da = plan.constant(a, here.backend)
        else:
            da, na, lift = a._data, a._node, a._lift
        if sb is tb:
            db = plan.constants.get(b)
            if db is None:
                db = plan.constant(b, here.backend)
        else:
            db, nb, lift = b._data, b._node, b._lift or lift
        mask = 0
        if differentiable and here.grad:
            mask = (1 if na is not None else 0) + (2 if nb is not None else 0)
        if plan.weight >= here.min_block:
            buffer, alloc = empty(plan, here, mask != 0)
        else:
            buffer, alloc = plan.blank and new_array((), plan.blank), 0
        lanes = bus.lanes
        if lanes is not None:
            t0 = clock()
        try:
            data = here.table[index](da, db, buffer)
        except Exception as error:
            failed(error, plan, (a, b))
            raise
        seq = next_seq() if mask else 0
        if lanes is not None:
            t1 = clock()
            lane = lanes.last
            if lane.ident != get_ident():
                lane = lanes.lane
            p0 = na[2] if mask & 1 else 0
            p1 = nb[2] if mask & 2 else 0
            lane.pending += (plan.code, t0, t1, alloc, seq or lane.node, lane.context, p0, p1)
        if lift is None:
            result = _new(Tensor)
            result._data = data
            result._spec = plan.spec
            return result
        result = _new(lift)
        result._data = data
        result._spec = plan.spec
        if mask:
            keep_a, keep_b, keep_y = plan.saves[mask]
            if keep_y:
                result._root = detached(data, plan.spec)
            frame = _frame(1)
            code = frame.f_code
            if _own[code.co_filename]:
                frame = stacks.outside(frame)
                code = frame.f_code
            mark = here.mark
            result._node = [
                plan, (na, nb), seq, mark, code, frame.f_lasti,
                a if keep_a else None, b if keep_b else None, result._root if keep_y else None,
            ]  # fmt: skip
            if mark is not None:
                if here.keep is not None:
                    here.keep(result._node)
                else:
                    result._node = here.tape.record(result._node)
        else:
            result._node = None
        return result

    op.apply = _named(apply, op)
    return op.apply


def call(op: Op, tensors: tuple[Any, ...], attributes: tuple[Any, ...] = (), out: Any = None) -> Any:
    """Run an op on any number of tensors with hashable attributes, which go to the backend's method after them."""
    if out is not None:
        return write_into(op, tensors, attributes, out)
    try:
        plan = op.plans[tuple([x._spec for x in tensors]), attributes]
    except KeyError:
        return missed(op, tensors, attributes)
    except AttributeError:  # Python scalars are known by their types
        known = op.plans.get((tuple([getattr(x, "_spec", type(x)) for x in tensors]), attributes))
        if known is None:
            return missed(op, tensors, attributes)
        plan = known
    return run(plan, tensors)


def create(op: Op, spec: Spec, arguments: tuple[Any, ...], category: int = 0) -> Tensor:
    """Run an op that makes a tensor from no tensor; ``arguments`` go to the method as they are, unseen by the plan."""
    here = _scoped() or state.session
    plan = op.plans.get(spec)
    if plan is None:
        if not here.backend.supports(spec.dtype):
            raise TypeError(f"{op.name}: backend {here.backend.name!r} does not support {spec.dtype.name}")
        plan = op.plans.setdefault(spec, Plan(op, (), (), spec))
    category = here.category or category or TEMPORARY
    buffer, alloc = here.backend.empty(spec, here.manager, here.min_block, plan.code, category)
    t0 = clock()
    data = here.table[op.index](*arguments, buffer)
    if bus.lanes is not None:
        lane = bus.lanes.lane
        lane.emit(plan.code, t0, clock(), alloc, lane.node, lane.context, 0, 0)
    return detached(data, spec)


def composite(
    op: Op, body: Callable[..., Any], tensors: tuple[Any, ...], attributes: tuple[Any, ...] = ()
) -> tuple[Any, tuple[Any, ...]]:
    """Run a function of public ops as one node of the tape; its result and what else it kept for its gradient.

    ``body(*tensors, *attributes) -> (result, kept)`` sees plain Tensors. The op's one pull is joint:
    ``pull(g, plan, *tensors, *kept, result)`` gives the cotangents of all tensors; what it does not read is None. To
    differentiate twice, the tape runs the body again on Variables (`flnb.autograd.walk`).
    """
    here = _scoped() or state.session
    if here.autocast is not None:
        return here.autocast.compose(here, op, body, tensors, attributes)  # type: ignore[no-any-return]
    parents = tuple([x._node for x in tensors]) if here.grad else ()
    lift = next((x._lift for x in tensors if x._lift is not None), None)
    if lift is None:
        return body(*tensors, *attributes)  # type: ignore[no-any-return]
    try:
        plain = [detached(x._data, x._spec) for x in tensors]
    except AttributeError:  # a batched tensor has no buffer
        batched = next((x for x in tensors if x._level is not None), None)
        if batched is None:
            raise
        return batched._compose(op, body, tensors, attributes)  # type: ignore[no-any-return]
    seq = next_seq() if any(p is not None for p in parents) else 0
    lane = bus.lanes.lane if bus.lanes is not None else None
    outer = lane.node if lane is not None else 0
    if lane is not None:
        lane.node = seq or outer
    token = _enter(here.keeping()) if seq else None
    try:
        made, kept = body(*plain, *attributes)
    except Exception as error:
        failed_call(error, op, tensors)
        raise
    finally:
        if token is not None:
            _leave(token)
        if lane is not None:
            lane.node = outer
    result = _new(lift)
    result._data, result._spec, result._node = made._data, made._spec, None
    if seq:
        specs = tuple([x._spec for x in tensors])
        plan = op.plans.get((specs, attributes)) or op.plans.setdefault(
            (specs, attributes), Plan(op, specs, attributes, made._spec)
        )
        result._root = made
        result._node = recorded(plan, parents, seq, here, _saved(op, tensors, kept, made))
        if lane is not None:
            emit_edges(lane, plan, seq, [p[2] if p is not None else 0 for p in parents])
    return result, kept


def _saved(op: Op, tensors: tuple[Any, ...], kept: tuple[Any, ...], made: Any) -> tuple[Any, ...]:
    """What a composite's node keeps: the inputs and the result that its pull reads, and what the body kept."""
    uses = op.uses
    if uses is None:
        return (*tensors, *kept, made)
    inputs = [x if str(i) in uses else None for i, x in enumerate(tensors)]
    return (*inputs, *kept, made if "y" in uses else None)


def _named(function: Callable[..., Any], op: Op) -> Callable[..., Any]:
    """Give a public function its op's name; for the fast paths, let the op find it."""
    function.__name__ = function.__qualname__ = op.name
    function.__module__ = "flnb.ops"
    return function
