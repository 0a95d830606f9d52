"""Walking a tape back without recursion: cotangents are pulled through nodes, the latest first.

Nodes carry a global sequence number, and whatever used a node's result has a larger one. So the nodes that were
reached and not yet pulled wait in a heap: nothing is searched or sorted beforehand, and what waits is only as much as
the graph is wide. Every node is emptied as soon as it was pulled, which frees what it saved while the walk goes on.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, ClassVar

from flnb_telemetry import bus

from flnb.autograd import explain
from flnb.autograd.hooks import Intercepted, heard
from flnb.autograd.statistics import Statistics
from flnb.autograd.variable import GRADIENT, Variable
from flnb.dispatch import ops as dispatch
from flnb.dispatch import state
from flnb.interface.tape import MARK, PARENTS, PLAN, SEQ, Node, Tape
from flnb.ops import elementwise as e
from flnb.ops.creation import asarray, ones_like
from flnb.ops.movement import sum_to
from flnb.ops.table import OPS
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Linked", "Walk", "backward", "grad_of", "walk"]

GRADIENT_CATEGORY = state.CATEGORIES.index("gradient")
ADD = OPS["add"]


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
    stops = frozenset(x._node[SEQ] for x in inputs)
    with _modes(create_graph):
        found = {n[SEQ]: g for n, g in walk(node, cotangent, retain_graph or create_graph, create_graph, stops, True)}
    gradients = [found.get(x._node[SEQ]) for x in inputs]
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
    made = "" if node[PLAN] is None else f".\n  It is the result of {explain.in_words(node)}"
    if grad is None:
        if root.size != 1:
            raise RuntimeError(
                f"backward: a gradient starts from one number, this Variable has shape {root.shape}; reduce it first "
                f"(.sum(), .mean()), or give the cotangent: backward(grad){made}"
            )
        return node, ones_like(root)
    grad = asarray(grad, dtype=root.dtype)
    if grad.shape != root.shape:
        raise ValueError(f"backward: grad must have the Variable's shape {root.shape}, got {grad.shape}{made}")
    return node, grad


def _modes(create_graph: bool) -> Any:
    lane = bus.lanes.lane if bus.lanes is not None else None
    return state.use(grad=create_graph, category=GRADIENT_CATEGORY, lane=lane)


class Linked(Tape):
    """The default: a node is kept by its result and by what was computed from that, and goes with them."""

    name: ClassVar[str] = "linked"

    @property
    def mark(self) -> Any:
        """None, for which the dispatcher makes nodes without asking; what derives from it is asked."""
        return None if type(self) is Linked else super().mark


def walk(
    root: Node,
    cotangent: Any,
    retain: bool,
    create_graph: bool,
    stops: frozenset[int] = frozenset(),
    only_stops: bool = False,
) -> list[tuple[Node, Any]]:
    """Pull a cotangent back from a node; the leaves, and nodes in ``stops``, that it reaches, with what arrives.

    With ``only_stops`` the walk goes nowhere else, and leaves the graph there as it is.
    """
    under_way = (Toward if only_stops else Walk)(root, cotangent, retain, create_graph, stops)
    lane = bus.lanes.lane if bus.lanes is not None else None
    outer = lane.node if lane is not None else 0
    try:
        with bus.phase("backward") if lane is not None else nullcontext():
            if root[PLAN] is None:
                under_way.leaves.append(root)
            else:
                _owner(root).walk(root, under_way)
                follow(under_way)
    finally:
        if lane is not None:
            lane.node = outer
    return under_way.end()


def _owner(node: Node) -> Tape:
    """The tape that recorded a node, the default one where that is gone."""
    mark = node[MARK]
    if type(mark) is weakref.ref:
        mark = mark()
    return LINKED if mark is None else mark


LINKED = Linked()
NO_TAPE = object()  # no node has this mark


def follow(walk: Walk, pull: Callable[[Node], None] | None = None) -> None:
    """Pull every node that was reached, and those reached from there, in the order of falling sequence numbers."""
    pull = pull or walk.pull
    reached = walk.reached
    waiting: dict[int, Node] = {}
    heap: list[int] = []  # of negative sequence numbers: the smallest is the latest node
    while reached or heap:
        if reached:
            while len(reached) > 1:
                node = reached.pop()
                waiting[node[2]] = node
                heappush(heap, -node[2])
            node = reached.pop()
            latest = -node[2]
            if heap and heap[0] < latest:  # in a chain nothing waits, and nothing passes through the heap
                waiting[-latest] = node
                node = waiting.pop(-heapreplace(heap, latest))
        else:
            node = waiting.pop(-heappop(heap))
        pull(node)


class Walk:
    """One backward under way.

    Attributes:
        cotangents: what has arrived at nodes that were not pulled yet, by sequence number.
        reached: nodes that a first cotangent has arrived at and that nobody has taken from this list yet; nodes
            whose mark is `own` are left out (their tape finds them by itself).
        retain: whether nodes stay as they are, for another backward.
    """

    __slots__ = (
        "_owned", "_statistics", "_watched", "arrived", "cotangents", "create_graph", "leaves", "own", "reached",
        "retain", "stops",
    )  # fmt: skip

    def __init__(self, root: Node, cotangent: Any, retain: bool, create_graph: bool, stops: frozenset[int]) -> None:
        self.retain = retain
        self.create_graph = create_graph
        self.stops = stops
        self.own: Any = NO_TAPE
        self.cotangents: dict[int, Any] = {root[SEQ]: cotangent}
        self.reached: list[Node] = []
        self.leaves: list[Node] = []
        self.arrived: list[tuple[Node, Any]] = []
        self._owned: set[int] = set()  # sums that nothing else refers to, which may be added to in place
        self._watched = bus.lanes is not None
        measured = self._watched and not create_graph and cotangent._level is None
        self._statistics = Statistics.begin() if measured else None

    def pull(self, node: Node) -> None:
        """Take the cotangent of a node's result, and add to those of its parents. Empties the node."""
        seq = node[2]
        cotangents = self.cotangents
        g = cotangents.pop(seq, None)
        if g is None:  # every path to it was cut
            return
        plan, parents = node[0], node[1]
        if self.stops and seq in self.stops:
            self.arrived.append((node, heard(node, g)))
            return
        if parents is None:
            raise explain.freed(node)
        if seq < dispatch.last_write:
            explain.check_unwritten(node)
        if self._watched:
            self._watch(node, g)
        saved = node[6:]
        if not self.retain:
            node[1] = None
            del node[6:]
        try:
            if self.create_graph or plan.joint is not None:
                self._pull_whole(node, parents, g, saved)
                return
            pulls, shrinks, specs, planned = plan.pulls, plan.shrinks, plan.specs, plan.planned
            for i, parent in enumerate(parents):
                if parent is None:
                    continue
                pull = pulls[i]
                if pull is None:
                    continue
                gi = pull(g, plan, *saved) if planned else pull(g, *saved)
                if gi is None:
                    continue
                if shrinks[i] is not None:
                    gi = sum_to(gi, shrinks[i])
                if gi._spec is not specs[i] and gi._level is None:
                    raise explain.misshapen(node, i, gi)
                key = parent[2]
                before = cotangents.get(key)
                if before is None:
                    cotangents[key] = gi
                    if key < 0:
                        self.leaves.append(parent)
                    elif parent[3] is not self.own:
                        self.reached.append(parent)
                elif key in self._owned:
                    dispatch.accumulate(ADD, before, gi)
                else:
                    cotangents[key] = e.add(before, gi)
                    self._owned.add(key)
        except Exception as error:
            explain.noted(error, node, g)
            raise

    def drop(self, node: Node) -> None:
        """Forget the cotangent of a node and empty it: nothing flows on from there."""
        self.cotangents.pop(node[SEQ], None)
        if not self.retain:
            empty(node)

    def _pull_whole(self, node: Node, parents: tuple[Any, ...], g: Any, saved: list[Any]) -> None:
        """The cotangents of all parents at once: of composites, and where the walk is recorded itself."""
        plan = node[PLAN]
        while isinstance(plan, Intercepted):
            g, saved = plan.cotangent(g), plan.values(saved)
            plan = plan.original
        by_body = self.create_graph and plan.joint is not None and plan.op.decomposes
        if self.create_graph and not by_body:
            saved = _on_tape(node, saved)
        if plan.joint is None:
            head = (g, plan) if plan.planned else (g,)
            pulled = [p and pull and pull(*head, *saved) for p, pull in zip(parents, plan.pulls, strict=True)]
        else:
            pulled = _through_body(plan, parents, g, saved) if by_body else plan.joint(g, plan, *saved)
        for i, parent in enumerate(parents):
            gi = pulled[i]
            if parent is None or gi is None:
                continue
            if plan.shrinks[i] is not None:
                gi = sum_to(gi, plan.shrinks[i])
            if gi._spec is not plan.specs[i] and gi._level is None:
                raise explain.misshapen(node, i, gi)
            self.add(parent, gi)

    def add(self, node: Node, g: Any) -> None:
        """A cotangent arrives at a node."""
        key = node[SEQ]
        before = self.cotangents.get(key)
        if before is None:
            self.cotangents[key] = g
            if key < 0:
                self.leaves.append(node)
            elif node[MARK] is not self.own:
                self.reached.append(node)
        else:
            self.cotangents[key] = e.add(before, g)

    def _watch(self, node: Node, g: Any) -> None:
        """Telemetry: what runs now works for this node."""
        if bus.lanes is not None:
            bus.lanes.lane.node = node[SEQ]
        if self._statistics is not None:
            self._statistics.see(node, g)

    def end(self) -> list[tuple[Node, Any]]:
        """Leaves and stops that cotangents arrived at, with their sums, the latest first."""
        leaves = [(leaf, heard(leaf, self.cotangents.pop(leaf[SEQ]))) for leaf in self.leaves]
        leaves.sort(key=lambda pair: -pair[0][SEQ])
        if self._statistics is not None:
            self._statistics.end(leaves)
        return [*self.arrived, *leaves]


class Toward(Walk):
    """A walk that goes only where it can reach one of its stops."""

    __slots__ = ("_useful",)

    def __init__(self, root: Node, cotangent: Any, retain: bool, create_graph: bool, stops: frozenset[int]) -> None:
        super().__init__(root, cotangent, retain, create_graph, stops)
        self._useful = _leading_to(stops, root)
        if root[SEQ] not in self._useful:
            del self.cotangents[root[SEQ]]

    def pull(self, node: Node) -> None:
        parents, useful = node[PARENTS], self._useful
        if parents is None or node[SEQ] not in self.cotangents or node[SEQ] in self.stops:
            super().pull(node)
            return
        node[PARENTS] = tuple([p if p is not None and p[SEQ] in useful else None for p in parents])
        try:
            super().pull(node)
        finally:
            if self.retain:
                node[PARENTS] = parents

    def end(self) -> list[tuple[Node, Any]]:
        self.leaves = [leaf for leaf in self.leaves if leaf[SEQ] in self.cotangents]
        return super().end()


def _leading_to(stops: frozenset[int], root: Node) -> set[int]:
    """Sequence numbers of the nodes from which a stop can be reached.

    Freed nodes are among them, to be found out, and those of other tapes, which may know of more than their parents.
    """
    nodes, stack = {root[SEQ]: root}, [root]
    while stack:
        node = stack.pop()
        if node[SEQ] in stops:
            continue
        for parent in node[PARENTS] or ():
            if parent is not None and parent[SEQ] not in nodes:
                nodes[parent[SEQ]] = parent
                stack.append(parent)
    useful: set[int] = set()
    for seq in sorted(nodes):
        node = nodes[seq]
        parents = node[PARENTS]
        leads = seq in stops or any(p is not None and p[SEQ] in useful for p in parents or ())
        unknown = parents is None or (node[PLAN] is not None and node[MARK] is not None)
        if leads or unknown:
            useful.add(seq)
    return useful


def empty(node: Node) -> None:
    """Let go of what a node saved and of its parents."""
    node[1] = None
    del node[6:]


def _on_tape(node: Node, saved: list[Any]) -> list[Any]:
    """The saved values with the output as a Variable at its place on the tape, so that it is differentiated too."""
    output = saved[-1]
    if output is None:
        return saved
    variable = object.__new__(Variable)
    variable._data, variable._spec, variable._root, variable._node = output._data, output._spec, output, node
    return [*saved[:-1], variable]


def _through_body(plan: Any, parents: tuple[Any, ...], g: Any, saved: list[Any]) -> list[Any]:
    """A composite's gradient by its body's ops, on Variables, so that it has a graph of its own."""
    inputs = saved[: len(parents)]
    result, _ = plan.op.body(*inputs, *plan.attributes)
    stops = frozenset(p[SEQ] for p in parents if p is not None)
    arrived = {node[SEQ]: a for node, a in walk(result._node, g, True, True, stops)}
    return [None if p is None else arrived.get(p[SEQ]) for p in parents]
