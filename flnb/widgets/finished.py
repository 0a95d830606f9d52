"""`flnb.view`: the dashboard of recordings that have ended; two of them side by side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnb_telemetry import Recording, load_run
from flnb_telemetry.extras import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.widgets.model import RunWidget

MOST = 2


def view(
    *runs: Any, height: int = 680, model: Any = None, step: Callable[[], object] | None = None
) -> RunWidget:  # fmt: skip
    """The dashboard of a recording that has ended, or the memory of two recordings beside each other.

    Two recordings share one scrubber: it stands at the same allocation of both where they make the same ones, else at
    the same part of the same step. So a run before and after a change can be compared, or one program's memory under
    two managers (`flnb.memory.rerun` places a recorded program's blocks as another manager would).

    In the memory of one recording the capacity is a line to be moved: below the peak the view proposes what to keep,
    to recompute and to offload (`flnb.memory.fit`). Given the model and the step it can run that and tell what it took;
    without them it gives the code.

    Args:
        runs: one or two recordings, or paths of saved ones (``.flnb``).
        height: CSS pixels.
        model: the module that was recorded, or several in a list.
        step: makes the recorded step, forward and backward, once more; called without arguments, between cells.

    Returns:
        A widget: leave it on a cell's last line. It keeps what was recorded until now; it needs no further work of the
        kernel but for opening parts of the tape.

    Raises:
        ImportError: without the extra "lab".
        TypeError: something that is no recording, or not one or two of them.

    Example: ``flnb.view(run)``, ``flnb.view("monday.flnb", run)``,
    ``flnb.view(run, flnb.memory.rerun(run, "native"))``.
    """
    if not 1 <= len(runs) <= MOST:
        raise TypeError(f"flnb.view: expected one recording, or two to compare, got {len(runs)}")
    if isinstance(height, bool) or not isinstance(height, int) or height < 200:
        raise ValueError(f"flnb.view: got height={height!r}; expected at least 200 (CSS pixels)")
    if (model is None) is not (step is None):
        raise TypeError("flnb.view: model= and step= go together: a plan is put on the model while the step runs")
    found = [_recording(run) for run in runs]
    require("anywidget", extra="lab", purpose="the dashboard")
    from flnb.widgets.model import RunWidget

    return RunWidget(found, height, model, step)


def _recording(run: Any) -> Recording:
    if isinstance(run, (str, os.PathLike)):
        loaded = load_run(run)
        loaded.name = f"{loaded.name} ({Path(run).name})"
        return loaded
    if not isinstance(run, Recording):
        raise TypeError(
            f"flnb.view: expected a recording (flnb.record) or the path of a saved one, got {type(run).__name__}"
        )
    return run
