"""Training times of models, each measured in a process of its own: `flnb bench` and `python -m benchmarks models`."""

from flnb.bench.contestant import Contestant
from flnb.bench.worker import Worker, WorkerError
from flnb.explore.turns import Spread, in_turn, ratios, table

__all__ = ["Contestant", "Spread", "Worker", "WorkerError", "in_turn", "ratios", "table"]
