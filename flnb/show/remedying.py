"""Remedies for an out-of-memory error as code for a notebook cell."""

from __future__ import annotations

import ast
import builtins
import sys
from typing import NamedTuple

USE, LEAN = "flnb.use_memory_manager(", "flnb.memory.lean("


class Action(NamedTuple):
    """The code of a notebook cell; ``runs`` says whether it runs unchanged, because all its names are defined."""

    code: str
    runs: bool


def action(what: str) -> Action:
    """Convert a remedy, such as the call of a context manager that must enclose the program, to code for a cell.

    For `flnb.use_memory_manager` the code sets the manager for the whole session instead. For other context managers
    it is a ``with`` block into which the user puts the program.

    >>> from flnb.show.remedying import action
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
