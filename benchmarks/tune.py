"""How long `flnb.memory.tune` takes to redraw its figure after a control is moved: `python -m benchmarks tune`.

Goals, for a trace of 50,000 calls: 0.5 s with `Caching`, 3 s with a manager in plain Python as one types it in a cell.
The kernel's part alone; the browser's is printed by `tests/browser/test_tune.py -s`.
"""

from __future__ import annotations

import argparse
import time
from bisect import insort
from typing import Any

import numpy as np

import flnb
from benchmarks.report import table, write
from flnb.memory import Block, MemoryManager

CALLS = 50_000
GOALS = {"Caching": 0.5, "FirstFit": 3.0}


class FirstFit(MemoryManager):
    """A first-fit manager in plain Python, with a list of holes by address."""

    def __init__(self, device: Any = None, slab: int = 4 << 20) -> None:
        super().__init__(device)
        self.slab, self.holes = slab, []  # type: ignore[var-annotated]

    def alloc(self, nbytes: int, stream: int = 0, hint: Any = None) -> Block:
        """Return a block of the first hole that is large enough."""
        size = max(512, -(-nbytes // 512) * 512)
        hole = next((hole for hole in self.holes if hole[1] >= size), None)
        if hole is None:
            segment = self.device.reserve(max(size, self.slab))
            hole = (segment.address, segment.size, segment)
        else:
            self.holes.remove(hole)
        address, room, segment = hole
        if room > size:
            insort(self.holes, (address + size, room - size, segment), key=lambda hole: hole[0])
        return Block(address, size, segment)

    def free(self, block: Block) -> None:
        """Join a block with the holes beside it."""
        address, size, segment = block.address, block.size, block.segment
        for hole in [hole for hole in self.holes if hole[2] is segment]:
            if hole[0] + hole[1] == address or address + size == hole[0]:
                self.holes.remove(hole)
                address, size = min(address, hole[0]), size + hole[1]
        if size == segment.size:
            self.device.release(segment)
        else:
            insort(self.holes, (address, size, segment), key=lambda hole: hole[0])


def example(calls: int) -> Any:
    """Return a trace of ``calls`` allocations and frees: many sizes, most of which are freed in reverse order."""
    rng, order, sizes, live = np.random.default_rng(0), [], [], list[int]()
    while len(order) < calls:
        for _ in range(60):
            sizes.append(int(2.0 ** rng.uniform(10, 23)))
            order.append(len(sizes))
            live.append(len(sizes))
        keep = rng.random(len(live)) < 0.1
        order += [-number for number, kept in zip(live[::-1], keep[::-1], strict=True) if not kept]
        live = [number for number, kept in zip(live, keep, strict=True) if kept][-40:]
    return flnb.memory.Trace.of_calls(
        order[:calls], [size for size in sizes if size][: max(order[:calls])], name="steps"
    )


def measure(trace: Any, kind: type[MemoryManager], moves: dict[str, list[Any]]) -> dict[str, Any]:
    """Move each control to some values, and measure the time until the figure is redrawn; returns the table's row.

    Args:
        trace: the trace to replay.
        kind: the class of the memory manager.
        moves: for each control (a setting of the manager) its values, one after the other.
    """
    tuner = flnb.memory.tune(trace, kind, seconds=0.1)
    took = []
    for name, values in moves.items():
        for value in values:
            began = time.perf_counter()
            tuner.set(**{name: value})
            took.append(time.perf_counter() - began)
            if tuner.settings != {name: value}:
                raise RuntimeError(
                    f"{kind.__name__}: {name}={value!r} was not drawn, but {tuner.settings}; {tuner.error}"
                )
        tuner.reset()
    goal = GOALS[kind.__name__]
    tuner.close()
    return {
        "manager": kind.__name__, "calls": len(trace), "moves": len(took),
        "median, s": round(float(np.median(took)), 3),
        "slowest, s": round(max(took), 3), "goal, s": goal, "met": "yes" if max(took) <= goal else "NO",
    }  # fmt: skip


def main(argv: list[str]) -> int:
    """Run the benchmark with the options ``argv``, and print and store the results; returns the exit status, 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tune")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    options = parser.parse_args(argv)
    trace = example(2000 if options.quick else CALLS)
    rows = [
        measure(trace, flnb.memory.Caching, {"split_limit": ["1MiB", "4MiB"], "recycling_limit": ["2MiB", "8MiB"]}),
        measure(trace, FirstFit, {"slab": [2 << 20, 8 << 20]}),
    ]
    print(table(rows))
    print(f"kept in {write('tune', rows, vars(options))}")
    return 0
