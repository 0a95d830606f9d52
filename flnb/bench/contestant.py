"""One framework in a comparison: it trains a model and reports time and memory."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

__all__ = ["CHECKED", "LEARNING_RATE", "MOMENTUM", "Contestant", "drop_nothing"]

LEARNING_RATE, MOMENTUM = 1e-4, 0.9
"""Of every framework's SGD: so small that a batch that is seen a thousand times is not learnt by heart."""
WARM_UP = 3
"""Iterations before anything is measured."""
CHECKED = 2
"""Examples on which frameworks must agree: few, so that models of the papers' sizes fit in float64, too."""


class Contestant:
    """A model, its batch and SGD with momentum in one framework, made in a worker's process and called by its pipe.

    A subclass imports its framework, trains something tiny (memory loaded at first use is not the model's), calls
    ``super().__init__()``, builds the model, and writes the methods that raise NotImplementedError here.
    """

    def __init__(self) -> None:
        self._before = resident()

    def iteration(self, update: bool) -> None:
        """Forward and backward, and with `update` a step of the optimizer."""
        raise NotImplementedError

    def sync(self) -> None:
        """Wait for launched work; does nothing where a call returns after its computation."""

    def in_double(self) -> tuple[float, Iterable[Any]]:
        """Loss and gradients of a new model with the initial weights, in float64, on `CHECKED` examples, as arrays.

        Gradients are in the order of the parameters, and nothing drops out.
        """
        raise NotImplementedError

    def counted(self) -> dict[str, Any]:
        """The framework's counts: ``live``, the most bytes of tensors at a time; ``allocations`` of an iteration."""
        raise NotImplementedError

    def run(self, iterations: int, update: bool) -> dict[str, float]:
        """So many iterations; seconds of all together by the wall's clock and by the processor's (of all threads)."""
        gc.collect()
        wall, processor = perf_counter(), process_time()
        for _ in range(iterations):
            self.iteration(update)
        self.sync()
        return {"wall": perf_counter() - wall, "processor": process_time() - processor}

    def memory(self) -> dict[str, Any]:
        """After the first iterations: `counted`, and ``grown``, bytes that the process has gained.

        To be asked for before anything else was done.
        """
        self.run(WARM_UP, update=True)
        peak = resident("VmHWM")
        grown = None if self._before is None or peak is None else peak - self._before
        return {"grown": grown, **self.counted()}

    def check(self, path: str) -> float:
        """Write the gradients of `in_double` to an .npz file and return the loss."""
        loss, gradients = self.in_double()
        np.savez(path, *gradients)
        return loss


def drop_nothing(modules: Iterable[Any], kind: type) -> None:
    """Set the rates of all that drops out to 0: ``p`` of modules of the `kind`, ``dropout`` of others."""
    for module in modules:
        name = "p" if isinstance(module, kind) else "dropout"
        if isinstance(getattr(module, name, None), float):
            setattr(module, name, 0.0)


def resident(field: str = "VmRSS") -> int | None:
    """Bytes of this process in memory, now or (VmHWM) at most so far; None without /proc.

    `getrusage` would count the parent's memory as well, in a process that was forked from a large one.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines[field].split()[0]) * 1024
