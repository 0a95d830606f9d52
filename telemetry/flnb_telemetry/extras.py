"""What is imported only when it is needed, and named when it is missing: optional packages, and tools of our own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def require(module: str, extra: str, purpose: str = "") -> Any:
    """Import an optional module; if missing, raise an `ImportError` that names the purpose and the extra to install.

    >>> require("json", extra="lab").dumps(1)
    '1'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # the package is there; something that it needs is not
        raise ImportError(
            f"flnb: {purpose or 'this'} needs {package}; install it with: pip install 'flnb[{extra}]'", name=package
        ) from None


def tool(module: str, name: str = "") -> Any:
    """Import a module of our own that an installation may lack, or a name from it.

    Raises:
        ImportError: it is missing; the message names it.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the tool is there; something that it needs is not
        raise ImportError(
            f"{error.name} is missing: this installation of flnb has the core without that tool; "
            f"install the whole of it with: pip install --force-reinstall flnb",
            name=error.name,
        ) from None
    return getattr(found, name) if name else found


def late(module: str, name: str) -> Callable[..., Any]:
    """A function of a tool, which is imported when the function is first called."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return tool(module, name)(*arguments, **keywords)

    return call
