"""Layers: thin modules over the functions of the same name in `flnb`, with initial values as torch's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flnb import ops, random
from flnb.dispatch.miss import default_dtype
from flnb.dispatch.state import category
from flnb.nn.module import Module, Parameter

if TYPE_CHECKING:
    from collections.abc import Iterator

Pair = int | tuple[int, int]


class Sequential(Module):
    """Modules called one after another; by keyword they get names, which scopes and state dicts then show.

    >>> import flnb
    >>> net = Sequential(hidden=Linear(4, 8), relu=ReLU(), out=Linear(8, 2))
    >>> net(flnb.ones((5, 4))).shape, len(net), net[0]
    ((5, 2), 3, Linear(in_features=4, out_features=8)  # 40 parameters)
    """

    def __init__(self, *modules: Module, **named: Module) -> None:
        given = {str(index): module for index, module in enumerate(modules)} | named
        for name, module in given.items():
            if not isinstance(module, Module):
                raise TypeError(f"flnb: Sequential takes modules, got {type(module).__name__} as {name!r}")
            if hasattr(type(self), name):
                raise ValueError(f"flnb: {name!r} is a method of Sequential; give that module another name")
            setattr(self, name, module)

    def __iter__(self) -> Iterator[Module]:
        return iter([member for member in vars(self).values() if isinstance(member, Module)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: int) -> Module:
        return list(self)[index]

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class Linear(Module):
    """(..., in_features) -> (..., out_features): x @ weight.T + bias; weight (out, in), bias (out,).

    >>> import flnb
    >>> Linear(3, 2)(flnb.ones((7, 3))).shape
    (7, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.in_features, self.out_features = in_features, out_features
        self.weight = _initial((out_features, in_features), in_features)
        self.bias = _initial((out_features,), in_features) if bias else None

    def forward(self, x: Any) -> Any:
        return ops.linear(x, self.weight, self.bias)


class Conv2d(Module):
    """(N, in_channels, H, W) -> (N, out_channels, H', W'); weight (out, in, kh, kw), bias (out,).

    >>> import flnb
    >>> Conv2d(1, 4, 3, padding=1)(flnb.ones((2, 1, 8, 8))).shape
    (2, 4, 8, 8)
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Pair, stride: Pair = 1, padding: Pair = 0,
        bias: bool = True,
    ) -> None:  # fmt: skip
        kernel = kernel_size if isinstance(kernel_size, tuple) else (kernel_size, kernel_size)
        fan_in = in_channels * math.prod(kernel)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.weight = _initial((out_channels, in_channels, *kernel), fan_in)
        self.bias = _initial((out_channels,), fan_in) if bias else None

    def forward(self, x: Any) -> Any:
        return ops.conv2d(x, self.weight, self.bias, stride=self.stride, padding=self.padding)


def _initial(shape: tuple[int, ...], fan_in: int) -> Parameter:
    """Evenly distributed in +-1 / sqrt(fan_in), where fan_in is the number of inputs of one output."""
    bound = 1.0 / math.sqrt(fan_in)
    return Parameter(random.uniform(shape, -bound, bound))


class MaxPool2d(Module):
    """(N, C, H, W) -> (N, C, H', W'): the largest value of each window; `stride` defaults to `kernel_size`.

    >>> import flnb
    >>> MaxPool2d(2)(flnb.ones((1, 3, 8, 8))).shape
    (1, 3, 4, 4)
    """

    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0) -> None:
        self.kernel_size, self.padding = kernel_size, padding
        self.stride = kernel_size if stride is None else stride

    def forward(self, x: Any) -> Any:
        return ops.max_pool2d(x, self.kernel_size, stride=self.stride, padding=self.padding)


class BatchNorm(Module):
    """Normalises each channel (axis 1) of (N, C) or (N, C, H, W) by the batch's mean and variance.

    In training it also moves the buffers running_mean and running_var by `momentum`; after `eval()` it uses them.

    >>> import flnb
    >>> norm = BatchNorm(3)
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


class Dropout(Module):
    """In training, sets each element to zero with probability `p` and scales the others by 1 / (1 - p).

    >>> import flnb
    >>> Dropout(0.5).eval()(flnb.ones((2,))).numpy().tolist()
    [1.0, 1.0]
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p < 1.0:
            raise ValueError(f"flnb: Dropout's p is the share to drop, at least 0 and below 1; got {p}")
        self.p = p

    def forward(self, x: Any) -> Any:
        return ops.dropout(x, self.p) if self.training and self.p else x


class Flatten(Module):
    """(N, ...) -> (N, product of the rest).

    >>> import flnb
    >>> Flatten()(flnb.ones((2, 3, 4))).shape
    (2, 12)
    """

    def forward(self, x: Any) -> Any:
        return ops.reshape(x, (x.shape[0], math.prod(x.shape[1:])))


class ReLU(Module):
    """max(x, 0), elementwise."""

    def forward(self, x: Any) -> Any:
        return ops.relu(x)


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
