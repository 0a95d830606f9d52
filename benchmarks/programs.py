"""The costs of programs (captured functions) besides their time: `python -m benchmarks programs [MODEL...]`.

For each model under `flnb.jit`, in separate processes: the first step with an empty cache of machine code and with a
filled one, page faults of later steps, the time that a recording adds to a step, and the memory that a program
predicts, compared with the memory that a recording measures. Then, for a chain of ops on arrays of shape (8, 8): the
time of one op in a program and in torch eager, without gradients and with the gradients of four leaves (the chain of
`benchmarks overhead`); and the time to record an op on the backend "deferred", and to record and compute the op,
compared with computing it on "numpy". In each turn a chain is run once without being timed, so that caches are warm,
and then `REPEATS` times. A call of a program is timed until it returns, including the check of its arguments.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

import flnb
from benchmarks.report import table, write
from flnb.bench import Worker
from flnb.bench.command import TABLE3
from flnb.bench.measure import threads
from flnb.bench.training import Training

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GOALS = {"cold": 6.0, "warm": 1.5, "faults": 50.0, "recording": 1.03, "predicted": 0.02}
CHAIN_GOALS = {
    "jit / torch": 0.10,
    "jit, gradients / torch, gradients": 0.10,
    "recording / numpy": 0.85,
    "deferred / numpy": 1.0,
}
REPEATS = 20
"""How often a chain runs in each turn."""
SETTLING = 6
"""The number of steps after which a program no longer changes its plan of memory or its ways to compute."""
STEPS = 10
"""The number of steps in each measurement."""


class Steps(Training):
    """A model whose training steps run under `flnb.jit`; the methods measure such steps."""

    def first(self) -> float:
        """Run the first step, which captures, plans and compiles; returns its processor time in seconds."""
        return self._steps(1)

    def _steps(self, count: int = STEPS) -> float:
        """Run ``count`` steps; returns their processor time in seconds."""
        start = time.process_time()
        for _ in range(count):
            self.iteration(update=True)
        return time.process_time() - start

    def faults(self) -> float:
        """Return the minor page faults (those without a disk read) per step, after the first `SETTLING` steps."""
        self._steps(SETTLING)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self._steps()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / STEPS

    def recording(self, rounds: int) -> float:
        """Return the processor time of recorded steps divided by that of other steps, as the median over the rounds."""
        found = []
        for _ in range(rounds):
            plain = self._steps()
            with flnb.record():
                self.iteration(update=True)  # the first one names its contexts
                found.append(self._steps() / plain)
        return statistics.median(found)

    def predicted(self) -> float:
        """Return the predicted peak memory of a step divided by the measured one.

        Memory that is in use before the step is subtracted from the measured peak. Outputs that are too small for a
        block of the manager, whose memory it cannot measure, are added.
        """
        (program,) = self.iterations[True].programs
        for parameter in self.model.parameters():
            parameter.grad = None
        held = program.memory.size + program.scratch_bytes * len(program.sites)
        before = flnb.memory.stats()["allocated"] - held  # gradients are free by now
        with flnb.record() as run:
            self.iteration(update=True)
        small = sum(x.spec.nbytes for x in program.fresh if x.spec.nbytes < program.here.min_block)
        return float(program.peak / (run.memory.peak.allocated - before + small))


def model_row(name: str, rounds: int) -> dict[str, Any]:
    """Measure a model; returns a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"model": name, "scale": "small", "backend": "cpu+jit", "weights": f"{folder}/weights.npz"}
        environment = {**threads(1), "FLNB_CACHE": folder}
        with Worker(f"{name}, cold", "benchmarks.programs:Steps", given, environment) as worker:
            cold = worker.call("first")
        with Worker(f"{name}, warm", "benchmarks.programs:Steps", given, environment) as worker:
            warm, faults = worker.call("first"), worker.call("faults")
            recording, predicted = worker.call("recording", rounds=rounds), worker.call("predicted")
    missed = [
        *[key for key, value in (("cold", cold), ("warm", warm), ("faults", faults)) if value > GOALS[key]],
        *["recording"] * (name == "bert" and recording > GOALS["recording"]),
        *["predicted"] * (abs(predicted - 1.0) > GOALS["predicted"]),
    ]
    return {
        "model": name, "first step, empty cache, CPU s": f"{cold:.2f}", "filled, CPU s": f"{warm:.2f}",
        "page faults a step": f"{faults:.0f}", "recorded / not": f"{recording:.3f}",
        "predicted / measured peak": f"{predicted:.3f}", "goals missed": ", ".join(missed),
    }  # fmt: skip


def chain(ops: int, tanh: Callable[[Any], Any], *leaves: Any) -> Any:
    """Compute a chain of ``ops`` ops on four arrays of shape (8, 8), and return the result."""
    y, a, b, c = leaves
    for _ in range(ops // 4):
        y = tanh(y * a + b) * c
    return y


def gradients(ops: int, tanh: Callable[[Any], Any], leaves: Sequence[Any], cotangent: Any) -> None:
    """Compute a chain of ``ops`` ops on four leaves of shape (8, 8), and the leaves' gradients."""
    for leaf in leaves:
        leaf.grad = None
    chain(ops, tanh, *leaves).backward(cotangent)


def per_op(run: Callable[[], object], ops: int) -> float:
    """Return the processor time of ``run`` divided by the number ``ops`` of its ops, in microseconds."""
    run()
    start = time.process_time()
    for _ in range(REPEATS):
        run()
    return 1e6 * (time.process_time() - start) / (REPEATS * ops)


def chains(ops: int) -> dict[str, Callable[[], float]]:
    """Return, for each way to run the chain, a function that measures the processor time of an op in microseconds.

    The way "recording" records the ops on the backend "deferred", and does not count the time to compute them.
    """
    one = np.ones((8, 8), np.float32)
    backends: dict[str, Any] = {}
    tensors: dict[str, list[Any]] = {}
    for name in ("numpy", "cpu", "deferred"):
        with flnb.use_backend(name) as backends[name]:  # a program belongs to one object
            tensors[name] = [flnb.asarray(one) for _ in range(4)]
    with flnb.use_backend(backends["cpu"]):
        variables = [flnb.Variable(one) for _ in range(4)]
    captured = flnb.jit(lambda *leaves: chain(ops, flnb.tanh, *leaves))
    differentiated = flnb.jit(lambda cotangent: gradients(ops, flnb.tanh, variables, cotangent))

    def measured(name: str, run: Callable[[], object]) -> Callable[[], float]:
        def found() -> float:
            with flnb.use_backend(backends[name]):
                return per_op(run, ops)

        return found

    def recorded() -> float:
        seconds = 0.0
        with flnb.use_backend(backends["deferred"]) as backend:
            for i in range(1 + REPEATS):
                start = time.process_time()
                y = chain(ops, flnb.tanh, *tensors["deferred"])
                seconds += time.process_time() - start if i else 0.0
                backend.eval(y._data)  # as at the end of a step
        return 1e6 * seconds / (REPEATS * ops)

    def deferred() -> None:
        y = chain(ops, flnb.tanh, *tensors["deferred"])
        backends["deferred"].eval(y._data)

    found = {
        "numpy": measured("numpy", lambda: chain(ops, flnb.tanh, *tensors["numpy"])),
        "jit": measured("cpu", lambda: captured(*tensors["cpu"])),
        "jit, gradients": measured("cpu", lambda: differentiated(tensors["cpu"][0])),
        "recording": recorded,
        "deferred": measured("deferred", deferred),
    }
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        leaves = [torch.ones(8, 8) for _ in range(4)]
        learnt = [torch.ones(8, 8, requires_grad=True) for _ in range(4)]
        found["torch"] = lambda: per_op(lambda: chain(ops, torch.tanh, *leaves), ops)
        found["torch, gradients"] = lambda: per_op(lambda: gradients(ops, torch.tanh, learnt, leaves[0]), ops)
    return found


def chain_rows(ops: int, rounds: int) -> list[dict[str, Any]]:
    """Measure the chain in each of its ways, in turn; returns a row of the table for each ratio of two ways."""
    ways = chains(ops)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for i in range(SETTLING + rounds):
        for name, run in ways.items():
            found = run()
            if i >= SETTLING:
                times[name].append(found)
    typical = {name: statistics.median(values) for name, values in times.items()}
    rows = []
    for ratio, goal in CHAIN_GOALS.items():
        over, under = ratio.split(" / ")
        if under in typical:
            value = statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))
            which = {
                "ratio": ratio,
                "median": f"{value:.3f}",
                "goal": f"<= {goal}",
                "met": "yes" if value <= goal else "NO",
            }
            rows.append(which | {"us an op": f"{typical[over]:.2f} / {typical[under]:.2f}"})
    return rows


def main(argv: list[str]) -> int:
    """Run the benchmark with the options ``argv``, and print and store the results; returns the exit status, 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks programs")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of flnb.models (default: the six of table 3)")
    parser.add_argument("--rounds", type=int, default=9, help="how often each takes its turn")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    options = parser.parse_args(argv)
    if find_spec("cffi") is None or find_spec("llvmlite") is None:
        print("the extra cpu is not installed here: no programs to measure")
        return 0
    rounds = 1 if options.quick else options.rounds
    rows = [model_row(name, rounds) for name in options.models or (("mlp",) if options.quick else TABLE3)]
    chained = chain_rows(40 if options.quick else 400, rounds)
    print(table(rows))
    print(table(chained))
    print(f"kept in {write('programs', {'models': rows, 'chain': chained}, vars(options))}")
    return 0
