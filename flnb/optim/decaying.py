"""The base class of optimizers with weight decay, and the arithmetic in place that their updates consist of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb import ops
from flnb.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.tensor import Tensor


class Decaying(Optimizer):
    """Base class of optimizers with weight decay: `update` applies the decay, then calls `descend`."""

    decoupled = False
    """Whether decay multiplies the data by 1 - lr * weight_decay; else it adds weight_decay * data to the gradient."""
    _works = 1
    """How many work tensors of ``scratch`` `descend` gets; the last one has the gradient with weight decay added."""

    def update(self, data: Tensor, gradient: Tensor, state: dict[str, Tensor], scratch: Sequence[Tensor]) -> None:
        if self.weight_decay:
            shrink, decay, *_ = self.current(data)
            if self.decoupled:
                ops.multiply(data, shrink, out=data)
            else:
                gradient = plus_decay(gradient, data, decay, scratch[self._works - 1])
        self.descend(data, gradient, state, *scratch[: self._works])

    def decays(self) -> tuple[float, float]:
        """Return two numbers (a, b): weight decay sets data = a * data, and adds b * data to the gradient."""
        return (1.0 - self.lr * self.weight_decay, 0.0) if self.decoupled else (1.0, self.weight_decay)

    def coefficients(self) -> tuple[float, ...]:
        """Return the two numbers of `decays`, and the learning rate."""
        return *self.decays(), self.lr

    def descend(self, *arguments: Any) -> None:
        """Write the new value of one parameter into ``data``; weight decay has already been applied.

        The arguments are those of `update`, with each work tensor as a separate argument.
        """
        raise NotImplementedError(f"flnb: {type(self).__name__} defines no descend(data, gradient, state, work)")


def plus_decay(gradient: Tensor, data: Tensor, decay: float, out: Tensor) -> Tensor:
    """Write gradient + decay * data into ``out``, which must not be the gradient itself, and return ``out``."""
    ops.multiply(data, decay, out=out)
    return ops.add(out, gradient, out=out)


def update_average(average: Tensor, keep: float, value: Tensor, work: Tensor) -> None:
    """Set average = keep * average + (1 - keep) * value, in place; `work` is overwritten."""
    ops.multiply(average, keep, out=average)
    ops.multiply(value, 1.0 - keep, out=work)
    ops.add(average, work, out=average)


def subtract_scaled(data: Tensor, step: Tensor, rate: float, work: Tensor) -> None:
    """Set data -= rate * step, in place; `work` is overwritten."""
    ops.multiply(step, rate, out=work)
    ops.subtract(data, work, out=data)


def check_below_one(optimizer: Optimizer, setting: str, *values: float) -> None:
    """Raise a ValueError that names the optimizer and the setting unless all values are below 1."""
    if not max(values) < 1.0:
        got = values if len(values) > 1 else values[0]
        raise ValueError(f"flnb: {type(optimizer).__name__}: {setting} must be below 1, got {got}")
