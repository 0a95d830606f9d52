"""Fragmentation: what it costs (reserved / live), and why (holes too small, rounding), each with its formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import quantity, schema
from flnb_telemetry.extras import require

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

    def to_pandas(self) -> Any:
        """A DataFrame indexed by t."""
        return (
            require("pandas", "lab", "a DataFrame").DataFrame(self._asdict() | {"request": self.request}).set_index("t")
        )

    def __repr__(self) -> str:
        return (
            f"reserved/live {quantity.significant(self.at_peak)}× at the peak, "
            f"{quantity.significant(self.average)}× on time average\n  at most "
            f"{quantity.percent(self.unusable.max(initial=0.0))} of what is free unusable for a request of "
            f"{quantity.size(self.request)}, {FORMULAS['unusable']}"
        )


def holes(
    block: schema.Columns, live: NDArray[np.int64], segment: schema.Columns, held: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Sizes of the gaps between live blocks, in bytes, in the order of the segments; empty gaps left out."""
    if not len(held):
        return np.empty(0, np.int64)
    held = held[np.argsort(segment["segment_id"][held])]
    ids, sizes = segment["segment_id"][held], segment["size"][held]
    slot = np.minimum(np.searchsorted(ids, block["segment_id"][live]), len(ids) - 1)
    inside = ids[slot] == block["segment_id"][live]
    live, slot = live[inside], slot[inside]
    # Lay the segments end to end (two devices may use one address twice). Then the i-th gap lies between the i-th
    # smallest end and the i-th smallest beginning, the segments' own edges counted in.
    base = np.cumsum(sizes) - sizes
    begin = base[slot] + block["address"][live] - segment["address"][held][slot]
    ends = np.sort(np.concatenate([base, begin + block["size"][live]]))
    begins = np.sort(np.concatenate([base + sizes, begin]))
    gaps: NDArray[np.int64] = begins - ends
    return gaps[gaps > 0]


def unusable(free: NDArray[np.int64], request: int) -> float:
    """sum(free blocks smaller than the request) / sum(free); 0 where nothing is free."""
    total = int(free.sum())
    return int(free[free < request].sum()) / total if total else 0.0


def over_time(memory: Memory, request: int | None, points: int) -> Fragmentation:
    """Fragmentation at every change, or at `points` of them, evenly spread, the peak always among them."""
    line = memory.timeline()
    count = len(line.t)
    request = request or int(memory._block["size"].max(initial=0))
    chosen = np.arange(count)
    if count > points:
        chosen = np.unique(np.append(np.linspace(0, count - 1, points - 1).astype(int), np.argmax(line.allocated)))
    free = [memory.at(float(t)).holes for t in line.t[chosen]]
    reserved, live, requested = line.reserved[chosen], line.allocated[chosen], line.requested[chosen]
    peak = int(np.argmax(line.allocated)) if count else 0
    spans = np.diff(line.t)
    return Fragmentation(
        line.t[chosen],
        reserved,
        live,
        _over(reserved, live),
        np.array([unusable(sizes, request) for sizes in free], np.float64),
        _over(live - requested, live, 0.0),
        np.array([sizes.max(initial=0) for sizes in free], np.int64),
        request,
        float(_over(line.reserved[peak : peak + 1], line.allocated[peak : peak + 1]).sum()) if count else float("nan"),
        float(_over((line.reserved[:-1] * spans).sum(), (line.allocated[:-1] * spans).sum())),
    )


def _over(a: Any, b: Any, otherwise: float = float("nan")) -> Any:
    return np.divide(a, b, out=np.full(np.shape(b), otherwise), where=np.asarray(b) > 0)
