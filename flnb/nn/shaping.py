"""Modules without parameters, which return their input unchanged, reshape, pad or cast it, or pass it to a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flnb import ops
from flnb.dispatch.source_lines import with_own_lines
from flnb.nn.module import Module

__all__ = ["Flatten", "Identity", "Padding", "PrecisionCast", "Reorder", "Transform", "View"]


class Identity(Module):
    """Return x unchanged.

    >>> import flnb, flnb.nn as nn
    >>> nn.Identity()(flnb.ones(2))
    Tensor([1., 1.], float32[2], numpy)
    """

    def forward(self, x: Any) -> Any:
        return x


class Transform(Module):
    """Call a function with the inputs, as a module that can be part of a `Sequential`.

    >>> import flnb, flnb.nn as nn
    >>> nn.Transform(lambda x: x * 2.0)(flnb.ones(2)).tolist()
    [2.0, 2.0]
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return with_own_lines(self.function, *inputs)


class View(Module):
    """Reshape x to ``shape``, which includes the axis of examples (axis 0); one extent may be -1.

    >>> import flnb, flnb.nn as nn
    >>> nn.View((-1, 2, 3))(flnb.ones((4, 6))).shape
    (4, 2, 3)
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)

    def forward(self, x: Any) -> Any:
        return ops.reshape(x, self.shape)


class Reorder(Module):
    """Permute the axes of x: axis i of the result is axis ``axes[i]`` of x.

    >>> import flnb, flnb.nn as nn
    >>> nn.Reorder((0, 2, 1))(flnb.ones((4, 6, 5))).shape
    (4, 5, 6)
    """

    def __init__(self, axes: Sequence[int]) -> None:
        self.axes = tuple(axes)

    def forward(self, x: Any) -> Any:
        return ops.permute_dims(x, self.axes)


class Flatten(Module):
    """Join all axes of x but the first into one: (N, ...) -> (N, features).

    >>> import flnb, flnb.nn as nn
    >>> nn.Flatten()(flnb.ones((2, 3, 4))).shape
    (2, 12)
    """

    def forward(self, x: Any) -> Any:
        return ops.reshape(x, (x.shape[0], math.prod(x.shape[1:])))


class Padding(Module):
    """Pad the last axes of x.

    Args:
        widths: for each of the last axes, the numbers of elements (before, after).
        value: the value of new elements, in the mode "constant".
        mode: "constant", "edge", "symmetric" or "reflect", as in `flnb.pad`.

    Raises:
        ValueError: x has fewer axes than ``widths``.

    >>> import flnb, flnb.nn as nn
    >>> nn.Padding([(1, 0)], value=9.0)(flnb.ones((1, 2))).tolist()
    [[9.0, 1.0, 1.0]]
    """

    def __init__(self, widths: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant") -> None:
        self.widths, self.value, self.mode = tuple((int(b), int(a)) for b, a in widths), value, mode

    def forward(self, x: Any) -> Any:
        if x.ndim < len(self.widths):
            raise ValueError(f"Padding: expected {len(self.widths)} axes or more to pad, got shape {x.shape}")
        kept = ((0, 0),) * (x.ndim - len(self.widths))
        return ops.pad(x, kept + self.widths, self.value, self.mode)


class PrecisionCast(Module):
    """Cast x to another dtype; the gradient has the dtype of x.

    >>> import flnb, flnb.nn as nn
    >>> nn.PrecisionCast("float64")(flnb.ones(2)).dtype
    dtype('float64')
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype).name

    def forward(self, x: Any) -> Any:
        return ops.astype(x, self.dtype, copy=False)
