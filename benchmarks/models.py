"""Training steps of whole models, flnb beside torch: `python -m benchmarks models [MODEL...] --size small`.

Every contestant is a process of its own: flnb on each of its backends; torch eager, with malloc's default settings and
with settings by which glibc keeps freed memory (`TUNED`); with ``--peers`` also torch with channels last, compiled, and
JAX's jit. All begin with flnb's initial weights, see the same batch, and must agree on loss and gradients, dropout off,
before anything is timed; a peer that fails or does not agree is left out. Then they take turns in many short rounds,
after a warm-up; ratios are taken round by round. These times do not include the loading of data, which ``--data``
measures separately (`benchmarks.loading`). If torch is not installed, flnb is measured alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from benchmarks import loading
from benchmarks.peers.agreement import disagreement
from benchmarks.report import page, table, write
from flnb import models
from flnb.bench import Spread, Worker, WorkerError, ratios
from flnb.bench.command import TABLE3, TRAINING, costliest
from flnb.bench.measure import Measured, measure, threads

TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34), "MALLOC_TOP_PAD_": str(2**26)}
"""Environment variables with which glibc's malloc maps no block separately, returns no memory to the system, and
requests 64 MiB at a time."""

QUICK = ("mlp", "lenet", "resnet18")
TORCH, JAX = "benchmarks.peers.torch_training:TorchTraining", "benchmarks.peers.jax_training:JaxTraining"
BASELINES = {"torch": "over torch", "torch, malloc tuned": "over tuned"}
BEST = "over the best torch"


@dataclass(frozen=True)
class Entry:
    """A contestant: its name, and the class and arguments of the object that its process creates.

    An optional contestant that fails is left out of the table.
    """

    name: str
    target: str
    arguments: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    optional: bool = False


def entries(name: str, options: argparse.Namespace, weights: str) -> list[Entry]:
    """Return the contestants for a model; the first, flnb, writes its initial weights to the file ``weights``."""
    given = {"model": name, "scale": options.size, "weights": weights}
    found = [
        Entry(f"flnb {backend}", TRAINING, {**given, "backend": backend}) for backend in options.backend or ["numpy"]
    ]
    if find_spec("torch"):
        found += [Entry("torch", TORCH, given), Entry("torch, malloc tuned", TORCH, given, TUNED)]
        if options.peers:
            images = models.get(name).batch(options.size, size=1)[0].ndim == 4
            variants = ["channels_last"] * images + ["compile"]
            found += [Entry(f"torch {kind}", TORCH, {**given, "variant": kind}, optional=True) for kind in variants]
            if images:
                both = {**given, "variant": "channels_last"}
                found.append(Entry("torch channels_last, malloc tuned", TORCH, both, TUNED, optional=True))
    if options.peers and find_spec("jax"):
        found.append(Entry("jax jit", JAX, given, optional=True))
    return found


def compared(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare the results of all contestants for a model, then time them; returns a row for each contestant."""
    workers: dict[str, Worker] = {}
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        reference = None
        for entry in entries(name, options, f"{folder}/weights.npz"):
            try:
                environment = {**threads(options.threads), **entry.environment}
                worker = stack.enter_context(Worker(entry.name, entry.target, entry.arguments, environment))
                memory, path = worker.call("memory"), f"{folder}/{entry.name}.npz"
                result = worker.call("check", path=path), path
                off = disagreement(f"{name} in {entry.name}", reference or result, result)
            except (WorkerError, ValueError) as error:
                if not entry.optional:
                    raise
                print(f"{name}: left out {error}", file=sys.stderr)
                continue
            reference = reference or result
            workers[entry.name] = worker
            rows[entry.name] = {"model": name, "framework": entry.name, "off flnb by": off, "memory": memory}
        measured = measure(list(workers.values()), options.rounds, options.seconds, options.clock)
        shares = {who: costliest(worker) if who.startswith("flnb") else "" for who, worker in workers.items()}
    found = dict(zip(workers, measured, strict=True))
    return [
        line | {"measured": found[who]._asdict(), **over(found, who), "most time in": shares[who]}
        for who, line in rows.items()
    ]


def over(found: dict[str, Measured], who: str) -> dict[str, str]:
    """Return the columns of the table that compare the times of the contestant ``who`` with torch's.

    The best torch is the configuration with the least median.
    """
    configurations = [name for name in found if name.startswith("torch")]
    best = min(configurations, key=lambda name: Spread.of(found[name].trained).median, default="torch")
    line = {}
    for baseline, title in [*BASELINES.items(), (best, BEST)]:
        spread = ratios(found[who].trained, found[baseline].trained) if baseline in found else None
        line[title] = "" if spread is None else f"{spread.median:.2f}"
        line[f"{title}: least .. most"] = "" if spread is None else f"{spread.least:.2f} .. {spread.most:.2f}"
    return line


def shown(line: dict[str, Any]) -> dict[str, Any]:
    """Convert the row of a contestant, as `compared` returns it, to the columns of the printed table."""
    line = dict(line)
    measured, memory = Measured(**line.pop("measured")), line.pop("memory")
    head = {title: line.pop(title) for title in ("model", "framework")}
    return {**head, **measured.columns(memory), **line}


def bars(rows: list[dict[str, Any]]) -> Any:
    """Return a plotly figure of the seconds per 100 iterations by model and framework, with minimum and maximum."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for who in dict.fromkeys(line["framework"] for line in rows):
        lines = [line for line in rows if line["framework"] == who]
        spreads = [Spread.of(100.0 * second for second in line["measured"]["trained"]) for line in lines]
        figure.add_bar(
            name=who,
            x=[line["model"] for line in lines],
            y=[spread.median for spread in spreads],
            error_y={
                "array": [spread.most - spread.median for spread in spreads],
                "arrayminus": [spread.median - spread.least for spread in spreads],
            },
            customdata=[line["over torch"] for line in lines],
            hovertemplate="%{y:.3g} s, %{customdata} x torch",
        )
    figure.update_layout(barmode="group", yaxis_title="seconds per 100 iterations (median, least, most)")
    return figure.update_yaxes(type="log")


def main(argv: list[str]) -> int:
    """Run the benchmark with the options ``argv``, and print and store the results; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks models")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of flnb.models (default: the six of table 3)")
    parser.add_argument("--size", default="small", choices=("small", "paper"))
    parser.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="NAME",
        help="of flnb: cpu, deferred, ..., or NAME+jit (default: numpy)",
    )
    parser.add_argument("--rounds", type=int, default=9, help="how often each takes its turn")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long a turn takes, about")
    parser.add_argument("--threads", type=int, default=1, help="of each contestant")
    parser.add_argument("--clock", default="wall", choices=("wall", "processor"), help="processor: on a busy machine")
    parser.add_argument(
        "--peers", action="store_true", help="also torch with channels last and compiled, and JAX's jit"
    )
    parser.add_argument("--data", action="store_true", help="also records per second from disk (benchmarks loading)")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds, options.seconds = 2, 0.1
    names = options.models or (QUICK if options.quick else TABLE3)
    for name in names:
        models.get(name)  # an unknown one is an error before anything was measured
    if not find_spec("torch"):
        print("torch is not installed here: flnb is measured alone")
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for name in names:
        rows += compared(name, options)
        print(f"{name}: measured after {time.perf_counter() - began:.0f} s", file=sys.stderr)
    print(table([shown(line) for line in rows]))
    busy = Spread.of(line["measured"]["busy"] / options.threads for line in rows)
    had = f"{busy.median:.0%} ({busy.least:.0%} to {busy.most:.0%})"
    print(f"threads of each: {options.threads}; share of the time in which they had a processor: {had}")
    print(f"kept in {write('models', rows, vars(options))}")
    if find_spec("plotly"):
        print(f"drawn in {page('models', bars(rows), vars(options))}")
    return loading.main(["--quick"] * options.quick) if options.data else 0
