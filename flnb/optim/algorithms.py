"""SGD and Adam, each with the arithmetic and the defaults of torch's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flnb import ops
from flnb.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flnb.autograd import Variable
    from flnb.tensor import Tensor

__all__ = ["SGD", "Adam"]


class SGD(Optimizer):
    """data -= lr * v, where v = momentum * v + gradient (+ weight_decay * data).

    >>> import flnb, flnb.nn as nn
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> optimizer = SGD([weight], lr=0.1, momentum=0.9)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     flnb.sum(weight * weight).backward()  # gradient 6.0, then 4.8
    ...     optimizer.step()
    >>> round(float(weight.data[0]), 4)  # 3 - 0.6 - (0.9 * 0.6 + 0.48)
    1.38
    """

    scratch = 1
    momentum: float
    weight_decay: float

    def __init__(
        self, parameters: Iterable[Variable], lr: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, lr, momentum=momentum, weight_decay=weight_decay)
        self.slots = ("momentum",) if momentum else ()

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        work = scratch[0]
        if self.weight_decay:
            ops.multiply(data, self.weight_decay, out=work)
            gradient = ops.add(work, gradient, out=work)
        if self.momentum:
            velocity = state["momentum"]
            ops.multiply(velocity, self.momentum, out=velocity)
            gradient = ops.add(velocity, gradient, out=velocity)
        ops.multiply(gradient, self.lr, out=work)
        ops.subtract(data, work, out=data)


class Adam(Optimizer):
    """data -= lr * m / (sqrt(v) + eps), with m and v the bias-corrected averages of the gradient and of its square.

    `weight_decay` adds weight_decay * data to the gradient.

    >>> import flnb, flnb.nn as nn
    >>> weight = nn.Parameter(flnb.asarray([3.0, -8.0]))
    >>> flnb.sum(weight * weight).backward()
    >>> Adam([weight], lr=0.1).step()  # the first step moves each element by lr
    >>> weight.data
    Tensor([ 2.9, -7.9], float32[2], numpy)
    """

    slots = ("mean", "square")
    scratch = 1
    beta1: float
    beta2: float
    eps: float
    weight_decay: float

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
        if max(betas) >= 1.0:
            raise ValueError(f"flnb: {type(self).__name__}: betas must be below 1, got {betas}")

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        work, mean, square, keep = scratch[0], state["mean"], state["square"], 1.0 - self.beta1
        if self.weight_decay:
            ops.multiply(data, self.weight_decay, out=work)
            gradient = ops.add(work, gradient, out=work)
        ops.multiply(gradient, keep, out=work)
        ops.multiply(mean, self.beta1, out=mean)
        ops.add(mean, work, out=mean)
        ops.multiply(work, work, out=work)  # keep^2 * gradient^2: one work buffer serves both averages
        ops.multiply(work, (1.0 - self.beta2) / keep**2, out=work)
        ops.multiply(square, self.beta2, out=square)
        ops.add(square, work, out=square)
        # Both bias corrections are folded into the two numbers, as in the paper's section 2.
        root = math.sqrt(1.0 - self.beta2**self.steps)
        ops.sqrt(square, out=work)
        ops.add(work, self.eps * root, out=work)
        ops.divide(mean, work, out=work)
        ops.multiply(work, self.lr * root / (1.0 - self.beta1**self.steps), out=work)
        ops.subtract(data, work, out=data)
