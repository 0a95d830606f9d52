"""Fragmentation: what it costs (reserved / live), and why (holes too small, rounding), each with its formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flnb_telemetry import quantity, schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.analysis.memory import Memory

FORMULAS = {
    "ratio": "reserved / live: bytes taken from the device over bytes in live blocks",
    "unusable": "unusable(r) = sum(free blocks < r) / sum(free)",
    "internal": "internal = sum(size - requested) / sum(size) over live blocks",
    "largest": "the largest free block: the largest request that fits without a new segment",
    "average": "time average = integral(reserved dt) / integral(live dt)",
}


class Fragmentation(NamedTuple):
    """Columns over time (t in seconds) and two headline numbers; `FORMULAS` says what each is."""

    t: NDArray[np.float64]
    reserved: NDArray[np.int64]
    live: NDArray[np.int64]
    ratio: NDArray[np.float64]
    unusable: NDArray[np.float64]
    internal: NDArray[np.float64]
    largest: NDArray[np.int64]
    request: int
    at_peak: float
    average: float

    def __repr__(self) -> str:
        return (
            f"reserved/live {quantity.significant(self.at_peak)}× at the peak, "
            f"{quantity.significant(self.average)}× on time average\n  at most "
            f"{quantity.percent(self.unusable.max(initial=0.0))} of what is free unusable for a request of "
            f"{quantity.size(self.request)}, {FORMULAS['unusable']}"
        )


def holes(block: schema.Columns, segment: schema.Columns) -> NDArray[np.int64]:
    """Sizes of the gaps between live blocks, in bytes, in the order of the segments; empty gaps left out."""
    if not len(segment["t"]):
        return np.empty(0, np.int64)
    order = np.argsort(segment["segment_id"])
    ids, sizes, address = (segment[name][order] for name in ("segment_id", "size", "address"))
    slot = np.minimum(np.searchsorted(ids, block["segment_id"]), len(ids) - 1)
    inside = ids[slot] == block["segment_id"]
    # Lay the segments end to end (two devices may use one address twice). Then the i-th gap lies between the i-th
    # smallest end and the i-th smallest beginning, the segments' own edges counted in.
    base = np.cumsum(sizes) - sizes
    begin = (base[slot] + block["address"] - address[slot])[inside]
    ends = np.sort(np.concatenate([base, begin + block["size"][inside]]))
    begins = np.sort(np.concatenate([base + sizes, begin]))
    gaps: NDArray[np.int64] = begins - ends
    return gaps[gaps > 0]


def unusable(free: NDArray[np.int64], request: int) -> float:
    """sum(free blocks smaller than the request) / sum(free); 0 where nothing is free."""
    return float(free[free < request].sum() / max(1, free.sum()))


def over_time(memory: Memory, request: int, points: int) -> Fragmentation:
    """Fragmentation at every change, or at `points` of them, evenly spread, the peak always among them."""
    every = memory.timeline()
    line = every.spread(points)
    states = [memory.at(float(t)) for t in line.t]
    spans = np.diff(every.t)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(line.allocated > 0, line.reserved / line.allocated, np.nan)
        average = float(np.dot(every.reserved[:-1], spans) / np.dot(every.allocated[:-1], spans))
    return Fragmentation(
        line.t,
        line.reserved,
        line.allocated,
        ratio,
        np.array([state.unusable(request) for state in states], np.float64),
        np.array([state.internal for state in states], np.float64),
        np.array([state.largest_hole for state in states], np.int64),
        request,
        float(ratio[np.argmax(line.allocated)]) if len(ratio) else float("nan"),
        average if np.isfinite(average) else float("nan"),
    )
