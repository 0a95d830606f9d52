"""Keyword names that other libraries use, answered with the names that hold here."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_ELSEWHERE = {"dim": ("axis", "axes"), "dims": ("axis", "axes"), "keepdim": ("keepdims",), "unbiased": ("correction",)}


def advising(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with an error that says ``axis=`` to who writes ``dim=``; itself where no name could be mistaken.

    >>> import flnb
    >>> flnb.sum(flnb.ones((2, 3)), dim=1)
    Traceback (most recent call last):
    TypeError: sum: no argument is named dim; as in NumPy and the array API it is axis=
    """
    code = getattr(function, "__code__", None)
    taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code is not None else ()
    ours = {theirs: name for theirs, names in _ELSEWHERE.items() for name in names if name in taken}
    if not ours:
        return function

    @functools.wraps(function)
    def advised(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except TypeError:
            for name in keywords:
                if name in ours:
                    raise TypeError(
                        f"{function.__name__}: no argument is named {name}; as in NumPy and the array API it is "
                        f"{ours[name]}="
                    ) from None
            raise

    return advised
