"""How much of the transfers `DataParallel` hides behind the backward pass: one of two ranks, on a modelled link.

A transfer takes a part of the time of a backward pass, and no processor time. The other rank is not computed, so that
only one program runs on a busy machine. The time for which the program stands still is exposed, the rest is hidden.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flnb_backends.comm.modelled import Modelled

import flnb
from flnb import distributed, nn
from flnb.dispatch import communication
from flnb.interface import Communicator, Work
from flnb.interface.communicator import Done

SHARES = (0.25, 0.5, 1.0)
IN_BUCKETS = "in 1 MiB buckets"
BUCKETS = {IN_BUCKETS: "1MiB", "after the pass": ""}
HIDDEN, AT_END = 0.90, 0.05


class Twin(Communicator):
    """The communicator of rank 0 of 2; rank 1 does not exist and is assumed to make the same calls at the same time."""

    name, size = "twin", 2

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """Return a finished call and leave the buffer unchanged: only the time on the simulated link is measured."""
        return Done()

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """Write the buffer to ``out`` twice, as the data of both ranks; returns a finished call."""
        out.reshape(2, -1)[:] = buffer.reshape(-1)
        return Done()

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """Return a finished call and leave the buffer unchanged: only the time on the simulated link is measured."""
        return Done()


def measure(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Measure how much of the transfers is hidden; returns a row for each speed of the link and size of buckets."""
    layers, steps, times = (4, 2, 1) if quick else (24, 4, max(3, rounds // 4))
    alone = min(float(seconds(recorded(layers, steps, "1MiB", 0.0)).min()) for _ in range(3))
    nbytes = layers * (512 * 512 + 512) * 4
    found: dict[tuple[float, str], list[float]] = {(share, name): [] for share in SHARES for name in BUCKETS}
    for _ in range(times):
        for (share, name), shares in found.items():
            run = recorded(layers, steps, BUCKETS[name], alone * share / nbytes)
            shares += (1.0 - exposed(run) / (alone * share)).tolist()
    return [_row(share, name, alone, shares) for (share, name), shares in found.items()]


def recorded(layers: int, steps: int, bucket: str, per_byte: float) -> Any:
    """Record backward passes whose gradients are reduced over a simulated link; returns the recording.

    Args:
        layers: the number of the network's linear layers.
        steps: the number of backward passes to measure; one more is run before them.
        bucket: the size of `DataParallel`'s buckets; "" to reduce all gradients in one call after the pass.
        per_byte: the seconds that the link takes for each byte; 0 for a link that takes no time.
    """
    bandwidth = 1.0 / per_byte if per_byte else 1e15  # a ring of two moves the buffer's bytes
    with flnb.record() as run, distributed.use_communicator(Modelled(0.0, bandwidth, inner=Twin())):
        parts = [part for _ in range(layers) for part in (nn.Linear(512, 512), nn.ReLU())]
        net = nn.Sequential(*parts)
        gradients = np.zeros(sum(p.size for p in net.parameters()), np.float32)
        parallel = distributed.DataParallel(net, bucket=bucket) if bucket else None
        x = flnb.random.normal((64, 512))
        for _ in range(steps + 1):
            net.zero_grad()
            loss = net(x).sum()
            with flnb.step():
                loss.backward()
                if parallel is None:
                    communication.run("all_reduce", gradients, "sum")
    return run


def seconds(run: Any) -> Any:
    """Return the seconds of each backward pass in a recording, except the first pass."""
    steps = run.table("step")
    return (steps["t1"] - steps["t0"])[1:] * 1e-9


def exposed(run: Any) -> Any:
    """Return for each backward pass, except the first, the seconds for which the program waited for the link."""
    waits, steps = run.table("wait"), run.table("step")
    number = np.searchsorted(steps["t0"], waits["t0"], "right") - 1
    stood = np.bincount(number.clip(0), (waits["t1"] - waits["t0"]) * 1e-9, len(steps["t0"]))
    return stood[1:]


def _row(share: float, name: str, alone: float, shares: list[float]) -> dict[str, Any]:
    """Return a row of the table: the median, the least and the greatest share of the link's time that was hidden.

    Args:
        share: the time on the link, as a multiple of the time of a backward pass.
        name: how the gradients were reduced, a key of `BUCKETS`.
        alone: the seconds of a backward pass without transfers.
        shares: the hidden share (0 to 1) of each pass.
    """
    median = float(np.median(shares))
    met = median >= HIDDEN if name == IN_BUCKETS else median <= AT_END
    return {
        "link, of backward": share, "reduced": name, "backward, ms": round(1e3 * alone, 1),
        "hidden, median": f"{100 * median:.1f} %",
        "least .. most": f"{100 * min(shares):.1f} .. {100 * max(shares):.1f} %",
        "goal": f">= {100 * HIDDEN:.0f} %" if name == IN_BUCKETS else f"<= {100 * AT_END:.0f} %",
        "met": "yes" if met else "NO",
    }  # fmt: skip
