"""Learning-rate schedules: rules, which return a factor for each step, and Schedule, which applies a rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flnb.dispatch.brief import brief
from flnb.dispatch.effects import repeated
from flnb.nn.mismatches import mismatches, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flnb.optim.optimizer import Optimizer
    from flnb.optim.together import Together


class Schedule:
    """Set ``optimizer.lr`` to its initial value times ``rule(n)``, where n is the number of calls of `step` so far.

    A rule is any function of n that returns a float, such as `Cosine` or `StepDecay`. The optimizer may be a
    `Together`: then the learning rate of each of its optimizers is multiplied by the same factor.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> optimizer = optim.SGD([nn.Parameter(flnb.ones(2))], lr=0.8)
    >>> rules = {0: optim.LinearWarmUp(2, start=0.5), 2: optim.StepDecay(every=1, factor=0.1)}
    >>> schedule = optim.Schedule(optimizer, optim.Chain(rules))
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(round(optimizer.lr, 4))
    ...     schedule.step()
    >>> rates
    [0.4, 0.6, 0.8, 0.08]
    """

    def __init__(self, optimizer: Optimizer | Together, rule: Callable[[int], float]) -> None:
        self.optimizer, self.rule, self.steps = optimizer, rule, 0
        self.base = [part.lr for part in optimizer.parts()]
        self._set()

    def step(self) -> None:
        """Set the next learning rate; call it after each ``optimizer.step()``."""
        repeated(self._advance)

    def _advance(self) -> None:
        self.steps += 1
        self._set()

    def _set(self) -> None:
        """Set the learning rate of each optimizer by the rule, for the number of steps so far."""
        factor = self.rule(self.steps)
        for part, base in zip(self.optimizer.parts(), self.base, strict=True):
            part.lr = base * factor

    def state_dict(self) -> dict[str, Any]:
        """Return a dict for a checkpoint: the number of steps and the initial learning rates, but not the rule."""
        return {"steps": self.steps, "base": list(self.base)}

    def mismatches(self, state: Mapping[str, Any]) -> list[str]:
        """Return the reasons why `load_state_dict(state)` would fail, one line each; none if it would succeed."""
        problems = mismatches(self.state_dict(), state)
        if not problems and len(state["base"]) != len(self.base):
            problems.append(f"base: got {len(state['base'])} learning rates, expected {len(self.base)}")
        return problems

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved `state_dict`, and set the learning rates for its number of steps.

        Raises:
            ValueError: a name is missing or unexpected, or the number of learning rates differs; nothing is changed.
        """
        refuse(self.mismatches(state), "Schedule")
        self.steps, self.base = state["steps"], list(state["base"])
        self._set()

    def __repr__(self) -> str:
        return f"Schedule({self.rule}, base={self.base}, steps={self.steps})"


@dataclass(frozen=True)
class StepDecay:
    """A rule that multiplies the learning rate by ``factor`` after every ``every`` steps: factor ** (n // every).

    >>> import flnb.optim as optim
    >>> [optim.StepDecay(every=2, factor=0.5)(n) for n in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _at_least_one(self, "every")

    def __call__(self, n: int) -> float:
        return float(self.factor ** (n // self.every))


@dataclass(frozen=True)
class Exponential:
    """A rule that multiplies the learning rate by ``factor`` after every step: factor ** n.

    >>> import flnb.optim as optim
    >>> [optim.Exponential(0.5)(n) for n in range(3)]
    [1.0, 0.5, 0.25]
    """

    factor: float

    def __call__(self, n: int) -> float:
        return float(self.factor**n)


@dataclass(frozen=True)
class Cosine:
    """A rule that falls from 1 to ``floor`` along half a cosine wave in ``steps`` steps, then stays at ``floor``.

    >>> import flnb.optim as optim
    >>> [round(optim.Cosine(4, floor=0.2)(n), 3) for n in range(6)]
    [1.0, 0.883, 0.6, 0.317, 0.2, 0.2]
    """

    steps: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        _at_least_one(self, "steps")

    def __call__(self, n: int) -> float:
        return self.floor + (1.0 - self.floor) * (1.0 + math.cos(math.pi * min(n / self.steps, 1.0))) / 2.0


@dataclass(frozen=True)
class LinearWarmUp:
    """A rule that rises linearly from ``start`` to 1 in ``steps`` steps, then stays at 1.

    >>> import flnb.optim as optim
    >>> [optim.LinearWarmUp(2, start=0.5)(n) for n in range(4)]
    [0.5, 0.75, 1.0, 1.0]
    """

    steps: int
    start: float = 0.1

    def __post_init__(self) -> None:
        _at_least_one(self, "steps")

    def __call__(self, n: int) -> float:
        return self.start + (1.0 - self.start) * min(n / self.steps, 1.0)


@dataclass(frozen=True)
class Chain:
    """A rule that applies several rules, one after another.

    ``rules`` is a dict: each key is the step at which a rule begins, and each value is the rule. A rule counts steps
    from its beginning.

    >>> import flnb.optim as optim
    >>> rule = optim.Chain({0: optim.LinearWarmUp(2, start=0.5), 2: optim.Exponential(0.5)})
    >>> [rule(n) for n in range(5)]
    [0.5, 0.75, 1.0, 0.5, 0.25]

    Raises:
        ValueError: the first rule does not begin at step 0.
    """

    rules: Mapping[int, Callable[[int], float]]

    def __post_init__(self) -> None:
        if min(self.rules, default=None) != 0:
            raise ValueError(f"flnb: Chain: the first rule must begin at step 0, got steps {brief(sorted(self.rules))}")

    def __call__(self, n: int) -> float:
        start = max(begin for begin in self.rules if begin <= n)
        return self.rules[start](n - start)


def _at_least_one(rule: object, setting: str) -> None:
    """Raise a ValueError that names the rule and the setting unless the setting is at least 1."""
    if not getattr(rule, setting) >= 1:
        raise ValueError(f"flnb: {type(rule).__name__}: {setting} must be at least 1, got {getattr(rule, setting)}")
