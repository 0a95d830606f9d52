"""`flnb.plot.graph`: the programs of a function of `flnb.jit`, drawn as a graph by graphviz."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry import palette, quantity

from flnb.graph.describing import launches
from flnb.graph.inspection import existing_names, programs_of
from flnb.graph.values import ITEM, PUT
from flnb.show.tapegraph import INK, LOOK, digraph, label

if TYPE_CHECKING:
    from flnb.graph.describing import Launch, Stored
    from flnb.graph.program import Program
    from flnb.graph.values import Value

MOST_OPS = 1500
"""The most ops that are drawn as nodes; with more, each kernel is one node."""
UNNAMED = ("existing", "constant")
"""The names of existing values that are neither inputs nor parameters of modules; constants never change."""


def graph(f: Any) -> Any:
    """Draw a function compiled by `flnb.jit` as a `graphviz.Digraph`: kernels as boxes around their ops.

    Each value that is in memory is named as in ``print(program)``, with its place: at an offset in the program's block
    of memory, in new memory, or in the memory of a value that it replaces, such as a parameter. Ellipses are the
    program's results, and the values that exist before the program runs. Such an existing value is drawn beside each
    kernel that reads it. An op that is overridden by a class of the user has a heavy border.

    Args:
        f: a function compiled by `flnb.jit`, or one of its programs. For a function, all programs are drawn.

    The result's attribute ``source`` needs no other software. Drawing it needs graphviz's `dot` program; if that is
    missing, an error says how to install it.

    Raises:
        TypeError: ``f`` is neither a function of `flnb.jit` nor a program.
        ValueError: nothing was captured yet.
        ImportError: graphviz's Python package, of the extra "lab", is missing.

    >>> import flnb
    >>> f = flnb.jit(lambda x: flnb.sum(flnb.exp(x)), fuse=False)
    >>> y = f(flnb.ones(3)), f(flnb.ones(3))
    >>> "exp" in flnb.plot.graph(f).source
    True
    """
    programs = programs_of(f, "flnb.plot.graph")
    drawing = digraph("flnb.plot.graph")(name="program", graph_attr=LOOK)
    drawing.attr("node", shape="box", style="filled,rounded", fontname="sans-serif", fontsize="10", fontcolor="white")
    drawing.attr("edge", color=INK)
    drawing.attr("graph", fontcolor=INK, fontsize="11")
    for i, program in enumerate(programs):
        if len(programs) == 1:
            _Drawing(f, program, "").draw(drawing)
            continue
        with drawing.subgraph(name=f"cluster_program{i}") as inner:
            inner.attr(label=f"program {i}", color=INK, style="rounded")
            _Drawing(f, program, f"p{i}").draw(inner)
    return drawing


class _Drawing:
    """Draws one program into a graph.

    A *launch* is a step of the program: a kernel, a call of a backend's method, or a copy.

    Attributes:
        prefix: the beginning of the names of all nodes in graphviz, different for each program.
        node: for each computed value, the name of the node that computes it.
        beside: the names of the nodes of values that exist before the program runs; such a value has a node beside
            every launch that reads it.
    """

    def __init__(self, f: Any, program: Program, prefix: str) -> None:
        self.program, self.prefix = program, prefix
        self.launches = launches(program)
        self.existing = existing_names(f, program)
        self.closed = sum(len(each.members) for each in self.launches) > MOST_OPS
        self.node: dict[Value, str] = {}
        self.beside: set[str] = set()

    def draw(self, graph: Any) -> None:
        """Draw all launches, values and edges of the program into a graph."""
        for each in self.launches:
            self._launch(graph, each)
        for i, value in enumerate(self.program.outputs):
            name = f"{self.prefix}out{i}"
            graph.node(name, label(f"result {i}", _described(value)), fillcolor=INK, shape="ellipse")
            graph.edge(self._source(graph, value, ""), name)
        if self.closed:
            graph.attr(label=f"more than {MOST_OPS} ops: each kernel is one node")

    def _launch(self, graph: Any, launch: Launch) -> None:
        """Draw a launch and the edges to it; a kernel can be a box of several ops, other launches are one node."""
        number = f"#{launch.number}"
        members = [x for x in launch.members if x.op is not ITEM]
        if launch.kind == "copy" or len(members) == 1 or self.closed:
            title = launch.title if self.closed else f"{number} {' '.join(launch.ops) or 'copy'}"
            shown = members[-1] if members else launch.stored[0].value
            self._op(graph, launch, shown, f"{self.prefix}n{launch.number}", title, launch.stored)
            self.node |= dict.fromkeys(launch.members, f"{self.prefix}n{launch.number}")
            for x in launch.reads:
                self._edge(graph, x, launch, f"{self.prefix}n{launch.number}")
        else:
            with graph.subgraph(name=f"cluster_{self.prefix}{launch.number}") as inner:
                where = launch.event[1].scope
                inner.attr(label=label(f"{number} kernel of {len(members)} ops", where), color=INK, style="rounded")
                for i, value in enumerate(members):
                    self.node[value] = f"{self.prefix}n{launch.number}_{i}"
                    mine = [x for x in launch.stored if x.value is value]
                    self._op(inner, launch, value, self.node[value], self._called(value), mine)
            for value in members:
                roots = [self.program.layouts[x].root for x in value.inputs]
                for x in dict.fromkeys(roots):
                    self._edge(graph, x, launch, self.node[value])

    def _op(self, graph: Any, launch: Launch, value: Value, node: str, title: str, stored: list[Stored]) -> None:
        """Draw the node of an op, with the places in memory where its result is stored."""
        family = getattr(value.op, "family", "movement")
        own = value.op is not None and value.op.name in self.program.here.backend.overridden()
        heavy = {"color": INK, "penwidth": "4"} if own or (self.closed and launch.own) else {}
        places = [
            f"{x.name} {x.where}".strip() + (f" of {self.existing[x.home]}" if self.existing.get(x.home) else "")
            + f", {quantity.size(x.value.spec.nbytes)}"
            for x in stored
        ]  # fmt: skip
        where = launch.event[1].scope if launch.kind == "call" else ""
        text = label(title, _described(value), where, *places)
        graph.node(node, text, fillcolor=palette.FAMILY.get(family, (INK, INK))[0], **heavy)

    def _called(self, value: Value) -> str:
        """Return the name of the op that computes a value, with its constant operands."""
        assert value.op is not None
        numbers = [_number(self.program.layouts[x].root) for x in value.inputs]
        return f"{value.op.name}({', '.join(n or '·' for n in numbers)})" if any(numbers) else value.op.name

    def _edge(self, graph: Any, x: Value, launch: Launch, to: str) -> None:
        """Draw the edge from a value to the node of the launch that reads it; a constant has no edge."""
        if not _number(x):
            graph.edge(self._source(graph, x, f"_{launch.number}"), to)

    def _source(self, graph: Any, value: Value, beside: str) -> str:
        """Return the graphviz node of a value; inputs are drawn beside each launch that reads them."""
        value = self.program.layouts[value].root
        if value in self.node:
            return self.node[value]
        node = f"{self.prefix}v{value.number}{beside}"
        if node not in self.beside:
            self.beside.add(node)
            name = self._name(value)
            kind = "input" if name.startswith("input ") else "unknown" if name in UNNAMED else "parameter"
            graph.node(node, label(name, _described(value)), fillcolor=palette.CATEGORY[kind][0], shape="ellipse")
        return node

    def _name(self, value: Value) -> str:
        """Return the name of a value that exists before the program runs."""
        return self.existing.get(value) or UNNAMED[bool(value.attributes)]


def _number(value: Value) -> str:
    """Return a constant value's number as text, empty for other values."""
    known = value.op is None and value.attributes and not value.spec.ndim
    return f"{float(value.tensor._data):.3g}" if known else ""


def _described(value: Value) -> str:
    """Return a value's shape and dtype as text."""
    return "write of a view" if value.op is PUT else f"{quantity.extents(value.spec.shape)} {value.spec.dtype.name}"
