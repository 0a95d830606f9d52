"""What it costs a backward pass to report complete gradients to a listener, and with nobody listening."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import flnb
from flnb import nn
from flnb.autograd.arrivals import listen, unlisten

GOALS = {"models": 1.02, "tiny nodes": 1.10}


class Counting:
    """A listener that counts."""

    def __init__(self, leaves: set[int]) -> None:
        self.leaves, self.count = leaves, 0

    def began(self, first: bool) -> None:
        """Nothing."""

    def arrived(self, leaf: Any, gradient: Any) -> None:
        """Count."""
        self.count += 1

    def ended(self) -> None:
        """Nothing."""


def perceptron(width: int, layers: int, batch: int) -> tuple[Any, Any]:
    """A network of square layers with ReLUs, and its input."""
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts), flnb.random.normal((batch, width))


def measure(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    cases: dict[str, tuple[str, Callable[[], tuple[Any, Any]]]] = {
        "perceptron, 8 x 256, batch 64": ("models", lambda: perceptron(256, 8, 64)),
        "perceptron, 6 x 512, batch 64": ("models", lambda: perceptron(512, 6, 64)),
        "chain of 600 tiny nodes": ("tiny nodes", lambda: perceptron(8, 300, 4)),
    }
    return [_row(name, kind, *make(), 3 if quick else 12 * rounds) for name, (kind, make) in cases.items()]


def _row(name: str, kind: str, net: Any, x: Any, times: int) -> dict[str, Any]:
    """Measure one network: passes heard and unheard in turns, in seconds of the thread's own time."""
    listener = Counting({p._node[2] for p in net.parameters()})
    seconds: dict[bool, list[float]] = {False: [], True: []}
    gc.collect()
    for i in range(2 * times):
        heard = i % 2 == 1
        loss = net(x).sum()
        if heard:
            listen(listener)
        began = time.thread_time()
        loss.backward()
        seconds[heard].append(time.thread_time() - began)
        unlisten(listener)
        net.zero_grad()
    assert listener.count == times * len(listener.leaves)
    without, with_ = (sorted(seconds[heard]) for heard in (False, True))
    quarter = times // 4
    ratio = with_[quarter] / without[quarter]
    return {
        "network": name, "backward, ms": f"{1e3 * without[0]:.2f} / {1e3 * without[quarter]:.2f}",
        "heard, ms": f"{1e3 * with_[0]:.2f} / {1e3 * with_[quarter]:.2f}", "ratio of quartiles": round(ratio, 3),
        "of medians": round(statistics.median(with_) / statistics.median(without), 3),
        "goal": f"<= {GOALS[kind]}", "met": "yes" if ratio <= GOALS[kind] else "NO",
    }  # fmt: skip
