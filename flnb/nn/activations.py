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
    """max(x, 0), elementwise."""

    def forward(self, x: Any) -> Any:
        return ops.relu(x)


class ReLU6(Module):
    """x limited to [0, 6]."""

    def forward(self, x: Any) -> Any:
        return ops.relu6(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Any) -> Any:
        return ops.sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Any) -> Any:
        return ops.tanh(x)


class Log(Module):
    """The natural logarithm."""

    def forward(self, x: Any) -> Any:
        return ops.log(x)


class HardTanh(Module):
    """x limited to [low, high].

    >>> import flnb
    >>> HardTanh()(flnb.asarray([-3.0, 0.5])).tolist()
    [-1.0, 0.5]
    """

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self.low, self.high = low, high

    def forward(self, x: Any) -> Any:
        return ops.hardtanh(x, self.low, self.high)


class LeakyReLU(Module):
    """x where positive, else ``slope`` x."""

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = slope

    def forward(self, x: Any) -> Any:
        return ops.leaky_relu(x, self.slope)


class PReLU(Module):
    """x where positive, else x times a learnt slope: one, or one for each of ``channels`` (axis 1) (He et al. 2015).

    >>> import flnb
    >>> PReLU()(flnb.asarray([-1.0, 2.0])).detach().tolist()
    [-0.25, 2.0]
    """

    def __init__(self, channels: int = 1, init: float = 0.25) -> None:
        self.weight = Parameter(ops.full((channels,), init, dtype=default_dtype()))

    def forward(self, x: Any) -> Any:
        return ops.prelu(x, self.weight)


class ELU(Module):
    """x where positive, else alpha (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Any) -> Any:
        return ops.elu(x, self.alpha)


class ThresholdReLU(Module):
    """x where above ``threshold``, else ``value``."""

    def __init__(self, threshold: float = 0.0, value: float = 0.0) -> None:
        self.threshold, self.value = threshold, value

    def forward(self, x: Any) -> Any:
        return ops.threshold(x, self.threshold, self.value)


class GLU(Module):
    """The first half along ``axis`` times the sigmoid of the second, so that the axis is halved."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return ops.glu(x, self.axis)


class Swish(Module):
    """x sigmoid(beta x); SiLU with beta = 1."""

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = beta

    def forward(self, x: Any) -> Any:
        return ops.swish(x, self.beta)


class GELU(Module):
    """x times the normal distribution function of x, or its approximation by "tanh"."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        return ops.gelu(x, approximate=self.approximate)


class Softmax(Module):
    """exp(x) / sum(exp(x)) along ``axis``."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return ops.softmax(x, axis=self.axis)


class LogSoftmax(Module):
    """log(softmax(x)) along `axis`.

    >>> import flnb
    >>> round(float(flnb.exp(LogSoftmax()(flnb.asarray([[1.0, 2.0]]))).sum()), 5)
    1.0
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        return ops.log_softmax(x, axis=self.axis)
