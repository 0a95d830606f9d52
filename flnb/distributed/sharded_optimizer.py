"""The optimizer of `Sharded`: updates this rank's shards, and saves and loads full states."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import bus

from flnb.dispatch.communication import run
from flnb.nn.mismatches import refuse
from flnb.ops.creation import asarray
from flnb.optim.optimizer import end_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flnb.autograd import Variable
    from flnb.distributed.divided import Division
    from flnb.distributed.sharded import Sharded
    from flnb.optim.optimizer import Optimizer


class ShardedOptimizer:
    """Wraps an optimizer (or a `Together`), which then updates only this rank's shards of the parameters.

    `state_dict` returns, on every rank, the full state, as the optimizer would have it in a single process. Any number
    of ranks can load such a state.
    """

    def __init__(self, inner: Any, divisions: Sequence[Division], model: Sharded) -> None:
        vars(self).update(_inner=inner, _model=model)
        known = {id(division.parameter): division for division in divisions}
        saved = inner.state_dict() if any(part.steps for part in inner.parts()) else None
        wholes: list[list[Division]] = []
        vars(self)["_wholes"] = wholes
        for part in inner.parts():
            _check(part, known)
            own = [known[id(item)] for item in part.parameters]
            wholes.append(own)
            part.parameters = [division.shard for division in own]
            part._state, part._gathered, part._scratch = [], [], {}
        for taken in {inner, *inner.parts()}:
            vars(taken).update(dict.fromkeys(("step", "zero_grad", "state_dict", "load_state_dict"), _refuse_call))
        if saved is not None:
            self.load_state_dict(saved)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped optimizer, such as ``lr``."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)

    @property
    def parameters(self) -> list[Variable]:
        """Return the whole parameters; the optimizers of `parts` have this rank's shards instead."""
        return [division.parameter for own in self._wholes for division in own]

    def parts(self) -> list[Optimizer]:
        """Return the wrapped optimizers, which update shards and have the settings such as ``lr``."""
        return self._inner.parts()

    def step(self) -> None:
        """Update all parameters that have a gradient on some rank; all ranks must call this.

        Raises:
            RuntimeError: no parameter has a gradient.
        """
        self.update_all()
        end_step()

    def update_all(self) -> None:
        """Update all parameters that have a gradient, like `step`, without reporting the end of a training step."""
        self._model.before_update()
        ready = [part for part in self.parts() if any(item.grad is not None for item in part.parameters)]
        for part in ready or self.parts():
            part.update_all()
        with bus.phase("optimizer"):
            self._model.after_update()

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        self._model.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's full state on every rank, in the format of one process; all ranks must call this."""
        found = [self._joined(part, own) for part, own in zip(self.parts(), self._wholes, strict=True)]
        return found[0] if self._inner is self.parts()[0] else {str(index): one for index, one in enumerate(found)}

    def _joined(self, part: Optimizer, own: Sequence[Division]) -> dict[str, Any]:
        """Return the state of the optimizer ``part``, with the tensors in it gathered from all ranks.

        ``own`` has the division of each of the optimizer's parameters.
        """
        found: dict[str, Any] = type(part).state_dict(part)
        for name, shard in found["state"].items():
            division = own[int(name.partition(".")[0])]
            mine = np.zeros(division.width, shard.dtype)
            mine[: shard.size] = shard._data
            everyone = np.empty((division.size, division.width), shard.dtype)
            run("all_gather", mine, everyone)
            shape = division.parameter.shape
            found["state"][name] = asarray(everyone.reshape(-1)[: division.parameter.size].reshape(shape), copy=True)
        return found

    def mismatches(self, state: Mapping[str, Any]) -> list[str]:
        """Return the reasons why `load_state_dict(state)` would fail, one line each; none if it would succeed."""
        return self._on_wholes().mismatches(state)

    def _on_wholes(self) -> Any:
        """Return a copy of the optimizer that has the whole parameters, to check the shapes of a state to load."""
        twins = []
        for part, own in zip(self.parts(), self._wholes, strict=True):
            twin: Any = copy(part)
            twin.parameters = [division.parameter for division in own]
            twins.append(twin)
        if self._inner is self.parts()[0]:
            return twins[0]
        together: Any = copy(self._inner)
        together.optimizers = tuple(twins)
        return together

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a full state, saved by `Sharded` on any number of ranks or by one process.

        Raises:
            ValueError: the state does not fit; nothing has been changed. The message lists every missing, unexpected
            and mis-shaped name.
        """
        refuse(self.mismatches(state), f"Sharded's optimizer of {len(self.parameters)} parameters")
        alone = self._inner is self.parts()[0]
        for index, (part, own) in enumerate(zip(self.parts(), self._wholes, strict=True)):
            given = state if alone else state[str(index)]
            tensors = {
                name: own[int(name.partition(".")[0])].slice(asarray(whole)) for name, whole in given["state"].items()
            }
            type(part).load_state_dict(part, {**given, "state": tensors})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"


def _refuse_call(*_: Any, **__: Any) -> None:
    """Raise an error for direct calls of an optimizer that `Sharded` has taken over."""
    raise RuntimeError(
        "this optimizer was given to Sharded and has parts of the parameters; use the model's attribute `optimizer`, "
        "which has the same methods: model.optimizer.step()"
    )


def _check(part: Optimizer, known: Mapping[int, Division]) -> None:
    """Raise an error if an optimizer cannot work on shards; ``known`` has the divided parameters by their ``id``."""
    name = type(part).__name__
    if part.numbers:
        raise TypeError(
            f"Sharded: {name} stores {', '.join(part.numbers)} of each whole parameter, but a rank has only a part; "
            f"use an optimizer that treats all elements alike, such as Adam"
        )
    other = next((item for item in part.parameters if id(item) not in known), None)
    if other is not None:
        raise ValueError(
            f"Sharded: {name} has a parameter of shape {other.shape} that the module does not train; make the "
            f"optimizer with module.parameters()"
        )
