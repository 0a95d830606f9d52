"""Gradients checked against finite differences, in both orders, by random projections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import flnb
from flnb.autograd import Variable
from flnb.autograd.tape import grad_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["GradientError", "verify_grad"]

Array = np.ndarray[Any, Any]


class GradientError(AssertionError):
    """A gradient differs from finite differences; the message names argument, order and both values."""


def verify_grad(function: Callable[..., Any], inputs: Sequence[Any], order: int = 2, tolerance: float = 1e-6) -> int:
    """Check the gradients of ``function`` at ``inputs`` (float64 arrays are differentiated); gives how many were.

    The output is projected on a random vector, and each gradient on a random direction, so that one number is
    compared with a five-point central difference. With ``order`` 2 the same is done for the projected gradient.

    >>> import numpy as np, flnb.testing
    >>> flnb.testing.verify_grad(lambda x: x * x, [np.array([1.0, 2.0])])
    1

    Raises:
        GradientError: relative error (by the larger of both values and 1) above ``tolerance``.
    """
    rng = np.random.default_rng(0)
    arrays = [np.asarray(x) for x in inputs]
    wanted = [i for i, a in enumerate(arrays) if a.dtype == np.float64]
    shape = function(*[flnb.asarray(a) for a in arrays]).shape
    weight = flnb.asarray(rng.normal(size=shape))
    directions = {i: rng.normal(size=arrays[i].shape) for i in wanted}

    def value(points: list[Array]) -> float:
        return float((function(*[flnb.asarray(a) for a in points]) * weight).sum())

    def slope(points: list[Array]) -> float:
        """The gradient projected on all directions at once: a scalar function of the inputs."""
        variables = _variables(points, wanted)
        found = grad_of((function(*variables) * weight).sum(), [variables[i] for i in wanted])
        return sum(
            float((g.numpy() * directions[i]).sum()) for g, i in zip(found, wanted, strict=True) if g is not None
        )

    projected: Any = 0.0
    sources: list[Any] = []
    for graph in (False, True):  # without a graph composites are differentiated as a whole, with it by their bodies
        variables = _variables(arrays, wanted)
        output = (function(*variables) * weight).sum()
        if not wanted or not getattr(output, "requires_grad", False):
            return 0
        sources = [variables[i] for i in wanted]
        for i, g in zip(wanted, grad_of(output, sources, create_graph=graph), strict=True):
            one = 0.0 if g is None else (g * flnb.asarray(directions[i])).sum()
            projected = projected + one if graph else projected
            _compare(value, arrays, i, directions[i], float(one), tolerance, "first order")
    if order > 1:
        curved = getattr(projected, "requires_grad", False)
        seconds = grad_of(projected, sources, create_graph=True) if curved else [None] * len(wanted)
        for i, s in zip(wanted, seconds, strict=True):
            along = rng.normal(size=arrays[i].shape)
            two = 0.0 if s is None else float((s * flnb.asarray(along)).sum())
            _compare(slope, arrays, i, along, two, tolerance, "second order")
    return len(wanted)


def _variables(points: list[Array], wanted: list[int]) -> list[Any]:
    return [Variable(a) if i in wanted else flnb.asarray(a) for i, a in enumerate(points)]


def _compare(
    function: Callable[[list[Array]], float], points: list[Array], index: int, direction: Array, claimed: float,
    tolerance: float, what: str,
) -> None:  # fmt: skip
    def at(t: float) -> float:
        return function([a + t * direction if i == index else a for i, a in enumerate(points)])

    h = 1e-4
    measured = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    scale = max(1.0, abs(claimed), abs(measured))
    if not abs(claimed - measured) <= tolerance * scale:
        raise GradientError(
            f"argument {index}, {what}: the gradient says {claimed!r}, finite differences say {measured!r} "
            f"(relative error {abs(claimed - measured) / scale:.2e}, allowed {tolerance:.0e})"
        )
