"""The wrapper of every exported function: failures become events, and keywords of torch get a helpful error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flnb.dispatch.failure import failed_function
from flnb.dispatch.spelling import KEYWORDS
from flnb.dispatch.table import OPS
from flnb.ops.documentation import readable

__all__ = ["public"]

_NO_TENSORS = ("flnb.ops.creation", "flnb.ops.dtypes")
"""Modules whose functions take no tensors: they create them, or describe dtypes."""
_UNWRAPPED = ("broadcast_to", "copy", "matmul", "relu", "reshape", "sigmoid", "where")
"""Functions called too often to pay 0.1 us for a wrapper; they report bad arguments by `failure.refused`. So do the
entries of `flnb.dispatch.crossing`."""


def public(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is exported: an error that it raises is recorded as a failed op (`flnb.dispatch.failure`).

    A keyword of torch is answered with the one that flnb uses:

    >>> import flnb
    >>> flnb.sum(flnb.ones((2, 3)), dim=1)
    Traceback (most recent call last):
    TypeError: sum: no argument is named dim; as in NumPy and the array API it is axis=
    """
    name = function.__name__
    op = OPS.get(name)
    readable(function)
    if function.__module__ in _NO_TENSORS or name in _UNWRAPPED:
        return function
    if op is not None and function is op.entries.get((op.arity, "")):
        return function
    code, family = function.__code__, op.family if op is not None else "movement"
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    ours = {theirs: mine for theirs, names in KEYWORDS.items() for mine in names if mine in parameters}

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            for theirs in keywords:
                if theirs in ours and isinstance(error, TypeError):
                    raise TypeError(
                        f"{name}: no argument is named {theirs}; as in NumPy and the array API it is {ours[theirs]}="
                    ) from None
            failed_function(error, name, family, (*arguments, *keywords.values()))
            raise

    return checked
