"""Putting code into a notebook."""

from __future__ import annotations

import sys

__all__ = ["open_cell"]


def open_cell(code: str) -> None:
    """Make a new cell with this code below the one that runs.

    Raises:
        RuntimeError: no notebook is behind this program.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        raise RuntimeError(f"there is no notebook to put a cell into; the code is\n\n{code}")
    shell.set_next_input(code)
