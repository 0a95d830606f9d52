"""Repeated backward passes on a deferred backend: if a pass equals an earlier one, it is recorded as a single value.

The ops that a pass records depend only on its nodes: their plans, order and parents, and which of their saved values
are identical. This description is the key with which the ops of a pass are stored (`flnb.graph.segments`). Describing
the nodes takes a tenth of the time of computing their gradients.
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

Found = list[tuple[Node, Any]]


def walk_or_repeat(root: Node, cotangent: Any, walk: Callable[[], Found]) -> Found:
    """Return the leaves that a backward pass reaches, with their cotangents.

    If an earlier pass was equal, its ops are repeated and the nodes are emptied. Otherwise ``walk`` is called. ``walk``
    is also called if `flnb.jit` captures the program, if there are hooks or another tape than the default tape, or if
    the user's own functions compute gradients.

    Args:
        root: the node at which the pass begins.
        cotangent: the gradient of the result of ``root``.
        walk: runs the pass op by op, and returns the leaves in the order in which they were created.
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
    """Return the sort key of a pair (leaf node, gradient), so that leaves are sorted by their creation.

    Leaves have negative sequence numbers, -1 for the first one; the key is the number without the minus sign.
    """
    return -pair[0][SEQ]


def _is_trusted(plan: Plan) -> bool:
    """Return whether a plan's gradient rules always run the same ops: they are part of flnb, or were traced."""
    if plan.compiled:
        return True
    own = all(f is None or str(getattr(f, "__module__", "")).startswith("flnb.") for f in (*plan.pulls, plan.joint))
    return own and plan.op.traceable


def _described(root: Node, cotangent: Any, here: Any) -> Any:
    """Describe everything on which the ops of a backward pass depend, as a key that is equal for equal passes.

    Args:
        root: the node at which the pass begins.
        cotangent: the gradient of the result of ``root``.
        here: the state (`flnb.dispatch.state.State`) in which the pass runs.

    Returns:
        A tuple of the key, the nodes (the latest first), the values that the pass reads, and the leaves. None if the
        pass cannot be repeated and has to run op by op.

    Raises:
        RuntimeError: a tensor was written in place after a node had saved it.
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
    leaves, last_write = dict[int, Node](), dispatch.last_write
    key: list[Any] = [here.overridden, type(here.backend.over)]
    for node in nodes:
        plan, parents, seq = node[0], node[1], node[2]
        written = 0
        key.append(plan)
        for parent in parents:
            if parent is None:
                key.append(None)
                continue
            if (place := parent[2]) <= 0 and place not in leaves:
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
