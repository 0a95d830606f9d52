"""Plotly figures of recordings, and tapes drawn by graphviz. (`flnb.dashboard` has live views.)

Every function takes a `Recording`, of `flnb.record` or `flnb.load_run`, except `replay`, which takes the result of
`flnb.memory.replay`, `graph`, which takes a function compiled by `flnb.jit`, and `modes`, which takes several
recordings. All need the extra "lab".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flnb_telemetry import palette, quantity
from flnb_telemetry.analysis.roofline import Peaks, Point, points
from flnb_telemetry.run import expect_recording
from flnb_telemetry.safe_text import html_text

from flnb.explore.peaks import measure_peaks
from flnb.plot.devices import devices
from flnb.plot.figures import INK, LONGEST, TEMPLATE, blank_figure
from flnb.plot.memory import fragmentation, memory, replay
from flnb.plot.modes import modes
from flnb.plot.ranks import collectives
from flnb.plot.threads import timeline
from flnb.show.programgraph import graph
from flnb.show.tapegraph import tape

if TYPE_CHECKING:
    from flnb_telemetry import Recording

__all__ = [
    "TEMPLATE",
    "collectives",
    "devices",
    "fragmentation",
    "graph",
    "memory",
    "modes",
    "op_times",
    "replay",
    "roofline",
    "tape",
    "timeline",
]


def op_times(run: Recording, top: int = 20) -> Any:
    """Draw the total times of the slowest ops as a plotly bar chart, coloured by kind of op ("matmul", "norm", ...).

    Args:
        run: a recording.
        top: the number of ops to draw.

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: ``run`` is not a recording.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.exp(flnb.ones((64, 64)))
    >>> figure = flnb.plot.op_times(run)
    >>> figure.layout.title.text, sorted(name for bar in figure.data for name in bar.y)
    ('Op times of example', ['exp', 'full'])
    """
    rows = expect_recording("flnb.plot.op_times", run).ops.by("op", "family").rows
    shown = rows[:top]
    unit, scale = ("s", 1e9) if rows and max(row.total for row in rows) > 1e9 else ("ms", 1e6)
    figure = blank_figure(f"Op times of {run.name}", f"total time, {unit}", "")
    for family in dict.fromkeys(row.key[1] for row in shown):
        mine = [row for row in shown if row.key[1] == family]
        times, names = [row.total / scale for row in mine], [html_text(row.key[0], LONGEST) for row in mine]
        about = [
            f"{quantity.percent(row.share)}, {quantity.count(row.count)} calls, "
            f"mean {quantity.duration(row.mean)}, p99 {quantity.duration(row.p99)}"
            for row in mine
        ]
        colour = palette.FAMILY.get(family, (INK, INK))[0]
        figure.add_bar(x=times, y=names, orientation="h", name=family, marker_color=colour, hovertext=about)
    # a name in two families is one bar of two parts; the slowest stands on top
    figure.update_layout(barmode="stack", height=140 + 22 * len(shown))
    figure.update_yaxes(categoryorder="total ascending")
    if len(rows) > top:
        hidden = len(rows) - top
        shown_of = f"the slowest {top}, without {hidden} faster {'op' if hidden == 1 else 'ops'}"
        figure.update_layout(title={"subtitle": {"text": shown_of}}, margin={"t": 76})
    return figure


def roofline(run: Recording, peaks: Peaks | None = None) -> Any:
    """Draw the FLOP/s of every op against its FLOPs per byte, with the machine's limits, as a plotly figure.

    Each op has one point for each combination of input shapes. The point shows the FLOP/s at the op's median time. Its
    colour shows the kind of op ("matmul", "norm", ...), and its size shows the op's share of the total time. FLOPs are
    estimates; bytes are the fewest possible: every input is read once and the result is written once.

    Args:
        run: a recording.
        peaks: the machine's FLOP/s and bandwidths; by default they are measured now, which takes up to a second.

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: ``run`` is not a recording.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.ones((64, 64)) @ flnb.ones((64, 64))
    >>> flnb.plot.roofline(run).layout.title.text
    'Roofline of example'
    """
    found = points(expect_recording("flnb.plot.roofline", run).table("op"), run.catalog)
    figure = blank_figure(f"Roofline of {run.name}", "FLOPs per byte", "GFLOP/s")
    roof = peaks or measure_peaks()
    figure.update_layout(legend_itemsizing="constant")
    figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(type="log", dtick=1, rangemode="normal")
    for family in dict.fromkeys(point.plan.family for point in found):
        mine = [point for point in found if point.plan.family == family]
        sizes, edge = [5 + 40 * point.share**0.5 for point in mine], {"width": 1, "color": "rgba(255,255,255,0.6)"}
        marker = {"color": palette.FAMILY.get(family, (INK, INK))[0], "size": sizes, "opacity": 0.75, "line": edge}
        x, y = [point.intensity for point in mine], [point.rate / 1e9 for point in mine]
        about = {"hovertext": [_tooltip(point) for point in mine], "hoverinfo": "text"}
        figure.add_scatter(x=x, y=y, name=family, mode="markers", marker=marker, **about)
    least = min([point.intensity for point in found], default=0.1) / 2
    most = max([2 * point.intensity for point in found] + [4 * roof.flops / roof.memory])
    for name, dash, bandwidth in (("memory", "solid", roof.memory), ("cache", "dot", roof.cache)):
        ridge = max(least, roof.flops / bandwidth)
        ends = [(least, min(roof.flops, least * bandwidth) / 1e9), (ridge, roof.flops / 1e9), (most, roof.flops / 1e9)]
        xs, ys = zip(*ends, strict=True)
        label = f"{name}, {quantity.significant(bandwidth / 1e9)} GB/s"
        figure.add_scatter(x=xs, y=ys, name=label, mode="lines", line={"color": INK, "dash": dash}, hoverinfo="skip")
    text = f"matrix product {quantity.significant(roof.flops / 1e9)} GFLOP/s"
    place = {"x": math.log10(most), "y": math.log10(roof.flops / 1e9), "xanchor": "right", "yanchor": "bottom"}
    figure.add_annotation(text=text, showarrow=False, yshift=4, **place)
    rest = 1 - sum(point.share for point in found)
    note = f"{quantity.percent(rest)} of the op time computes nothing in floating point and is not shown"
    figure.update_layout(title={"subtitle": {"text": note}}, margin={"t": 76})
    return figure


def _tooltip(point: Point) -> str:
    """Return the text of a point's tooltip: op, shapes, time, share, FLOP/s and FLOPs per byte."""
    plan = point.plan
    inputs = ", ".join(map(quantity.extents, plan.inputs))
    return (
        f"<b>{html_text(plan.op, LONGEST)}</b><br>{inputs} → {quantity.extents(plan.shape)} {plan.dtype}<br>"
        f"{quantity.duration(point.median)} a call, {quantity.count(point.calls)} calls, "
        f"{quantity.percent(point.share)} of the time<br>"
        f"{quantity.significant(point.rate / 1e9)} GFLOP/s, {quantity.significant(point.intensity)} FLOPs per byte"
    )
