"""torch's contestant: eager, with channels last, or compiled."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.peers import torch_models
from flnb import models
from flnb.bench.contestant import CHECKED, LEARNING_RATE, MOMENTUM, Contestant, drop_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["TorchTraining"]


class TorchTraining(Contestant):
    """A model in torch that is trained on the same batch as flnb's model, beginning with the same weights.

    Args:
        model, scale, weights: as for `flnb.bench.training.Training`; the file must be there.
        variant: "eager", "channels_last" or "compile".
    """

    def __init__(self, model: str, scale: str, weights: str, variant: str = "eager") -> None:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        tiny = torch.nn.Linear(2, 2)
        tiny(torch.ones(2, 2)).sum().backward()
        torch.optim.SGD(tiny.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM).step()
        super().__init__()
        torch.manual_seed(0)
        self.recipe, self.scale, self.weights, self.variant = models.get(model), scale, weights, variant
        self.model, self._run = self._build()
        self.batch = self._moved([torch.from_numpy(array) for array in self.recipe.batch(scale)])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def _build(self) -> tuple[torch.nn.Module, Callable[..., Any]]:
        """Return the model with the initial weights, and its loss function."""
        model, loss = torch_models.build(self.recipe.name, self.recipe.settings[self.scale])
        load(model, self.weights)
        if self.variant == "channels_last":
            model = model.to(memory_format=torch.channels_last)

        def run(*batch: Any) -> Any:
            return loss(model, *batch)

        return model, torch.compile(run) if self.variant == "compile" else run

    def _moved(self, batch: list[Any]) -> list[Any]:
        if self.variant != "channels_last":
            return batch
        return [x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x for x in batch]

    def iteration(self, update: bool) -> None:
        self.optimizer.zero_grad()
        self._run(*self.batch).backward()
        if update:
            self.optimizer.step()

    def in_double(self) -> tuple[float, Iterable[Any]]:
        torch.set_default_dtype(torch.float64)
        try:
            model, run = self._build()
            drop_nothing(model.modules(), torch.nn.Dropout)
            arrays = [torch.from_numpy(array) for array in self.recipe.batch(self.scale, size=CHECKED)]
            loss = run(*self._moved([x.double() if x.is_floating_point() else x for x in arrays]))
            loss.backward()
        finally:
            torch.set_default_dtype(torch.float32)
        return loss.item(), (parameter.grad.numpy() for parameter in model.parameters())

    def counted(self) -> dict[str, Any]:
        """Return the peak of "live" bytes and the number of "allocations" of an iteration, by torch's profiler.

        Parameters, gradients, momenta and the batch, which exist before the iteration, are a part of the live bytes.
        """
        kept = [*self.model.parameters(), *self.model.buffers(), *self.batch]
        kept += [p.grad for p in self.model.parameters() if p.grad is not None]
        kept += [s["momentum_buffer"] for s in self.optimizer.state.values()]
        alive = sum(tensor.numel() * tensor.element_size() for tensor in kept)
        changes = self._changes()
        peak = max(np.cumsum(changes), default=0)
        return {"live": int(alive + max(peak, 0)), "allocations": sum(change > 0 for change in changes)}

    def _changes(self) -> list[int]:
        """Return the bytes of every allocation (> 0) and free (< 0) of an iteration, in order."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            self.iteration(update=True)
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


def load(model: torch.nn.Module, weights: str) -> None:
    """Load the arrays of an .npz file into a model's parameters, in order; raises ValueError if the shapes differ."""
    arrays, parameters = list(np.load(weights).values()), list(model.parameters())
    expected, got = ([tuple(one.shape) for one in many] for many in (arrays, parameters))
    if expected != got:
        same = [a == b for a, b in zip(expected, got, strict=False)]
        where = [*same, False].index(False)
        raise ValueError(
            f"flnb's model has {len(expected)} parameters and torch's {len(got)}; they differ from number {where} on: "
            f"{expected[where : where + 3]} and {got[where : where + 3]}"
        )
    with torch.no_grad():
        for parameter, array in zip(parameters, arrays, strict=True):
            parameter.copy_(torch.from_numpy(array))
