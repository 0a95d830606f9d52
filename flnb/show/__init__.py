"""What notebooks see of flnb's objects, and what flnb puts into notebooks.

The formatters are registered with IPython, which the layers below know nothing of: `register` is called when flnb is
imported in a notebook, and by ``%load_ext flnb``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flnb_telemetry.analysis.tape import Tape

    from flnb.interface import MemoryManager
    from flnb.nn import Module
    from flnb.tensor import Tensor

__all__ = ["register"]


def register(shell: Any) -> None:
    """Show tensors, modules and managers as HTML, tapes as widgets, in this shell; a terminal shows their repr."""
    html = shell.display_formatter.formatters["text/html"]
    for module, name, formatter in (
        ("flnb.tensor", "Tensor", _tensor),
        ("flnb.autograd.variable", "Variable", _tensor),
        ("flnb.nn.module", "Module", _module),
        ("flnb.interface.memory", "MemoryManager", _manager),
    ):
        html.for_type_by_name(module, name, formatter)
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
