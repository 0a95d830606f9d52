"""Listeners that are called as soon as the gradient of a leaf is complete, while backward is still running.

A backward pass handles the ops from the latest to the earliest. So the gradient of a leaf is complete when the pass has
handled the earliest op that used the leaf. If there are listeners, the graph is traversed before the pass to find the
earliest op for each leaf.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from flnb.interface.tape import SEQ, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.autograd.walk import Walk


class Listener(Protocol):
    """Base class of objects whose methods a backward pass calls when the gradients of certain leaves are complete.

    Attributes:
        leaves: the sequence numbers of these leaves.
    """

    leaves: set[int]

    def began(self, first: bool) -> None:
        """Called when a backward pass that reaches one of the leaves begins.

        If an earlier pass has failed, `ended` was not called for it. ``first`` is False if another listener of this
        pass was called before this one.
        """

    def arrived(self, leaf: Node, gradient: Any) -> bool | None:
        """Called with a leaf and its complete gradient, after the leaf's hooks and before ``.grad`` changes.

        Return True to take over the gradient: the pass then neither adds the gradient to ``.grad`` nor refers to it any
        longer.
        """

    def ended(self) -> None:
        """Called when the pass is over and every ``.grad`` is set, also if leaves have received no gradient."""


listeners: dict[int, weakref.ref[Any]] = {}
"""Weak references to all listeners, by id. A pass notifies those with a leaf in its graph."""


def listen(listener: Listener) -> None:
    """Register a listener, which is called until it is garbage-collected or passed to `unlisten`."""
    key = id(listener)
    listeners[key] = weakref.ref(listener, lambda _: listeners.pop(key, None))


def unlisten(listener: Listener) -> None:
    """Remove a listener registered by `listen`."""
    listeners.pop(id(listener), None)


class Arrivals:
    """Notifies listeners during one backward pass as soon as the gradient of a leaf is complete.

    Attributes:
        earliest: maps the sequence number of each leaf to that of the earliest node that used the leaf. When this node
            has been handled, the gradient of the leaf is complete.
    """

    def __init__(self, root: Node) -> None:
        listening = [listener for reference in list(listeners.values()) if (listener := reference()) is not None]
        self.earliest = _earliest_consumers(root)
        self._listeners: list[Listener] = [one for one in listening if not one.leaves.isdisjoint(self.earliest)]
        for i, listener in enumerate(self._listeners):
            listener.began(i == 0)

    def around(self, under_way: Walk) -> Callable[[Node], None]:
        """Return the ``pull`` method of a backward pass, wrapped to tell listeners of each complete leaf gradient."""
        pull, taken, earliest = under_way.pull, under_way.taken, self.earliest
        if not self._listeners:
            return pull
        complete: list[tuple[Node, Any]] = []
        under_way.complete = complete
        expecting = [(listener.leaves, listener.arrived) for listener in self._listeners]
        wanted = set[int]().union(*[leaves for leaves, _ in expecting])
        last = {seq for leaf, seq in earliest.items() if leaf in wanted}

        def watched(node: Node) -> None:
            seq, parents = node[2], node[1]
            pull(node)
            if seq not in last or parents is None:
                return
            for leaf in parents:
                if leaf is None or (key := leaf[2]) not in wanted or earliest.get(key) != seq:
                    continue
                g = taken(leaf)
                if g is None:  # nothing has arrived
                    continue
                for leaves, arrived in expecting:
                    if key in leaves and arrived(leaf, g):
                        if under_way._statistics is not None:
                            under_way._statistics.end([(leaf, g)])
                        break
                else:
                    complete.append((leaf, g))

        return watched

    def end(self) -> None:
        """Call the method `ended` of all listeners: the pass is over."""
        for listener in self._listeners:
            listener.ended()


def _earliest_consumers(root: Node) -> dict[int, int]:
    """Return, for each leaf reached from a node, the earliest node that used it (both as sequence numbers)."""
    if root[SEQ] < 0:
        return {root[SEQ]: root[SEQ]}
    first: dict[int, int] = {}
    seen, nodes = {root[SEQ]}, [root]
    for node in nodes:  # grows
        seq = node[2]
        for parent in node[1] or ():
            if parent is not None:
                key = parent[2]
                if key < 0:
                    if key not in first or seq < first[key]:
                        first[key] = seq
                elif key not in seen:
                    seen.add(key)
                    nodes.append(parent)
    return first
