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
        taken = {id(cotangent)}
        for leaf, gradient in walk(node, cotangent, retain_graph or create_graph, create_graph):
            old = leaf[GRADIENT]
            if old is not None:
                gradient = e.add(old, gradient)
            elif id(gradient) in taken or hasattr(gradient, "_root"):
                gradient = e.copy(gradient)  # a leaf's gradient is its own: writing to it must change no other
            taken.add(id(gradient))
            if not create_graph and type(gradient) is not Tensor:
                gradient = dispatch.detached(gradient._data, gradient._spec)
            leaf[GRADIENT] = gradient


def grad_of(
    output: Variable, inputs: list[Variable], grad: Any = None, retain_graph: bool = False, create_graph: bool = False
) -> list[Tensor | None]:
    """Gradients with respect to Variables anywhere on the tape, without touching ``.grad``; None where none flows."""
    node, cotangent = _start(output, grad)
    stops = frozenset(x._node[2] for x in inputs)
    with _modes(create_graph):
        found = {n[2]: g for n, g in walk(node, cotangent, retain_graph or create_graph, create_graph, stops)}
    gradients = [found.get(x._node[2]) for x in inputs]
    if create_graph:
        return gradients
    return [g if g is None or type(g) is Tensor else g.data for g in gradients]


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


def walk(
    root: Node, cotangent: Any, retain: bool, create_graph: bool, stops: frozenset[int] = frozenset()
) -> list[tuple[Node, Any]]:
    """Pull a cotangent back from a node; the leaves, and nodes in ``stops``, that it reaches, with what arrives."""
    pending = _reachable(root, stops)
    order = sorted(pending)
    cotangents: dict[int, Any] = {root[2]: cotangent}
    owned: set[int] = set()
    arrived: list[tuple[Node, Any]] = []
    lane = bus.lanes.lane if bus.lanes is not None else None
    statistics = Statistics.begin() if lane is not None and not create_graph and cotangent._level is None else None
    outer = lane.node if lane is not None else 0
    try:
        with bus.phase("backward") if lane is not None else _nothing:
            while order:
                seq = order.pop()
                node = pending.pop(seq)
                g = cotangents.pop(seq, None)
                if g is None:  # every path to it was cut
                    continue
                if seq < 0 or seq in stops:
                    arrived.append((node, g))
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
    finally:
        if lane is not None:
            lane.node = outer
    if statistics is not None:
        statistics.end([(node, g) for node, g in arrived if node[2] < 0])
    return arrived


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


_nothing = _Nothing()


def _reachable(root: Node, stops: frozenset[int]) -> dict[int, Node]:
    """All nodes from a root down to leaves and stops, by sequence number."""
    pending = {root[2]: root}
    stack = [] if root[2] in stops else [root]
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
                if parent[0] is not None and parent[2] not in stops:
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
    stops = frozenset(p[2] for p in parents if p is not None)
    arrived = {node[2]: a for node, a in walk(result._node, g, True, True, stops)}
    return [None if p is None else arrived.get(p[2]) for p in parents]


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
