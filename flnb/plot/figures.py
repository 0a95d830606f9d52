"""What all plotly figures have in common: a template for light and dark notebooks, colours, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.extras import require
from flnb_telemetry.safe_text import html_text

if TYPE_CHECKING:
    from flnb_telemetry.schema import Ints

POINTS = 10_000  # of a line at most
LONGEST = 100  # characters of a name
MIB = 2**20
INK = "#6f757b"
AXIS = {
    "gridcolor": "rgba(127,127,127,0.25)", "zerolinecolor": "rgba(127,127,127,0.4)",
    "automargin": True, "title": {"standoff": 15}, "ticklabelstandoff": 4,
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


def blank_figure(title: str, x: str, y: str) -> Any:
    """Return an empty plotly figure with a title and axis titles."""
    layout = {"title": html_text(title, LONGEST), "xaxis": {"title": x}, "yaxis": {"title": y, "rangemode": "tozero"}}
    layout |= {"template": TEMPLATE, "margin": {"l": 64, "r": 24, "t": 56, "b": 48}}
    return require("plotly.graph_objects", "lab", "drawing a figure").Figure(layout=layout)


def note(figure: Any, text: str, **place: Any) -> None:
    """Write text into a figure at relative position (``x``, ``y``), each from 0 to 1."""
    figure.add_annotation(text=text, xref="paper", yref="paper", showarrow=False, **place)


def crests(series: Ints) -> tuple[Ints, Ints]:
    """Reduce a series to at most `POINTS` points; return indices, and the largest value from each index to the next."""
    if not len(series):
        return series, series
    edges = np.unique(np.linspace(0, len(series), POINTS, endpoint=False).astype(np.int64))
    return edges, np.maximum.reduceat(series, edges)
