"""Graphs of a million tiny nodes: `python -m benchmarks tape`, flnb beside torch where that is installed.

A *chain* multiplies and adds 0-d float32 numbers in turn; a *lattice* adds each cell's two predecessors and multiplies
by the weight of its column, as the forward scores of alignments do. The forward pass is measured, and the backward pass
with the gradients of all leaves. Each measurement is made in a separate process, so that it has a separate peak of
memory. The variants alternate, and ratios are taken round by round. Times are CPU seconds of one thread, because other
programs on the machine disturb these less than elapsed time.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any

from benchmarks.report import table, write

WIDTH = 500
"""Columns of the lattice."""

TIME_GOAL, MEMORY_GOAL, ARENA_GOAL, FLAT_GOAL = 0.5, 1.0, 1.0, 1.3


def chain(leaf: Any, nodes: int) -> Any:
    """Compute y = y a + b repeatedly, with a multiplication and an addition each time: ``nodes`` ops in all.

    ``leaf`` makes a leaf from a number. The leaf a is so near 1 that no gradient underflows.
    """
    y, a, b = leaf(0.5), leaf(0.99999), leaf(0.00001)
    for _ in range(nodes // 2):
        y = y * a
        y = y + b
    return y


def lattice(leaf: Any, nodes: int) -> Any:
    """Compute rows of cells: each cell is the sum of two cells of the previous row, times the weight of its column.

    Return the sum of the last row. ``leaf`` makes a leaf from a number.
    """
    weights = [leaf(0.5) for _ in range(WIDTH)]
    row = weights
    for _ in range(nodes // (2 * WIDTH)):
        inner = [(row[s] + row[s - 1]) * weights[s] for s in range(1, WIDTH)]
        row = [row[0] * weights[0], *inner]
    y = row[0]
    for cell in row[1:]:
        y = y + cell
    return y


GRAPHS = {"chain": chain, "lattice": lattice}


def measure(variant: str, graph: str, nodes: int, tuned: bool, times: int = 1) -> dict[str, float]:
    """Build a graph ``times`` times, and run forward and backward each time; must be called in a new process.

    Return the mean seconds of "forward" and of "backward", and the bytes by which the process's peak "memory" grew.

    Args:
        variant: "torch", or the name of a tape of flnb.
        graph: the name of the graph, a key of `GRAPHS`.
        nodes: the number of ops in the graph.
        tuned: whether the garbage collector runs with the settings of `flnb.tune_gc`.
        times: how often the graph is built, one after the other.
    """
    if variant == "torch":
        import torch

        torch.set_num_threads(1)

        def leaf(value: float) -> Any:
            return torch.tensor(value, requires_grad=True)
    else:
        import numpy as np

        import flnb

        flnb.set_tape(variant)

        def leaf(value: float) -> Any:
            return flnb.Variable(np.float32(value))

    build = GRAPHS[graph]
    build(leaf, 4 * WIDTH).backward()  # plans and caches
    if tuned:  # as flnb.tune_gc does, for both
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    forward = backward = 0.0
    for _ in range(times):
        start = time.thread_time()
        y = build(leaf, nodes)
        middle = time.thread_time()
        y.backward()
        forward += middle - start
        backward += time.thread_time() - middle
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"forward": forward / times, "backward": backward / times, "memory": grown * 1024}


def in_process(variant: str, graph: str, nodes: int, tuned: bool, times: int = 1) -> dict[str, float]:
    """Call `measure` in a new process, and return the result."""
    call = f"measure({variant!r}, {graph!r}, {nodes}, {tuned}, {times})"
    program = f"import json; from benchmarks.tape import measure; print(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def seconds(result: dict[str, float]) -> float:
    """Return the sum of the seconds of forward and backward in a result of `measure`."""
    return result["forward"] + result["backward"]


def rounds(variants: list[str], graph: str, options: argparse.Namespace, tuned: bool) -> dict[str, list[Any]]:
    """Measure each variant once in each round; returns for each variant the results of all rounds."""
    found: dict[str, list[Any]] = {name: [] for name in variants}
    for i in range(options.rounds):
        for name in variants[i % len(variants) :] + variants[: i % len(variants)]:
            found[name].append(in_process(name, graph, options.nodes, tuned))
    return found


def against(
    graph: str, collector: str, name: str, over: list[Any], under: list[Any], what: Any, goal: float
) -> dict[str, Any]:
    """Return a row of the table: median, minimum and maximum of the ratio of two variants in the same round.

    Args:
        graph, collector: the names of the graph and of the garbage collector's setting.
        name: the name of the ratio.
        over, under: the results of the numerator's and of the denominator's variant, one per round.
        what: returns the number to compare in a result: `seconds` or `memory`.
        goal: the largest median that meets the goal.
    """
    ratios = sorted(what(a) / what(b) for a, b in zip(over, under, strict=True))
    median = statistics.median(ratios)
    return {
        "graph": graph,
        "collector": collector,
        "ratio": name,
        "median": round(median, 3),
        "least .. most": f"{ratios[0]:.3f} .. {ratios[-1]:.3f}",
        "goal": f"<= {goal}",
        "met": "yes" if median <= goal else "NO",
        "values": f"{_typical(over, what)} / {_typical(under, what)}",
    }


def _typical(results: list[Any], what: Any) -> str:
    """Return as text the median, over all rounds, of the number that ``what`` returns for a result."""
    value = statistics.median(map(what, results))
    return f"{value / 1e6:.0f} MB" if what is memory else f"{value:.2f} s"


def memory(result: dict[str, float]) -> float:
    """Return the bytes by which the process's memory grew, from a result of `measure`."""
    return result["memory"]


def compare(graph: str, options: argparse.Namespace, tuned: bool) -> list[dict[str, Any]]:
    """Measure all variants on a graph; returns a row of the table for each ratio of two variants."""
    collector = "tune_gc" if tuned else "default gc"
    variants = ["linked", "arena"] + (["torch"] if find_spec("torch") else [])
    found = rounds(variants, graph, options, tuned)
    rows = [against(graph, collector, "arena / default, time", found["arena"], found["linked"], seconds, ARENA_GOAL)]
    if "torch" in found:
        for name in ("linked", "arena"):
            label = "default" if name == "linked" else name
            pair = found[name], found["torch"]
            rows.append(against(graph, collector, f"{label} / torch, time", *pair, seconds, TIME_GOAL))
            rows.append(against(graph, collector, f"{label} / torch, memory", *pair, memory, MEMORY_GOAL))
    return rows


def flatness(graph: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the time per node for several sizes of a graph, and the ratio of the largest time to the smallest.

    The sizes take turns; small graphs are built repeatedly, up to a million nodes in all. Torch is measured, too,
    without a goal.
    """
    variants = ["linked"] + (["torch"] if find_spec("torch") else [])
    found: dict[str, dict[int, list[float]]] = {name: {nodes: [] for nodes in options.sizes} for name in variants}
    for _ in range(options.rounds):
        for name in variants:
            for nodes in options.sizes:
                times = max(1, min(options.nodes, 1_000_000) // nodes)
                found[name][nodes].append(seconds(in_process(name, graph, nodes, True, times)) / nodes)
    return [_flat_row(graph, name, per_node) for name, per_node in found.items()]


def _flat_row(graph: str, name: str, found: dict[int, list[float]]) -> dict[str, Any]:
    """Return the table's row about one framework: the longest time per node of any size, divided by the shortest.

    ``found`` has, for each size of the graph, the seconds per node in each round.
    """
    ratios = sorted(max(values) / min(values) for values in zip(*found.values(), strict=True))
    median, ours = statistics.median(ratios), name == "linked"
    return {
        "graph": graph,
        "collector": "tune_gc",
        "ratio": f"{'default' if ours else name}, time per node, most / least",
        "median": round(median, 3),
        "least .. most": f"{ratios[0]:.3f} .. {ratios[-1]:.3f}",
        "goal": f"<= {FLAT_GOAL}" if ours else "",
        "met": "" if not ours else "yes" if median <= FLAT_GOAL else "NO",
        "values": ", ".join(f"{nodes}: {1e9 * statistics.median(s):.0f} ns" for nodes, s in found.items()),
    }


def main(argv: list[str]) -> int:
    """Run the benchmark; the exit status is 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tape")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000, 3_000_000])
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    options = parser.parse_args(argv)
    if options.quick:
        options.nodes, options.rounds, options.sizes = 10_000, 1, [5_000, 10_000]
    if not find_spec("torch"):
        print("torch is not installed here: its columns are left out")
    rows: list[dict[str, Any]] = []
    for graph in GRAPHS:
        for tuned in (True, False):
            rows += compare(graph, options, tuned)
        rows += flatness(graph, options)
    print(table(rows))
    write("tape", rows, vars(options))
    return 0 if options.quick or all(row["met"] != "NO" for row in rows) else 1
