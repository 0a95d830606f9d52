"""Plotly figures of memory: live and reserved bytes, fragmentation, and replays on other memory managers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import palette, quantity, schema
from flnb_telemetry.analysis.memory import FORMULAS
from flnb_telemetry.run import expect_recording
from flnb_telemetry.safe_text import html_text

from flnb.plot.figures import INK, LONGEST, MANAGERS, MIB, POINTS, blank_figure, crests, note

if TYPE_CHECKING:
    from flnb_telemetry import Recording
    from flnb_telemetry.analysis.memory import Timeline
    from flnb_telemetry.schema import Ints
    from numpy.typing import NDArray

    from flnb.memory_lab.replay_table import Replay
    from flnb.memory_lab.replaying import Outcome

OWNERS = {"scope": "(outside of scopes)", "op": "(no op)", "line": "(unknown line)"}
"""Owners by which `memory` can group blocks, and for each the name of the group of blocks without such an owner."""
TEETH, CRESTS = 60, 200
"""The most rises of live memory that are drawn one by one, and the number of points drawn if there are more."""


def memory(run: Recording, by: str = "category") -> Any:
    """Draw live bytes over time, stacked by category, scope, op or line, and reserved bytes, as a plotly figure.

    Args:
        run: a recording.
        by: how live bytes are divided into areas: by the "category" of the memory, or by the "scope", "op" or "line"
            of the user's program that allocated it. The 8 owners with the highest peaks have an area each, all others
            share one.

    If more than twice the peak is reserved, the legend says how much and the axis ends above the peak. Markers show
    when saved tensors were moved (`flnb.memory.offload`, `compress`), and a line shows how many bytes are away. In
    long recordings each point is the highest value in one or several steps, whose number the subtitle states.

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: ``run`` is not a recording.
        ValueError: ``by`` is none of these.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.exp(flnb.ones((64, 64)))
    >>> flnb.plot.memory(run).layout.title.text
    'Memory of example'
    >>> {"exp", "full"} <= {area.name for area in flnb.plot.memory(run, by="op").data}
    True
    """
    if by not in ("category", *OWNERS):
        raise ValueError(f"flnb.plot.memory: by={by!r}, expected one of category, {', '.join(OWNERS)}")
    every = expect_recording("flnb.plot.memory", run).memory.timeline()
    unit, nbytes = ("MiB", MIB) if every.allocated.max(initial=0) >= MIB else ("KiB", 1024)
    figure = blank_figure(f"Memory of {run.name}", "time, s", unit)
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

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: ``run`` is not a recording.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.exp(flnb.ones((64, 64)))
    >>> flnb.plot.fragmentation(run).layout.title.text
    'Fragmentation of example'
    """
    found = expect_recording("flnb.plot.fragmentation", run).memory.fragmentation(request)
    figure = blank_figure(f"Fragmentation of {run.name}", "time, s", "reserved / live")
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
    figure.update_layout(yaxis2=share, legend=above, margin={"t": 104, "r": 72, "b": 128}, height=480)
    peak, average = quantity.significant(found.at_peak), quantity.significant(found.average)
    headline = f"reserved / live is {peak}× at the peak, {average}× on time average"
    most = 4 * max(found.at_peak, found.average)  # while next to nothing is live the ratio may be thousands
    if (highest := float(np.nanmax(found.ratio, initial=0))) > most:
        figure.update_layout(yaxis_range=[0, most])
        headline += f"; up to {quantity.significant(highest)}× beyond the axis"
    figure.update_layout(title={"subtitle": {"text": headline}, "y": 0.97, "yanchor": "top"})
    formulas = "<br>".join(FORMULAS[name] for name in ("ratio", "unusable", "internal", "average"))
    figure.update_xaxes(title_standoff=4)
    note(figure, formulas, x=0, y=0, yshift=-60, align="left", yanchor="top", font={"size": 11})  # below the title
    return figure


def replay(found: Replay) -> Any:
    """Draw the bytes that memory managers reserved in a `flnb.memory.replay`, as a plotly figure.

    One chart shows the least possible memory, and the reserved and live bytes after each call (in long traces, the
    highest value of several calls). A second chart shows what each manager reserved at its peak beyond the live bytes.

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: ``found`` is not the result of `flnb.memory.replay`.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.exp(flnb.ones((64, 64)))
    >>> found = flnb.memory.replay(run, ["caching", "buddy"], seconds=0.1)
    >>> flnb.plot.replay(found).layout.title.text
    'Replay of example'
    """
    if not hasattr(found, "bounds"):
        raise TypeError(f"flnb.plot.replay: got {type(found).__name__}, expected the result of flnb.memory.replay(run)")
    figure = blank_figure(f"Replay of {found.trace.name}", "calls", "MiB")
    calls, live = crests(found.trace.live)
    thin = {"shape": "hv", "color": INK, "width": 1}
    figure.add_scatter(x=calls, y=live / MIB, name="live", fill="tozeroy", line=thin)
    packed = list(found.bounds)[1]
    shown = [row.peak_reserved for row in found.rows if row.peak_reserved <= 4 * found.bounds[packed]]
    top = max([*shown, *found.bounds.values()])
    beyond: list[int] = []
    for i, row in enumerate(found.rows):
        colour = MANAGERS[i % len(MANAGERS)]
        calls, reserved = crests(row.reserved)
        manager = html_text(row.manager, LONGEST)
        label = manager if row.peak_reserved <= top else f"{manager}, up to {quantity.size(row.peak_reserved)}"
        figure.add_scatter(x=calls, y=reserved / MIB, name=label, line={"shape": "hv", "color": colour})
        name, excess = f"{manager} ", _excess(row)
        beyond.append(excess)
        about = {"text": [quantity.size(excess)], "textposition": "outside", "cliponaxis": False, "showlegend": False}
        about |= {"orientation": "h", "xaxis": "x2", "yaxis": "y2", "marker_color": colour}
        figure.add_bar(x=[excess / MIB], y=[name], name=manager, **about)
    for text, height in found.bounds.items():
        line = {"color": INK, "dash": "dot" if text == packed else "dash"}
        # the two are often at one height; on the left little is live yet
        side = "top left" if text == packed else "bottom left"
        figure.add_hline(y=height / MIB, line=line, annotation_text=text, annotation_position=side)
    least = (found.bounds[packed] - found.trace.peak_live) / MIB
    figure.add_vline(x=least, line={"color": INK, "dash": "dot"}, xref="x2", yref="y2")
    title = "reserved - live, MiB"
    most = max([*beyond, MIB // 100]) / MIB
    excess_axis = {"domain": [0.76, 1], "anchor": "y2", "title": title, "range": [0, 1.5 * most]}  # with room for texts
    figure.update_layout(
        yaxis_range=[0, 1.1 * top / MIB], xaxis_domain=[0, 0.56], xaxis2=excess_axis,
        yaxis2={"anchor": "x2", "autorange": "reversed"}, legend={"orientation": "h", "y": -0.2},
    )  # fmt: skip
    return figure


def _excess(row: Outcome) -> int:
    """Return the bytes that a manager reserved beyond the live ones when most were live; 0 without any call."""
    if not len(row.live):
        return 0
    peak = int(np.argmax(row.live))
    return int(row.reserved[peak] - row.live[peak])
