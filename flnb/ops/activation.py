"""Smooth activations with a gradient of their own, and gated ones."""

from __future__ import annotations

import math
from typing import Any

from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.composite import Composite, sigmoid
from flnb.tensor import axis_of

Body = tuple[Any, tuple[Any, ...]]
ONE_OVER_ROOT_TWO = 0.5**0.5
ONE_OVER_ROOT_TWO_PI = (2.0 * math.pi) ** -0.5
CUBIC = 0.044715


def _gelu(x: Any) -> Body:
    below = e.multiply(e.add(e.erf(e.multiply(x, ONE_OVER_ROOT_TWO)), 1.0), 0.5)
    return e.multiply(x, below), (below,)


def _pull_gelu(g: Any, plan: Any, x: Any, below: Any, y: Any) -> tuple[Any, ...]:
    density = e.multiply(e.exp(e.multiply(e.square(x), -0.5)), ONE_OVER_ROOT_TWO_PI)
    return (e.multiply(g, e.add(below, e.multiply(x, density))),)


_gelu_op = Composite("gelu", "elementwise", _gelu, _pull_gelu)


def gelu(x: Any, /, approximate: str = "none") -> Any:
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016), or its approximation by "tanh".

    >>> import flnb
    >>> [round(value, 4) for value in flnb.gelu(flnb.asarray([-1.0, 0.0, 2.0])).tolist()]
    [-0.1587, 0.0, 1.9545]
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    x = r.floating(x)
    if approximate == "none":
        return _gelu_op(x)[0]
    cubic = e.multiply(x, e.add(e.multiply(e.square(x), CUBIC), 1.0))
    return e.multiply(x, sigmoid(e.multiply(cubic, (8.0 / math.pi) ** 0.5)))  # (1 + tanh(z)) / 2 = sigmoid(2 z)


def _swish(x: Any, beta: float) -> Body:
    gate = sigmoid(x if beta == 1.0 else e.multiply(x, beta))
    return e.multiply(x, gate), (gate,)


def _pull_swish(g: Any, plan: Any, x: Any, gate: Any, y: Any) -> tuple[Any, ...]:
    (beta,) = plan.attributes
    slope = e.multiply(e.multiply(y, e.subtract(1.0, gate)), beta)
    return (e.multiply(g, e.add(gate, slope)),)


_swish_op = Composite("swish", "elementwise", _swish, _pull_swish)


def swish(x: Any, /, beta: float = 1.0) -> Any:
    """x sigmoid(beta x) (Ramachandran et al. 2017); with beta = 1 also called SiLU."""
    return _swish_op(r.floating(x), attributes=(float(beta),))[0]


def glu(x: Any, /, axis: int = -1) -> Any:
    """The first half along ``axis`` times the sigmoid of the second (Dauphin et al. 2016).

    >>> import flnb
    >>> flnb.glu(flnb.asarray([3.0, 0.0])).tolist()
    [1.5]

    Raises:
        ValueError: an odd number of elements along the axis.
    """
    x = r.floating(x)
    position = axis_of(axis, x.ndim, "glu")
    if x.shape[position] % 2:
        raise ValueError(f"glu: expected an even number of elements along axis {axis}, got {x._spec!r}")
    half, before = x.shape[position] // 2, (slice(None),) * position
    return e.multiply(x[(*before, slice(None, half))], sigmoid(x[(*before, slice(half, None))]))
