"""Exports of a run: events per second and memory for writing a trace, reading it, and writing an HTML page.

The run is synthetic: forward and backward ops with tape nodes, each with a block of memory that lives for 100 ops.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from flnb_telemetry import intern, schema
from flnb_telemetry.recording import Recording

LIVES = 100  # ops for which a block is live
BATCH = 1 << 16


def synthetic(ops: int) -> Recording:
    """Return a recording of ``ops`` ops, half of them of a backward pass, with as many allocations and frees."""
    run = Recording("synthetic", limit=1 << 40)
    plans = [
        intern.plans.id_of(intern.Plan(f"op{i}", "elementwise", (64, 64), "float32", 16384, 0, ((64, 64),) * 2))
        for i in range(20)
    ]
    contexts = [intern.contexts.id_of(intern.Context(f"net.block{i % 10}", 1 + i // 10)) for i in range(20)]
    run.feed(1, np.array([[schema.SEGMENT_ALLOC, run.start, 1, 1 << 40, (LIVES + 1) << 14, 0, 0, 0]], np.int64))
    for first in range(0, ops, BATCH):
        at = np.arange(first, min(first + BATCH, ops))
        rows = np.zeros((3, len(at), schema.WORDS), np.int64)
        t, back = run.start + 1000 + at * 3000, at % 2
        rows[0, :, 0] = schema.OP | np.array(plans)[at % 20] << schema.PLAN_SHIFT
        rows[0, :, 1:6] = np.array([t, t + 1500, at + 1, at // 2 + 1, np.array(contexts)[at % 10 + 10 * back]]).T
        rows[1, :, 0] = schema.ALLOC | schema.CATEGORIES.index("activation") << schema.AUX_SHIFT
        address = (1 << 40) + at % (LIVES + 1) * 16384
        rows[1, :, 1:7] = np.array([t + 1, at + 1, address, *np.broadcast_to([[16384], [16000], [1]], (3, len(at)))]).T
        freed = at - LIVES
        rows[2, :, 0] = schema.FREE_COMPLETED
        rows[2, :, 1:5] = np.array([t - 1, freed + 1, (1 << 40) + freed % (LIVES + 1) * 16384, 0 * at + 16384]).T
        for records in (rows[0], rows[1], rows[2][freed >= 0]):
            run.feed(1, records)
    run.end, run.state = run.start + 2000 + ops * 3000, "finished"
    return run


def measured(action: str, path: Path, ops: int) -> None:
    """Write or read a file in this process; print the seconds, and the process's peak memory before and after.

    Args:
        action: "read", or "write" to write a synthetic run first.
        path: the file; its ending selects the format.
        ops: the number of ops in the run to write.
    """
    from flnb_telemetry import load_run

    run = synthetic(0 if action == "read" else ops)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    if action == "read":
        events = load_run(path).events
    else:
        (run.save_html if path.suffix == ".html" else run.save_trace)(path)
        events = run.events
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = path.stat().st_size / 2**20
    print(
        f"{action:>6} {path.name:<14} {events:>12,} events {seconds:8.2f} s {events / seconds:>12,.0f} events/s "
        f"{size:8.1f} MiB, memory {before >> 10} to {peak >> 10} MiB",
        flush=True,
    )


def main(argv: list[str]) -> int:
    """Measure each export in a separate process, and print a line for each."""
    parser = argparse.ArgumentParser(prog="benchmarks export", description=__doc__)
    parser.add_argument("--ops", type=int, default=1_000_000, help="number of ops (default: 1,000,000)")
    parser.add_argument("--quick", action="store_true", help="a smoke size of 2,000 ops, in this process")
    parser.add_argument("--one", nargs=2, metavar=("ACTION", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        measured(options.one[0], Path(options.one[1]), options.ops)
        return 0
    todo = (("write", "trace.json"), ("read", "trace.json"), ("write", "trace.json.gz"), ("write", "page.html"))
    with tempfile.TemporaryDirectory() as folder:
        for action, name in todo:
            if options.quick:
                measured(action, Path(folder) / name, 2000)
                continue
            command = [sys.executable, "-m", "benchmarks", "export", "--ops", str(options.ops), "--one", action]
            subprocess.run([*command, os.path.join(folder, name)], check=True)
    return 0
