"""In-place writes: an op's result into an existing tensor, and sums into tensors that nothing else refers to."""

from __future__ import annotations

from threading import get_ident
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus

from flnb.dispatch import state
from flnb.dispatch.execution import execute, missed, next_seq
from flnb.dispatch.miss import foreign, plan_for
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from flnb.ops.table import Op

__all__ = ["accumulate", "write_into"]

last_write = 0
"""Sequence number of the latest in-place write: a tape recorded after it needs no check of its saved values."""

_scoped = state._get


def write_into(op: Op, arguments: tuple[Any, ...], attributes: tuple[Any, ...], out: Any) -> Any:
    """Run an op and write its result into an existing tensor."""
    global last_write
    here = state.current().beneath()
    tensors = arguments
    try:
        specs: Any = tuple([x._spec if type(x) is not float and type(x) is not int else type(x) for x in arguments])
        plan = op.plans[specs[0] if op.arity == 1 else specs if op.arity == 2 else (specs, attributes)]
        if plan.kind is not here.kind:
            raise foreign(op, plan, here)
    except (KeyError, AttributeError):
        if any(getattr(x, "_level", None) is not None for x in arguments):
            return _receive(out, op, missed(op, arguments, attributes))
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
            return _receive(out, op, missed(op, arguments, attributes))
        raise ValueError(f"{op.name}: the result is {plan.spec!r} but out is {out._spec!r}; they must be equal")
    if not op.writes_out:
        raise TypeError(f"{op.name}: makes a view and takes no out; assign the result with flnb.assign(out, value)")
    data = execute(plan, here, tensors, (out._data,), 0, 0, ())
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
    lane = lanes.last
    if lane.ident != get_ident():
        lane = lanes.lane
    t0 = clock()
    total._data = here.table[add.index](data, term._data, data)
    t1 = clock()
    lane.pending += (plan.code, t0, t1, 0, lane.node, lane.context, 0, 0)
