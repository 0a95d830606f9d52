"""Source text of the crossing: one text for each step of an op; the code of an op is composed of these texts.

The code of an op, its entry, finds the plan, takes the operands' buffers, requests memory, calls the active backend's
method, and emits the event. If an operand is on the tape, it also records the node. `entry_text` joins the texts of the
steps for a form of op, and `flnb.dispatch.crossing` compiles the result, once for each form.
"""

from __future__ import annotations

import linecache
import os
from typing import Any, NamedTuple

__all__ = ["CREATE", "PULL", "RECORD", "SUM", "UPDATE", "Form", "compiled", "entry_text", "function_text"]


def _indented(text: str) -> str:
    """Return text with every line indented by one level."""
    return "\n".join("    " + line for line in text.splitlines() if line.strip())


class Form(NamedTuple):
    """The features on which the generated code of an op depends; ops of equal forms share one text.

    Attributes:
        operands: the number of operands.
        attributed: whether a tuple of attributes follows the operands.
        numbers: whether one operand may be a Python number.
        makes: "memory" for a result in new memory; "combined" for the result of a combined op (the backend may lack a
            method for it); "view" for a view; "kept" for a composite's result and the values that its gradient reads.
        into: "" for a new result, "out" to write into a tensor given last.
    """

    operands: int
    attributed: bool
    numbers: bool
    makes: str
    into: str

    @property
    def names(self) -> list[str]:
        """Return the names of the operands in the signature."""
        return ["x"] if self.operands == 1 else [f"x{i + 1}" for i in range(self.operands)]

    @property
    def listed(self) -> str:
        """Return the operands as text, each with a comma after it, to be written inside a tuple."""
        return "".join(f"{x}, " for x in self.names)

    @property
    def again(self) -> str:
        """Return, as source text, the arguments with which the generated code calls `missed` or `intercepted`.

        These functions carry out the call if the generated code cannot. They take the op, a tuple of the operands, the
        attributes and, if the form has one, ``out``.
        """
        return f"op, ({self.listed}), {'attributes' if self.attributed else '()'}" + (", out" if self.into else "")


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
OPERAND = """
d{x}, n{x}, lift = {x}._data, {x}._node, {lift}
"""
OPERAND_OR_NUMBER = """
if s{x} is t{x}:
    n{x}, d{x} = None, plan.constants.get({x})
    if d{x} is None:
        d{x} = plan.constant({x}, here.backend)
else:
    d{x}, n{x}, lift = {x}._data, {x}._node, {lift}
"""
NEED = """
mask = 0
lanes = bus.lanes
if here.grad:
    mask = {mask}
    if mask and not plan.differentiable:
        mask = 0
        if lanes is not None:
            note_cuts(plan, ({nodes}))
"""
LANE = """
if lanes is not None:
    lane = lanes.last
    if lane.ident != get_ident():
        lane = lanes.lane
"""
FRAME = """
frame = frame_at(1)
code = frame.f_code
if own[code.co_filename]:
    frame = outside(frame)
    code = frame.f_code
lasti = frame.f_lasti
"""
LINE = f"""
line = lane.location
if line is None:
{_indented(FRAME)}
    line = locations.get(id(code) + lasti)
    if line is None:
        line = location(code, lasti)
else:
    code, lasti = line.code, line.lasti
outer = lane.context
lane.context = line[outer]
"""
LOCATE = LANE + _indented(LINE) + "\n"
"""Finds the user's line and adds it to the thread's context, from which `RESTORE` removes it after the op."""

RESTORE = "lane.context = outer"
EMPTY = "here.empty({spec}, here.manager, here.min_block, {plan}.code, {category})"
"""An expression for a new buffer in the manager's memory, and the number of its block."""

TAPED = "ACTIVATION if mask else here.category or TEMPORARY"
"""An expression for the category of a result: "activation" if it is on the tape, whose nodes may save it."""

ALLOCATE = f"""
if plan.weight >= here.min_block:
    buffer, alloc = {EMPTY.format(spec="plan.spec", plan="plan", category=TAPED)}
else:
    buffer, alloc = plan.blank and new_array((), plan.blank), 0
"""
WHOLE = """
kernel = here.whole(plan, index)
if kernel is None:
    return {instead}
"""
KEEP = f"""
outs, alloc = None, 0
if plan.weight >= here.min_block:
    category = {TAPED}
    buffer, alloc = {EMPTY.format(spec="plan.spec", plan="plan", category="category")}
    outs = [buffer]
    for spec in plan.kept:
        buffer, _ = {EMPTY.format(spec="spec", plan="plan", category="category")}
        outs.append(buffer)
"""
RUN = """
if lanes is not None:
    t0 = clock()
try:
    data = {method}({arguments})
except Exception as error:
    failed(error, {plan}, ({operands}))
    if lanes is not None:
        {restore}
    raise
"""
NUMBER = """
seq = next_seq() if mask else 0
"""
EVENT = """
if lanes is not None:
    t1 = clock()
    lane.pending += ({plan}.code, t0, t1, alloc, {node}, lane.context, {edges})
    {restore}
"""
MORE_EDGES = """
if lanes is not None and seq:
    lane.pending += ({rows})
"""
KEPT = """
data, *more = data
more = tuple(map(detached, more, plan.kept))
"""
SHARED = """
for m in more:
    if m._data is data:
        result._root = m
"""
RESULT = """
if lift is None:
    result = new(Tensor)
    result._data = data
    result._spec = plan.spec
    {root}
    return {result}
result = new(lift)
result._data = data
result._spec = plan.spec
{root}
{shared}
if not mask:
    result._node = None
    return {result}
{keeps}keep_y = plan.saves[mask]
kept = None
if keep_y:
    kept = detached(data, plan.spec)
    {keep_root}
"""
NODE = """
mark = here.mark
node = [plan, {parents}, seq, mark, code, lasti, {saved}]
if mark is not None:
    if here.keep is not None:
        here.keep(node)
    else:
        node = here.tape.record(node)
"""
TARGET = """
target = checked_target(op, plan, here, ({operands}out))
lanes, alloc, buffer = bus.lanes, 0, target._data
"""
WRITTEN = """
if data is not buffer:
    here.backend.from_numpy(data, buffer)
mark_written(out)
return out
"""


def _run(
    method: str, arguments: str, operands: str = "", plan: str = "plan", node: str = "lane.node", restore: str = RESTORE
) -> str:
    """Return the source that calls a backend's method, given as text like its arguments, and emits the event."""
    event = EVENT.format(plan=plan, node=node, edges="0, 0", restore=restore)
    return RUN.format(method=method, arguments=arguments, operands=operands, plan=plan, restore=restore) + event


CREATE = (
    f"""
lanes = bus.lanes
{LOCATE}
buffer, alloc = {EMPTY.format(spec="plan.spec", plan="plan", category="category")}
"""
    + _run("here.table[plan.op.index]", "*arguments, buffer")
    + "return detached(data, plan.spec)\n"
)
SUM = (
    """
here = scoped() or state.session
if total._spec.kind is not here.direct:
    write(add, (total, term), (), total)
    return
plan = add.plans.get((total._spec, term._spec)) or plan_for(add, (total, term), (), here)[0]
lanes, alloc = bus.lanes, 0
"""
    + LANE
    + _run("here.table[add.index]", "total._data, term._data, total._data", "total, term", restore="pass")
    + """
total._data = data
"""
)
UPDATE = (
    "lanes, alloc = bus.lanes, 0\n" + LOCATE + _run("kernel", "*[x._data for x in tensors], *numbers", "*tensors, ")
)
PULL = (
    f"""
kernel = here.whole(plan, plan.op.gradient.index)
if kernel is None:
    return None
pull, lanes = plan.pull or pull_plan(plan), bus.lanes
outs, alloc = None, 0
if pull.weight >= here.min_block:
    outs, category = [], here.category or TEMPORARY
    for spec, want in zip(plan.specs, wanted):
        buffer, number = {EMPTY.format(spec="spec", plan="pull", category="category")} if want else (None, 0)
        outs.append(buffer)
        if number:
            alloc = number
"""
    + LANE
    + _run("kernel", "g, *saved, *plan.attributes, out=outs", plan="pull", node="seq", restore="pass")
    + """
return data
"""
)
RECORD = FRAME + NODE.format(parents="parents", saved="*saved") + "return node\n"


def entry_text(form: Form) -> str:
    """Return the source of ``make(op, plans, index)``, which returns the function that runs an op of this form."""
    names = form.names
    find = FIND.format(specs="; ".join(_spec(form, x) for x in names), key=_key(form), again=form.again)
    operand = OPERAND_OR_NUMBER if form.numbers else OPERAND
    read = "lift = None\n" if form.numbers or not names else ""
    for x in names:
        read += operand.format(x=x, lift=f"{x}._lift" if x == names[0] else f"{x}._lift or lift")
    body = find + read + _rest(form)
    parameters = [*names, *(["attributes"] if form.attributed else []), *(["out"] if form.into else [])]
    if not form.attributed and not form.into:
        parameters += ["/", "out=None"]  # shown as keyword-only; calls of what is would not be specialised
        body = f"if out is not None:\n    return write(op, ({form.listed}), (), out)\n" + body
    inner = function_text("apply", ", ".join(parameters), body) + "return apply\n"
    return function_text("make", "op, plans, index", inner)


def _spec(form: Form, x: str) -> str:
    """Return the source that assigns the spec (shape, dtype) of operand ``x``, or the type of a Python number."""
    if form.numbers:
        return f"t{x} = type({x}); s{x} = t{x} if t{x} is float or t{x} is int else {x}._spec"
    return f"s{x} = {x}._spec"


def _key(form: Form) -> str:
    """Return the expression for the key of a call's plan, see `Op.key`."""
    keyed = "".join(f"s{x}, " for x in form.names)
    if form.attributed:
        return f"({keyed}attributes)"
    return "sx" if form.operands == 1 else keyed


def _rest(form: Form) -> str:
    """Return the source of the steps that follow after the operands' buffers have been taken."""
    kept, view, combined = form.makes == "kept", form.makes == "view", form.makes == "combined"
    arguments = "".join(f"d{x}, " for x in form.names) + ("*attributes, " if form.attributed else "")
    method = "kernel" if kept or combined else "here.table[index]"
    arguments += "out=outs" if kept else "" if view else "buffer"
    if form.into:
        return TARGET.format(operands=form.listed) + LOCATE + _run(method, arguments, form.listed) + WRITTEN
    nodes = "".join(f"n{x}, " for x in form.names)
    mask = " + ".join(f"({1 << i} if n{x} is not None else 0)" for i, x in enumerate(form.names))
    edges = [
        f"n{form.names[i]}[2] if mask & {1 << i} else 0" if i < form.operands and not kept else "0" for i in range(2)
    ]
    body = NEED.format(mask=mask, nodes=nodes)
    if combined:
        body += WHOLE.format(instead=f"op.separately({form.listed}*attributes)")
    elif kept:
        body += WHOLE.format(instead=f"by_body(op, attributes, ({form.listed}), here)")
    body += LOCATE
    body += KEEP if kept else "alloc = 0\n" if view else ALLOCATE
    body += RUN.format(method=method, plan="plan", operands=form.listed, arguments=arguments, restore=RESTORE) + NUMBER
    body += EVENT.format(plan="plan", node="seq or lane.node", edges=", ".join(edges), restore=RESTORE)
    if form.operands > 2 or kept:  # analyses know a composite by them
        body += _more_edges([f"n{x}" for x in (form.names if kept else form.names[2:])])
    result, first = "result, more" if kept else "result", form.names[0]
    body += (KEPT if kept else "") + RESULT.format(
        result=result, keeps="".join(f"k{x}, " for x in form.names),
        root=f"result._root = getattr({first}, '_root', {first})" if view else "", shared=SHARED if kept else "",
        keep_root="kept._root = result._root" if view else "result._root = kept",
    )  # fmt: skip
    saved = "".join(f"{x} if k{x} else None, " for x in form.names) + ("*more, kept" if kept else "kept")
    body += "if lanes is None:\n" + _indented(FRAME) + "\n"
    return body + NODE.format(parents=f"({nodes})", saved=saved) + f"result._node = node\nreturn {result}\n"


def _more_edges(nodes: list[str]) -> str:
    """Return the source that emits the parents of a node as `crossing.emit_edges` does; ``nodes`` are their names."""
    edges = [f"{n}[2] if {n} is not None else 0" for n in nodes] + ["0"] * (-len(nodes) % 5)
    head = "plan.code >> 24 << 24 | EDGE, now(), seq, "
    rows = [head + ", ".join(edges[i : i + 5]) for i in range(0, len(edges), 5)]
    return MORE_EDGES.format(rows=", ".join(rows))


def function_text(name: str, parameters: str, body: str) -> str:
    """Return the source of a function with this name, parameters and body, all given as text."""
    return f"def {name}({parameters}):\n{_indented(body)}\n"


_FOLDER = os.path.dirname(os.path.abspath(__file__))


def compiled(text: str, filename: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run generated source text with the globals ``names``; return ``names``, to which the text has added definitions.

    Tracebacks and debuggers show the lines of the text; ufuncs called in it issue no warnings (`flnb.dispatch.quiet`).
    """
    filename = os.path.join(_FOLDER, filename)
    linecache.cache[filename] = len(text), None, text.splitlines(keepends=True), filename
    names["__name__"] = None
    exec(compile(text, filename, "exec"), names)
    return names
