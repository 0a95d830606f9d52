"""Several contestants in one run: warmed up, then timed in turn, many short rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flnb.explore.turns import Spread, in_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.bench.worker import Worker

__all__ = ["Measured", "measure", "threads"]

MOST = 200
"""Iterations in one round."""


class Measured(NamedTuple):
    """The measurements of one contestant: seconds of an iteration with and without the optimizer, one number a round.

    `busy` is the share of the wall's time in which its process computed, all threads together: less than the number
    of threads if other programs took the processor away.
    """

    trained: list[float]
    without: list[float]
    busy: float

    def columns(self, memory: dict[str, Any]) -> dict[str, Any]:
        """The part of a table's row that needs no other contestant, with what `Contestant.memory` gave."""
        live, grown = memory["live"], memory["grown"]
        return {
            "s / 100": _text(100.0 * Spread.of(self.trained).median),
            "without optimizer": _text(100.0 * Spread.of(self.without).median),
            "tensors, MB": "" if live is None else f"{live / 1e6:.1f}",
            "process, MB": "" if grown is None else f"{grown / 1e6:.0f}",
            "allocations": "" if memory["allocations"] is None else memory["allocations"],
        }


def _text(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds >= 1.0 else f"{seconds:.4f}"


def threads(count: int) -> dict[str, str]:
    """The environment of a process that computes on so many threads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(count))


def measure(workers: Sequence[Worker], rounds: int, seconds: float, clock: str = "wall") -> list[Measured]:
    """Time the contestants in these workers, which were warmed up when they were asked for their memory.

    In a round each runs, one after the other, as many iterations as take about `seconds`, at least two: half of them
    with the optimizer, half without. `clock` is "wall", or "processor" for a machine that others use as well; the time
    of several threads then adds up.
    """
    iterations = {}
    for worker in workers:
        worker.call("run", iterations=1, update=False)  # what compiles has only compiled the other half so far
        once = worker.call("run", iterations=1, update=True)["wall"]
        iterations[worker] = min(MOST, max(1, round(seconds / 2 / once)))

    def turn(worker: Worker) -> list[dict[str, float]]:
        return [worker.call("run", iterations=iterations[worker], update=update) for update in (True, False)]

    found = in_turn(workers, turn, rounds)
    return [_measured(turns, iterations[worker], clock) for worker, turns in zip(workers, found, strict=True)]


def _measured(turns: list[list[dict[str, float]]], iterations: int, clock: str) -> Measured:
    trained, without = ([turn[half][clock] / iterations for turn in turns] for half in (0, 1))
    wall, processor = (sum(half[each] for turn in turns for half in turn) for each in ("wall", "processor"))
    return Measured(trained, without, processor / wall)
