"""`flnb.plot.modes`: a plotly figure of when ops are called, compiled and run in eager, deferred and compiled modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import palette, schema
from flnb_telemetry.extras import require
from flnb_telemetry.run import expect_recording
from flnb_telemetry.safe_text import html_text

from flnb.plot import figures

if TYPE_CHECKING:
    from flnb_telemetry import Recording

MS = 1e6
CALLS, RUNS = 1.0, 0.0
"""The positions on the y axis of the bars of calls and of running ops."""
HIGH = 0.7


def modes(runs: Mapping[str, Recording], asked: str = "ask") -> Any:
    """Draw when a function's ops are called, compiled and run, in a row for each of several recordings.

    The rows have separate time axes. A row shows a tick where an op is called or recorded, a hatched bar while a
    program is compiled, bars while ops and kernels run, and a marker where a block of memory is allocated. A line goes
    from the moment when the function's result is asked for to the moment when its values are available.

    Args:
        runs: the recordings by the name of the mode, each of one call of the function.
        asked: the name of the scope (`flnb.scope`) in which the result's values are read.

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: ``runs`` is not a mapping, or a value in it is not a recording.
        ValueError: there are no recordings, or in one of them there is no such scope.

    >>> import flnb
    >>> with flnb.record("deferred") as run, flnb.use_backend("deferred"):
    ...     y = flnb.exp(flnb.ones((64, 64)))
    ...     with flnb.scope("ask"):
    ...         value = y.tolist()
    >>> flnb.plot.modes({"deferred": run}).layout.title.text
    'When the work happens'
    """
    if not isinstance(runs, Mapping):
        raise TypeError(f"flnb.plot.modes: got {type(runs).__name__}, expected a dict from a name to a recording")
    if not runs:
        raise ValueError("flnb.plot.modes: got no recordings; expected a dict from a name to a recording")
    figure = require("plotly.subplots", "lab", "drawing a figure").make_subplots(
        rows=len(runs), cols=1, subplot_titles=[html_text(name, figures.LONGEST) for name in runs]
    )
    shown: set[str] = set()
    for row, (name, run) in enumerate(runs.items(), start=1):
        for trace in _row(name, expect_recording("flnb.plot.modes", run), asked):
            figure.add_trace(trace.update(showlegend=trace.name not in shown, legendgroup=trace.name), row=row, col=1)
            shown.add(trace.name)
    figure.update_annotations(xref="paper", x=0, xanchor="left", font={"size": 13})
    figure.update_yaxes(range=[-0.6, 1.6], tickvals=[RUNS, CALLS], ticktext=["runs", "calls"], showgrid=False)
    figure.update_xaxes(title={"text": "ms", "standoff": 2}, rangemode="tozero")
    figure.update_layout(
        template=figures.TEMPLATE, title="When the work happens", height=150 + 135 * len(runs), barmode="overlay",
        legend={"orientation": "h", "y": -0.5 / (len(runs) + 1)}, margin={"l": 64, "r": 24, "t": 84, "b": 48},
    )  # fmt: skip
    return figure


def _row(name: str, run: Recording, asked: str) -> list[Any]:
    """Return the plotly traces for the row of one recording; its time axis begins with the recording's first scope.

    Args:
        name: the name of the row.
        run: the recording.
        asked: the name of the scope in which the result's values are read.
    """
    go = require("plotly.graph_objects", "lab", "drawing a figure")
    scope, contexts = run.table("scope"), run.catalog.contexts.items
    inside = np.array([contexts[context].scope.split(".")[-1] == asked for context in scope["context"].tolist()], bool)
    begins = scope["t"][inside & (scope["enter"] > 0)]
    if not len(begins):
        raise ValueError(
            f"flnb.plot.modes: recording {name!r} has no scope {asked!r}: read the value inside `flnb.scope({asked!r})`"
        )
    origin, begin = int(scope["t"][0]), int(begins[0])
    ends = scope["t"][(scope["enter"] == 0) & (scope["t"] > begin)]
    end = int(ends[0]) if len(ends) else begin
    op = run.table("op")
    alone = op["estimated"] == 0
    called = run.table("record")["t0"]
    if not len(called):  # ops run when they are called; a program is one call
        called = scope["t"][:1] if len(run.table("kernel")["t0"]) else op["t0"][alone]
    ink = {"color": figures.INK}

    def ms(t: Any) -> Any:
        return (np.asarray(t) - origin) / MS

    def marks(t: Any, height: float, symbol: str, label: str, **about: Any) -> Any:
        marker = ink | {"symbol": symbol, "size": 9} | about
        return go.Scatter(x=ms(t), y=np.full(np.size(t), height), mode="markers", name=label, marker=marker)

    made = []
    for kind, chosen in (("op", alone), ("kernel", slice(None))):
        table = run.table(kind)
        plans = [run.catalog.plans.items[plan] for plan in table["plan"][chosen].tolist()]
        for family in dict.fromkeys(plan.family for plan in plans):
            rows = [i for i, plan in enumerate(plans) if plan.family == family]
            t0, t1 = table["t0"][chosen][rows], table["t1"][chosen][rows]
            colour = palette.FAMILY.get(family, palette.FAMILY["elementwise"])[0]
            made.append(
                _bars(
                    go, ms(t0), ms(t1), "fused kernel" if kind == "kernel" else family, {"color": colour}, plans, rows
                )
            )
    for t0, t1 in schema.tuples(run.table("compile"), "t0", "t1"):
        hatch = {"color": "rgba(127,127,127,0.25)", "line": ink, "pattern": {"shape": "/", "fgcolor": figures.INK}}
        made.append(_bars(go, ms([t0]), ms([t1]), "compile", hatch))
    made.append(marks(called, CALLS, "line-ns", "call or record", line=ink | {"width": 1.5}))
    blocks = run.table("alloc")["t"]
    made.append(marks(blocks[blocks >= origin], RUNS + 0.55, "triangle-down", "allocation", size=6))
    made.append(go.Scatter(x=ms([begin, end]), y=[CALLS + 0.4] * 2, mode="lines", name="waits for the value", line=ink))
    made += [
        marks([begin], CALLS + 0.4, "diamond", "value asked for"),
        marks([end], CALLS + 0.4, "triangle-left", "value there"),
    ]
    return made


def _bars(go: Any, t0: Any, t1: Any, name: str, marker: Any, plans: Any = (), rows: Any = ()) -> Any:
    """Return a plotly trace of horizontal bars from times ``t0`` to ``t1``, with names of ops as tooltips.

    Args:
        go: the module ``plotly.graph_objects``.
        t0, t1: the begin and the end of each bar.
        name: the name of the trace.
        marker: plotly's settings of the bars, such as the colour.
        plans: plans, which have the names of ops.
        rows: for each bar, the index of its plan in ``plans``.
    """
    texts = [html_text(plans[i].op, figures.LONGEST) for i in rows]
    height = HIGH if name != "compile" else 0.5 * HIGH
    return go.Bar(
        base=t0, x=t1 - t0, y=[RUNS if name != "compile" else CALLS] * len(t0), orientation="h", width=height,
        name=name, marker=marker, hovertext=texts,
    )  # fmt: skip
