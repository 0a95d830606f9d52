"""`flnb bench`: models of `flnb.models` on every backend there is, without any other framework."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flnb import models
from flnb.bench.measure import measure, threads
from flnb.bench.worker import Worker
from flnb.dispatch import registry
from flnb.explore.turns import ratios

__all__ = ["TRAINING", "bench", "computing", "costliest", "TABLE3"]

TRAINING = "flnb.bench.training:Training"

TABLE3 = ("alexnet", "vgg16", "resnet50", "bert", "asr-transformer", "vit")
"""The six models of table 3 of the Flashlight paper (Kahn et al. 2022)."""


def bench(
    names: Sequence[str] = (), scale: str = "small", backends: Sequence[str] = (), rounds: int = 5,
    seconds: float = 0.5, count: int = 1,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Train each model on each backend, in turn; returns the rows of a table: times, memory, the costliest ops.

    Args:
        names: of models, by default the six of table 3.
        scale: "small" or "paper".
        backends: names, by default all that compute values. Of several, ratios are to the first.
        rounds: how often each takes its turn.
        seconds: how long a turn takes, about; at least one iteration with and one without the optimizer.
        count: threads of each process.

    Raises:
        ValueError: an unknown model, scale or backend.
        WorkerError: a model that could not be trained.
    """
    backends = list(backends) or computing()
    for backend in backends:
        registry.make("backend", backend)
    if rounds < 1 or count < 1:
        raise ValueError(f"flnb bench: expected 1 round and 1 thread or more, got {rounds} and {count}")
    known = [models.get(name) for name in names or TABLE3]
    for recipe in known:
        recipe.batch(scale, size=1)  # refuses a scale that there is not, before anything has been timed
    for recipe in known:
        yield from _rows(recipe.name, scale, backends, rounds, seconds, count)


def computing() -> list[str]:
    """The backends whose tensors have values, by name."""
    return [name for name in registry.names("backend") if registry.find("backend", name).has_values]  # type: ignore[attr-defined]


def _rows(
    name: str, scale: str, backends: Sequence[str], rounds: int, seconds: float, count: int
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        arguments = {"model": name, "scale": scale, "weights": str(Path(folder) / "weights.npz")}
        workers = [
            stack.enter_context(
                Worker(f"{name} on {backend}", TRAINING, {**arguments, "backend": backend}, threads(count))
            )
            for backend in backends
        ]
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
    """The three ops that take most of an iteration in flnb, with their shares of all ops' time."""
    return ", ".join(f"{op} {share:.0%}" for op, share in worker.call("costliest", count=3))
