"""Best fit with merging in one segment for all sizes: the textbook allocator."""

from __future__ import annotations

from typing import ClassVar

from flnb.interface.memory import ALIGNMENT, AllocHint, Block, MemoryDevice
from flnb_backends.memory.cached import Size, rounded, tunable
from flnb_backends.memory.pieces import Growing, Pool


class BestFit(Growing):
    """Best fit: places a block in the smallest free piece that is large enough, at the lowest address of equal pieces.

    One segment is used for blocks of all sizes. The segment grows at its end. On devices that cannot enlarge a segment,
    further segments are reserved.

    Args:
        device: the device of the segment; the host by default.
        step: the segment grows by multiples of this size (bytes or a string). Default: the environment variable
            ``FLNB_MEM_BEST_FIT_STEP``, or else ``"2MiB"``.
        rounding: sizes are rounded up to multiples of this many bytes, which is a multiple of 64. Default:
            ``FLNB_MEM_BEST_FIT_ROUNDING``, or else 64.

    >>> import flnb
    >>> manager = flnb.memory.BestFit(flnb.memory.SimulatedDevice())
    >>> a, b, c = (flnb.memory.allocate(manager, size) for size in (3000, 5 << 20, 100))
    >>> c.address - a.address == a.size + b.size
    True
    """

    name: ClassVar[str] = "best-fit"

    def __init__(self, device: MemoryDevice | None = None, step: Size = None, rounding: Size = None) -> None:
        super().__init__(device)
        self.step = tunable("BestFit(step=...)", step, "FLNB_MEM_BEST_FIT_STEP", "2MiB")
        self.rounding = rounded(
            tunable("BestFit(rounding=...)", rounding, "FLNB_MEM_BEST_FIT_ROUNDING", ALIGNMENT), ALIGNMENT
        )
        self.arena = Pool(least=self.rounding)
        self.pools = (self.arena,)

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """Return a block in the smallest free piece that is large enough; if there is none, the segment grows."""
        return self.take(self.arena, rounded(nbytes, self.rounding))
