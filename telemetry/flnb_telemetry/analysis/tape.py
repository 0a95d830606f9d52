"""The tape of one backward: a graph of what was differentiated, with times, saved bytes and gradient norms."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from flnb_telemetry import quantity, schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.schema import Ints

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

    @property
    def took(self) -> str:
        """The times that were seen, as text: forward 412 µs, backward 1.98 ms."""
        times = {"forward": self.forward_ns, "backward": self.backward_ns}
        return ", ".join(f"{phase} {quantity.duration(ns)}" for phase, ns in times.items() if ns)


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
    truncated: int
    other: Callable[[int], Tape]

    def step(self, index: int) -> Tape:
        """The tape of another step of the same recording; norms are there if its backward was sampled."""
        return self.other(index)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """(parent, node) for every edge between things that are in the graph."""
        known = {node.id for node in self.nodes} | {leaf.id for leaf in self.leaves}
        return [(parent, node.id) for node in self.nodes for parent in node.parents if parent in known]

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
    norm = "" if node.norm is None else f"  |grad| {quantity.norm(node.norm)}"
    took = f"  {node.took}" if node.took else ""
    return f"  {node.op} {quantity.extents(node.shape)} {node.dtype}  {node.scope}".rstrip() + took + norm


def of(
    table: Callable[[str], schema.Columns], start: int, catalog: Catalog, index: int | None = None, limit: int = LIMIT
) -> Tape:
    """The tape of a step, or without `index` of the last sampled backward, or without any of what was last on tape.

    `table` gives the columns of a kind, as `Recording.table` does; times count from `start`. Of a longer tape the
    `limit` nodes nearest to the loss are taken. A step that is not there is a `LookupError`.
    """
    ops, stats, steps = table("op"), table("grad_stat"), table("step")
    groups = _groups(stats)
    if index is not None:
        where = np.flatnonzero(steps["index"] == index)
        if not len(where):
            known = f"{steps['index'].min()} to {steps['index'].max()}" if len(steps["index"]) else "no steps"
            raise LookupError(f"run.tape: no step {index} in this recording; it has {known}")
        t0, t1 = steps["t0"][where[-1]], steps["t1"][where[-1]]
        groups = [rows for rows in groups if t0 <= stats["t"][rows[0]] <= t1]
        if not groups:  # not sampled: the graph is there all the same, without norms
            ops = {name: column[(ops["t0"] >= t0) & (ops["t1"] <= t1)] for name, column in ops.items()}
    sampled: Samples = defaultdict(_Sample)
    t = start
    if groups:
        last = {name: column[groups[-1]] for name, column in stats.items()}
        sampled |= {node: _Sample(*rest) for node, *rest in schema.tuples(last, "node", *_Sample._fields)}
        t = int(last["t"][-1])
        around = steps["index"][(steps["t0"] <= t) & (t <= steps["t1"])]
        index = int(around[-1]) if len(around) else None
    ids, parents = _nodes(ops, table("edge"), np.array([node for node in sampled if node > 0], np.int64))
    truncated, ids = max(0, len(ids) - limit), ids[-limit:]
    nodes = _made(ids, parents, ops, sampled, catalog) if len(ids) else ()
    below = {number for node in nodes for number in node.parents if number < 0} | {n for n in sampled if n < 0}
    leaves = _leaves(sorted(below, reverse=True), table("leaf"), sampled, catalog) if nodes else ()
    other = partial(of, table, start, catalog)
    return Tape(-1 if index is None else index, (t - start) / 1e9, nodes, leaves, truncated, other)


class _Sample(NamedTuple):
    """What `grad_stat` said of a node or leaf."""

    norm: float | None = None
    bad: int = 0
    numel: int = 0
    name: int = 0
    saved: int = 0
    parameter: int = 0
    plan: int = 0


Samples: TypeAlias = "defaultdict[int, _Sample]"
Parents: TypeAlias = "defaultdict[int, list[int]]"


def _groups(stats: schema.Columns) -> list[Ints]:
    """Row numbers of each sampled backward, in order of time.

    A backward walks down the sequence numbers, so within a thread a larger number than all before begins the next.
    """
    found: list[Ints] = []
    for number in np.unique(stats["lane"]):
        rows = np.flatnonzero(stats["lane"] == number)
        node = stats["node"][rows]
        before = np.maximum.accumulate(np.maximum(node, 0))
        fresh = np.flatnonzero((node[1:] > before[:-1]) & (before[:-1] > 0)) + 1
        found += np.split(rows, fresh)
    return sorted(found, key=lambda rows: int(stats["t"][rows[0]]))


def _nodes(ops: schema.Columns, edges: schema.Columns, sampled: Ints) -> tuple[Ints, Parents]:
    """The nodes of the graph in order, and the parents of each: the sampled ones, or all that the last one needs."""
    made = np.flatnonzero((ops["node"] > 0) & ((ops["parent0"] != 0) | (ops["parent1"] != 0)))
    pairs = [(ops["node"][made], ops[name][made]) for name in ("parent0", "parent1")]
    pairs += [(edges["node"], edges[f"parent{i}"]) for i in range(2, 7)]
    child, parent = (np.concatenate(column) for column in zip(*pairs, strict=True))
    keep = (parent != 0) & (np.isin(child, sampled) if len(sampled) else True)
    parents: Parents = defaultdict(list)
    for node, above in zip(child[keep].tolist(), parent[keep].tolist(), strict=True):
        parents[node].append(above)
    reached, waiting = set(sampled.tolist()), [] if len(sampled) or not parents else [max(parents)]
    while waiting:
        node = waiting.pop()
        if node > 0 and node not in reached:
            reached.add(node)
            waiting += parents[node]
    return np.array(sorted(reached), np.int64), parents


def _made(ids: Ints, parents: Parents, ops: schema.Columns, sampled: Samples, catalog: Catalog) -> tuple[TapeNode, ...]:
    own, forward, backward = _times(ops, ids, catalog)
    columns = {"id": ids, "forward": forward, "backward": backward}
    columns |= {name: np.append(ops[name], 0)[own] for name in ("plan", "context")}
    nodes = []
    for number, ahead, back, kind, context in schema.tuples(columns, *columns):
        sample = sampled[number]
        plan = sample.plan or kind  # a composite's, where the op records are those of its body
        about = (*catalog.plans.items[plan][:4], catalog.contexts.items[context].scope)
        above = tuple(dict.fromkeys(parents[number]))
        gradient = (sample.saved, sample.norm, sample.bad, sample.numel)
        nodes.append(TapeNode(number, *about, above, ahead, back, *gradient, plan, context))
    return tuple(nodes)


def _times(ops: schema.Columns, ids: Ints, catalog: Catalog) -> tuple[Ints, Ints, Ints]:
    """For each node the row of the op that made it (-1: not seen), ns forward and ns backward.

    A composite's inner ops work for the composite's node; those within the time of its own record count once.
    """
    slot = np.minimum(np.searchsorted(ids, ops["node"]), len(ids) - 1)
    rows = np.flatnonzero(ids[slot] == ops["node"])
    slot = slot[rows]
    t0, t1, first, second, context = (ops[name][rows] for name in ("t0", "t1", "parent0", "parent1", "context"))
    back, made = catalog.phase[context] == schema.BACKWARD, (first != 0) | (second != 0)
    own = np.full(len(ids), -1, np.int64)
    for ahead in (~back, ~back & made):  # the one that names parents is the node's own
        own[slot[ahead]] = np.flatnonzero(ahead)
    mine = own[slot]
    within = (t0 >= t0[mine]) & (t1 <= t1[mine]) & (np.arange(len(rows)) != mine) & (mine >= 0)
    forward = np.bincount(slot, np.where(back | within, 0, t1 - t0), len(ids)).astype(np.int64)
    backward = np.bincount(slot, np.where(back, t1 - t0, 0), len(ids)).astype(np.int64)
    return np.append(rows, -1)[own], forward, backward


def _leaves(numbers: list[int], leaves: schema.Columns, sampled: Samples, catalog: Catalog) -> tuple[TapeLeaf, ...]:
    told = {leaf: about for leaf, *about in schema.tuples(leaves, "leaf", "plan", "name", "parameter")}
    found = []
    for number in numbers:
        plan, name, parameter = told.get(number, (0, 0, 0))
        sample = sampled[number]
        text, shape = catalog.strings.items[name or sample.name], catalog.plans.items[plan].shape
        is_parameter = bool(parameter or sample.parameter)
        found.append(TapeLeaf(number, text, is_parameter, shape, sample.norm, sample.bad, plan))
    return tuple(found)
