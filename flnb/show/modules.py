"""A Module alone on a cell's last line: its parts as a tree that opens, each parameter with its statistics."""

from __future__ import annotations

import numpy as np
from flnb_telemetry import quantity
from flnb_telemetry.safe_text import html_text

from flnb.nn.module import Module, Parameter
from flnb.show.tensors import BOX, CODE, DIM, facts, norm, statistics, tensor_html
from flnb.tensor import Tensor

__all__ = ["module_html"]

OPENS = 4096  # elements up to which a parameter in the tree opens to its picture and values


def module_html(module: Module) -> str:
    """HTML without scripts: the tree of modules, parameters and buffers, the first level open."""
    return f"<div style='{BOX}'>{_tree('', module, True)}</div>"


def _tree(name: str, module: Module, opened: bool) -> str:
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
    kind = "" if isinstance(tensor, Parameter) else " (buffer)"
    gradient = getattr(tensor, "grad", None)
    told = statistics(np.asarray(tensor._values())) if tensor._can_be_read() else facts(tensor)[0]
    if gradient is not None and gradient._can_be_read():
        told += f" · gradient {norm(gradient)}"
    head = f"<span style='{CODE}'>{html_text(name)} {tensor._spec!r}</span>{kind} <span style='{DIM}'>{told}</span>"
    if tensor.size > OPENS or not tensor._can_be_read():
        return f"<div style='margin-left:1.1em'>{head}</div>"
    inside = f"<div style='margin:2px 0 4px 1.1em'>{tensor_html(tensor)}</div>"
    return f"<details><summary style='cursor:pointer'>{head}</summary>{inside}</details>"
