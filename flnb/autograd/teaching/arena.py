"""A tape that owns its nodes: one flat list, in the order in which they were made.

Backward goes through the list from its end, without a search or sorting. All nodes exist until a backward or
`Arena.reset` clears the list, even if their Variables no longer exist (custom node lifetime).
"""

from __future__ import annotations

from bisect import bisect
from itertools import islice
from operator import itemgetter
from typing import ClassVar

from flnb.autograd.walk import empty
from flnb.interface.tape import SEQ, Node, Tape, Walk


class _Cleared(Tape):
    """The tape that takes the place of an arena in nodes that were cleared before a gradient had reached them.

    An error about such a node has the text `why_freed`.
    """

    name: ClassVar[str] = "arena"
    why_freed = (
        "was cleared by another backward on its arena tape, which clears all nodes: give retain_graph=True to that "
        "one; or, if it was another thread's, give each thread a tape: with flnb.use_tape('arena'): ..."
    )


CLEARED = _Cleared()


class Arena(Tape):
    """A tape with its nodes in one flat list, which a backward (without ``retain_graph``) or `reset` clears.

    After a forward pass without a backward, its nodes stay in the list; call `reset`, or run the pass under `no_grad`.
    Each thread needs a separate arena (``with flnb.use_tape("arena")`` inside the thread), because a backward clears
    the nodes of all threads. A backward that reaches a cleared node raises a RuntimeError.

    >>> import flnb
    >>> with flnb.use_tape("arena") as tape:
    ...     x = flnb.Variable([1.0, 2.0])
    ...     loss = flnb.exp(x).sum()
    >>> len(tape.nodes)
    2
    >>> loss.backward()
    >>> len(tape.nodes)
    0
    """

    name: ClassVar[str] = "arena"
    keeps_nodes: ClassVar[bool] = True

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def walk(self, root: Node, walk: Walk) -> None:
        pull, nodes = walk.pull, self.nodes
        if walk.retain:
            end = bisect(nodes, root[SEQ], key=itemgetter(SEQ))
            for node in islice(reversed(nodes), len(nodes) - end, None):
                pull(node)
            return
        while nodes:
            try:
                node = nodes.pop()
            except IndexError:  # another thread was quicker
                return
            pull(node)
            if node[1] is None:
                node[3] = None  # it belongs to no arena now: a walk that comes to it later must find that out
            else:  # not reached
                empty(node)
                node[3] = CLEARED

    def reset(self) -> None:
        """Clear all nodes; a later backward through them raises an error."""
        while self.nodes:
            node = self.nodes.pop()
            empty(node)
            node[3] = None

    def __repr__(self) -> str:
        count = len(self.nodes)
        return f"<Arena tape {self.name!r}, {count} node{'' if count == 1 else 's'}>"
