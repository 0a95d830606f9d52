"""New notebook cells."""

from __future__ import annotations

import sys

__all__ = ["open_cell"]


def open_cell(code: str) -> None:
    """Insert a cell with this code below the notebook cell that is running.

    Raises:
        RuntimeError: the program does not run in a notebook; the message contains the code.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        raise RuntimeError(f"open_cell: this program does not run in a notebook; the code is\n\n{code}")
    shell.set_next_input(code)
