"""The learning curve of an experiment as a plotly figure."""

from __future__ import annotations

import itertools
from typing import Any

from flnb_telemetry.extras import require


def learning_curve(result: dict[str, Any]) -> Any:
    """Return a plotly figure with two curves for each seed: the training loss, and the result on held-out data.

    Horizontal lines show the goal and the results of simple predictors. The argument `result` is the entry "rows" of a
    file benchmarks/results/trained-*.json.
    """
    figure = require("plotly.subplots", "lab", "drawing a figure").make_subplots(
        cols=2, subplot_titles=("training loss, nats", f"held out: {result['figure']}")
    )
    colours = require("plotly.colors", "lab", "drawing a figure").qualitative.D3
    for each, colour in zip(result["seeds"], itertools.cycle(colours), strict=False):
        steps, name = [point["step"] for point in each["curve"]], f"seed {each['seed']}"
        for col, key in ((1, "loss"), (2, "test")):
            values = [point[key] for point in each["curve"]]
            figure.add_scatter(x=steps, y=values, name=name, line_color=colour, showlegend=col == 2, row=1, col=col)
    for name, value in {"goal": result["goal"], **result["references"]}.items():
        dash = "solid" if name == "goal" else "dot"
        figure.add_hline(y=value, line={"dash": dash, "width": 1}, annotation_text=f"{name} {value:.4g}", row=1, col=2)
    figure.update_xaxes(title="steps")
    figure.update_layout(title=result["title"], template="simple_white")
    return figure
