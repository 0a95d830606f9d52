"""Figures to keep, from a recording: plotly charts and a graphviz graph. Live views are `flnb.dashboard()`.

Every function takes a `Recording` (of `flnb.record()` or `flnb.load_run()`), `replay` a `Replay`, and needs the extra
"lab".
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import palette, quantity, schema
from flnb_telemetry.analysis.memory import FORMULAS
from flnb_telemetry.analysis.roofline import Peaks, Point, measured, points
from flnb_telemetry.extras import require
from flnb_telemetry.safe_text import html_text

from flnb.show.tapegraph import tape

if TYPE_CHECKING:
    from flnb_telemetry import Recording
    from flnb_telemetry.schema import Ints
    from numpy.typing import NDArray

    from flnb.memory_lab.replay_table import Replay

__all__ = ["TEMPLATE", "fragmentation", "memory", "op_times", "replay", "roofline", "tape"]

POINTS = 10_000
LONGEST = 100  # characters of a name
TEETH, CRESTS = 60, 200
"""Rises of live memory that a figure can show one by one, and points that it has where there are more."""
MIB = 2**20
INK = "#6f757b"
AXIS = {
    "gridcolor": "rgba(127,127,127,0.25)",
    "zerolinecolor": "rgba(127,127,127,0.4)",
    "automargin": True,
    "title": {"standoff": 15},
}
MANAGERS = ("#359cdf", "#a35226", "#5c906b", "#8a63b8", "#c9922b", "#c2528b", "#3f9a9a", "#7d7f2a")
TEMPLATE = {
    "layout": {
        "paper_bgcolor": "rgba(0,0,0,0)",  # the notebook's, light or dark
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK},
        "xaxis": AXIS,
        "yaxis": AXIS,
        "title": {"x": 0.05},
        "colorway": MANAGERS,
        "annotationdefaults": {"arrowcolor": INK, "arrowhead": 0, "arrowwidth": 1},
    }
}
"""A template for any plotly figure, with which it is readable in notebooks of light and of dark themes."""


def _figure(title: str, x: str, y: str) -> Any:
    layout = {"title": html_text(title, LONGEST), "xaxis": {"title": x}, "yaxis": {"title": y, "rangemode": "tozero"}}
    layout |= {"template": TEMPLATE, "margin": {"l": 64, "r": 24, "t": 56, "b": 48}}
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
        times, names = [row.total / scale for row in mine], [html_text(row.key[0], LONGEST) for row in mine]
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
    """Live bytes over time, stacked by category, and reserved bytes, as a plotly figure.

    Where more than twice the peak is reserved, the legend says how much and the axis ends above the bands. Saved
    tensors that moved (`flnb.memory.offload`, `compress`) are marks on top of the bands; a line says how much was away.
    Where memory rises and falls too often to be seen, as over hundreds of steps, each point is the highest moment of
    a step or of several, which the subtitle says.
    """
    every = run.memory.timeline()
    figure = _figure(f"Memory of {run.name}", "time, s", "MiB")
    line = every.spread(POINTS)
    if (teeth := _teeth(every.allocated)) > TEETH:
        edges, each = _stretches(run, every.t, teeth)
        highest = [a + int(np.argmax(every.allocated[a:b])) for a, b in pairwise([*edges, len(every.t)])]
        line = type(every)._make(column[highest] for column in every)
        figure.update_layout(title={"subtitle": {"text": f"each point: the most live in {each}"}})
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
    _marks(figure, run)
    if len(line.t):
        at = float(line.t[np.argmax(line.allocated)])
        aside = 1 if at < (line.t[0] + line.t[-1]) / 2 else -1  # towards the middle, away from the axis
        anchor = "left" if aside > 0 else "right"
        text, top = f"peak {quantity.size(most)}", (most if above else max(most, reserved)) / MIB
        figure.add_annotation(
            x=at,
            y=most / MIB,
            text=text,
            ax=32 * aside,
            ay=1.09 * top,
            ayref="y",
            xanchor=anchor,  # it lies on no line
        )
        figure.update_yaxes(range=[0, 1.18 * top])
    return figure


def _teeth(level: Ints) -> int:
    """How often a level rose from the lower to the upper quarter of where it mostly is."""
    low, high = np.quantile(level, (0.05, 0.95)) if len(level) else (0, 0)
    quarter = (high - low) / 4
    side = np.sign((level >= high - quarter).astype(int) - (level <= low + quarter))
    side = side[side != 0]
    return int(np.count_nonzero(np.diff(side) > 0))


def _stretches(run: Recording, t: NDArray[np.float64], teeth: int) -> tuple[list[int], str]:
    """Where to begin each stretch of times in which one moment stands for all, and what a stretch is."""
    begins = run.steps["t0"]
    if len(begins) > TEETH // 2:
        stride = -(-len(begins) // CRESTS)
        edges = np.unique(np.searchsorted(t, begins[::stride]).clip(0, len(t) - 1))
        edges[0] = 0
        return edges.tolist(), "a step" if stride == 1 else f"{stride} steps"
    count = min(teeth // 4, CRESTS)
    edges = np.linspace(0, len(t), count, endpoint=False).astype(np.int64)
    return edges.tolist(), f"{quantity.count(len(t) // count)} allocations and frees"


MARKS = {"away": "triangle-down", "back": "triangle-up", "compressed": "triangle-left", "restored": "triangle-right"}


def _marks(figure: Any, run: Recording) -> None:
    """The moves of saved tensors, where live bytes were when each began, and what lies on the other device."""
    held, aside, moves = run.memory.timeline(), run.memory.aside.spread(POINTS), run.in_seconds(run.memory.transfer)
    if aside.allocated.any():
        dashed = {"color": INK, "dash": "dash", "shape": "hv"}
        figure.add_scatter(x=aside.t, y=aside.allocated / MIB, name="moved away", line=dashed)
    for number, name in enumerate(schema.DIRECTIONS):
        chosen = np.flatnonzero(moves["direction"] == number)
        if len(chosen):
            chosen = chosen[:: -(-len(chosen) // POINTS)]
            t = moves["t0"][chosen]
            live = held.allocated[np.maximum(0, np.searchsorted(held.t, t, "right") - 1)]
            sizes = [quantity.size(nbytes) for nbytes in moves["nbytes"][chosen].tolist()]
            mark = {"symbol": MARKS[name], "color": INK, "size": 9}
            figure.add_scatter(x=t, y=live / MIB, name=name, mode="markers", marker=mark, hovertext=sizes)


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
    share = {"overlaying": "y", "side": "right", "title": "share"} | ticks | {"showgrid": False}
    # above the axes: beside them the legend would lie on the ticks of the right one
    above = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    figure.update_layout(yaxis2=share, legend=above, margin={"t": 104, "r": 72, "b": 110})
    peak, average = quantity.significant(found.at_peak), quantity.significant(found.average)
    headline = f"{peak}× at the peak, {average}× on time average"
    figure.update_layout(title={"subtitle": {"text": headline}, "y": 0.97, "yanchor": "top"})
    formulas = "<br>".join(FORMULAS[name] for name in ("ratio", "unusable", "internal", "average"))
    _note(figure, formulas, x=0, y=-0.22, align="left", yanchor="top", font={"size": 11})
    return figure


def replay(found: Replay) -> Any:
    """Bytes reserved by managers, call by call, over live bytes and bounds; beside it reserved / live at the peak.

    A plotly figure of a `flnb.memory.replay`. Of long traces each point is the most of the calls that it stands for.
    """
    figure = _figure(f"Replay of {found.trace.name}", "calls", "MiB")
    calls, live = _crests(found.trace.live)
    figure.add_scatter(
        x=calls, y=live / MIB, name="live", fill="tozeroy", line={"shape": "hv", "color": INK, "width": 1}
    )
    packed = list(found.bounds)[1]
    shown = [row.peak_reserved for row in found.rows if row.peak_reserved <= 4 * found.bounds[packed]]
    top = max([*shown, *found.bounds.values()])
    for i, row in enumerate(found.rows):
        colour = MANAGERS[i % len(MANAGERS)]
        calls, reserved = _crests(row.reserved)
        manager = html_text(row.manager, LONGEST)
        label = manager if row.peak_reserved <= top else f"{manager}, up to {quantity.size(row.peak_reserved)}"
        figure.add_scatter(x=calls, y=reserved / MIB, name=label, line={"shape": "hv", "color": colour})
        name, ratio = f"{manager} ", quantity.significant(row.ratio_at_peak)
        about = {
            "text": [f"{ratio}×"],
            "textposition": "outside",
            "cliponaxis": False,
            "marker_color": colour,
            "showlegend": False,
        }
        figure.add_bar(x=[row.ratio_at_peak], y=[name], orientation="h", xaxis="x2", yaxis="y2", name=manager, **about)
    for text, height in found.bounds.items():
        line = {"color": INK, "dash": "dot" if text == packed else "dash"}
        side = "top right" if text == packed else "bottom right"  # the two are often at one height
        figure.add_hline(y=height / MIB, line=line, annotation_text=text, annotation_position=side)
    figure.add_vline(
        x=found.bounds[packed] / max(1, found.trace.peak_live), line={"color": INK, "dash": "dot"}, xref="x2", yref="y2"
    )
    ratio_axis = {
        "domain": [0.76, 1],
        "anchor": "y2",
        "title": "reserved / live at the peak",
        "rangemode": "tozero",
    }
    figure.update_layout(
        yaxis_range=[0, 1.1 * top / MIB], xaxis_domain=[0, 0.56], xaxis2=ratio_axis,
        yaxis2={"anchor": "x2", "autorange": "reversed"}, legend={"orientation": "h", "y": -0.2},
    )  # fmt: skip
    return figure


def _crests(series: Ints) -> tuple[Ints, Ints]:
    """At most `POINTS` numbers of calls, and the most of a series from each to the next."""
    if not len(series):
        return series, series
    edges = np.unique(np.linspace(0, len(series), POINTS, endpoint=False).astype(np.int64))
    return edges, np.maximum.reduceat(series, edges)


def roofline(run: Recording, peaks: Peaks | None = None) -> Any:
    """FLOP/s of every op of a run against its FLOPs per byte, under the machine's limits, as a plotly figure.

    One point for each op and its shapes: the call in the middle, coloured by family, as large as its share of the time.
    FLOPs are estimates; bytes are the least possible, inputs read and the result written once. Without `peaks` they
    are measured now, in this process (`flnb_telemetry.analysis.roofline.measured`; up to a second).
    """
    figure = _figure(f"Roofline of {run.name}", "FLOPs per byte", "GFLOP/s")
    found = points(run.table("op"), run.catalog)
    roof = peaks or measured()
    figure.update_layout(legend_itemsizing="constant")
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1, rangemode="normal")
    for family in dict.fromkeys(point.plan.family for point in found):
        mine = [point for point in found if point.plan.family == family]
        marker = {
            "color": palette.FAMILY.get(family, (INK, INK))[0],
            "size": [5 + 40 * point.share**0.5 for point in mine],
            "opacity": 0.75,
            "line": {"width": 1, "color": "rgba(255,255,255,0.6)"},
        }
        figure.add_scatter(
            x=[point.intensity for point in mine],
            y=[point.rate / 1e9 for point in mine],
            name=family, mode="markers", marker=marker, hovertext=[_told(point) for point in mine], hoverinfo="text",
        )  # fmt: skip
    least = min([point.intensity for point in found], default=0.1) / 2
    most = max([2 * point.intensity for point in found] + [4 * roof.flops / roof.memory])
    for name, dash, bandwidth in (("memory", "solid", roof.memory), ("cache", "dot", roof.cache)):
        ridge = max(least, roof.flops / bandwidth)
        ends = [(least, min(roof.flops, least * bandwidth) / 1e9), (ridge, roof.flops / 1e9), (most, roof.flops / 1e9)]
        x, y = zip(*ends, strict=True)
        label = f"{name}, {quantity.significant(bandwidth / 1e9)} GB/s"
        figure.add_scatter(x=x, y=y, name=label, mode="lines", line={"color": INK, "dash": dash}, hoverinfo="skip")
    text = f"matrix product {quantity.significant(roof.flops / 1e9)} GFLOP/s"
    place = {"x": math.log10(most), "y": math.log10(roof.flops / 1e9), "xanchor": "right", "yanchor": "bottom"}
    figure.add_annotation(text=text, showarrow=False, **place)
    rest = 1 - sum(point.share for point in found)
    note = f"{quantity.percent(rest)} of the op time computes nothing in floating point and is not shown"
    _note(figure, note, x=1, y=1.06)
    return figure


def _told(point: Point) -> str:
    """The text of a point's tooltip."""
    plan = point.plan
    inputs = ", ".join(map(quantity.extents, plan.inputs))
    return (
        f"<b>{html_text(plan.op, LONGEST)}</b><br>{inputs} → {quantity.extents(plan.shape)} {plan.dtype}<br>"
        f"{quantity.duration(point.median)} a call, {quantity.count(point.calls)} calls, "
        f"{quantity.percent(point.share)} of the time<br>"
        f"{quantity.significant(point.rate / 1e9)} GFLOP/s, {quantity.significant(point.intensity)} FLOPs per byte"
    )
