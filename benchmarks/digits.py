"""The quickstart's CNN on scikit-learn's digits: accuracy over seeds, and training time against torch in the same run.

`python -m benchmarks digits`; torch is measured, too, if it is installed. Both start each seed from the same weights
and see the same batches in the same order, on the same number of threads; their runs alternate, so that a busy machine
slows both. The exit status is 1 where an accuracy or the time ratio misses its goal.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

import flnb
from benchmarks.report import table, write
from flnb import nn
from flnb.data import digits
from flnb.optim import Adam

if TYPE_CHECKING:
    from collections.abc import Callable

    Epochs = list[list[np.ndarray[Any, Any]]]

MEAN_GOAL, LOWEST_GOAL, RATIO_GOAL = 98.0, 97.0, 5.0


def build() -> nn.Sequential:
    """Build the quickstart's network, from images (N, 1, 8, 8) to logits (N, 10)."""

    def block(channels: int, filters: int) -> nn.Sequential:
        conv = nn.Conv2d(channels, filters, 3, padding=1)
        return nn.Sequential(conv=conv, norm=nn.BatchNorm(filters), relu=nn.ReLU(), pool=nn.MaxPool2d(2))

    head = nn.Sequential(flatten=nn.Flatten(), dropout=nn.Dropout(0.25), linear=nn.Linear(128, 10))
    return nn.Sequential(block1=block(1, 16), block2=block(16, 32), head=head)


def build_torch(state: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Build the network of `build` in torch, with the weights ``state``."""
    import torch
    from torch import nn as t

    def block(channels: int, filters: int) -> list[t.Module]:
        return [t.Conv2d(channels, filters, 3, padding=1), t.BatchNorm2d(filters), t.ReLU(), t.MaxPool2d(2)]

    net = t.Sequential(*block(1, 16), *block(16, 32), t.Flatten(), t.Dropout(0.25), t.Linear(128, 10))
    own = {name: tensor for name, tensor in net.state_dict().items() if not name.endswith("num_batches_tracked")}
    for target, array in zip(own.values(), state.values(), strict=True):  # both in the order of the layers
        target.copy_(torch.from_numpy(array))
    return net


def schedule(lr: float, steps: int) -> Callable[[int], float]:
    """Return a function from a step's number to its learning rate, which falls from `lr` to 0 on half a cosine."""
    return lambda step: lr * (1.0 + math.cos(math.pi * step / steps)) / 2.0


def shuffled(samples: int, batch: int, epochs: int, seed: int) -> Epochs:
    """Shuffle the numbers of the samples for each epoch, and divide them into batches.

    Return, for each epoch, its batches of sample numbers. An incomplete last batch is left out.
    """
    rng, full = np.random.default_rng(seed), samples // batch
    return [np.split(rng.permutation(samples)[: full * batch], full) for _ in range(epochs)]


def train_flnb(net: nn.Sequential, seed: int, epochs: Epochs, lr: float) -> tuple[float, float]:
    """Train the network in flnb; returns the seconds of training, and the accuracy on the test set in percent."""
    flnb.manual_seed(seed)
    train, test = digits()
    loss_of, optimizer = nn.CrossEntropyLoss(), Adam(net.parameters(), lr=lr)
    rate = schedule(lr, sum(map(len, epochs)))
    start = time.perf_counter()
    for batches in epochs:
        for indices in batches:
            x, y = train.take(indices)
            optimizer.lr = rate(optimizer.steps)
            optimizer.zero_grad()
            loss_of(net(x), y).backward()
            optimizer.step()
    seconds = time.perf_counter() - start
    x, y = test.tensors
    with flnb.no_grad():
        return seconds, percent(net.eval()(x).numpy(), y.numpy())


def train_torch(net: Any, seed: int, epochs: Epochs, lr: float) -> tuple[float, float]:
    """Train the network in torch; returns the seconds of training, and the accuracy on the test set in percent."""
    import torch

    torch.manual_seed(seed)
    train, test = ([torch.from_numpy(tensor.numpy()) for tensor in part.tensors] for part in digits())
    loss_of, optimizer = torch.nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=lr)
    rate, step = schedule(lr, sum(map(len, epochs))), 0
    start = time.perf_counter()
    for batches in epochs:
        for indices in batches:
            chosen = torch.from_numpy(indices)
            x, y = train[0][chosen], train[1][chosen]
            optimizer.param_groups[0]["lr"] = rate(step)
            step += 1
            optimizer.zero_grad()
            loss_of(net(x), y).backward()
            optimizer.step()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        return seconds, percent(net.eval()(test[0]).numpy(), test[1].numpy())


def percent(logits: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
    """Return the accuracy of logits in percent."""
    return 100.0 * float((logits.argmax(1) == labels).mean())


def limit_threads(count: int) -> bool:
    """Let NumPy's BLAS and, if it is installed, torch use ``count`` threads; returns whether torch is installed."""
    from threadpoolctl import threadpool_limits  # comes with scikit-learn, which the digits need anyway

    with_torch = find_spec("torch") is not None
    if with_torch:
        import torch

        torch.set_num_threads(count)
    threadpool_limits(count)
    return with_torch


def main(argv: list[str]) -> int:
    """Run the benchmark with the options ``argv``, and print and store the results; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks digits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI: one seed, two epochs, no goals")
    options = parser.parse_args(argv)
    if options.quick:
        options.seeds, options.epochs = 1, 2
    with_torch = limit_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        flnb.manual_seed(seed)
        net = build()
        state = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
        epochs = shuffled(len(digits()[0]), options.batch, options.epochs, seed)
        row: dict[str, Any] = {"seed": seed}
        row["flnb s"], row["flnb %"] = train_flnb(net, seed, epochs, options.lr)
        if with_torch:
            row["torch s"], row["torch %"] = train_torch(build_torch(state), seed, epochs, options.lr)
            row["flnb / torch"] = row["flnb s"] / row["torch s"]
        rows.append(row)
    return report(rows, options)


def report(rows: list[dict[str, Any]], options: argparse.Namespace) -> int:
    """Print the rows with their medians, and whether the goals were reached; returns the exit status."""
    median = {name: statistics.median(row[name] for row in rows) for name in rows[0]} | {"seed": "median"}
    lines = [*rows, median]
    print(table([{name: f"{v:.2f}" if isinstance(v, float) else v for name, v in line.items()} for line in lines]))
    scores = [row["flnb %"] for row in rows]
    goals = [("mean accuracy, %", statistics.mean(scores), ">=", MEAN_GOAL)]
    goals.append(("lowest accuracy, %", min(scores), ">=", LOWEST_GOAL))
    if "flnb / torch" in median:
        ratios = sorted(row["flnb / torch"] for row in rows)
        print(f"flnb / torch, training time: median {median['flnb / torch']:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        goals.append(("median flnb / torch", median["flnb / torch"], "<=", RATIO_GOAL))
    else:
        print("torch is not installed here: its columns are left out")
    checks = [
        {"goal": f"{name} {sign} {goal:g}", "got": round(got, 2), "met": got >= goal if sign == ">=" else got <= goal}
        for name, got, sign, goal in goals
    ]
    if not options.quick:
        print(table(checks))
    write("digits", {"seeds": rows, "goals": checks}, vars(options))
    return 0 if options.quick or all(check["met"] for check in checks) else 1


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
