"""What every public function is exported with: what fails is told, and other libraries' keywords are answered."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flnb.dispatch.failure import failed_function
from flnb.dispatch.spelling import KEYWORDS
from flnb.ops.table import OPS

__all__ = ["public"]

_UNTOLD = ("flnb.ops.creation", "flnb.ops.dtypes")
"""Modules whose functions get no tensors: they make them, or describe dtypes."""
_TELLING = ("broadcast_to", "copy", "matmul", "relu", "reshape", "sigmoid", "where")
"""Functions that are called too often to pay 0.1 us for this; what they check they tell by `failure.refused`. The fast
paths of `flnb.dispatch.crossing` tell by themselves, too."""


def public(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is exported: what it refuses is told as of an op (`flnb.dispatch.failure`).

    Who writes ``dim=`` is told ``axis=``:

    >>> import flnb
    >>> flnb.sum(flnb.ones((2, 3)), dim=1)
    Traceback (most recent call last):
    TypeError: sum: no argument is named dim; as in NumPy and the array API it is axis=
    """
    name = function.__name__
    op = OPS.get(name)
    if function.__module__ in _UNTOLD or name in _TELLING:
        return function
    if op is not None and function is op.entries.get((op.arity, "")):
        return function  # type: ignore[no-any-return]
    code, family = function.__code__, op.family if op is not None else "movement"
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    ours = {theirs: mine for theirs, names in KEYWORDS.items() for mine in names if mine in taken}

    @functools.wraps(function)
    def told(*arguments: Any, **keywords: Any) -> Any:
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

    return told
