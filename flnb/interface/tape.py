"""The tape: the record of ops on Variables, and the order in which cotangents flow back through it.

An op whose inputs need a gradient makes a *node*, a list::

    [plan, parents, seq, mark, code, lasti, *saved inputs, saved output]

``plan`` holds the op, its shapes and its pulls; ``parents`` are the nodes of the inputs, None where no gradient flows,
and become None when the node is freed; ``seq`` counts up over the whole program; ``mark`` identifies the tape that
recorded it (None: the default); ``code`` and ``lasti`` are the place in the user's program, see
`flnb.dispatch.source_lines`; then come the values that the pulls read, None where unread. A leaf's node is
``[None, (), -id, gradient, name, is_parameter]``. Nodes never point at Variables that point back at them, so reference
counting alone frees a tape.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from flnb.interface.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["CODE", "LASTI", "MARK", "PARENTS", "PLAN", "SAVED", "SEQ", "Node", "Tape", "Walk"]

Node = list[Any]
PLAN, PARENTS, SEQ, MARK, CODE, LASTI, SAVED = range(7)


class Walk(Protocol):
    """One backward under way, as a tape sees it.

    Attributes:
        pull: takes a node's cotangent and adds to those of its parents; the node is empty afterwards.
        reached: nodes that a first cotangent has arrived at and that nobody has taken from this list yet.
        retain: whether nodes stay as they are, for another backward.
        create_graph: whether the backward is itself recorded.
        cotangents: what has arrived at nodes that were not pulled yet, by sequence number; raw buffers where `buffers`.
        stops: sequence numbers of the nodes that the walk goes towards; empty: the leaves.
    """

    pull: Callable[[Node], None]
    reached: list[Node]
    retain: bool
    create_graph: bool
    buffers: bool
    cotangents: dict[int, Any]
    stops: frozenset[int]

    def drop(self, node: Node) -> None:
        """Empty a node without pulling it."""


class Tape(Part, kind="tape"):
    """Base of all tapes. Override `record`, `walk`, or both; each has a default that works alone.

    A tape that stores its nodes in one list, in the order in which they were made, and walks that list back:

    >>> import flnb
    >>> class Flat(flnb.interface.Tape):
    ...     keeps_nodes = True
    ...     def __init__(self):
    ...         self.nodes = []
    ...     def walk(self, root, walk):
    ...         for node in reversed(self.nodes):
    ...             walk.pull(node)
    ...         self.nodes.clear()
    >>> with flnb.use_tape(Flat()) as tape:
    ...     x = flnb.Variable([1.0, 2.0])
    ...     loss = (x * x).sum()
    >>> [node[0].op.name for node in tape.nodes]
    ['multiply', 'sum']
    >>> loss.backward()
    >>> x.grad.tolist(), tape.nodes
    ([2.0, 4.0], [])

    Attributes:
        name: the class name where none is given.
        keeps_nodes: set it in a tape that holds nodes, so that they do not hold the tape in turn (a cycle). When such
            a tape is gone, its nodes are walked as those of the default tape are. A `walk` of its own must pull all
            of its nodes. It has a list ``nodes``, for good, which `record` adds them to.
    """

    name: ClassVar[str] = "abstract"
    keeps_nodes: ClassVar[bool] = False
    nodes: list[Node]

    def attach(self, state: Any) -> None:
        """Let the nodes of a state remember this tape."""
        state.mark, state.keep = self.mark, self.keep

    @property
    def mark(self) -> Any:
        """The object in its nodes that identifies this tape."""
        return weakref.ref(self) if self.keeps_nodes else self

    @property
    def keep(self) -> Callable[[Node], None] | None:
        """The whole of `record`, if that is to add a node to the list: saves the crossing a call for each node."""
        return self.nodes.append if self.keeps_nodes and type(self).record is Tape.record else None

    def record(self, node: Node) -> Node | None:
        """Record an op's node; returns the node that becomes its result's place on the tape, None to cut it off.

        ``node[PARENTS]`` and the saved values from ``node[SAVED]`` on may be replaced.
        """
        if self.keeps_nodes:
            self.nodes.append(node)
        return node

    def walk(self, root: Node, walk: Walk) -> None:
        """Call ``walk.pull(node)`` for nodes from which the root was computed, each after all users of its result.

        A node that no cotangent has reached is passed over. Nodes that ``walk.reached`` lists in the end (those of
        another tape, say) are pulled afterwards, in the order of their sequence numbers.
        """
        walk.reached.append(root)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} tape {self.name!r}>"
