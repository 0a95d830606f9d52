"""Replays one trace on many managers with many settings, and measures each."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from flnb.dispatch import registry
from flnb.memory import AllocHint, Block, MemoryManager, OutOfMemoryError
from flnb.memory_lab.replaying import play

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flnb.interface.memory import Lease
    from flnb.memory import Trace

__all__ = [
    "LIMITS", "MANAGERS", "SMALL_LIMITS", "Limits", "Measures", "Setting", "Watched", "caching", "effective", "grid",
    "measured", "needed",
]  # fmt: skip

MIB = 1 << 20
LIMITS = (None, 512, 256, 128, 64, 20, 8, 2)
"""The limits to measure, in MiB; None for no limit. A segment that several large blocks share has 20 MiB."""
SMALL_LIMITS = (None, 20, 8, 4, 2, 0.5)
"""The limits to measure, in MiB, for models whose tensors have a few MiB; None for no limit."""

WITHIN = 0.01
"""The smallest sufficient capacity is found to within this fraction of the peak of live bytes."""

Limits = tuple[float | None, float | None]
"""The caching manager's limits of splitting and of recycling, in MiB; None for no limit."""


@dataclass(frozen=True)
class Setting:
    """The name of a memory manager, and the options with which to create it."""

    manager: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> str:
        """Return the setting as text that `flnb.memory.replay` accepts, such as "caching:split_limit=64KiB"."""
        told = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.manager}:{told}" if told else self.manager

    def make(self, lease: Lease) -> MemoryManager:
        """Return a new manager with these options, whose segments ``lease`` holds."""
        found: MemoryManager = registry.find("memory manager", self.manager)(lease, **self.options)
        return found


MANAGERS = (
    *map(Setting, ("native", "exact", "expandable", "best-fit", "buddy", "slab", "by-category")),
    Setting("reserved", {"reserve": "1.0"}),
)
"""All managers other than the caching one.

The manager "reserved" reserves its whole device, so it is measured on the smallest device on which the trace succeeds.
"""


def caching(split: float | None, recycling: float | None) -> Setting:
    """Return the `Setting` of the caching manager with limits of splitting and recycling in MiB; None for no limit."""
    limits = {"split_limit": split, "recycling_limit": recycling}
    return Setting("caching", {name: f"{int(mib * 1024)}KiB" for name, mib in limits.items() if mib is not None})


def effective(limits: Limits, largest: int) -> Limits:
    """Return the pair of limits in which a limit that exceeds the largest segment, and so has no effect, is None.

    Args:
        largest: the largest request of the trace, in bytes.
    """
    segment = max(20 * MIB, -(-largest // (2 * MIB)) * 2 * MIB)
    split, recycling = (None if mib is None or mib * MIB > segment else mib for mib in limits)
    return split, recycling


def grid(largest: int, limits: tuple[float | None, ...] = LIMITS) -> list[Limits]:
    """Return all pairs of limits that differ in effect for a trace; the first is the default, without limits."""
    return list(dict.fromkeys(effective(pair, largest) for pair in product(limits, repeat=2)))


class Watched(MemoryManager):
    """A memory manager that passes each call on to another manager, and then stores two sums of bytes.

    The sums are those of the live blocks (`held`) and of the segments that have a live block (`in_use`).
    """

    wants_hint = True

    def __init__(self, device: Lease, setting: Setting) -> None:
        super().__init__(device)
        self.inner = setting.make(self.device)
        self.held: list[int] = []
        self.in_use: list[int] = []
        self._segments: dict[int, list[int]] = {}  # by id: how many live blocks, bytes
        self._sums = [0, 0]

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        block = self.inner.alloc(nbytes, stream, hint if self.inner.wants_hint else None)
        segment = self._segments.setdefault(block.segment.id, [0, 0])
        self._sums[0] += block.size
        self._sums[1] += block.segment.size - segment[1]  # it may have grown
        segment[:] = segment[0] + 1, block.segment.size
        self._write()
        return block

    def free(self, block: Block) -> None:
        number, size = block.segment.id, block.size
        self.inner.free(block)
        segment = self._segments[number]
        segment[0] -= 1
        self._sums[0] -= size
        if not segment[0]:
            self._sums[1] -= self._segments.pop(number)[1]
        self._write()

    def _write(self) -> None:
        self.held.append(self._sums[0])
        self.in_use.append(self._sums[1])


@dataclass(frozen=True)
class Measures:
    """The measurements of one manager with one setting on a trace.

    The parts "waste", "stranded" and "idle" are in units of the live requested bytes. So 1 + waste + stranded + idle =
    reserved / live, both at the peak of live bytes and on average (sums over all calls).

    Attributes:
        peak_reserved: the most bytes that are reserved from a device without a limit.
        needed: the bytes of the smallest device on which the trace can be replayed, to within `WITHIN`.
        at_peak, average: reserved / live, at the peak of live bytes and on average.
        waste_at_peak, waste: the bytes of blocks beyond the requested bytes, from rounding or from pieces not split.
        stranded_at_peak, stranded: free bytes in segments with a live block, which cannot be released.
        idle_at_peak, idle: the bytes of segments without any block.
        internal: waste / size of the live blocks, at the peak.
        unusable: at the peak, the fraction of the free bytes in holes that are smaller than the largest request.
        largest_hole: the largest hole at the peak, in bytes.
        native_calls: how often a segment was reserved, resized or released.
        ns_per_call: the time of one alloc or free.
    """

    peak_reserved: int
    needed: int
    at_peak: float
    average: float
    waste_at_peak: float
    waste: float
    stranded_at_peak: float
    stranded: float
    idle_at_peak: float
    idle: float
    internal: float
    unusable: float
    largest_hole: int
    native_calls: int
    ns_per_call: float


def measured(trace: Trace, setting: Setting) -> Measures:
    """Replay a trace on the manager that ``setting`` describes, and return the measurements."""
    capacity = None
    if "reserve" in setting.options:  # all of a device, so there must be one
        capacity = needed(trace, setting, 2 * trace.peak_live + (64 << 20))
    outcome = play(trace, setting.spec, capacity)
    watching: list[Watched] = []

    def watched(lease: Lease) -> Watched:
        watching.append(Watched(lease, setting))
        return watching[-1]

    play(trace, watched, capacity)
    held, in_use = np.array(watching[0].held), np.array(watching[0].in_use)
    live, reserved = outcome.live, outcome.reserved
    parts = {"waste": held - live, "stranded": in_use - held, "idle": reserved - in_use}
    peak = int(np.argmax(live))
    shares = {name: float(part.sum() / live.sum()) for name, part in parts.items()}
    shares |= {f"{name}_at_peak": float(part[peak] / live[peak]) for name, part in parts.items()}
    return Measures(
        outcome.peak_reserved, capacity or needed(trace, setting, outcome.peak_reserved), outcome.ratio_at_peak,
        outcome.ratio_average, internal=float(outcome.internal), unusable=outcome.unusable,
        largest_hole=outcome.largest_hole, native_calls=outcome.native_calls, ns_per_call=outcome.ns_per_call, **shares,
    )  # fmt: skip


def needed(trace: Trace, setting: Setting, enough: int) -> int:
    """Return the smallest capacity in bytes on which a trace succeeds, found by bisection.

    A manager that reaches the capacity releases idle segments and tries again. So the result can be less than the peak
    of the bytes that the manager reserves without a limit. For some managers a larger capacity than the result may not
    suffice.

    Args:
        trace: the trace.
        setting: the manager.
        enough: a capacity that suffices.
    """
    low, high = trace.peak_live, enough
    step = max(1, int(WITHIN * trace.peak_live))
    while high - low > step:
        middle = (low + high) // 2
        try:
            ends = play(trace, setting.spec, middle).first_oom is None
        except OutOfMemoryError:  # not even a pool that is taken at the start
            ends = False
        low, high = (low, middle) if ends else (middle, high)
    return high
