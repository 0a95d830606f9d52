"""Reverse-mode differentiation: Variables, the tape, and functions that give gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb.autograd.tape import grad_of
from flnb.autograd.variable import Variable
from flnb.dispatch import state

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Variable", "enable_grad", "grad", "is_grad_enabled", "no_grad", "value_and_grad"]


def no_grad() -> Any:
    """Record no gradients inside: ``with flnb.no_grad(): ...``, or as a decorator."""
    return state.use(grad=False)


def enable_grad() -> Any:
    """Record gradients inside, also within `no_grad`."""
    return state.use(grad=True)


def is_grad_enabled() -> bool:
    """Whether ops on Variables that require grad are recorded here."""
    return state.current().grad


def value_and_grad(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """A function that gives ``(function(...), gradients)`` for the arguments in ``argnums``.

    With Variables as arguments the gradients can be differentiated again.

    >>> import flnb
    >>> value, gradient = flnb.value_and_grad(lambda x: (x * x).sum())(flnb.asarray([3.0]))
    >>> value.item(), gradient.tolist()
    (9.0, [6.0])
    """
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def differentiated(*arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        nested = any(isinstance(arguments[i], Variable) and arguments[i].requires_grad for i in positions)
        variables = list(arguments)
        for i in positions:
            variables[i] = arguments[i] * 1.0 if nested else Variable(arguments[i])
        with enable_grad():
            value = function(*variables, **keywords)
            if not isinstance(value, Variable):
                raise TypeError(
                    f"grad: the function must compute a Variable from its arguments, it returned {type(value).__name__}"
                )
            found = grad_of(value, [variables[i] for i in positions], create_graph=nested)
        gradients = tuple(g if g is not None else variables[i] * 0.0 for g, i in zip(found, positions, strict=True))
        return (value if nested else value.data), gradients[0] if isinstance(argnums, int) else gradients

    return differentiated


def grad(function: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """A function that gives the gradient of a scalar-valued function; ``grad(grad(f))`` works.

    >>> import flnb
    >>> second = flnb.grad(flnb.grad(lambda x: x * x * x))
    >>> second(flnb.asarray(2.0)).item()
    12.0
    """
    both = value_and_grad(function, argnums)
    return lambda *arguments, **keywords: both(*arguments, **keywords)[1]
