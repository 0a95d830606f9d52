"""The roofline of a recording: the speed of each op (FLOPs/s) against its FLOPs per byte moved.

Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model for multicore architectures":
an op is limited by the speed of the processor and by the rate at which memory delivers the bytes it needs. `measured`
determines both limits in this process, with as many threads as its NumPy (or another library's product) uses.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from flnb_telemetry import schema
    from flnb_telemetry.intern import Catalog, Plan

    Floats = NDArray[np.float32]

FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
LARGE = 1 << 26  # bytes of an array that no cache holds
SMALL = 1 << 16  # bytes of one that a core's own caches hold twice; of smaller ones NumPy's call takes half of the time
LONGEST, STEADY, SAME = 2.0, 2, 0.98  # seconds; runs without a faster one, after which no more follow; what is faster
SIDE = 512  # of the matrices: a product of a few milliseconds, so that some are not interrupted


class Peaks(NamedTuple):
    """Measured limits of a machine: FLOPs/s, and bytes/s from memory and from a core's caches."""

    flops: float
    memory: float
    cache: float


class Point(NamedTuple):
    """All calls of one op with the same shapes and dtypes: median and total time in ns, share of all op time."""

    plan: Plan
    calls: int
    median: float
    total: int
    share: float

    @property
    def intensity(self) -> float:
        """Return the op's FLOPs per byte that it moves."""
        return self.plan.flops / traffic(self.plan)

    @property
    def rate(self) -> float:
        """Return the FLOPs per second of the median call."""
        return self.plan.flops / self.median * 1e9


def traffic(plan: Plan) -> int:
    """Return the smallest number of bytes that an op moves: each input is read once, and the result is written once.

    The elements of the inputs are assumed to have the size of the result's elements.

    >>> from flnb_telemetry.intern import Plan
    >>> traffic(Plan("matmul", "matmul", (8, 4), "float32", 128, flops=1024, inputs=((8, 16), (16, 4))))
    896
    """
    return plan.nbytes + FLOATS[plan.dtype] * sum(map(math.prod, plan.inputs))


def points(ops: schema.Columns, catalog: Catalog) -> list[Point]:
    """Return the floating-point ops of a recording as points, one for each combination of op, shapes and dtypes.

    Not included are ops without FLOPs (such as ops that only move data), ops too short to be timed, and ops whose
    result is not floating-point.

    Args:
        ops: the columns of the op events (`Recording.table("op")`).
        catalog: the names behind the ids in them.

    Returns:
        The points, the largest total time first.
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


def measured(product: Callable[[Floats, Floats, Floats], object] = np.matmul) -> Peaks:
    """Measure the limits of this process in float32, by a matrix product and by copies of a large and a small array.

    The function `product` computes the matrix product of its first two arguments and stores it in the third.

    Short runs of all three are repeated until none becomes faster, for two seconds at most, so that other programs that
    use the machine for a part of this time do not lower the result. Needs 128 MiB. A copy of n bytes counts as 2 n
    bytes moved, because each byte is read and written.
    """
    a = np.random.default_rng(0).random((SIDE, SIDE), np.float32)
    c, large, small = np.empty_like(a), *(np.ones((2, nbytes // 4), np.float32) for nbytes in (LARGE, SMALL))
    (near, source), (far, much) = small, large  # here: to take an array apart takes as long as to copy a small one
    works: list[tuple[Callable[[], object], int]] = [
        (lambda: product(a, a, c), 1), (lambda: np.copyto(far, much), 1), (lambda: np.copyto(near, source), 400),
    ]  # fmt: skip
    best, steady, until = [math.inf] * len(works), 0, time.perf_counter() + LONGEST
    while steady < STEADY and time.perf_counter() < until:
        passed = [min(before, _best(*work)) for before, work in zip(best, works, strict=True)]
        faster = any(now < before * SAME for now, before in zip(passed, best, strict=True))
        best, steady = passed, 0 if faster else steady + 1
    return Peaks(2 * SIDE**3 / best[0], 2 * LARGE / best[1], 2 * SMALL / best[2])


def _best(work: Callable[[], object], calls: int, rounds: int = 5) -> float:
    """Return the seconds per call of `work` in the fastest of `rounds` rounds of `calls` calls each."""
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - began) / calls)
    return min(times[1:])
