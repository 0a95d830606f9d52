"""Executable steps of a program: calls of backend methods and compiled kernels, with their arrays already bound."""

from __future__ import annotations

from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.table import OPS
from flnb.graph.pooling import pooling_of
from flnb.graph.sites import moving
from flnb.graph.values import MOVE, PUT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb_telemetry.lane import Lane

    from flnb.dispatch.table import Op
    from flnb.graph.values import Value

__all__ = ["Call", "WholeCall", "call_of"]


class Call:
    """A bound call of a backend method that computes one value of a program.

    Attributes:
        values: the value of each of ``arguments``; None of what is not an array. The last is the value computed.
        arguments: what the method gets; the last is the array to write to.
        value: what it computes.
        event: the code of its event, and the number of its context.
    """

    __slots__ = ("arguments", "event", "method", "value", "values")
    event: tuple[int, int]

    def __init__(
        self, method: Callable[..., Any], inputs: Sequence[Value], attributes: Sequence[Any], value: Value
    ) -> None:
        self.method, self.value = method, value
        self.values: list[Value | None] = [*inputs, *[None] * len(attributes), value]
        self.arguments: list[Any] = [*inputs, *attributes, value]

    def run(self) -> None:
        """Call the method, which writes the value to its array."""
        out = self.arguments[-1]
        made = self.method(*self.arguments)
        if made is not out:
            np.copyto(out, made, casting="unsafe")

    def run_recorded(self, lane: Lane) -> None:
        """Call the method, and emit an op event with its times to ``lane``."""
        t0 = clock()
        self.run()
        code, context = self.event
        lane.pending += (code, t0, clock(), 0, 0, context, 0, 0)


class KernelCalls:
    """A run of compiled kernels that follow one another, launched as one segment.

    Args:
        segment: runs them, and takes the times.
        events: of each kernel, the code of its event, the number of its ops' records, and that of its context.
    """

    __slots__ = ("events", "run", "segment")

    def __init__(self, segment: Any, events: Sequence[tuple[int, int, int]]) -> None:
        self.segment, self.events = segment, events
        self.run = segment.run

    def run_recorded(self, lane: Lane) -> None:
        """Run the kernels, and emit one event for each to ``lane``."""
        self.run()
        times = self.segment.stamps.tolist()
        for (code, parts, context), t0, t1 in zip(self.events, times, times[1:], strict=False):
            lane.pending += (code, t0, t1, parts, 0, 0, 0, context)


class WholeCall(Call):
    """A bound call of a backend method that computes all results of a composite, or all its gradients.

    Attributes:
        split: how many arguments are inputs or attributes; the others are the arrays to write to, None for what is
            not wanted.
    """

    __slots__ = ("split",)

    def __init__(self, method: Callable[..., Any], whole: Value, items: Sequence[Value]) -> None:
        plan, given, wanted, _ = whole.attributes
        own = plan.attributes
        inputs = iter(whole.inputs)
        outs: list[Value | None] = [None] * len(wanted)
        for item in items:
            outs[item.attributes[0]] = item
        self.method, self.value = method, whole
        self.values = [*[next(inputs) if here else None for here in given], *[None] * len(own), *outs]
        self.arguments = list(self.values)
        self.split = len(given) + len(own)
        self.arguments[len(given) : self.split] = own

    def run(self) -> None:
        """Call the method, which writes all requested results to their arrays."""
        outs = self.arguments[self.split :]
        for made, out in zip(self.method(*self.arguments[: self.split], out=outs), outs, strict=True):
            if made is not out and out is not None:
                np.copyto(out, made)


def call_of(members: Sequence[Value], method_of: Callable[[Op], Any], in_place: Callable[[Value], bool]) -> Call:
    """Make the executable call that computes a value, or a composite with its items.

    Args:
        members: the value, followed by items.
        method_of: returns the backend's method for an op.
        in_place: whether a view is written in the memory of the tensor that it is a view of.
    """
    value = members[0]
    op = value.op
    assert op is not None
    pooling = pooling_of(value)
    if pooling is not None:
        return _pooled(pooling, value, members[1:])
    if op is PUT:
        return Call(_put(value, method_of, in_place(value)), value.inputs, (), value)
    if op is MOVE:
        return Call(moving(value), value.inputs, (), value)
    if op.body is not None:
        return WholeCall(method_of(op), value, members[1:])
    return Call(method_of(op), value.inputs, value.attributes, value)


def _pooled(pooling: Any, value: Value, items: Sequence[Value]) -> Call:
    """Make the call for max pooling with the places of its maxima, or for its gradient."""
    if not items:
        return Call(pooling.spread, value.inputs, (), value)
    found: dict[int, Value] = {item.attributes[0]: item for item in items}
    made = Call(pooling.find, (*value.inputs, found[0]), (), found[1])
    made.value = value
    return made


def _put(value: Value, method_of: Callable[[Op], Any], in_place: bool) -> Callable[..., Any]:
    """Make a function that copies a base array, then overwrites the elements of one of its views."""
    step, attributes = value.attributes
    copy, view = method_of(OPS["copy"]), method_of(step)

    def put(base: Any, elements: Any, out: Any) -> Any:
        if not in_place:
            copy(base, out)
        copy(elements, view(out, *attributes))
        return out

    return put
