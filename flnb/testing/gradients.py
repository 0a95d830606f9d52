"""`flnb.testing.verify_grad` checks first and second derivatives against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flnb.autograd import Variable
from flnb.autograd.tape import grad_of
from flnb.ops import asarray

Array = np.ndarray[Any, Any]

STEPS = (1e-4, 1e-3, 1e-5)
"""Step sizes of the finite differences: the first suits most functions, the others noisy and steep ones."""
ROUNDING = 1e-11
"""Rounding error of a finite difference, relative to the sum of the absolute terms of the function."""
SEARCHED = 4096
"""Largest size of a gradient that is searched for its wrong element."""


class GradientError(AssertionError):
    """Raised if a gradient differs from finite differences; names argument, position, order and both values."""


def verify_grad(function: Callable[..., Any], inputs: Sequence[Any], order: int = 2, tolerance: float = 1e-6) -> int:
    """Check the gradients of ``function`` at ``inputs``; return the number of arguments that were differentiated.

    The output is projected on a random vector and each gradient on a random direction, so that one number is compared
    with a five-point central difference. With ``order`` 2 the derivative of the projected gradient is checked in the
    same way. If the output records no gradient, the function must be constant near the inputs, and 0 is returned.

    Args:
        function: a function that takes tensors and returns one.
        inputs: arrays; only float64 arrays are differentiated, as finite differences need that precision.
        order: 1 for first derivatives only, 2 for second derivatives too.
        tolerance: allowed relative error of the projected gradients.

    >>> import numpy as np, flnb.testing
    >>> flnb.testing.verify_grad(lambda x: x * x, [np.array([1.0, 2.0])])
    1

    Raises:
        TypeError: there are floating-point or complex inputs, but none of float64.
        GradientError: the relative error exceeds ``tolerance``. The message names the argument, the element with the
            largest error, the order of the derivative, and both values.
    """
    rng, arrays = np.random.default_rng(0), [np.asarray(x) for x in inputs]
    wanted = [i for i, a in enumerate(arrays) if a.dtype == np.float64]
    if not wanted:
        _refuse_narrow(function, arrays)
    sample = function(*[asarray(a) for a in arrays])
    if sample.dtype.kind in "biu":
        return 0
    weight = rng.normal(size=sample.shape)
    directions = {i: rng.normal(size=arrays[i].shape) for i in wanted}

    def value(points: list[Array]) -> Array:
        """Return the output times random weights; the sum of these products is the scalar that is differentiated."""
        return np.asarray(function(*[asarray(a) for a in points])._values() * weight)

    def slope(points: list[Array]) -> Array:
        """Return the products of the gradients and the random directions; their sum is differentiated once more."""
        variables, output = _projected(function, points, wanted, weight)
        found = grad_of(output, variables)
        terms = [g.numpy() * directions[i] for g, i in zip(found, wanted, strict=True) if g is not None]
        return np.concatenate([t.reshape(-1) for t in terms]) if terms else np.zeros(0)

    first = _Check(value, arrays, tolerance)
    projection: Any = 0.0
    sources: list[Any] = []
    for graph in (False, True):  # without a graph composites are differentiated as a whole, with it by their bodies
        sources, output = _projected(function, arrays, wanted, weight)
        if not getattr(output, "requires_grad", False):
            for i in wanted:
                first.of(i, None, directions[i], "first order")
            return 0
        for i, g in zip(wanted, grad_of(output, sources, create_graph=graph), strict=True):
            first.of(i, g, directions[i], "first order")
            if graph and g is not None:
                projection = (g * asarray(directions[i])).sum() + projection
    if order > 1:
        second = _Check(slope, arrays, tolerance)
        curved = getattr(projection, "requires_grad", False)
        seconds = grad_of(projection, sources, create_graph=True) if curved else [None] * len(wanted)
        for i, s in zip(wanted, seconds, strict=True):
            second.of(i, s, rng.normal(size=arrays[i].shape), "second order")
    return len(wanted)


def _refuse_narrow(function: Any, arrays: list[Array]) -> None:
    """Raise TypeError if the function has a gradient, but none of its floating-point or complex inputs is float64."""
    others = [i for i, a in enumerate(arrays) if a.dtype.kind in "fc"]
    if others and getattr(_projected(function, arrays, others, np.ones(()))[1], "requires_grad", False):
        split = any(arrays[i].dtype.kind == "c" for i in others)
        raise TypeError(
            f"verify_grad: nothing to check: only float64 inputs are checked, as finite differences need that "
            f"precision; got {', '.join(a.dtype.name for a in arrays)}"
            + "; give complex inputs by their parts: lambda a, b: flnb.real(function(a + 1j * b))"
            * split
        )


def _projected(function: Any, points: list[Array], wanted: list[int], weight: Array) -> tuple[list[Any], Any]:
    """Call the function on ``points``; return the arguments to differentiate, and the output's weighted sum.

    ``wanted`` has the indices of these arguments, which become Variables; ``weight`` has the weights of the sum.
    """
    arguments = [Variable(a) if i in wanted else asarray(a) for i, a in enumerate(points)]
    return [arguments[i] for i in wanted], (function(*arguments) * asarray(weight)).sum()


class _Check:
    """Compares gradients of a function at a point with finite differences.

    ``terms`` is called with all arguments and returns an array, whose sum is the function's value. ``points`` are the
    arguments at which derivatives are taken.
    """

    def __init__(self, terms: Callable[[list[Array]], Array], points: list[Array], tolerance: float) -> None:
        self.terms, self.points, self.tolerance = terms, points, tolerance
        self.rounding = ROUNDING * float(np.abs(terms(points)).sum())

    def of(self, argument: int, gradient: Any, direction: Array, order: str) -> None:
        """Compare an argument's gradient along a direction with finite differences; raise an error if it differs.

        The `GradientError` names the element with the largest error. ``argument`` is the argument's index, ``order``
        the order of the derivative as text for the error.
        """
        claimed = np.zeros(direction.shape) if gradient is None else np.asarray(gradient._values())
        wrong = self._difference(argument, claimed, direction)
        if wrong is None:
            return
        place, largest = "a random direction", -1.0
        for position in np.ndindex(direction.shape) if direction.size <= SEARCHED else ():
            single = np.zeros(direction.shape)
            single[position] = 1.0
            found = self._difference(argument, claimed, single)
            if found is not None and found[0] > largest:
                place, largest, wrong = f"position {position}", found[0], found
        error, says, measured = wrong
        if gradient is None:
            order += ", where no gradient arrives"
        raise GradientError(
            f"argument {argument}, {place}, {order}: the gradient says {says!r}, finite differences say {measured!r} "
            f"(relative error {error:.2e}, allowed {self.tolerance:.0e})"
        )

    def _difference(self, argument: int, claimed: Array, direction: Array) -> tuple[float, float, float] | None:
        """Compare ``claimed``, the gradient to check, with finite differences of several step sizes.

        Returns:
            None if the relative error is within the tolerance for one of the step sizes. Otherwise the smallest
            relative error, the derivative along ``direction`` computed from ``claimed``, and the measured derivative.
        """
        says, best = float((claimed * direction).sum()), (np.inf, 0.0, 0.0)
        for h in STEPS:
            measured = self._slope(argument, direction, h)
            off = max(abs(says - measured) - self.rounding, 0.0)
            error = off / max(abs(says), abs(measured)) if off else 0.0
            if error <= self.tolerance:
                return None
            if not error >= best[0]:  # NaN comes first
                best = (error, says, measured)
        return best

    def _slope(self, argument: int, direction: Array, h: float) -> float:
        """Return the derivative along a direction, measured as a five-point central difference with step size ``h``."""

        def at(t: float) -> float:
            """Return the function's value with the argument moved by ``t`` times the direction."""
            moved = [a + t * direction if i == argument else a for i, a in enumerate(self.points)]
            return float(self.terms(moved).sum())

        return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
