"""Lowering: translates a fusion group into a loop nest, with the memory location of each array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flnb.graph.fusing import UNDECIDED, aligned
from flnb.graph.nests import Access, Nest, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.graph.fusing import Group
    from flnb.graph.layouts import Layouts
    from flnb.graph.values import Value


class Lowered(NamedTuple):
    """A fusion group as a loop nest, with the memory of its arrays.

    Attributes:
        nest: the loop nest.
        places: for each of the nest's arrays, the value that owns the memory, and the offset (bytes) of the array's
            first element in that memory.
    """

    nest: Nest
    places: list[tuple[Value, int]]


class _Lowering:
    def __init__(self, group: Group, layouts: Layouts) -> None:
        assert group.shape is not None
        self.group, self.layouts, self.shape = group, layouts, group.shape
        axes = range(len(group.shape))
        inner = frozenset(axes) if group.inner is UNDECIDED else group.inner
        self.inner = [axis for axis in axes if axis in inner]
        self.outer = [axis for axis in axes if axis not in inner]
        self.arrays: list[Access] = []
        self.places: list[tuple[Value, int]] = []
        self.steps: list[Step] = []
        self.known: dict[Any, int] = {}

    def array(self, place: tuple[Value, int], dtype: str, strides: tuple[int, ...]) -> int:
        """Add an array with a dtype and strides to the nest; returns the array's position in the nest.

        ``place`` is the value in whose memory the array is, and the offset (bytes) of its first element there.
        """
        self.places.append(place)
        outer, inner = ([strides[axis] for axis in axes] for axes in (self.outer, self.inner))
        self.arrays.append(Access(dtype, tuple(outer), tuple(inner)))
        return len(self.arrays) - 1

    def step(self, key: Any, step: Step) -> int:
        """Append a scalar step to the nest; returns its number, which is stored under ``key``."""
        self.steps.append(step)
        self.known[key] = len(self.steps) - 1
        return self.known[key]

    def operand(self, x: Value) -> int:
        """Return the number of the step that yields the elements of ``x``; add a load or constant if needed."""
        root, offset, strides = self.layouts[x]
        if root in self.group.strides:
            return self.known[root]
        dtype = x.spec.dtype
        if root.op is None and root.attributes and not root.spec.ndim:  # a number
            if root not in self.known:
                self.step(root, Step("constant", (), dtype.char, attribute=root.tensor._data.item()))
            return self.known[root]
        steps = aligned(x.spec.shape, strides, dtype.itemsize, self.shape)
        assert steps is not None
        key = root, offset, steps
        if key not in self.known:
            self.step(key, Step("load", (), dtype.char, attribute=self.array((root, offset), dtype.char, steps)))
        return self.known[key]

    def member(self, value: Value) -> None:
        """Append the scalar step that computes a member of the group."""
        assert value.op is not None
        dtype = value.spec.dtype.char
        if value.op.name == "full":
            self.step(value, Step("constant", (), dtype, attribute=value.attributes[0]))
            return
        inputs = tuple([self.operand(x) for x in value.inputs])
        self.step(value, Step(value.op.name, inputs, dtype, self.group.over.get(value, "")))


def lowered(group: Group, stored: Sequence[Value], layouts: Layouts) -> Lowered:
    """Translate a fusion group into a loop nest.

    Args:
        group: the values to compute.
        stored: the values of the group that are written to memory.
        layouts: the memory locations of values.
    """
    made = _Lowering(group, layouts)
    for value in group.members:
        made.member(value)
    stores = []
    for value in stored:
        position = made.array((value, 0), value.spec.dtype.char, group.strides[value])
        stores.append((made.known[value], position))
    outer, inner = (tuple([made.shape[axis] for axis in axes]) for axes in (made.outer, made.inner))
    return Lowered(Nest(outer, inner, tuple(made.arrays), tuple(made.steps), tuple(stores)), made.places)
