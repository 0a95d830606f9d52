"""`flnb.plot.devices`: the calls of the host to devices, and when the streams ran their work, as a plotly figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import device_words, quantity
from flnb_telemetry.analysis.devices import EMULATED
from flnb_telemetry.extras import require
from flnb_telemetry.run import expect_recording
from flnb_telemetry.safe_text import html_text

from flnb.plot import figures

if TYPE_CHECKING:
    from flnb_telemetry import Recording
    from flnb_telemetry.analysis.devices import Devices
    from flnb_telemetry.schema import Ints

MOST = 1500
"""The most launches and copies that are drawn, the newest ones."""
MS = 1e6
COLOURS = ("#a35226", "#086d74", "#359cdf", "#8c9299", "#8660ab")
"""The colour of launches, and of copies by their direction, an index of `device_words.ROUTES`."""


def devices(run: Recording) -> Any:
    """Draw the launches and copies of a recording as a plotly figure: a row for the host and one for each stream.

    The host's row has its calls, the streams' rows have the times at which the device ran them. An emulated device has
    no times: its figure has equal slots in the order in which tasks ended, and no row of the host.

    Args:
        run: a recording.

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: ``run`` is not a recording.
        ValueError: the recording has no launches or copies.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.ones(3) * 2.0
    >>> flnb.plot.devices(run)
    Traceback (most recent call last):
    ...
    ValueError: flnb.plot.devices: 'example' has no launches and no copies; record ops on a device such as cuda
    """
    found: Devices = expect_recording("flnb.plot.devices", run).devices
    if not len(found):
        raise ValueError(
            f"flnb.plot.devices: {run.name!r} has no launches and no copies; record ops on a device such as cuda"
        )
    shown = np.arange(max(0, len(found) - MOST), len(found))
    x = "place in the order of tasks" if found.emulated else "time, ms"
    figure = figures.blank_figure(f"Devices of {run.name}", x, "")
    if found.emulated:
        figure.update_layout(title={"subtitle": {"text": EMULATED}}, margin={"t": 76})
    rows = [] if found.emulated else ["host"]
    streams = sorted(set(zip(found.task["device"].tolist(), found.task["stream"].tolist(), strict=True)))
    rows += [f"{found.places[at]}, stream {stream}" for at, stream in streams]
    row = {place: number for number, place in enumerate(streams, len(rows) - len(streams))}
    for route in range(len(device_words.ROUTES)):
        _add(figure, run, shown[found.task["route"][shown] == route], row, route)
    figure.update_yaxes(tickvals=list(range(len(rows))), ticktext=rows, range=[len(rows) - 0.5, -0.5], showgrid=False)
    figure.update_layout(barmode="overlay", height=190 + 40 * len(rows), legend={"orientation": "h", "y": -0.35})
    return figure


def _add(figure: Any, run: Recording, chosen: Ints, row: dict[tuple[int, int], int], route: int) -> None:
    """Add the bars of launches (``route`` 0) or of the copies in one direction to a figure.

    Args:
        figure: a plotly figure.
        run: the recording.
        chosen: the rows of `Devices.task` to draw.
        row: for each device and stream the place of its row in the figure.
        route: an index of `device_words.ROUTES`.
    """
    found: Devices = run.devices
    task = {name: column[chosen] for name, column in found.task.items()}
    here = [row[place] for place in zip(task["device"].tolist(), task["stream"].tolist(), strict=True)]
    texts = [
        html_text(run.catalog.kernels.items[kernel].name if kernel else quantity.size(nbytes), figures.LONGEST)
        for kernel, nbytes in zip(task["kernel"].tolist(), task["nbytes"].tolist(), strict=True)
    ]
    if found.emulated:
        known = task["slot"] >= 0
        base, x, y = task["slot"][known], np.ones(int(known.sum())), np.array(here, np.int64)[known]
        texts = [text for text, each in zip(texts, known.tolist(), strict=True) if each]
    else:
        known = task["ran1"] > 0
        base = np.concatenate([task["t0"], task["ran0"][known]])
        x = np.concatenate([task["t1"], task["ran1"][known]]) - base
        base, x = run.seconds_at(base) * 1e3, x / MS
        y = np.concatenate([np.zeros(len(chosen), np.int64), np.array(here, np.int64)[known]])
        texts += [text for text, each in zip(texts, known.tolist(), strict=True) if each]
    if not len(x):
        return
    name = f"copy {device_words.ROUTES[route]}" if route else "launch"
    line = {"color": "#ffffff", "width": 0.5 if found.emulated else 0}
    figure.add_trace(require("plotly.graph_objects", "lab", "drawing a figure").Bar(
        base=base, x=x, y=y, orientation="h", width=0.7, name=name, hovertext=texts, hoverinfo="text",
        marker={"color": COLOURS[route], "line": line},
    ))  # fmt: skip
