"""Times of compiled loop nests, beside torch's kernels, on the CPU: part of `python -m benchmarks kernels`.

A million elements of float32. Every contestant is a process of its own: flnb op by op and by `flnb.jit` on the backend
cpu, torch eager where it is installed (its Adam fused), and a loop in C for one of the cases. Their results are
compared before anything is timed; then they take turns in many short rounds, and ratios are taken round by round.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

import flnb
from benchmarks.models import TUNED
from flnb import nn, optim
from flnb.bench import Spread, Worker, in_turn, ratios
from flnb.bench.measure import threads

ROWS, COLUMNS = 1024, 1024
IMAGES = (16, 64, 32, 32)
"""The shape of the images in the case of batch norm, which have as many elements as the arrays of the other cases."""
DROPPED = 0.1
GOALS = {
    "gelu": 0.6, "bias + residual, relu": 0.45, "layer norm": 0.85, "softmax": 0.85,
    "batch norm + relu, both ways": 0.35, "dropout": 0.35, "Adam": 0.75, "a + b * c": 1.1,
}  # fmt: skip
"""Goals: the largest ratio of the time of `flnb.jit` to torch's or, for a + b * c, to that of the loop in C."""
SETTINGS = {"torch, malloc tuned": TUNED, "C": TUNED}
"""Environment variables of contestants: without these, each result's memory is taken from the system anew."""
BASELINES = ("torch", "torch, malloc tuned", "C")
C_LOOP, TORCH = "C", "benchmarks.peers.torch_nests:TorchKernels"
CODE = """
void run(const float *restrict a, const float *restrict b, const float *restrict c, float *restrict y, long n) {
    for (long i = 0; i < n; i++) y[i] = a[i] + b[i] * c[i];
}
"""


def arrays() -> list[np.ndarray[Any, Any]]:
    """Return three arrays of normally distributed numbers, the same for each contestant."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((ROWS, COLUMNS), dtype=np.float32) for _ in range(3)]


class Kernels:
    """Base class of the contestants, which run in processes of their own.

    The constructor of a derived class sets ``cases``: for the name of each case a function without arguments, which
    computes the case and returns the results.
    """

    cases: Mapping[str, Callable[[], Any]]

    def names(self) -> list[str]:
        """Return the names of the cases."""
        return list(self.cases)

    def results(self, case: str) -> list[Any]:
        """Return the results of a case, as arrays, after it has run often enough to be compiled."""
        for _ in range(3):
            made = self.cases[case]()
        return [np.array(x) for x in (made if isinstance(made, (list, tuple)) else [made])]

    def run(self, case: str, calls: int) -> dict[str, float]:
        """Run a case ``calls`` times; returns the elapsed ("wall") and the "processor" seconds per run."""
        call = self.cases[case]
        wall, processor = perf_counter(), process_time()
        for _ in range(calls):
            call()
        return {"wall": (perf_counter() - wall) / calls, "processor": (process_time() - processor) / calls}


class FlnbKernels(Kernels):
    """flnb on the backend "cpu": with `flnb.jit` if ``jit`` is True, otherwise op by op."""

    def __init__(self, jit: bool) -> None:
        flnb.set_backend("cpu")
        x, y, z = map(flnb.asarray, arrays())
        bias = y[0] + 0.0
        images, gradient = (flnb.asarray(t.numpy().reshape(IMAGES)) for t in (x, y))
        batch_norm, dropout = nn.BatchNorm(IMAGES[1]), nn.Dropout(DROPPED)
        scale, shift = batch_norm.weight, batch_norm.bias
        parameter = nn.Parameter(z + 0.0)
        optimizer = optim.Adam([parameter], lr=1e-3)

        v = flnb.Variable(images)

        def normalised() -> list[Any]:
            v.grad = scale.grad = shift.grad = None
            made = flnb.relu(batch_norm(v))
            made.backward(gradient)
            return [made.detach(), v.grad, scale.grad, shift.grad]

        wrap: Any = flnb.jit if jit else lambda function: function
        gelu, relu, norm, softmax, drop, product = (
            wrap(f)
            for f in (
                flnb.gelu, lambda a, b, c: flnb.relu(a + b + c),
                lambda a, b, c: flnb.layer_norm(a, COLUMNS, b, c), flnb.softmax, dropout, lambda a, b, c: a + b * c,
            )
        )  # fmt: skip
        both, step = wrap(normalised), wrap(optimizer.step)
        parameter.grad = x + 0.0
        self.cases = {
            "gelu": lambda: gelu(x),
            "bias + residual, relu": lambda: relu(x, bias, z),
            "layer norm": lambda: norm(x, bias, bias),
            "softmax": lambda: softmax(x),
            "batch norm + relu, both ways": both,
            "dropout": lambda: drop(x),
            "Adam": lambda: (step(), parameter.data)[1],  # as a result of `step`, it would be copied
            "a + b * c": lambda: product(x, y, z),
        }


class CKernels(Kernels):
    """A loop in C for the case "a + b * c", compiled with -O3 for this processor."""

    def __init__(self, compiler: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "loop.so")
            command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
            subprocess.run(command, input=CODE, text=True, check=True)
            run = ctypes.CDLL(str(path)).run
        a, b, c = arrays()
        given = [ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)]

        def product() -> Any:
            made = np.empty_like(a)  # as every other contestant, in new memory
            run(*given, ctypes.c_void_p(made.ctypes.data), ctypes.c_long(made.size))
            return made

        self._held, self.cases = (a, b, c), {"a + b * c": product}


def contestants() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the contestants that this machine can run: by name, the class (as text) and the class's arguments."""
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "flnb, jit": (f"{__name__}:FlnbKernels", {"jit": True}), "flnb": (f"{__name__}:FlnbKernels", {"jit": False}),
    }  # fmt: skip
    if find_spec("torch"):
        found["torch"] = found["torch, malloc tuned"] = TORCH, {}
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if compiler:
        found[C_LOOP] = f"{__name__}:CKernels", {"compiler": compiler}
    return found


def measured(rounds: int, seconds: float, clock: str) -> tuple[list[dict[str, Any]], str]:
    """Compare the results of all contestants, then time them in turn.

    Args:
        rounds: the number of turns of each contestant.
        seconds: the approximate duration of a turn.
        clock: "wall" for elapsed time, or "processor".

    Returns:
        A row for each case and contestant, and a description of the backend's libraries.
    """
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(name, target, arguments, threads(1) | SETTINGS.get(name, {})))
            for name, (target, arguments) in contestants().items()
        }
        has = {name: worker.call("names") for name, worker in workers.items()}
        for case in has["flnb, jit"]:
            who = [name for name in workers if case in has[name]]
            results = {name: workers[name].call("results", case=case) for name in who}
            off = {name: apart(case, results["flnb"], found) for name, found in results.items()}
            calls = {n: max(1, round(seconds / workers[n].call("run", case=case, calls=2)["wall"])) for n in who}

            def turn(name: str, case: str = case, calls: Mapping[str, int] = calls) -> float:
                return float(workers[name].call("run", case=case, calls=calls[name])[clock])

            times = dict(zip(who, in_turn(who, turn, rounds), strict=True))
            rows += [{"case": case, "contestant": n, "seconds": times[n], "off flnb by": off[n]} for n in who]
    with flnb.use_backend("cpu:threads=1") as backend:
        return rows, backend.libraries()


def apart(case: str, expected: list[Any], found: list[Any]) -> float:
    """Return the largest difference between elements of two contestants' results, divided by the largest element.

    For dropout, return the largest difference between the share of zeros and the requested share.

    Raises:
        ValueError: the difference is more than rounding explains.
    """
    if case == "dropout":
        off = max(abs((x == 0).mean() - DROPPED) for x in found)
    else:
        largest = [max(1.0, float(np.abs(x).max())) for x in expected]
        off = max(
            float(np.abs(a - b.reshape(a.shape)).max()) / m for a, b, m in zip(expected, found, largest, strict=True)
        )
    if not off < 2e-3:
        raise ValueError(f"{case}: a contestant's results are off by {off:.2g}")
    return off


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row of the printed table for each case and contestant, given the rows that `measured` returns."""
    times = {(row["case"], row["contestant"]): row["seconds"] for row in rows}
    lines = []
    for (case, who), seconds in times.items():
        line = {"kernel": case, "by": who, "ms": f"{1e3 * Spread.of(seconds).median:.3f}"}
        for base in BASELINES:
            spread = ratios(seconds, times[case, base]) if (case, base) in times else None
            line[f"over {base}"] = f"{spread.median:.2f} ({spread.least:.2f} .. {spread.most:.2f})" if spread else ""
        line["goal"] = GOALS[case] if who == "flnb, jit" else ""
        lines.append(line)
    return lines
