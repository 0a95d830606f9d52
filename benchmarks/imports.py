"""Time of `import flnb` in addition to `import numpy`, in new processes: `python -m benchmarks imports`."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.report import table, write

GOAL = 0.08
PROGRAM = """
import time
start = time.perf_counter()
import numpy
middle = time.perf_counter()
import flnb
print(middle - start, time.perf_counter() - middle)
"""


def measure(rounds: int) -> list[tuple[float, float]]:
    """Return for each of several new processes the seconds of importing numpy, and then of importing flnb.

    An additional first process, which is not counted, fills a cache of bytecode, as the installation of a package does.
    """
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-c", PROGRAM]
        outputs = [
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
            for _ in range(rounds + 1)
        ]
    pairs = [tuple(map(float, output.split())) for output in outputs[1:]]
    return [(numpy, ours) for numpy, ours in pairs]


def main(argv: list[str]) -> int:
    """Run the benchmark with the options ``argv``, and print and store the results; returns the exit status, 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks imports")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    options = parser.parse_args(argv)
    pairs = measure(2 if options.quick else options.rounds)
    numpy, ours = (sorted(column) for column in zip(*pairs, strict=True))
    median = statistics.median(ours)
    row: dict[str, Any] = {
        "numpy, median s": round(statistics.median(numpy), 3),
        "flnb beyond it, median s": round(median, 3),
        "least .. most": f"{ours[0]:.3f} .. {ours[-1]:.3f}",
        "goal": f"< {GOAL}",
        "met": "yes" if median < GOAL else "NO",
    }
    print(table([row]))
    write("imports", [row], vars(options))
    return 0
