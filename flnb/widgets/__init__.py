"""The dashboard's views as widgets: `Memory`, `Tape`, `Timeline`, `Ops` and `Metrics`, each to put into any layout.

>>> import flnb
>>> with flnb.record("a") as run:
...     y = flnb.exp(flnb.ones((512, 512)))
>>> view = flnb.widgets.Ops(run, height=300)
>>> view.selection = {"kind": "op", "label": "exp", "op": "exp"}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry.extras import require, tool

if TYPE_CHECKING:
    from flnb.widgets.views import Memory, Metrics, Ops, Tape, Timeline

__all__ = ["Memory", "Metrics", "Ops", "Tape", "Timeline"]


def __getattr__(name: str) -> Any:
    """Import and return a view at its first use, because it needs the extra "lab"."""
    if name not in __all__:
        raise AttributeError(f"module 'flnb.widgets' has no attribute {name!r}; its views: {', '.join(__all__)}")
    require("anywidget", extra="lab", purpose=f"flnb.widgets.{name}")
    return tool("flnb.widgets.views", name)


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
