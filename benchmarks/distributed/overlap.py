"""How much of the transfers `DataParallel` hides behind the backward pass: two ranks on a modelled link.

The link takes a part of the time of a backward pass, and no time of the processor. What the program stands still for,
less what it waits for a late rank, is exposed; the rest is hidden.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flnb_backends.comm.modelled import Modelled

import flnb
from flnb import distributed, nn
from flnb.interface import Communicator, Work

SHARES = (0.25, 0.5, 1.0)
IN_BUCKETS = "in 1 MiB buckets"
BUCKETS = {IN_BUCKETS: "1MiB", "at the end": "1TiB"}
HIDDEN, AT_END = 0.90, 0.05


class Weightless(Communicator):
    """Ranks that meet in an all_reduce and send nothing: sums of threads are work of the processor."""

    def __init__(self) -> None:
        self.inner = distributed.current()
        self.rank, self.size, self.board = self.inner.rank, self.inner.size, self.inner.board

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """Finish when every rank has come."""
        return self.inner.barrier()

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """As the threads do."""
        return self.inner.all_gather(buffer, out)

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """As the threads do."""
        return self.inner.broadcast(buffer, root)

    def barrier(self) -> Work:
        """As the threads do."""
        return self.inner.barrier()


def measure(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    layers, steps, times = (4, 2, 1) if quick else (24, 4, max(3, rounds // 4))
    alone = min(float(recorded(layers, steps, "1MiB", 0.0).step_ns[1:].min()) for _ in range(2)) * 1e-9
    nbytes = layers * (512 * 512 + 512) * 4
    found: dict[tuple[float, str], list[float]] = {(share, name): [] for share in SHARES for name in BUCKETS}
    for _ in range(times):
        for (share, name), shares in found.items():
            run = recorded(layers, steps, BUCKETS[name], alone * share / nbytes)
            shares += (1.0 - exposed(run) / (alone * share)).tolist()
    return [_row(share, name, alone, shares) for (share, name), shares in found.items()]


def recorded(layers: int, steps: int, bucket: str, per_byte: float) -> Any:
    """Record steps of two ranks on a link on which each byte of a gradient takes so many seconds."""

    def work() -> None:
        link = {"latency": 0.0, "bandwidth": 1.0 / per_byte if per_byte else 1e15}  # a ring of two moves n bytes
        with distributed.use_communicator(Modelled(**link, inner=Weightless())):
            parts = [part for _ in range(layers) for part in (nn.Linear(512, 512), nn.ReLU())]
            net = distributed.DataParallel(nn.Sequential(*parts), bucket=bucket)
            x = flnb.random.normal((64, 512))
            for _ in range(steps + 1):
                net.zero_grad()
                loss = net(x).sum()
                distributed.barrier()
                with flnb.step():
                    loss.backward()
            net.close()

    with flnb.record() as run:
        distributed.run_threads(2, work)
    return run.collectives


def exposed(found: Any) -> Any:
    """Seconds of each step, but the first, in which a rank stood still for the link, the mean of ranks."""
    stood = (found.waited - found.blocked).mean(axis=0) * 1e-9
    return np.array([stood[found.step == step].sum() for step in found.steps[1:].tolist()])


def _row(share: float, name: str, alone: float, shares: list[float]) -> dict[str, Any]:
    """One row: the share of the link's time that is hidden, in the median step and in most and least of them."""
    median = float(np.median(shares))
    met = median >= HIDDEN if name == IN_BUCKETS else median <= AT_END
    return {
        "link, of backward": share, "reduced": name, "backward, ms": round(1e3 * alone, 1),
        "hidden, median": f"{100 * median:.1f} %",
        "least .. most": f"{100 * min(shares):.1f} .. {100 * max(shares):.1f} %",
        "goal": f">= {100 * HIDDEN:.0f} %" if name == IN_BUCKETS else f"<= {100 * AT_END:.0f} %",
        "met": "yes" if met else "NO",
    }  # fmt: skip
