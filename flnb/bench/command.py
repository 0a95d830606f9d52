"""`flnb bench`: training times of the models in `flnb.models` on every backend."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flnb import models
from flnb.bench.measure import measure, threads
from flnb.bench.worker import Worker
from flnb.dispatch import registry, state
from flnb.explore.turns import ratios

TRAINING = "flnb.bench.training:Training"

TABLE3 = ("alexnet", "vgg16", "resnet50", "bert", "asr-transformer", "vit")
"""The six models of table 3 of the Flashlight paper (Kahn et al. 2022)."""


def bench(
    names: Sequence[str] = (), scale: str = "small", backends: Sequence[str] = (), rounds: int = 5,
    seconds: float = 0.5, count: int = 1,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Train each model on each backend, and yield the rows of a table with times, memory and the slowest ops.

    Args:
        names: the models' names in `flnb.models`, by default `TABLE3`.
        scale: the models' size, "small" or "paper".
        backends: the backends' names, by default the active one. Times are compared with the first.
        rounds: how often each backend takes its turn.
        seconds: about how long a turn takes; it has at least one iteration with the optimizer and one without.
        count: the number of threads of each process.

    Raises:
        ValueError: a model, scale or backend is unknown.
        WorkerError: a model could not be trained.
    """
    backends = list(backends) or [state.current().backend.name]
    for backend in backends:
        registry.make("backend", backend)
    if rounds < 1 or count < 1:
        raise ValueError(f"flnb bench: rounds and threads must be 1 or more, got rounds={rounds} and threads={count}")
    known = [models.get(name) for name in names or TABLE3]
    for recipe in known:
        recipe.batch(scale, size=1)  # raises an error for an unknown scale before anything is timed
    for recipe in known:
        yield from _rows(recipe.name, scale, backends, rounds, seconds, count)


def _rows(
    name: str, scale: str, backends: Sequence[str], rounds: int, seconds: float, count: int
) -> list[dict[str, Any]]:
    """Train the model ``name`` on each backend in turn, and return its rows of the table; arguments as for `bench`."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        arguments = {"model": name, "scale": scale, "weights": str(Path(folder) / "weights.npz")}
        workers = []
        for backend in backends:
            worker = Worker(f"{name} on {backend}", TRAINING, {**arguments, "backend": backend}, threads(count))
            workers.append(stack.enter_context(worker))
        memory = [worker.call("memory") for worker in workers]
        found = measure(workers, rounds, seconds)
        rows = []
        for backend, worker, used, one in zip(backends, workers, memory, found, strict=True):
            row = {"model": name, "backend": backend, **one.columns(used)}
            if len(backends) > 1:
                row[f"over {backends[0]}"] = f"{ratios(one.trained, found[0].trained).median:.2f}"
            rows.append(row | {"most time in": costliest(worker)})
        return rows


def costliest(worker: Worker) -> str:
    """Return a text with the three ops that take most time in an iteration of a worker's model, and their shares."""
    return ", ".join(f"{op} {share:.0%}" for op, share in worker.call("costliest", count=3))
