"""Models timed side by side, each in a process of its own: `flnb bench`, and the base of `benchmarks models`."""

from flnb.bench.contestant import Contestant
from flnb.bench.worker import Worker, WorkerError
from flnb.explore.turns import Spread, in_turn, ratios, table

__all__ = ["Contestant", "Spread", "Worker", "WorkerError", "in_turn", "ratios", "table"]
