"""Iterative backward pass: calls the gradient rules (pulls) of recorded nodes, latest node first.

Nodes have a global sequence number, and a node that uses another node's result has a larger number. Nodes that have
received a gradient wait in a heap, from which the node with the largest number is taken. So the graph need not be
searched or sorted before the pass, and the heap is only as large as the graph is wide. A node is emptied as soon as its
gradient rule has run, which frees its saved values during the pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flnb_telemetry import bus, schema

from flnb.autograd import arrivals, explain
from flnb.autograd.repeated import walk_or_repeat
from flnb.autograd.variable import Variable
from flnb.autograd.walk import Toward, Walk
from flnb.dispatch import crossing as dispatch
from flnb.dispatch import source_lines, state
from flnb.dispatch.autocast import without_casts
from flnb.dispatch.effects import effects
from flnb.interface.tape import GRADIENT, MARK, PLAN, SEQ, Node, Tape
from flnb.ops import elementwise as e
from flnb.ops.creation import asarray, ones_like
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from flnb.interface import tape as contract

__all__ = ["Linked", "Walk", "backward", "grad_of", "walk"]


def backward(root: Variable, grad: Any, retain_graph: bool, create_graph: bool) -> None:
    """Add the gradients of ``root`` to the leaves' ``.grad``; the arguments are those of `Variable.backward`."""
    node, cotangent = _start(root, grad)
    here = _pulling(create_graph)
    state.run_in(here, _accumulate, here, node, cotangent, retain_graph, create_graph)


Variable.walk_back = staticmethod(backward)  # imported by none of its methods, at each call


def _accumulate(here: state.State, node: Node, cotangent: Any, retain_graph: bool, create_graph: bool) -> None:
    """Run a backward pass from ``node`` in the state ``here``, and add the gradients of leaves to their ``.grad``.

    ``cotangent`` is the gradient of the node's result; the other arguments are those of `Variable.backward`.
    """
    arriving = arrivals.Arrivals(node) if arrivals.listeners else None
    retain = retain_graph or create_graph
    if arriving is None and not retain and here.backend.defers:
        found = walk_or_repeat(node, cotangent, partial(walk, node, cotangent, retain, create_graph))
    else:
        found = walk(node, cotangent, retain, create_graph, arriving=arriving)
    taken = {_memory(cotangent)}
    found.reverse()
    while found:
        leaf, gradient = found.pop()  # not kept here, so that one that is copied goes at once
        old = leaf[GRADIENT]
        if old is None and (captured := effects.get()) is not None:
            captured.lacks(leaf)
        if old is not None:
            gradient = e.add(old, gradient)
        elif (memory := _memory(gradient)) in taken or hasattr(gradient, "_root"):
            gradient = e.copy(gradient)  # a leaf's gradient is its own: writing to it must change no other
        else:
            taken.add(memory)
        if not create_graph and type(gradient) is not Tensor:
            gradient = dispatch.detached(gradient._data, gradient._spec)
        leaf[GRADIENT] = gradient
    if arriving is not None:
        arriving.end()


def _memory(gradient: Any) -> int:
    """Return a number that identifies a gradient's memory: it is equal only for gradients that share memory."""
    return id(gradient if gradient._level is not None else gradient._data)


def grad_of(
    output: Variable, inputs: list[Variable], grad: Any = None, retain_graph: bool = False, create_graph: bool = False
) -> list[Tensor | None]:
    """Return the gradients of ``output`` with respect to other Variables on the tape; None where no gradient flows.

    No ``.grad`` changes. The arguments besides ``inputs`` are those of `Variable.backward`.
    """
    node, cotangent = _start(output, grad)
    stops = frozenset(x._node[SEQ] for x in inputs)
    retain = retain_graph or create_graph
    reached = state.run_in(_pulling(create_graph), walk, node, cotangent, retain, create_graph, stops, True)
    found = {n[SEQ]: g for n, g in reached}
    gradients = [found.get(x._node[SEQ]) for x in inputs]
    if create_graph:
        return gradients
    return [g if g is None or type(g) is Tensor else g.data for g in gradients]


def _start(root: Variable, grad: Any) -> tuple[Node, Any]:
    """Return the node and the cotangent with which a backward begins, after checks of both."""
    node, value = root._node, root._data
    if bus.lanes is not None and type(value) is np.ndarray and value.size == 1:
        number = value.item()
        if number - number != 0:  # NaN or infinite
            bus.want_grad_stats = True
    if node is None:
        raise RuntimeError(
            "backward: this Variable does not require grad: no Variable that requires grad went into it, or it was "
            "computed under no_grad() or detached"
        )
    if grad is None:
        if root.size != 1:
            raise RuntimeError(
                f"backward: a gradient starts from one number, this Variable has shape {root.shape}; reduce it first "
                f"(.sum(), .mean()), or give the cotangent: backward(grad){_describe_origin(node)}"
            )
        return node, ones_like(root)
    if type(grad) is Tensor and grad._spec is root._spec:
        return node, grad
    grad = asarray(grad, dtype=root.dtype)
    if grad.shape != root.shape:
        raise ValueError(
            f"backward: grad must have the Variable's shape {root.shape}, got {grad.shape}{_describe_origin(node)}"
        )
    return node, grad


def _describe_origin(node: Node) -> str:
    """Return a description of a node's op for the end of an error message; an empty string for a leaf."""
    return "" if node[PLAN] is None else f".\n  It is the result of {explain.describe_node(node)}"


def _pulling(create_graph: bool) -> state.State:
    """Return the `flnb.dispatch.state.State` in which gradient rules run; ops are recorded only if ``create_graph``."""
    here, name = state.current(), "pulling on a tape" if create_graph else "pulling"
    known = here.variants.get(name)  # the arguments below cost more than to ask
    return known or here.variant(name, grad=create_graph, category=state.GRADIENT, interpreters=without_casts())


class Linked(Tape):
    """The default tape, which stores no nodes: only the results of nodes and later nodes refer to a node."""

    name: ClassVar[str] = "linked"

    @property
    def mark(self) -> Any:
        """Return None, so that ops make nodes without calling this tape; for a subclass, the result of `Tape.mark`."""
        return None if type(self) is Linked else super().mark


def walk(
    root: Node,
    cotangent: Any,
    retain: bool,
    create_graph: bool,
    stops: frozenset[int] = frozenset(),
    only_stops: bool = False,
    arriving: arrivals.Arrivals | None = None,
) -> list[tuple[Node, Any]]:
    """Run the backward pass from a node with its cotangent; returns the leaves reached, with their cotangents.

    Args:
        root: the node at which the pass begins.
        cotangent: the gradient of the result of ``root``.
        retain: leave the nodes unchanged for another pass; otherwise they are emptied.
        create_graph: record the pass itself, so that its results can be differentiated.
        stops: sequence numbers of nodes whose cotangents are wanted; the pass does not go on to their parents.
        only_stops: handle only nodes on paths to nodes in ``stops``; the rest of the graph is unchanged.
        arriving: notifies listeners when the gradients of leaves are complete.

    Returns:
        The nodes in ``stops`` and the leaves that were reached, with their cotangents.
    """
    tape = LINKED if root[MARK] is None else _owner(root)
    finds_own = tape.keeps_nodes and type(tape).walk is not Tape.walk
    own = tape.mark if finds_own else LINKED
    under_way = (Toward if only_stops else Walk)(root, cotangent, retain, create_graph, stops, own)
    if arriving is not None:
        under_way.pull = arriving.around(under_way)
    if (captured := effects.get()) is not None:
        under_way.pull = captured.pulling(under_way.pull)
    lane = under_way._lane
    try:
        if lane is None and captured is None:
            _walk_from(under_way, root, tape, finds_own)
        elif lane is None:
            with bus.phase("backward"):
                _walk_from(under_way, root, tape, finds_own)
        else:
            outer, context, common, place = lane.node, lane.context, lane.location, bus.threads.here
            phase = place.phase
            try:
                try:  # no `bus.phase`, which takes four times as long
                    bus.set_phase(schema.BACKWARD)
                    lane.location = common or source_lines.location(*source_lines.site())
                    with under_way.watching():
                        _walk_from(under_way, root, tape, finds_own)
                finally:
                    bus.set_phase(phase)
            finally:  # once more, because Ctrl-C may have come before the line above
                place.phase, lane.context, lane.node, lane.location = phase, context, outer, common
        return under_way.end()
    finally:
        del under_way.pull  # it refers to the walk: no cycle is left behind


def _walk_from(under_way: Walk, root: Node, tape: Tape, finds_own: bool) -> None:
    """Let ``tape`` run the backward pass from a node, then handle the nodes that the tape did not handle.

    If ``finds_own`` is true, the tape itself finds the nodes that it recorded. Then a cotangent that is left at such a
    node is an error.
    """
    if root[PLAN] is None:
        under_way.leaves.append(root)
        return
    if tape is LINKED:
        under_way.reached.append(root)
    else:
        tape.walk(root, under_way)
    follow(under_way)
    if finds_own and any(seq > 0 for seq in under_way.cotangents):
        raise explain.skipped_error(root, tape)


def _owner(node: Node) -> Tape:
    """Return the tape that recorded a node. If that tape no longer exists, return the default tape."""
    mark = node[MARK]
    if type(mark) is weakref.ref:
        mark = mark()
    return LINKED if mark is None or node[PLAN] is None else mark


LINKED = Linked()


def follow(walk: contract.Walk, pull: Callable[[Node], None] | None = None) -> None:
    """Call ``pull`` (by default ``walk.pull``) for all nodes in ``walk.reached``, the latest node first.

    Nodes that the calls add to ``walk.reached`` are included.
    """
    pull = pull or walk.pull
    reached = walk.reached
    waiting: dict[int, Node] = {}
    heap: list[int] = []  # of negative sequence numbers: the smallest is the latest node
    while reached or heap:
        if reached:
            node = reached.pop()
            if reached or heap:  # in a chain nothing waits, and nothing passes through the heap
                for other in reached:
                    waiting[other[2]] = other
                    heappush(heap, -other[2])
                reached.clear()
                latest = -node[2]
                if heap[0] < latest:
                    waiting[-latest] = node
                    node = waiting.pop(-heapreplace(heap, latest))
        else:
            node = waiting.pop(-heappop(heap))
        pull(node)
