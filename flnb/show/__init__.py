"""What notebooks see of flnb's objects, and what flnb puts into notebooks.

The formatters are registered with IPython, which the layers below know nothing of: `register` is called when flnb is
imported in a notebook, and by ``%load_ext flnb``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["register"]

HTML = {
    ("flnb.tensor", "Tensor"): ("flnb.show.tensors", "tensor_html"),
    ("flnb.autograd.variable", "Variable"): ("flnb.show.tensors", "tensor_html"),
    ("flnb.nn.module", "Module"): ("flnb.show.modules", "module_html"),
    ("flnb.interface.memory", "MemoryManager"): ("flnb.show.managers", "manager_html"),
    ("flnb.memory.postmortem", "Postmortem"): ("flnb.show.postmortem", "postmortem_html"),
}
"""What shows objects of a class, imported when the first is shown."""


def register(shell: Any) -> None:
    """Show tensors, modules and managers as HTML, tapes as widgets, in this shell; a terminal shows their repr.

    A cell that ends for lack of memory shows the report of that below its traceback.
    """
    html, whole = shell.display_formatter.formatters["text/html"], shell.display_formatter.mimebundle_formatter
    for shown, formatter in HTML.items():
        html.for_type_by_name(*shown, _later(*formatter))
    whole.for_type_by_name("flnb_telemetry.analysis.tape", "Tape", _later("flnb.widgets.tape", "view"))
    shell.events.register("post_run_cell", _after_cell)


def _later(module: str, name: str) -> Callable[..., Any]:
    """A formatter that is imported when it is called; what a formatter of all types is asked to leave out is not."""
    return lambda shown, **_: getattr(import_module(module), name)(shown)


def _after_cell(result: Any) -> None:
    if result.error_in_exec is not None:
        from flnb.show.postmortem import show_after

        show_after(result)
