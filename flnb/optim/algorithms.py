"""Optimizers, each with the arithmetic and the defaults of torch's where torch has it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flnb import ops
from flnb.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flnb.autograd import Variable
    from flnb.tensor import Tensor

__all__ = ["NAG", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "AMSgrad", "Novograd", "RMSProp"]


class SGD(Optimizer):
    """Stochastic gradient descent with momentum.

    ``data -= lr * v``, where ``v = momentum * v + gradient (+ weight_decay * data)``. With `nesterov` the step looks
    ahead: ``data -= lr * (gradient + momentum * v)``. Momentum: Polyak, 1964, "Some methods of speeding up the
    convergence of iteration methods"; as written here and Nesterov's: Sutskever et al., 2013, "On the importance of
    initialization and momentum in deep learning", section 2.

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
    nesterov: bool

    def __init__(
        self, parameters: Iterable[Variable], lr: float, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
        if nesterov and not momentum:
            raise ValueError(f"flnb: {type(self).__name__}: nesterov needs a momentum above 0, got {momentum}")
        self.slots = ("momentum",) if momentum else ()

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        if self.weight_decay:
            gradient = _plus_decay(gradient, data, self.weight_decay, scratch[0])
        self.descend(data, gradient, state, scratch[0])

    def descend(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], work: Tensor) -> None:
        """Step along the momentum, or the gradient without one."""
        if self.momentum:
            velocity = state["momentum"]
            ops.multiply(velocity, self.momentum, out=velocity)
            ops.add(velocity, gradient, out=velocity)
            if self.nesterov:
                _subtract(data, gradient, self.lr, work)
                _subtract(data, velocity, self.lr * self.momentum, work)
                return
            gradient = velocity
        _subtract(data, gradient, self.lr, work)


class NAG(SGD):
    """Nesterov's accelerated gradient with weight decay apart from the momentum: data *= 1 - lr * weight_decay.

    Nesterov, 1983, "A method of solving a convex programming problem with convergence rate O(1/k^2)"; in the form of
    Bengio et al., 2013, "Advances in optimizing recurrent networks", section 3.5.

    >>> import flnb, flnb.nn as nn
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([1.0])
    >>> NAG([weight], lr=0.1, momentum=0.9).step()
    >>> round(float(weight.data[0]), 4)  # 3 - 0.1 * (1 + 0.9)
    2.81
    """

    def __init__(
        self, parameters: Iterable[Variable], lr: float, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, lr, momentum, weight_decay, nesterov=True)

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        if self.weight_decay:
            ops.multiply(data, 1.0 - self.lr * self.weight_decay, out=data)
        self.descend(data, gradient, state, scratch[0])


class Adam(Optimizer):
    """Steps by the average gradient over the root of the average square (Kingma and Ba 2015).

    ``data -= lr * m / (sqrt(v) + eps)``, with m and v the bias-corrected averages of the gradient and of its square.
    `weight_decay` adds weight_decay * data to the gradient. "Adam: a method for stochastic optimization", algorithm 1.

    >>> import flnb, flnb.nn as nn
    >>> weight = nn.Parameter(flnb.asarray([3.0, -8.0]))
    >>> flnb.sum(weight * weight).backward()
    >>> Adam([weight], lr=0.1).step()  # the first step moves each element by lr
    >>> weight.data
    Tensor([ 2.9, -7.9], float32[2], numpy)
    """

    slots: tuple[str, ...] = ("mean", "square")
    scratch = 1
    gathers = True
    beta1: float
    beta2: float
    eps: float
    weight_decay: float

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
        _below_one(self, "betas", *betas)

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        if self.weight_decay:
            gradient = _plus_decay(gradient, data, self.weight_decay, scratch[0])
        self.descend(data, gradient, state, scratch[0])

    def descend(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], work: Tensor) -> None:
        """Step along the average gradient over the root of the average square."""
        mean, square, keep = state["mean"], state["square"], 1.0 - self.beta1
        ops.multiply(gradient, keep, out=work)
        ops.multiply(mean, self.beta1, out=mean)
        ops.add(mean, work, out=mean)
        ops.multiply(work, work, out=work)  # keep^2 * gradient^2: one work buffer serves both averages
        ops.multiply(work, (1.0 - self.beta2) / keep**2, out=work)
        ops.multiply(square, self.beta2, out=square)
        ops.add(square, work, out=square)
        # Both bias corrections are folded into the two numbers, as in the paper's section 2.
        root = math.sqrt(1.0 - self.beta2**self.count)
        ops.sqrt(self.scale(state), out=work)
        ops.add(work, self.eps * root, out=work)
        ops.divide(mean, work, out=work)
        ops.multiply(work, self.lr * root / (1.0 - self.beta1**self.count), out=work)
        ops.subtract(data, work, out=data)

    def scale(self, state: dict[str, Tensor]) -> Tensor:
        """The average of squares by whose root the step is divided."""
        return state["square"]


class AdamW(Adam):
    """Adam with weight decay apart from the averages: data *= 1 - lr * weight_decay.

    Loshchilov and Hutter, 2019, "Decoupled weight decay regularization", algorithm 2.

    >>> import flnb, flnb.nn as nn
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([6.0])
    >>> AdamW([weight], lr=0.1, weight_decay=0.5).step()
    >>> round(float(weight.data[0]), 4)  # 3 * 0.95 - 0.1
    2.75
    """

    gathers = True

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, betas, eps, weight_decay)

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        if self.weight_decay:
            ops.multiply(data, 1.0 - self.lr * self.weight_decay, out=data)
        self.descend(data, gradient, state, scratch[0])


class AMSgrad(Adam):
    """Adam divided by the largest average of squares so far, so that rare large gradients are not forgotten.

    Reddi et al., 2018, "On the convergence of Adam and beyond", algorithm 2, with Adam's bias corrections.

    >>> import flnb, flnb.nn as nn
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([6.0])
    >>> AMSgrad([weight], lr=0.1).step()
    >>> round(float(weight.data[0]), 4)
    2.9
    """

    slots = ("mean", "square", "largest")
    gathers = True

    def scale(self, state: dict[str, Tensor]) -> Tensor:
        largest = state["largest"]
        ops.maximum(largest, state["square"], out=largest)
        return largest


class RMSProp(Optimizer):
    """Steps by the gradient over the root of its average square (Tieleman and Hinton 2012).

    ``data -= lr * gradient / (sqrt(s) + eps)``, s the average of gradient^2, or the variance if `centered`. With
    `momentum` the quotients are summed up as SGD's gradients are. "Lecture 6.5: rmsprop", Coursera; centred: Graves,
    2013, "Generating sequences with recurrent neural networks", section 4.2.

    >>> import flnb, flnb.nn as nn
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([6.0])
    >>> RMSProp([weight], lr=0.1, alpha=0.75).step()
    >>> round(float(weight.data[0]), 4)  # 3 - 0.1 * 6 / sqrt(0.25 * 36)
    2.8
    """

    scratch = 2
    gathers = True
    alpha: float
    eps: float
    weight_decay: float
    momentum: float
    centered: bool

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            parameters, lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered
        )
        _below_one(self, "alpha", alpha)
        self.slots = ("square", *(["mean"] if centered else []), *(["momentum"] if momentum else []))

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        work, other = scratch
        if self.weight_decay:
            gradient = _plus_decay(gradient, data, self.weight_decay, other)
        _average(state["square"], self.alpha, ops.square(gradient, out=work), work)
        scale = state["square"]
        if self.centered:
            _average(state["mean"], self.alpha, gradient, work)
            ops.square(state["mean"], out=work)
            scale = ops.subtract(scale, work, out=work)
        ops.sqrt(scale, out=work)
        ops.add(work, self.eps, out=work)
        step = ops.divide(gradient, work, out=work)
        if self.momentum:
            velocity = state["momentum"]
            ops.multiply(velocity, self.momentum, out=velocity)
            step = ops.add(velocity, step, out=velocity)
        _subtract(data, step, self.lr, work)


class Adadelta(Optimizer):
    """Steps whose size adapts to earlier steps, without a learning rate to tune (Zeiler 2012).

    ``data -= lr * d``, ``d = sqrt(t + eps) / sqrt(s + eps) * gradient``; s, t the averages of gradient^2 and of d^2.
    "ADADELTA: an adaptive learning rate method", algorithm 1.

    >>> import flnb, flnb.nn as nn
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([6.0])
    >>> Adadelta([weight], rho=0.75, eps=1e-2).step()
    >>> round(float(weight.data[0]), 4)  # 3 - sqrt(0.01 / 9.01) * 6
    2.8001
    """

    slots = ("square", "moved")
    scratch = 2
    gathers = True
    rho: float
    eps: float
    weight_decay: float

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, rho=rho, eps=eps, weight_decay=weight_decay)
        _below_one(self, "rho", rho)

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        (work, step), square, moved = scratch, state["square"], state["moved"]
        if self.weight_decay:
            gradient = _plus_decay(gradient, data, self.weight_decay, step)
        _average(square, self.rho, ops.square(gradient, out=work), work)
        ops.sqrt(ops.add(square, self.eps, out=work), out=work)
        ops.divide(gradient, work, out=step)
        ops.sqrt(ops.add(moved, self.eps, out=work), out=work)
        ops.multiply(step, work, out=step)
        _average(moved, self.rho, ops.square(step, out=work), work)
        _subtract(data, step, self.lr, work)


class Adagrad(Optimizer):
    """Steps by the gradient over the root of the sum of all its squares (Duchi et al. 2011).

    ``data -= lr / (1 + (n - 1) * lr_decay) * gradient / (sqrt(s) + eps)`` in update n, s the sum of gradient^2.
    "Adaptive subgradient methods for online learning and stochastic optimization", figure 1.

    >>> import flnb, flnb.nn as nn
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([6.0])
    >>> Adagrad([weight], lr=0.1).step()
    >>> round(float(weight.data[0]), 4)
    2.9
    """

    slots = ("square",)
    scratch = 2
    gathers = True
    lr_decay: float
    eps: float
    weight_decay: float

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        eps: float = 1e-10,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        (work, other), square = scratch, state["square"]
        if self.weight_decay:
            gradient = _plus_decay(gradient, data, self.weight_decay, other)
        ops.add(square, ops.square(gradient, out=work), out=square)
        ops.add(ops.sqrt(square, out=work), self.eps, out=work)
        ops.divide(gradient, work, out=work)
        _subtract(data, work, self.lr / (1.0 + (self.count - 1) * self.lr_decay), work)


class Novograd(Optimizer):
    """Momentum of gradients that are normalised per parameter (Ginsburg et al. 2019).

    ``data -= lr * m``, ``m = beta1 * m + gradient / (sqrt(v) + eps) (+ weight_decay * data)``, v one number per
    parameter: the average of the gradient's squared norm, begun with the first. "Stochastic gradient methods with
    layer-wise adaptive moments for training of deep networks", algorithm 1.

    >>> import flnb, flnb.nn as nn
    >>> weight = nn.Parameter(flnb.asarray([3.0, 4.0]))
    >>> weight.grad = flnb.asarray([6.0, 8.0])
    >>> Novograd([weight], lr=1.0).step()  # the first step has the length lr
    >>> [round(x, 4) for x in weight.data.tolist()]
    [2.4, 3.2]
    """

    slots = ("mean",)
    numbers = ("square",)
    scratch = 2
    beta1: float
    beta2: float
    eps: float
    weight_decay: float

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1e-3, betas: tuple[float, float] = (0.95, 0.98),
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
        _below_one(self, "betas", *betas)

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        (work, other), mean, square = scratch, state["mean"], state["square"]
        now = ops.sum(ops.square(gradient, out=work))
        if self.count > 1:
            now = square * self.beta2 + now * (1.0 - self.beta2)
        ops.assign(square, now)
        step = ops.divide(gradient, ops.sqrt(square) + self.eps, out=work)
        if self.weight_decay:
            step = _plus_decay(step, data, self.weight_decay, other)
        ops.multiply(mean, self.beta1, out=mean)
        ops.add(mean, step, out=mean)
        _subtract(data, mean, self.lr, work)


def _plus_decay(gradient: Tensor, data: Tensor, decay: float, out: Tensor) -> Tensor:
    """Compute gradient + decay * data in `out`, which is not the gradient."""
    ops.multiply(data, decay, out=out)
    return ops.add(out, gradient, out=out)


def _average(average: Tensor, keep: float, value: Tensor, work: Tensor) -> None:
    """Update average = keep * average + (1 - keep) * value."""
    ops.multiply(average, keep, out=average)
    ops.multiply(value, 1.0 - keep, out=work)
    ops.add(average, work, out=average)


def _subtract(data: Tensor, step: Tensor, rate: float, work: Tensor) -> None:
    """Update data -= rate * step."""
    ops.multiply(step, rate, out=work)
    ops.subtract(data, work, out=data)


def _below_one(optimizer: Optimizer, setting: str, *values: float) -> None:
    if not max(values) < 1.0:
        got = values if len(values) > 1 else values[0]
        raise ValueError(f"flnb: {type(optimizer).__name__}: {setting} must be below 1, got {got}")
