"""The one crossing for compute: every op of every mode passes through here, is run, and becomes one event.

The way of an op is written once, as text: find the plan, take the operands' buffers, ask for memory, call the active
backend's method, record the event and, where an operand is on the tape, the node. `Entries` fills it in for a number of
operands, with attributes or without, in new memory, in place or as a composite that a backend takes whole, and compiles
it once per such form; every op gets a copy of that code, which CPython then specialises to the types the op meets.

`flnb.interface.tape` says what a node is. The default tape's are made right here; another one is asked (`record`).
"""

from __future__ import annotations

import itertools
import linecache
import os
import sys
from functools import lru_cache, partial
from threading import get_ident
from time import perf_counter as clock
from time import perf_counter_ns
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb_telemetry import bus, schema
from numpy import empty as new_array

from flnb.dispatch import stacks, state
from flnb.dispatch.failure import failed, failed_call
from flnb.dispatch.plan import Plan, Spec
from flnb.dispatch.promotion import foreign, plan_for
from flnb.dispatch.state import ACTIVATION, TEMPORARY
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.dispatch.state import State
    from flnb.ops.table import Op

__all__ = ["accumulate", "call", "create", "detached", "next_seq", "node", "write"]

next_seq = itertools.count(1).__next__
"""The global sequence number: tape nodes and in-place writes are ordered by it."""

last_write = 0
"""Sequence number of the latest in-place write: a tape recorded after it needs no check of its saved values."""

scoped = state._get
new = object.__new__
frame_at = sys._getframe
own = stacks.own


class Form(NamedTuple):
    """What the text of an entry depends on.

    Attributes:
        operands: how many tensors.
        attributed: whether a tuple of attributes follows them.
        numbers: whether one operand may be a Python number.
        makes: "memory", "view", or "kept": a composite's result with what its gradient reads.
        into: "" for a new result, "out" to write into a tensor given last, "sum" for a sum that only a walk refers to.
    """

    operands: int
    attributed: bool
    numbers: bool
    makes: str
    into: str


# The text -------------------------------------------------------------------------------------------------------------

FIND = """
try:
    {specs}
    plan = plans[{key}]
except (KeyError, AttributeError):
    return missed({again})
here = scoped() or state.session
if plan.kind is not here.direct:
    return intercepted({again})
"""
OPERAND = "d{x}, n{x}, lift = {x}._data, {x}._node, {x}._lift or lift"
OPERAND_OR_NUMBER = """
if s{x} is t{x}:
    n{x}, d{x} = None, plan.constants.get({x})
    if d{x} is None:
        d{x} = plan.constant({x}, here.backend)
else:
    d{x}, n{x}, lift = {x}._data, {x}._node, {x}._lift or lift
"""
NEED = """
mask = 0
lanes = bus.lanes
if here.grad:
    if plan.differentiable:
        mask = {mask}
    elif lanes is not None:
        note_cuts(plan, ({nodes}))
"""
ALLOCATE = """
if plan.weight >= here.min_block:
    buffer, alloc = empty(plan, here, mask != 0)
else:
    buffer, alloc = plan.blank and new_array((), plan.blank), 0
"""
KEEP = """
kernel = here.whole(plan)
if kernel is None:
    return by_body(op, attributes, ({operands}), here)
outs = (buffer, *[room(k, plan, here, mask) for k in plan.kept])
"""
RUN = """
if lanes is not None:
    t0 = clock()
try:
    data = {method}({arguments})
except Exception as error:
    failed(error, plan, ({operands}))
    raise
"""
EVENT = """
seq = next_seq() if mask else 0
if lanes is not None:
    t1 = clock()
    lane = lanes.last
    if lane.ident != get_ident():
        lane = lanes.lane
    lane.pending += (plan.code, t0, t1, alloc, seq or lane.node, lane.context, {edges})
"""
MORE_EDGES = (
    "if lanes is not None and seq: emit_edges(lane, plan, seq, [n[2] if n is not None else 0 for n in ({rest})])"
)
KEPT = """
data, *more = data
more = tuple(map(detached, more, plan.kept))
"""
RESULT = """
if lift is None:
    result = new(Tensor)
    result._data = data
    result._spec = plan.spec
    {root}
    return result
result = new(lift)
result._data = data
result._spec = plan.spec
{root}
if not mask:
    result._node = None
    return result
({keeps}keep_y), kept = plan.saves[mask], None
if keep_y:
    kept = detached(data, plan.spec)
    {keep_root}
frame = frame_at(1)
"""
NODE = """
code = frame.f_code
if own[code.co_filename]:
    frame = stacks.outside(frame)
    code = frame.f_code
mark = here.mark
node = [plan, {parents}, seq, mark, code, frame.f_lasti, {saved}]
if mark is not None:
    if here.keep is not None:
        here.keep(node)
    else:
        node = here.tape.record(node)
"""
WRITTEN = """
if data is not out._data:
    here.backend.from_numpy(data, out._data)
mark_written(out)
return out
"""


def _text(form: Form) -> str:
    """The source of a function that makes the entry of an op of this form."""
    names = [f"x{i}" for i in range(form.operands)]
    operands = "".join(f"{x}, " for x in names)
    attributes = "attributes" if form.attributed else "()"
    nodes = "".join(f"n{x}, " for x in names)
    specs = "; ".join(
        f"t{x} = type({x}); s{x} = t{x} if t{x} is float or t{x} is int else {x}._spec" if form.numbers
        else f"s{x} = {x}._spec" for x in names
    )  # fmt: skip
    keyed = "".join(f"s{x}, " for x in names)
    key = f"({keyed}attributes)" if form.attributed else keyed.removesuffix(", ") if form.operands == 1 else keyed
    reading = "".join((OPERAND_OR_NUMBER if form.numbers else OPERAND + "\n").format(x=x) for x in names)
    again = f"op, ({operands}), {attributes}" + (", out" if form.into else "")
    arguments = "".join(f"d{x}, " for x in names) + ("*attributes, " if form.attributed else "")
    head = FIND.format(specs=specs, key=key, again=again) + "lift = None\n" + reading
    run = RUN.format(
        method="kernel" if form.makes == "kept" else "here.table[index]", operands=operands,
        arguments=arguments + {"memory": "buffer", "kept": "outs", "view": ""}[form.makes],
    )  # fmt: skip
    edges = [f"nx{i}[2] if mask & {1 << i} else 0" if i < form.operands else "0" for i in range(2)]
    event = EVENT.format(edges=", ".join(["0", "0"] if form.into or form.makes == "kept" else edges))
    if form.into:
        body = (
            head
            + f"check_target(op, plan, here, ({operands}out))\nlanes, mask, alloc, buffer = bus.lanes, 0, 0, out._data\n"
        )
        body += (
            run
            + event.replace("seq = next_seq() if mask else 0\n", "").replace("seq or lane.node", "lane.node")
            + WRITTEN
        )
    else:
        mask = " + ".join(f"({1 << i} if n{x} is not None else 0)" for i, x in enumerate(names))
        body = head + NEED.format(mask=mask, nodes=nodes)
        body += "alloc = 0\n" if form.makes == "view" else ALLOCATE
        body += KEEP.format(operands=operands) if form.makes == "kept" else ""
        body += run + event
        view, kept = form.makes == "view", form.makes == "kept"
        if form.operands > 2 or kept:  # analyses know a composite by them
            body += MORE_EDGES.format(rest="".join(f"n{x}, " for x in names[0 if kept else 2 :])) + "\n"
        body += KEPT if kept else ""
        body += RESULT.format(
            keeps="".join(f"k{x}, " for x in names),
            root="result._root = getattr(x0, '_root', x0)" if view else "",
            keep_root="kept._root = result._root" if view else "result._root = kept",
        )  # fmt: skip
        saved = "".join(f"{x} if k{x} else None, " for x in names)
        saved += "*more, kept" if kept else "kept"
        body += NODE.format(parents=f"({nodes})", saved=saved) + "result._node = node\nreturn result\n"
        body = body.replace("return result\n", "return result, more\n") if kept else body
    parameters = [*names, *(["attributes"] if form.attributed else []), *(["out"] if form.into else [])]
    ways = ""
    if not form.attributed and not form.into:
        parameters += ["/", "*", "out=None"]
        ways = f"if out is not None:\n    return write(op, ({operands}), (), out)\n"
    lines = (ways + body).splitlines()
    inside = "\n".join("        " + line for line in lines if line.strip())
    return f"def make(op, plans, index):\n    def apply({', '.join(parameters)}):\n{inside}\n    return apply\n"


_FOLDER = os.path.dirname(os.path.abspath(__file__))


def compiled(text: str, filename: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run generated source among these names; tracebacks and debuggers find its lines."""
    filename = os.path.join(_FOLDER, filename)
    linecache.cache[filename] = len(text), None, text.splitlines(keepends=True), filename
    exec(compile(text, filename, "exec"), names)
    return names


@lru_cache(None)
def _maker(form: Form) -> Callable[..., Any]:
    made = compiled(_text(form), f"<crossing {' '.join(str(part) for part in form)}>", dict(globals()))["make"]
    return made  # type: ignore[no-any-return]


def _entry(op: Op, operands: int, into: str) -> Callable[..., Any]:
    """The function that takes an op on so many tensors through the crossing."""
    makes = "kept" if op.body is not None else "memory" if op.writes_out else "view"
    form = Form(operands, op.arity == 0, op.broadcasts, makes, into)
    made: Any = _maker(form)(op, op.plans, op.index)
    code = made.__code__.replace(co_name=op.name)  # a copy of its own: CPython specialises it to this op's types
    own_copy = FunctionType(code, made.__globals__, op.name, made.__defaults__, made.__closure__)
    own_copy.__kwdefaults__, own_copy.__module__ = made.__kwdefaults__, "flnb.ops"
    return own_copy


class Entries(dict[tuple[int, str], Any]):
    """The entries of one op by number of operands and whether they write in place, made when first asked for."""

    def __init__(self, op: Op) -> None:
        self.op = op

    def __missing__(self, key: tuple[int, str]) -> Any:
        made = self[key] = _entry(self.op, *key) if self.op.index >= 0 else partial(_unregistered, self.op)
        return made


def _unregistered(op: Op, *arguments: Any) -> Any:
    """The entry of a composite that no backend can have a method for."""
    *tensors, attributes = arguments
    here = scoped() or state.session
    if here.interpreters:
        return intercepted(op, tuple(tensors), attributes)
    return by_body(op, attributes, tuple(tensors), here)


# Ways in ----------------------------------------------------------------------------------------------------------------


def call(op: Op, tensors: tuple[Any, ...], attributes: tuple[Any, ...] = ()) -> Any:
    """Run an op on any number of tensors with hashable attributes, which go to the backend's method after them."""
    run = op.entries[len(tensors), ""]
    return run(*tensors) if op.arity else run(*tensors, attributes)


def write(op: Op, tensors: tuple[Any, ...], attributes: tuple[Any, ...], out: Any) -> Any:
    """Run an op and write its result into an existing tensor, which is returned."""
    run = op.entries[len(tensors), "out"]
    return run(*tensors, out) if op.arity else run(*tensors, attributes, out)


def enter(op: Op, tensors: tuple[Any, ...], attributes: tuple[Any, ...], out: Any = None) -> Any:
    """Run an op into new memory, or into ``out``."""
    return call(op, tensors, attributes) if out is None else write(op, tensors, attributes, out)


def create(op: Op, spec: Spec, arguments: tuple[Any, ...], category: int = 0) -> Tensor:
    """Run an op that makes a tensor from no tensor; ``arguments`` go to the method as they are, unseen by the plan."""
    here = scoped() or state.session
    if here.interpreters:
        return here.interpreters[-1].create(op, spec, arguments, category)  # type: ignore[no-any-return]
    plan = op.plans.get(spec)
    if plan is None:
        if not here.backend.supports(spec.dtype):
            raise TypeError(f"{op.name}: backend {here.backend.name!r} does not support {spec.dtype.name}")
        plan = op.plans.setdefault(spec, Plan(op, (), (), spec))
    return _created(plan, here, arguments, here.category or category or TEMPORARY)  # type: ignore[no-any-return]


_CREATED = (
    """
operands = ()
lanes, mask, lift, index = bus.lanes, 0, None, plan.op.index
buffer, alloc = here.backend.empty(plan.spec, here.manager, here.min_block, plan.code, category)
"""
    + RUN.format(method="here.table[index]", operands="", arguments="*arguments, buffer")
    + EVENT.format(edges="0, 0")
    + "return detached(data, plan.spec)\n"
)
_SUMMED = (
    """
here = scoped() or state.session
if here.interpreters:
    write(add, (total, term), (), total)
    return
plan = add.plans.get((total._spec, term._spec)) or plan_for(add, (total, term), (), here)[0]
lanes, mask, alloc, seq, lane, data = bus.lanes, 0, 0, 0, None, total._data
"""
    + RUN.format(method="here.table[add.index]", operands="total, term", arguments="data, term._data, data")
    + EVENT.format(edges="0, 0")
    + "total._data = data\n"
)
_RECORDED = "frame = frame_at(1)\n" + NODE.format(parents="parents", saved="*saved") + "return node\n"


def _function(name: str, parameters: str, body: str) -> Any:
    """A function whose body is made of the parts above."""
    lines = "\n".join("    " + line for line in body.splitlines() if line.strip())
    return compiled(f"def {name}({parameters}):\n{lines}\n", f"<crossing {name}>", dict(globals()))[name]


def detached(data: Any, spec: Any) -> Tensor:
    """A Tensor around a buffer."""
    tensor: Tensor = new(Tensor)
    tensor._data = data
    tensor._spec = spec
    return tensor


def node(plan: Plan, parents: tuple[Any, ...], saved: tuple[Any, ...]) -> list[Any] | None:
    """A new node for a result that was computed by other means than an op's call."""
    here, seq = state.current(), next_seq()
    if bus.lanes is not None:
        emit_edges(bus.lanes.lane, plan, seq, [p[2] if p is not None else 0 for p in parents])
    return _recorded(plan, parents, seq, here, saved)  # type: ignore[no-any-return]


# Ways around ------------------------------------------------------------------------------------------------------------


def missed(op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...], out: Any = None) -> Any:
    """The first call with a signature: make the plan, then run on promoted operands."""
    here = scoped() or state.session
    if here.interpreters:
        return intercepted(op, operands, attributes, out)
    try:
        if op.body is not None and here.table[op.index] is None:
            return by_body(op, attributes, operands, here)
        _, operands = plan_for(op, operands, attributes, here)
    except Exception as error:
        failed_call(error, op, operands)
        raise
    return enter(op, operands, attributes, out)


def intercepted(op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...], out: Any = None) -> Any:
    """A call that does not run here at once: an interpreter sees it first, or its tensors are another backend's."""
    here = scoped() or state.session
    if not here.interpreters:
        raise foreign(op, operands, here)
    first = here.interpreters[-1]
    if op.body is not None and not first.takes(op):
        return by_body(op, attributes, operands, here)
    return first.apply(op, operands, attributes) if out is None else first.write(op, operands, attributes, out)


def by_body(op: Op, attributes: tuple[Any, ...], tensors: tuple[Any, ...], here: State) -> tuple[Any, tuple[Any, ...]]:
    """Run a composite as the ops of its body, one node of the tape; its result and what it kept for its gradient.

    ``body(*tensors, *attributes) -> (result, kept)`` sees plain Tensors. To differentiate twice, a walk runs the body
    again on Variables (`flnb.autograd.walk`).
    """
    body: Any = op.body
    parents = tuple([x._node for x in tensors]) if here.grad else ()
    lift = next((x._lift for x in tensors if x._lift is not None), None)
    if lift is None:
        return body(*tensors, *attributes)  # type: ignore[no-any-return]
    plain = [detached(x._data, x._spec) for x in tensors]
    seq = next_seq() if any(p is not None for p in parents) else 0
    lane = bus.lanes.lane if bus.lanes is not None else None
    outer = lane.node if lane is not None else 0
    if lane is not None:
        lane.node = seq or outer
    token = state._scoped.set(here.keeping()) if seq else None
    try:
        made, kept = body(*plain, *attributes)
    except Exception as error:
        failed_call(error, op, tensors)
        raise
    finally:
        if token is not None:
            state._scoped.reset(token)
        if lane is not None:
            lane.node = outer
    result = new(lift)
    result._data, result._spec, result._node = made._data, made._spec, None
    if seq:
        specs = tuple([x._spec for x in tensors])
        key = op.key(specs, attributes)
        plan = op.plans.get(key) or op.plans.setdefault(key, Plan(op, specs, attributes, made._spec))
        *keeps, keep_y = plan.saves[-1]
        result._root = made
        saved = (
            *[x if keep else None for x, keep in zip(tensors, keeps, strict=True)],
            *kept,
            made if keep_y else None,
        )
        result._node = _recorded(plan, parents, seq, here, saved)
        if lane is not None:
            emit_edges(lane, plan, seq, [p[2] if p is not None else 0 for p in parents])
    return result, kept


# Steps of the text that are not taken by every op -----------------------------------------------------------------------


def empty(plan: Plan, here: State, taped: bool) -> Any:
    """A buffer from the manager for a plan's result, and the number of its block."""
    category = ACTIVATION if taped else here.category or TEMPORARY
    return here.backend.empty(plan.spec, here.manager, here.min_block, plan.code, category)


def room(spec: Spec, plan: Plan, here: State, taped: int) -> Any:
    """A buffer from the manager for something that a composite keeps for its gradient."""
    category = ACTIVATION if taped else here.category or TEMPORARY
    return here.backend.empty(spec, here.manager, here.min_block, plan.code, category)[0]


def emit_edges(lane: Any, plan: Plan, seq: int, edges: list[int]) -> None:
    """Record parents that do not fit the op's own record, five at a time."""
    code = schema.EDGE | plan.code >> 24 << 24
    for i in range(0, len(edges), 5):
        lane.pending += (code, perf_counter_ns(), seq, *edges[i : i + 5], 0, 0, 0, 0)[: schema.WORDS]


def note_cuts(plan: Plan, nodes: tuple[Any, ...]) -> None:
    """Record that an op without a gradient cuts the tape."""
    reason = schema.INTEGER if plan.spec.dtype.kind in "biu" else schema.NO_RULE
    for place in nodes:
        if place is not None:
            stacks.note_cut(reason, place[2])


def check_target(op: Op, plan: Plan, here: State, tensors: tuple[Any, ...]) -> None:
    """Raise where an op's result cannot be written into the last of these tensors."""
    out = tensors[-1]
    if not isinstance(out, Tensor):
        raise TypeError(f"{op.name}: out must be a flnb Tensor, got {type(out).__name__}")
    if here.grad and any(getattr(x, "_node", None) is not None for x in tensors):
        raise RuntimeError(
            f"{op.name}: cannot write in place into or from a Variable that requires grad while gradients are "
            f"recorded; wrap the update in `with flnb.no_grad():` or drop out= to make a new Variable"
        )
    if out._spec is not plan.spec:
        raise ValueError(f"{op.name}: the result is {plan.spec!r} but out is {out._spec!r}; they must be equal")
    if not op.writes_out:
        raise TypeError(f"{op.name}: makes a view and takes no out; assign the result with flnb.assign(out, value)")


def mark_written(tensor: Tensor, own: bool = False) -> None:
    """Note that a tensor's memory was written just now; or its ``own`` values, where it was given other memory."""
    global last_write
    root = tensor if own else getattr(tensor, "_root", tensor)
    root._written = last_write = next_seq()


_created = _function("_created", "plan, here, arguments, category", _CREATED)
_recorded = _function("_recorded", "plan, parents, seq, here, saved", _RECORDED)
accumulate: Callable[[Op, Tensor, Any], None] = _function("accumulate", "add, total, term", _SUMMED)
accumulate.__doc__ = "Add into a tensor that nothing else refers to: an in-place write that needs no mark."
