"""`flnb.view`: the dashboard of a recording that has ended, or of two side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnb_telemetry import Ranks, Recording, load_run
from flnb_telemetry.extras import require
from flnb_telemetry.run import expect_recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.widgets.model import RunWidget

MOST = 2


def view(
    *runs: Any, height: int = 680, model: Any = None, step: Callable[[], object] | None = None
) -> RunWidget:  # fmt: skip
    """Return the dashboard of a recording that has ended, or a comparison of two: memory, ops, timelines, metrics.

    Two recordings share one time slider, so that a program can be compared before and after a change, or under two
    memory managers (`flnb.memory.rerun`). The slider selects the same allocation in both recordings if both have the
    same allocations, and else the same fraction of the same step. Ops are compared by scope (`flnb.compare_runs`),
    metrics are drawn in one figure, and both timelines on one axis, which counts from the start of the same step.

    In the memory view of one recording a line for the capacity can be dragged below the peak. Then the view proposes
    which saved tensors to keep, recompute and offload (`flnb.memory.fit`). Given the model and the step, the view can
    also run the step in the proposed way and show the memory and time that this took.

    Args:
        runs: one or two recordings, or paths of saved ones (``.flnb``). If a recording is of several ranks, the first
            rank is shown, with the collective calls of all.
        height: the height in CSS pixels, 200 or more.
        model: the module that was recorded, or several in a list.
        step: a function without arguments that runs the recorded step, forward and backward, again.

    Returns:
        A widget, which is shown where it is the last line of a notebook cell.

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: an argument is neither a recording nor a path, or there are more than two or none.

    >>> import flnb
    >>> with flnb.record("a") as run:
    ...     y = flnb.exp(flnb.ones((512, 512)))
    >>> widget = flnb.view(run)
    >>> beside = flnb.view(run, flnb.memory.rerun(run, "native"))
    """
    if not 1 <= len(runs) <= MOST:
        raise TypeError(f"flnb.view: expected one recording, or two to compare, got {len(runs)}")
    if isinstance(height, bool) or not isinstance(height, int) or height < 200:
        raise ValueError(f"flnb.view: got height={height!r}; expected at least 200 (CSS pixels)")
    if (model is None) is not (step is None):
        alone = "model" if step is None else "step"
        raise TypeError(f"flnb.view: got {alone}= alone; give both model= and step=, or neither")
    found = [recording_of(run) for run in runs]
    require("anywidget", extra="lab", purpose="the dashboard")
    from flnb.widgets.model import ComparisonWidget, RunWidget

    return (ComparisonWidget if len(found) > 1 else RunWidget)(found, height, model, step)


def recording_of(run: Any, function: str = "flnb.view") -> Recording:
    """Return a recording, loaded from its file if it is a path; `function` is named in errors."""
    if isinstance(run, (str, os.PathLike)):
        loaded = recording_of(load_run(run), function)
        loaded.name = f"{loaded.name} ({Path(run).name})"
        return loaded
    if isinstance(run, Ranks):
        first = next(iter(run.values()))
        first.joined = run
        return first
    return expect_recording(function, run)
