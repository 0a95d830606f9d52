"""Memory planning: assigns each stored value of a program an offset, so that disjoint lifetimes share memory.

An elementwise result uses the memory of an operand of the same size that is read for the last time. Then memory ranges
get offsets in one block, the largest range first. Each gets the lowest offset at which no other range is in use at the
same time: Pisarchyk and Lee, "Efficient memory management for deep neural net inference" (2020), section 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb.graph.values import ITEM, PUT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from flnb.dispatch.table import Op
    from flnb.graph.fusing import Group
    from flnb.graph.layouts import Layouts
    from flnb.graph.values import Value
    from flnb.interface import TensorBackend

GRAIN = 64
"""Values begin at multiples of this many bytes, which is the size of a processor's cache line."""


class MemoryPlan(NamedTuple):
    """The memory location of each stored value of a program.

    Attributes:
        sizes: for each backend, the size in bytes of the program's block of memory.
        offset: for each value in a block, its offset in bytes.
        home: for each value that overwrites an existing value, such as a parameter, the existing value.
        copies: pairs of an existing value and the value that is copied to its memory at the end.
        scratch: for each group whose method gets scratch memory in the block, offset and size of that memory in bytes.
    """

    sizes: dict[TensorBackend, int]
    offset: dict[Value, int]
    home: dict[Value, Value]
    copies: list[tuple[Value, Value]]
    scratch: dict[int, tuple[int, int]]

    @property
    def size(self) -> int:
        """Return the total size in bytes of the program's blocks."""
        return sum(self.sizes.values())


class _Lives:
    """Lifetimes of a program's values: for each value, the numbers of the groups that write and read it."""

    def __init__(
        self, groups: Sequence[Group], layouts: Layouts, last: Collection[Value], careful: Collection[Op]
    ) -> None:
        self.groups, self.layouts, self.careful = groups, layouts, careful
        self.written: dict[Value, int] = {}
        self.stored: list[list[Value]] = [[] for _ in groups]
        self.readers: dict[Value, list[int]] = {}
        self.read: list[list[Value]] = [[] for _ in groups]
        for i, group in enumerate(groups):
            for value in group.members:
                self.written[value] = i
                for x in value.inputs:
                    self.readers.setdefault(layouts[x].root, []).append(i)
                    self.read[i].append(layouts[x].root)
        for value, i in self.written.items():
            if self._in_memory(value, i, last):
                self.stored[i].append(value)

    def _in_memory(self, value: Value, i: int, last: Collection[Value]) -> bool:
        """Return whether ``value``, of group ``i``, must be stored: another group reads it, or ``last`` contains it."""
        if any(x.op is ITEM for x in self.groups[i].members):
            return value.op is ITEM
        return self.groups[i].shape is None or value in last or any(j != i for j in self.readers.get(value, ()))

    def replaces(self, new: Value, old: Value) -> bool:
        """Return whether ``new`` may be written to the array of ``old``: no later group reads the old elements.

        False if the array is not C-contiguous, because kernels read and write computed values in row-major order.
        """
        last = max(self.readers.get(old, [-1]))
        return self.layouts.contiguous(old) and last <= self.written[new] and self.overwrites(new, old)

    def overwrites(self, value: Value, x: Value) -> bool:
        """Return whether ``value`` may overwrite x: its group reads each element of x before writing that element."""
        i = self.written[value]
        if i not in self.readers.get(x, ()):
            return True
        group = self.groups[i]
        if group.shape is None:
            if value.op is PUT:
                return value.inputs[0] is x
            return value.op in self.careful
        if "inner" in group.over.values() or value in group.over:
            return False
        spec = value.spec
        if (spec.shape, spec.dtype.itemsize) != (x.spec.shape, x.spec.dtype.itemsize):
            return False
        return self.layouts.contiguous(x) and all(
            not self.layouts[y].offset and y.spec.shape == x.spec.shape and self.layouts.contiguous(y)
            for member in group.members for y in member.inputs if self.layouts[y].root is x
        )  # fmt: skip


def plan_memory(
    groups: Sequence[Group],
    layouts: Layouts,
    updates: Sequence[tuple[Value, Value]],
    outputs: Collection[Value],
    donated: Collection[Value],
    careful: Collection[Op],
    scratch: Mapping[int, int] = MappingProxyType({}),
    draft: bool = False,
) -> tuple[MemoryPlan, list[list[Value]]]:
    """Plan a program's memory: which values are stored, and where (at an offset, or in the memory of another value).

    Args:
        groups: the fusion groups, in the order in which they are computed.
        layouts: the memory locations of values.
        updates: pairs of an existing value and the value that replaces it.
        outputs: values that outlive the program, in separate memory.
        donated: existing values whose memory may be used for an output.
        careful: ops whose methods may write to the memory of an operand, as NumPy's ufuncs may.
        scratch: the bytes of scratch memory that a group needs while it is computed, for groups that need some.
        draft: whether to compute only a lower bound of the block's size, and no offsets.

    Returns:
        The plan; and for each group, a list of its values that are stored in memory.
    """
    lives = _Lives(groups, layouts, {*outputs, *[new for _, new in updates]}, careful)
    home, copies = _homes(lives, updates, outputs, donated)
    kept = {new for _, new in copies}
    tenants: list[_Tenant] = []
    of: dict[Value, _Tenant] = {}
    for i, stored in enumerate(lives.stored):
        free = [x for x in dict.fromkeys(lives.read[i]) if x in of and of[x].last == i]
        for value in stored:
            if value in home or value in outputs:
                continue
            last = len(groups) if value in kept else max(lives.readers.get(value, [i]))
            heir = next((x for x in free if x.spec.nbytes == value.spec.nbytes and lives.overwrites(value, x)), None)
            if heir is None:
                tenants.append(_Tenant([], i, last, -(-max(value.spec.nbytes, 1) // GRAIN) * GRAIN))
                of[value] = tenants[-1]
            else:
                free.remove(heir)
                of[value] = of[heir]
                of[value].last = last
            of[value].values.append(value)
    lent = {i: _Tenant(groups[i].members[:1], i, i, -(-size // GRAIN) * GRAIN) for i, size in scratch.items()}
    apart: dict[TensorBackend, list[_Tenant]] = {}
    for tenant in [*tenants, *lent.values()]:
        apart.setdefault(tenant.values[0].place.backend, []).append(tenant)
    sizes = {}
    for backend, own in apart.items():
        sizes[backend] = _most_alive(own) if draft else _packed_well(own)
    offsets = {value: tenant.offset for value, tenant in of.items()}
    places = {i: (tenant.offset, tenant.size) for i, tenant in lent.items()}
    return MemoryPlan(sizes, offsets, home, copies, places), lives.stored


def _homes(
    lives: _Lives, updates: Sequence[tuple[Value, Value]], outputs: Collection[Value], donated: Collection[Value]
) -> tuple[dict[Value, Value], list[tuple[Value, Value]]]:
    """Return the attributes ``home`` and ``copies`` of a `MemoryPlan`.

    The arguments are those of `plan_memory`, and the lifetimes of values.
    """
    home = {new: old for old, new in updates if lives.replaces(new, old)}
    copies = [(old, new) for old, new in updates if new not in home]
    free = [x for x in donated if all(x is not old for old, _ in updates)]
    for value in outputs:
        place = next((x for x in free if x.spec is value.spec and lives.replaces(value, x)), None)
        if place is not None:
            free.remove(place)
            home[value] = place
    return home, copies


@dataclass(eq=False)
class _Tenant:
    """Values that use one memory range one after another; or the value whose method uses the range as scratch memory.

    ``first`` and ``last`` are the numbers of the first and the last group that use the range; size and offset are in
    bytes.
    """

    values: list[Value]
    first: int
    last: int
    size: int
    offset: int = 0


ORDERS: tuple[Callable[[_Tenant], Any], ...] = (
    lambda each: -each.size,
    lambda each: -each.size * (each.last - each.first + 1),
    lambda each: (-each.last, -each.size),
)
"""The orders in which memory ranges are placed: by size, by size x time in use, by last use (all descending)."""


ROUNDS, MOST_PLACED = 32, 20_000
"""How often memory ranges are placed in each order, each time first the one that ended highest before; fewer times if
there are many ranges, so that at most ``MOST_PLACED`` are placed in each order."""
WELL, SLIGHT = 1.01, 1 << 16
"""A block is small enough if it is at most ``WELL`` times as large as it must be, or ``SLIGHT`` bytes larger."""


def _most_alive(tenants: Sequence[_Tenant]) -> int:
    """Return the largest number of bytes that are in use at the same time."""
    changes = np.zeros(max([each.last for each in tenants], default=0) + 2, np.int64)
    for each in tenants:
        changes[each.first] += each.size
        changes[each.last + 1] -= each.size
    return int(np.cumsum(changes).max())


def _packed_well(tenants: Sequence[_Tenant]) -> int:
    """Assign offsets to memory ranges, placed in the best of several orders; returns the total bytes.

    The total is the end of the range that ends highest. If that range is placed before the others, it often ends lower.
    """
    needed = _most_alive(tenants)
    enough = max(WELL * needed, needed + SLIGHT)
    rounds = max(1, min(ROUNDS, MOST_PLACED // max(len(tenants), 1)))
    least, best = np.inf, [0] * len(tenants)
    for order in ORDERS:
        waiting = sorted(tenants, key=order)
        for _ in range(rounds):
            size = _packed(waiting, lambda _: 0)
            if size < least:
                least, best = size, [each.offset for each in tenants]
            if least <= enough or not tenants:
                break
            highest = max(waiting, key=lambda each: each.offset + each.size)
            waiting.remove(highest)
            waiting.insert(0, highest)
    for each, offset in zip(tenants, best, strict=True):
        each.offset = offset
    return int(least) if tenants else 0


def _packed(tenants: Sequence[_Tenant], order: Callable[[_Tenant], Any] = ORDERS[0]) -> int:
    """Assign offsets to memory ranges so that ranges in use at the same time do not overlap; returns the total bytes.

    The ranges are placed in ascending ``order``, each at the lowest offset at which it is free.
    """
    table = np.empty((4, len(tenants)), np.int64)  # of those that have a place: offset, end, first and last, by offset
    for count, tenant in enumerate(sorted(tenants, key=order)):
        offsets, ends, first, last = placed = table[:, :count]
        alive = np.flatnonzero((first <= tenant.last) & (last >= tenant.first))
        floors = np.zeros(len(alive) + 1, np.int64)  # where it may begin: before each of these, and behind all
        np.maximum.accumulate(ends[alive], out=floors[1:])
        fits = np.flatnonzero(offsets[alive] - floors[:-1] >= tenant.size)
        tenant.offset = int(floors[fits[0] if len(fits) else -1])
        at = int(np.searchsorted(offsets, tenant.offset, "right"))
        table[:, at + 1 : count + 1] = placed[:, at:]
        table[:, at] = tenant.offset, tenant.offset + tenant.size, tenant.first, tenant.last
    return int(table[1].max(initial=0))
