"""Timing of several frameworks or backends in turn, in many short rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flnb.bench.contestant import WARM_UP
from flnb.explore.turns import Spread, in_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.bench.worker import Worker

MOST = 200
"""The most iterations in one turn."""


class Measured(NamedTuple):
    """The measurements of one framework or backend.

    Attributes:
        trained: for each round, the seconds of an iteration with the optimizer.
        without: for each round, the seconds of an iteration without the optimizer.
        busy: processor time of all threads divided by elapsed time; it is lower if other programs used the processor.
    """

    trained: list[float]
    without: list[float]
    busy: float

    def columns(self, memory: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of a table for these times and for ``memory``, which `Contestant.memory` returned."""
        live, grown = memory["live"], memory["grown"]
        return {
            "s / 100": _text(100.0 * Spread.of(self.trained).median),
            "without optimizer": _text(100.0 * Spread.of(self.without).median),
            "tensors, MB": "" if live is None else f"{live / 1e6:.1f}",
            "process, MB": "" if grown is None else f"{grown / 1e6:.0f}",
            "allocations": "" if memory["allocations"] is None else memory["allocations"],
        }


def _text(seconds: float) -> str:
    """Format seconds with two decimals, or four below one second."""
    return f"{seconds:.2f}" if seconds >= 1.0 else f"{seconds:.4f}"


def threads(count: int) -> dict[str, str]:
    """Return environment variables that make a process compute with ``count`` threads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))


def measure(workers: Sequence[Worker], rounds: int, seconds: float, clock: str = "wall") -> list[Measured]:
    """Time the contestants in these workers; their method `Contestant.memory` must have been called before.

    In each of ``rounds`` rounds, every contestant in turn runs as many iterations as take about ``seconds``, at least
    two, half of them with the optimizer. ``clock`` is "wall" for elapsed time, or "processor" for the processor time of
    all threads, which suits a machine that other programs use.
    """
    iterations = {}
    for worker in workers:
        worker.call("run", iterations=WARM_UP, update=False)  # a framework that compiles has not yet compiled this
        once = worker.call("run", iterations=1, update=True)["wall"]
        iterations[worker] = min(MOST, max(1, round(seconds / 2 / once)))

    def turn(worker: Worker) -> list[dict[str, float]]:
        """Run one turn of a contestant; return the times with and without the optimizer."""
        return [worker.call("run", iterations=iterations[worker], update=update) for update in (True, False)]

    found = in_turn(workers, turn, rounds)
    return [_measured(turns, iterations[worker], clock) for worker, turns in zip(workers, found, strict=True)]


def _measured(turns: list[list[dict[str, float]]], iterations: int, clock: str) -> Measured:
    """Convert the total times of all turns to seconds per iteration, by the clock "wall" or "processor"."""
    trained, without = ([turn[half][clock] / iterations for turn in turns] for half in (0, 1))
    wall, processor = (sum(half[each] for turn in turns for half in turn) for each in ("wall", "processor"))
    return Measured(trained, without, processor / wall)
