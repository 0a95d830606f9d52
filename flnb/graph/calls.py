"""The calls of a program, of backend methods and compiled kernels, with the arrays on which they work."""

from __future__ import annotations

from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch import lent
from flnb.dispatch.table import OPS
from flnb.graph.pooling import pooling_of
from flnb.graph.sites import moving
from flnb.graph.values import MOVE, PUT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb_telemetry.lane import Lane

    from flnb.dispatch.table import Op
    from flnb.graph.values import Value


class Call:
    """A call of a backend method, with its arguments, that computes one value of a program.

    Attributes:
        values: for each argument, the value whose elements the argument holds; None if the argument is not an array.
            The last entry is ``value``.
        arguments: the arguments of the method; the last is the array to write to.
        value: the value that the call computes.
        event: the code of the call's event, and the number of the event's context.
        group: the number of the fusion group that it computes; -1 for a copy at the end of a program.
        scratch: the part of the program's block that the method may use as scratch memory; None if there is none.
        asked: the bytes of scratch memory that the method requested at the last run.
    """

    __slots__ = ("arguments", "asked", "event", "group", "method", "scratch", "value", "values")
    event: tuple[int, int]
    group: int
    scratch: Any

    def __init__(
        self, method: Callable[..., Any], inputs: Sequence[Value], attributes: Sequence[Any], value: Value
    ) -> None:
        self.method, self.value = method, value
        self.scratch, self.asked = None, 0
        self.values: list[Value | None] = [*inputs, *[None] * len(attributes), value]
        self.arguments: list[Any] = [*inputs, *attributes, value]

    def run(self) -> None:
        """Call the method; during the call it may use ``scratch`` as scratch memory."""
        here = lent.here
        before = here.memory, here.used
        here.memory, here.used = self.scratch, 0
        try:
            self.compute()
        finally:
            self.asked = here.used
            here.memory, here.used = before

    def compute(self) -> None:
        """Call the method, which writes the value to its array."""
        out = self.arguments[-1]
        made = self.method(*self.arguments)
        if made is not out:
            np.copyto(out, made, casting="unsafe")

    def run_recorded(self, lane: Lane) -> None:
        """Call the method, and emit an op event with its times to ``lane``."""
        code, context = self.event
        outer, lane.context = lane.context, context
        t0 = clock()
        try:
            self.run()
        finally:
            lane.context = outer
        lane.pending += (code, t0, clock(), 0, 0, context, 0, 0)


class KernelCalls:
    """Compiled kernels that follow one another and are run by one call.

    Args:
        segment: the object that runs the kernels and measures their times (``stamps``).
        events: for each kernel the code of its event, and five more numbers of the event.
    """

    __slots__ = ("events", "run", "segment")

    def __init__(self, segment: Any, events: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        self.segment, self.events = segment, events
        self.run = segment.run

    def run_recorded(self, lane: Lane) -> None:
        """Run the kernels, and emit one event for each to ``lane``."""
        self.run()
        times = self.segment.stamps.tolist()
        for (code, more), t0, t1 in zip(self.events, times, times[1:], strict=False):
            lane.pending += (code, t0, t1, *more)


class WholeCall(Call):
    """A call of a backend method, with its arguments, that computes all results of a composite, or all its gradients.

    Attributes:
        split: the number of arguments that are inputs or attributes. The other arguments are the arrays to write to;
            None for a result that is not needed.
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
        self.scratch, self.asked = None, 0
        self.values = [*[next(inputs) if here else None for here in given], *[None] * len(own), *outs]
        self.arguments = list(self.values)
        self.split = len(given) + len(own)
        self.arguments[len(given) : self.split] = own

    def compute(self) -> None:
        """Call the method, which writes all requested results to their arrays."""
        outs = self.arguments[self.split :]
        for made, out in zip(self.method(*self.arguments[: self.split], out=outs), outs, strict=True):
            if made is not out and out is not None:
                np.copyto(out, made)


def call_of(members: Sequence[Value], method_of: Callable[[Op], Any], in_place: Callable[[Value], bool]) -> Call:
    """Return the call that computes a value, or all results of a composite.

    Args:
        members: the value; or for a composite, the value of the composite op followed by the values of its results.
        method_of: returns the backend's method for an op.
        in_place: returns whether a write to a view (`PUT`) goes directly to the memory of the viewed tensor.
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
    """Return the call that computes a max pooling and stores where the maxima are, or that computes its gradient.

    Args:
        pooling: the `flnb.interface.Pooling` that stores and reads the places.
        value: the value of the max pooling or of its gradient.
        items: the values of the results of a max pooling; empty for a gradient.
    """
    if not items:
        return Call(pooling.spread, value.inputs, (), value)
    found: dict[int, Value] = {item.attributes[0]: item for item in items}
    made = Call(pooling.find, (*value.inputs, found[0]), (), found[1])
    made.value = value
    return made


def _put(value: Value, method_of: Callable[[Op], Any], in_place: bool) -> Callable[..., Any]:
    """Return a function ``put(base, elements, out)`` that writes elements into a view of ``out``, a copy of ``base``.

    If ``in_place`` is true, ``out`` has the memory of ``base``, and nothing is copied. ``method_of`` returns the
    backend's method for an op.
    """
    step, attributes = value.attributes
    copy, view = method_of(OPS["copy"]), method_of(step)

    def put(base: Any, elements: Any, out: Any) -> Any:
        if not in_place:
            copy(base, out)
        copy(elements, view(out, *attributes))
        return out

    return put
