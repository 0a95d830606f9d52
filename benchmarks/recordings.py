"""Recordings on disk: events per second, and the most memory while recording, however long the run.

`python -m benchmarks recordings`; each number of events is recorded in a process of its own, through the buffer of a
thread and the pump, as a program's events are. Goal: the memory for 72 million events is that for 10 million.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import table, write

COUNTS = (10_000_000, 72_000_000)
SMOKE = (20_000, 100_000)
CHUNK = 50_000  # events that are emitted between two flushes, so that none is dropped
MORE = 1.05
"""By how much the memory of the longest run may exceed that of the shortest."""


def record(path: Path, count: int) -> dict[str, Any]:
    """Record ops of a pretended program to a file; returns what was measured."""
    import flnb_telemetry as telemetry
    from flnb_telemetry import bus, pump, schema
    from flnb_telemetry.intern import Plan, plans

    numbers = [plans.id_of(Plan(f"op{i}", "elementwise", (8, 8), "float32", 256)) for i in range(40)]
    random = np.random.default_rng(0)
    rows = np.zeros((CHUNK, schema.WORDS), np.int64)
    rows[:, 0] = schema.OP | random.choice(numbers, CHUNK) << schema.PLAN_SHIFT
    before, began = peak_mib(), time.perf_counter()
    with telemetry.record("events", path=path, grad_interval=None) as run:
        assert bus.lanes is not None
        lane, t = bus.lanes.lane, run.start
        for first in range(0, count, CHUNK):
            size = min(CHUNK, count - first)
            rows[:, 1] = t + np.cumsum(random.integers(500, 3000, CHUNK))
            rows[:, 2] = rows[:, 1] + random.integers(100, 500, CHUNK)
            rows[:, 4] = rows[:, 6] = np.arange(first, first + CHUNK)
            t = int(rows[-1, 2])
            lane.pending += rows[:size].ravel().tolist()
            pump.flush()
        emitted, during = time.perf_counter() - began, peak_mib()
    closed = time.perf_counter() - began - emitted
    if run.dropped or run.events != count:
        raise RuntimeError(f"{run.events:,} of {count:,} events were recorded, {run.dropped:,} dropped")
    return {
        "events": count,
        "events/s": round(count / emitted),
        "closed in, s": round(closed, 2),
        "before, MiB": before,
        "peak, MiB": during,
        "peak with closing, MiB": peak_mib(),
        "file, MiB": round(path.stat().st_size / 2**20, 1),
        "bytes/event": round(path.stat().st_size / count, 2),
    }


def opened(path: Path) -> dict[str, Any]:
    """Open a recording in this process and count its events."""
    import flnb_telemetry as telemetry

    began = time.perf_counter()
    run = telemetry.load_run(path)
    took, peak = time.perf_counter() - began, peak_mib()
    spent = sum(int((chunk["t1"] - chunk["t0"]).sum()) for chunk in run.chunks("op"))
    if spent <= 0:
        raise RuntimeError(f"the ops of {os.fspath(path)!r} took {spent} ns in all; expected more")
    return {"opens in, s": round(took, 2), "opened, MiB": peak, "read through, MiB": peak_mib()}


def peak_mib() -> float:
    """Return the most memory that this process has had, MiB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def measured(what: str, path: Path, count: int) -> dict[str, Any]:
    """Call `record` or `opened` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "recordings", "--do", what, str(path), str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=3600)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(argv: list[str]) -> int:
    """Run the benchmark, and print and store the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks recordings")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    parser.add_argument("--do", nargs=3, metavar=("WHAT", "PATH", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.do:
        what, path, count = options.do
        print(json.dumps(record(Path(path), int(count)) if what == "record" else opened(Path(path))))
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in SMOKE if options.quick else COUNTS:
            path = Path(folder) / f"{count}.flnb"
            rows.append(measured("record", path, count) | measured("opened", path, count))
    rows[-1]["met"] = "yes" if options.quick or rows[-1]["peak, MiB"] <= MORE * rows[0]["peak, MiB"] else "NO"
    print(table(rows))
    print(f"stored in {write('recordings', rows, {'quick': options.quick})}")
    return 0
