"""Walking the tape back: collect what is reachable without recursion, then pull cotangents in reverse order.

Nodes carry a global sequence number, so the order is a sort. Every node is emptied as soon as it was used, which
frees what it saved while the walk goes on.
"""

from __future__ import annotations

from typing import Any

from flnb_telemetry import bus

from flnb.autograd.statistics import Statistics
from flnb.autograd.variable import GRADIENT, Variable
from flnb.dispatch import ops as dispatch
from flnb.dispatch import state
from flnb.ops import elementwise as e
from flnb.ops.creation import asarray, ones_like
from flnb.ops.movement import sum_to
from flnb.ops.table import OPS
from flnb.tensor import Tensor

__all__ = ["backward", "grad_of"]

GRADIENT_CATEGORY = state.CATEGORIES.index("gradient")

Node = list[Any]


def backward(root: Variable, grad: Any, retain_graph: bool, create_graph: bool) -> None:
    """See `Variable.backward`."""
    node, cotangent = _start(root, grad)
    with _modes(create_graph):
        found = walk(node, cotangent, retain_graph or create_graph, create_graph)
        for leaf, gradient in found:
            old = leaf[GRADIENT]
            if not create_graph and type(gradient) is not Tensor:
                gradient = dispatch.detached(gradient._data, gradient._spec)
            leaf[GRADIENT] = gradient if old is None else e.add(old, gradient)


def grad_of(
    output: Variable, inputs: list[Variable], grad: Any = None, retain_graph: bool = False, create_graph: bool = False
) -> list[Tensor | None]:
    """Gradients with respect to Variables, without touching their ``.grad``; None where none flows.

    With ``create_graph`` they may lie anywhere on the tape, otherwise they must be leaves.
    """
    node, cotangent = _start(output, grad)
    with _modes(create_graph):
        if create_graph:
            found = walk_to(node, cotangent, [x._node for x in inputs])
        else:
            found = {leaf[2]: g for leaf, g in walk(node, cotangent, retain_graph, False)}
    gradients = [found.get(x._node[2]) for x in inputs]
    if create_graph:
        return gradients
    return [None if g is None else dispatch.detached(g._data, g._spec) for g in gradients]


def _start(root: Variable, grad: Any) -> tuple[Node, Any]:
    node = root._node
    if node is None:
        raise RuntimeError(
            "backward: this Variable does not require grad: no Variable that requires grad went into it, or it was "
            "computed under no_grad() or detached"
        )
    if grad is None:
        if root.size != 1:
            raise RuntimeError(
                f"backward: a gradient starts from one number, this Variable has shape {root.shape}; reduce it first "
                f"(.sum(), .mean()), or give the cotangent: backward(grad)"
            )
        return node, ones_like(root)
    grad = asarray(grad, dtype=root.dtype)
    if grad.shape != root.shape:
        raise ValueError(f"backward: grad must have the Variable's shape {root.shape}, got {grad.shape}")
    return node, grad


def _modes(create_graph: bool) -> Any:
    lane = bus.lanes.lane if bus.lanes is not None else None
    return state.use(grad=create_graph, category=GRADIENT_CATEGORY, lane=lane)


def walk(root: Node, cotangent: Any, retain: bool, create_graph: bool) -> list[tuple[Node, Any]]:
    """Pull a cotangent back from a node; every leaf reached with its gradient."""
    pending = _reachable(root)
    order = sorted(pending)
    cotangents: dict[int, Any] = {root[2]: cotangent}
    owned: set[int] = set()
    statistics = Statistics.begin(pending) if bus.lanes is not None and not create_graph else None
    with bus.phase("backward") if bus.lanes is not None else _nothing:
        lane = bus.lanes.lane if bus.lanes is not None else None
        while order and order[-1] > 0:
            seq = order.pop()
            node = pending.pop(seq)
            g = cotangents.pop(seq, None)
            if g is None:  # every path to it was cut
                continue
            if lane is not None:
                lane.node = seq
            plan, parents, _, *saved = node
            if seq < dispatch.last_write:
                _check_unwritten(node)
            if statistics is not None:
                statistics.see(node, g)
            if not retain:
                node[1] = None
                del node[3:]
            if create_graph:
                saved = _on_tape(node, saved)
            _pull(plan, parents, g, saved, cotangents, owned, create_graph)
        if lane is not None:
            lane.node = 0
    leaves = [(pending[n], cotangents[n]) for n in order if n in cotangents]
    if statistics is not None:
        statistics.end(leaves)
    return leaves


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


_nothing = _Nothing()


def _reachable(root: Node) -> dict[int, Node]:
    """All nodes below a root by sequence number."""
    pending = {root[2]: root}
    stack = [root]
    while stack:
        node = stack.pop()
        parents = node[1]
        if parents is None:
            raise RuntimeError(
                f"backward: the graph through {node[0].op.name!r} was walked back before and freed; give "
                f"retain_graph=True to the first backward, or compute the forward pass again"
            )
        for parent in parents:
            if parent is not None and parent[2] not in pending:
                pending[parent[2]] = parent
                if parent[0] is not None:
                    stack.append(parent)
    return pending


def _on_tape(node: Node, saved: list[Any]) -> list[Any]:
    """The saved values with the output as a Variable at its place on the tape, so that it is differentiated too."""
    output = saved[-1]
    if output is None or node[0].joint is not None:
        return saved
    variable = object.__new__(Variable)
    variable._data, variable._spec, variable._root, variable._node = output._data, output._spec, output, node
    return [*saved[:-1], variable]


def _pull(
    plan: Any,
    parents: tuple[Any, ...],
    g: Any,
    saved: list[Any],
    cotangents: dict[int, Any],
    owned: set[int],
    create_graph: bool,
) -> None:
    """Compute the cotangents of one node's parents and add them to what has arrived there."""
    joint = plan.joint
    if joint is None:
        pulled = None
    elif create_graph:
        pulled = _through_body(plan, parents, g, saved)
    else:
        pulled = joint(g, plan, *saved)
    for i, parent in enumerate(parents):
        if parent is None:
            continue
        if pulled is not None:
            gi = pulled[i]
        else:
            pull = plan.pulls[i]
            if pull is None:
                continue
            gi = pull(g, plan, *saved) if plan.planned else pull(g, *saved)
        if gi is None:
            continue
        shape = plan.shrinks[i]
        if shape is not None:
            gi = sum_to(gi, shape)
        key = parent[2]
        before = cotangents.get(key)
        if before is None:
            cotangents[key] = gi
        elif create_graph:
            cotangents[key] = e.add(before, gi)
        elif key in owned:
            dispatch.accumulate(ADD, before, gi)
        else:
            cotangents[key] = e.add(before, gi)
            owned.add(key)


ADD = OPS["add"]


def _through_body(plan: Any, parents: tuple[Any, ...], g: Any, saved: list[Any]) -> list[Any]:
    """A composite's gradient by its body's ops, on Variables, so that it has a graph of its own."""
    inputs = saved[: len(parents)]
    result, _ = plan.op.body(*inputs, *plan.attributes)
    arrived = walk_to(result._node, g, [p for p in parents if p is not None])
    return [None if p is None else arrived.get(p[2]) for p in parents]


def walk_to(root: Node, cotangent: Any, stops: list[Node]) -> dict[int, Any]:
    """Pull a cotangent back, with a graph, as far as some nodes; what arrives there by sequence number."""
    limits = {n[2] for n in stops}
    pending = {root[2]: root}
    stack = [root]
    while stack:
        for parent in stack.pop()[1]:
            if parent is not None and parent[2] not in pending and parent[2] not in limits:
                pending[parent[2]] = parent
                stack.append(parent)
    cotangents = {root[2]: cotangent}
    for seq in sorted(pending, reverse=True):
        g = cotangents.pop(seq, None)
        if g is not None:
            node = pending[seq]
            plan, parents, _, *saved = node
            _check_unwritten(node)
            _pull(plan, parents, g, _on_tape(node, saved), cotangents, set(), True)
    return cotangents


def _check_unwritten(node: Node) -> None:
    """Raise if a saved tensor was written in place after it was saved."""
    plan, seq = node[0], node[2]
    for i, x in enumerate(node[3:]):
        if isinstance(x, Tensor):
            written = getattr(getattr(x, "_root", x), "_written", 0)
            if written > seq:
                what = f"input {i}" if i < len(plan.specs) else "the output"
                raise RuntimeError(
                    f"backward: {what} of {plan.op.name!r}, {x._spec!r}, was saved for the gradient and then written "
                    f"in place (write {written} after node {seq}); write to a copy, or move the write after backward"
                )
