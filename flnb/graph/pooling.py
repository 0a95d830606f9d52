"""Max pooling in programs: the gradient reads stored places of the maxima (1 byte per window) instead of the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.plan import spec_of
from flnb.dispatch.table import OPS
from flnb.graph.rewriting import like
from flnb.graph.values import ITEM, Value, reachable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flnb.graph.layouts import Layouts

GRADIENTS = {OPS[f"max_pool{rank}d"]: OPS[f"max_pool{rank}d_grad"] for rank in (1, 2, 3)}
"""A dict from each op of max pooling to the op that computes its gradient."""
BYTE = np.dtype(np.uint8)
ATTRIBUTES = 2
"""The number of attributes of these ops: window extents and stride. An op with places has one attribute more."""


def pooling_of(value: Value) -> Any:
    """Return the `flnb.interface.Pooling` of a value that stores or reads places of maxima; None for other values."""
    op: Any = value.op
    pools = op in GRADIENTS or op in GRADIENTS.values()
    return value.attributes[ATTRIBUTES] if pools and len(value.attributes) > ATTRIBUTES else None


def with_places(wanted: Sequence[Value], layouts: Layouts, kept_apart: Collection[str]) -> dict[Value, Value]:
    """Rewrite values so that max pooling stores the places of its maxima, and its gradient reads them, not the image.

    Args:
        wanted: the values to compute.
        layouts: the memory locations of values.
        kept_apart: names of ops that methods of the user's class compute.

    Returns:
        A dict from every value to the value that replaces it; empty if no backend stores places.
    """
    values = reachable(wanted)
    asked = {_key(x) for x in values if x.op in GRADIENTS.values()}
    poolings: dict[Any, Any] = {}
    for value in values:
        op: Any = value.op
        if op not in GRADIENTS or _key(value) not in asked or _key(value) in poolings:
            continue
        image, names = value.inputs[0], {op.name, GRADIENTS[op].name}
        if names.isdisjoint(kept_apart) and layouts.contiguous(image):
            made = value.place.backend.pooling(image.spec.shape, image.spec.dtype, *value.attributes)
            if made is not None:
                poolings[_key(value)] = made
    return _rewritten(values, poolings) if poolings else {}


def _key(value: Value) -> Any:
    """Return a key that a max pooling and its gradient share; None for other ops."""
    if value.op in GRADIENTS:
        return GRADIENTS[value.op], value.inputs[0], value.attributes
    return (value.op, value.inputs[1], value.attributes) if value.op in GRADIENTS.values() else None


def _rewritten(values: Sequence[Value], poolings: dict[Any, Any]) -> dict[Value, Value]:
    """Return a dict from each value to its copy; in the copy, max poolings store places of maxima for their gradients.

    Args:
        values: the values to copy, in an order in which inputs come first.
        poolings: a dict from `_key` to the `flnb.interface.Pooling` that stores the places.
    """
    now: dict[Value, Value] = {}
    places: dict[Any, Value] = {}

    def copied(value: Value, inputs: Sequence[Value], *more: Any) -> Value:
        return like(Value(value.op, tuple(inputs), (*value.attributes, *more), value.spec, value.place), value)

    for value in values:
        inputs = [now.get(x, x) for x in value.inputs]
        key = _key(value)
        if key in poolings and key not in places:
            both = copied(value, inputs, poolings[key])
            spec = spec_of((poolings[key].nbytes,), BYTE, value.spec.kind)
            now[value], places[key] = (
                like(Value(ITEM, (both,), (i,), each, value.place), value) for i, each in enumerate((value.spec, spec))
            )
        elif key in places and value.op not in GRADIENTS:
            now[value] = copied(value, [inputs[0], places[key]], poolings[key])
        else:
            now[value] = copied(value, inputs)
    return now
