"""Imports of optional packages and flnb's own tools when they are first used, with errors that name what is missing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def require(module: str, extra: str, purpose: str = "") -> Any:
    """Import an optional module and return it.

    Args:
        module: the full name of the module, such as "pyarrow.parquet".
        extra: the extra of flnb that installs the package.
        purpose: what the module is needed for, such as "saving a run".

    Raises:
        ImportError: the module is not installed; the message has the purpose, and the command that installs the extra.

    >>> require("json", extra="lab").dumps(1)
    '1'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # the package exists; something that it imports does not
        raise ImportError(
            f"flnb: {purpose or 'this'} needs {package}; install it with: pip install 'flnb[{extra}]'", name=package
        ) from None


def tool(module: str, name: str = "") -> Any:
    """Import a module of flnb that may not be installed; return the module or, if `name` is given, its object `name`.

    Raises:
        ImportError: this installation lacks the module; the message names it.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists; something that it imports does not
        raise ImportError(
            f"{error.name} is missing: this installation of flnb has the core without that tool; "
            f"install the whole of it with: pip install --force-reinstall flnb",
            name=error.name,
        ) from None
    return getattr(found, name) if name else found


def late(module: str, name: str) -> Callable[..., Any]:
    """Return a function that, when called, imports a module of flnb and calls the function `name` in it."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return tool(module, name)(*arguments, **keywords)

    return call
