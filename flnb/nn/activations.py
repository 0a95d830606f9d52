"""Activations: modules over the functions of the same name in `flnb`; elementwise, any shape, shape kept."""

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
    """Rectified linear unit: max(x, 0), elementwise.

    >>> import flnb, flnb.nn as nn
    >>> nn.ReLU()(flnb.asarray([-1.0, 2.0]))
    Tensor([0., 2.], float32[2], numpy)
    """

    def forward(self, x: Any) -> Any:
        return ops.relu(x)


class ReLU6(Module):
    """x limited to the range from 0 to 6.

    >>> import flnb, flnb.nn as nn
    >>> nn.ReLU6()(flnb.asarray([-1.0, 9.0]))
    Tensor([0., 6.], float32[2], numpy)
    """

    def forward(self, x: Any) -> Any:
        return ops.relu6(x)


class Sigmoid(Module):
    """Logistic function: 1 / (1 + exp(-x)).

    >>> import flnb, flnb.nn as nn
    >>> nn.Sigmoid()(flnb.asarray([0.0]))
    Tensor([0.5], float32[1], numpy)
    """

    def forward(self, x: Any) -> Any:
        return ops.sigmoid(x)


class Tanh(Module):
    """Hyperbolic tangent.

    >>> import flnb, flnb.nn as nn
    >>> nn.Tanh()(flnb.asarray([0.0, 1.0]))
    Tensor([0.    , 0.7616], float32[2], numpy)
    """

    def forward(self, x: Any) -> Any:
        return ops.tanh(x)


class Log(Module):
    """Natural logarithm.

    >>> import flnb, flnb.nn as nn
    >>> nn.Log()(flnb.asarray([1.0, 10.0]))
    Tensor([0.    , 2.3026], float32[2], numpy)
    """

    def forward(self, x: Any) -> Any:
        return ops.log(x)


class HardTanh(Module):
    """x limited to the range from ``low`` to ``high``.

    >>> import flnb, flnb.nn as nn
    >>> nn.HardTanh()(flnb.asarray([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self.low, self.high = low, high

    def forward(self, x: Any) -> Any:
        return ops.hardtanh(x, self.low, self.high)


class LeakyReLU(Module):
    """x where positive, else ``slope`` * x.

    >>> import flnb, flnb.nn as nn
    >>> nn.LeakyReLU(0.1)(flnb.asarray([-1.0, 2.0]))
    Tensor([-0.1,  2. ], float32[2], numpy)
    """

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = slope

    def forward(self, x: Any) -> Any:
        return ops.leaky_relu(x, self.slope)


class PReLU(Module):
    """x where positive, else x times a learnt slope: one, or one for each of ``channels`` (axis 1) (He et al. 2015).

    >>> import flnb, flnb.nn as nn
    >>> nn.PReLU()(flnb.asarray([-1.0, 2.0])).detach().tolist()
    [-0.25, 2.0]
    """

    def __init__(self, channels: int = 1, init: float = 0.25) -> None:
        self.weight = Parameter(ops.full((channels,), init, dtype=default_dtype()))

    def forward(self, x: Any) -> Any:
        return ops.prelu(x, self.weight)


class ELU(Module):
    """Exponential linear unit: x where positive, else alpha * (exp(x) - 1).

    >>> import flnb, flnb.nn as nn
    >>> nn.ELU()(flnb.asarray([-1.0, 2.0]))
    Tensor([-0.6321,  2.    ], float32[2], numpy)
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Any) -> Any:
        return ops.elu(x, self.alpha)


class ThresholdReLU(Module):
    """x where above ``threshold``, else ``value``.

    >>> import flnb, flnb.nn as nn
    >>> nn.ThresholdReLU(0.5)(flnb.asarray([0.1, 0.9]))
    Tensor([0. , 0.9], float32[2], numpy)
    """

    def __init__(self, threshold: float = 0.0, value: float = 0.0) -> None:
        self.threshold, self.value = threshold, value

    def forward(self, x: Any) -> Any:
        return ops.threshold(x, self.threshold, self.value)


class GLU(Module):
    """Gated linear unit: the first half along ``axis`` times the sigmoid of the second, so that the axis is halved.

    >>> import flnb, flnb.nn as nn
    >>> nn.GLU()(flnb.asarray([3.0, 0.0]))
    Tensor([1.5], float32[1], numpy)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return ops.glu(x, self.axis)


class Swish(Module):
    """x * sigmoid(beta * x); SiLU with beta = 1.

    >>> import flnb, flnb.nn as nn
    >>> nn.Swish()(flnb.asarray([-1.0, 2.0]))
    Tensor([-0.2689,  1.7616], float32[2], numpy)
    """

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = beta

    def forward(self, x: Any) -> Any:
        return ops.swish(x, self.beta)


class GELU(Module):
    """Gaussian error linear unit: x times the normal distribution function of x, or its approximation by "tanh".

    >>> import flnb, flnb.nn as nn
    >>> nn.GELU()(flnb.asarray([-1.0, 2.0]))
    Tensor([-0.1587,  1.9545], float32[2], numpy)
    """

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        return ops.gelu(x, approximate=self.approximate)


class Softmax(Module):
    """Exponentials of the elements divided by their sum along ``axis``.

    >>> import flnb, flnb.nn as nn
    >>> nn.Softmax()(flnb.asarray([1.0, 2.0, 3.0]))
    Tensor([0.09  , 0.2447, 0.6652], float32[3], numpy)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return ops.softmax(x, axis=self.axis)


class LogSoftmax(Module):
    """Logarithm of the softmax along ``axis``.

    >>> import flnb, flnb.nn as nn
    >>> round(float(flnb.exp(nn.LogSoftmax()(flnb.asarray([[1.0, 2.0]]))).sum()), 5)
    1.0
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return ops.log_softmax(x, axis=self.axis)
