"""Recorded ops as readable text (`flnb.graph.dprint`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flnb.dispatch.brief import brief
from flnb.graph.segments import unfolded
from flnb.graph.values import ITEM, PUT, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flnb.tensor import Tensor


def dprint(x: Tensor) -> None:
    """Print the recorded ops on which a tensor of the backend "deferred" depends, one per line.

    Raises:
        TypeError: the tensor belongs to another backend.

    >>> import flnb
    >>> with flnb.use_backend("deferred"):
    ...     x = flnb.exp(flnb.asarray([1.0, 2.0]))
    ...     flnb.graph.dprint((x + 1.0) * x)
    %1 = float32[2], computed
    %2 = exp(%1)  # float32[2]
    %3 = 1.0
    %4 = add(%2, %3)  # float32[2]
    %5 = multiply(%4, %2)  # float32[2]
    """
    if x._spec.kind != "deferred":
        raise TypeError(f"dprint: expected a tensor of the backend 'deferred', got {x._spec!r} of {x._spec.kind!r}")
    asked = x._data.read()
    for _, line in listed([*unfolded([asked]), asked], {}):
        print(line)


def listed(values: Iterable[Value], names: dict[Value, str]) -> list[tuple[Value, str]]:
    """Return pairs of a value and its op as text; existing values precede the first op that reads them.

    Args:
        values: the values to list, in order.
        names: a dict with the names of values; names of the listed values are added to it.
    """
    lines: list[tuple[Value, str]] = []

    def name(value: Value) -> str:
        if value not in names:
            names[value] = f"%{len(names) + 1}"
            if value.tensor is not None:
                lines.append((value, f"{names[value]} = {_known(value)}"))
        return names[value]

    for value in values:
        if value.tensor is None and value not in names:
            inputs = [name(each) for each in value.inputs]
            lines.append((value, f"{name(value)} = {_call(value, inputs)}  # {value.spec!r}"))
        name(value)
    return lines


def _known(value: Value) -> str:
    """Return the text of an already computed value: a scalar's number, or the dtype and shape of anything else."""
    number = value.spec.ndim == 0 and value.op is None
    return str(value.place.backend.to_numpy(value.tensor._data).item()) if number else f"{value.spec!r}, computed"


def _call(value: Value, inputs: list[str]) -> str:
    """Return the text of a value's op as a call, given the texts of its inputs."""
    op, attributes = value.op, value.attributes
    if op is ITEM:
        return f"{inputs[0]}[{attributes[0]}]"
    if op is PUT:
        return f"put({', '.join(inputs)}, {attributes[0].name}({', '.join(map(brief, attributes[1]))}))"
    if op is not None and op.body is not None:
        attributes = attributes[0].attributes  # of the plan of the composite
    return f"{op.name if op else ''}({', '.join([*inputs, *map(brief, attributes)])})"
