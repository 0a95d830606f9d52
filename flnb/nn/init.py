"""Initial values of parameters: functions that return tensors of a given shape.

The shape of a weight is (out, in, *kernel).

>>> import flnb, flnb.nn as nn
>>> layer = nn.Linear(3, 2)
>>> _ = flnb.assign(layer.weight.data, nn.init.glorot_uniform((2, 3)))
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

from flnb import ops
from flnb.dispatch.brief import brief
from flnb.dispatch.dtypes import default_dtype
from flnb.dispatch.spelling import unknown
from flnb.ops.documentation import readable
from flnb.random import normal, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.random import Generator
    from flnb.tensor import DTypeLike, Tensor

    Shape = Sequence[int]

__all__ = [
    "constant", "fans", "glorot_normal", "glorot_uniform", "identity", "kaiming_normal", "kaiming_uniform", "normal",
    "truncated_normal", "uniform",
]  # fmt: skip

ROOT_OF_TWO, ROOT_OF_THREE = 2.0**0.5, 3.0**0.5
LEAST_MASS = 0.01
"""The least probability of the interval of `truncated_normal`: below it, too many numbers would be drawn again."""


def fans(shape: Shape) -> tuple[int, int]:
    """Return the fan-in and the fan-out of a weight (out, in, *kernel): in * prod(kernel) and out * prod(kernel).

    >>> import flnb.nn as nn
    >>> nn.init.fans((8, 4, 3, 3))
    (36, 72)

    Raises:
        ValueError: the shape has fewer than two axes, or a negative extent.
    """
    if any(n < 0 for n in shape):
        raise ValueError(f"init: expected a shape with extents >= 0, got {brief(shape)}")
    if len(shape) < 2:
        raise ValueError(
            f"init: expected a weight (out, in, *kernel), got the shape {brief(shape)}; use uniform or normal"
        )
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


def constant(shape: Shape, value: float, dtype: DTypeLike = None) -> Tensor:
    """A tensor of the given shape whose elements are all ``value``.

    Raises:
        ValueError: an extent is negative.

    >>> import flnb.nn as nn
    >>> nn.init.constant((2,), 0.5)
    Tensor([0.5, 0.5], float32[2], numpy)
    """
    return ops.full(tuple(shape), value, dtype=dtype or default_dtype())


def identity(shape: Shape, dtype: DTypeLike = None) -> Tensor:
    """A matrix (out, in) with ones on the diagonal and zeros elsewhere.

    Raises:
        ValueError: the shape does not have two axes.

    >>> import flnb.nn as nn
    >>> nn.init.identity((2, 2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if len(shape) != 2:
        raise ValueError(f"init.identity: expected the shape of a matrix (out, in), got {brief(shape)}")
    return ops.eye(*shape, dtype=dtype or default_dtype())


def truncated_normal(
    shape: Shape, mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0, dtype: DTypeLike = None,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Normally distributed random numbers in [low, high]: numbers outside are drawn again.

    Raises:
        ValueError: the distribution has less than 1% of its probability between low and high.

    >>> import flnb, flnb.nn as nn
    >>> bool((flnb.abs(nn.init.truncated_normal((100,))) <= 2.0).all())
    True
    """
    below_low, below_high = ((1.0 + math.erf((cut - mean) / (std * ROOT_OF_TWO))) / 2.0 for cut in (low, high))
    if not below_high - below_low >= LEAST_MASS:
        raise ValueError(
            f"init.truncated_normal: {below_high - below_low:.2%} of the normal distribution with mean {mean} and std "
            f"{std} lies in [{low}, {high}], expected 1% or more; change low or high, or use uniform"
        )
    x = normal(shape, mean, std, dtype, generator)
    while ops.any(outside := ops.logical_or(x < low, x > high)):
        x = ops.where(outside, normal(shape, mean, std, dtype, generator), x)
    return x


def kaiming_uniform(
    shape: Shape, mode: str = "in", slope: float = 0.0, dtype: DTypeLike = None, generator: Generator | None = None
) -> Tensor:
    """Uniform random numbers with mean 0 and the standard deviation of `kaiming_normal`.

    Raises:
        ValueError: ``mode`` is neither "in" nor "out", or the shape has fewer than two axes.

    >>> import flnb.nn as nn
    >>> nn.init.kaiming_uniform((64, 3, 3, 3)).shape
    (64, 3, 3, 3)
    """
    bound = ROOT_OF_THREE * _kaiming(shape, mode, slope)
    return uniform(shape, -bound, bound, dtype, generator)


def kaiming_normal(
    shape: Shape, mode: str = "in", slope: float = 0.0, dtype: DTypeLike = None, generator: Generator | None = None
) -> Tensor:
    """Normally distributed random numbers with mean 0 and standard deviation sqrt(2 / ((1 + slope^2) * fan)).

    As initial weights before a ReLU, or a leaky ReLU with that ``slope``, they preserve the variance of activations
    (mode "in", with the fan-in) or of gradients (mode "out", with the fan-out). He et al. 2015, section 2.2.

    Raises:
        ValueError: ``mode`` is neither "in" nor "out", or the shape has fewer than two axes.

    >>> import flnb, flnb.nn as nn
    >>> round(float(flnb.std(nn.init.kaiming_normal((1000, 200)))), 1)
    0.1
    """
    return normal(shape, 0.0, _kaiming(shape, mode, slope), dtype, generator)


def _kaiming(shape: Shape, mode: str, slope: float) -> float:
    """Return the standard deviation for `kaiming_normal`."""
    if mode not in ("in", "out"):
        raise ValueError(f"init: mode must be 'in' or 'out', got {brief(mode)}")
    return math.sqrt(2.0 / ((1.0 + slope**2) * max(1, fans(shape)[mode == "out"])))


def glorot_uniform(
    shape: Shape, gain: float = 1.0, dtype: DTypeLike = None, generator: Generator | None = None
) -> Tensor:
    """Uniform random numbers between -b and b with b = gain * sqrt(6 / (fan_in + fan_out)).

    Glorot and Bengio 2010, equation 16.

    Raises:
        ValueError: the shape has fewer than two axes, or a negative extent.

    >>> import flnb.nn as nn
    >>> nn.init.glorot_uniform((2, 3)).shape
    (2, 3)
    """
    bound = gain * math.sqrt(6.0 / max(1, sum(fans(shape))))
    return uniform(shape, -bound, bound, dtype, generator)


def glorot_normal(
    shape: Shape, gain: float = 1.0, dtype: DTypeLike = None, generator: Generator | None = None
) -> Tensor:
    """Normally distributed random numbers with mean 0 and standard deviation gain * sqrt(2 / (fan_in + fan_out)).

    Glorot and Bengio 2010, equation 12.

    Raises:
        ValueError: the shape has fewer than two axes, or a negative extent.

    >>> import flnb.nn as nn
    >>> nn.init.glorot_normal((2, 3)).shape
    (2, 3)
    """
    return normal(shape, 0.0, gain * math.sqrt(2.0 / max(1, sum(fans(shape)))), dtype, generator)


def by_inputs(shape: Shape, inputs: int) -> Tensor:
    """Uniform random numbers between -b and b with b = 1 / sqrt(inputs): the default of layers, as in torch.

    Args:
        shape: the shape of the tensor.
        inputs: the number of inputs of each of the layer's outputs.
    """
    bound = 1.0 / math.sqrt(max(1, inputs))
    return uniform(shape, -bound, bound)


def __getattr__(name: str) -> NoReturn:
    raise unknown("module 'flnb.nn.init'", name, __all__)


for _name in __all__:
    readable(globals()[_name])
