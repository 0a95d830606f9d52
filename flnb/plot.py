"""Figures to keep, from a recording: plotly charts and a graphviz graph. Live views are `flnb.dashboard()`.

Every function takes a `Recording` (of `flnb.record()` or `flnb.load_run()`) and needs the extra "lab".
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import palette, quantity, schema
from flnb_telemetry.analysis.memory import FORMULAS
from flnb_telemetry.analysis.tape import Tape, TapeNode
from flnb_telemetry.extras import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb_telemetry import Recording

__all__ = ["fragmentation", "memory", "op_times", "tape"]

POINTS = 10_000
NODES = 1500
MIB = 2**20
INK = "#6f757b"


def _figure(title: str, x: str, y: str) -> Any:
    axis = {"gridcolor": "rgba(127,127,127,0.25)", "zerolinecolor": "rgba(127,127,127,0.4)"}
    layout = {"title": title, "xaxis": {"title": x} | axis, "yaxis": {"title": y, "rangemode": "tozero"} | axis}
    layout |= dict.fromkeys(("paper_bgcolor", "plot_bgcolor"), "rgba(0,0,0,0)")  # the notebook's, light or dark
    layout |= {"font": {"color": INK}, "margin": {"l": 64, "r": 24, "t": 56, "b": 48}}
    return require("plotly.graph_objects", "lab", "drawing a figure").Figure(layout=layout)


def _note(figure: Any, text: str, **place: Any) -> None:
    figure.add_annotation(text=text, xref="paper", yref="paper", showarrow=False, **place)


def op_times(run: Recording, top: int = 20) -> Any:
    """Total time of the slowest ops as a plotly bar chart, coloured by family."""
    rows = run.ops.by("op", "family").rows
    unit, scale = ("s", 1e9) if rows and max(row.total for row in rows) > 1e9 else ("ms", 1e6)
    figure = _figure(f"Op times of {run.name}", f"total time, {unit}", "")
    for family in dict.fromkeys(row.key[1] for row in rows[:top]):
        mine = [row for row in rows[:top] if row.key[1] == family]
        times, names = [row.total / scale for row in mine], [row.key[0] for row in mine]
        about = [
            f"{quantity.percent(row.share)}, {quantity.count(row.count)} calls, "
            f"mean {quantity.duration(row.mean)}, p99 {quantity.duration(row.p99)}"
            for row in mine
        ]
        colour = palette.FAMILY.get(family, (INK, INK))[0]
        figure.add_bar(x=times, y=names, orientation="h", name=family, marker_color=colour, hovertext=about)
    # a name in two families is one bar of two parts; the slowest stands on top
    figure.update_layout(barmode="stack", height=140 + 22 * len(rows[:top]))
    figure.update_yaxes(categoryorder="total ascending")
    if len(rows) > top:
        _note(figure, f"{len(rows) - top} faster ops not shown", x=1, y=0)
    return figure


def memory(run: Recording) -> Any:
    """Live bytes over time, stacked by category, and what is reserved, as a plotly figure.

    Where more than twice the peak is reserved, the legend says how much and the axis ends above the bands.
    """
    line = run.memory.timeline().spread(POINTS)
    figure = _figure(f"Memory of {run.name}", "time, s", "MiB")
    for name in palette.STACK:
        held = line.by_category[:, schema.CATEGORIES.index(name)]
        if held.any():
            colour = palette.CATEGORY[name][0]
            stroke = {"width": 0.5, "color": colour, "shape": "hv"}
            label = name.replace("_", " ")
            figure.add_scatter(x=line.t, y=held / MIB, name=label, stackgroup="live", line=stroke, fillcolor=colour)
    dashed = {"color": INK, "dash": "dot", "shape": "hv"}
    most, reserved = int(line.allocated.max(initial=0)), int(line.reserved.max(initial=0))
    above = reserved > 2 * most > 0
    label = f"reserved {quantity.size(reserved)}, above" if above else "reserved"
    figure.add_scatter(x=line.t, y=line.reserved / MIB, name=label, line=dashed)
    if len(line.t):
        at = float(line.t[np.argmax(line.allocated)])
        aside = 1 if at < (line.t[0] + line.t[-1]) / 2 else -1  # towards the middle, away from the axis
        anchor = "left" if aside > 0 else "right"
        text = f"peak {quantity.size(most)}"
        figure.add_annotation(x=at, y=most / MIB, text=text, ax=32 * aside, ay=-20, xanchor=anchor)
        figure.update_yaxes(range=[0, 1.15 * (most if above else max(most, reserved)) / MIB])
    return figure


def fragmentation(run: Recording, request: int | None = None) -> Any:
    """Reserved / live over time, and the share of free memory unusable for a request (default: the run's largest)."""
    found = run.memory.fragmentation(request)
    figure = _figure(f"Fragmentation of {run.name}", "time, s", "reserved / live")
    unusable = f"unusable({quantity.size(found.request)})"
    for label, column, colour, axis in (
        ("reserved / live", found.ratio, "#359cdf", "y"),
        (unusable, found.unusable, "#a35226", "y2"),
        ("internal", found.internal, "#5c906b", "y2"),
    ):
        figure.add_scatter(x=found.t, y=column, name=label, yaxis=axis, line={"shape": "hv", "color": colour})
    ticks = {"range": [0, 1], "tickvals": [0, 0.25, 0.5, 0.75, 1], "tickformat": ".0%"}
    share = {"overlaying": "y", "side": "right", "title": "share"} | ticks
    figure.update_layout(yaxis2=share, margin={"b": 110})
    peak, average = quantity.significant(found.at_peak), quantity.significant(found.average)
    _note(figure, f"{peak}× at the peak, {average}× on time average", x=1, y=1.06)
    formulas = "<br>".join(FORMULAS[name] for name in ("ratio", "unusable", "internal", "average"))
    _note(figure, formulas, x=0, y=-0.22, align="left", yanchor="top", font={"size": 11})
    return figure


def tape(run: Recording | Tape) -> Any:
    """The tape of the last sampled backward (or of `run.tape.step(i)`) as a `graphviz.Digraph`, scopes as boxes.

    The source is there without the `dot` program; drawing without it is an error that says how to install it.
    """
    found = run if isinstance(run, Tape) else run.tape
    graph = _digraph()(name="tape", graph_attr={"fontname": "sans-serif", "bgcolor": "transparent"})
    graph.attr("node", shape="box", style="filled,rounded", fontname="sans-serif", fontsize="10", fontcolor="white")
    graph.attr("edge", color=INK)
    nodes = found.nodes[-NODES:]
    _scopes(graph, "", nodes)
    for leaf in found.leaves:
        kind = "parameter" if leaf.parameter else "input"
        label = _label(leaf.name or kind, quantity.extents(leaf.shape), leaf)
        graph.node(_id(leaf.id), label, fillcolor=palette.CATEGORY[kind][0], shape="ellipse")
    shown = {node.id for node in nodes} | {leaf.id for leaf in found.leaves}
    for parent, child in found.edges:
        if parent in shown and child in shown:
            graph.edge(_id(parent), _id(child))
    if hidden := found.truncated + len(found.nodes) - len(nodes):
        graph.attr(label=f"{hidden} older nodes not drawn")
    return graph


def _scopes(graph: Any, path: str, nodes: Sequence[TapeNode]) -> None:
    """The nodes of a scope and, as boxes, the scopes directly within it."""
    start = f"{path}." if path else ""
    below: defaultdict[str, list[TapeNode]] = defaultdict(list)
    for node in nodes:
        if node.scope != path:
            rest = node.scope.removeprefix(start)
            below[rest.partition(".")[0] or rest].append(node)
            continue
        bad = {"color": "#d32f2f", "penwidth": "3"} if node.bad else {}
        colour = palette.FAMILY.get(node.family, (INK, INK))[0]
        label = _label(node.op, f"{quantity.extents(node.shape)} {node.dtype}", node)
        graph.node(_id(node.id), label, fillcolor=colour, **bad)
    for name, inside in sorted(below.items()):
        with graph.subgraph(name=f"cluster_{start}{name}") as box:
            box.attr(label=name, color=INK, fontcolor=INK, style="rounded")
            _scopes(box, start + name, inside)


def _digraph() -> Any:
    graphviz = require("graphviz", "lab", "drawing a tape")

    class Digraph(graphviz.Digraph):  # type: ignore[misc, name-defined]
        """A `graphviz.Digraph` that says what to install where the `dot` program is missing."""

        def pipe(self, *args: Any, **options: Any) -> Any:
            _check_dot()
            return super().pipe(*args, **options)

        def render(self, *args: Any, **options: Any) -> Any:
            _check_dot()
            return super().render(*args, **options)

        def _repr_mimebundle_(self, *args: Any, **options: Any) -> Any:
            try:
                return super()._repr_mimebundle_(*args, **options)  # draws by `pipe`
            except FileNotFoundError as error:
                html = f"<details><summary>source</summary><pre>{escape(self.source)}</pre></details>"
                return {"text/plain": f"{error}\n\n{self.source}", "text/html": f"<p>{escape(str(error))}</p>{html}"}

    return Digraph


def _check_dot() -> None:
    if shutil.which("dot") is None:
        raise FileNotFoundError(
            "flnb.plot.tape: drawing needs graphviz's `dot` program, which is not on the PATH; install it with: "
            "apt install graphviz, brew install graphviz or conda install graphviz. The source is in .source; "
            "flnb.dashboard() draws tapes without it"
        )


def _id(number: int) -> str:
    return f"n{number}" if number >= 0 else f"leaf{-number}"


def _label(title: str, about: str, item: Any) -> str:
    lines = [title, about]
    if isinstance(item, TapeNode) and item.took:
        lines.append(item.took)
    if item.norm is not None:
        lines.append(f"|grad| {quantity.norm(item.norm)}" + (f", {item.bad} NaN/Inf" if item.bad else ""))
    return "\n".join(lines).replace("\\", "\\\\")  # graphviz reads a backslash as the beginning of an escape
