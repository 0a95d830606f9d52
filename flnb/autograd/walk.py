"""One backward pass: propagates cotangents, the gradients of nodes' results, from nodes to their parents.

A node's gradient rules, its *pulls*, compute the cotangents of the node's parents from the cotangent of the node. If
tensors are NumPy arrays, the pass works on raw buffers and pulls are compiled functions
(`flnb.autograd.compiled_pulls`); otherwise it works on Tensors and pulls call the public ops.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from flnb_telemetry import bus, intern, schema

from flnb.autograd import explain
from flnb.autograd.compiled_pulls import BLOCKS, EVENTS, compile_pulls
from flnb.autograd.hooks import Intercepted, run_hooks
from flnb.autograd.statistics import Statistics
from flnb.autograd.variable import placed
from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.plan import spec_of
from flnb.dispatch.source_lines import fixed, pinned_at
from flnb.dispatch.table import OPS
from flnb.interface.tape import CODE, LASTI, MARK, PARENTS, PLAN, SAVED, SEQ, Node
from flnb.ops import elementwise as e
from flnb.ops.movement import sum_to

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.tensor import Tensor

ADD = OPS["add"]


class Walk:
    """A running backward pass.

    Attributes:
        pull: a function of a node that computes the cotangents of the node's parents from the node's cotangent, and
            adds them to ``cotangents``. It then empties the node, unless ``retain`` is true.
        cotangents: a dict from the sequence number of a node that was not pulled yet to the sum of its cotangents so
            far: a raw buffer if ``buffers`` is true, otherwise a Tensor.
        reached: nodes that have received a first cotangent; the tape removes them from this list. If the tape finds its
            own nodes by itself, they are not added. Such nodes have the mark ``own``.
        leaves: leaves at which a cotangent has arrived.
        stops: sequence numbers of the nodes at which the pass ends.
        arrived: the nodes in ``stops`` that the pass has reached, with their cotangents.
        retain: whether nodes are left unchanged, for another backward.
        create_graph: whether the pass is itself recorded on the tape.
    """

    complete: Sequence[tuple[Node, Any]] = ()
    """Leaves whose gradients were reported to listeners during the pass, each with its gradient after hooks."""

    def __init__(
        self, root: Node, cotangent: Any, retain: bool, create_graph: bool, stops: frozenset[int], own: Any
    ) -> None:
        self.retain, self.create_graph, self.stops, self.own = retain, create_graph, stops, own
        self.reached: list[Node] = []
        self.leaves: list[Node] = []
        self.arrived: list[tuple[Node, Any]] = []
        self._owned: set[int] = set()  # sums that nothing else refers to, which may be added to in place
        self._lane = bus.lanes.lane if bus.lanes is not None else None
        self._context = 0 if self._lane is None else intern.contexts.id_of((bus.threads.here.path, schema.BACKWARD))
        plain = not create_graph and cotangent._level is None
        here = state.current()
        self._backend = here.backend
        recorded = plain and self._lane is not None and not self._lane.node  # a pass inside a pull is part of that
        # values on another device are read only where a recording asks for norms: the program would wait for them
        read = recorded and here.backend.has_values and (bus.want_grad_stats or here.backend.location in ("", "host"))
        self._statistics = Statistics(root[SEQ], cotangent) if read else None
        self.buffers = plain and here.direct is cotangent._spec.kind and here.backend.plain_buffers
        self.cotangents: dict[int, Any] = {root[SEQ]: cotangent._data if self.buffers else cotangent}
        self.pull: Callable[[Node], None] = self._compiled(here) if self.buffers else self._pull

    def _compiled(self, here: state.State) -> Callable[[Node], None]:
        """Make the function `pull` for passes over raw buffers, which calls compiled gradient functions if possible."""
        take, lane, min_block, watch = self.cotangents.pop, self._lane, here.min_block, self._statistics
        around = (
            here, here.table, self.cotangents, self._owned, self.reached, self.leaves, self.own, lane, self.retain
        )  # fmt: skip
        retain, stops, context = self.retain, self.stops, self._context
        known = fixed[context]
        plainly, in_blocks = (0, BLOCKS) if lane is None else (EVENTS, EVENTS | BLOCKS)

        def pull(node: Node) -> None:
            seq = node[2]
            g = take(seq, None)
            if g is None:  # every path to it was cut
                return
            plan, parents = node[0], node[1]
            if lane is not None:
                lane.context = known.get(id(node[4]) + node[5]) or pinned_at(context, node[4], node[5])
            compiled = plan.compiled
            if compiled is None and parents is not None:
                compiled = compile_pulls(plan, node[6:])
            if not compiled or parents is None or seq < dispatch.last_write or (stops and seq in stops):
                self._pull_over(node, dispatch.detached(g, plan.spec))
                return
            way = plainly if compiled.weight < min_block else in_blocks
            measured = watch is not None and watch.left > 0
            saved = node[6:] if measured else []
            try:
                run = compiled.ways[way] or compiled.write(way)
                if run(node, g, around):
                    self._pull_over(node, dispatch.detached(g, plan.spec))
                    return
            except Exception as error:
                self._explain_failure(error, node, dispatch.detached(g, plan.spec))
            if watch is not None and (measured or watch.alarms):
                measured = measured and watch.see(node, g, saved)
                watch.check(node, g, saved or node[6:], self._arrived_at(parents), measured)
            if not retain:
                node[1] = None
                del node[6:]

        return pull

    def _arrived_at(self, parents: tuple[Any, ...]) -> list[Any]:
        """Return a list of buffers: for each of a node's parents, the sum of the cotangents that it has received.

        Parents without a cotangent are left out.
        """
        return [self.cotangents[p[2]] for p in parents if p is not None and p[2] in self.cotangents]

    def _explain_failure(self, error: Exception, node: Node, g: Tensor) -> NoReturn:
        """Repeat a node's gradient functions op by op after compiled ones failed, so that the error names the op."""
        if node[PARENTS] is not None:  # else it was a sum that failed
            try:
                self._pulled(node, g)
            except Exception as described:
                raise described from error.__cause__
        explain.add_origin(error, node, g)  # it worked this time
        raise error

    def _pull(self, node: Node) -> None:
        """Propagate one node's cotangent to its parents: the attribute `pull` in passes over Tensors."""
        g = self.cotangents.pop(node[SEQ], None)
        if g is not None:
            self._pull_over(node, g)

    def _pull_over(self, node: Node, g: Any) -> None:
        """Compute the cotangents of a node's parents from the Tensor ``g`` by public ops; add them to `cotangents`."""
        for parent, gi in self._pulled(node, g):
            key = parent[SEQ]
            before = self.cotangents.get(key)
            if before is not None:
                gi = self._sum(key, self._tensor(before) if self.buffers else before, gi)
            elif key < 0:
                self.leaves.append(parent)
            elif parent[MARK] is not self.own:
                self.reached.append(parent)
            self.cotangents[key] = gi._data if self.buffers else gi

    def _tensor(self, buffer: Any) -> Tensor:
        """Make a Tensor of a cotangent's buffer, as a view if another buffer owns the memory."""
        tensor = dispatch.detached(buffer, spec_of(buffer.shape, buffer.dtype, self._backend.buffer))
        owner = self._backend.base_of(buffer)
        if owner is not None:
            tensor._root = dispatch.detached(owner, tensor._spec)
        return tensor

    def _sum(self, key: int, before: Any, g: Any) -> Any:
        """Return ``before`` + ``g``, two cotangents of the node with the sequence number ``key``.

        The sum is written into ``before`` if nothing else refers to that.
        """
        if self.create_graph:
            return e.add(before, g)
        if key in self._owned:
            dispatch.accumulate(ADD, before, g)
            return before
        self._owned.add(key)
        return e.add(before, g)

    def _pulled(self, node: Node, g: Any) -> list[tuple[Node, Any]]:
        """Compute the cotangents of a node's parents and empty the node; returns pairs of parent and cotangent.

        For a node in ``stops`` the cotangent is stored in ``arrived``, and there are no pairs.
        """
        plan, parents, seq = node[PLAN], node[PARENTS], node[SEQ]
        if seq in self.stops:
            self.arrived.append((node, run_hooks(node, g)))
            return []
        if parents is None:
            raise explain.freed_error(node)
        if seq < dispatch.last_write:
            explain.check_unwritten(node)
        saved, watch = node[SAVED:], self._statistics
        if self._lane is not None:
            self._lane.node = seq
            if not self.buffers:  # else `pull` has set it
                self._lane.context = pinned_at(self._context, node[CODE], node[LASTI])
        seen = watch is not None and watch.left > 0 and watch.see(node, g._data, saved)
        if not self.retain:
            empty(node)
        try:
            found = self._pulled_from(plan, node, parents, g, saved)
        except Exception as error:
            explain.add_origin(error, node, g)
            raise
        if watch is not None and (seen or watch.alarms or not plan.op.traceable or isinstance(plan, Intercepted)):
            # the rule may have made a NaN or Inf: NumPy reported an error, or functions of the user ran
            watch.check(node, g._data, saved, [gi._data for _, gi in found], seen)
        return found

    def _pulled_from(
        self, plan: Any, node: Node, parents: tuple[Any, ...], g: Any, saved: list[Any]
    ) -> list[tuple[Node, Any]]:
        """Call the hooks of an emptied node, then its gradient functions; return pairs of parent and cotangent."""
        while isinstance(plan, Intercepted):
            g, saved = plan.cotangent(g), plan.values(saved)
            plan = plan.original
        whole: Any = None
        by_body = self.create_graph and plan.joint is not None and plan.op.decomposes and not plan.op.direct
        if self.create_graph and not by_body and saved[-1] is not None:
            saved = [*saved[:-1], placed(saved[-1], node)]  # the output is differentiated too
        if plan.joint is not None:
            whole = _through_body(plan, parents, g, saved) if by_body else self._joint(plan, node, parents, g, saved)
        found: list[tuple[Node, Any]] = []
        for i, parent in enumerate(parents):
            pull = plan.pulls[i] if whole is None else None
            if parent is None or whole is pull is None:
                continue
            gi = whole[i] if pull is None else pull(g, plan, *saved)
            if gi is None:
                continue
            if plan.shrinks[i] is not None:
                gi = sum_to(gi, plan.shrinks[i])
            if gi._spec is not plan.specs[i] and gi._level is None:
                raise explain.shape_error(node, i, gi)
            found.append((parent, gi))
        return found

    def _joint(self, plan: Any, node: Node, parents: tuple[Any, ...], g: Any, saved: list[Any]) -> Any:
        """Compute the cotangents of all inputs of a composite: by the backend's method for it, else op by op."""
        if self.buffers and plan.op.gradient is not None:
            data, wanted = [getattr(x, "_data", x) for x in saved], [p is not None for p in parents]
            made = dispatch.pull_whole(plan, state.current(), node[SEQ], g._data, data, wanted)
            if made is not None:
                return [m if m is None else dispatch.detached(m, s) for m, s in zip(made, plan.specs, strict=True)]
        return plan.joint(g, plan, *saved)

    def drop(self, node: Node) -> None:
        """Discard the cotangent of a node and empty the node, so that its parents receive nothing from it."""
        self.cotangents.pop(node[SEQ], None)
        if not self.retain:
            empty(node)

    def watching(self) -> AbstractContextManager[Any]:
        """Return a context manager for the whole pass, in which telemetry detects where NaN and Inf first appear."""
        return nullcontext() if self._statistics is None else self._statistics.watching()

    def taken(self, leaf: Node) -> Tensor | None:
        """Remove and return the cotangent of a leaf after running its hooks; None if none arrived."""
        g = self.cotangents.pop(leaf[SEQ], None)
        if g is not None:
            if self.buffers:
                g = self._tensor(g)
            if type(leaf[PARENTS]) is not tuple:
                g = run_hooks(leaf, g)
        return g

    def end(self) -> list[tuple[Node, Any]]:
        """End the pass: return the nodes in ``stops``, then the leaves in order of creation, with their cotangents."""
        found: list[tuple[Node, Any]] = list(self.complete)
        for leaf in self.leaves:
            g = self.taken(leaf)
            if g is not None:  # else a listener has taken it
                found.append((leaf, g))
        if len(found) > 1:
            found.sort(key=lambda pair: -pair[0][SEQ])
        if self._statistics is not None:
            self._statistics.end(found)
        return [*self.arrived, *found] if self.arrived else found


class Toward(Walk):
    """A backward pass restricted to the paths that lead to the nodes in ``stops``."""

    def __init__(
        self, root: Node, cotangent: Any, retain: bool, create_graph: bool, stops: frozenset[int], own: Any
    ) -> None:
        super().__init__(root, cotangent, retain, create_graph, stops, own)
        useful, pull, cotangents = _leading_to(stops, root), self.pull, self.cotangents
        if root[SEQ] not in useful:
            del cotangents[root[SEQ]]

        def pull_useful(node: Node) -> None:
            parents = node[PARENTS]
            if parents is None or node[SEQ] not in cotangents or node[SEQ] in stops:
                pull(node)
                return
            node[PARENTS] = tuple([p if p is not None and p[SEQ] in useful else None for p in parents])
            try:
                pull(node)
            finally:
                if retain:
                    node[PARENTS] = parents

        self.pull = pull_useful


def _leading_to(stops: frozenset[int], root: Node) -> set[int]:
    """Return the sequence numbers of the nodes through which a cotangent can flow from ``root`` to one in ``stops``.

    Freed nodes are included, so that the pass reaches them and raises an error. Nodes of other tapes than the default
    tape are included, too, because such a tape may have removed or fused their parents.
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
    """Release a node's saved values and its parents."""
    node[1] = None
    del node[6:]


def _through_body(plan: Any, parents: tuple[Any, ...], g: Any, saved: list[Any]) -> list[Any]:
    """Compute a composite's cotangents by running its body on Variables, and then a backward pass through the body.

    The result can be differentiated again. If a parent occurs several times, the first entry in the result is the sum
    of its cotangents, and the others are None.
    """
    from flnb.autograd.tape import walk  # a walk inside this one

    inputs = saved[: len(parents)]
    if inputs[0] is None:
        made = plan.op.remake(plan, *saved)
        inputs[0] = made if parents[0] is None else placed(made, parents[0])
    result, _ = plan.op.body(*inputs, *plan.attributes)
    stops = frozenset(p[SEQ] for p in parents if p is not None)
    arrived = {node[SEQ]: a for node, a in walk(result._node, g, True, True, stops)}
    return [None if p is None else arrived.pop(p[SEQ], None) for p in parents]
