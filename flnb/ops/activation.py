"""Activation functions, most of which are composites with one backward function (`flnb.ops.composite`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flnb.dispatch.arguments import axis_of
from flnb.dispatch.brief import brief
from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.composite import Body, Composite, sigmoid
from flnb.ops.creation import asarray
from flnb.ops.movement import reshape

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, Tensor

ONE_OVER_ROOT_TWO = 0.5**0.5
ONE_OVER_ROOT_TWO_PI = (2.0 * math.pi) ** -0.5
ROOT_EIGHT_OVER_PI = (8.0 / math.pi) ** 0.5
CUBIC = 0.044715


def _gelu(x: Any) -> Body:
    """Return x times the standard normal CDF of x, and the values of that CDF for the gradient."""
    below = (e.erf(x * ONE_OVER_ROOT_TWO) + 1.0) * 0.5
    return x * below, (below,)


def _pull_gelu(g: Any, plan: Any, x: Any, below: Any, y: Any) -> tuple[Any, ...]:
    """Gradient of gelu; ``below`` is the standard normal CDF of x."""
    return (g * (below + x * (e.exp(e.square(x) * -0.5) * ONE_OVER_ROOT_TWO_PI)),)


_gelu_op = Composite("gelu", "elementwise", _gelu, _pull_gelu, {0})


def _gelu_tanh(x: Any) -> Body:
    """Return x times an approximation of the standard normal CDF of x, (1 + tanh(z)) / 2 = sigmoid(2 z).

    The approximation itself is returned too, for the gradient.
    """
    gate = sigmoid(x * (e.square(x) * CUBIC + 1.0) * ROOT_EIGHT_OVER_PI)
    return x * gate, (gate,)


def _pull_gelu_tanh(g: Any, plan: Any, x: Any, gate: Any, y: Any) -> tuple[Any, ...]:
    """Gradient of gelu approximated by a tanh; ``gate`` is the approximation of the CDF, by which x is multiplied."""
    if x.dtype.itemsize == 2:  # beyond 16 the gate is 0 or 1, and the square of float16 would be infinite
        x = e.minimum(e.maximum(x, -16.0), 16.0)
    slope = e.square(x) * (3.0 * CUBIC * ROOT_EIGHT_OVER_PI) + ROOT_EIGHT_OVER_PI
    return (g * ((slope * x * (1.0 - gate) + 1.0) * gate),)


_gelu_tanh_op = Composite("gelu_tanh", "elementwise", _gelu_tanh, _pull_gelu_tanh, {0})


def gelu(x: ArrayLike, /, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit: x times the standard normal CDF of x (Hendrycks and Gimpel 2016).

    With ``approximate="tanh"`` a tanh approximates the CDF (cumulative distribution function).

    Raises:
        ValueError: ``approximate`` is neither 'none' nor 'tanh'.

    >>> import flnb
    >>> flnb.gelu([-1.0, 0.0, 2.0])
    Tensor([-0.1587,  0.    ,  1.9545], float32[3], numpy)
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {brief(approximate)}")
    return (_gelu_op if approximate == "none" else _gelu_tanh_op)(r.floating(x))[0]


def _swish(x: Any, beta: float) -> Body:
    """Return x times sigmoid(beta x), and that sigmoid for the gradient."""
    gate = sigmoid(x if beta == 1.0 else x * beta)
    return x * gate, (gate,)


_swish_op = Composite(
    "swish", "elementwise", _swish,
    lambda g, plan, x, gate, y: (g * (gate + y * (1.0 - gate) * plan.attributes[0]),),
)  # fmt: skip


def swish(x: ArrayLike, /, beta: float = 1.0) -> Tensor:
    """Swish, x * sigmoid(beta * x) (Ramachandran et al. 2017); with beta = 1 also called SiLU.

    Raises:
        TypeError: the values are no numbers.

    >>> import flnb
    >>> flnb.swish([-1.0, 0.0, 2.0])
    Tensor([-0.2689,  0.    ,  1.7616], float32[3], numpy)
    """
    return _swish_op(r.floating(x), attributes=(float(beta),))[0]


def glu(x: ArrayLike, /, axis: int = -1) -> Tensor:
    """Gated linear unit: x's first half along ``axis`` times the sigmoid of its second half (Dauphin et al. 2016).

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
    return x[(*before, slice(None, half))] * sigmoid(x[(*before, slice(half, None))])


def _elu(x: Any, alpha: float) -> Body:
    """Return x where positive, else alpha (exp(x) - 1), computed from min(x, 0) to avoid overflow."""
    return e.where(x > 0.0, x, e.expm1(e.minimum(x, 0.0)) * alpha), ()


_elu_op = Composite(
    "elu", "elementwise", _elu, lambda g, plan, x, y: (g * e.where(x > 0.0, 1.0, y + plan.attributes[0]),)
)


def elu(x: ArrayLike, /, alpha: float = 1.0) -> Tensor:
    """Exponential linear unit: x where positive, else alpha * (exp(x) - 1) (Clevert et al. 2015).

    Raises:
        TypeError: the values are no numbers.

    >>> import flnb
    >>> flnb.elu([-1.0, 2.0])
    Tensor([-0.6321,  2.    ], float32[2], numpy)
    """
    return _elu_op(r.floating(x), attributes=(float(alpha),))[0]


_leaky_relu_op = Composite(
    "leaky_relu", "elementwise", lambda x, slope: (e.where(x > 0.0, x, x * slope), ()),
    lambda g, plan, x, y: (e.where(x > 0.0, g, g * plan.attributes[0]),), {0},
)  # fmt: skip


def leaky_relu(x: ArrayLike, /, slope: float = 0.01) -> Tensor:
    """Leaky ReLU: x where positive, else ``slope`` * x (Maas et al. 2013); the gradient at 0 is the slope.

    Raises:
        TypeError: the values are no numbers.

    >>> import flnb
    >>> flnb.leaky_relu([-1.0, 2.0], slope=0.1)
    Tensor([-0.1,  2. ], float32[2], numpy)
    """
    return _leaky_relu_op(r.floating(x), attributes=(float(slope),))[0]


def prelu(x: ArrayLike, weight: ArrayLike, /) -> Tensor:
    """Parametric ReLU: x where positive, else ``weight`` * x, with learnt slopes (He et al. 2015, section 2.1).

    ``weight`` holds one slope, with shape () or (1,), or one slope for each channel of x (N, C, ...), with shape (C,).

    >>> import flnb
    >>> flnb.prelu([[-1.0, -1.0]], flnb.asarray([0.25, 0.5]))
    Tensor([[-0.25, -0.5 ]], float32[1,2], numpy)

    Raises:
        ValueError: a weight that holds neither one slope nor one for each channel.
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
    return e.where(x > 0.0, x, x * weight)


def _pull_hardtanh(g: Any, plan: Any, x: Any, y: Any) -> tuple[Any, ...]:
    """Gradient of hardtanh: g where the result y is strictly between the limits, else 0."""
    low, high = plan.attributes
    return (g * e.astype(e.logical_and(y > low, y < high), g.dtype),)


_hardtanh_op = Composite(
    "hardtanh", "elementwise", lambda x, low, high: (e.minimum(e.maximum(x, low), high), ()), _pull_hardtanh, {"y"}
)


def hardtanh(x: ArrayLike, /, low: float = -1.0, high: float = 1.0) -> Tensor:
    """Limit x to the range from ``low`` to ``high`` (Collobert 2004); the gradient at both ends is 0.

    >>> import flnb
    >>> flnb.hardtanh([-3.0, 0.5, 3.0])
    Tensor([-1. ,  0.5,  1. ], float32[3], numpy)

    Raises:
        ValueError: ``low`` is not less than ``high``.
    """
    if not low < high:
        raise ValueError(f"hardtanh: expected low < high, got {low} and {high}")
    return _hardtanh_op(r.floating(x), attributes=(float(low), float(high)))[0]


def relu6(x: ArrayLike, /) -> Tensor:
    """Limit x to the range from 0 to 6 (Krizhevsky 2010).

    Raises:
        TypeError: the values are no numbers.

    >>> import flnb
    >>> flnb.relu6([-1.0, 3.0, 9.0])
    Tensor([0., 3., 6.], float32[3], numpy)
    """
    return hardtanh(x, 0.0, 6.0)


def threshold(x: ArrayLike, /, at: float, value: float = 0.0) -> Tensor:
    """Return x where it is greater than the number ``at``, else ``value``.

    Raises:
        TypeError: the values are no numbers.

    >>> import flnb
    >>> flnb.threshold([0.1, 0.9], at=0.5)
    Tensor([0. , 0.9], float32[2], numpy)
    """
    x = r.floating(x)
    return e.where(x > at, x, value)
