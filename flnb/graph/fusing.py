"""Fusion: groups recorded ops so that one loop nest computes each group and intermediates stay in registers.

Values are visited in order. A value is added to the group of one of its inputs, or of another value that reads one of
its inputs, if both are computed by loops over the same shape. No group may depend on a value that depends on the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry import intern
from flnb_telemetry.schema import BACKWARD

from flnb.dispatch.table import OPS
from flnb.graph.layouts import is_view, row_major
from flnb.graph.ordering import Growth, ordered
from flnb.graph.scalars import REDUCTIONS, supported
from flnb.graph.values import ITEM, PUT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from flnb.graph.layouts import Layouts
    from flnb.graph.values import Value

POINTWISE = frozenset(
    {"astype", "copy", "full", *(o.name for o in OPS.values() if o.family == "elementwise" and not o.body)}
)
VIEWS = frozenset({op.name for op in OPS.values() if not op.writes_out})
FUSED = REDUCTIONS | POINTWISE | VIEWS
"""Ops that loop nests can compute; a composite that consists of such ops only is recorded op by op."""
MOST_MEMBERS, MOST_ARRAYS = 48, 24
"""The largest number of values in a group, and of values that a group reads from memory."""

Strides = tuple[int, ...]
UNDECIDED: frozenset[int] = frozenset({-1})
"""The inner axes of a group that has no reduction yet."""


class Group:
    """A group of values computed together by one loop nest, or one value that a backend method computes.

    Attributes:
        members: the values, in order.
        shape: the extents of the loops; None for a value that a backend method computes.
        inner: the axes of ``shape`` that belong to the inner loops, over which "inner" reductions run; `UNDECIDED` if
            the group has no reduction.
        strides: for each member its strides, in elements, along the axes of ``shape``.
        over: a dict from each reduction to the loops over which it runs, "inner" or "outer".
        loads: the values that the group reads from memory.
        mask: an int with a single bit, which identifies this group.
        before: an int that combines the masks of all groups that must be computed before this group.
    """

    def __init__(self, number: int, shape: tuple[int, ...] | None) -> None:
        self.members: list[Value] = []
        self.shape, self.inner = shape, UNDECIDED
        self.strides: dict[Value, Strides] = {}
        self.over: dict[Value, str] = {}
        self.loads: set[Value] = set()
        self.mask, self.before = 1 << number, 0


def is_late(value: Value) -> bool:
    """Return whether a value was recorded during or after a backward pass."""
    return intern.contexts.items[max(value.context, 0)].phase >= BACKWARD


def space_of(value: Value, kept_apart: Collection[str]) -> tuple[int, ...] | None:
    """Return the shape of the loops that compute a value, or None if a loop nest cannot compute it.

    Args:
        value: the value.
        kept_apart: names of ops that loop nests must not compute.
    """
    op = value.op
    if op is ITEM or op is PUT or op is None or op.body is not None or op.name in kept_apart:
        return None
    dtype = value.spec.dtype.char
    name, inputs = ("copy", [dtype]) if op.name == "full" else (op.name, [x.spec.dtype.char for x in value.inputs])
    if not supported(name, inputs, dtype):
        return None
    shape = value.inputs[0].spec.shape if op.name in REDUCTIONS else value.spec.shape
    return shape if value.spec.size and 0 not in shape else None


def aligned(shape: tuple[int, ...], strides: Strides, itemsize: int, space: tuple[int, ...]) -> Strides | None:
    """Return an array's strides, in elements, after broadcasting to the shape ``space``; None if that is impossible."""
    lead = len(space) - len(shape)
    if lead < 0 or any(n not in (1, m) for n, m in zip(shape, space[lead:], strict=True)):
        return None
    steps = [0 if n == 1 else s // itemsize for n, s in zip(shape, strides, strict=True)]
    return (0,) * lead + tuple(steps)


class Grouping:
    """Builds fusion groups value by value: call `add` for each, in order.

    Attributes:
        groups: the groups, in the order in which they were begun.
        of: the group of each value.
        readers: for each value in memory, the values that read it, in order.
    """

    def __init__(self, layouts: Layouts, kept_apart: Collection[str], apart: bool, mixes: bool) -> None:
        self.layouts, self.kept_apart, self.apart, self.mixes = layouts, kept_apart, apart, mixes
        self.groups: dict[Group, None] = {}
        self.of: dict[Value, Group] = {}
        self.readers: dict[Value, list[Value]] = {}

    def add(self, value: Value) -> None:
        """Add a value to an existing group that fits, or to a new group."""
        if value.op is ITEM:
            self.of[value] = self.of[value.inputs[0]]
            self.of[value].members.append(value)
            return
        space = space_of(value, self.kept_apart)
        group = None
        if space is not None:
            group = self._joined(value)
            if group is None:
                group = self._new(space)
                if not self._join(value, group):
                    del self.groups[group]
                    group = None
        if group is None:
            group = self._new(None)
            group.members.append(value)
        if value not in self.of:
            self._depend(value, group)

    def _new(self, shape: tuple[int, ...] | None) -> Group:
        """Append an empty group that loops over ``shape``; with None, the group is one call of a backend method."""
        made = Group(self.count, shape)
        self.groups[made] = None
        self.count += 1
        return made

    count = 0

    def _joined(self, value: Value) -> Group | None:
        """Add a value to the group of an input, or of another reader of an input.

        Return the group, or None if no group can contain the value.
        """
        roots = [self.layouts[x].root for x in value.inputs]
        writers = [self.of[root] for root in roots if root in self.of]
        readers = [self.of[self.readers[x][-1]] for x in roots if x in self.readers and x.spec.size > 1]
        for group in dict.fromkeys([*writers[::-1], *readers]):
            if group.shape is None or len(group.members) >= MOST_MEMBERS or self._apart(group, value):
                continue
            if any(other is not group and other.before & group.mask for other in writers):
                continue  # what it reads needs a value of this group
            if self._join(value, group):
                self._depend(value, group)
                for other in dict.fromkeys(writers):
                    self._merge(group, other)
                return group
        return None

    def _apart(self, group: Group, value: Value) -> bool:
        """Return whether a group and a value belong to passes (forward, backward) that must not be fused."""
        return self.apart and is_late(group.members[0]) != is_late(value)

    def _join(self, value: Value, group: Group) -> bool:
        """Try to add a value to a group; returns False if the value does not fit the group's loops."""
        reduces = value.op is not None and value.op.name in REDUCTIONS
        found = self._reduction(value, group) if reduces else self._pointwise(value, group)
        if found is None:
            return False
        roots = {self.layouts[x].root for x in value.inputs}
        loads = group.loads | {root for root in roots if root not in group.strides}
        if len(loads) > MOST_ARRAYS:
            return False
        group.strides[value] = found
        group.loads = loads
        group.members.append(value)
        return True

    def _reduction(self, value: Value, group: Group) -> Strides | None:
        """Return the strides (elements) of a reduction's result in a group's loops; None if it does not fit."""
        (x,), axes, shape = value.inputs, value.attributes[0], group.shape
        assert shape is not None
        over = frozenset([axis % len(shape) for axis in axes]) if shape else frozenset()
        rest = frozenset(range(len(shape))) - over
        if x.spec.shape != shape or not over:
            return None
        inner = group.inner
        if inner is UNDECIDED:
            inner = over if len(shape) - 1 in over else rest
        if over not in (inner, frozenset(range(len(shape))) - inner):
            return None
        operand = self._operand(x, group)
        root = self.layouts[x].root
        if operand is None or (root in group.strides and operand != _full(shape)):
            return None
        space = "inner" if over == inner else "outer"
        if not self.mixes and group.over and space not in group.over.values():
            return None
        group.inner = inner
        group.over[value] = space
        kept = tuple([n if i in rest else 1 for i, n in enumerate(shape)])
        return tuple([s if n > 1 else 0 for s, n in zip(row_major(kept), kept, strict=True)])

    def _pointwise(self, value: Value, group: Group) -> Strides | None:
        """Return the strides (elements) of an elementwise result in a group's loops; None if the op does not fit."""
        shape = group.shape
        assert shape is not None
        own = value.spec.shape
        operands = [self._operand(x, group) for x in value.inputs]
        if own == shape:
            return None if None in operands else _full(shape)
        if group.inner is UNDECIDED:
            return None
        found = aligned(own, row_major(own), 1, shape)
        if found is not None and None not in operands and not any(found[i] for i in group.inner):
            return found
        return self._alike(value, group)

    def _alike(self, value: Value, group: Group) -> Strides | None:
        """Return the strides (elements) of an elementwise op on the results of reductions; None if it does not fit.

        They are the strides of the group's reductions that ``value`` reads. The op does not fit if these strides
        differ, or if an input has several elements and another shape than ``value``.
        """
        found: set[Strides] = set()
        for x in value.inputs:
            root, offset, _ = self.layouts[x]
            if root in group.strides and group.over.get(root) != "outer" and not offset:
                if x.spec.shape != value.spec.shape or x.spec.size != root.spec.size or not self.layouts.contiguous(x):
                    return None
                found.add(group.strides[root])
            elif x.spec.size != 1:
                return None
        return found.pop() if len(found) == 1 else None

    def _operand(self, x: Value, group: Group) -> Strides | None:
        """Return the strides, in elements, with which a group's loops can read a value; None if they cannot read it."""
        root, offset, strides = self.layouts[x]
        assert group.shape is not None
        found = aligned(x.spec.shape, strides, x.spec.dtype.itemsize, group.shape)
        if found is None or root not in group.strides:
            return found
        same = not offset and found == group.strides[root] and group.over.get(root) != "outer"
        return found if same else None

    def _merge(self, group: Group, other: Group) -> None:
        """Merge two groups with loops of the same shape, unless another group must be computed between the two."""
        if other is group or other.shape != group.shape or not _compatible(group, other):
            return
        if self._apart(group, other.members[0]):
            return
        if not self.mixes and len({*group.over.values(), *other.over.values()}) > 1:
            return
        if len(group.members) + len(other.members) > MOST_MEMBERS or len(group.loads | other.loads) > MOST_ARRAYS:
            return
        both = group.mask | other.mask
        between = (group.before | other.before) & ~both
        if any(third.mask & between for each in (group, other) for third in self.followers(each)):
            return
        crossing = any(self.layouts[x].root in other.strides for v in group.members for x in v.inputs)
        if crossing and not self._reads_members(group, other):
            return
        self._unite(group, other)

    def _reads_members(self, group: Group, other: Group) -> bool:
        """Return whether each iteration of ``group`` reads values of ``other`` only from the same iteration."""
        for value in group.members:
            for x in value.inputs:
                root, offset, strides = self.layouts[x]
                if root in other.strides:
                    assert group.shape is not None
                    found = aligned(x.spec.shape, strides, x.spec.dtype.itemsize, group.shape)
                    if offset or found != other.strides[root] or other.over.get(root) == "outer":
                        return False
        return True

    def _unite(self, group: Group, other: Group) -> None:
        """Move all members of ``other`` into ``group``."""
        group.members = sorted([*group.members, *other.members], key=lambda value: value.number)
        group.strides |= other.strides
        group.over |= other.over
        group.loads = {x for x in group.loads | other.loads if x not in group.strides}
        group.inner = other.inner if group.inner is UNDECIDED else group.inner
        group.mask |= other.mask
        for value in other.members:
            self.of[value] = group
        del self.groups[other]
        self._put_before(group, other.before, united=True)

    def _depend(self, value: Value, group: Group) -> None:
        """Record that a value is in a group, and update the order in which groups must be computed."""
        self.of[value] = group
        before = 0
        for x in value.inputs:
            root = self.layouts[x].root
            self.readers.setdefault(root, []).append(value)
            other = self.of.get(root)
            if other is not None and other is not group:
                before |= other.before | other.mask
        self._put_before(group, before)

    def _put_before(self, group: Group, more: int, united: bool = False) -> None:
        """Record that the groups in the mask ``more`` precede ``group`` and all groups that depend on ``group``.

        With ``united``, this is done even if ``more`` has no new groups, because ``group`` has just been merged.
        """
        if not united and not more & ~(group.before | group.mask):
            return
        group.before = (group.before | more) & ~group.mask
        more = group.before | group.mask
        waiting = [*self.followers(group)]
        while waiting:
            other = waiting.pop()
            if more & ~(other.before | other.mask):
                other.before = (other.before | more) & ~other.mask
                waiting += self.followers(other)

    def followers(self, group: Group) -> set[Group]:
        """Return the groups whose members read values of ``group``; this may include the group itself."""
        return {self.of[reader] for value in group.members for reader in self.readers.get(value, ())}


def _full(shape: tuple[int, ...]) -> Strides:
    """Return the strides, in elements, of a contiguous array of a shape, with 0 for axes of extent 1."""
    return tuple([s if n > 1 else 0 for s, n in zip(row_major(shape), shape, strict=True)])


def _compatible(a: Group, b: Group) -> bool:
    """Return whether one loop nest can compute both groups: they reduce over the same axes, or one has no reduction."""
    return a.inner is UNDECIDED or b.inner is UNDECIDED or a.inner == b.inner


def grouped(
    values: Iterable[Value],
    layouts: Layouts,
    kept_apart: Collection[str],
    apart: bool = False,
    kernels: Any = None,
    outputs: Collection[Value] = (),
    updates: Sequence[tuple[Value, Value]] = (),
) -> Sequence[Group]:
    """Partition values into fusion groups, each computed by one loop nest or one call of a backend method.

    Args:
        values: the values in order, without views and without values that already exist.
        layouts: the memory locations of the values.
        kept_apart: names of ops that loop nests must not compute.
        apart: whether groups must not mix values of the forward and the backward pass. A mixed group computes values of
            the backward pass early, and these are then stored instead of forward values.
        kernels: the backend's compiler of loop nests (`flnb.interface.TensorBackend.kernels`), or None.
        outputs: values that are stored outside of the program's memory.
        updates: pairs of an existing value and the value that replaces it.

    Returns:
        The groups in an order in which they can be computed.
    """
    grouping = Grouping(layouts, kept_apart, apart, kernels is None or kernels.mixes)
    for value in values:
        if value.op is not None and not is_view(value):
            grouping.add(value)
    if kernels is not None and kernels.most_joined > 1:
        return ordered(grouping)
    return ordered(grouping, Growth(grouping, outputs, updates))
