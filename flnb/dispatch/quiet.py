"""Suppresses NumPy's warnings about single elements (division by zero, overflow, invalid value).

The result has NaN or infinity in these cases, and `flnb.detect_anomaly` finds the first op with such a result. Error
states that users set in NumPy are respected. Because `np.errstate` takes as long as a small ufunc, there are three
other ways:

- `unnamed` copies a function into globals without a module name. CPython then drops the warnings of the C functions
  that it calls, at no cost. This is used for the compiled code of ops and gradients.
- `quiet` sets NumPy's error state around a whole function, by the context variable behind `np.errstate`.
- `Reporting` sets it for a block, in which NumPy appends errors to a list instead of issuing warnings.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar, copy_context
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")
Class = TypeVar("Class", bound=type)


def _error_state() -> list[tuple[Any, Any]]:
    """Return [(the context variable that `np.errstate` sets, its quiet value)], or [] if NumPy has no such variable."""
    before = copy_context()
    with np.errstate(all="ignore"):
        return [(variable, value) for variable, value in copy_context().items() if before.get(variable) is not value]


_CHANGED = _error_state()

_errors: ContextVar[Any] = ContextVar("flnb_errors")
_reporting: tuple[Any, Any] = (None, None)  # NumPy's last error state, and the one that reports errors in its place


class Reporting:
    """A context manager in which NumPy appends the kinds of floating-point errors to the list ``errors``.

    Errors for which the user has set NumPy to raise an exception or to call a function are not reported.

    >>> import numpy as np
    >>> errors = []
    >>> with Reporting(errors):
    ...     y = np.log(np.zeros(2))
    >>> errors
    ['divide by zero']
    """

    __slots__ = ("_before", "_errors")

    def __init__(self, errors: list[str]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        if len(_CHANGED) == 1:
            ((variable, _),) = _CHANGED
            self._before: Any = variable.get(), _errors.get(None)
            try:
                _errors.set(self._errors)
                variable.set(_reporting_state(variable))
            except BaseException:
                variable.set(self._before[0])
                raise

    def __exit__(self, *_: object) -> None:
        if len(_CHANGED) == 1:
            _CHANGED[0][0].set(self._before[0])
            _errors.set(self._before[1])


def _reporting_state(variable: ContextVar[Any]) -> Any:
    """Return the error state in which NumPy appends errors to the list in `_errors`, beside the user's settings.

    It is made from the user's error state, the value of ``variable``, and cached until the user changes that.
    """
    global _reporting
    users = variable.get()
    known, state = _reporting
    if known is not users:
        modes: dict[str, Any] = {**np.geterr()}
        if {"call", "log"} & set(modes.values()):
            state = users
        else:
            kinds: Any = {kind: "call" for kind in ("divide", "over", "invalid") if modes[kind] != "raise"}
            with np.errstate(**kinds, call=lambda kind, _: _errors.get().append(kind)):
                state = variable.get()
        _reporting = users, state
    return state


def quiet(function: Function) -> Function:
    """Wrap a function so that NumPy issues no warnings while it runs."""
    if len(_CHANGED) != 1:
        return np.errstate(all="ignore")(function)
    ((variable, silence),) = _CHANGED
    get, change = variable.get, variable.set

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        users = get()  # no token of `set`: Ctrl-C may come when it has set the value, and before the token is stored
        try:
            change(silence)
            return function(*arguments, **keywords)
        finally:
            change(users)

    return run  # type: ignore[return-value]


def quiet_methods(cls: Class) -> Class:
    """Wrap the public methods of a class by `quiet`: a class decorator. Private methods run inside the public ones."""
    for name, method in list(vars(cls).items()):
        if name[0] != "_" and type(method) is FunctionType and method.__globals__["__name__"] is not None:
            setattr(cls, name, quiet(method))
    return cls


def unnamed(function: Function) -> Function:
    """Return a copy of a function during whose calls Python drops the warnings of C functions, such as NumPy's.

    This is a decorator. The globals of the copy are a copy of the function's globals in which ``__name__`` is None. So
    the copy does not see names that the module defines later.
    """
    names = {**function.__globals__, "__name__": None}
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    return functools.update_wrapper(made, function)  # type: ignore[return-value]
