"""The tape of one backward pass: a graph of the differentiated ops, with times, saved bytes and gradient norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from flnb_telemetry import quantity, schema, tables
from flnb_telemetry.analysis import graph as graphs
from flnb_telemetry.analysis import passes, paths
from flnb_telemetry.analysis.levels import Group, Levels
from flnb_telemetry.extras import require
from flnb_telemetry.formats.tape_svg import tape_picture
from flnb_telemetry.safe_text import html_text, safe_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.analysis.graph import Graph, Table
    from flnb_telemetry.analysis.paths import Why
    from flnb_telemetry.intern import Catalog


class TapeNode(NamedTuple):
    """One op on the tape.

    `parents` are the ids of the nodes and leaves that the op read; ids of leaves are negative. Times are ns, `saved` is
    the number of bytes stored for the backward pass. `norm`, `bad` (number of NaN and Inf elements) and `numel` (number
    of all elements) describe the gradient of the op's output. `line` is the user's line ("file:line: source"). If the
    gradient was not measured, `norm` is None and `line` is "".
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
        """Return the node's known times as text: "forward 412 µs, backward 1.98 ms"."""
        times = {"forward": self.forward_ns, "backward": self.backward_ns}
        return ", ".join(f"{phase} {quantity.duration(ns)}" for phase, ns in times.items() if ns)


class TapeLeaf(NamedTuple):
    """A tensor on the tape that no op made: a parameter or an input. Its id is negative, as in `TapeNode.parents`."""

    id: int
    name: str
    parameter: bool
    shape: tuple[int, ...]
    norm: float | None
    bad: int
    plan: int


class Failure(NamedTuple):
    """The op whose error ended a forward pass.

    `got` has the shapes of the inputs, `expected` that of the result (None if unknown), `message` the error's text.
    """

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
    """Return the gradient norm in a row, None if it was not measured, and the number of NaN and Inf elements."""
    return (float(gradient.norm[row]) if gradient.seen[row] else None), int(gradient.bad[row])


@dataclass(frozen=True)
class Tape:
    """The graph of one backward pass; its nodes are in the order in which the ops ran forward.

    `index` is the number of the training step (-1 outside of steps), `t` the time at which the pass ended (s since the
    recording began), `truncated` the number of older nodes that are missing. `graph` has the nodes as columns, `levels`
    as a tree of modules. `table(kind)` returns the events from which the tape was made.
    """

    index: int
    t: float
    graph: Graph
    catalog: Catalog
    truncated: int
    table: Table
    other: Callable[[int], Tape]

    def step(self, index: int) -> Tape:
        """Return the tape of step number `index`; it has gradient norms only if they were measured in that step.

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
        """Return the failure that ended the forward pass, raised by the op of the last node; None if there was none."""
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
        """Return the pairs (parent id, node id), one for each tensor that a node read; leaves have negative ids."""
        graph = self.graph
        inner = graph.parent >= 0
        parent = np.empty_like(graph.parent)
        parent[inner] = graph.id[graph.parent[inner]]
        parent[~inner] = graph.leaf_id[-1 - graph.parent[~inner]]
        return list(zip(parent.tolist(), graph.id[graph.child].tolist(), strict=True))

    def summary(self, depth: int = 2) -> str:
        """Return a text table of the modules, `depth` levels deep: nodes, times, bytes saved, output, gradients.

        Equal blocks that follow each other are one line (×12), followed by the contents of the first block. Long
        sequences of ops are divided.
        """
        rows: list[tuple[str, ...]] = [("", "nodes", "forward", "backward", "saved", "output", "|grad|")]
        self._rows(rows, self.levels.root, depth, "")
        rows.append(self._row("in all", self.levels.root))
        return "\n".join(tables.lines(rows, "<>>>><>"))

    def _rows(self, rows: list[tuple[str, ...]], group: Group, depth: int, indent: str) -> None:
        """Append the summary's rows for the contents of a group to `rows`, `depth` levels deep.

        `indent` is the white space before the names of these rows.
        """
        items = self.levels.level(group).items
        for item in items[:1] if group.repeat else items:  # of equal blocks one
            if isinstance(item, int):
                rows.append(self._row(indent + self.nodes[item].op, Group("", "", "", item, item + 1)))
                continue
            rows.append(self._row(indent + item.name + (f" ×{item.repeat}" if item.repeat else ""), item))
            if depth > 1:
                self._rows(rows, item, depth - 1, indent + "  ")

    def _row(self, name: str, group: Group) -> tuple[str, ...]:
        """Return the summary's row for the nodes of a group; ``name`` is the text of the first column."""
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
        """Return how the loss's gradient reaches `x` (the path from the loss), or why it does not (a line of code).

        Of the lines that can cut a gradient, a recording has only those of `detach` and `no_grad`. `flnb.why` runs the
        function that computes the loss, and finds all such lines.

        Args:
            x: a Variable, the name of a leaf ("net.stem.weight", or the end of it if no other leaf has the same), a
                node of the tape, or a node's id.

        Raises:
            LookupError: no leaf, or more than one, has that name.
        """
        return paths.why(self, x)

    def to_networkx(self) -> Any:
        """Return the graph as a `networkx.DiGraph` with an edge from each node to the nodes that read its result.

        Nodes have the same ids as on the tape (those of leaves are negative), and as attributes the fields of
        `TapeNode` or `TapeLeaf` and a "kind": op, parameter or input. Needs networkx, of the extra "lab".
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
        if not len(self.nodes):
            return f"<pre>{html_text(repr(self))}</pre>"
        return f"{tape_picture(self.levels)}<pre>{html_text(self.summary())}</pre>"


def _line(node: TapeNode) -> str:
    """Return the line about a node in the repr of a tape."""
    norm = "" if node.norm is None else f"  |grad| {quantity.norm(node.norm)}"
    took = f"  {node.took}" if node.took else ""
    return f"  {node.op} {quantity.extents(node.shape)} {node.dtype}  {node.scope}".rstrip() + took + norm


def of(table: Table, start: int, catalog: Catalog, index: int | None = None) -> Tape:
    """Make the tape of a training step or, by default, of the backward pass that is most worth showing.

    The default is the pass that `worth_showing` returns. Without measured gradients, or if a later op failed, it is the
    last forward pass.

    Args:
        table: returns the columns of a kind of events, as `Recording.table` does.
        start: the beginning of the recording, ns.
        catalog: the names behind the ids in records.
        index: the number of a step; None for the default.

    Raises:
        LookupError: there is no such step.
    """
    ops, stats, steps = graphs.acts(table), table("grad_stat"), table("step")
    found = passes.measured(stats, table("walk"))
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
        shown = passes.worth_showing(found)
        t, root, rows = shown.t1, shown.root, shown.rows
        origin = passes.origin(shown, table("nan_origin"))
        around = steps["index"][(steps["t0"] <= t) & (t <= steps["t1"])]
        index = int(around[-1]) if len(around) else None
    sampled = {name: column[rows] for name, column in stats.items()}
    graph, truncated = graphs.read(table, ops, sampled, root, catalog, failed, origin)
    other = partial(of, table, start, catalog)
    return Tape(-1 if index is None else index, (t - start) / 1e9, graph, catalog, truncated, table, other)


def _failed(
    ops: schema.Columns, stats: schema.Columns, failures: schema.Columns, catalog: Catalog
) -> dict[str, int] | None:
    """Return the record of the op that last raised an error; None if nodes or gradients are newer than the error.

    The added field "since" is the time (ns) at which the last backward pass ended.

    Args:
        ops: the op events.
        stats: the `grad_stat` events, one for each measured gradient.
        failures: the events of ops that raised an error.
        catalog: the names behind the ids in records.
    """
    if not len(failures["t"]):
        return None
    found = {name: int(column[-1]) for name, column in failures.items()}
    made = (ops["node"] > 0) & ((ops["parent0"] != 0) | (ops["parent1"] != 0))
    back = catalog.phase[ops["context"]] == schema.BACKWARD
    if (ops["t0"][made & ~back] > found["t"]).any() or (stats["t"] > found["t"]).any():
        return None
    return found | {"since": int(ops["t1"][back].max(initial=0))}
