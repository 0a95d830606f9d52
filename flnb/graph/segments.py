"""Segments: sequences of ops that were recorded before, and are recorded again as one value with several results.

A backward pass, or an optimizer's step, records the same ops each time. From the third time on, its Python code is not
run; one value, whose op is a `Segment`, is recorded in place of all its ops. If values are computed op by op,
`unfolded` restores the values of the single ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from weakref import ref

from flnb.dispatch.table import OPS
from flnb.graph.values import CONSTANT, ITEM, Value, last_number, reachable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flnb.dispatch.plan import Spec

COPY = OPS["copy"]
MOST = 256
"""The largest number of sequences of ops about which a backend stores facts (`Known`)."""


class Row(NamedTuple):
    """One op of a segment.

    Attributes:
        op, attributes, spec: the same as for a `Value`; attributes of a composite have no references to its results.
        category: the allocation category of the value.
        inputs: for each input the position of its row, or ``~i`` for input ``i`` of the segment.
    """

    op: Any
    attributes: tuple[Any, ...]
    spec: Spec
    category: int
    inputs: tuple[int, ...]


class Segment:
    """A repeated sequence of ops, recorded as if it were a single op with several results.

    Attributes:
        rows: the ops in order.
        constants: existing numbers that the ops read; they are the segment's last inputs.
        outputs: the positions of the rows of the results, without repetitions.
        results: for each result the attributes of its `ITEM`, its spec and its category.
        category: the allocation category of the first result.
    """

    name: ClassVar[str] = "segment"
    family: ClassVar[str] = "segment"
    body: ClassVar[bool] = True  # as a composite, it has several results

    def __init__(self, rows: Sequence[Row], constants: Sequence[Value], outputs: Sequence[int]) -> None:
        self.rows, self.constants, self.outputs = rows, tuple(constants), outputs
        self.category = rows[outputs[0]].category
        self.results = [((i,), rows[k].spec, rows[k].category) for i, k in enumerate(outputs)]

    def values(self, value: Value, known: Mapping[int, Value]) -> list[Value]:
        """Return the values of a segment's single ops, in the order of its rows.

        ``known`` is a dict from the position of a row to a `Value` that exists already for the row's op, and which is
        used in place of a new one.
        """
        made: list[Value] = []
        for i, (op, attributes, spec, category, given) in enumerate(self.rows):
            inputs = tuple([made[x] if x >= 0 else value.inputs[~x] for x in given])
            items: list[ref[Value]] = []
            own = (*attributes, items) if op is not ITEM and op.body is not None else attributes
            one = Value(op, inputs, own, spec, value.place._replace(category=category))
            if i in known:  # something refers to this object
                one = _become(known[i], one)
            one.number, one.context = value.number + 1 + i, value.context
            if op is ITEM:
                inputs[0].attributes[-1].append(ref(one))
            made.append(one)
        return made

    def number(self, value: Value) -> None:
        """Reserve consecutive sequence numbers for a segment's value and for all ops of the segment."""
        value.number = last_number(len(self.rows) + 1) - len(self.rows)


def _become(value: Value, other: Value) -> Value:
    """Set the op, inputs, attributes and place of ``value`` to those of ``other``; returns ``value``."""
    value.op, value.inputs, value.attributes, value.place = other.op, other.inputs, other.attributes, other.place
    return value


class Known:
    """The facts stored about one repeated sequence of ops, such as a backward pass.

    Attributes:
        segment: the segment of the ops; None before the ops have been recorded.
        failed: whether the ops cannot be recorded as a segment.
        order: a description of the segment's results, for the caller.
    """

    __slots__ = ("failed", "order", "seen", "segment")

    def __init__(self) -> None:
        self.segment: Segment | None = None
        self.order: Any = None
        self.seen = self.failed = False

    def is_due(self) -> bool:
        """Return whether the sequence was recorded before and may be a segment; mark the sequence as recorded."""
        before, self.seen = self.seen, True
        return before and not self.failed


class Segments:
    """The facts (`Known`) about the repeated sequences of ops that one backend records, by key."""

    def __init__(self) -> None:
        self._known: dict[Any, Known] = {}

    def of(self, key: Any) -> Known:
        """Return the facts about the sequence of ops with a key, which contains everything on which the ops depend."""
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST:
                self._known.clear()
            found = self._known[key] = Known()
        return found


def segment_of(inputs: Sequence[Value], outputs: Sequence[Value], after: int) -> Segment | None:
    """Return a segment of the ops that computed outputs from inputs; None if the ops also depend on other values.

    Args:
        inputs: values that existed before the ops, without repetitions.
        outputs: values that the ops computed.
        after: the number of the last value that was recorded before the ops.
    """
    position = {value: ~i for i, value in enumerate(inputs)}
    inside: dict[int, Value] = {}
    waiting = list(outputs)
    constants: list[Value] = []
    while waiting:
        value = waiting.pop()
        if value in position or value.number in inside:
            continue
        if value.attributes is CONSTANT and not value.spec.ndim:
            position[value] = ~(len(inputs) + len(constants))
            constants.append(value)
        elif value.number <= after or value.tensor is not None or isinstance(value.op, Segment):
            return None
        else:
            inside[value.number] = value
            waiting += value.inputs
    rows: list[Row] = []
    for number in sorted(inside):
        value = inside[number]
        op: Any = value.op
        attributes = value.attributes[:-1] if op is not ITEM and op.body is not None else value.attributes
        given = tuple([position[x] for x in value.inputs])
        position[value] = len(rows)
        rows.append(Row(op, attributes, value.spec, value.place.category, given))
    places: list[int] = []
    for value in outputs:
        at = position[value]
        if at < 0 or at in places:  # each result is a value of its own
            rows.append(Row(COPY, (), value.spec, value.place.category, (at,)))
            at = len(rows) - 1
        places.append(at)
    return Segment(rows, constants, places) if places else None


def unfolded(values: Iterable[Value]) -> list[Value]:
    """List the values to compute for ``values``, like `reachable`, with segments expanded to single ops."""
    values = list(values)
    found = reachable(values)
    folded = [value for value in found if isinstance(value.op, Segment)]
    for value in folded:
        segment: Any = value.op
        alive = [item for item in [item() for item in value.attributes[-1]] if item is not None]
        segment.values(value, {segment.outputs[item.attributes[0]]: item for item in alive})
        for x in value.inputs:
            x.users -= 1
    return reachable(values) if folded else found
