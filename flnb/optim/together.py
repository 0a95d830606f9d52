"""Several optimizers used as one, for parameters that are trained differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb.nn.mismatches import refuse
from flnb.optim.optimizer import end_step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flnb.autograd import Variable
    from flnb.optim.optimizer import Optimizer


class Together:
    """Several optimizers used as one, each with its own parameters, algorithm and settings.

    It serves the purpose of parameter groups in torch.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> net = nn.Linear(3, 2)
    >>> optimizer = optim.Together(optim.AdamW([net.weight], lr=1e-3), optim.SGD([net.bias], lr=0.1))
    >>> flnb.sum(net(flnb.ones((1, 3)))).backward()
    >>> optimizer.step()
    >>> [part.steps for part in optimizer.parts()]
    [1, 1]

    Raises:
        ValueError: no optimizer, or two optimizers that share a parameter, which would be updated twice a step.
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        if not optimizers:
            raise ValueError("flnb: Together got no optimizers; pass one or more, each for some of the parameters")
        self.optimizers = optimizers
        owner: dict[int, int] = {}
        for index, part in enumerate(optimizers):
            for item in part.parameters:
                if owner.setdefault(id(item), index) != index:
                    named = f" {item.name!r}" if item.name else ""
                    raise ValueError(
                        f"flnb: Together: optimizers {owner[id(item)]} and {index} share the parameter{named} of shape "
                        f"{item.shape}, which would be updated twice a step; give each parameter to one optimizer"
                    )

    @property
    def parameters(self) -> list[Variable]:
        """Return the parameters of all optimizers, in order."""
        return [item for part in self.optimizers for item in part.parameters]

    def parts(self) -> list[Optimizer]:
        """Return the optimizers of which this one consists, in order."""
        return list(self.optimizers)

    def step(self) -> None:
        """Update every parameter that has a gradient, each by its own optimizer.

        Raises:
            RuntimeError: no parameter of any optimizer has a gradient.
        """
        ready = [part for part in self.optimizers if any(item.grad is not None for item in part.parameters)]
        for part in ready or self.optimizers:
            part.update_all()
        end_step()

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        for part in self.optimizers:
            part.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return a dict of the optimizers' state dicts, with their positions "0", "1", ... as keys."""
        return {str(index): part.state_dict() for index, part in enumerate(self.optimizers)}

    def mismatches(self, state: Mapping[str, Any]) -> list[str]:
        """Return the reasons why `load_state_dict(state)` would fail, one line each; none if it would succeed."""
        own = {str(index): part for index, part in enumerate(self.optimizers)}
        problems = [f"missing: optimizer {key}" for key in own if key not in state]
        problems += [f"unexpected: optimizer {key}" for key in state if key not in own]
        for key in own.keys() & state.keys():
            problems += [f"optimizer {key}: {problem}" for problem in own[key].mismatches(state[key])]
        return problems

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved `state_dict` into all optimizers.

        Raises:
            ValueError: the state does not fit. The message lists every name that is missing, unexpected, or has another
                shape; nothing is changed.
        """
        refuse(self.mismatches(state), f"Together of {len(self.optimizers)} optimizers")
        for index, part in enumerate(self.optimizers):
            part.load_state_dict(state[str(index)])

    def __repr__(self) -> str:
        return f"Together({', '.join(map(repr, self.optimizers))})"
