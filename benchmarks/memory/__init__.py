"""The fragmentation study: `python -m benchmarks memory [--quick]`.

Section 5.2.2 of the Flashlight paper (Kahn et al. 2022) describes a caching manager that does not split large blocks,
with which "internal fragmentation" fell by over 20 % for most models. The paper does not say how that was computed, for
which models, or with which limits. Here the training of the six models of the paper's Table 3 is traced in three ways:
at the paper's sizes, with batches of varying size, and with small models on the CPU. Each trace is replayed through the
caching manager with every pair of limits of splitting and of recycling, and through every other manager, beside two
bounds: the most bytes that are live, and the best offline packing found.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TYPE_CHECKING

import flnb
from benchmarks.memory.findings import COLUMNS, Result
from benchmarks.memory.pages import drawn, section, told
from benchmarks.memory.sweep import LIMITS, MANAGERS, SMALL_LIMITS, caching, grid, measured
from benchmarks.memory.traces import KINDS, traced
from benchmarks.report import insert, page, write
from flnb.bench.command import TABLE3

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main", "study"]

PACKING = 3.0
"""Seconds for making a trace's offline packing better."""


def study(model: str, kind: str, quick: bool = False) -> Result:
    """Trace a model's training, and replay the trace on all managers with all settings; returns the measurements.

    Args:
        model: the model's name in `flnb.models`.
        kind: the kind of trace, a key of `KINDS`.
        quick: whether to measure few settings.
    """
    trace = traced(model, kind)
    largest = int(trace.nbytes.max())
    limits = SMALL_LIMITS if kind == "cpu" else LIMITS
    pairs = grid(largest, (limits[0], limits[-3]) if quick else limits)
    packing = flnb.memory.pack(trace, seconds=0.2 if quick else PACKING)
    return Result(
        kind, model, len(trace), trace.peak_live, largest, packing.height, packing.optimal,
        {pair: measured(trace, caching(*pair)) for pair in pairs},
        {other.manager: measured(trace, other) for other in MANAGERS},
    )  # fmt: skip


def studied(tasks: list[tuple[str, str]], processes: int) -> Iterator[Result]:
    """Call `study` for each task (model, kind) in one of several processes; yield each result as soon as possible."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(study, model, kind) for model, kind in tasks]):
            yield done.result()


def main(argv: list[str]) -> int:
    """Run the study, and print and store its tables, figures and conclusions."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory")
    parser.add_argument("--processes", type=int, default=2, help="traces that are studied at a time")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI: two models, two limits")
    options = parser.parse_args(argv)
    began = time.perf_counter()
    if options.quick:
        results = [study("alexnet", "paper", quick=True), study("lenet", "cpu", quick=True)]
    else:
        tasks = [(model, kind) for kind in reversed(KINDS) for model in reversed(TABLE3)]
        results = []
        for result in studied(tasks, options.processes):
            results.append(result)
            seconds = time.perf_counter() - began
            print(f"{result.model}, {result.kind}: {len(result.sweep)} settings after {seconds:.0f} s", file=sys.stderr)
        results.sort(key=lambda result: tasks.index((result.model, result.kind)), reverse=True)
    print(told(results))
    rows = {"columns": ["split_limit MiB", "recycling_limit MiB", *COLUMNS], "traces": [r.to_json() for r in results]}
    print(f"kept in {write('memory', rows, vars(options))}, drawn in {page('memory', drawn(results), vars(options))}")
    if not options.quick:
        insert("memory", section(results))
    return 0
