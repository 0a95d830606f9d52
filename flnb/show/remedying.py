"""Remedies for an out-of-memory error as code for a notebook cell."""

from __future__ import annotations

import ast
import builtins
import sys
from typing import NamedTuple

USE, LEAN = "flnb.use_memory_manager(", "flnb.memory.lean("


class Action(NamedTuple):
    """Code for a cell; ``runs`` says whether all its names are defined, so that it runs without changes."""

    code: str
    runs: bool


def action(what: str) -> Action:
    """Turn a remedy, such as a context manager to run the program in, into code for a cell of its own.

    A manager for a ``with`` block is instead set for the session. For other context managers a block is written into
    which the user puts the program.

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
