"""Listeners that are told when the gradient of a leaf is complete, while the backward pass goes on.

A leaf's gradient is complete as soon as the earliest op that used the leaf has been pulled: all others were pulled
before it. One traversal before the pass finds these ops. It is made only while somebody listens.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from flnb.autograd.hooks import run_hooks
from flnb.interface.tape import PARENTS, SEQ, Node

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

    def began(self) -> None:
        """Called when a pass that reaches one of the leaves begins; the pass before may have ended by an error."""

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
        due: by a node's sequence number, the leaves that are complete once it was pulled, each with its listener.
    """

    def __init__(self, root: Node) -> None:
        first: dict[int, tuple[int, Node]] = {}  # of each leaf: its earliest consumer
        seen, stack = {root[SEQ]}, [root]
        while stack:
            node = stack.pop()
            seq = node[SEQ]
            for parent in node[PARENTS] or ():
                if parent is None:
                    continue
                key = parent[SEQ]
                if key < 0:
                    if key not in first or seq < first[key][0]:
                        first[key] = seq, parent
                elif key not in seen:
                    seen.add(key)
                    stack.append(parent)
        if root[SEQ] < 0:
            first[root[SEQ]] = root[SEQ], root
        self.due: dict[int, list[tuple[Listener, Node]]] = {}
        self._told: list[Listener] = []
        for reference in list(listeners.values()):
            listener = reference()
            if listener is None:
                continue
            reached = [(seq, leaf) for key, (seq, leaf) in first.items() if key in listener.leaves]
            for seq, leaf in reached:
                self.due.setdefault(seq, []).append((listener, leaf))
            if reached:
                self._told.append(listener)
                listener.began()

    def around(self, under_way: Walk) -> Callable[[Node], None]:
        """Wrap the ``pull`` of a pass, so that listeners are told what arrives."""
        pull, due, buffers = under_way.pull, self.due, under_way.buffers
        hooked = under_way.hooked = set()

        def watched(node: Node) -> None:
            seq = node[2]
            pull(node)
            for listener, leaf in due.get(seq, ()):
                g = under_way.cotangents.get(leaf[SEQ])
                if g is None:
                    continue
                g = under_way._tensor(g) if buffers else g
                if type(leaf[PARENTS]) is not tuple and leaf[SEQ] not in hooked:
                    g = run_hooks(leaf, g)
                    hooked.add(leaf[SEQ])
                    under_way.cotangents[leaf[SEQ]] = g._data if buffers else g
                if listener.arrived(leaf, g):
                    del under_way.cotangents[leaf[SEQ]]

        return watched

    def end(self) -> None:
        """Tell the listeners that the pass has ended."""
        for listener in self._told:
            listener.ended()
