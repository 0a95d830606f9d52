"""Training of a model of `flnb.models` on one backend, to be measured by `flnb bench`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import flnb
from flnb import models
from flnb.bench.contestant import CHECKED, LEARNING_RATE, MOMENTUM, Contestant, drop_nothing
from flnb.dispatch.state import current
from flnb.nn import Dropout, Linear, Module
from flnb.optim import SGD

RECORDED = 5
"""The number of iterations that are recorded to find the slowest ops."""


class Training(Contestant):
    """A model of `flnb.models`, trained by flnb.

    Args:
        model: the model's name.
        scale: the model's size, "small" or "paper".
        backend: the backend's name; if it ends in "+jit", iterations are compiled by `flnb.jit`.
        weights: an .npz file with initial parameters, which the first contestant writes and the others load.

    Raises:
        ValueError: the backend's name contains a "+" that "jit" does not follow.
    """

    def __init__(self, model: str, scale: str, backend: str, weights: str) -> None:
        name, plus, kind = backend.partition("+")
        if plus and kind != "jit":
            raise ValueError(f"flnb bench: got backend {backend!r}, expected the name of a backend, or NAME+jit")
        self.captured = kind == "jit"
        flnb.set_backend(name)
        tiny = Linear(2, 2)
        tiny(flnb.ones((2, 2))).sum().backward()
        SGD(tiny.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM).step()
        super().__init__()
        flnb.manual_seed(0)
        self.recipe, self.scale, self.weights = models.get(model), scale, weights
        self.model = self.recipe.build(scale)
        self.batch = [flnb.asarray(array) for array in self.recipe.batch(scale)]
        self.optimizer = SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        if Path(weights).exists():
            self._load(self.model)
        else:
            np.savez(weights, *(parameter.data.numpy() for parameter in self.model.parameters()))

        self.iterations = {True: self.captured_by_jit(self.train), False: self.captured_by_jit(self.differentiate)}

    def captured_by_jit(self, function: Any) -> Any:
        """Return the function itself, or compiled by `flnb.jit` if the backend was given with "+jit"."""
        return flnb.jit(function) if self.captured else function

    def differentiate(self) -> None:
        """Compute the gradients of all parameters on the batch."""
        self.optimizer.zero_grad()
        self.recipe.loss(self.model, *self.batch).backward()

    def train(self) -> None:
        """Compute the gradients and update the parameters: one step of training."""
        self.differentiate()
        self.optimizer.step()

    def _load(self, model: Module) -> None:
        """Set a model's parameters to the initial ones, which are in the file ``weights``."""
        with np.load(self.weights) as arrays:
            for parameter, array in zip(model.parameters(), arrays.values(), strict=True):
                flnb.ops.assign(parameter.data, flnb.asarray(array, dtype=parameter.dtype))

    def iteration(self, update: bool) -> None:
        self.iterations[update]()
        if not update:
            current().backend.eval()  # as an optimizer does at the end of a step

    def sync(self) -> None:
        current().backend.sync()

    def in_double(self) -> tuple[float, Iterable[Any]]:
        flnb.set_default_dtype("float64")
        try:
            model = self.recipe.build(self.scale)
            self._load(model)
            drop_nothing((module for _, module in model.named_modules()), Dropout)
            arrays = self.recipe.batch(self.scale, size=CHECKED)
            batch = [flnb.asarray(a.astype(np.float64) if a.dtype.kind == "f" else a) for a in arrays]

            def differentiated() -> Any:
                for parameter in model.parameters():
                    parameter.grad = None
                loss = self.recipe.loss(model, *batch)
                loss.backward()
                return loss

            run = self.captured_by_jit(differentiated)
            for _ in range(3 if self.captured else 1):
                loss = run()
        finally:
            flnb.set_default_dtype("float32")
        return loss.item(), (np.asarray(parameter.grad) for parameter in model.parameters())

    def counted(self) -> dict[str, Any]:
        ledger = current().manager.ledger
        before, ledger.peak = ledger.allocs, ledger.allocated  # the first iterations need more: they are not captured
        self.iteration(update=True)
        after = flnb.memory.stats()
        return {"live": after["peak_allocated"], "allocations": after["allocs"] - before}

    def costliest(self, count: int) -> list[tuple[str, float]]:
        """Return the ``count`` ops that take most time in an iteration, with their shares (0 to 1) of all ops' time.

        An op's time is its median over some iterations, so that other programs disturb it little.
        """
        times: dict[str, list[int]] = {}
        for _ in range(RECORDED):
            with flnb.record() as run:
                self.iteration(update=True)
            for row in run.ops:
                times.setdefault(row.key[0], []).append(row.total)
        typical = {op: median(totals) for op, totals in times.items()}
        first = sorted(typical, key=lambda op: -typical[op])[:count]
        return [(op, typical[op] / sum(typical.values())) for op in first]
