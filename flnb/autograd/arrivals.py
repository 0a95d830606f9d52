"""Listeners that are told when the gradient of a leaf is complete, while the backward pass goes on.

A leaf's gradient is complete as soon as the earliest op that used the leaf has been pulled: all others were pulled
before it. One traversal before the pass finds these ops. It is made only while somebody listens.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from flnb.interface.tape import SEQ, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.autograd.walk import Walk

__all__ = ["Arrivals", "Listener", "listen", "listeners", "unlisten"]


class Listener(Protocol):
    """What is told of the gradients of some leaves, by backward passes that reach at least one of them.

    Attributes:
        leaves: the sequence numbers of the leaves.
    """

    leaves: set[int]

    def began(self, first: bool) -> None:
        """Called when a pass that reaches one of the leaves begins; the pass before may have ended by an error.

        ``first`` is False if another listener hears of this pass, which is told before this one.
        """

    def arrived(self, leaf: Node, gradient: Any) -> bool | None:
        """Called with a leaf and its complete gradient, after the leaf's hooks; ``.grad`` is as before the pass.

        If it returns True, it has taken the gradient: the pass stores none in ``.grad``, which frees its memory now.
        """

    def ended(self) -> None:
        """Called when the pass has ended and every ``.grad`` is set; `arrived` was not called for unused leaves."""


listeners: dict[int, weakref.ref[Any]] = {}
"""All listeners, weakly. A pass tells those whose leaves it reaches: ranks as threads do not hear of each other's."""


def listen(listener: Listener) -> None:
    """Tell an object of gradients from now on, as long as something else refers to it."""
    key = id(listener)
    listeners[key] = weakref.ref(listener, lambda _: listeners.pop(key, None))


def unlisten(listener: Listener) -> None:
    """Tell an object of gradients no more."""
    listeners.pop(id(listener), None)


class Arrivals:
    """Which leaves are complete after which node of one backward pass.

    Attributes:
        due: by a node's sequence number, the leaves that are complete once it was pulled, each with what to call.
    """

    def __init__(self, root: Node) -> None:
        told = [listener for reference in list(listeners.values()) if (listener := reference()) is not None]
        first = _earliest_consumers(root)
        self.due: dict[int, list[tuple[Callable[[Node, Any], bool | None], Node]]] = {}
        self._told: list[Listener] = []
        due = self.due
        for listener in told:
            arrived, wanted, reached = listener.arrived, listener.leaves, False
            for leaf, seq in first.values():
                if leaf[2] in wanted:
                    reached = True
                    if seq in due:
                        due[seq].append((arrived, leaf))
                    else:
                        due[seq] = [(arrived, leaf)]
            if reached:
                self._told.append(listener)
                listener.began(len(self._told) == 1)

    def around(self, under_way: Walk) -> Callable[[Node], None]:
        """Wrap the ``pull`` of a pass, so that listeners are told what arrives."""
        pull, due, taken = under_way.pull, self.due, under_way.taken
        complete = under_way.complete = {}

        def watched(node: Node) -> None:
            seq = node[2]
            pull(node)
            if seq in due:
                for arrived, leaf in due[seq]:
                    g = taken(leaf)
                    if g is None:  # nothing has arrived, or another listener was told before
                        g = complete.get(leaf[2])
                    if g is not None and not arrived(leaf, g):
                        complete[leaf[2]] = g
                    elif g is not None and under_way._statistics is not None:
                        under_way._statistics.end([(leaf, g)])

        return watched

    def end(self) -> None:
        """Tell the listeners that the pass has ended."""
        for listener in self._told:
            listener.ended()


def _earliest_consumers(root: Node) -> dict[int, tuple[Node, int]]:
    """Each leaf that is reached from a node, with the number of the earliest node that used it."""
    first: dict[int, tuple[Node, int]] = {}
    if root[SEQ] < 0:
        first[root[SEQ]] = root, root[SEQ]
    seen, nodes = {root[SEQ]}, [root]
    for node in nodes:  # grows
        seq = node[2]
        for parent in node[1] or ():
            if parent is not None:
                key = parent[2]
                if key < 0:
                    if key not in first or seq < first[key][1]:
                        first[key] = parent, seq
                elif key not in seen:
                    seen.add(key)
                    nodes.append(parent)
    return first
