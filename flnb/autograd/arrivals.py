"""Listeners that are told when the gradient of a leaf is complete, while the backward pass goes on.

A leaf's gradient is complete as soon as the earliest op that used the leaf has been pulled: all others were pulled
before it. One traversal before the pass finds these ops. It is made only while somebody listens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from flnb.interface.tape import PARENTS, SEQ, Node

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.autograd.walk import Walk

__all__ = ["Arrivals", "Listener", "listeners"]


class Listener(Protocol):
    """What is told of the gradients of some leaves, by backward passes that reach at least one of them.

    Attributes:
        leaves: the sequence numbers of the leaves.
    """

    leaves: set[int]

    def arrived(self, leaf: Node, gradient: Any) -> None:
        """Called with a leaf and its complete gradient of this pass; ``.grad`` is as it was before the pass."""

    def ended(self) -> None:
        """Called when the pass has ended and every ``.grad`` is set. Leaves without a gradient did not arrive."""


listeners: list[Listener] = []
"""All listeners. A pass tells those whose leaves it reaches, so ranks that are threads do not hear of each other's."""


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
        for listener in listeners:
            reached = [(seq, leaf) for key, (seq, leaf) in first.items() if key in listener.leaves]
            for seq, leaf in reached:
                self.due.setdefault(seq, []).append((listener, leaf))
            if reached:
                self._told.append(listener)

    def around(self, under_way: Walk) -> Callable[[Node], None]:
        """Wrap the ``pull`` of a pass, so that listeners are told what arrives."""
        pull, due, buffers = under_way.pull, self.due, under_way.buffers

        def watched(node: Node) -> None:
            seq = node[2]
            pull(node)
            for listener, leaf in due.get(seq, ()):
                g = under_way.cotangents.get(leaf[SEQ])
                if g is not None:
                    listener.arrived(leaf, under_way._tensor(g) if buffers else g)

        return watched

    def end(self) -> None:
        """Tell the listeners that the pass has ended."""
        for listener in self._told:
            listener.ended()
