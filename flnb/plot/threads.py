"""`flnb.plot.timeline`: what each thread, and each stream of a device, did when, as a plotly figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import palette, quantity, schema
from flnb_telemetry.extras import require
from flnb_telemetry.live.bars import COUNT, LONGEST, PAIR, SHIFT, T0, T1
from flnb_telemetry.live.threads import KINDS, TABLES, Key, Timeline
from flnb_telemetry.run import expect_recording
from flnb_telemetry.safe_text import html_text

from flnb.plot import figures

if TYPE_CHECKING:
    from flnb_telemetry import Recording
    from flnb_telemetry.live.bars import Bars

PIXELS = 1200
"""Bars that are narrower than the figure's width divided by this number are merged."""
LABEL = 0.1
"""The room for the label of a step, as a share of the figure's width."""
MS = 1e6
HEIGHT = 0.86
GREYS = {"phase": "rgba(127,127,127,0.45)", "scope": "rgba(127,127,127,0.22)"}
OTHER = "rgba(127,127,127,0.7)"


def timeline(run: Recording, other: Recording | None = None, *, steps: tuple[int, int] | None = None) -> Any:
    """Draw what each thread did when, as a plotly figure: rows of bars for phases, nested scopes, and ops.

    Below them, each stream of a device has a row with the launches and copies that the device ran. An emulated device
    has an order but no times, so it has no rows here (see `flnb.plot.devices`).
    The colour of an op's bar shows the kind of op ("matmul", "norm", ...). Bars that are too narrow to be seen are
    merged; the tooltip of a merged bar says for how many ops it stands, and which of them took longest.

    Args:
        run: a recording.
        other: a second recording, drawn below the first on the same scale; the times of both count from their
            beginnings.
        steps: the first and the last step to draw, equal for one step; by default the whole recording.

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: ``run`` or ``other`` is not a recording, or ``steps`` is not a pair.
        ValueError: a recording has no such steps, or no ops.

    >>> import flnb
    >>> with flnb.record("example") as run, flnb.scope("outer"):
    ...     y = flnb.exp(flnb.ones(8))
    >>> flnb.plot.timeline(run).layout.title.text
    'Timeline of example'
    >>> flnb.plot.timeline(run, run).layout.yaxis.ticktext[1]
    'A: scope 1'
    """
    runs = [expect_recording("flnb.plot.timeline", one) for one in ([run] if other is None else [run, other])]
    spans = [_span(one, steps) for one in runs]
    longest = max(end - begin for begin, end in spans)
    names = [run.name] if other is None else [f"A: {run.name}", f"B: {other.name}"]
    figure = figures.blank_figure(f"Timeline of {' and '.join(names)}", "time, ms", "")
    places, labels, end = list[int](), list[str](), 0
    for one, span, name in zip(runs, spans, names, strict=True):
        titles = _draw(figure, one, span, longest, end)
        places += range(end, end + len(titles))
        labels += titles if other is None else [f"{name[0]}: {title}" for title in titles]
        end += len(titles) + 1
    figure.update_yaxes(
        tickvals=places, ticktext=labels, range=[end - 1.5, -0.5], showgrid=False, rangemode="normal", zeroline=False
    )
    figure.update_layout(
        barmode="overlay", height=170 + 26 * (end - 1), bargap=0, legend={"orientation": "h", "y": -0.3},
        xaxis={"range": [0, longest / MS]}, uniformtext={"minsize": 9, "mode": "hide"},
    )  # fmt: skip
    return figure


def _draw(figure: Any, run: Recording, span: tuple[int, int], longest: int, first: int) -> list[str]:
    """Add the rows of a recording to a figure, and return their labels.

    Args:
        figure: a plotly figure.
        run: the recording.
        span: the first and the last time to draw, in ns.
        longest: the length of the figure's axis of time, in ns.
        first: the place of the first row on the vertical axis.
    """
    go = require("plotly.graph_objects", "lab", "drawing a figure")
    begin, end = span
    rows = Timeline(run.catalog)
    rows.take({kind: run.table(kind) for kind in TABLES})
    keys = rows.row_keys()
    shown = {trace.name for trace in figure.data if trace.showlegend}
    for y, key in enumerate(keys, first):
        bars = rows.rows[key].window(begin, end, max(1, longest // PIXELS))
        colours, names, texts = _looks(run, key, bars)
        for name in dict.fromkeys(colours):
            at = np.flatnonzero([one == name for one in colours])
            kind = KINDS[key.kind]
            colour = GREYS.get(kind) or palette.FAMILY.get(name, (OTHER,))[0]
            figure.add_trace(go.Bar(
                base=(bars[T0, at] - begin) / MS, x=(bars[T1, at] - bars[T0, at]) / MS, y=np.full(len(at), y),
                orientation="h", width=HEIGHT if kind != "part" else HEIGHT / 2, name=name, legendgroup=name,
                marker={"color": colour, "line": {"width": 0}}, showlegend=name not in shown and kind not in GREYS,
                hovertext=[texts[i] for i in at.tolist()], hoverinfo="text",
                textposition="inside", insidetextanchor="start",
                text=[names[i] for i in at.tolist()] if kind != "part" else None,
            ))  # fmt: skip
            shown |= {name} if kind not in GREYS else set()
    last = -LABEL
    for t0, t1, index in schema.tuples(run.table("step"), "t0", "t1", "index"):
        if begin <= t0 < end and (t1 - t0) * PIXELS > 40 * longest:
            x = (t0 - begin) / MS
            line = {"color": figures.INK, "width": 1, "dash": "dot"}
            figure.add_shape(type="line", x0=x, x1=x, y0=first - 0.5, y1=first + len(keys) - 0.5, line=line)
            place = (t0 - begin) / longest
            if last + LABEL <= place <= 1 - LABEL:  # of steps of several ranks, or short ones, not all labels have room
                last = place
                figure.add_annotation(
                    x=x, y=first - 0.5, yanchor="bottom", text=f"step {index}", showarrow=False, xanchor="left"
                )
    places = {
        lane: name if (rank := rows.ranks.get(lane)) is None else f"rank {rank}, {name}"
        for lane, name in rows.stream_names().items()
    }
    return [_title(key, places) for key in keys]


def _span(run: Recording, steps: tuple[int, int] | None) -> tuple[int, int]:
    """Return the first and the last time to draw, in ns: those of ``steps`` (first, last), or of the run for None."""
    op = run.table("op")
    if not len(op["t0"]):
        raise ValueError(f"flnb.plot.timeline: {run.name!r} has no ops; record some inside `with flnb.record()`")
    if steps is None:
        scopes, ran = run.table("scope")["t"], run.table("ran")
        times = np.concatenate([op["t0"][:1], op["t1"], scopes, ran["t1"][ran["bound"] >= 0]])
        return int(times.min()), int(times.max())
    if not isinstance(steps, tuple | list) or len(steps) != 2:
        raise TypeError(
            f"flnb.plot.timeline: got steps={steps!r}, expected the first and the last step to draw, such as (6, 6)"
        )
    step = run.table("step")
    chosen = (step["index"] >= steps[0]) & (step["index"] <= steps[1])
    if not chosen.any():
        known = f"{step['index'].min()} to {step['index'].max()}" if len(step["index"]) else "none"
        raise ValueError(f"flnb.plot.timeline: got steps={steps!r}; steps of the recording: {known}")
    return int(step["t0"][chosen].min()), int(step["t1"][chosen].max())


def _looks(run: Recording, key: Key, bars: Bars) -> tuple[list[str], list[str], list[str]]:
    """Return, for the bars of the row ``key``, three lists: kinds, names and tooltips.

    The kind of a bar, such as "matmul", determines its colour. Merged bars have no names.
    """
    kind, catalog = KINDS[key.kind], run.catalog
    colours, names, texts = [], [], []
    columns = (bars[PAIR] & (1 << SHIFT) - 1, bars[PAIR] >> SHIFT, bars[COUNT], bars[LONGEST], bars[T1] - bars[T0])
    for what, where, count, longest, spent in zip(*(column.tolist() for column in columns), strict=True):
        context = catalog.contexts.items[where]
        if kind == "phase":
            name = family = schema.PHASES[what]
        elif kind == "scope":
            name, family = context.scope, kind
        elif kind in ("compile", "materialize"):
            name, family = f"{kind} {what}", kind
        else:
            name, family = catalog.plans.items[what].op, catalog.plans.items[what].family
        text = f"{html_text(name, figures.LONGEST)} {quantity.duration(spent)}"
        if count > 1:
            text = (
                f"{quantity.count(count)} in {quantity.duration(spent)}<br>"
                f"the longest: {html_text(name, figures.LONGEST)} {quantity.duration(longest)}"
            )
        elif kind not in GREYS and context.scope:
            text += f"<br>{html_text(context.scope, figures.LONGEST)}"
        colours.append(family)
        names.append(html_text(name.split(".")[-1], figures.LONGEST) if count == 1 else "")
        texts.append(text)
    return colours, names, texts


def _title(key: Key, places: dict[int, str]) -> str:
    """Return the label of a row: it has the thread's number if the row shows phases, or the stream's device.

    `places` has the label of each stream's device.
    """
    kind = KINDS[key.kind]
    if kind == "task":
        return f"{html_text(places[key.lane], figures.LONGEST)}, stream {key.depth}"
    return f"thread {key.lane}, phase" if kind == "phase" else f"scope {key.depth + 1}" if kind == "scope" else kind
