"""Per-op overhead: a chain of tiny ops, flnb beside torch eager, telemetry off, on, and with a live dashboard.

One run, variants interleaved, medians and quartiles of the ratios of rounds: machines are noisy and only ratios carry
over. `python -m benchmarks overhead`; torch is optional and never in the project's lock file.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import flnb
from benchmarks.report import table, write

if TYPE_CHECKING:
    from collections.abc import Callable

GOALS = {
    "flnb / torch": 0.75,
    "dashboard / off": 1.5,
}
EVENT = 0.5
"""Goal: the most microseconds that a recording adds per event of the chain."""
PROFILER = 0.2
"""Goal: the largest ratio of the time that a recording to disk adds to an op, to the time that torch's profiler of ops
and memory adds to the same op in torch."""


def chain(ops: int, leaf: Callable[[], Any], tanh: Callable[[Any], Any], cotangent: Any) -> Callable[[], float]:
    """Return a function that runs a chain of ``ops`` ops forward and backward, and returns the seconds that this took.

    Arrays are float32 of shape (8, 8); the gradients of four leaves are computed.

    Args:
        ops: the number of ops.
        leaf: returns a new leaf of the framework to measure.
        tanh: the framework's function.
        cotangent: the gradient of the chain's result.
    """

    def run() -> float:
        x, a, b, c = (leaf() for _ in range(4))
        start = time.perf_counter()
        y = x
        for _ in range(ops // 4):
            y = y * a
            y = y + b
            y = tanh(y)
            y = y * c
        y.backward(cotangent)
        elapsed = time.perf_counter() - start
        assert all(v.grad is not None for v in (x, a, b, c))
        return elapsed

    return run


def flnb_chain(ops: int) -> Callable[[], float]:
    """Return a function that times the chain in flnb."""
    one = np.ones((8, 8), np.float32)
    return chain(ops, lambda: flnb.Variable(one), flnb.tanh, flnb.asarray(one))


def torch_chain(ops: int) -> Callable[[], float]:
    """Return a function that times the chain in torch, on one thread."""
    import torch

    torch.set_num_threads(1)
    return chain(ops, lambda: torch.ones(8, 8, requires_grad=True), torch.tanh, torch.ones(8, 8))


def recorded(run: Callable[[], Any], rest: list[float] | None = None, disk: bool = False) -> Callable[[], Any]:
    """Return a function that calls ``run`` while a recording is active; with ``disk``, the events are written to disk.

    After each call, the function appends to the list ``rest`` the processor time, in seconds, of the recording's other
    threads: those that empty the buffers of events and write the events to disk, mostly when the recording ends.
    """
    from flnb_telemetry import pump

    def under() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            with flnb.record(path=Path(folder) / "run.flnb" if disk else None):
                session = pump.session
                result = run()
                begun = time.process_time() - (session.pump_ns / 1e9 if session else 0.0)
            if rest is not None:
                rest.append(time.process_time() - begun)
        return result

    return under


def profiled(run: Callable[[], float]) -> Callable[[], float]:
    """Return a function that calls ``run`` under torch's profiler of ops and memory."""
    import torch

    def under() -> float:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True):
            return run()

    return under


def watched(run: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that calls ``run`` while a recording is shown by a live dashboard.

    The browser is simulated: it acknowledges every message at once.
    """
    from flnb.telemetry import Live, attach, detach
    from flnb.widgets.hub import Hub

    def under() -> Any:
        live = Live()
        hub = Hub(live, lambda content, _: hub.receive({"type": "ack", "seq": content["seq"], "tab": "overview"}))
        attach(live)
        hub.start()
        try:
            with flnb.record():
                return run()
        finally:
            hub.stop()
            detach(live)

    return under


def measure(variants: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call every variant once in each of ``rounds`` rounds, after a round that is not counted.

    Return, for each variant, the list of the seconds that its calls returned.
    """
    for run in variants.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for i in range(rounds):
        names = list(variants)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            gc.collect()
            seconds[name].append(variants[name]())
    return seconds


def measure_between(
    off: Callable[[], list[float]], variants: dict[str, Callable[[], list[float]]], rounds: int
) -> dict[str, Any]:
    """Call every variant once in each of ``rounds`` rounds, and ``off`` before and after each of these calls.

    Return, for each variant, the list of the results of its calls, and under the key ``off`` before its name the list
    of pairs of results of ``off``. So a machine whose speed changes from second to second changes few ratios.
    """
    results: dict[str, Any] = {key: [] for name in variants for key in (name, f"off {name}")}
    for run in variants.values():
        run()
    before = off()
    for _ in range(rounds):
        for name, run in variants.items():
            gc.collect()
            results[name].append(run())
            gc.collect()
            after = off()
            results[f"off {name}"].append((before, after))
            before = after
    return results


def undisturbed(seconds: list[float]) -> float:
    """Return the lower quartile of several times of the same work: other programs only make some of them longer."""
    return sorted(seconds)[len(seconds) // 4]


def ratios(seconds: dict[str, list[float]], over: str, under: str) -> tuple[float, float, float]:
    """Return the median, the lower and the upper quartile of the ratios of two variants' seconds in the same round.

    ``over`` is the name of the numerator's variant, ``under`` that of the denominator's.
    """
    values = sorted(a / b for a, b in zip(seconds[over], seconds[under], strict=True))
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, low, high


def training_steps(times: int) -> Callable[[], list[float]]:
    """Return a function that runs 10 × ``times`` training steps of the quickstart's network on 128 digits each.

    The function returns the seconds of every ten steps.
    """
    from benchmarks.digits import build
    from flnb import nn
    from flnb.data import digits
    from flnb.optim import Adam

    train, _ = digits()
    net, loss_of = build(), nn.CrossEntropyLoss()
    optimizer = Adam(net.parameters(), lr=1e-3)
    batches = [train.take(np.arange(128 * i, 128 * i + 128)) for i in range(10)]

    def run() -> list[float]:
        seconds = []
        for _ in range(times):
            start = time.perf_counter()
            for images, labels in batches:
                optimizer.zero_grad()
                loss_of(net(images), labels).backward()
                optimizer.step()
            seconds.append(time.perf_counter() - start)
        return seconds

    return run


def main(argv: list[str]) -> int:
    """Run the benchmark with the options ``argv``, and print and store the results; returns the exit status, 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks overhead")
    parser.add_argument("--ops", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=180, help="training steps of the quickstart in a round, in tens")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    options = parser.parse_args(argv)
    if options.quick:
        options.ops, options.steps, options.rounds = 2_000, 10, 3
    rows: list[dict[str, Any]] = []
    for tuned in (False, True):
        with flnb.tune_gc() if tuned else nullcontext():
            rows += chain_rows(options.ops, options.rounds, "tune_gc" if tuned else "default gc")
            rows += step_rows(options.steps, options.rounds, "tune_gc" if tuned else "default gc")
    print(table(rows))
    write("overhead", rows, vars(options))
    return 0


def chain_rows(ops: int, rounds: int, collector: str) -> list[dict[str, Any]]:
    """Measure a chain of ops without recording, with each kind of recording, and in torch; returns rows of the table.

    ``collector`` is the name of the garbage collector's setting in the rows.
    """
    off = flnb_chain(ops)
    variants = {"off": off, "recorder": recorded(off), "disk": recorded(off, disk=True), "dashboard": watched(off)}
    try:
        variants["torch"] = torch_chain(ops)
        variants["profiler"] = profiled(variants["torch"])
    except ImportError:
        print("torch is not installed here: its column is left out")
    seconds = measure(variants, 3 * rounds)
    pairs = [(f"{name} / off", name, "off") for name in ("recorder", "disk", "dashboard")]
    if "torch" in variants:
        pairs[:0] = [("flnb / torch", "off", "torch"), ("profiler / torch", "profiler", "torch")]
    case = f"chain of {ops} ops"
    rows = {name: _row(case, collector, name, seconds, a, b, GOALS.get(name, 0.0)) for name, a, b in pairs}
    with flnb.record() as run:
        off()
    lower = {name: undisturbed(values) for name, values in seconds.items()}
    added = 1e6 * (lower["recorder"] - lower["off"]) / run.events
    goal = {"goal": f"<= {EVENT} us an event: {added:.2f}", "met": "yes" if added <= EVENT else "NO"}
    rows["recorder / off"] |= goal
    if "torch" in variants:
        during = (lower["disk"] - lower["off"]) / (lower["profiler"] - lower["torch"])
        ends = {name: _until_its_end(variants[name], rounds) for name in ("disk", "profiler")}
        whole = (ends["disk"] - lower["off"]) / (ends["profiler"] - lower["torch"])
        shares = f"{during:.3f}, {whole:.3f} with its end"
        goal = {"goal": f"<= {PROFILER} of what torch's profiler adds: {shares}"}
        rows["disk / off"] |= goal | {"met": "yes" if during <= PROFILER else "NO"}
    return list(rows.values())


def step_rows(steps: int, rounds: int, collector: str) -> list[dict[str, Any]]:
    """Measure a training step of the quickstart, without recording and with each kind of recording; returns rows.

    A round takes a second: so long that the first frame of a dashboard counts as little as in a long run, and so short
    that changes of the machine's speed meet a variant and its neighbours alike. With a dashboard, the mean of a round
    counts, as frames interrupt the program all the time. Without, the lower quartile of the times of ten steps counts.
    This leaves out what happens rarely: gradient norms, which a recording samples twice a second, and the work of other
    threads, whose processor time has rows of its own ("rest of").
    """
    off = training_steps(steps // 10)
    rest: dict[str, list[float]] = {"recorder": [], "disk": []}
    kinds = {name: recorded(off, rest[name], disk=name == "disk") for name in rest}
    found = measure_between(off, kinds | {"dashboard": watched(off)}, 5 * rounds)
    rows = []
    for name, summary, goal in (
        ("recorder", undisturbed, 1.05), ("disk", undisturbed, 1.05), ("dashboard", statistics.fmean, 1.15)
    ):  # fmt: skip
        without = [(summary(before) + summary(after)) / 2 for before, after in found[f"off {name}"]]
        seconds = {name: list(map(summary, found[name])), "off": without}
        rows.append(_row("training step", collector, f"{name} / off", seconds, name, "off", goal))
        if name in rest:
            seconds["rest"] = [10 * each / steps for each in rest[name][1:]]  # the first round is not counted
            rows.append(_row("training step", collector, f"rest of {name} / off", seconds, "rest", "off", 0.0))
    return rows


def _until_its_end(run: Callable[[], float], rounds: int) -> float:
    """Return the lower quartile of the elapsed seconds of ``run``, including work after its ops, such as writing."""
    times = []
    for _ in range(rounds):
        gc.collect()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return undisturbed(times)


def _row(
    case: str, collector: str, name: str, seconds: dict[str, list[float]], over: str, under: str, goal: float
) -> dict[str, Any]:
    """Return a row of the table: the ratio of two variants' seconds, and whether the ratio meets the goal.

    Args:
        case, collector: the program, and the setting of the garbage collector, as texts.
        name: the ratio's name.
        seconds: the seconds of each variant in each round.
        over, under: the names of the numerator's and of the denominator's variant.
        goal: the largest ratio that meets the goal; 0 if there is no goal.
    """
    median, low, high = ratios(seconds, over, under)
    return {
        "case": case,
        "collector": collector,
        "ratio": name,
        "median": round(median, 3),
        "quartiles": f"{low:.3f} .. {high:.3f}",
        "goal": f"<= {goal}" if goal else "",
        "met": "" if not goal else "yes" if median <= goal else "NO",
        "milliseconds": f"{1e3 * statistics.median(seconds[over]):.1f} / {1e3 * statistics.median(seconds[under]):.1f}",
    }
