"""The roofline of a recording: how fast each op computed, against how much it computes for each byte it moves.

Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model for multicore architectures":
an op cannot be faster than the processor computes, nor than memory brings the bytes that it needs. Both limits are
measured here, in this process, with as many threads as its NumPy uses.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry import schema
    from flnb_telemetry.intern import Catalog, Plan

__all__ = ["Peaks", "Point", "measured", "points", "traffic"]

FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
LARGE = 1 << 26  # bytes of an array that no cache holds
SMALL = 1 << 14  # bytes of one that the innermost cache holds twice
SIDE = 512  # of the matrices: a product of a few milliseconds, so that some are not interrupted


class Peaks(NamedTuple):
    """What a machine reaches: FLOPs per second, bytes per second from memory and from the innermost cache."""

    flops: float
    memory: float
    cache: float


class Point(NamedTuple):
    """All calls of one op on the same shapes and dtypes. Median and total time in ns; share of all op time, 0 to 1."""

    plan: Plan
    calls: int
    median: float
    total: int
    share: float

    @property
    def intensity(self) -> float:
        """FLOPs for each byte moved."""
        return self.plan.flops / traffic(self.plan)

    @property
    def rate(self) -> float:
        """FLOPs per second of the call in the middle."""
        return self.plan.flops / self.median * 1e9


def traffic(plan: Plan) -> int:
    """The least that the op moves: every input read and the result written once, all with the result's item size.

    >>> from flnb_telemetry.intern import Plan
    >>> traffic(Plan("matmul", "matmul", (8, 4), "float32", 128, flops=1024, inputs=((8, 16), (16, 4))))
    896
    """
    return plan.nbytes + FLOATS[plan.dtype] * sum(map(math.prod, plan.inputs))


def points(ops: schema.Columns, catalog: Catalog) -> list[Point]:
    """Of the op table of a recording (`Recording.table`) those that compute on floating-point numbers, slowest first.

    Left out is what has no FLOPs (moving data, for one), took no measurable time, or gives no floating-point result.
    """
    spent = ops["t1"] - ops["t0"]
    numbers, member, counts = np.unique(ops["plan"], return_inverse=True, return_counts=True)
    order = np.lexsort((spent, member))
    whole = max(1, int(spent.sum()))
    found = []
    for number, times in zip(numbers.tolist(), np.split(spent[order], np.cumsum(counts))[:-1], strict=True):
        plan, total, median = catalog.plans.items[number], int(times.sum()), float(np.median(times))
        if plan.flops and plan.dtype in FLOATS and plan.nbytes and median:
            found.append(Point(plan, len(times), median, total, total / whole))
    return sorted(found, key=lambda point: -point.total)


def measured() -> Peaks:
    """The peaks of this process, in float32: a product of two matrices, copies of a large and of a small array.

    Takes half a second to a second, and 128 MiB. A copy reads and writes, so it moves twice its bytes.
    """
    a = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
    c = np.empty_like(a)
    product = _best(lambda: np.matmul(a, a, out=c), 1)
    rates = []
    for nbytes, calls in ((LARGE, 1), (SMALL, 1000)):
        source, target = np.ones((2, nbytes // 4), np.float32)
        rates.append(2 * nbytes / _best(lambda to=target, of=source: np.copyto(to, of), calls))  # type: ignore[misc]
    return Peaks(2 * SIDE**3 / product, *rates)


def _best(work: Callable[[], object], calls: int, rounds: int = 40) -> float:
    """Seconds of a call, in the best round: what else runs on the machine makes it slower, nothing makes it faster."""
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - began) / calls)
    return min(times[1:])
