"""Ordering: chooses one of the possible orders in which a program can compute its fusion groups."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flnb.graph.fusing import Group, Grouping
    from flnb.graph.values import Value


class Growth:
    """For each fusion group, the change of the memory in use, in bytes, when the group is computed.

    The change depends on the groups that are computed already, see `compute`.

    Args:
        grouping: the groups.
        outputs: values that are stored outside of the program's memory.
        updates: pairs of an existing value and the value that replaces it.

    Attributes:
        of: for each group, the growth in bytes: the bytes of the group's results that other groups read, minus the
            bytes of values that this group is the last to read. A value that replaces an existing value takes no memory
            if its group is the last to read the existing value.
    """

    def __init__(
        self, grouping: Grouping, outputs: Collection[Value] = (), updates: Sequence[tuple[Value, Value]] = ()
    ) -> None:
        self.of: dict[Group, int] = dict.fromkeys(grouping.groups, 0)
        self._read: dict[Group, list[Value]] = {group: [] for group in grouping.groups}
        self._waiting: dict[Value, set[Group]] = {}
        existing, made = {old for old, _ in updates}, {new for _, new in updates}
        for value in made & grouping.of.keys():
            self.of[grouping.of[value]] += value.spec.nbytes
        for value, readers in grouping.readers.items():
            writer = grouping.of.get(value)
            groups = {grouping.of[reader] for reader in readers} - {writer}
            if not groups or value in outputs or value in made or (writer is None and value not in existing):
                continue
            if writer is not None:
                self.of[writer] += value.spec.nbytes
            self._waiting[value] = groups
            for group in groups:
                self._read[group].append(value)
            self._free(value)

    def _free(self, value: Value) -> None:
        """If only one group has yet to read a value, subtract the value's bytes from the growth of that group."""
        if len(self._waiting[value]) == 1:
            (last,) = self._waiting[value]
            self.of[last] -= value.spec.nbytes

    def compute(self, group: Group) -> set[Group]:
        """Record that a group is computed; return the groups whose growth becomes less by this."""
        found = set()
        for value in self._read[group]:
            self._waiting[value].discard(group)
            self._free(value)
            found |= self._waiting[value] if len(self._waiting[value]) == 1 else set()
        return found


def ordered(grouping: Grouping, growth: Growth | None = None) -> list[Group]:
    """Return the groups in an order in which they can be computed; independent groups are sorted by their last values.

    With ``growth``, a group comes before others as soon as it takes no more memory than it frees; an example is a
    weight's gradient that reads an activation for the last time. Without ``growth``, backend methods come before loop
    nests that could be computed at the same time. Then nests follow one another, and one launch can compute several
    nests.
    """
    followers = {group: grouping.followers(group) - {group} for group in grouping.groups}
    awaited = Counter([follower for each in followers.values() for follower in each])
    ready: list[tuple[bool, int]] = []
    numbered: dict[int, Group] = {}
    order: dict[Group, None] = {}
    first = new = {group for group in grouping.groups if not awaited[group]}
    while new or ready:
        for group in new:
            number = group.members[-1].number
            numbered[number] = group
            if growth is None:
                later = group.shape is not None
            else:
                later = growth.of[group] > 0 or group in first  # these may be random numbers, which are drawn in order
            heapq.heappush(ready, (later, number))
        group = numbered[heapq.heappop(ready)[1]]
        new = set()
        if group not in order:  # else it was there before its growth was less
            order[group] = None
            awaited.subtract(followers[group])
            shrunk = set() if growth is None else growth.compute(group)
            new = {each for each in followers[group] | shrunk if not awaited[each]}
    assert len(order) == len(grouping.groups), "groups depend on one another"
    return list(order)
