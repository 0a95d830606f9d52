"""The quickstart's CNN on scikit-learn's digits: accuracy over seeds, and training time against torch in the same run.

    python -m benchmarks digits            five seeds; torch is compared where it is installed
    python -m benchmarks digits --smoke    one short run, to see that it works

Both frameworks start each seed from the same weights and see the same batches in the same order; their runs alternate
so that a busy machine slows both. Exit status 1: an accuracy or the time ratio missed its aim.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import flnb
import flnb.nn as nn
from flnb.data import digits
from flnb.optim import Adam

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MEAN_AIM, LOWEST_AIM, RATIO_AIM = 0.98, 0.97, 5.0
Batches = list[list[np.ndarray[Any, Any]]]


def build() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10),
    )  # fmt: skip


def schedule(lr: float, steps: int) -> Callable[[int], float]:
    """Half a cosine from `lr` to 0."""
    return lambda step: lr * (1.0 + math.cos(math.pi * step / steps)) / 2.0


def orders(samples: int, batch: int, epochs: int, seed: int) -> Batches:
    """The sample numbers of every batch of every epoch; the smaller rest is left out."""
    rng = np.random.default_rng(seed)
    return [np.split(rng.permutation(samples)[: samples // batch * batch], samples // batch) for _ in range(epochs)]


def train_flnb(net: nn.Sequential, seed: int, batches: Batches, lr: float) -> tuple[float, float]:
    """(seconds of training, test accuracy)."""
    flnb.manual_seed(seed)
    train, test = digits()
    loss_of, optimizer = nn.CrossEntropyLoss(), Adam(net.parameters(), lr=lr)
    rate = schedule(lr, sum(map(len, batches)))
    start = time.perf_counter()
    for epoch in batches:
        for indices in epoch:
            x, y = train.take(indices)
            optimizer.lr = rate(optimizer.steps)
            optimizer.zero_grad()
            loss_of(net(x), y).backward()
            optimizer.step()
    seconds = time.perf_counter() - start
    x, y = test.tensors
    with flnb.no_grad():
        predicted = net.eval()(x).numpy().argmax(1)
    return seconds, float((predicted == y.numpy()).mean())


def train_torch(state: dict[str, np.ndarray[Any, Any]], seed: int, batches: Batches, lr: float) -> tuple[float, float]:
    """The same net, weights and batches in torch (the benchmark's only use of it)."""
    import torch
    from torch import nn as t

    torch.manual_seed(seed)
    net = t.Sequential(
        t.Conv2d(1, 16, 3, padding=1), t.BatchNorm2d(16), t.ReLU(), t.MaxPool2d(2),
        t.Conv2d(16, 32, 3, padding=1), t.BatchNorm2d(32), t.ReLU(), t.MaxPool2d(2),
        t.Flatten(), t.Linear(128, 64), t.ReLU(), t.Dropout(0.25), t.Linear(64, 10),
    )  # fmt: skip
    missing = net.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()}, strict=False)
    assert all(name.endswith("num_batches_tracked") for name in missing.missing_keys), missing
    train, test = ([torch.from_numpy(tensor.numpy()) for tensor in part.tensors] for part in digits())
    loss_of, optimizer = t.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=lr)
    rate, step = schedule(lr, sum(map(len, batches))), 0
    start = time.perf_counter()
    for epoch in batches:
        for indices in epoch:
            chosen = torch.from_numpy(indices)
            x, y = train[0][chosen], train[1][chosen]
            optimizer.param_groups[0]["lr"] = rate(step)
            step += 1
            optimizer.zero_grad()
            loss_of(net(x), y).backward()
            optimizer.step()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        predicted = net.eval()(test[0]).numpy().argmax(1)
    return seconds, float((predicted == test[1].numpy()).mean())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks digits", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--smoke", action="store_true", help="one seed, two epochs, no aims")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "digits.json")
    options = parser.parse_args(argv)
    if options.smoke:
        options.seeds, options.epochs = 1, 2
    with_torch = importlib.util.find_spec("torch") is not None
    rows = []
    print(f"{'seed':>4} {'flnb s':>8} {'flnb acc':>9} {'torch s':>8} {'torch acc':>9} {'ratio':>6}")
    for seed in range(options.seeds):
        flnb.manual_seed(seed)
        net = build()
        state = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
        batches = orders(len(digits()[0]), options.batch, options.epochs, seed)
        row: dict[str, float | None] = {"seed": seed, "torch_s": None, "torch_accuracy": None, "ratio": None}
        row["flnb_s"], row["flnb_accuracy"] = seconds, accuracy = train_flnb(net, seed, batches, options.lr)
        text = f"{seed:4} {seconds:8.2f} {accuracy:9.2%}"
        if with_torch:
            row["torch_s"], row["torch_accuracy"] = theirs, accuracy = train_torch(state, seed, batches, options.lr)
            row["ratio"] = seconds / theirs
            text += f" {theirs:8.2f} {accuracy:9.2%} {seconds / theirs:6.2f}"
        rows.append(row)
        print(text, flush=True)
    return report(rows, options, with_torch)


def report(rows: list[dict[str, Any]], options: argparse.Namespace, with_torch: bool) -> int:
    """Print medians and spreads, write the JSON, and say whether the aims were met."""
    accuracies = [row["flnb_accuracy"] for row in rows]
    mean, lowest = statistics.mean(accuracies), min(accuracies)
    checks = [("mean accuracy", mean, mean >= MEAN_AIM, f">= {MEAN_AIM:.0%}", f"{mean:.2%}")]
    checks.append(("lowest accuracy", lowest, lowest >= LOWEST_AIM, f">= {LOWEST_AIM:.0%}", f"{lowest:.2%}"))
    print(f"flnb:  {spread([row['flnb_s'] for row in rows])} s")
    if with_torch:
        ratio = statistics.median(row["ratio"] for row in rows)
        print(f"torch: {spread([row['torch_s'] for row in rows])} s")
        checks.append(("time, flnb/torch", ratio, ratio <= RATIO_AIM, f"<= {RATIO_AIM:g}", f"{ratio:.2f}"))
    else:
        print("torch is not installed, so times are not compared; to compare: pip install torch==2.13.0")
    for name, _, met, aim, got in checks:
        print(f"{name:17} {got:>7}  aim {aim:7} {'' if options.smoke else 'met' if met else 'MISSED'}")
    facts = {
        "benchmark": "digits",
        "options": {key: getattr(options, key) for key in ("seeds", "epochs", "batch", "lr", "smoke")},
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__},
        "rows": rows,
        "checks": {name: {"value": value, "aim": aim, "met": met} for name, value, met, aim, _ in checks},
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(facts, indent=2) + "\n")
    return 0 if options.smoke or all(met for _, _, met, _, _ in checks) else 1


def spread(values: list[float]) -> str:
    return f"median {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
