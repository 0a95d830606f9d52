"""The time of backward passes with and without a listener, which is called for each leaf with a complete gradient."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import flnb
from flnb import models, nn
from flnb.autograd.arrivals import listen, unlisten

GOALS = {"models": 1.02, "tiny nodes": 1.10}


class Counting:
    """A listener for `flnb.autograd.arrivals.listen` that counts the leaves whose gradients are complete."""

    def __init__(self, leaves: set[int]) -> None:
        self.leaves, self.count = leaves, 0

    def began(self, first: bool) -> None:
        """Do nothing at the beginning of a backward pass."""

    def arrived(self, leaf: Any, gradient: Any) -> None:
        """Count the complete gradient of a leaf."""
        self.count += 1

    def ended(self) -> None:
        """Do nothing at the end of a backward pass."""


def measure(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Measure backward passes of several networks; returns a row of the printed table for each network."""
    found = []
    for name in ("lenet", "lstm-lm-200", "vit", "bert"):
        recipe = models.get(name)
        net, batch = recipe.build("small"), [flnb.asarray(array) for array in recipe.batch("small")]
        found.append(_row(name, "models", net, lambda r=recipe, n=net, b=batch: r.loss(n, *b), rounds, quick))
    for width, layers, batch in ((256, 8, 64), (8, 300, 4)):
        net, x = perceptron(width, layers), flnb.random.normal((batch, width))
        kind = "tiny nodes" if width == 8 else "models"
        name = f"perceptron, {layers} x {width}, batch {batch}"
        found.append(_row(name, kind, net, lambda n=net, x=x: n(x).sum(), rounds, quick))
    return found


def perceptron(width: int, layers: int) -> nn.Module:
    """Return a network of ``layers`` square linear layers with ReLUs."""
    return nn.Sequential(*[part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())])


def _row(name: str, kind: str, net: nn.Module, loss: Callable[[], Any], rounds: int, quick: bool) -> dict[str, Any]:
    """Measure a network's backward passes with and without a listener, in turn; returns the row of the table.

    Times are CPU times of this thread.

    Args:
        name: the network's name in the table.
        kind: the key of the network's goal in `GOALS`.
        net: the network.
        loss: runs a forward pass and returns the loss.
        rounds: a measure of the number of passes.
        quick: whether to measure only three pairs of passes.
    """
    loss()
    began = time.thread_time()
    loss().backward()
    pair = 4 * (time.thread_time() - began)  # with the passes forward
    times = 3 if quick else max(5 * rounds, min(25 * rounds, int(rounds / pair)))
    listener = Counting({p._node[2] for p in net.parameters()})
    seconds: dict[bool, list[float]] = {False: [], True: []}
    gc.collect()
    for i in range(2 * times):
        heard = i % 2 == 1
        value = loss()
        if heard:
            listen(listener)
        began = time.thread_time()
        value.backward()
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
