"""Buffers of the deferred backend: each refers to the present value of its tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from flnb.graph.values import CONSTANT, PUT, Value
from flnb_backends.tensor import meta

if TYPE_CHECKING:
    from flnb.dispatch.plan import Spec
    from flnb.graph.values import Place
    from flnb_backends.tensor.replay import Entry


class Leaf(Value):
    """A placeholder for an input of the trace in a `Replay`; in each repetition it stands for another computed value.

    Attributes:
        layout: the strides that the input must have, and whether it must be a constant number (0-d).
        source: the value for which the leaf stands in the present repetition; None if none was chosen yet.
        marked: a weak reference to the buffer whose mark is this leaf; None if there is none.
    """

    __slots__ = ("layout", "marked", "source")

    def __init__(self, spec: Spec, place: Place, layout: Any) -> None:
        super().__init__(None, (), (), spec, place)
        self.layout = layout
        self.source: Value | None = None
        self.marked: ref[Buffer] | None = None

    def stands_for(self, value: Value) -> bool:
        """Return whether this leaf stands for ``value``; in each repetition it stands for the first value that fits."""
        if self.source is None and value.spec is self.spec and is_computed(value) and layout(value) == self.layout:
            self.source, self.tensor, self.attributes = value, value.tensor, value.attributes
        return self.source is value

    def unmark(self) -> None:
        """Set the `mark` of the buffer to which this leaf was assigned to None."""
        buffer = self.marked() if self.marked is not None else None
        if buffer is not None and buffer.mark is self:
            buffer.mark = None
        self.marked = None


class Buffer(meta.Buffer):
    """A tensor's buffer on the deferred backend, which refers to the tensor's present value.

    Attributes:
        place: the backend that computes the buffer's values, and the memory manager that allocates them.
        value: the present value, computed or not yet computed; not set for views, whose value is made when it is read.
        steps: for a view, the op and the attributes that make it from its base.
        last: for a view that was read, weak references to the values of its base and of itself at that time.
        mark: what a `Replay` compares: the present value, or the `Leaf` that stands for it; None if the `Replay` must
            look further, for example for views.
        held: a weak reference to this buffer, the `Value.holder` of its values.
        entry: for a buffer of a `Replay`, until it is written again, the op that computes its value; else None.
    """

    __slots__ = ("__weakref__", "entry", "held", "last", "mark", "place", "steps", "value")

    base: Buffer | None
    value: Value
    steps: tuple[Any, tuple[Any, ...]]
    last: tuple[ref[Value], ref[Value]] | None
    mark: Value | None
    entry: Entry | None

    def __init__(self, spec: Spec, place: Place) -> None:
        self.spec, self.place, self.held = spec, place, ref(self)
        self.owner = self.strides = self.base = self.last = self.mark = self.entry = None

    def read(self) -> Value:
        """Return the present value of this buffer."""
        if self.base is None:
            return self.value
        views, root = [], self
        while root.base is not None:
            views.append(root)
            root = root.base
        value = root.value
        for view in reversed(views):
            known = view.last[1]() if view.last is not None and view.last[0]() is value else None
            if known is None:
                known = Value(view.steps[0], (value,), view.steps[1], view.spec, view.place)
                view.last = ref(value), ref(known)
            value = known
        return value

    def put(self, value: Value) -> None:
        """Set the present value of a buffer that is not a view."""
        self.value = self.mark = value
        self.entry = None
        value.holder = self.held

    def write(self, value: Value) -> None:
        """Replace the elements of this buffer by those of a value; the base and its other views change, too.

        Raises:
            ValueError: the buffer is a view in which several elements share memory.
        """
        to = self
        while to.base is not None:
            if to.strides and any(stride == 0 and n > 1 for stride, n in zip(to.strides, to.shape, strict=True)):
                raise ValueError(f"{to.spec!r} is a view whose elements share memory (broadcast_to): write to a copy")
            value = Value(PUT, (to.base.read(), value), to.steps, to.base.spec, to.base.place)
            to = to.base
        to.put(value)


def layout(value: Value) -> tuple[tuple[int, ...], bool]:
    """Return the strides of a computed value, and whether it is a constant number (0-d) in the user's program."""
    array = value.tensor._data
    return array.strides, value.attributes is CONSTANT and not array.ndim


def is_computed(value: Value) -> bool:
    """Return whether a value is computed and has one result, rather than a tuple of several."""
    return value.tensor is not None and type(value.tensor) is not tuple
