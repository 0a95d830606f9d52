"""Optional packages: imported when needed, and named with their extra when missing."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, extra: str, purpose: str = "") -> Any:
    """Import an optional module; when it is missing, an `ImportError` says what for and which extra brings it.

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
