"""Telemetry of programs: one event for each backend call and each kernel, in place of the ops' own events."""

from __future__ import annotations

from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus, encoding, intern, schema
from flnb_telemetry.schema import BACKWARD, FORWARD

from flnb.dispatch import source_lines
from flnb.dispatch.crossing import pull_plan
from flnb.dispatch.plan import Plan
from flnb.dispatch.table import OPS
from flnb.graph.calls import KernelCalls
from flnb.graph.pooling import pooling_of
from flnb.graph.values import MOVE, PUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.graph.nests import Nest
    from flnb.graph.program import Program
    from flnb.graph.values import Value


def contexts(values: Sequence[Value]) -> dict[Value, int]:
    """Return a dict from each value to the number of its telemetry context (scope, phase and source line).

    A value belongs to the forward phase if a backward pass depends on it.
    """
    needed: set[Value] = set()
    found = {}
    for value in reversed(values):
        number = max(value.context, 0)
        scope, phase, *_ = intern.contexts.items[number]
        if phase == BACKWARD or value in needed:
            needed.update(value.inputs)
        if phase == 0 and value in needed:
            number = intern.contexts.id_of((scope, FORWARD))
        line = "".join([line.brief for line in source_lines.lines(*value.site)[:1]])
        found[value] = intern.contexts.id_of(intern.contexts.items[number]._replace(line=line)) if line else number
    return found


def emit_compile(program: Program, t0: int) -> None:
    """Emit an event for a program that was made between ``t0`` (ns) and now: its numbers of values and of calls."""
    calls = sum(len(step.events) if isinstance(step, KernelCalls) else 1 for step in program.steps)
    values = sum(len(group.members) for group in program.groups)
    bus.emit(schema.COMPILE, t0, clock(), values, calls, 0, 0, bus.threads.here.context())


def op_event(value: Value) -> int:
    """Return the event code of the op that computes a value."""
    op: Any = value.op or OPS["copy"]  # what exists is written by a copy
    attributes = value.attributes
    if op.body is not None:
        plan = value.attributes[0]
        code = plan.code if op is plan.op else (plan.pull or pull_plan(plan)).code
        return schema.OP | code & schema.PLAN_BITS
    if pooling_of(value) is not None:
        attributes = attributes[:-1]
    if op in (PUT, MOVE):
        op, attributes = OPS["copy"], ()
    code = Plan(op, tuple([x.spec for x in value.inputs]), attributes, value.spec).code
    return schema.OP | code & schema.PLAN_BITS


def shares(members: Sequence[Value]) -> list[float]:
    """Estimate each op's share of its kernel's time, from the bytes that the op alone would move."""
    moved = [_moved(value) for value in members]
    return [n / sum(moved) for n in moved]


def _moved(value: Value) -> int:
    """Return the bytes that an op would read and write if it were not fused, plus 1, so that no share is zero."""
    return sum(x.spec.nbytes for x in (*value.inputs, value)) + 1


def kernel_code(nest: Nest, members: Sequence[Value]) -> int:
    """Return the event code of a fused kernel, described by its ops, loop extents and bytes moved."""
    names = [value.op.name for value in members if value.op is not None]
    last, moved = members[-1].spec, sum(map(_moved, members))
    described = intern.Plan(
        "+".join(dict.fromkeys(names)), "fused", last.shape, last.dtype.name, moved, 0, (nest.outer, nest.inner)
    )
    return encoding.FUSED | intern.plans.id_of(described) << schema.PLAN_SHIFT


def kernel_event(nest: Nest, members: Sequence[Value], context: dict[Value, int]) -> tuple[int, int, int]:
    """Return three numbers for a kernel's event: its code, the number of the list of the kernel's ops, its context."""
    parts = encoding.parts_number([op_event(x) for x in members], [context[x] for x in members], shares(members))
    return kernel_code(nest, members), parts, context[members[-1]]
