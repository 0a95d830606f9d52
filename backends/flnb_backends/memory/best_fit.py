"""Best fit with coalescing in one arena: the textbook's manager, all sizes side by side."""

from __future__ import annotations

from typing import ClassVar

from flnb.interface.memory import ALIGNMENT, AllocHint, Block, MemoryDevice
from flnb_backends.memory.cached import rounded, tunable
from flnb_backends.memory.pieces import Growing, Pool

__all__ = ["BestFit"]


class BestFit(Growing):
    """One arena for blocks of all sizes; the smallest hole that is large enough, then the lowest address.

    Args:
        device: where the arena comes from; the host when not given. On one that cannot make it larger, there are
            several.
        step: the arena grows by multiples of this (bytes or ``"2MiB"``, the default). Not given:
            ``FLNB_MEM_BEST_FIT_STEP``.
        rounding: sizes are rounded up to multiples of this many bytes, itself one of 64 (64 by default). Not given:
            ``FLNB_MEM_BEST_FIT_ROUNDING``.

    >>> import flnb
    >>> manager = flnb.memory.BestFit(flnb.memory.SimulatedDevice())
    >>> a, b, c = (flnb.memory.allocate(manager, size) for size in (3000, 5 << 20, 100))
    >>> c.address - a.address == a.size + b.size
    True
    """

    name: ClassVar[str] = "best-fit"

    def __init__(
        self,
        device: MemoryDevice | None = None,
        step: int | str | None = None,
        rounding: int | str | None = None,
    ) -> None:
        super().__init__(device)
        self.step = tunable("BestFit(step=...)", step, "FLNB_MEM_BEST_FIT_STEP", "2MiB")
        self.rounding = rounded(
            tunable("BestFit(rounding=...)", rounding, "FLNB_MEM_BEST_FIT_ROUNDING", ALIGNMENT), ALIGNMENT
        )
        self.arena = Pool(least=self.rounding)
        self.pools = (self.arena,)

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """The best fitting hole, or the end of the arena, which grows for it."""
        return self.take(self.arena, rounded(nbytes, self.rounding))
