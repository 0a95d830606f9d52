"""Shows flnb's objects in notebooks as HTML, by formatters that `register` adds to IPython.

`register` is called when flnb is imported in a notebook, and by ``%load_ext flnb``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from flnb_telemetry.formats.png import as_images

from flnb.interface.memory import OutOfMemoryError

__all__ = ["register"]

HTML = {
    ("flnb.tensor", "Tensor"): ("flnb.show.tensors", "tensor_html"),
    ("flnb.autograd.variable", "Variable"): ("flnb.show.tensors", "tensor_html"),
    ("flnb.nn.module", "Module"): ("flnb.show.modules", "module_html"),
    ("flnb.interface.memory", "MemoryManager"): ("flnb.show.managers", "manager_html"),
    ("flnb.memory_lab.postmortem", "Postmortem"): ("flnb.show.postmortem", "postmortem_html"),
    ("flnb.memory_lab.dry_runs", "DryRun"): ("flnb.show", "own_html"),
    ("flnb_telemetry.recording", "Recording"): ("flnb.show", "own_html"),
    ("flnb_telemetry.analysis.memory", "Memory"): ("flnb.show", "own_html"),
    ("flnb_telemetry.analysis.memory", "MemoryState"): ("flnb.show", "own_html"),
}
"""Module and name of a class, and module and name of the function that returns its objects as HTML."""


def register(shell: Any) -> None:
    """Make an IPython shell show tensors, modules and managers as HTML, and tapes and programs as widgets.

    Plotly figures are displayed together with a picture, for viewers that cannot run plotly. Terminals show reprs, as
    before. If flnb raised the error that ended a cell, the traceback has the user's frames only: ``%tb`` shows all
    frames, ``%debug`` enters them, and after ``%xmode Verbose`` none is ever left out. If a cell runs out of memory, a
    report is shown above the traceback.
    """
    html, whole = shell.display_formatter.formatters["text/html"], shell.display_formatter.mimebundle_formatter
    for shown, formatter in HTML.items():
        html.for_type_by_name(*shown, _with_images(_later(*formatter)))
    whole.for_type_by_name("flnb_telemetry.analysis.tape", "Tape", _later("flnb.widgets.tape", "view"))
    display = shell.display_formatter.ipython_display_formatter
    display.for_type_by_name("plotly.graph_objs._figure", "Figure", _later("flnb.plot.svg", "show"))
    whole.for_type_by_name("flnb.jitted", "Jitted", _later("flnb.widgets.program", "view"))
    if not shell.custom_exceptions:
        shell.set_custom_exc((OutOfMemoryError, Exception), _later("flnb.show.tracebacks", "show_error"))
    elif OutOfMemoryError not in shell.custom_exceptions:  # another library's handler: the report comes after it
        shell.events.register("post_run_cell", _after_cell)


def _later(module: str, name: str) -> Callable[..., Any]:
    """Return a function that, when it is called, imports ``module`` and calls that module's function ``name``."""
    return lambda *given, **_: getattr(import_module(module), name)(*given)


def own_html(shown: Any) -> str:
    """Return an object's own HTML."""
    html: str = shown._repr_html_()
    return html


def _with_images(formatter: Callable[..., Any]) -> Callable[..., Any]:
    """Return a formatter whose HTML has images in place of SVG elements, which GitHub removes from notebooks."""

    def images(*given: Any, **_: Any) -> Any:
        html = formatter(*given)
        return as_images(html) if isinstance(html, str) and "<svg" in html else html

    return images


def _after_cell(result: Any) -> None:
    """Show the report if an out-of-memory error ended a cell; ``result`` is IPython's result of the cell."""
    if isinstance(result.error_in_exec, OutOfMemoryError):
        from flnb.show.postmortem import show_after

        show_after(result)
