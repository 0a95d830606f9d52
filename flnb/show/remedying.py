"""Remedies for an out-of-memory error as code for a notebook cell."""

from __future__ import annotations

import ast
import builtins
import sys
from typing import Any, NamedTuple

from flnb_telemetry import quantity

from flnb.dispatch import state
from flnb.interface.memory import OutOfMemoryError

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


class Said(str):
    """A text that a kernel shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def applied(what: str) -> Said:
    """Describe the state of memory after the cell of a remedy ran; the button "Apply" of a report shows the text.

    All numbers are those of the session's memory manager now. The numbers at the failure are those of the last
    `OutOfMemoryError` that ended a cell.

    Args:
        what: the remedy, an attribute of `flnb.memory_lab.remedies.Remedy`.
    """
    manager, size = state.session.manager, quantity.size
    error = getattr(sys, "last_value", None)
    failed = error.shortage.manager if isinstance(error, OutOfMemoryError) and error.shortage is not None else None
    sums = manager.stats()
    if what.startswith(USE):
        given = manager.constructor_arguments
        settings = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        text = f"New tensors are allocated by {type(manager).__name__}({settings}) on {_device(manager)}."
        if failed is not None and failed is not manager and (live := failed.stats())["live"]:
            count = f"{live['live']} block{'s' * (live['live'] > 1)} ({size(live['allocated'])})"
            text += f" {count} made before stay with {failed.name}: run again from where the model is made."
        return Said(f"{text} Line to paste: flnb.set_memory_manager({what.removeprefix(USE)}")
    text = f"{manager.name} has {size(sums['allocated'])} live in {size(sums['reserved'])} reserved now"
    if failed is manager and isinstance(error, OutOfMemoryError):
        text += f"; at the failure {size(error.report.live)} were live"
    return Said(f"{text}. Run the cell that failed again. Line to paste before the one that failed: {what}")


def _device(manager: Any) -> str:
    """Return the name of a manager's device, with its capacity if that is known."""
    capacity = manager.device.capacity
    return manager.device.name if capacity is None else f"{manager.device.name} ({quantity.size(capacity)})"
