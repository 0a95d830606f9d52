"""Optimization algorithms, with torch's arithmetic and defaults where torch has them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flnb import ops
from flnb.dispatch.table import Update
from flnb.optim.decaying import Decaying, check_below_one, plus_decay, subtract_scaled, update_average
from flnb.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flnb.autograd import Variable
    from flnb.tensor import Tensor


class SGD(Decaying):
    """Stochastic gradient descent with momentum.

    ``data -= lr * v``, where ``v = momentum * v + gradient (+ weight_decay * data)``. With ``nesterov``, the step is
    ``data -= lr * (gradient + momentum * v)``. Sources: Polyak, 1964, "Some methods of speeding up the convergence of
    iteration methods"; for this form, and for Nesterov's momentum, Sutskever et al., 2013, "On the importance of
    initialization and momentum in deep learning", section 2.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> optimizer = optim.SGD([weight], lr=0.1, momentum=0.9)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     flnb.sum(weight * weight).backward()  # gradient 6.0, then 4.8
    ...     optimizer.step()
    >>> round(float(weight.data[0]), 4)  # 3 - 0.6 - (0.9 * 0.6 + 0.48)
    1.38
    """

    scratch = 1
    repeats = True

    def __init__(
        self, parameters: Iterable[Variable], lr: float, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
        if nesterov and not momentum:
            raise ValueError(f"flnb: {type(self).__name__}: nesterov needs a momentum above 0, got {momentum}")
        self.slots = ("momentum",) if momentum else ()
        if nesterov:  # two settings are multiplied, in double precision
            self.repeats = False

    def descend(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], work: Tensor) -> None:
        """Update the velocity, and subtract lr times the velocity (without momentum, the gradient) from the data."""
        *_, rate, momentum, _ = self.current(data)
        if self.momentum:
            velocity = state["momentum"]
            ops.multiply(velocity, momentum, out=velocity)
            ops.add(velocity, gradient, out=velocity)
            if self.nesterov:
                subtract_scaled(data, gradient, rate, work)
                subtract_scaled(data, velocity, rate * momentum, work)
                return
            gradient = velocity
        subtract_scaled(data, gradient, rate, work)

    def coefficients(self) -> tuple[float, ...]:
        """Return the two numbers of `decays`, learning rate, momentum, and 1.0 for Nesterov's momentum or else 0.0."""
        if self.momentum and not self.slots:
            raise ValueError(
                f"flnb: {type(self).__name__}: momentum is {self.momentum} now, but was 0 when this optimizer was "
                f"made, so that it stores no velocities: make a new one with momentum={self.momentum}"
            )
        return *self.decays(), self.lr, self.momentum, float(self.nesterov)

    whole = Update("sgd_update", "optimizer", body=descend, primitives=frozenset({"add", "multiply", "subtract"}))


class NAG(SGD):
    """Nesterov's accelerated gradient, with weight decay that is separate from the momentum.

    `SGD` with ``nesterov=True``, after ``data *= 1 - lr * weight_decay``. Nesterov, 1983, "A method of solving a convex
    programming problem with convergence rate O(1/k^2)"; in the form of Bengio et al., 2013, "Advances in optimizing
    recurrent networks", section 3.5.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([1.0])
    >>> optim.NAG([weight], lr=0.1, momentum=0.9).step()
    >>> round(float(weight.data[0]), 4)  # 3 - 0.1 * (1 + 0.9)
    2.81
    """

    decoupled = True
    whole = SGD.whole

    def __init__(
        self, parameters: Iterable[Variable], lr: float, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, lr, momentum, weight_decay, nesterov=True)


class Adam(Decaying):
    """Gradient descent with the average gradient, divided by the root of the average squared gradient.

    ``data -= lr * m / (sqrt(v) + eps)``, where m and v are the bias-corrected exponential averages of the gradient
    (factor betas[0]) and of its square (betas[1]). ``weight_decay`` adds weight_decay * data to the gradient. Kingma
    and Ba, 2015, "Adam: a method for stochastic optimization", algorithm 1.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> weight = nn.Parameter(flnb.asarray([3.0, -8.0]))
    >>> flnb.sum(weight * weight).backward()
    >>> optim.Adam([weight], lr=0.1).step()  # the first step moves each element by lr
    >>> weight.data
    Tensor([ 2.9, -7.9], float32[2], numpy)
    """

    slots: tuple[str, ...] = ("mean", "square")
    scratch = 1
    gathers = repeats = True

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
        check_below_one(self, "betas", *betas)

    def descend(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], work: Tensor) -> None:
        """Update both averages, and subtract their quotient from the data."""
        mean, square, keep = state["mean"], state["square"], 1.0 - self.beta1
        ops.multiply(gradient, keep, out=work)
        ops.multiply(mean, self.beta1, out=mean)
        ops.add(mean, work, out=mean)
        ops.multiply(work, work, out=work)  # keep^2 * gradient^2: one work buffer serves both averages
        ops.multiply(work, (1.0 - self.beta2) / keep**2, out=work)
        ops.multiply(square, self.beta2, out=square)
        ops.add(square, work, out=square)
        *_, eps, rate = self.current(data)
        ops.add(ops.sqrt(self.scale(state), out=work), eps, out=work)
        ops.divide(mean, work, out=work)
        subtract_scaled(data, work, rate, work)

    def coefficients(self) -> tuple[float, ...]:
        """Return the results of `decays()`, then beta1, beta2, eps and learning rate, the last two bias-corrected."""
        # Both bias corrections are folded into the last two numbers, as in the paper's section 2.
        root = math.sqrt(1.0 - self.beta2**self.count)
        rate = self.lr * root / (1.0 - self.beta1**self.count)
        return *self.decays(), self.beta1, self.beta2, self.eps * root, rate

    def scale(self, state: dict[str, Tensor]) -> Tensor:
        """Return the average of the squared gradient by whose square root the step is divided."""
        return state["square"]

    whole = Update(
        "adam_update", "optimizer", body=descend,
        primitives=frozenset({"add", "divide", "maximum", "multiply", "sqrt", "subtract"}),
    )  # fmt: skip


class AdamW(Adam):
    """Adam with weight decay that is separate from the averages: first ``data *= 1 - lr * weight_decay``, then `Adam`.

    Loshchilov and Hutter, 2019, "Decoupled weight decay regularization", algorithm 2.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([6.0])
    >>> optim.AdamW([weight], lr=0.1, weight_decay=0.5).step()
    >>> round(float(weight.data[0]), 4)  # 3 * 0.95 - 0.1
    2.75
    """

    gathers = repeats = decoupled = True
    whole = Adam.whole

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 1e-2,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, betas, eps, weight_decay)


class AMSgrad(Adam):
    """Adam that divides by the root of the largest average squared gradient so far, instead of the present average.

    Thus a rare large gradient reduces the step size permanently.

    Reddi et al., 2018, "On the convergence of Adam and beyond", algorithm 2, with Adam's bias corrections.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([6.0])
    >>> optim.AMSgrad([weight], lr=0.1).step()
    >>> round(float(weight.data[0]), 4)
    2.9
    """

    slots = ("mean", "square", "largest")
    gathers = repeats = True
    whole = Adam.whole

    def scale(self, state: dict[str, Tensor]) -> Tensor:
        largest = state["largest"]
        ops.maximum(largest, state["square"], out=largest)
        return largest


class RMSProp(Decaying):
    """Gradient descent with the gradient divided by the root of its average square.

    ``data -= lr * gradient / (sqrt(s) + eps)``, where s is the exponential average of gradient^2 (factor alpha), or the
    gradient's variance if ``centered``. With ``momentum``, the quotients are accumulated like the gradients in `SGD`.
    Tieleman and Hinton, 2012, "Lecture 6.5: rmsprop", Coursera; centred: Graves, 2013, "Generating sequences with
    recurrent neural networks", section 4.2.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([6.0])
    >>> optim.RMSProp([weight], lr=0.1, alpha=0.75).step()
    >>> round(float(weight.data[0]), 4)  # 3 - 0.1 * 6 / sqrt(0.25 * 36)
    2.8
    """

    scratch = _works = 2
    gathers = True

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
        weight_decay: float = 0.0, momentum: float = 0.0, centered: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            parameters, lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered
        )
        check_below_one(self, "alpha", alpha)
        self.slots = ("square", *(["mean"] if centered else []), *(["momentum"] if momentum else []))

    def descend(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], work: Tensor, _: Tensor) -> None:
        update_average(state["square"], self.alpha, ops.square(gradient, out=work), work)
        scale = state["square"]
        if self.centered:
            update_average(state["mean"], self.alpha, gradient, work)
            ops.square(state["mean"], out=work)
            scale = ops.subtract(scale, work, out=work)
        ops.add(ops.sqrt(scale, out=work), self.eps, out=work)
        step = ops.divide(gradient, work, out=work)
        if self.momentum:
            velocity = state["momentum"]
            ops.multiply(velocity, self.momentum, out=velocity)
            step = ops.add(velocity, step, out=velocity)
        subtract_scaled(data, step, self.current(data)[-1], work)


class Adadelta(Decaying):
    """Gradient descent whose step size adapts to earlier steps, so that no learning rate has to be tuned.

    ``data -= lr * d`` with ``d = sqrt(t + eps) / sqrt(s + eps) * gradient``, where s and t are the exponential averages
    of gradient^2 and of d^2 (factor rho). Zeiler, 2012, "ADADELTA: an adaptive learning rate method", algorithm 1.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([6.0])
    >>> optim.Adadelta([weight], rho=0.75, eps=1e-2).step()
    >>> round(float(weight.data[0]), 4)  # 3 - sqrt(0.01 / 9.01) * 6
    2.8001
    """

    slots = ("square", "moved")
    scratch = _works = 2
    gathers = True

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, rho=rho, eps=eps, weight_decay=weight_decay)
        check_below_one(self, "rho", rho)

    def descend(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], work: Tensor, step: Tensor) -> None:
        square, moved = state["square"], state["moved"]
        update_average(square, self.rho, ops.square(gradient, out=work), work)
        ops.sqrt(ops.add(square, self.eps, out=work), out=work)
        ops.divide(gradient, work, out=step)
        ops.sqrt(ops.add(moved, self.eps, out=work), out=work)
        ops.multiply(step, work, out=step)
        update_average(moved, self.rho, ops.square(step, out=work), work)
        subtract_scaled(data, step, self.current(data)[-1], work)


class Adagrad(Decaying):
    """Gradient descent with the gradient divided by the root of the sum of its squares in all updates.

    ``data -= lr / (1 + (n - 1) * lr_decay) * gradient / (sqrt(s) + eps)`` in update n, where s is the sum of
    gradient^2. Duchi et al., 2011, "Adaptive subgradient methods for online learning and stochastic optimization",
    figure 1.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> weight.grad = flnb.asarray([6.0])
    >>> optim.Adagrad([weight], lr=0.1).step()
    >>> round(float(weight.data[0]), 4)
    2.9
    """

    slots = ("square",)
    scratch = _works = 2
    gathers = True

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        eps: float = 1e-10,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)

    def descend(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], work: Tensor, _: Tensor) -> None:
        square = state["square"]
        ops.add(square, ops.square(gradient, out=work), out=square)
        ops.add(ops.sqrt(square, out=work), self.eps, out=work)
        ops.divide(gradient, work, out=work)
        subtract_scaled(data, work, self.current(data)[-1], work)

    def coefficients(self) -> tuple[float, ...]:
        return *self.decays(), self.lr / (1.0 + (self.count - 1) * self.lr_decay)


class Novograd(Optimizer):
    """Gradient descent with momentum, where each parameter's gradient is divided by its norm.

    ``data -= lr * m`` with ``m = betas[0] * m + gradient / (sqrt(v) + eps) (+ weight_decay * data)``, where v is one
    number per parameter: the exponential average of the gradient's squared norm (factor betas[1]), which starts at the
    first squared norm. Ginsburg et al., 2019, "Stochastic gradient methods with layer-wise adaptive moments for
    training of deep networks", algorithm 1.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> weight = nn.Parameter(flnb.asarray([3.0, 4.0]))
    >>> weight.grad = flnb.asarray([6.0, 8.0])
    >>> optim.Novograd([weight], lr=1.0).step()  # the first step has the length lr
    >>> [round(x, 4) for x in weight.data.tolist()]
    [2.4, 3.2]
    """

    slots = ("mean",)
    numbers = ("square",)
    scratch = 2

    def __init__(
        self, parameters: Iterable[Variable], lr: float = 1e-3, betas: tuple[float, float] = (0.95, 0.98),
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
        check_below_one(self, "betas", *betas)

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        (work, other), mean, square = scratch, state["mean"], state["square"]
        now = ops.sum(ops.square(gradient, out=work))
        if self.count > 1:
            now = square * self.beta2 + now * (1.0 - self.beta2)
        ops.assign(square, now)
        step = ops.divide(gradient, ops.sqrt(square) + self.eps, out=work)
        if self.weight_decay:
            step = plus_decay(step, data, self.weight_decay, other)
        ops.multiply(mean, self.beta1, out=mean)
        ops.add(mean, step, out=mean)
        subtract_scaled(data, mean, self.current(data)[-1], work)
