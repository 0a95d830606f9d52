"""The one crossing for compute: every op of every mode passes through here, is run, and becomes one event.

`unary` and `binary` make the fast entry points, `call` takes any number of tensors and attributes. All three look
the plan up, call the active backend's bound method, record the event and, where an input is on the tape, the node.

`flnb.interface.tape` says what a node is. The default tape's are made right here; another one is asked (`record`).
"""

from __future__ import annotations

import itertools
import sys
from time import perf_counter as clock
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus, schema
from numpy import empty as new_array

from flnb.dispatch import stacks, state
from flnb.dispatch.failure import failed, failed_call
from flnb.dispatch.miss import plan_for
from flnb.dispatch.plan import Plan, Spec
from flnb.dispatch.state import ACTIVATION, TEMPORARY
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.dispatch.state import State
    from flnb.ops.table import Op

__all__ = ["accumulate", "binary", "call", "composite", "create", "detached", "next_seq", "node", "unary"]

next_seq = itertools.count(1).__next__
"""The global sequence number: tape nodes and in-place writes are ordered by it."""

last_write = 0
"""Sequence number of the latest in-place write: a tape recorded after it needs no check of its saved values."""

_scoped = state._get
_enter, _leave = state._scoped.set, state._scoped.reset
_new = object.__new__
_frame = sys._getframe
_own = stacks.own


def detached(data: Any, spec: Any) -> Tensor:
    """A Tensor around a buffer."""
    tensor: Tensor = _new(Tensor)
    tensor._data = data
    tensor._spec = spec
    return tensor


def unary(op: Op) -> Callable[..., Any]:
    """The public function of an op on one tensor without attributes."""
    plans, index, differentiable = op.plans, op.index, op.differentiable

    def apply(x: Any, /, out: Any = None) -> Any:
        if out is not None:
            return _into(op, (x,), (), out)
        try:
            plan = plans[x._spec]
        except (KeyError, AttributeError):
            return _missed(op, (x,), ())
        here = _scoped() or state.session
        if plan.kind is not here.direct:
            return _elsewhere(op, plan, (x,), (), here)
        node = x._node if differentiable and here.grad else None
        if plan.weight >= here.min_block:
            buffer, alloc = _empty(plan, here, node is not None)
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
            lane = here.lane or lanes.lane
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
            return _into(op, (a, b), (), out)
        ta, tb = type(a), type(b)
        try:
            sa = ta if ta is float or ta is int else a._spec
            sb = tb if tb is float or tb is int else b._spec
            plan = plans[sa, sb]
        except (KeyError, AttributeError):
            return _missed(op, (a, b), ())
        here = _scoped() or state.session
        if plan.kind is not here.direct:
            return _elsewhere(op, plan, (a, b), (), here)
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
            buffer, alloc = _empty(plan, here, mask != 0)
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
            lane = here.lane or lanes.lane
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
        return _into(op, tensors, attributes, out)
    try:
        plan = op.plans[tuple([x._spec for x in tensors]), attributes]
    except KeyError:
        return _missed(op, tensors, attributes)
    except AttributeError:  # Python scalars are known by their types
        known = op.plans.get((tuple([getattr(x, "_spec", type(x)) for x in tensors]), attributes))
        if known is None:
            return _missed(op, tensors, attributes)
        plan = known
    return _run(plan, tensors)


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
        result._node = _recorded(plan, parents, seq, here, _saved(op, tensors, kept, made))
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


def _missed(op: Op, arguments: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
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
    return op.apply(*tensors) if op.apply is not None else _run(plan, tensors)


def _elsewhere(op: Op, plan: Plan, arguments: tuple[Any, ...], attributes: tuple[Any, ...], here: State) -> Any:
    """A plan was found that is not direct here: autocast sees ops first, or the tensors are another backend's."""
    if here.autocast is None:
        raise _foreign(op, plan, here)
    return here.autocast.call(here, op, arguments, attributes)


def _run(plan: Plan, tensors: tuple[Any, ...]) -> Any:
    here = _scoped() or state.session
    op = plan.op
    if plan.kind is not here.direct:
        return _elsewhere(op, plan, tensors, plan.attributes, here)
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
        data = _execute(plan, here, tensors, (), 0, seq, parents)
    elif plan.weight < here.min_block:
        buffer = plan.blank and new_array((), plan.blank)
        data = _execute(plan, here, tensors, (buffer,), 0, seq, parents)
    else:
        buffer, alloc = _empty(plan, here, seq != 0)
        data = _execute(plan, here, tensors, (buffer,), alloc, seq, parents)
    lift = None
    for x in tensors:
        lift = lift or getattr(x, "_lift", None)
    result = _new(lift or Tensor)
    result._data = data
    result._spec = plan.spec
    if not op.writes_out:
        result._root = getattr(tensors[0], "_root", tensors[0])
    if lift is not None:
        result._node = _tape_node(plan, parents, seq, here, tensors, result) if seq else None
    return result


def node(plan: Plan, parents: tuple[Any, ...], saved: tuple[Any, ...]) -> list[Any] | None:
    """A new node for what was computed by other means than an op's call."""
    here, seq = state.current(), next_seq()
    if bus.lanes is not None:
        emit_edges(bus.lanes.lane, plan, seq, [p[2] if p is not None else 0 for p in parents])
    return _recorded(plan, parents, seq, here, saved)


def _recorded(plan: Plan, parents: tuple[Any, ...], seq: int, here: State, saved: tuple[Any, ...]) -> list[Any] | None:
    """A new node, seen by the active tape."""
    frame = stacks.outside(_frame(1))
    node = [plan, parents, seq, here.mark, frame.f_code, frame.f_lasti, *saved]
    return node if here.mark is None else here.tape.record(node)


def _tape_node(
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
    return _recorded(plan, parents, seq, here, (*saved, kept))


def _execute(
    plan: Plan, here: State, tensors: tuple[Any, ...], out: tuple[Any, ...], alloc: int, seq: int,
    parents: tuple[Any, ...],
) -> Any:  # fmt: skip
    """Call the backend's method and record the event; the method's result."""
    function = here.table[plan.op.index]
    data = [x._data if isinstance(x, Tensor) else _constant(plan, x, here) for x in tensors]
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
    lane = here.lane or lanes.lane
    p0 = p1 = 0
    if seq:
        p0, p1, *more = [*[p[2] if p is not None else 0 for p in parents], 0][: max(2, len(parents))]
        if more:
            emit_edges(lane, plan, seq, more)
    lane.pending += (plan.code, t0, t1, alloc, seq or lane.node, lane.context, p0, p1)
    return result


def emit_edges(lane: Any, plan: Plan, seq: int, edges: list[int]) -> None:
    """Record parents that do not fit the op's own record, five at a time."""
    code = schema.EDGE | plan.code >> 24 << 24
    for i in range(0, len(edges), 5):
        lane.emit(code, perf_counter_ns(), seq, *(edges[i : i + 5] + [0] * 5)[:5])


def _constant(plan: Plan, value: Any, here: State) -> Any:
    kept = plan.constants.get(value)
    return plan.constant(value, here.backend) if kept is None else kept


def _empty(plan: Plan, here: State, taped: bool) -> Any:
    category = ACTIVATION if taped else here.category or TEMPORARY
    return here.backend.empty(plan.spec, here.manager, here.min_block, plan.code, category)


def _into(op: Op, arguments: tuple[Any, ...], attributes: tuple[Any, ...], out: Any) -> Any:
    """Run an op and write its result into an existing tensor."""
    global last_write
    here = state.current().beneath()
    tensors = arguments
    try:
        specs: Any = tuple([x._spec if type(x) is not float and type(x) is not int else type(x) for x in arguments])
        plan = op.plans[specs[0] if op.arity == 1 else specs if op.arity == 2 else (specs, attributes)]
        if plan.kind is not here.kind:
            raise _foreign(op, plan, here)
    except (KeyError, AttributeError):
        if any(getattr(x, "_level", None) is not None for x in arguments):
            return _receive(out, op, _missed(op, arguments, attributes))
        plan, tensors = plan_for(op, arguments, attributes, here)
    if not isinstance(out, Tensor):
        raise TypeError(f"{op.name}: out must be a flnb Tensor, got {type(out).__name__}")
    if here.grad and any(getattr(x, "_node", None) is not None for x in (*tensors, out)):
        raise RuntimeError(
            f"{op.name}: cannot write in place into or from a Variable that requires grad while gradients are "
            f"recorded; wrap the update in `with flnb.no_grad():` or drop out= to make a new Variable"
        )
    if out._spec is not plan.spec:
        if out._level is not None:
            return _receive(out, op, _missed(op, arguments, attributes))
        raise ValueError(f"{op.name}: the result is {plan.spec!r} but out is {out._spec!r}; they must be equal")
    if not op.writes_out:
        raise TypeError(f"{op.name}: makes a view and takes no out; assign the result with flnb.assign(out, value)")
    data = _execute(plan, here, tensors, (out._data,), 0, 0, ())
    if data is not out._data:
        here.backend.from_numpy(data, out._data)
    root = getattr(out, "_root", out)
    root._written = last_write = next_seq()
    return out


def _receive(out: Any, op: Op, result: Any) -> Any:
    """Write a result under vmap over an existing tensor."""
    if getattr(out, "_level", None) is None:
        raise TypeError(
            f"{op.name}: under vmap a result that differs between examples ({result!r}) cannot be written into one "
            f"tensor that all examples share; make the target from a batched one, for example zeros_like(x) + 0 * x"
        )
    if (out.shape, out.dtype) != (result.shape, result.dtype):
        raise ValueError(f"{op.name}: the result is {result._spec!r} but out is {out._spec!r}; they must be equal")
    return out._receive(result)


def accumulate(add: Op, total: Tensor, term: Any) -> None:
    """Add into a tensor that nothing else refers to: an in-place write that needs no mark."""
    here = _scoped() or state.session
    try:
        data = total._data
    except AttributeError:  # a batched tensor has no buffer
        total._gather(term)
        return
    plan = add.plans.get((total._spec, term._spec)) or plan_for(add, (total, term), (), here)[0]
    lanes = bus.lanes
    if lanes is None:
        total._data = here.table[add.index](data, term._data, data)  # a backend need not write where it may
        return
    lane = here.lane or lanes.lane
    t0 = clock()
    total._data = here.table[add.index](data, term._data, data)
    t1 = clock()
    lane.pending += (plan.code, t0, t1, 0, lane.node, lane.context, 0, 0)


def _foreign(op: Op, plan: Plan, here: State) -> TypeError:
    return TypeError(
        f"{op.name}: the tensors keep {plan.kind!r} buffers but the active backend {here.backend.name!r} computes on "
        f"{here.kind!r} buffers; convert them with .to({here.backend.name!r}), or use their backend"
    )


def _named(function: Callable[..., Any], op: Op) -> Callable[..., Any]:
    """Give a public function its op's name; for the fast paths, let the op find it."""
    function.__name__ = function.__qualname__ = op.name
    function.__module__ = "flnb.ops"
    return function
