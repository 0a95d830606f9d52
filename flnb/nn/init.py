"""Initial values: functions of a shape that return Tensors; `generator` makes one reproducible alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flnb import ops, random
from flnb.dispatch.miss import default_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.random import Generator
    from flnb.tensor import Tensor

__all__ = ["constant", "kaiming_uniform", "normal", "uniform", "xavier_uniform"]


def constant(shape: Sequence[int], value: float) -> Tensor:
    """Every element `value`.

    >>> constant((2,), 0.5).numpy().tolist()
    [0.5, 0.5]
    """
    return ops.full(tuple(shape), value, dtype=default_dtype())


def uniform(shape: Sequence[int], low: float = 0.0, high: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Evenly distributed in [low, high)."""
    return random.uniform(tuple(shape), low, high, generator=generator)


def normal(shape: Sequence[int], mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normally distributed."""
    return random.normal(tuple(shape), mean, std, generator=generator)


def kaiming_uniform(shape: Sequence[int], a: float = 0.0, generator: Generator | None = None) -> Tensor:
    """Evenly in +-sqrt(6 / ((1 + a^2) fan_in)): keeps the variance through (leaky) ReLUs of negative slope `a`.

    >>> weight = kaiming_uniform((16, 3, 3, 3))  # a convolution's: fan_in = 3 * 3 * 3
    >>> bool(abs(weight.numpy()).max() <= (6 / 27) ** 0.5)
    True
    """
    bound = math.sqrt(6.0 / ((1.0 + a * a) * fans(shape)[0]))
    return uniform(shape, -bound, bound, generator)


def xavier_uniform(shape: Sequence[int], gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Evenly in +-gain * sqrt(6 / (fan_in + fan_out)): for tanh and sigmoid."""
    bound = gain * math.sqrt(6.0 / sum(fans(shape)))
    return uniform(shape, -bound, bound, generator)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """(inputs, outputs) of one unit of a weight (out, in, *kernel)."""
    if len(shape) < 2:
        raise ValueError(
            f"flnb: this initial value needs a weight of at least 2 axes (out, in, *kernel), got shape {tuple(shape)}; "
            "for a bias use nn.init.uniform or nn.init.constant"
        )
    receptive = math.prod(shape[2:])
    return shape[1] * receptive, shape[0] * receptive
