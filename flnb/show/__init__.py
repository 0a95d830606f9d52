"""What notebooks see of flnb's objects, and what flnb puts into notebooks.

The formatters are registered with IPython, which the layers below know nothing of: `register` is called when flnb is
imported in a notebook, and by ``%load_ext flnb``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flnb_telemetry.analysis.tape import Tape

    from flnb.interface import MemoryManager
    from flnb.memory import Postmortem
    from flnb.nn import Module
    from flnb.tensor import Tensor

__all__ = ["register"]


def register(shell: Any) -> None:
    """Show tensors, modules and managers as HTML, tapes as widgets, in this shell; a terminal shows their repr.

    A cell that ends for lack of memory shows the report of that below its traceback.
    """
    html = shell.display_formatter.formatters["text/html"]
    for module, name, formatter in (
        ("flnb.tensor", "Tensor", _tensor),
        ("flnb.autograd.variable", "Variable", _tensor),
        ("flnb.nn.module", "Module", _module),
        ("flnb.interface.memory", "MemoryManager", _manager),
        ("flnb.memory.postmortem", "Postmortem", _postmortem),
    ):
        html.for_type_by_name(module, name, formatter)
    shell.events.register("post_run_cell", _after_cell)
    whole = shell.display_formatter.mimebundle_formatter
    whole.for_type_by_name("flnb_telemetry.analysis.tape", "Tape", _tape)


def _tape(tape: Tape, **_: Any) -> dict[str, Any]:
    from flnb.widgets.tape import view

    return view(tape)


def _tensor(tensor: Tensor) -> str:
    from flnb.show.tensors import tensor_html

    return tensor_html(tensor)


def _module(module: Module) -> str:
    from flnb.show.modules import module_html

    return module_html(module)


def _manager(manager: MemoryManager) -> str:
    from flnb.show.managers import manager_html

    return manager_html(manager)


def _postmortem(report: Postmortem) -> str:
    from flnb.show.postmortem import postmortem_html

    return postmortem_html(report)


def _after_cell(result: Any) -> None:
    if result.error_in_exec is not None:
        from flnb.show.postmortem import show_after

        show_after(result)
