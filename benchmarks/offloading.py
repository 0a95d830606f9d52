"""Time and memory of a training step whose saved tensors are offloaded: `python -m benchmarks offloading`.

The model is a multilayer perceptron of square layers with ReLUs. For each layer one block of activations is saved, four
times as large as the layer's weights. Steps without offloading, with `flnb.memory.offload` and with `compress` take
turns. Peaks are live bytes of the manager from which results are allocated. "back, of step" is the share of a step in
which the program waits for tensors that are moved back.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from benchmarks.report import table, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

MIB = 1 << 20


class Case:
    """A network whose training steps are timed, with a memory manager of its own.

    Args:
        name: the case's name in the table.
        width, layers: the width and the number of the network's linear layers.
        wrap: returns the context manager in which a step runs, such as that of `flnb.memory.offload`.
    """

    def __init__(self, name: str, width: int, layers: int, wrap: Callable[[], AbstractContextManager[Any]]) -> None:
        import flnb

        self.name, self.wrap = name, wrap
        self.manager = flnb.memory.Caching(flnb.memory.HostDevice())
        self.seconds: list[float] = []
        with flnb.use_memory_manager(self.manager):
            flnb.manual_seed(0)
            parts = [part for _ in range(layers) for part in (flnb.nn.Linear(width, width), flnb.nn.ReLU())]
            self.net = flnb.nn.Sequential(*parts)
            self.x = flnb.random.normal((4 * width, width))
        self.held = self.manager.stats()["allocated"]
        self.step()  # segments are there from now on

    def step(self) -> float:
        """Run forward and backward; returns the seconds that they took."""
        import flnb

        with flnb.use_memory_manager(self.manager):
            began = time.perf_counter()
            with self.wrap() as self.moves:
                (self.net(self.x) * 1.0).mean().backward()
            seconds = time.perf_counter() - began
            for p in self.net.parameters():
                p.zero_grad()
        return seconds

    def row(self, plain: float) -> dict[str, Any]:
        """Return a row of the table: the fastest step, the peak of memory in a step, and the cost of moving a MiB.

        ``plain`` is the seconds of the fastest step without offloading. Memory that the network always uses is not a
        part of the peak.
        """
        best, moves = min(self.seconds), self.moves
        found = {"saved tensors": self.name, "step, ms": round(1e3 * best, 1), "of plain": round(best / plain, 2)}
        found |= {"peak, MiB": round((self.manager.stats()["peak_allocated"] - self.held) / MIB, 1)}
        away, back = (moves.away_bytes / MIB, moves.back_bytes / MIB) if moves is not None else (0, 0)
        return found | {
            "moved, MiB": round(away),
            "kept in, MiB": round(moves.stored_bytes / MIB, 1) if away else "",
            "away, us/MiB": round(1e6 * moves.away_seconds / away) if away else "",
            "back, us/MiB": round(1e6 * moves.back_seconds / back) if back else "",
            "back, of step": round(moves.back_seconds / best, 3) if back else "",
        }


def main(argv: list[str]) -> int:
    """Run the benchmark with the options ``argv``, and print and store the results; returns the exit status, 0."""
    import flnb

    parser = argparse.ArgumentParser(prog="python -m benchmarks offloading")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    options = parser.parse_args(argv)
    width, layers, rounds = (512, 4, 1) if options.quick else (512, 12, 5)
    host = flnb.memory.Caching(flnb.memory.HostDevice())
    wraps: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "on the device": nullcontext,
        "offloaded": lambda: flnb.memory.offload(host),
        "zlib": lambda: flnb.memory.compress("zlib"),
        "lossy-float16": lambda: flnb.memory.compress("lossy-float16"),
    }
    cases = [Case(name, width, layers, wrap) for name, wrap in wraps.items()]
    for _ in range(rounds):
        for case in cases:
            case.seconds.append(case.step())
    rows = [case.row(min(cases[0].seconds)) for case in cases]
    print(table(rows))
    print(f"kept in {write('offloading', rows, vars(options))}")
    return 0
