"""The contract of tapes: a tape records ops on Variables, and decides the order in which backward visits them.

An op whose inputs need a gradient makes a *node*, a list::

    [plan, parents, seq, mark, code, lasti, *saved inputs, saved output]

- ``plan``: the op with its shapes and its gradient rules, called *pulls*. A pull computes the gradient with respect to
  an input from the gradient with respect to the op's result (the *cotangent*).
- ``parents``: the nodes of the inputs, None for an input without gradient; None in place of all once the node is freed.
- ``seq``: a sequence number; later nodes of the program have larger numbers.
- ``mark``: identifies the tape that recorded the node; None for the default tape.
- ``code, lasti``: the place in the user's program, see `flnb.dispatch.source_lines`.
- the op's inputs and output; None in place of those that no pull reads.

The node of a leaf is ``[None, (), -id, gradient, name, is_parameter]``. Nodes never refer to Variables that refer back
to them, so that reference counting alone frees them.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from flnb.interface.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable


Node = list[Any]
PLAN, PARENTS, SEQ, MARK, CODE, LASTI, SAVED = range(7)
GRADIENT = 3
"""The index of the gradient in the node of a leaf, which has no `MARK`."""


class Walk(Protocol):
    """A running backward pass, as seen by a tape.

    Attributes:
        pull: a function that is called with a node and computes the cotangents of the node's parents. The function then
            empties the node, unless ``retain`` is true.
        reached: the nodes that have received their first cotangent; the tape may remove nodes from this list.
        retain: whether nodes are not emptied, so that another backward can follow.
        create_graph: whether the pass is itself recorded.
        buffers: whether cotangents are raw buffers rather than Tensors.
        cotangents: the sum of cotangents for each node that is not pulled yet, by the node's sequence number.
        stops: the sequence numbers of nodes at which the pass ends; empty if it ends at the leaves.
    """

    pull: Callable[[Node], None]
    reached: list[Node]
    retain: bool
    create_graph: bool
    buffers: bool
    cotangents: dict[int, Any]
    stops: frozenset[int]

    def drop(self, node: Node) -> None:
        """Empty a node without computing its gradients, so that its parents receive nothing from it."""


class Tape(Part, kind="tape"):
    """Base of all tapes: override `record`, `walk`, or both.

    This tape stores its nodes in a list, in the order in which they were made, and backward goes through that list:

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
        name: the name in messages; by default the name of the class.
        keeps_nodes: set this to True for a tape with a list ``nodes``, to which `record` adds every node. Nodes have
            weak references to such a tape, so that there is no reference cycle. If the tape no longer exists, backward
            handles its nodes like those of the default tape. The method `walk` of such a tape must pull all its nodes.
    """

    name: ClassVar[str] = "abstract"
    keeps_nodes: ClassVar[bool] = False
    nodes: list[Node]

    def attach(self, state: Any) -> None:
        """Make the nodes that are recorded in a state refer to this tape."""
        state.mark, state.keep = self.mark, self.keep

    @property
    def mark(self) -> Any:
        """Return the object by which nodes refer to this tape: the tape, or a weak reference if it `keeps_nodes`."""
        return weakref.ref(self) if self.keeps_nodes else self

    @property
    def keep(self) -> Callable[[Node], None] | None:
        """Return a faster replacement for `record` if `record` only appends the node to a list; else None."""
        return self.nodes.append if self.keeps_nodes and type(self).record is Tape.record else None

    def record(self, node: Node) -> Node | None:
        """Record the node of an op that has just run; called before the user gets the op's result.

        The tape may replace ``node[PARENTS]`` and the saved values, from ``node[SAVED]`` on.

        Returns:
            The node of the result; None if no gradient is to flow through the result.
        """
        if self.keeps_nodes:
            self.nodes.append(node)
        return node

    def walk(self, root: Node, walk: Walk) -> None:
        """Call ``walk.pull(node)`` for the nodes from which ``root`` was computed, each after all users of its result.

        ``walk.pull`` ignores a node that has received no cotangent. Nodes that are still in ``walk.reached`` when this
        method returns, such as those of another tape, are pulled then, the largest sequence number first.
        """
        walk.reached.append(root)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} tape {self.name!r}>"
