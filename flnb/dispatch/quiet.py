"""Keeps NumPy's warnings about single elements (divide by zero, overflow, invalid value) away from users.

A result that is not finite says so itself, and `flnb.detect_anomaly` finds where it began. The error state that users
gave to NumPy stays as it is. A small ufunc takes 0.3 us and `np.errstate` as long again, so there are two ways:

- Code whose globals name no module (`unnamed`) gets no warnings from C functions that it calls itself: CPython drops a
  warning that has no module. The compiled text of the crossing and of pulls is such code, at no cost.
- `quiet` sets NumPy's error state around a function that calls others, by the context variable behind `np.errstate`.
"""

from __future__ import annotations

import functools
from contextvars import copy_context
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["quiet", "quiet_methods", "unnamed"]

Function = TypeVar("Function", bound="Callable[..., Any]")
Class = TypeVar("Class", bound=type)


def _error_state() -> list[tuple[Any, Any]]:
    """The context variable that `np.errstate` changes, and its value; nothing where NumPy stores it elsewhere."""
    before = copy_context()
    with np.errstate(all="ignore"):
        return [(variable, value) for variable, value in copy_context().items() if before.get(variable) is not value]


_CHANGED = _error_state()


def quiet(function: Function) -> Function:
    """Wrap a function so that nothing in it warns."""
    if len(_CHANGED) != 1:
        return np.errstate(all="ignore")(function)
    ((variable, silence),) = _CHANGED
    enter, leave = variable.set, variable.reset

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        token = enter(silence)
        try:
            return function(*arguments, **keywords)
        finally:
            leave(token)

    return run  # type: ignore[return-value]


def quiet_methods(cls: Class) -> Class:
    """Wrap the methods of a class by `quiet`. A decorator."""
    for name, method in list(vars(cls).items()):
        if type(method) is FunctionType and method.__globals__["__name__"] is not None:
            setattr(cls, name, quiet(method))
    return cls


def unnamed(function: Function) -> Function:
    """Copy a function into globals without a module name. A decorator; what is defined later is not seen in there."""
    names = {**function.__globals__, "__name__": None}
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    return functools.update_wrapper(made, function)  # type: ignore[return-value]
