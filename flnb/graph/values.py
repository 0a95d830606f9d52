"""Values: nodes of the graph of recorded ops; each node refers to the values from which it is computed."""

from __future__ import annotations

from collections import deque
from itertools import count, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb_telemetry import bus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from weakref import ref

    from flnb.dispatch.plan import Spec
    from flnb.dispatch.table import Op
    from flnb.interface import MemoryManager, TensorBackend

_numbers = count(1)
_next_number = _numbers.__next__


class Pseudo(NamedTuple):
    """An op that is used in graphs but is not in the op table, such as a copy between devices."""

    name: str
    family: str = "movement"
    body: None = None
    writes_out: bool = True


PUT: Any = Pseudo("put")
"""The op whose result is a tensor after a write to one of its views.

The inputs are the tensor before the write and the view's new elements. The attributes are the op that makes the view,
and that op's attributes."""
MOVE: Any = Pseudo("move")
"""The op that copies a value to the memory of another device."""
ITEM: Any = Pseudo("item")
"""The op that selects one of several results of a composite or its gradient; the attribute is the result's index."""


CONSTANT = ("constant",)
"""The attributes of an existing value that no program writes to or replaces."""


class Place(NamedTuple):
    """The backend and memory manager that compute a value, its allocation category, and whether fusion is allowed."""

    backend: TensorBackend
    manager: MemoryManager
    category: int = 0
    fuse: bool = True


class Value:
    """One recorded op and its result, immutable: a node of the graph.

    Attributes:
        op: the op; None for a value that existed before and was not computed by a recorded op.
        inputs: the values that the op reads; none once the value is computed.
        attributes: the op's attributes, such as axes.
        spec: shape and dtype.
        place: where the value is computed: backend, memory manager and category of memory.
        tensor: the tensor with the computed elements, or a tuple of all results of an op with several results (see
            `ITEM`); None before the computation.
        number: the value's number in the order of recording; inputs have smaller numbers.
        holder: a weak reference to the buffer for which the value was recorded; None if there is none.
        users: how many times the value has been an input of another value, including values that no longer exist.
        context: the id of the telemetry context (module and phase) in which the value was recorded; -1 without
            telemetry.
        site: code and offset of the user's line that recorded the value (`flnb.dispatch.source_lines`), for `flnb.jit`.
    """

    site: tuple[Any, int]
    __slots__ = (
        "__weakref__", "attributes", "context", "holder", "inputs", "number", "op", "place", "site", "spec", "tensor",
        "users",
    )  # fmt: skip

    def __init__(
        self,
        op: Op | None,
        inputs: tuple[Value, ...],
        attributes: tuple[Any, ...],
        spec: Spec,
        place: Place,
        tensor: Any = None,
    ) -> None:
        self.op, self.inputs = op, inputs  # more at a time would make a tuple
        self.attributes, self.spec = attributes, spec
        self.place, self.tensor = place, tensor
        self.users, self.number = 0, _next_number()
        for x in inputs:
            x.users += 1
        self.site: tuple[Any, int] = None, 0
        self.holder: ref[Any] | None = None
        lanes = bus.lanes
        self.context = lanes.lane.context if lanes is not None else -1

    def __repr__(self) -> str:
        return f"<value {self.number} {self.op.name if self.op else 'input'} {self.spec!r}>"


def last_number(count: int = 1) -> int:
    """Reserve ``count`` sequence numbers for values; returns the last one."""
    return deque(islice(_numbers, count), maxlen=1)[0]


def reachable(values: Iterable[Value]) -> list[Value]:
    """List all uncomputed values on which ``values`` depend, themselves included, in the order of recording."""
    found: dict[int, Value] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value.tensor is None and value.number not in found:
            found[value.number] = value
            waiting += value.inputs
    return [found[number] for number in sorted(found)]


class Recorded(NamedTuple):
    """The recorded inputs, outputs and side effects that define a program.

    Attributes:
        inputs: existing values whose arrays are passed to each run.
        outputs: the values to return, each in new memory in each run.
        updates: pairs of an existing value and the value that is written to the existing value's array.
        effects: values to compute in each run even if unused, such as random numbers, which change a generator's state.
        donated: inputs whose memory may be used for an output.
        generators: the random generators from which the program draws, as the values of a dict. Each key is the ``id``
            that a generator's attribute ``numpy``, a NumPy generator, had during recording.
    """

    inputs: Sequence[Value]
    outputs: Sequence[Value]
    updates: Sequence[tuple[Value, Value]] = ()
    effects: Sequence[Value] = ()
    donated: Collection[Value] = ()
    generators: Mapping[int, Any] = MappingProxyType({})

    @property
    def wanted(self) -> list[Value]:
        """Return all values that a run must compute: outputs, updates and effects."""
        return [*self.outputs, *[new for _, new in self.updates], *self.effects]
