"""Remedies of a post-mortem as code that a cell can run."""

from __future__ import annotations

import ast
import builtins
import sys
from typing import NamedTuple

__all__ = ["Action", "action"]

USE, LEAN = "flnb.use_memory_manager(", "flnb.memory.lean("


class Action(NamedTuple):
    """Code for a cell, and whether all its names are there, so that it runs as it is."""

    code: str
    runs: bool


def action(what: str) -> Action:
    """The code of a remedy (`flnb.memory_lab.remedies.Remedy.what`) as a cell of its own.

    What goes behind ``with`` around the program is set for the session where it is a manager; else the program has to
    be put in by hand.

    >>> action('flnb.use_memory_manager("buddy")').code
    'flnb.set_memory_manager("buddy")  # for tensors made from now on: run again from where the model is made'
    >>> print(action("flnb.memory.lean(net, offload=['net.0'])").code)
    with flnb.memory.lean(net, offload=['net.0']):
        ...  # the step
    """
    if what.startswith(LEAN):
        return Action(f"with {what}:\n    ...  # the step", False)
    code = what
    if what.startswith(USE):
        code = f"flnb.set_memory_manager({what.removeprefix(USE)}  # for tensors made from now on: run again from where"
        code += " the model is made"
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return Action(code, names <= vars(sys.modules["__main__"]).keys() | vars(builtins).keys())
