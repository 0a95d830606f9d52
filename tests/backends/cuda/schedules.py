"""Training on the emulated device under many orders of streams: ``python -m tests.backends.cuda.schedules``.

Every batch is uploaded in a stream of its own while the step before it computes. Losses and parameters must be equal
to the last bit in every order. Kernels are compiled without the checks, unless asked for, which is ten times quicker.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

import flnb
from flnb import nn
from flnb.testing.cuda import emulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.testing.cuda import EmulatedDevice

BATCH = 4


def cnn(dropout: float = 0.0) -> tuple[nn.Module, Callable[[int], tuple[Any, Any]]]:
    """A convolutional network for pictures of digits, and its batches."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    pictures = (pictures / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    return nn.Sequential(*layers), lambda i: (pictures[i * BATCH :][:BATCH], labels[i * BATCH :][:BATCH])


class Reader(nn.Module):
    """A small transformer that names a sequence's most frequent token."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout)
        self.out = nn.Linear(16, 8)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.layer(self.embedding(tokens)).mean(1))


def transformer(dropout: float = 0.1) -> tuple[nn.Module, Callable[[int], tuple[Any, Any]]]:
    """A transformer with dropout, and its batches."""
    tokens = np.random.default_rng(0).integers(0, 8, (200, 6))
    frequent = np.array([np.bincount(row, minlength=8).argmax() for row in tokens])
    return Reader(dropout), lambda i: (tokens[i * BATCH :][:BATCH], frequent[i * BATCH :][:BATCH])


def train(make: Callable[[], Any], steps: int, each: Callable[[int], Any] = bool) -> list[Any]:
    """Train on the cuda backend; returns the losses and the parameters."""
    with flnb.use_backend("cuda") as backend:
        flnb.manual_seed(0)
        model, batch = make()
        optimizer = flnb.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for i, (x, y) in enumerate(backend.prefetch(batch(i) for i in range(steps))):
            loss = flnb.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            each(i)
        return [x.numpy() for x in (*losses, *[p.detach() for p in model.parameters()])]


NETS = {"digits CNN": cnn, "transformer": transformer}


def differing(device: EmulatedDevice, make: Callable[[], Any], steps: int, orders: list[tuple[Any, int]]) -> list[Any]:
    """Train in every order; returns the orders whose numbers are not those of the first, to the last bit."""
    found, wanted = [], None
    for order, seed in orders:
        device.begin(order, seed, checks=device.driver.checked)
        got = train(make, steps)
        wanted = wanted or got
        if not all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True)) or device.reports:
            found.append((order, seed))
    return found


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checked", action="store_true")
    given = parser.parse_args()
    device = emulate(checked=given.checked)
    orders = [("eager", 0), ("lazy", 0), *[("random", seed) for seed in range(given.seeds)]]
    bad = {name: differing(device, make, given.steps, orders) for name, make in NETS.items()}
    for name, found in bad.items():
        print(f"{name}: {given.steps} steps in {len(orders)} orders, {len(found)} of them differ: {found or ''}")
    return int(any(bad.values()))


if __name__ == "__main__":
    sys.exit(main())
