"""A neural network module as HTML: a tree of its modules and parameters, with statistics of each parameter."""

from __future__ import annotations

import numpy as np
from flnb_telemetry import quantity
from flnb_telemetry.safe_text import html_text

from flnb.nn.module import Module, Parameter
from flnb.show.tensors import BOX, CODE, DIM, facts, norm, statistics, tensor_html
from flnb.tensor import Tensor

OPENS = 4096  # largest size of a parameter that can be opened to see its values


def module_html(module: Module) -> str:
    """Return HTML without scripts with the tree of modules, parameters and buffers; the first level is open."""
    return f"<div style='{BOX}'>{_tree('', module, True)}</div>"


def _tree(name: str, module: Module, opened: bool) -> str:
    """Return HTML for a module, with all that the module contains inside an element that can be opened."""
    label = f"<span style='{CODE}'>{html_text(name)}</span> " if name else ""
    size = sum(item.nbytes for item in module.parameters())
    count = module._summary() + (f", {quantity.size(size)}" if size else "")
    mode = "" if module.training else ", evaluating"
    kind, about = html_text(type(module).__name__), html_text(module.extra_repr())
    head = f"{label}<b>{kind}</b><span style='{CODE}'>({about})</span> <span style='{DIM}'>{count}{mode}</span>"
    rows = [
        _leaf(child, member) if isinstance(member, Tensor) else _tree(child, member, False)
        for child, member in module._own()
    ]
    if not rows:
        return f"<div style='margin-left:1.1em'>{head}</div>"
    return (
        f"<details{' open' if opened else ''}><summary style='cursor:pointer'>{head}</summary>"
        f"<div style='margin-left:1.3em'>{''.join(rows)}</div></details>"
    )


def _leaf(name: str, tensor: Tensor) -> str:
    """Return HTML for a parameter or buffer: name, dtype, shape and statistics; small ones can be opened for values."""
    kind = "" if isinstance(tensor, Parameter) else " (buffer)"
    gradient = getattr(tensor, "grad", None)
    text = statistics(np.asarray(tensor._values())) if tensor._can_be_read() else facts(tensor)[0]
    if gradient is not None and gradient._can_be_read():
        text += f" · gradient {norm(gradient)}"
    head = f"<span style='{CODE}'>{html_text(name)} {tensor._spec!r}</span>{kind} <span style='{DIM}'>{text}</span>"
    if tensor.size > OPENS or not tensor._can_be_read():
        return f"<div style='margin-left:1.1em'>{head}</div>"
    inside = f"<div style='margin:2px 0 4px 1.1em'>{tensor_html(tensor)}</div>"
    return f"<details><summary style='cursor:pointer'>{head}</summary>{inside}</details>"
