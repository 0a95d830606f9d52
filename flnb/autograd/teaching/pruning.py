"""A tape that does not record branches to which no gradient can flow, and does not pass on zero gradients.

During the forward pass the tape already finds arguments to which no gradient can flow: those of floor, ceil, round and
sign; the other factor of a product with the number 0; the argument of `where` that the condition never selects; the
smaller argument of `maximum`, or the larger one of `minimum`, if both are single numbers. Zero gradients are found
during backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from flnb.autograd.batched import innermost
from flnb.autograd.tape import Linked, follow
from flnb.dispatch import state
from flnb.interface.tape import PARENTS, PLAN, SAVED, SEQ, Node
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.interface.tape import Walk


class Pruning(Linked):
    """A tape that does not record branches to which no gradient can flow, and does not propagate zero gradients.

    Gradients equal those of the default tape with two exceptions. A leaf whose gradient would be zero gets None. A zero
    gradient is never multiplied by infinity, so the result is not NaN.

    >>> import flnb
    >>> a, b = flnb.Variable(3.0), flnb.Variable(2.0)
    >>> with flnb.use_tape("pruning") as tape:
    ...     best = flnb.maximum(flnb.exp(a), flnb.exp(b))  # exp(b) is smaller: not recorded
    >>> best.backward()
    >>> a.grad, b.grad, tape.pruned
    (Tensor(20.0855, float32[], numpy), None, 1)

    Attributes:
        pruned: the number of edges of the graph that were not recorded.
        zeros: the number of nodes that backward skipped because their gradient was zero everywhere.
    """

    name: ClassVar[str] = "pruning"

    def __init__(self) -> None:
        self.pruned = self.zeros = 0

    def record(self, node: Node) -> Node | None:
        dead = DEAD.get(node[PLAN].op.name)
        if dead is None:
            return node
        arguments = dead(node)
        if not arguments:
            return node
        parents = node[PARENTS]
        alive = tuple([None if i in arguments else p for i, p in enumerate(parents)])
        self.pruned += alive.count(None) - parents.count(None)
        if alive.count(None) == len(alive):
            return None
        node[PARENTS] = alive
        return node

    def walk(self, root: Node, walk: Walk) -> None:
        walk.reached.append(root)
        pull = walk.pull

        def pull_unless_zero(node: Node) -> None:
            if _is_zero(walk, node):
                self.zeros += 1
                walk.drop(node)
            else:
                pull(node)

        follow(walk, pull_unless_zero)


def values(x: Any) -> Any:
    """Return a tensor's values as a NumPy array, without recording an op or event."""
    return state.current().backend.to_numpy(x._data)


def _is_zero(walk: Walk, node: Node) -> bool:
    """Return whether the gradient that arrived at a node is zero everywhere."""
    g = walk.cotangents.get(node[SEQ])
    if g is None or walk.create_graph:
        return False
    return not state.current().backend.to_numpy(g if walk.buffers else innermost(g)._data).any()


def _product(node: Node) -> tuple[int, ...]:
    """Return which factor of a product gets a zero gradient because the other factor is the Python number 0.

    The factor's position (0 or 1) is in a tuple; the tuple is empty if there is no such factor.
    """
    a, b = node[PLAN].specs
    saved = node[SAVED:]
    return tuple(i for i, other in ((0, 1), (1, 0)) if (a, b)[other] in (int, float) and saved[other] == 0)


def _where(node: Node) -> tuple[int, ...]:
    """Return the position of the argument of `where` that the condition never selects, as a tuple; () if none."""
    condition = node[SAVED]
    if not isinstance(condition, Tensor):
        return ()
    chosen = values(condition)
    return (2,) if chosen.all() else () if chosen.any() else (1,)


def _extremum(better: Callable[[Any, Any], bool]) -> Callable[[Node], tuple[int, ...]]:
    """Return a function of a node that returns the position of the argument that `maximum` or `minimum` did not choose.

    ``better(a, b)`` says whether the op chooses ``a``.
    """

    def loser(node: Node) -> tuple[int, ...]:
        a, b = (values(x) if isinstance(x, Tensor) else x for x in node[SAVED : SAVED + 2])
        if node[PLAN].spec.size != 1:
            return ()
        return (1,) if better(a, b) else (0,) if better(b, a) else ()

    return loser


DEAD: dict[str, Callable[[Node], tuple[int, ...]]] = {
    **dict.fromkeys(("floor", "ceil", "round", "sign"), lambda _: (0,)),
    "multiply": _product,
    "where": _where,
    "maximum": _extremum(lambda a, b: bool((a > b).all())),
    "minimum": _extremum(lambda a, b: bool((a < b).all())),
}
"""For an op's name, a function that is called with a new node of the op and returns the positions of its arguments to
which no gradient can flow.

A user may add an entry for an op of their own.
"""
