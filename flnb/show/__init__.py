"""What notebooks see of flnb's objects, and what flnb puts into notebooks.

The formatters are registered with IPython, which the layers below know nothing of: `register` is called when flnb is
imported in a notebook, and by ``%load_ext flnb``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from flnb.interface.memory import OutOfMemoryError

__all__ = ["register"]

HTML = {
    ("flnb.tensor", "Tensor"): ("flnb.show.tensors", "tensor_html"),
    ("flnb.autograd.variable", "Variable"): ("flnb.show.tensors", "tensor_html"),
    ("flnb.nn.module", "Module"): ("flnb.show.modules", "module_html"),
    ("flnb.interface.memory", "MemoryManager"): ("flnb.show.managers", "manager_html"),
    ("flnb.memory_lab.postmortem", "Postmortem"): ("flnb.show.postmortem", "postmortem_html"),
}
"""What shows objects of a class, imported when the first is shown."""


def register(shell: Any) -> None:
    """Show tensors, modules and managers as HTML, tapes as widgets, in this shell; a terminal shows their repr.

    A cell that ends for lack of memory shows the report of that above a traceback of the user's frames.
    """
    html, whole = shell.display_formatter.formatters["text/html"], shell.display_formatter.mimebundle_formatter
    for shown, formatter in HTML.items():
        html.for_type_by_name(*shown, _later(*formatter))
    whole.for_type_by_name("flnb_telemetry.analysis.tape", "Tape", _later("flnb.widgets.tape", "view"))
    if not shell.custom_exceptions:
        shell.set_custom_exc((OutOfMemoryError,), _out_of_memory)
    elif OutOfMemoryError not in shell.custom_exceptions:  # somebody else's stays; the report comes below
        shell.events.register("post_run_cell", _after_cell)


def _later(module: str, name: str) -> Callable[..., Any]:
    """A formatter whose module is imported at its first call; it ignores the types that IPython asks it to exclude."""
    return lambda shown, **_: getattr(import_module(module), name)(shown)


def _out_of_memory(shell: Any, kind: type[BaseException], error: Any, trace: Any, tb_offset: int | None = None) -> Any:
    from flnb.show.postmortem import show_error

    return show_error(shell, kind, error, trace)


def _after_cell(result: Any) -> None:
    if isinstance(result.error_in_exec, OutOfMemoryError):
        from flnb.show.postmortem import show_after

        show_after(result)
