"""Repeated backward passes on a deferred backend: a pass like an earlier one is recorded as a single value.

What a pass records follows from the nodes: their plans, their order, who their parents are, and which of the values
that they saved are the same. A description of all that is the key under which the ops of a pass are remembered
(`flnb.graph.segments`). Looking through the nodes takes a tenth of the time of pulling them.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from flnb.autograd import explain
from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.effects import effects
from flnb.dispatch.plan import Plan
from flnb.graph.segments import segment_of
from flnb.graph.values import last_number
from flnb.interface.tape import MARK, PARENTS, PLAN, SAVED, SEQ, Node

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["walk_or_repeat"]

Found = list[tuple[Node, Any]]


def walk_or_repeat(root: Node, cotangent: Any, walk: Callable[[], Found]) -> Found:
    """Return the leaves that a backward pass reaches, with their cotangents.

    Args:
        root, cotangent: where the pass begins, and with what; nodes are emptied.
        walk: runs the pass, in the order of creation of leaves.

    It is run if no pass before was like it, or if there are listeners: a recording, a hook, a tape of another kind, an
    interpreter; or if functions of the user's compute gradients.
    """
    here: Any = state.current()
    if effects.get() is not None or cotangent._spec.kind is not here.direct or not here.backend.repeats():
        return walk()
    described = _described(root, cotangent, here)
    if described is None:
        return walk()
    key, nodes, inputs, leaves = described
    known = here.backend.segments.of(key)
    if not known.is_due():
        return walk()
    if known.segment is None:
        trusted = all(_is_trusted(node[PLAN]) for node in nodes)
        after, found = last_number(), walk()
        position = {leaf[SEQ]: i for i, leaf in enumerate(leaves)}
        known.order = [position[leaf[SEQ]] for leaf, _ in found]
        known.segment = (trusted and segment_of(inputs, [g._data.read() for _, g in found], after)) or None
        known.failed = known.segment is None
        return found
    for node in nodes:
        node[PARENTS] = None
        del node[SAVED:]
    made = here.backend.repeat(known.segment, inputs)
    pairs = [(leaves[i], dispatch.detached(x, x.spec)) for i, x in zip(known.order, made, strict=True)]
    return sorted(pairs, key=_created)


def _created(pair: tuple[Node, Any]) -> int:
    """Return the sequence number of a leaf, by which leaves are sorted in order of creation."""
    return -pair[0][SEQ]


def _is_trusted(plan: Plan) -> bool:
    """Return whether a gradient rule is flnb's own or was traced, so that its result is repeatable."""
    if plan.compiled:
        return True
    own = all(f is None or str(getattr(f, "__module__", "")).startswith("flnb.") for f in (*plan.pulls, plan.joint))
    return own and plan.op.traceable


def _described(root: Node, cotangent: Any, here: Any) -> Any:
    """Describe everything that a backward pass depends on.

    Returns:
        The key, the nodes, the latest first, the values that are read, and the leaves; None if the pass must be walked.

    Raises:
        RuntimeError: a saved value was written since.
    """
    nodes, seen = [root], {root[SEQ]}
    for node in nodes:  # grows
        if node[PARENTS] is None or node[MARK] is not None or type(node[PLAN]) is not Plan:
            return None
        for parent in node[PARENTS]:
            if parent is not None and parent[SEQ] not in seen and parent[SEQ] > 0:
                seen.add(parent[SEQ])
                nodes.append(parent)
    nodes.sort(key=itemgetter(SEQ), reverse=True)
    rank = {node[SEQ]: i for i, node in enumerate(nodes)}
    values = {cotangent._data.read(): 0}
    leaves: dict[int, Node] = {}
    last_write = dispatch.last_write
    key: list[Any] = [here.overridden, type(here.backend.over)]
    for node in nodes:
        plan, parents, seq = node[0], node[1], node[2]
        written = 0
        key.append(plan)
        for parent in parents:
            if parent is None:
                key.append(None)
            elif (place := parent[2]) > 0:
                key.append(rank[place])
            else:
                if place not in leaves:
                    if type(parent[1]) is not tuple:  # it has hooks
                        return None
                    leaves[place] = parent
                    rank[place] = -len(leaves)
                key.append(rank[place])
        for x in node[SAVED:]:
            data: Any = getattr(x, "_data", None)
            if x is None:
                key.append(None)
            elif type(data) is type(cotangent._data):
                value = data.value if data.base is None else data.read()
                key += values.setdefault(value, len(values)), data.strides
                if seq < last_write and (note := getattr(getattr(x, "_root", x), "_written", None)) is not None:
                    written = max(written, x._last_write, note[0])
            elif type(x) in (int, float):
                key.append(repr(x))
            else:
                return None
        if written > seq:
            explain.check_unwritten(node)
    return tuple(key), nodes, list(values), list(leaves.values())
