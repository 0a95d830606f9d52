"""Activations with a gradient of their own, and gated ones."""

from __future__ import annotations

import math
from typing import Any

from flnb.dispatch.brief import brief
from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.composite import Body, Composite, sigmoid
from flnb.ops.creation import asarray
from flnb.ops.movement import reshape
from flnb.tensor import ArrayLike, Tensor, axis_of

ONE_OVER_ROOT_TWO = 0.5**0.5
ONE_OVER_ROOT_TWO_PI = (2.0 * math.pi) ** -0.5
ROOT_EIGHT_OVER_PI = (8.0 / math.pi) ** 0.5
CUBIC = 0.044715


def _gelu(x: Any) -> Body:
    below = e.multiply(e.add(e.erf(e.multiply(x, ONE_OVER_ROOT_TWO)), 1.0), 0.5)
    return e.multiply(x, below), (below,)


def _pull_gelu(g: Any, plan: Any, x: Any, below: Any, y: Any) -> tuple[Any, ...]:
    density = e.multiply(e.exp(e.multiply(e.square(x), -0.5)), ONE_OVER_ROOT_TWO_PI)
    return (e.multiply(g, e.add(below, e.multiply(x, density))),)


_gelu_op = Composite("gelu", "elementwise", _gelu, _pull_gelu, {0})


def _gelu_tanh(x: Any) -> Body:
    cubic = e.multiply(x, e.add(e.multiply(e.square(x), CUBIC), 1.0))
    gate = sigmoid(e.multiply(cubic, ROOT_EIGHT_OVER_PI))  # (1 + tanh(z)) / 2 = sigmoid(2 z)
    return e.multiply(x, gate), (gate,)


def _pull_gelu_tanh(g: Any, plan: Any, x: Any, gate: Any, y: Any) -> tuple[Any, ...]:
    slope = e.add(e.multiply(e.square(x), 3.0 * CUBIC * ROOT_EIGHT_OVER_PI), ROOT_EIGHT_OVER_PI)
    inner = e.add(e.multiply(e.multiply(slope, x), e.subtract(1.0, gate)), 1.0)
    return (e.multiply(g, e.multiply(inner, gate)),)


_gelu_tanh_op = Composite("gelu_tanh", "elementwise", _gelu_tanh, _pull_gelu_tanh, {0})


def gelu(x: ArrayLike, /, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit: x times the normal distribution function of x (Hendrycks and Gimpel 2016).

    With ``approximate="tanh"`` its approximation by a tanh.

    >>> import flnb
    >>> flnb.gelu([-1.0, 0.0, 2.0])
    Tensor([-0.1587,  0.    ,  1.9545], float32[3], numpy)
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {brief(approximate)}")
    x = r.floating(x)
    return (_gelu_op if approximate == "none" else _gelu_tanh_op)(x)[0]


def _swish(x: Any, beta: float) -> Body:
    gate = sigmoid(x if beta == 1.0 else e.multiply(x, beta))
    return e.multiply(x, gate), (gate,)


def _pull_swish(g: Any, plan: Any, x: Any, gate: Any, y: Any) -> tuple[Any, ...]:
    (beta,) = plan.attributes
    slope = e.multiply(e.multiply(y, e.subtract(1.0, gate)), beta)
    return (e.multiply(g, e.add(gate, slope)),)


_swish_op = Composite("swish", "elementwise", _swish, _pull_swish)


def swish(x: ArrayLike, /, beta: float = 1.0) -> Tensor:
    """x * sigmoid(beta * x) (Ramachandran et al. 2017); with beta = 1 also called SiLU.

    >>> import flnb
    >>> flnb.swish([-1.0, 0.0, 2.0])
    Tensor([-0.2689,  0.    ,  1.7616], float32[3], numpy)
    """
    return _swish_op(r.floating(x), attributes=(float(beta),))[0]


def glu(x: ArrayLike, /, axis: int = -1) -> Tensor:
    """Gated linear unit: the first half along ``axis`` times the sigmoid of the second (Dauphin et al. 2016).

    >>> import flnb
    >>> flnb.glu([3.0, 0.0])
    Tensor([1.5], float32[1], numpy)

    Raises:
        ValueError: an odd number of elements along the axis.
    """
    x = r.floating(x)
    position = axis_of(axis, x.ndim, "glu")
    if x.shape[position] % 2:
        raise ValueError(f"glu: expected an even number of elements along axis {axis}, got {x._spec!r}")
    half, before = x.shape[position] // 2, (slice(None),) * position
    return e.multiply(x[(*before, slice(None, half))], sigmoid(x[(*before, slice(half, None))]))


def _elu(x: Any, alpha: float) -> Body:
    below = e.multiply(e.expm1(e.minimum(x, 0.0)), alpha)  # of the negative part: exp of the other may overflow
    return e.where(e.greater(x, 0.0), x, below), ()


def _pull_elu(g: Any, plan: Any, x: Any, y: Any) -> tuple[Any, ...]:
    (alpha,) = plan.attributes
    return (e.multiply(g, e.where(e.greater(x, 0.0), 1.0, e.add(y, alpha))),)


_elu_op = Composite("elu", "elementwise", _elu, _pull_elu)


def elu(x: ArrayLike, /, alpha: float = 1.0) -> Tensor:
    """Exponential linear unit: x where positive, else alpha * (exp(x) - 1) (Clevert et al. 2015).

    >>> import flnb
    >>> flnb.elu([-1.0, 2.0])
    Tensor([-0.6321,  2.    ], float32[2], numpy)
    """
    return _elu_op(r.floating(x), attributes=(float(alpha),))[0]


def _leaky_relu(x: Any, slope: float) -> Body:
    return e.where(e.greater(x, 0.0), x, e.multiply(x, slope)), ()


def _pull_leaky_relu(g: Any, plan: Any, x: Any, y: Any) -> tuple[Any, ...]:
    (slope,) = plan.attributes
    return (e.where(e.greater(x, 0.0), g, e.multiply(g, slope)),)


_leaky_relu_op = Composite("leaky_relu", "elementwise", _leaky_relu, _pull_leaky_relu, {0})


def leaky_relu(x: ArrayLike, /, slope: float = 0.01) -> Tensor:
    """x where positive, else ``slope`` * x (Maas et al. 2013); the gradient at 0 is the slope.

    >>> import flnb
    >>> flnb.leaky_relu([-1.0, 2.0], slope=0.1)
    Tensor([-0.1,  2. ], float32[2], numpy)
    """
    return _leaky_relu_op(r.floating(x), attributes=(float(slope),))[0]


def prelu(x: ArrayLike, weight: ArrayLike, /) -> Tensor:
    """x where positive, else ``weight`` * x, with learnt slopes (He et al. 2015, section 2.1).

    ``weight`` is one slope, () or (1,), or one for each channel (axis 1) of x (N, C, ...), (C,).

    >>> import flnb
    >>> flnb.prelu([[-1.0, -1.0]], flnb.asarray([0.25, 0.5]))
    Tensor([[-0.25, -0.5 ]], float32[1,2], numpy)

    Raises:
        ValueError: neither one slope nor one for each channel.
    """
    x, weight = r.floating(x), asarray(weight)
    if weight.shape in ((), (1,)):
        weight = reshape(weight, ()) if x.ndim == 0 else weight
    else:
        if x.ndim < 2 or weight.shape != (x.shape[1],):
            raise ValueError(
                f"prelu: expected a weight (), (1,) or (C,) for x (N, C, ...), got {weight.shape} and {x.shape}"
            )
        weight = reshape(weight, (weight.shape[0], *(1,) * (x.ndim - 2)))
    return e.where(e.greater(x, 0.0), x, e.multiply(x, weight))


def _hardtanh(x: Any, low: float, high: float) -> Body:
    return e.minimum(e.maximum(x, low), high), ()


def _pull_hardtanh(g: Any, plan: Any, x: Any, y: Any) -> tuple[Any, ...]:
    low, high = plan.attributes
    inside = e.logical_and(e.greater(y, low), e.less(y, high))
    return (e.multiply(g, e.astype(inside, g.dtype)),)


_hardtanh_op = Composite("hardtanh", "elementwise", _hardtanh, _pull_hardtanh, {"y"})


def hardtanh(x: ArrayLike, /, low: float = -1.0, high: float = 1.0) -> Tensor:
    """Limit x to the range from ``low`` to ``high`` (Collobert 2004); the gradient at both ends is 0.

    >>> import flnb
    >>> flnb.hardtanh([-3.0, 0.5, 3.0])
    Tensor([-1. ,  0.5,  1. ], float32[3], numpy)

    Raises:
        ValueError: low not below high.
    """
    if not low < high:
        raise ValueError(f"hardtanh: expected low < high, got {low} and {high}")
    return _hardtanh_op(r.floating(x), attributes=(float(low), float(high)))[0]


def relu6(x: ArrayLike, /) -> Tensor:
    """Limit x to the range from 0 to 6 (Krizhevsky 2010).

    >>> import flnb
    >>> flnb.relu6([-1.0, 3.0, 9.0])
    Tensor([0., 3., 6.], float32[3], numpy)
    """
    return hardtanh(x, 0.0, 6.0)


def threshold(x: ArrayLike, /, at: float, value: float = 0.0) -> Tensor:
    """x where above ``at``, else ``value``.

    >>> import flnb
    >>> flnb.threshold([0.1, 0.9], at=0.5)
    Tensor([0. , 0.9], float32[2], numpy)
    """
    x = r.floating(x)
    return e.where(e.greater(x, at), x, value)
