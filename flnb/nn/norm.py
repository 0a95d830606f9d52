"""Normalisation of activations (by batch, layer, group or p-norm) and of a module's weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flnb import ops
from flnb.dispatch.brief import brief
from flnb.dispatch.dtypes import default_dtype
from flnb.dispatch.state import category
from flnb.linalg import vector_norm
from flnb.nn.module import Module, Parameter

__all__ = ["BatchNorm", "GroupNorm", "LayerNorm", "Normalize", "WeightNorm"]


class BatchNorm(Module):
    """Normalise each channel (axis 1) of x (N, C, ...) by the mean and variance of the batch.

    Returns (x - mean) / sqrt(variance + eps) * weight + bias. In training mode, the buffers ``running_mean`` and
    ``running_var`` (C,) are moved towards the batch's mean and unbiased variance: new = (1 - momentum) * old + momentum
    * batch. In evaluation mode they are used in place of the batch's. Ioffe and Szegedy 2015.

    >>> import flnb, flnb.nn as nn
    >>> norm = nn.BatchNorm(3)
    >>> y = norm(flnb.asarray([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    >>> y.detach().numpy().round(2).tolist(), norm.running_mean
    ([[-1.0, 0.0, 1.0], [1.0, 0.0, -1.0]], Tensor([0.2, 0.2, 0.2], float32[3], numpy))
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        shape, dtype = (num_features,), default_dtype()
        self.weight = Parameter(ops.ones(shape, dtype=dtype))
        self.bias = Parameter(ops.zeros(shape, dtype=dtype))
        with category("parameter"):
            self.running_mean = ops.zeros(shape, dtype=dtype)
            self.running_var = ops.ones(shape, dtype=dtype)

    def forward(self, x: Any) -> Any:
        statistics = self.running_mean, self.running_var
        return ops.batch_norm(x, self.weight, self.bias, *statistics, self.training, self.momentum, self.eps)


class LayerNorm(Module):
    """Normalise x by the mean and variance over its last axes; ``shape`` has their extents.

    Returns (x - mean) / sqrt(variance + eps) * weight + bias. The parameters weight and bias have the shape ``shape``;
    with ``affine=False`` there are none, with ``bias=False`` only the weight. Ba et al. 2016.

    >>> import flnb, flnb.nn as nn
    >>> nn.LayerNorm(3)(flnb.asarray([[1.0, 2.0, 3.0]])).detach().numpy().round(2).tolist()
    [[-1.2200000286102295, 0.0, 1.2200000286102295]]
    """

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-5, affine: bool = True, bias: bool = True) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.weight, self.bias = _affine(self.shape, affine, bias)

    def forward(self, x: Any) -> Any:
        return ops.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


class GroupNorm(Module):
    """Normalise each example of x (N, channels, ...) by the mean and variance of groups of neighbouring channels.

    Each of the ``groups`` has channels / groups channels. Weight and bias (channels,) scale and shift the result; with
    ``affine=False`` there are none. Wu and He 2018.

    Raises:
        ValueError: ``groups`` does not divide ``channels``, or x has another shape.

    >>> import flnb, flnb.nn as nn
    >>> nn.GroupNorm(2, 4)(flnb.ones((1, 4, 3))).shape
    (1, 4, 3)
    """

    def __init__(self, groups: int, channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        if groups < 1 or channels % groups:
            raise ValueError(f"GroupNorm: expected groups that divide {channels} channels, got {groups}")
        self.groups, self.channels, self.eps = groups, channels, eps
        self.weight, self.bias = _affine((channels,), affine)

    def forward(self, x: Any) -> Any:
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ValueError(f"GroupNorm: expected x (N, {self.channels}, ...), got {x.shape}")
        return ops.group_norm(x, self.groups, self.weight, self.bias, self.eps)


def _affine(shape: tuple[int, ...], wanted: bool, bias: bool = True) -> tuple[Parameter | None, Parameter | None]:
    """Return a weight of ones and a bias of zeros (without ``bias``, None); without ``wanted``, both are None."""
    if not wanted:
        return None, None
    dtype = default_dtype()
    return Parameter(ops.ones(shape, dtype=dtype)), Parameter(ops.zeros(shape, dtype=dtype)) if bias else None


class Normalize(Module):
    """Scale x so that its p-norm along ``axis`` (one or several) is ``value``: x / max(norm, eps) * value.

    >>> import flnb, flnb.nn as nn
    >>> nn.Normalize(p=1)(flnb.asarray([1.0, 3.0])).tolist()
    [0.25, 0.75]
    """

    def __init__(
        self, p: float = 2.0, axis: int | tuple[int, ...] = -1, eps: float = 1e-12, value: float = 1.0
    ) -> None:
        self.p, self.axis, self.eps, self.value = p, axis, eps, value

    def forward(self, x: Any) -> Any:
        y = ops.normalize(x, self.p, self.axis, self.eps)
        return y if self.value == 1.0 else y * self.value


class WeightNorm(Module):
    """Reparametrise the weight of a module as magnitude * direction / |direction|.

    The norm is taken over all axes of the weight except ``axis``. ``magnitude`` and ``direction`` are parameters of
    this module. They replace the parameter ``name`` of the wrapped module, which has this attribute only during a call.
    Salimans and Kingma 2016, equation 2.

    Raises:
        TypeError: the module has no parameter of that name.

    >>> import flnb, flnb.nn as nn
    >>> layer = nn.WeightNorm(nn.Linear(3, 2))
    >>> layer(flnb.ones((5, 3))).shape, [name for name, _ in layer.named_parameters()]
    ((5, 2), ['direction', 'magnitude', 'module.bias'])
    """

    def __init__(self, module: Module, name: str = "weight", axis: int = 0) -> None:
        weight = getattr(module, name, None)
        if not isinstance(weight, Parameter):
            raise TypeError(
                f"WeightNorm: expected a module with a parameter {name!r}, got "
                f"{type(module).__name__}, whose {name!r} is {brief(weight)}"
            )
        self.parameter = name
        self._others = tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
        self.direction = Parameter(weight)
        self.magnitude = Parameter(vector_norm(weight.data, axis=self._others, keepdims=True))
        self.module = module
        setattr(module, name, None)

    def forward(self, *inputs: Any) -> Any:
        norm = vector_norm(self.direction, axis=self._others, keepdims=True)
        setattr(self.module, self.parameter, self.direction * (self.magnitude / norm))
        try:
            return self.module(*inputs)
        finally:
            setattr(self.module, self.parameter, None)
