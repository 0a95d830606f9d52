"""`flnb.plot.tape`: the tape, the record of ops for a backward pass, drawn as a graph by graphviz."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import palette, quantity
from flnb_telemetry.analysis.tape import Tape, TapeLeaf, TapeNode
from flnb_telemetry.extras import require
from flnb_telemetry.run import expect_recording
from flnb_telemetry.safe_text import WHOLE, html_text, safe_lines

if TYPE_CHECKING:
    from flnb_telemetry import Recording
    from flnb_telemetry.analysis.levels import Group

LONGEST = 80  # characters of a line in a label
NODES = 1500
INK = "#6f757b"
LOOK = {"fontname": "sans-serif", "bgcolor": "transparent", "labeljust": "l"}  # at the left, where fewer edges cross it


def tape(run: Recording | Tape, depth: int | None = None) -> Any:
    """Draw a tape, the ops that a backward pass went through, as a `graphviz.Digraph` with modules as boxes.

    Args:
        run: a tape such as `run.tape.step(i)`, or a recording, whose last recorded tape is drawn.
        depth: modules nested deeper than this are drawn as one node each, and equal modules in a row as one node for
            all (×12). By default all modules are drawn open, up to about 1500 nodes.

    The result's attribute ``source`` needs no other software. Drawing it needs graphviz's `dot` program; if that is
    missing, an error says how to install it.

    Raises:
        TypeError: ``run`` is neither a tape nor a recording.
        ValueError: ``depth`` is not an integer of 0 or more.
        ImportError: graphviz's Python package, of the extra "lab", is missing.

    >>> import flnb
    >>> w = flnb.Variable([1.0, 2.0])
    >>> with flnb.record() as run:
    ...     (w * w).sum().backward()
    >>> "multiply" in flnb.plot.tape(run).source
    True
    """
    if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 0):
        raise ValueError(f"flnb.plot.tape: got depth={depth!r}; expected a number of levels, 0 or more, or None")
    found: Tape = run if isinstance(run, Tape) else expect_recording("flnb.plot.tape", run).tape
    graph = digraph("flnb.plot.tape")(name="tape", graph_attr=LOOK)
    graph.attr("node", shape="box", style="filled,rounded", fontname="sans-serif", fontsize="10", fontcolor="white")
    graph.attr("edge", color=INK)
    drawing = _Drawing(found, depth)
    if len(found.nodes):
        drawing.level(graph, found.levels.root, 0)
        drawing.rest(graph)
    notes = [f"{found.truncated} older nodes not drawn"] if found.truncated else []
    if notes + drawing.closed:
        graph.attr(label="\n".join(notes + drawing.closed[:1]))
    return graph


class _Drawing:
    """Draws a tape into a graph.

    Attributes:
        drawn: the number of nodes drawn so far.
        closed: a note for the graph if modules were left closed because there were too many nodes.
    """

    def __init__(self, found: Tape, depth: int | None) -> None:
        self.tape, self.levels = found, found.levels
        self.depth = len(found.nodes) if depth is None else depth
        self.folded = depth is not None  # by default equal modules in a row are drawn one by one
        self.drawn = 0
        self.closed: list[str] = []
        self.box = np.zeros(len(found.nodes), np.int64)
        """For each node of the tape, the number of the first node of the box in which it is drawn."""

    def level(self, graph: Any, group: Group, depth: int) -> None:
        """Draw the contents of an open module, ``group``: its ops, and the modules in it, each as a box or as one node.

        ``depth`` is the number of modules around the contents that are drawn as boxes.
        """
        items = self.levels.level(group).items
        self.drawn += len(items)
        for item in items:
            if isinstance(item, int):
                self.box[item] = item
                self._op(graph, self.tape.nodes[item], group)
            elif depth < self.depth and not (item.repeat and self.folded) and self._fits(item):
                with graph.subgraph(name=f"cluster_{label(item.key)}") as inner:
                    inner.attr(label=label(item.name), color=INK, fontcolor=INK, style="rounded")
                    self.level(inner, item, depth + 1)
            else:
                self.box[item.first : item.last] = item.first
                self._module(graph, item)

    def _fits(self, group: Group) -> bool:
        """Return whether a module's contents fit in the graph; if not, write the note that some modules stay closed."""
        more = len(self.levels.level(group).items)
        if self.drawn + more > NODES:
            self.closed = [f"modules beyond {NODES} things are left closed"]
        return self.drawn + more <= NODES

    def _op(self, graph: Any, node: TapeNode, group: Group) -> None:
        """Draw one op: name, module if it differs from the enclosing one, shape, times, and gradient norm."""
        bad = {"color": "#d32f2f", "penwidth": "3"} if node.bad else {}
        colour = palette.FAMILY.get(node.family, (INK, INK))[0]
        where = "" if node.scope == group.path else node.scope
        text = label(node.op, where, f"{quantity.extents(node.shape)} {node.dtype}", node.took, *_gradient(node))
        graph.node(_id(node.id), text, fillcolor=colour, **bad)

    def _module(self, graph: Any, group: Group) -> None:
        """Draw a closed module as one node: number of ops, output shape, times and saved bytes."""
        columns = self.tape.graph
        part = slice(group.first, group.last)
        last = self.tape.nodes[group.last - 1]
        title = f"{group.name} ×{group.repeat}" if group.repeat else group.name
        times = last._replace(
            forward_ns=int(columns.forward[part].sum()), backward_ns=int(columns.backward[part].sum())
        )
        saved = int(columns.saved[part].sum())
        text = label(
            title, f"{group.last - group.first} ops", f"{quantity.extents(last.shape)} {last.dtype}", times.took,
            f"{quantity.size(saved)} saved" if saved else "", *_gradient(last),
        )  # fmt: skip
        bad = {"color": "#d32f2f", "penwidth": "3"} if self.levels.worst(group) else {"color": INK}
        graph.node(_id(last.id), text, fillcolor="transparent", fontcolor=INK, peripheries="2", **bad)

    def rest(self, graph: Any) -> None:
        """Draw the parameters and inputs that the drawn ops read, and all edges."""
        columns = self.tape.graph
        alone = np.bincount(self.box, minlength=len(self.box)) == 1
        reads = columns.parent
        to = self.box[columns.child]
        shown = (reads >= 0) | alone[to] | ~columns.leaf_parameter[np.where(reads < 0, -1 - reads, 0)]
        source = np.where(reads >= 0, self.box[np.maximum(reads, 0)], reads)[shown]
        edges = dict.fromkeys(
            pair for pair in zip(source.tolist(), to[shown].tolist(), strict=True) if pair[0] != pair[1]
        )
        for row in sorted({-1 - a for a, _ in edges if a < 0})[:NODES]:
            leaf = self.tape.leaves[row]
            kind = "parameter" if leaf.parameter else "input"
            text = label(leaf.name or kind, quantity.extents(leaf.shape), *_gradient(leaf))
            graph.node(_id(leaf.id), text, fillcolor=palette.CATEGORY[kind][0], shape="ellipse")
        ends = self._names()
        for a, b in edges:
            if a >= -NODES:
                graph.edge(_id(int(columns.leaf_id[-1 - a])) if a < 0 else ends[a], ends[b])

    def _names(self) -> dict[int, str]:
        """Return a dict from the number of each box's first node to the name in graphviz of the box's last node."""
        first = np.unique(self.box)
        last = np.append(first[1:], len(self.box)) - 1
        return {a: _id(int(self.tape.graph.id[b])) for a, b in zip(first.tolist(), last.tolist(), strict=True)}


def digraph(who: str) -> Any:
    """Return a class of graphs whose errors name the function ``who``.

    The class is made in a function, because its base class is in graphviz, which may be missing.
    """
    graphviz = require("graphviz", "lab", f"drawing with {who}")

    class Digraph(graphviz.Digraph):  # type: ignore[misc, name-defined]
        """A `graphviz.Digraph` whose errors say what to install if the `dot` program is missing."""

        def pipe(self, *args: Any, **options: Any) -> Any:
            _check_dot(who)
            return super().pipe(*args, **options)

        def render(self, *args: Any, **options: Any) -> Any:
            _check_dot(who)
            return super().render(*args, **options)

        def _repr_mimebundle_(self, *args: Any, **options: Any) -> Any:
            try:
                return super()._repr_mimebundle_(*args, **options)  # draws by `pipe`
            except FileNotFoundError as error:
                html = f"<details><summary>source</summary><pre>{html_text(self.source, WHOLE)}</pre></details>"
                return {"text/plain": f"{error}\n\n{self.source}", "text/html": f"<p>{html_text(str(error))}</p>{html}"}

    return Digraph


def _check_dot(who: str) -> None:
    """Raise an error that says how to install graphviz if the `dot` program is missing."""
    if shutil.which("dot") is None:
        besides = "; flnb.dashboard() draws tapes without graphviz" if who == "flnb.plot.tape" else ""
        raise FileNotFoundError(
            f"{who}: drawing needs graphviz's `dot` program, which is not on the PATH; install it with: "
            f"apt install graphviz, brew install graphviz or conda install graphviz. The graph as text is the "
            f"attribute source{besides}"
        )


def _id(number: int) -> str:
    """Return the name of a node in graphviz; negative numbers are parameters and inputs."""
    return f"n{number}" if number >= 0 else f"leaf{-number}"


def label(*lines: str) -> str:
    """Join the non-empty lines of a node's label and escape them for graphviz."""
    # a backslash begins an escape in graphviz
    return safe_lines("\n".join(filter(None, lines)), LONGEST).replace("\\", "\\\\")


def _gradient(item: TapeNode | TapeLeaf) -> list[str]:
    """Return a line with the norm of a gradient and the number of its NaNs and infinities; [] if it is unknown."""
    bad = f", {item.bad} NaN/Inf" if item.bad else ""
    return [] if item.norm is None else [f"|grad| {quantity.norm(item.norm)}{bad}"]
