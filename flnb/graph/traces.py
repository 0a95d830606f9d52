"""Traces: the recorded values to compute together, in a form in which equal programs have equal keys.

A trace consists of the values' ops, the inputs of each op, and which values are still referenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flnb.dispatch.table import OPS
from flnb.graph.layouts import is_view
from flnb.graph.running import compute
from flnb.graph.values import CONSTANT, ITEM, Value, reachable

if TYPE_CHECKING:
    from collections.abc import Sequence

FULL, SLICE = (OPS[name] for name in ("full", "slice"))


class Trace(NamedTuple):
    """The values to compute together, and all properties on which a program for them depends.

    Attributes:
        values: the values, in the order in which they were recorded.
        leaves: the inputs of these values that are already computed.
        outputs: the values to which there are references from outside of the trace.
        numbers: the leaves that are numbers: a dict from the position in ``leaves`` to the bytes of the number.
        key: a key that is equal for traces that one program can compute.
        contexts: for each value the id of the telemetry context (module and phase) in which it was recorded.
    """

    values: list[Value]
    leaves: list[Value]
    outputs: list[Value]
    numbers: dict[int, bytes]
    key: Any
    contexts: list[int]


def to_compute(asked: Sequence[Value]) -> list[Value]:
    """List the values that must be computed for ``asked``, with all results of composites that are still referenced.

    Slices of computed values are computed immediately, because their positions may differ in each repetition.
    """
    found = []
    for value in reachable(asked):
        op: Any = value.op
        if op is SLICE and value.inputs[0].tensor is not None:
            compute([value])
        elif op is not ITEM:
            found.append(value)
            if op.body is not None:
                found += [item for item in [item() for item in value.attributes[3]] if item is not None]
        elif value.inputs[0].tensor is not None:
            found.append(value)
    return found


def traced(values: list[Value], asked: Sequence[Value]) -> Trace | None:
    """Return the trace of ``values``, of which those in ``asked`` are wanted; None if no program can compute them."""
    position: dict[Value, int] = {}
    leaves: list[Value] = []
    rows: list[Any] = []
    uses: dict[Value, int] = {}
    place: Any = None
    whole: Any = None
    for value in values:
        op: Any = value.op
        if op is ITEM and value.inputs[0] is whole:  # items come after their composite
            rows.append(value.attributes[0])
            position[value] = len(position)
            continue
        whole = value
        attributes = value.attributes if op.body is None else value.attributes[:3]  # the last of these is its items
        if value.place is not place:
            place = value.place
            rows.append(place)
        rows += op, attributes if op is not FULL else repr(attributes), value.spec  # bytes, since 0.0 == -0.0
        for x in value.inputs:
            at = position.get(x)
            if at is None:
                at = position[x] = ~len(leaves)
                leaves.append(x)
            rows.append(at)
            if at >= 0 and (x.users > 1 or x.op is ITEM):
                uses[x] = uses.get(x, 0) + 1
        position[value] = len(position)
    wanted = {x if x.op is ITEM else _root(x) for x in asked}
    for x in values:
        op = x.op
        if op.body is None and x not in wanted:
            holder = x.holder() if x.holder is not None else None
            held = holder is not None and holder.value is x
            if held or ((x.users > 1 or op is ITEM) and x.users > uses.get(x, 0)):  # or one that is not computed now
                wanted.add(x if op is ITEM else _root(x))
    # their views are made on request
    outputs = [x for x in values if x in wanted and (x.op is ITEM or not _shares_memory(x))]
    rows += [position[x] for x in outputs]
    numbers = {}
    for i, leaf in enumerate(leaves):
        if type(leaf.tensor) is tuple:
            return None
        array = leaf.tensor._data
        is_number = leaf.attributes is CONSTANT and not array.ndim
        rows += leaf.spec, array.strides, is_number
        if is_number:
            numbers[i] = array.tobytes()
    return Trace(values, leaves, outputs, numbers, tuple(rows), [value.context for value in values])


def _shares_memory(value: Value) -> bool:
    """Return whether a value is a view, which shares the memory of its input and may not be contiguous."""
    return is_view(value) and value.op is not ITEM


def _root(value: Value) -> Value:
    """Return the uncomputed value of which ``value`` is a view, or ``value`` itself."""
    while _shares_memory(value) and value.inputs and value.inputs[0].tensor is None:
        value = value.inputs[0]
    return value
