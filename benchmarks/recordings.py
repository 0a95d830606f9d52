"""Recordings on disk: events per second, and the most memory while recording, however long the run.

`python -m benchmarks recordings`; each number of events is recorded in a process of its own, through the buffer of a
thread and the pump, as a program's events are. Goal: the memory for 72 million events is that for 10 million.
`--hour` records 200,000 events a second for one hour (`--minutes N` for as many minutes), without a flush, and prints
the memory after each minute. Goal: it stays flat, and every event is in the file.
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
RATE = 200_000  # events a second, with --hour
TURN = 0.05  # s between two batches of them
MORE = 1.05
"""Goal: the largest ratio of the memory for the longest run to that for the shortest run."""


def record(path: Path, count: int) -> dict[str, Any]:
    """Record ``count`` events of a simulated program to a file; returns a row of the table with rates and memory."""
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


def sustain(path: Path, minutes: float) -> dict[str, Any]:
    """Record events to a file at a steady rate, and print the memory after each minute.

    Return a row of the table with the number and the rate of the events, and the memory.
    """
    import flnb_telemetry as telemetry
    from flnb_telemetry import bus, schema
    from flnb_telemetry.intern import Plan, plans

    numbers = [plans.id_of(Plan(f"op{i}", "elementwise", (8, 8), "float32", 256)) for i in range(40)]
    size = round(RATE * TURN)
    turns, each_minute = max(1, round(minutes * 60 / TURN)), round(60 / TURN)
    rows = np.zeros((size, schema.WORDS), np.int64)
    rows[:, 0] = schema.OP | np.random.default_rng(0).choice(numbers, size) << schema.PLAN_SHIFT
    gap = int(TURN * 1e9) // size
    memory: list[float] = []
    with telemetry.record("an hour", path=path, grad_interval=None) as run:
        assert bus.lanes is not None
        lane, began = bus.lanes.lane, time.monotonic()
        for turn in range(turns):
            time.sleep(max(0.0, began + turn * TURN - time.monotonic()))
            rows[:, 1] = run.start + turn * int(TURN * 1e9) + np.arange(size) * gap
            rows[:, 2] = rows[:, 1] + gap // 2
            rows[:, 4] = rows[:, 6] = np.arange(turn * size, (turn + 1) * size)
            lane.pending += rows.ravel().tolist()
            if (turn + 1) % each_minute == 0:
                memory.append(resident_mib())
                disk = sum(part.stat().st_size for part in path.parent.rglob("*") if part.is_file())
                print(f"minute {len(memory)}: {memory[-1]} MiB, {disk / 2**20:.0f} MiB on disk", flush=True)
        during, took = peak_mib(), time.monotonic() - began
    count = turns * size
    return {
        "events": count,
        "dropped": run.dropped,  # bursts after a pause of the machine may be larger than a thread's buffer
        "events/s": round(count / took),
        "third minute, MiB": memory[2] if len(memory) > 2 else None,
        "last minute, MiB": memory[-1] if memory else None,
        "peak, MiB": during,
        "peak with closing, MiB": peak_mib(),
        "file, MiB": round(path.stat().st_size / 2**20, 1),
        "bytes/event": round(path.stat().st_size / count, 2),
    }


def resident_mib() -> float:
    """Return the memory that this process uses now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 2**20, 1)


def opened(path: Path) -> dict[str, Any]:
    """Open a recording in this process and read all its ops; returns the seconds for opening, and peaks of memory."""
    import flnb_telemetry as telemetry

    began = time.perf_counter()
    run = telemetry.load_run(path)
    took, peak = time.perf_counter() - began, peak_mib()
    spent = sum(int((chunk["t1"] - chunk["t0"]).sum()) for chunk in run.chunks("op"))
    if spent <= 0:
        raise RuntimeError(f"the ops of {os.fspath(path)!r} took {spent} ns in all; expected more")
    return {"opens in, s": round(took, 2), "opened, MiB": peak, "read through, MiB": peak_mib()}


def peak_mib() -> float:
    """Return the peak of the memory that this process has used, in MiB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def measured(what: str, path: Path, count: int) -> dict[str, Any]:
    """Call `record` or `opened`, as ``what`` says, in a new process, and return the result."""
    command = [sys.executable, "-m", "benchmarks", "recordings", "--do", what, str(path), str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=3600)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main(argv: list[str]) -> int:
    """Run the benchmark with the options ``argv``, and print and store the results; returns the exit status, 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks recordings")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    parser.add_argument("--do", nargs=3, metavar=("WHAT", "PATH", "COUNT"), help=argparse.SUPPRESS)
    parser.add_argument("--hour", action="store_true", help="200,000 events a second for one hour")
    parser.add_argument("--minutes", type=float, help="as --hour, for as many minutes")
    options = parser.parse_args(argv)
    if options.hour or options.minutes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "hour.flnb"
            rows = [sustain(path, options.minutes or 60.0)]
            rows[0] |= measured("opened", path, rows[0]["events"])
        print(table(rows))
        print(f"stored in {write('recordings_hour', rows, {})}")
        return 0
    if options.do:
        what, path, count = options.do
        print(json.dumps(record(Path(path), int(count)) if what == "record" else opened(Path(path))))
        return 0
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in SMOKE if options.quick else COUNTS:
            path = Path(folder) / f"{count}.flnb"
            rows.append(measured("record", path, count) | measured("opened", path, count))
        if options.quick:
            print(table([sustain(Path(folder) / "steady.flnb", 0.01)]))
    rows[-1]["met"] = "yes" if options.quick or rows[-1]["peak, MiB"] <= MORE * rows[0]["peak, MiB"] else "NO"
    print(table(rows))
    print(f"stored in {write('recordings', rows, {'quick': options.quick})}")
    return 0
