"""Compare the predictions of `flnb.distributed.simulate` with measured steps and published figures.

Steps on a modelled link sleep instead of computing, so that two cores suffice for four ranks. The recording is of two
ranks. Of several pairs of runs, the one with the median error is shown.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from flnb_backends.comm.modelled import Modelled

import flnb
from flnb import distributed
from flnb.dispatch import communication
from flnb.distributed import Topology

PUBLISHED = {2: 163.4, 4: 319.4, 8: 631.3}
"""Published times by nccl-tests of an all_reduce of 8 bytes on p3dn nodes of 8 ranks, in us by the number of nodes."""
LATENCY, BANDWIDTHS = 200e-6, (1e8, 2e7)
NCCL, MODELLED, SECONDS = 0.02, 0.05, 5.0


def measure(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Measure steps and compare them with predictions; returns a row of the printed table for each prediction."""
    start = Topology(latency=0.0, bandwidth=1e10)
    link = start.fitted([(8 * nodes, 8, PUBLISHED[nodes] * 1e-6) for nodes in (2, 4)])
    rows = [_row("nccl-tests of 8 nodes, 8 B, us", 1e6 * link.seconds("all_reduce", 8, 64), PUBLISHED[8], NCCL)]
    for bandwidth in BANDWIDTHS:
        pairs: dict[int, list[tuple[float, float]]] = {2: [], 4: []}
        for _ in range(1 if quick else 5):
            runs = {ranks: recorded(ranks, bandwidth, 3 if quick else 6) for ranks in pairs}
            for ranks, run in runs.items():
                found = distributed.simulate(runs[2], ranks, Topology(LATENCY, bandwidth))
                pairs[ranks].append((found.step_ms, float(run.collectives.step_ns.mean()) / 1e6))
        for ranks, of in pairs.items():
            predicted, measured = sorted(of, key=lambda pair: pair[0] / pair[1])[len(of) // 2]
            rows.append(
                _row(f"a step of {ranks} ranks at {bandwidth / 1e6:.0f} MB/s, ms", predicted, measured, MODELLED)
            )
    began = time.perf_counter()
    distributed.simulate(runs[2], 10_000, Topology(LATENCY, BANDWIDTHS[0]))
    took = time.perf_counter() - began
    what, goal = "seconds to simulate 10,000 ranks", f"<= {SECONDS:.0f}"
    return [*rows, {
        "what": what, "predicted": "", "measured": round(took, 2), "off": "", "goal": goal,
        "met": "yes" if took <= SECONDS else "NO",
    }]  # fmt: skip


def recorded(ranks: int, bandwidth: float, steps: int) -> Any:
    """Record training steps that only sleep and all-reduce eight buckets of 100 kB, one every 5 ms.

    ``bandwidth`` is that of the simulated link, in bytes per second. Return the recording of all ranks.
    """

    def work() -> None:
        with distributed.use_communicator(Modelled(LATENCY, bandwidth)):
            for _ in range(steps):
                with flnb.step():
                    time.sleep(0.02)
                    pending = []
                    for bucket in range(8):
                        time.sleep(0.005)
                        buffer = np.ones(25_000, np.float32)
                        pending.append(communication.start("all_reduce", buffer, "sum", bucket=bucket))
                    for one in pending:
                        one.wait()
                    time.sleep(0.01)

    with flnb.record() as run:
        distributed.run_threads(ranks, work)
    return run


def _row(what: str, predicted: float, measured: float, most: float) -> dict[str, Any]:
    """Return a row of the table: the predicted and the measured value of ``what``, and the prediction's error.

    ``most`` is the largest relative error that meets the goal.
    """
    off = predicted / measured - 1.0
    return {
        "what": what, "predicted": round(predicted, 2), "measured": round(measured, 2), "off": f"{100 * off:+.2f} %",
        "goal": f"<= {100 * most:.0f} %", "met": "yes" if abs(off) <= most else "NO",
    }  # fmt: skip
