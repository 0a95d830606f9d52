"""The tape of one backward: a graph of what was differentiated, with times, saved bytes and gradient norms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import quantity, schema
from flnb_telemetry.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from flnb_telemetry.catalog import Catalog

LIMIT = 5000


class TapeNode(NamedTuple):
    """One op on the tape. Times in ns, saved in bytes; norm is None where the gradient was not sampled."""

    id: int
    op: str
    family: str
    shape: tuple[int, ...]
    dtype: str
    scope: str
    parents: tuple[int, ...]
    forward_ns: int
    backward_ns: int
    saved: int
    norm: float | None
    bad: int
    numel: int
    plan: int
    context: int


class TapeLeaf(NamedTuple):
    """A Variable that no op made: its id is negative, as parents name it."""

    id: int
    name: str
    parameter: bool
    shape: tuple[int, ...]
    norm: float | None
    bad: int
    plan: int


@dataclass(frozen=True, slots=True)
class Tape:
    """The graph of one backward, nodes in the order in which they ran forward.

    `index` is the step (-1: outside of any) and t the time in seconds; `truncated` counts older nodes left out.
    """

    index: int
    t: float
    nodes: tuple[TapeNode, ...]
    leaves: tuple[TapeLeaf, ...]
    truncated: int = 0
    other: Callable[[int], Tape] | None = None

    def step(self, index: int) -> Tape:
        """The tape of another step of the same recording; norms are there if its backward was sampled."""
        if self.other is None:
            raise LookupError("this tape belongs to no recording; take it from run.tape")
        return self.other(index)

    def joined(self, other: Callable[[int], Tape]) -> Tape:
        """This tape with the way to those of other steps."""
        return replace(self, other=other)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """(parent, node) for every edge between things that are in the graph."""
        known = {node.id for node in self.nodes} | {leaf.id for leaf in self.leaves}
        return [(parent, node.id) for node in self.nodes for parent in node.parents if parent in known]

    def to_networkx(self) -> Any:
        """A `networkx.DiGraph` with the fields as node attributes."""
        graph = require("networkx", "lab", "a graph object").DiGraph()
        for node in self.nodes:
            graph.add_node(node.id, **node._asdict())
        for leaf in self.leaves:
            graph.add_node(leaf.id, **leaf._asdict())
        graph.add_edges_from(self.edges)
        return graph

    def __repr__(self) -> str:
        if not self.nodes:
            return "no tape: nothing was differentiated while this was recorded"
        when = f"step {self.index}" if self.index >= 0 else f"{self.t:.3f} s"
        bad = [node for node in self.nodes if node.bad]
        lines = [
            f"tape of {when}: {len(self.nodes)} ops, {len(self.leaves)} leaves, "
            f"{quantity.size(sum(node.saved for node in self.nodes))} saved"
        ]
        lines += [_line(node) for node in self.nodes[:12]]
        if len(self.nodes) > 12:
            lines.append(f"  ... and {len(self.nodes) - 12 + self.truncated} more; flnb.plot.tape(run) draws it")
        if bad:
            lines.append(
                f"NaN or Inf in {len(bad)} gradients, first in backward: {bad[-1].op} {bad[-1].scope}".rstrip()
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def _line(node: TapeNode) -> str:
    shape = "×".join(map(str, node.shape)) or "scalar"
    norm = "" if node.norm is None else f"  |grad| {quantity.significant(node.norm)}"
    return f"  {node.op} {shape} {node.dtype}  {node.scope}{norm}".rstrip()


def groups(stats: schema.Columns, lane: NDArray[Any]) -> list[NDArray[np.int64]]:
    """Row numbers of each sampled backward, in order of time.

    A backward walks down the sequence numbers, so within a thread a larger number than all before begins the next.
    """
    found: list[NDArray[np.int64]] = []
    for number in np.unique(lane):
        rows = np.flatnonzero(lane == number)
        node = stats["node"][rows]
        before = np.maximum.accumulate(np.where(node > 0, node, 0))
        fresh = np.flatnonzero((node[1:] > before[:-1]) & (before[:-1] > 0)) + 1
        found += np.split(rows, fresh) if len(rows) else []
    return sorted(found, key=lambda rows: int(stats["t"][rows[0]]))


def build(
    ops: schema.Columns,
    edges: schema.Columns,
    leaves: schema.Columns,
    stats: schema.Columns,
    catalog: Catalog,
    *,
    index: int = -1,
    t: float = 0.0,
    limit: int = LIMIT,
) -> Tape:
    """The graph of the nodes in `stats` (one sampled backward), or without any of the last thing differentiated."""
    ids, parents = _nodes(ops, edges, stats["node"])
    truncated = max(0, len(ids) - limit)
    ids = ids[truncated:]  # the latest are nearest to the loss
    if not len(ids):
        return Tape(index, t, (), (), 0)
    own, forward, backward = _times(ops, ids, catalog)
    row_of = dict(zip(stats["node"].tolist(), range(len(stats["node"])), strict=True))

    nodes = []
    for i, number in enumerate(ids.tolist()):
        plan, context = (int(ops[name][own[i]]) if own[i] >= 0 else 0 for name in ("plan", "context"))
        gradient: tuple[int, float | None, int, int] = (0, None, 0, 0)
        if (row := row_of.get(number)) is not None:
            gradient = (
                int(stats["saved"][row]),
                float(stats["norm"][row]),
                int(stats["bad"][row]),
                int(stats["numel"][row]),
            )
            plan = int(stats["plan"][row]) or plan  # a composite's, where the op records are those of its body
        about, scope = catalog.plans.items[plan], catalog.contexts.items[context].scope
        times, above = (int(forward[i]), int(backward[i])), tuple(dict.fromkeys(parents.get(number, ())))
        head = (number, about.op, about.family, about.shape, about.dtype, scope, above, *times)
        nodes.append(TapeNode(*head, *gradient, plan, context))
    below = {parent for node in nodes for parent in node.parents if parent < 0} | {n for n in row_of if n < 0}
    return Tape(index, t, tuple(nodes), _leaves(below, leaves, stats, row_of, catalog), truncated)


def _nodes(
    ops: schema.Columns, edges: schema.Columns, sampled: NDArray[np.int64]
) -> tuple[NDArray[np.int64], dict[int, list[int]]]:
    """The nodes of the graph in order, and the parents of each: the sampled ones, or all that the last one needs."""
    made = np.flatnonzero((ops["node"] > 0) & ((ops["parent0"] != 0) | (ops["parent1"] != 0)))
    pairs = [(ops["node"][made], ops[name][made]) for name in ("parent0", "parent1")]
    pairs += [(edges["node"], edges[f"parent{i}"]) for i in range(2, 7)]
    child, parent = (np.concatenate(column) for column in zip(*pairs, strict=True))
    wanted = np.unique(sampled[sampled > 0])
    keep = (parent != 0) & (np.isin(child, wanted) if len(wanted) else True)
    parents: dict[int, list[int]] = {}
    for node, above in zip(child[keep].tolist(), parent[keep].tolist(), strict=True):
        parents.setdefault(node, []).append(above)
    if not len(wanted) and parents:
        reached, waiting = set(), [max(parents)]
        while waiting:
            node = waiting.pop()
            if node > 0 and node not in reached:
                reached.add(node)
                waiting += parents.get(node, ())
        wanted = np.array(sorted(reached), np.int64)
    return wanted, parents


def _times(
    ops: schema.Columns, ids: NDArray[np.int64], catalog: Catalog
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For each node the row of the op that made it (-1: not seen), ns forward and ns backward.

    A composite's inner ops work for the composite's node; those within the time of its own record count once.
    """
    slot = np.minimum(np.searchsorted(ids, ops["node"]), len(ids) - 1)
    rows = np.flatnonzero(ids[slot] == ops["node"])
    slot = slot[rows]
    back = catalog.phases({name: ops[name][rows] for name in ("context", "node")}) == schema.BACKWARD
    spent = ops["t1"][rows] - ops["t0"][rows]
    own = np.full(len(ids), -1, np.int64)
    ahead = rows[~back]
    own[slot[~back]] = ahead
    made = (ops["parent0"][ahead] != 0) | (ops["parent1"][ahead] != 0)
    own[slot[~back][made]] = ahead[made]  # the one that names parents is the node's own
    mine = own[slot]
    within = (ops["t0"][rows] >= ops["t0"][mine]) & (ops["t1"][rows] <= ops["t1"][mine]) & (rows != mine) & (mine >= 0)
    forward = np.bincount(slot, np.where(back | within, 0, spent), len(ids)).astype(np.int64)
    backward = np.bincount(slot, np.where(back, spent, 0), len(ids)).astype(np.int64)
    return own, forward, backward


def _leaves(
    numbers: set[int], leaves: schema.Columns, stats: schema.Columns, row_of: dict[int, int], catalog: Catalog
) -> tuple[TapeLeaf, ...]:
    told = dict(zip(leaves["leaf"].tolist(), range(len(leaves["leaf"])), strict=True))
    found = []
    for number in sorted(numbers, reverse=True):
        row, sampled = told.get(number), row_of.get(number)
        plan = int(leaves["plan"][row]) if row is not None else 0
        name = int(leaves["name"][row]) if row is not None else 0
        parameter = bool(leaves["parameter"][row]) if row is not None else False
        norm, bad = None, 0
        if sampled is not None:
            norm, bad = float(stats["norm"][sampled]), int(stats["bad"][sampled])
            name = name or int(stats["name"][sampled])
            parameter = parameter or bool(stats["parameter"][sampled])
        found.append(
            TapeLeaf(number, catalog.strings.items[name], parameter, catalog.plans.items[plan].shape, norm, bad, plan)
        )
    return tuple(found)
