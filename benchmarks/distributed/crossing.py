"""All-reduce of two processes: through the crossing with checks and events, by raw mpi4py, and by torch's gloo.

`measure` starts the processes; this module run as a script is one of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

SIZES = (4, 1 << 10, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
LOADED = (4, 1 << 16, 1 << 20)
RAW, TESTING, OURS, GLOO = "Allreduce", "Iallreduce, Test", "flnb", "gloo"
ADDED, RATIO, LARGE = 5.0, 1.10, 1 << 20
"""Goals: the most microseconds by which the fastest call of 4 bytes may exceed mpi4py's, and the largest ratio of the
medians for calls of at least `LARGE` bytes."""


def measure(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Measure on the machine as it is, then with a busy process for each core; returns the rows of the table."""
    if find_spec("mpi4py") is None:
        print("mpi4py is not installed here: nothing to compare with")
        return []
    free = launched({"sizes": SIZES[:2] if quick else SIZES, "rounds": rounds, "gloo": find_spec("torch") is not None})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        loaded = launched({"sizes": LOADED[:1] if quick else LOADED, "rounds": rounds, "gloo": False})
    finally:
        for process in busy:
            process.kill()
            process.wait()
    rows = [_row(int(size), found, False) for size, found in free.items()]
    return rows + [_row(int(size), found, True) for size, found in loaded.items()]


def launched(settings: dict[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Start two processes that time all-reduce calls, and wait for them.

    Return four times of a call in seconds (minimum, lower quartile, median and mean), by size in bytes and by variant.
    ``settings`` is the argument of `rank` in these processes.
    """
    from flnb.distributed.launching import find_mpiexec

    with tempfile.TemporaryDirectory() as folder:
        given = json.dumps(settings | {"folder": folder})
        command = [*find_mpiexec(), "-n", "2", sys.executable, "-m", "benchmarks.distributed.crossing", given]
        subprocess.run(command, check=True, timeout=900)
        found: dict[str, dict[str, list[float]]] = json.loads(Path(folder, "found.json").read_text())
    return found


def _row(size: int, found: dict[str, list[float]], loaded: bool) -> dict[str, Any]:
    """Return the table's row for one size: four times of each variant, and whether the goal is met.

    The times are the minimum, lower quartile, median and mean of a call in microseconds. On a busy machine (``loaded``)
    the goal is about the mean: with more programs than cores, a call takes either its usual time or the time until the
    scheduler runs the process again, and the mean is the time per call of a loop.
    """
    us = {name: [1e6 * s for s in seconds] for name, seconds in found.items()}
    (raw, _, raw_median, raw_mean), (ours, _, our_median, our_mean) = us[RAW], us[OURS]
    ratio = our_median / raw_median
    if loaded:
        goal, met = "mean <= Allreduce's", our_mean <= raw_mean
    elif size == 4:
        goal, met = f"adds <= {ADDED} us", ours - raw <= ADDED
    else:
        goal, met = (f"median <= {RATIO}", ratio <= RATIO) if size >= LARGE else ("", True)
    return {
        "bytes": size, "machine": "busy" if loaded else "as it is",
        **{name: " / ".join(f"{v:.1f}" for v in us[name]) if name in us else "" for name in (RAW, TESTING, OURS, GLOO)},
        "adds, least": round(ours - raw, 1), "of Allreduce, median": round(ratio, 2),
        "mean": round(our_mean / raw_mean, 2),
        "goal": goal, "met": "yes" if met else "NO",
    }  # fmt: skip


def rank(settings: dict[str, Any]) -> None:
    """Time all variants in one of the two processes; rank 0 writes the result to a file."""
    from mpi4py import MPI

    import flnb
    from flnb import distributed
    from flnb.dispatch import communication

    distributed.init()
    world = MPI.COMM_WORLD.Dup()
    found = {}
    for size in settings["sizes"]:
        array = np.zeros(size // 4, np.float32)
        variants: dict[str, Callable[[], Any]] = {
            RAW: lambda array=array: world.Allreduce(MPI.IN_PLACE, array),
            TESTING: lambda array=array: _tested(world.Iallreduce(MPI.IN_PLACE, array).Test),
            OURS: lambda array=array: communication.run("all_reduce", array, "sum"),
        }
        if settings["gloo"]:
            variants[GLOO] = gloo(array, world.rank, settings["folder"])
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        calls = max(3, min(200, (1 << 21) // size))
        for _ in range(settings["rounds"]):
            for name, call in variants.items():
                world.Barrier()
                with flnb.record():
                    seconds[name] += timed(call, calls)
        found[size] = {
            name: [min(s), *np.percentile(s, [25, 50]).tolist(), float(np.mean(s))] for name, s in seconds.items()
        }
    if settings["gloo"]:
        import torch.distributed

        torch.distributed.destroy_process_group()  # its threads abort a process that ends with them
    if world.rank == 0:
        Path(settings["folder"], "found.json").write_text(json.dumps(found))


def timed(call: Callable[[], Any], times: int) -> list[float]:
    """Return the seconds of each of ``times`` calls."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def _tested(test: Callable[[], bool]) -> None:
    """Wait until ``test()`` returns True, in the same way as flnb waits for a call."""
    asked = 0
    while not test():
        asked += 1
        if asked > 300:
            os.sched_yield()


def gloo(array: Any, number: int, folder: str) -> Callable[[], Any]:
    """Return a function that all-reduces a copy of an array by torch's gloo backend.

    ``number`` is the rank of this process; the two processes meet through a file in ``folder``.
    """
    import torch
    import torch.distributed as group

    if not group.is_initialized():
        torch.set_num_threads(1)
        group.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=2)
    tensor = torch.from_numpy(array.copy())
    return lambda: group.all_reduce(tensor)


if __name__ == "__main__":
    rank(json.loads(sys.argv[1]))
