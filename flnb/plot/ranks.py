"""`flnb.plot.collectives`: a plotly figure of the ranks' waiting and transfer times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import palette, quantity
from flnb_telemetry.analysis.collectives import collectives as joined
from flnb_telemetry.run import expect_recording
from flnb_telemetry.safe_text import html_text

from flnb.plot import figures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb_telemetry import Recording
    from flnb_telemetry.analysis.collectives import Collectives
    from flnb_telemetry.ranks import Ranks
    from flnb_telemetry.schema import Ints

CALLS = 400
"""The most calls that are drawn one by one."""
MANY = 32
"""The most ranks whose calls are drawn as bars; with more, each rank is a row of a heat map."""
LANES = 3
"""The most calls at one time that are drawn under each other for one rank."""
COLOUR = palette.FAMILY["communication"][0]
MS = 1e6


def collectives(run: Recording | Ranks, steps: tuple[int, int] | None = None) -> Any:
    """Draw the ranks' collective calls as a plotly figure: hatched bars for waiting, filled bars for transfers.

    A rank waits until the last rank has made the same call. The subtitle says which rank was latest in the steps that
    are drawn, and why. For more than 32 ranks the figure is a heat map of how late each rank was in each step.

    Args:
        run: a recording in which ranks are threads, or a `Ranks` of several recordings.
        steps: the first and the last step to draw, equal for one step. By default the step in which most time was
            lost, with its neighbours; in a recording without steps, the last calls.

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: ``run`` is not a recording, or ``steps`` is not a pair.
        ValueError: there are no calls in these steps.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     done = flnb.distributed.run_threads(2, lambda: flnb.distributed.all_reduce(flnb.ones(3)).sum())
    >>> flnb.plot.collectives(run).layout.title.text
    'Collective calls of example'
    """
    for one in run.values() if isinstance(run, Mapping) else [run]:
        expect_recording("flnb.plot.collectives", one)
    calls = joined(run)
    many = len(calls.ranks) > MANY
    name = next(iter(run.values())).name if isinstance(run, Mapping) else run.name
    figure = figures.blank_figure(f"Collective calls of {name}", "step" if many else "time, ms", "rank")
    figure.update_yaxes(rangemode="normal", autorange="reversed", zeroline=False)
    chosen = _chosen(calls, steps)
    if many:
        _heat(figure, calls)
    else:
        _bars(figure, calls, chosen)
        figure.update_layout(legend={"orientation": "h", "y": -0.25})
        figure.update_layout(barmode="overlay", height=150 + max(56, 64 - len(calls.ranks)) * len(calls.ranks))
        figure.update_yaxes(tickvals=list(range(len(calls.ranks))), ticktext=list(calls.ranks), showgrid=False)
    _say(figure, calls, chosen)
    return figure


def _chosen(calls: Collectives, steps: tuple[int, int] | None) -> Ints:
    """Return the indices of the calls in the given steps or, for None, in the steps that `collectives` describes."""
    if steps is None and len(calls.steps):
        lost = [int(calls.lost[calls.step == index].sum()) for index in calls.steps.tolist()]
        at = int(np.argmax(lost))
        steps = int(calls.steps[max(0, at - 1)]), int(calls.steps[min(at + 1, len(calls.steps) - 1)])
    if steps is None:
        return np.arange(max(0, len(calls) - CALLS), len(calls))
    if not isinstance(steps, tuple | list) or len(steps) != 2:
        raise TypeError(
            f"flnb.plot.collectives: got steps={steps!r}, expected the first and the last step to draw, such as (6, 6)"
        )
    found = np.flatnonzero((calls.step >= steps[0]) & (calls.step <= steps[1]))
    if not len(found):
        kept = f"{calls.steps[0]} to {calls.steps[-1]}" if len(calls.steps) else "none"
        raise ValueError(
            f"flnb.plot.collectives: got steps={steps!r}, in which no rank made a collective call; expected the first "
            f"and the last step to draw; steps of the recording: {kept}"
        )
    return found[:CALLS]


def _bars(figure: Any, calls: Collectives, chosen: Ints) -> None:
    """Add a hatched bar for each wait, a filled bar for each transfer, and lines that connect the bars of each call.

    ``chosen`` has the indices of the calls to draw.
    """
    if not len(chosen):
        return
    begin = calls.begin[:, chosen]
    origin = int(begin[begin > 0].min())
    lanes, at = _lanes(calls, chosen)
    height = 0.8 / lanes
    hatch = {"shape": "/", "size": 5, "solidity": 0.35, "fgcolor": COLOUR, "bgcolor": "rgba(0,0,0,0)"}
    outline = {"color": COLOUR, "width": 1}
    for name, pattern, table in (("waiting", hatch, calls.waiting), ("transferring", None, calls.transfer)):
        rank, place = np.nonzero(table[:, chosen])
        call = chosen[place]
        start = calls.begin[rank, call] if pattern else np.maximum(calls.last[call], calls.begin[rank, call])
        about = [f"{line}<br>{name} {quantity.duration(ns)}" for line, ns in _about(calls, rank, call, table)]
        figure.add_bar(
            x=table[rank, call] / MS, base=(start - origin) / MS, y=rank - 0.4 + height * (at[place] + 0.5), name=name,
            width=0.8 * height, orientation="h", hovertext=about, hoverinfo="text",
            marker={"color": COLOUR, "line": outline, "pattern": pattern},
        )  # fmt: skip
    meets = (calls.last[chosen] - origin)[calls.last[chosen] > 0] / MS
    x = np.stack([meets, meets, np.full_like(meets, np.nan)], 1).ravel()
    y = np.tile([-0.5, len(calls.ranks) - 0.5, np.nan], len(meets))
    dots = {"color": COLOUR, "width": 1, "dash": "dot"}
    figure.add_scatter(x=x, y=y, mode="lines", line=dots, name="the last rank came", hoverinfo="skip")


def _about(calls: Collectives, rank: Ints, call: Ints, table: Ints) -> Iterator[tuple[str, int]]:
    """Yield for each bar the heading of its tooltip, and its time in ns, from the array ``table`` (ranks, calls).

    Bar i belongs to the rank in row ``rank[i]`` and to call ``call[i]``.
    """
    for row, one in zip(rank.tolist(), call.tolist(), strict=True):
        bucket = f", bucket {calls.bucket[one]}" if calls.bucket[one] >= 0 else ""
        size = quantity.size(int(calls.nbytes[one]))
        yield f"rank {calls.ranks[row]}: {calls.op[one]} #{calls.seq[one]}{bucket}, {size}", int(table[row, one])


def _lanes(calls: Collectives, chosen: Ints) -> tuple[int, Ints]:
    """Assign rows to calls so that calls that overlap in time are in different rows of a rank.

    Returns:
        The number of rows per rank, and for each of the ``chosen`` calls its row.
    """
    free = [0] * LANES
    at = np.zeros(len(chosen), np.int64)
    for place, call in enumerate(chosen.tolist()):
        begin = int(calls.begin[calls.begin[:, call] > 0, call].min())
        at[place] = next((lane for lane, end in enumerate(free) if end <= begin), int(np.argmin(free)))
        free[at[place]] = int(calls.end[:, call].max())
    return int(at.max(initial=0)) + 1, at


def _heat(figure: Any, calls: Collectives) -> None:
    """Add a heat map that shows, for each rank and step, how long after the median rank the rank made its calls.

    Of several calls in a step the largest delay is shown.
    """
    came = np.where(calls.begin > 0, calls.begin, np.nan)
    late = came - np.nanmedian(came, axis=0)
    most = [np.nanmax(late[:, calls.step == index], axis=1, initial=0) for index in calls.steps.tolist()]
    scale = [[0, "rgba(8,109,116,0)"], [1, COLOUR]]
    bar = {"title": "late, ms"}
    figure.update_xaxes(showgrid=False, zeroline=False, rangemode="normal")
    figure.update_yaxes(showgrid=False)
    figure.add_heatmap(x=calls.steps, y=calls.ranks, z=np.array(most).T / MS, colorscale=scale, colorbar=bar)


def _say(figure: Any, calls: Collectives, chosen: Ints) -> None:
    """Write into the subtitle why the slowest rank was late in the calls ``chosen`` (indices), and mark that rank."""
    known = [call for call in chosen.tolist() if call in calls.reasons]
    if not known:
        return
    worst = max(known, key=lambda call: (int(calls.lost[call]), -call))
    reason = calls.reasons[worst]
    where = f" (step {calls.step[worst]})" if calls.step[worst] >= 0 else ""
    subtitle = {"text": html_text(reason.text, 2 * figures.LONGEST) + where}
    figure.update_layout(title={"subtitle": subtitle}, margin={"t": 76})
