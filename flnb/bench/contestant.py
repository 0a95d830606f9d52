"""The base class for frameworks to be compared: trains a model in one framework, and measures time and memory."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

LEARNING_RATE, MOMENTUM = 1e-4, 0.9
"""Settings of every framework's SGD; the rate is so small that a batch seen a thousand times is not memorised."""
WARM_UP = 3
"""Iterations before anything is measured."""
CHECKED = 2
"""Examples on which the frameworks' gradients are compared: few, so that large models fit into memory in float64."""


class Contestant:
    """Trains a model on one batch by SGD with momentum in one framework, in the process of a `Worker`.

    The constructor of a subclass imports the framework, trains a tiny model (so that memory which the framework takes
    at first use is not counted), calls ``super().__init__()``, and builds the model. The subclass defines the methods
    that raise NotImplementedError here.
    """

    def __init__(self) -> None:
        self._before = resident()

    def iteration(self, update: bool) -> None:
        """Run a forward and a backward pass on the batch and, if ``update``, a step of the optimizer."""
        raise NotImplementedError

    def sync(self) -> None:
        """Wait until all launched computations have ended; does nothing in frameworks that always wait."""

    def in_double(self) -> tuple[float, Iterable[Any]]:
        """Return the loss and all gradients, computed in float64 and without dropout by a new model.

        The model has the initial weights; the batch has `CHECKED` examples. The gradients are arrays, in the order of
        the parameters.
        """
        raise NotImplementedError

    def counted(self) -> dict[str, Any]:
        """Return a dict of numbers that the framework itself counts.

        "live" is the peak number of bytes of tensors, "allocations" the number of allocations in an iteration.
        """
        raise NotImplementedError

    def run(self, iterations: int, update: bool) -> dict[str, float]:
        """Run iterations, each with an optimizer step if ``update``, and return the total times.

        Returns:
            A dict of seconds: "wall" is the elapsed time, "processor" the processor time of all threads.
        """
        gc.collect()
        wall, processor = perf_counter(), process_time()
        for _ in range(iterations):
            self.iteration(update)
        self.sync()
        return {"wall": perf_counter() - wall, "processor": process_time() - processor}

    def memory(self) -> dict[str, Any]:
        """Run the first iterations, before any other method is called; return a dict of memory statistics.

        The dict has the entries of `counted`, and ``grown``: the bytes by which the process grew (None if unknown).
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
    """Set all dropout rates to 0: attribute ``p`` of modules of the class ``kind``, attribute ``dropout`` of others."""
    for module in modules:
        name = "p" if isinstance(module, kind) else "dropout"
        if isinstance(getattr(module, name, None), float):
            setattr(module, name, 0.0)


def resident(field: str = "VmRSS") -> int | None:
    """Return the bytes of memory that this process uses; None without /proc.

    ``field`` is "VmRSS" for the present memory, or "VmHWM" for the most that the process has used so far.
    `getrusage` is not used because in a forked process it includes the parent's memory.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines[field].split()[0]) * 1024
