"""Activation functions as modules. They take tensors of any shape; results have the same shape, except that of GLU."""

from __future__ import annotations

from typing import Any

from flnb import ops
from flnb.dispatch.dtypes import default_dtype
from flnb.nn.module import Module, Parameter

__all__ = [
    "ELU", "GELU", "GLU", "HardTanh", "LeakyReLU", "Log", "LogSoftmax", "PReLU", "ReLU", "ReLU6", "Sigmoid", "Softmax",
    "Swish", "Tanh", "ThresholdReLU",
]  # fmt: skip


class ReLU(Module):
    """Rectified linear unit: max(x, 0) elementwise.

    >>> import flnb, flnb.nn as nn
    >>> nn.ReLU()(flnb.asarray([-1.0, 2.0]))
    Tensor([0., 2.], float32[2], numpy)
    """

    def forward(self, x: Any) -> Any:
        return ops.relu(x)


class ReLU6(Module):
    """Rectified linear unit with an upper limit: min(max(x, 0), 6) elementwise.

    >>> import flnb, flnb.nn as nn
    >>> nn.ReLU6()(flnb.asarray([-1.0, 9.0]))
    Tensor([0., 6.], float32[2], numpy)
    """

    def forward(self, x: Any) -> Any:
        return ops.relu6(x)


class Sigmoid(Module):
    """Logistic function: 1 / (1 + exp(-x)) elementwise.

    >>> import flnb, flnb.nn as nn
    >>> nn.Sigmoid()(flnb.asarray([0.0]))
    Tensor([0.5], float32[1], numpy)
    """

    def forward(self, x: Any) -> Any:
        return ops.sigmoid(x)


class Tanh(Module):
    """Hyperbolic tangent, elementwise.

    >>> import flnb, flnb.nn as nn
    >>> nn.Tanh()(flnb.asarray([0.0, 1.0]))
    Tensor([0.    , 0.7616], float32[2], numpy)
    """

    def forward(self, x: Any) -> Any:
        return ops.tanh(x)


class Log(Module):
    """Natural logarithm, elementwise.

    >>> import flnb, flnb.nn as nn
    >>> nn.Log()(flnb.asarray([1.0, 10.0]))
    Tensor([0.    , 2.3026], float32[2], numpy)
    """

    def forward(self, x: Any) -> Any:
        return ops.log(x)


class HardTanh(Module):
    """Limit x to the range from ``low`` to ``high``, elementwise.

    >>> import flnb, flnb.nn as nn
    >>> nn.HardTanh()(flnb.asarray([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self.low, self.high = low, high

    def forward(self, x: Any) -> Any:
        return ops.hardtanh(x, self.low, self.high)


class LeakyReLU(Module):
    """Leaky rectified linear unit: x where x is positive, else ``slope`` * x, elementwise.

    >>> import flnb, flnb.nn as nn
    >>> nn.LeakyReLU(0.1)(flnb.asarray([-1.0, 2.0]))
    Tensor([-0.1,  2. ], float32[2], numpy)
    """

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = slope

    def forward(self, x: Any) -> Any:
        return ops.leaky_relu(x, self.slope)


class PReLU(Module):
    """Rectified linear unit with a learnt slope: x where x is positive, else weight * x, elementwise.

    The parameter ``weight`` has one slope for all elements, or one for each channel (axis 1 of x); ``init`` is its
    initial value. He et al. 2015, "Delving deep into rectifiers".

    >>> import flnb, flnb.nn as nn
    >>> nn.PReLU()(flnb.asarray([-1.0, 2.0])).detach().tolist()
    [-0.25, 2.0]
    """

    def __init__(self, channels: int = 1, init: float = 0.25) -> None:
        self.weight = Parameter(ops.full((channels,), init, dtype=default_dtype()))

    def forward(self, x: Any) -> Any:
        return ops.prelu(x, self.weight)


class ELU(Module):
    """Exponential linear unit: x where x is positive, else ``alpha`` * (exp(x) - 1), elementwise.

    >>> import flnb, flnb.nn as nn
    >>> nn.ELU()(flnb.asarray([-1.0, 2.0]))
    Tensor([-0.6321,  2.    ], float32[2], numpy)
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Any) -> Any:
        return ops.elu(x, self.alpha)


class ThresholdReLU(Module):
    """Replace small elements: the result is x where x is above ``threshold``, else ``value``.

    >>> import flnb, flnb.nn as nn
    >>> nn.ThresholdReLU(0.5)(flnb.asarray([0.1, 0.9]))
    Tensor([0. , 0.9], float32[2], numpy)
    """

    def __init__(self, threshold: float = 0.0, value: float = 0.0) -> None:
        self.threshold, self.value = threshold, value

    def forward(self, x: Any) -> Any:
        return ops.threshold(x, self.threshold, self.value)


class GLU(Module):
    """Gated linear unit: the first half of x along ``axis`` times the sigmoid of the second half.

    The result has half as many elements along the axis. Dauphin et al. 2017, "Language modeling with gated
    convolutional networks".

    >>> import flnb, flnb.nn as nn
    >>> nn.GLU()(flnb.asarray([3.0, 0.0]))
    Tensor([1.5], float32[1], numpy)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return ops.glu(x, self.axis)


class Swish(Module):
    """Swish: x * sigmoid(``beta`` * x) elementwise; also called SiLU if ``beta`` is 1.

    >>> import flnb, flnb.nn as nn
    >>> nn.Swish()(flnb.asarray([-1.0, 2.0]))
    Tensor([-0.2689,  1.7616], float32[2], numpy)
    """

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = beta

    def forward(self, x: Any) -> Any:
        return ops.swish(x, self.beta)


class GELU(Module):
    """Gaussian error linear unit: x times the standard normal distribution function of x, elementwise.

    With ``approximate="tanh"`` the distribution function is approximated by the hyperbolic tangent (Hendrycks and
    Gimpel 2016).

    >>> import flnb, flnb.nn as nn
    >>> nn.GELU()(flnb.asarray([-1.0, 2.0]))
    Tensor([-0.1587,  1.9545], float32[2], numpy)
    """

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        return ops.gelu(x, approximate=self.approximate)


class Softmax(Module):
    """Softmax: exp(x) divided by the sum of exp(x) along ``axis``.

    >>> import flnb, flnb.nn as nn
    >>> nn.Softmax()(flnb.asarray([1.0, 2.0, 3.0]))
    Tensor([0.09  , 0.2447, 0.6652], float32[3], numpy)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return ops.softmax(x, axis=self.axis)


class LogSoftmax(Module):
    """Logarithm of the softmax: x - log(sum of exp(x) along ``axis``), computed without overflow.

    >>> import flnb, flnb.nn as nn
    >>> round(float(flnb.exp(nn.LogSoftmax()(flnb.asarray([[1.0, 2.0]]))).sum()), 5)
    1.0
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return ops.log_softmax(x, axis=self.axis)
