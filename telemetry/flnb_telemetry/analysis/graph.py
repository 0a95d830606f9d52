"""The graph of one backward pass as columns: a million nodes take a few arrays rather than a million objects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.intern import joined, located

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.schema import Ints

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Table = Callable[[str], schema.Columns]

FINE, SPREAD, ORIGIN = 0, 1, 2  # from good to worst
"""The health of a node's gradient: finite; NaN or Inf received from a later node; or first NaN or Inf at this node."""


class Gradients(NamedTuple):
    """Measured gradients of nodes or leaves, one array entry for each.

    `seen` says whether the gradient was measured; if not, `norm` is NaN. `bad` is the number of elements that are NaN
    or Inf, `numel` the number of all elements.
    """

    norm: Floats
    seen: Bools
    bad: Ints
    numel: Ints


@dataclass(frozen=True)
class Graph:
    """The nodes of a tape in the order in which they ran, the leaves, and the edges between them.

    Row i of the columns `id`, `plan`, `context`, `forward` and `backward` (ns), `saved` (bytes) and `gradient` is one
    node. The node's arguments are `parent[start[i]:start[i + 1]]`: an entry p >= 0 is the node in row p, a negative
    entry p is the leaf in row -1 - p of the `leaf_*` columns.
    """

    id: Ints
    plan: Ints
    context: Ints
    forward: Ints
    backward: Ints
    saved: Ints
    gradient: Gradients
    start: Ints
    parent: Ints
    leaf_id: Ints
    leaf_plan: Ints
    leaf_name: Ints
    leaf_parameter: Bools
    leaf_gradient: Gradients
    line: Ints | None = None
    """For each node the string id of the user's line, 0 if unknown."""
    failed: int = 0
    """If the forward pass ended in an error, the string id of its message (the op is the last row); else 0."""
    origin: int = -1
    """The row of the node where NaN or Inf first appeared in the backward pass, -1 if none or unknown."""

    def __len__(self) -> int:
        return len(self.id)

    @cached_property
    def child(self) -> Ints:
        """Return, for each entry of `parent`, the row of the node to whose arguments the entry belongs."""
        return np.repeat(np.arange(len(self.id)), np.diff(self.start))

    @cached_property
    def last_reader(self) -> Ints:
        """Return, for each node, the row of the last node that reads its result, -1 if none does."""
        last = np.full(len(self.id), -1)
        inner = self.parent >= 0
        last[self.parent[inner]] = self.child[inner]  # ascending: the last one remains
        return last

    @cached_property
    def health(self) -> NDArray[np.int8]:
        """Return for each node FINE, SPREAD (its gradient has NaN or Inf) or ORIGIN (where these first appeared)."""
        bad = (self.gradient.bad > 0) | (self.gradient.seen & np.isnan(self.gradient.norm))
        found = np.where(bad, SPREAD, FINE).astype(np.int8)
        if self.origin >= 0:
            found[self.origin] = ORIGIN
        return found

    @property
    def origins(self) -> Ints:
        """Return an array with the row of the node where NaN or Inf first appeared; empty if there is no such node."""
        return np.flatnonzero(self.health == ORIGIN)

    def parents(self, row: int) -> list[int]:
        """Return the ids of the nodes and leaves (negative) that node `row` reads, in the order of its arguments."""
        above = self.parent[self.start[row] : self.start[row + 1]]
        return [int(self.id[p] if p >= 0 else self.leaf_id[-1 - p]) for p in above.tolist()]


def acts(table: Table) -> schema.Columns:
    """Return the events of ops that may have made tape nodes: ops that ran, and ops that were recorded to run later.

    An op that was recorded to run later has duration 0; when it runs, it emits another event, which has no node.
    """
    ran, recorded = table("op"), table("record")
    if not len(recorded["t0"]):
        return ran
    none = np.zeros_like(recorded["t0"])
    later = recorded | {"t1": recorded["t0"], "alloc_id": none, "estimated": none.astype(np.uint16)}
    both = {name: np.concatenate([column, later[name]]) for name, column in ran.items()}
    order = np.argsort(both["t0"], kind="stable")
    return {name: column[order] for name, column in both.items()}


def read(
    table: Table,
    ops: schema.Columns,
    sampled: schema.Columns,
    root: int,
    catalog: Catalog,
    failed: dict[str, int] | None = None,
    origin: int = 0,
) -> tuple[Graph, int]:
    """Make the graph of all nodes that one node depends on.

    Args:
        table: returns the columns of a kind of events.
        ops: the op events to search.
        sampled: the `grad_stat` events of one backward pass.
        root: the id of the node that depends on all others, usually the loss; 0 for the last node of `ops`.
        catalog: the names behind the ids in records.
        failed: the record of an op that raised an error; the graph then has all nodes of `ops` and, last, this op.
        origin: the id of the node where NaN or Inf first appeared, 0 for none.

    Returns:
        The graph, and the number of older nodes that are missing from it.
    """
    child, parent = _edges(ops, table("edge"), root, failed)
    every = _ascending(child)
    row, _ = located(every, child)
    order = np.argsort(row, kind="stable")
    row, parent = row[order], parent[order]
    up, inside = located(every, parent)
    needed = np.ones(len(every), np.bool_) if failed else _needed(len(every), row[inside], up[inside])
    ids = every[needed]
    lacking = len(_ascending(parent[needed[row] & (parent > 0) & ~inside]))  # nodes older than the records
    if len(ids) < len(every):
        kept = needed[row]
        row, parent = located(ids, every[row[kept]])[0], parent[kept]
        up, inside = located(ids, parent)
    leaf_ids = _ascending(np.concatenate([parent[parent < 0], sampled["node"][sampled["node"] < 0]]))
    leaf, _ = located(leaf_ids, parent)
    leaf_ids = leaf_ids[::-1]  # -1 first
    up = np.where(parent < 0, leaf - len(leaf_ids), up)  # the last of the ascending ids is leaf 0, written -1
    kept = (inside | (parent < 0)) & (up != row) & ~_again(row, up)
    row, up = row[kept], up[kept]
    start = np.searchsorted(row, np.arange(len(ids) + 1))
    own, forward, backward = _times(ops, ids, catalog)
    plan, context = (np.append(ops[name].astype(np.int64), 0)[own] for name in ("plan", "context"))
    origins = np.flatnonzero(ids == origin).tolist()
    at, seen = located(sampled["node"], ids, sort=True)
    measured = {key: _looked_up(sampled, key, at, seen) for key in ("plan", "saved", "name")}
    if failed is not None:
        plan[-1], context[-1] = failed["plan"], failed["context"]
    plan = np.where(measured["plan"] > 0, measured["plan"], plan)  # of a composite; ops are those of its body
    saved = np.where(seen, measured["saved"], catalog.saved[plan])
    graph = Graph(
        ids, plan, context, forward, backward, saved, _gradients(sampled, at, seen), start, up,
        leaf_ids, *_leaves(leaf_ids, table("leaf"), sampled),
        line=measured["name"], failed=failed["message"] if failed else 0, origin=origins[0] if len(origins) else -1,
    )  # fmt: skip
    return graph, lacking


def _edges(ops: schema.Columns, edges: schema.Columns, root: int, failed: dict[str, int] | None) -> tuple[Ints, Ints]:
    """Return the columns child and parent from which `read` makes a graph, including the entries of a failed op.

    The arguments are those of `read`; `edges` has the events of all steps.
    """
    child, parent = pairs(ops, edges)
    if failed is None:
        root = root or int(ops["node"].max(initial=0))
        return child[child <= root], parent[child <= root]
    made = ops["node"][(ops["parent0"] != 0) | (ops["parent1"] != 0)]
    kept = child >= made.min(initial=child.max(initial=0) + 1)
    raised = max(made.max(initial=0), child.max(initial=0)) + 1
    args = [failed[name] or raised for name in ("parent0", "parent1")]  # without arguments it reads itself
    return np.append(child[kept], [raised] * 2), np.append(parent[kept], args)


def pairs(ops: schema.Columns, edges: schema.Columns) -> tuple[Ints, Ints]:
    """Return two columns with an entry for each argument of each op on the tape: node ids of the op and the argument.

    The first arguments of all ops come first, then all second arguments, and so on.
    """
    made = np.flatnonzero((ops["node"] > 0) & ((ops["parent0"] != 0) | (ops["parent1"] != 0)))
    pairs = [(ops["node"][made], ops[name][made]) for name in ("parent0", "parent1")]
    pairs += [(edges["node"], edges[f"parent{i}"]) for i in range(2, 7)]
    child, parent = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return child[parent != 0], parent[parent != 0]


def _ascending(values: Ints) -> Ints:
    """Return the distinct values in ascending order; for ids this is faster than `numpy.unique`, which hashes."""
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])] if len(values) else values


def _again(row: Ints, up: Ints) -> Bools:
    """Return a mask: True where the pair (row[i], up[i]) is equal to an earlier pair; `row` must be ascending."""
    found = np.zeros(len(row), np.bool_)
    most = int(np.bincount(row).max(initial=0)) if len(row) else 0
    for back in range(1, most):
        found[back:] |= (row[back:] == row[:-back]) & (up[back:] == up[:-back])
    return found


def _needed(size: int, row: Ints, up: Ints) -> Bools:
    """Return a mask, shape (size,), of the last node and all nodes on which its result depends.

    Node row[i] reads the result of node up[i], which precedes it; `row` must be ascending.
    """
    read = np.zeros(size, np.bool_)
    read[up] = True
    if read[:-1].all():  # everything is read by something later, and so in the end by the last
        return np.ones(size, np.bool_)
    start, above = np.searchsorted(row, np.arange(size + 1)).tolist(), up.tolist()
    reached = bytearray(size)
    reached[-1] = 1
    waiting = [size - 1]
    while waiting:
        node = waiting.pop()
        for parent in above[start[node] : start[node + 1]]:
            if not reached[parent]:
                reached[parent] = 1
                waiting.append(parent)
    return np.frombuffer(reached, np.bool_)


def _looked_up(sampled: schema.Columns, key: str, at: Ints, seen: Bools) -> Ints:
    """Return ``sampled[key][at]``, with 0 where `seen` is False; the table `sampled` may have no rows."""
    column = np.append(sampled[key], 0)
    return np.where(seen, column[at], 0)


def _gradients(sampled: schema.Columns, at: Ints, seen: Bools) -> Gradients:
    """Return the gradients of some nodes, from the table `sampled` of `grad_stat` events.

    Node i was measured if seen[i] is True; its event is in row at[i] of the table.
    """
    norm, bad, numel = (_looked_up(sampled, key, at, seen) for key in ("norm", "bad", "numel"))
    return Gradients(np.where(seen, norm, np.nan), seen, bad, numel)


def _times(ops: schema.Columns, ids: Ints, catalog: Catalog) -> tuple[Ints, Ints, Ints]:
    """Return for each node the row of the op event that made it (-1: none), and its forward and backward times (ns).

    An event of an op inside a composite, such as softmax, has the id of the composite's node. If the op ran during the
    composite's own event, the op's time is not added again. ``ids`` are the nodes' ids.
    """
    size = len(ids)
    near = (ops["node"] >= ids.min(initial=1)) & (ops["node"] <= ids.max(initial=0))  # of a long run only a few
    rows = np.flatnonzero(near)
    slot, known = located(ids, ops["node"][rows])
    rows, slot = rows[known], slot[known]
    t0, t1, first, second, context = (ops[name][rows] for name in ("t0", "t1", "parent0", "parent1", "context"))
    back, made = catalog.phase[context] == schema.BACKWARD, (first != 0) | (second != 0)
    own = np.full(size, -1, np.int64)
    for ahead in (~back, ~back & made):  # of several, the op that names parents made the node
        own[slot[ahead]] = np.flatnonzero(ahead)
    mine = own[slot]
    within = (t0 >= t0[mine]) & (t1 <= t1[mine]) & (np.arange(len(slot)) != mine) & (mine >= 0)
    forward = np.bincount(slot, np.where(back | within, 0, t1 - t0), size).astype(np.int64)
    backward = np.bincount(slot, np.where(back, t1 - t0, 0), size).astype(np.int64)
    return np.append(rows, -1)[own], forward, backward


def _leaves(ids: Ints, leaves: schema.Columns, sampled: schema.Columns) -> tuple[Ints, Ints, Bools, Gradients]:
    """Return four columns for the leaves: plan id, name (string id), whether it is a parameter, and gradient.

    Args:
        ids: the ids of the leaves.
        leaves: the events that describe leaves.
        sampled: the `grad_stat` events of the backward pass.
    """
    plan, named, parameter = (joined(ids, leaves["leaf"], leaves[name]) for name in ("plan", "name", "parameter"))
    name, known = (joined(ids, sampled["node"], sampled[name]) for name in ("name", "parameter"))
    gradients = _gradients(sampled, *located(sampled["node"], ids, sort=True))
    return plan, np.where(named > 0, named, name), (parameter | known) > 0, gradients
