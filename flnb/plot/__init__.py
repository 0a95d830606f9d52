"""Plotly figures of recordings, and tapes drawn by graphviz. (`flnb.dashboard` has live views.)

Every function takes a `Recording`, of `flnb.record` or `flnb.load_run`, except `replay`, which takes the result of
`flnb.memory.replay`, `graph`, which takes a function compiled by `flnb.jit`, and `modes`, which takes several
recordings. All need the extra "lab".
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

from flnb.plot.modes import modes
from flnb.plot.ranks import collectives
from flnb.plot.threads import timeline
from flnb.show.programgraph import graph
from flnb.show.tapegraph import tape

if TYPE_CHECKING:
    from flnb_telemetry import Recording
    from flnb_telemetry.analysis.memory import Timeline
    from flnb_telemetry.schema import Ints
    from numpy.typing import NDArray

    from flnb.memory_lab.replay_table import Replay

__all__ = [
    "TEMPLATE",
    "collectives",
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

OWNERS = {"scope": "(outside of scopes)", "op": "(no op)", "line": "(unknown line)"}
"""Owners by which `memory` can group blocks, and for each the name of the group of blocks without such an owner."""
POINTS = 10_000  # of a line at most
LONGEST = 100  # characters of a name
TEETH, CRESTS = 60, 200
"""The most rises of live memory that are drawn one by one, and the number of points drawn if there are more."""
MIB = 2**20
INK = "#6f757b"
AXIS = {
    "gridcolor": "rgba(127,127,127,0.25)", "zerolinecolor": "rgba(127,127,127,0.4)",
    "automargin": True, "title": {"standoff": 15},
}  # fmt: skip
MANAGERS = ("#359cdf", "#a35226", "#5c906b", "#8a63b8", "#c9922b", "#c2528b", "#3f9a9a", "#7d7f2a")
TEMPLATE = {
    "layout": {
        "paper_bgcolor": "rgba(0,0,0,0)",  # the notebook's, light or dark
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK}, "xaxis": AXIS, "yaxis": AXIS, "title": {"x": 0.05}, "colorway": MANAGERS,
        "annotationdefaults": {"arrowcolor": INK, "arrowhead": 0, "arrowwidth": 1},
    }
}  # fmt: skip
"""A template that makes any plotly figure readable in notebooks with light and with dark themes."""


def _figure(title: str, x: str, y: str) -> Any:
    """Return an empty plotly figure with a title and axis titles."""
    layout = {"title": html_text(title, LONGEST), "xaxis": {"title": x}, "yaxis": {"title": y, "rangemode": "tozero"}}
    layout |= {"template": TEMPLATE, "margin": {"l": 64, "r": 24, "t": 56, "b": 48}}
    return require("plotly.graph_objects", "lab", "drawing a figure").Figure(layout=layout)


def _note(figure: Any, text: str, **place: Any) -> None:
    """Write text into a figure at relative position (``x``, ``y``), each from 0 to 1."""
    figure.add_annotation(text=text, xref="paper", yref="paper", showarrow=False, **place)


def op_times(run: Recording, top: int = 20) -> Any:
    """Draw the total times of the slowest ops as a plotly bar chart, coloured by kind of op ("matmul", "norm", ...).

    Args:
        run: a recording.
        top: the number of ops to draw.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.exp(flnb.ones((64, 64)))
    >>> figure = flnb.plot.op_times(run)
    >>> figure.layout.title.text, sorted(name for bar in figure.data for name in bar.y)
    ('Op times of example', ['exp', 'full'])
    """
    rows = run.ops.by("op", "family").rows
    shown = rows[:top]
    unit, scale = ("s", 1e9) if rows and max(row.total for row in rows) > 1e9 else ("ms", 1e6)
    figure = _figure(f"Op times of {run.name}", f"total time, {unit}", "")
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


def memory(run: Recording, by: str = "category") -> Any:
    """Draw live bytes over time, stacked by category, scope, op or line, and reserved bytes, as a plotly figure.

    Args:
        run: a recording.
        by: how live bytes are divided into areas: by the "category" of the memory, or by the "scope", "op" or "line"
            of the user's program that allocated it. The 8 owners with the highest peaks have an area each, all others
            share one. Lines are known only for captured programs (`flnb.jit`, the backend "deferred").

    If more than twice the peak is reserved, the legend says how much and the axis ends above the peak. Markers show
    when saved tensors were moved (`flnb.memory.offload`, `compress`), and a line shows how many bytes are away. In
    long recordings each point is the highest value in one or several steps, whose number the subtitle states.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.exp(flnb.ones((64, 64)))
    >>> flnb.plot.memory(run).layout.title.text
    'Memory of example'
    >>> {"exp", "full"} <= {area.name for area in flnb.plot.memory(run, by="op").data}
    True
    """
    if by not in ("category", *OWNERS):
        raise ValueError(f"plot.memory: by={by!r}, expected one of category, {', '.join(OWNERS)}")
    every = run.memory.timeline()
    unit, nbytes = ("MiB", MIB) if every.allocated.max(initial=0) >= MIB else ("KiB", 1024)
    figure = _figure(f"Memory of {run.name}", "time, s", unit)
    line = every.spread(POINTS)
    if (teeth := _teeth(every.allocated)) > TEETH:
        edges, each = _stretches(run, every.t, teeth)
        highest = [a + int(np.argmax(every.allocated[a:b])) for a, b in pairwise([*edges, len(every.t)])]
        line = type(every)._make(column[highest] for column in every)
        figure.update_layout(title={"subtitle": {"text": f"each point: the most live in {each}"}})
    for name, colour, held in _by_category(line) if by == "category" else _by_owner(run, line, by):
        stroke = {"width": 0.5, "color": colour, "shape": "hv"}
        figure.add_scatter(x=line.t, y=held / nbytes, name=name, stackgroup="live", line=stroke, fillcolor=colour)
    dashed = {"color": INK, "dash": "dot", "shape": "hv"}
    most, reserved = int(line.allocated.max(initial=0)), int(line.reserved.max(initial=0))
    above = reserved > 2 * most > 0
    label = f"reserved {quantity.size(reserved)}, above" if above else "reserved"
    figure.add_scatter(x=line.t, y=line.reserved / nbytes, name=label, line=dashed)
    _marks(figure, run, nbytes)
    if len(line.t):
        at = float(line.t[np.argmax(line.allocated)])
        aside = 1 if at < (line.t[0] + line.t[-1]) / 2 else -1  # towards the middle, away from the axis
        anchor = "left" if aside > 0 else "right"
        text, top = f"peak {quantity.size(most)}", (most if above else max(most, reserved)) / nbytes
        beside = {"ax": 32 * aside, "ay": 1.09 * top, "ayref": "y", "xanchor": anchor}  # where no line is
        figure.add_annotation(x=at, y=most / nbytes, text=text, **beside)
        figure.update_yaxes(range=[0, 1.18 * top])
    return figure


def _by_category(line: Timeline) -> list[tuple[str, str, Ints]]:
    """Return for each category with live bytes its name, its colour, and its live bytes at each moment of ``line``."""
    held = [(name, line.by_category[:, schema.CATEGORIES.index(name)]) for name in palette.STACK]
    return [(name.replace("_", " "), palette.CATEGORY[name][0], own) for name, own in held if own.any()]


def _by_owner(run: Recording, line: Timeline, by: str) -> list[tuple[str, str, Ints]]:
    """Return name, colour and live bytes at each moment of ``line`` for the scopes, ops or lines that own the most.

    The owners are sorted by their highest number of bytes, the largest first; those beyond the eighth share the last
    entry. ``by`` is "scope", "op" or "line".
    """
    block, catalog, moments = run.memory.block, run.catalog, np.rint(line.t * 1e9).astype(np.int64) + run.start
    catalog.refresh()
    owner = catalog.op[block["plan"]] if by == "op" else getattr(catalog, by)[block["context"]]
    known, which = np.unique(owner, return_inverse=True)

    def live(rows: NDArray[np.bool_]) -> Ints:
        size, edges = block["size"][rows], [block["t"][rows], block["end"][rows]]
        change, order = np.concatenate([size, -size]), np.argsort(np.concatenate(edges), kind="stable")
        held: Ints = np.concatenate([[0], np.cumsum(change[order])])
        return held[np.searchsorted(np.concatenate(edges)[order], moments, "right")]

    found = [(catalog.strings.items[known[i]], live(which == i)) for i in range(len(known))]
    found = sorted((one for one in found if one[1].any()), key=lambda one: -int(one[1].max()))
    shown, rest = found[: len(MANAGERS)], found[len(MANAGERS) :]
    areas = [
        (html_text(name or OWNERS[by], LONGEST), colour, own)
        for (name, own), colour in zip(shown, MANAGERS, strict=False)
    ]
    if rest:
        areas.append((f"{len(rest)} others", INK, np.sum([own for _, own in rest], axis=0)))
    return areas


def _teeth(level: Ints) -> int:
    """Count the rises of a series: how often it changes from low values to high ones.

    Low and high values are the lowest and the highest quarter of the range without outliers.
    """
    low, high = np.quantile(level, (0.05, 0.95)) if len(level) else (0, 0)
    quarter = (high - low) / 4
    side = np.sign((level >= high - quarter).astype(int) - (level <= low + quarter))
    side = side[side != 0]
    return int(np.count_nonzero(np.diff(side) > 0))


def _stretches(run: Recording, t: NDArray[np.float64], teeth: int) -> tuple[list[int], str]:
    """Divide the times ``t`` into intervals; only the highest value in each interval will be drawn.

    An interval is one or several steps or, in a recording with few steps, a fixed number of allocations and frees.
    ``teeth``, the number of rises (see `_teeth`), limits the number of intervals.

    Returns:
        The indices at which intervals begin, and the length of an interval as text, such as "3 steps".
    """
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


def _marks(figure: Any, run: Recording, unit: int) -> None:
    """Add markers where saved tensors were moved to or from other memory, and a line of the bytes that are away.

    ``unit`` is the number of bytes that the vertical axis shows as 1.
    """
    held, aside, moves = run.memory.timeline(), run.memory.aside.spread(POINTS), run.in_seconds(run.memory.transfer)
    if aside.allocated.any():
        dashed = {"color": INK, "dash": "dash", "shape": "hv"}
        figure.add_scatter(x=aside.t, y=aside.allocated / unit, name="moved away", line=dashed)
    for number, name in enumerate(schema.DIRECTIONS):
        chosen = np.flatnonzero(moves["direction"] == number)
        if len(chosen):
            chosen = chosen[:: -(-len(chosen) // POINTS)]
            t = moves["t0"][chosen]
            live = held.allocated[np.maximum(0, np.searchsorted(held.t, t, "right") - 1)]
            sizes = [quantity.size(nbytes) for nbytes in moves["nbytes"][chosen].tolist()]
            mark = {"symbol": MARKS[name], "color": INK, "size": 9}
            figure.add_scatter(x=t, y=live / unit, name=name, mode="markers", marker=mark, hovertext=sizes)


def fragmentation(run: Recording, request: int | None = None) -> Any:
    """Draw fragmentation over time as a plotly figure: reserved bytes / live bytes, and unusable free memory.

    Args:
        run: a recording.
        request: a number of bytes; smaller free blocks count as unusable. By default the largest request of the
            recording.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.exp(flnb.ones((64, 64)))
    >>> flnb.plot.fragmentation(run).layout.title.text
    'Fragmentation of example'
    """
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
    figure.update_layout(yaxis2=share, legend=above, margin={"t": 104, "r": 72, "b": 128})
    peak, average = quantity.significant(found.at_peak), quantity.significant(found.average)
    headline = f"reserved / live is {peak}× at the peak, {average}× on time average"
    most = 4 * max(found.at_peak, found.average)  # while next to nothing is live the ratio may be thousands
    if (highest := float(np.nanmax(found.ratio, initial=0))) > most:
        figure.update_layout(yaxis_range=[0, most])
        headline += f"; up to {quantity.significant(highest)}× beyond the axis"
    figure.update_layout(title={"subtitle": {"text": headline}, "y": 0.97, "yanchor": "top"})
    formulas = "<br>".join(FORMULAS[name] for name in ("ratio", "unusable", "internal", "average"))
    figure.update_xaxes(title_standoff=4)
    _note(figure, formulas, x=0, y=0, yshift=-60, align="left", yanchor="top", font={"size": 11})  # below the title
    return figure


def replay(found: Replay) -> Any:
    """Draw the bytes that memory managers reserved in a `flnb.memory.replay`, as a plotly figure.

    One chart shows the least possible memory, and the reserved and live bytes after each call (in long traces, the
    highest value of several calls). A second chart shows reserved bytes / live bytes of each manager at its peak.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.exp(flnb.ones((64, 64)))
    >>> found = flnb.memory.replay(run, ["caching", "buddy"], seconds=0.1)
    >>> flnb.plot.replay(found).layout.title.text
    'Replay of example'
    """
    figure = _figure(f"Replay of {found.trace.name}", "calls", "MiB")
    calls, live = crests(found.trace.live)
    thin = {"shape": "hv", "color": INK, "width": 1}
    figure.add_scatter(x=calls, y=live / MIB, name="live", fill="tozeroy", line=thin)
    packed = list(found.bounds)[1]
    shown = [row.peak_reserved for row in found.rows if row.peak_reserved <= 4 * found.bounds[packed]]
    top = max([*shown, *found.bounds.values()])
    for i, row in enumerate(found.rows):
        colour = MANAGERS[i % len(MANAGERS)]
        calls, reserved = crests(row.reserved)
        manager = html_text(row.manager, LONGEST)
        label = manager if row.peak_reserved <= top else f"{manager}, up to {quantity.size(row.peak_reserved)}"
        figure.add_scatter(x=calls, y=reserved / MIB, name=label, line={"shape": "hv", "color": colour})
        name, ratio = f"{manager} ", quantity.significant(row.ratio_at_peak)
        about = {"text": [f"{ratio}×"], "textposition": "outside", "cliponaxis": False, "showlegend": False}
        about |= {"orientation": "h", "xaxis": "x2", "yaxis": "y2", "marker_color": colour}
        figure.add_bar(x=[row.ratio_at_peak], y=[name], name=manager, **about)
    for text, height in found.bounds.items():
        line = {"color": INK, "dash": "dot" if text == packed else "dash"}
        side = "top right" if text == packed else "bottom right"  # the two are often at one height
        figure.add_hline(y=height / MIB, line=line, annotation_text=text, annotation_position=side)
    least = found.bounds[packed] / max(1, found.trace.peak_live)
    figure.add_vline(x=least, line={"color": INK, "dash": "dot"}, xref="x2", yref="y2")
    title = "reserved / live at the peak"
    ratio_axis = {"domain": [0.76, 1], "anchor": "y2", "title": title, "rangemode": "tozero"}
    figure.update_layout(
        yaxis_range=[0, 1.1 * top / MIB], xaxis_domain=[0, 0.56], xaxis2=ratio_axis,
        yaxis2={"anchor": "x2", "autorange": "reversed"}, legend={"orientation": "h", "y": -0.2},
    )  # fmt: skip
    return figure


def crests(series: Ints) -> tuple[Ints, Ints]:
    """Reduce a series to at most `POINTS` points; return indices, and the largest value from each index to the next."""
    if not len(series):
        return series, series
    edges = np.unique(np.linspace(0, len(series), POINTS, endpoint=False).astype(np.int64))
    return edges, np.maximum.reduceat(series, edges)


def roofline(run: Recording, peaks: Peaks | None = None) -> Any:
    """Draw the FLOP/s of every op against its FLOPs per byte, with the machine's limits, as a plotly figure.

    Each op has one point for each combination of input shapes. The point shows the FLOP/s at the op's median time. Its
    colour shows the kind of op ("matmul", "norm", ...), and its size shows the op's share of the total time. FLOPs are
    estimates; bytes are the fewest possible: every input is read once and the result is written once.

    Args:
        run: a recording.
        peaks: the machine's FLOP/s and bandwidths; by default they are measured now, which takes up to a second.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.ones((64, 64)) @ flnb.ones((64, 64))
    >>> flnb.plot.roofline(run).layout.title.text
    'Roofline of example'
    """
    figure = _figure(f"Roofline of {run.name}", "FLOPs per byte", "GFLOP/s")
    found = points(run.table("op"), run.catalog)
    roof = peaks or measured()
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
