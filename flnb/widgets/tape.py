"""Display of a tape on a notebook cell's last line: a widget with the dashboard's Tape view alone."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flnb_telemetry.analysis.tape import Tape

HEIGHT = 560


def view(tape: Tape) -> dict[str, Any]:
    """Return the MIME bundle of a widget that shows a tape; empty outside of notebooks or without anywidget."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if not hasattr(shell, "kernel") or not len(tape.nodes) or importlib.util.find_spec("anywidget") is None:
        return {}
    from flnb.widgets.model import TapeWidget

    widget = TapeWidget(tape, HEIGHT)
    widget.publish_picture()
    return {kind: data for kind, data in widget.widget_bundle()[0].items() if "widget" in kind}
