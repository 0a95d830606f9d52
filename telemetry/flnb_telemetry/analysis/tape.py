"""The tape of one backward pass: the graph of the differentiated ops with times, saved bytes and gradient norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from flnb_telemetry import quantity, schema, tables
from flnb_telemetry.analysis import graph as graphs
from flnb_telemetry.analysis import paths
from flnb_telemetry.analysis.levels import Group, Levels
from flnb_telemetry.extras import require
from flnb_telemetry.safe_text import html_text, safe_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.analysis.graph import Graph, Table
    from flnb_telemetry.analysis.paths import Why
    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.schema import Ints


class TapeNode(NamedTuple):
    """One op on the tape.

    `parents` are the ids of the nodes and leaves that it read (leaves negative), times are in ns, `saved` is the bytes
    stored for the backward pass. `norm`, `bad` (elements that are NaN or Inf) and `numel` are those of the gradient
    that arrived at its output, and `line` ("file:line: source") is the user's line; without a measured gradient `norm`
    is None and `line` is "".
    """

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
    line: str = ""

    @property
    def took(self) -> str:
        """Return the known times as text: "forward 412 µs, backward 1.98 ms"."""
        times = {"forward": self.forward_ns, "backward": self.backward_ns}
        return ", ".join(f"{phase} {quantity.duration(ns)}" for phase, ns in times.items() if ns)


class TapeLeaf(NamedTuple):
    """A tensor on the tape that no op made, a parameter or an input. Its id is negative, as in `TapeNode.parents`."""

    id: int
    name: str
    parameter: bool
    shape: tuple[int, ...]
    norm: float | None
    bad: int
    plan: int


class Failure(NamedTuple):
    """The op whose error ended a forward pass: the shapes it got, that of its result (None if unknown), the message."""

    node: int
    op: str
    got: tuple[tuple[int, ...], ...]
    expected: tuple[int, ...] | None
    message: str

    def __str__(self) -> str:
        got = " and ".join(map(quantity.extents, self.got))
        gives = "" if self.expected is None else f", expected to return {quantity.extents(self.expected)}"
        return f"{self.op} of {got}{gives}: {self.message}"


class Nodes(Sequence[TapeNode]):
    """The nodes of a tape, in the order in which they ran; each `TapeNode` is created when it is accessed."""

    def __init__(self, graph: Graph, catalog: Catalog) -> None:
        self._graph, self._catalog = graph, catalog

    def __len__(self) -> int:
        return len(self._graph)

    @overload
    def __getitem__(self, at: int) -> TapeNode: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[TapeNode, ...]: ...
    def __getitem__(self, at: int | slice) -> TapeNode | tuple[TapeNode, ...]:
        rows = range(len(self))[at]
        return self._made(rows) if isinstance(rows, int) else tuple(map(self._made, rows))

    def _made(self, row: int) -> TapeNode:
        graph, catalog = self._graph, self._catalog
        plan, context = int(graph.plan[row]), int(graph.context[row])
        about = catalog.plans.items[plan]
        return TapeNode(
            int(graph.id[row]), about.op, about.family, about.shape, about.dtype, catalog.contexts.items[context].scope,
            tuple(graph.parents(row)), int(graph.forward[row]), int(graph.backward[row]), int(graph.saved[row]),
            *_gradient(graph.gradient, row), int(graph.gradient.numel[row]), plan, context,
            "" if graph.line is None else catalog.strings.items[int(graph.line[row])],
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<{len(self)} tape nodes>"


def _gradient(gradient: graphs.Gradients, row: int) -> tuple[float | None, int]:
    """Return the norm of a row's gradient (None if not measured) and the number of its NaN and Inf elements."""
    return (float(gradient.norm[row]) if gradient.seen[row] else None), int(gradient.bad[row])


@dataclass(frozen=True)
class Tape:
    """The graph of one backward pass; its nodes are in the order in which the ops ran forward.

    `index` is the number of the step (-1 outside of any), `t` the time in seconds, `truncated` the number of older
    nodes that are missing. `graph` holds the nodes as columns, `levels` as a tree of modules; `table(kind)` returns
    the events that the tape was made from.
    """

    index: int
    t: float
    graph: Graph
    catalog: Catalog
    truncated: int
    table: Table
    other: Callable[[int], Tape]

    def step(self, index: int) -> Tape:
        """Return the tape of another step; it has gradient norms if these were measured in that step.

        Raises:
            LookupError: the recording has no such step.
        """
        return self.other(index)

    @cached_property
    def nodes(self) -> Nodes:
        """Return the ops on the tape, in the order in which they ran."""
        return Nodes(self.graph, self.catalog)

    @cached_property
    def failure(self) -> Failure | None:
        """Return the error that ended the forward pass, raised by the op of the last node; None if there was none."""
        if not self.graph.failed:
            return None
        last = self.nodes[-1]
        plan = self.catalog.plans.items[last.plan]
        message = self.catalog.strings.items[self.graph.failed]
        return Failure(last.id, last.op, plan.inputs, last.shape if last.shape else None, message)

    @cached_property
    def leaves(self) -> tuple[TapeLeaf, ...]:
        """Return the tensors on the tape that no op made: parameters and inputs."""
        graph, found = self.graph, []
        columns = (graph.leaf_id, graph.leaf_plan, graph.leaf_name, graph.leaf_parameter)
        for row, (number, plan, name, parameter) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            shape = self.catalog.plans.items[plan].shape
            norm, bad = _gradient(graph.leaf_gradient, row)
            found.append(TapeLeaf(number, self.catalog.strings.items[name], parameter, shape, norm, bad, plan))
        return tuple(found)

    @cached_property
    def levels(self) -> Levels:
        """Return the nodes as a tree of modules, repeated blocks and parts of long sequences."""
        return Levels(self.graph, self.catalog)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Return pairs (parent id, node id), one for each tensor that a node read; ids of leaves are negative."""
        graph = self.graph
        inner = graph.parent >= 0
        parent = np.empty_like(graph.parent)
        parent[inner] = graph.id[graph.parent[inner]]
        parent[~inner] = graph.leaf_id[-1 - graph.parent[~inner]]
        return list(zip(parent.tolist(), graph.id[graph.child].tolist(), strict=True))

    def summary(self, depth: int = 2) -> str:
        """Return a table of the modules, `depth` levels deep, as text: nodes, times, bytes saved, output, gradients.

        Equal blocks in sequence are one line (×12), with the first of them below; long sequences of ops are divided.
        """
        rows: list[tuple[str, ...]] = [("", "nodes", "forward", "backward", "saved", "output", "|grad|")]
        self._rows(rows, self.levels.root, depth, "")
        rows.append(self._row("in all", self.levels.root))
        return "\n".join(tables.lines(rows, "<>>>><>"))

    def _rows(self, rows: list[tuple[str, ...]], group: Group, depth: int, indent: str) -> None:
        """Append the summary's rows for the contents of a group."""
        items = self.levels.level(group).items
        for item in items[:1] if group.repeat else items:  # of equal blocks one
            if isinstance(item, int):
                rows.append(self._row(indent + self.nodes[item].op, Group("", "", "", item, item + 1)))
                continue
            rows.append(self._row(indent + item.name + (f" ×{item.repeat}" if item.repeat else ""), item))
            if depth > 1:
                self._rows(rows, item, depth - 1, indent + "  ")

    def _row(self, name: str, group: Group) -> tuple[str, ...]:
        """Return the summary's row for the nodes of a group."""
        part = slice(group.first, group.last)
        ns = [int(column[part].sum()) for column in (self.graph.forward, self.graph.backward)]
        times = [quantity.duration(n) if n else "–" for n in ns]
        saved = int(self.graph.saved[part].sum())
        count = quantity.count(group.last - group.first)
        if group.first == group.last:
            return (name, count, *times, quantity.size(saved), "", "")
        last = self.nodes[group.last - 1]
        norm = "–" if last.norm is None else quantity.norm(last.norm)
        return (name, count, *times, quantity.size(saved), f"{quantity.extents(last.shape)} {last.dtype}", norm)

    def why(self, x: Any) -> Why:
        """Explain how the loss's gradient reaches x, by the path from the loss, or why not, by a line of code.

        The recording knows the lines of `detach` and `no_grad` only; `flnb.why` runs the function that computes the
        loss and knows all.

        Args:
            x: a Variable, the name of a leaf ("net.stem.weight", or its end if no other leaf has the same), a node of
                the tape, or a node's number.

        Raises:
            LookupError: no leaf, or more than one, has that name.
        """
        return paths.why(self, x)

    def to_networkx(self) -> Any:
        """Return the graph as a `networkx.DiGraph` with an edge from each node to the nodes that read its result.

        Nodes have the ids of the tape (leaves negative), the fields of `TapeNode` or `TapeLeaf`, and a "kind": op,
        parameter or input. Needs networkx, of the extra "lab".
        """
        made = require("networkx", "lab", "a tape as a networkx graph").DiGraph(name=f"tape of step {self.index}")
        for node in self.nodes:
            made.add_node(node.id, kind="op", **node._asdict())
        for leaf in self.leaves:
            made.add_node(leaf.id, kind="parameter" if leaf.parameter else "input", **leaf._asdict())
        made.add_edges_from(self.edges)
        return made

    def __repr__(self) -> str:
        if not len(self.nodes):
            inside = "a program of flnb.jit computes its gradients inside"
            return f"no tape: nothing was differentiated op by op while this was recorded; {inside}"
        when = f"step {self.index}" if self.index >= 0 else f"{self.t:.3f} s"
        graph = self.graph
        lines = [
            f"tape of {when}: {len(self.nodes)} ops, {len(graph.leaf_id)} leaves, "
            f"{quantity.size(int(graph.saved.sum()))} saved"
        ]
        lines += [_line(node) for node in self.nodes[:12]]
        if len(self.nodes) > 12:
            lines.append(
                f"  ... and {len(self.nodes) - 12 + self.truncated} more; run.tape.summary() lists them by module"
            )
        if self.failure is not None:
            lines.append(f"failed: {self.failure}")
        bad = sum(int(np.count_nonzero(gradient.bad)) for gradient in (graph.gradient, graph.leaf_gradient))
        if bad:
            where = "where it begins was not measured"
            if graph.origin >= 0:
                node = self.nodes[graph.origin]
                where = f"begins at {node.op} {node.scope}".rstrip()
            lines.append(f"NaN or Inf in {bad} gradients, {where}")
        return safe_lines("\n".join(lines))

    def _repr_html_(self) -> str:
        return f"<pre>{html_text(self.summary() if len(self.nodes) else repr(self))}</pre>"


def _line(node: TapeNode) -> str:
    """Return the line of a tape's repr for one node."""
    norm = "" if node.norm is None else f"  |grad| {quantity.norm(node.norm)}"
    took = f"  {node.took}" if node.took else ""
    return f"  {node.op} {quantity.extents(node.shape)} {node.dtype}  {node.scope}".rstrip() + took + norm


def of(table: Table, start: int, catalog: Catalog, index: int | None = None) -> Tape:
    """Make the tape of a step; by default of the backward pass that `worth_showing` returns, else of the last forward.

    Args:
        table: returns the columns of a kind of events, as `Recording.table` does.
        start: the beginning of the recording, ns.
        catalog: the names behind the ids in records.
        index: the number of a step.

    Raises:
        LookupError: there is no such step.
    """
    ops, stats, steps = graphs.acts(table), table("grad_stat"), table("step")
    found = measured(stats, table("walk"))
    if index is not None:
        where = np.flatnonzero(steps["index"] == index)
        if not len(where):
            known = f"{steps['index'].min()} to {steps['index'].max()}" if len(steps["index"]) else "no steps"
            raise LookupError(f"run.tape: no step {index} in this recording; it has {known}")
        t0, t1 = steps["t0"][where[-1]], steps["t1"][where[-1]]
        found = [one for one in found if t0 <= one.t0 <= t1]
        if not found:  # gradients were not measured: the graph has no norms
            ops = {name: column[(ops["t0"] >= t0) & (ops["t1"] <= t1)] for name, column in ops.items()}
    t, root, origin, rows = start, 0, 0, np.empty(0, np.int64)
    failed = _failed(ops, stats, table("op_failed"), catalog) if index is None else None
    if failed is not None:
        t, since = failed["t"], failed["since"]
        ops = {name: column[(ops["t0"] > since) & (ops["t0"] <= t)] for name, column in ops.items()}
    elif found:
        shown = worth_showing(found)
        t, root, rows = shown.t1, shown.root, shown.rows
        origin = _origin(shown, table("nan_origin"))
        around = steps["index"][(steps["t0"] <= t) & (t <= steps["t1"])]
        index = int(around[-1]) if len(around) else None
    sampled = {name: column[rows] for name, column in stats.items()}
    graph, truncated = graphs.read(table, ops, sampled, root, catalog, failed, origin)
    other = partial(of, table, start, catalog)
    return Tape(-1 if index is None else index, (t - start) / 1e9, graph, catalog, truncated, table, other)


def _failed(
    ops: schema.Columns, stats: schema.Columns, failures: schema.Columns, catalog: Catalog
) -> dict[str, int] | None:
    """Return the record of the op that last raised an error, unless newer nodes exist.

    "since" in it is the time (ns) at which the last backward pass before it ended.
    """
    if not len(failures["t"]):
        return None
    found = {name: int(column[-1]) for name, column in failures.items()}
    made = (ops["node"] > 0) & ((ops["parent0"] != 0) | (ops["parent1"] != 0))
    back = catalog.phase[ops["context"]] == schema.BACKWARD
    if (ops["t0"][made & ~back] > found["t"]).any() or (stats["t"] > found["t"]).any():
        return None
    return found | {"since": int(ops["t1"][back].max(initial=0))}


class Measured(NamedTuple):
    """A backward pass whose gradients were measured.

    It ran from `t0` to `t1` (ns) in the thread with the number `lane`, beginning at the node with the id `root`. `rows`
    are its rows in the table of `grad_stat` events; `bad` is True if a gradient has NaN or Inf.
    """

    t0: int
    t1: int
    lane: int
    root: int
    rows: Ints
    bad: bool


def measured(stats: schema.Columns, walks: schema.Columns) -> list[Measured]:
    """Return the backward passes whose gradients were measured, in order of time.

    Each begins with a `walk` event and has the `grad_stat` events of its thread until the next `walk`.

    Args:
        stats: the columns of the `grad_stat` events, one for each measured gradient.
        walks: the columns of the `walk` events.
    """
    found = []
    for lane in np.unique(walks["lane"]).tolist():
        rows, own = (np.flatnonzero(table["lane"] == lane) for table in (stats, walks))
        ends = np.searchsorted(stats["t"][rows], walks["t"][own])
        for walk, part in zip(own.tolist(), np.split(rows, ends)[1:], strict=True):
            if len(part):
                t0, root = int(walks["t"][walk]), int(walks["node"][walk])
                bad = bool((stats["bad"][part] > 0).any())
                found.append(Measured(t0, int(stats["t"][part[-1]]), lane, root, part, bad))
    return sorted(found, key=lambda one: one.t0)


def _origin(shown: Measured, origins: schema.Columns) -> int:
    """Return the id of the node where NaN or Inf first appeared in a backward pass, 0 if none is recorded."""
    own = (origins["lane"] == shown.lane) & (shown.t0 <= origins["t"]) & (origins["t"] <= shown.t1)
    return int(origins["node"][own].max(initial=0))


def worth_showing(found: list[Measured]) -> Measured:
    """Return the last backward pass, or the first of the latest consecutive ones with NaN or Inf, if any had these."""
    bad = [i for i, one in enumerate(found) if one.bad]
    if not bad:
        return found[-1]
    first = bad[-1]
    while first > 0 and found[first - 1].bad:
        first -= 1
    return found[first]
