"""Free lists by exact size: a freed block serves only requests of the same size."""

from __future__ import annotations

from typing import ClassVar

from flnb.interface.memory import AllocHint, Block, MemoryDevice, Segment
from flnb_backends.memory.cached import Cached, Size, rounded, tunable


class ExactFit(Cached):
    """Every block is a separate segment, which is cached when freed and reused only for requests of the same size.

    There is no search, and no waste inside blocks. Similar training steps request the same sizes, for which there are
    cached segments. If sizes change, as with sequences of many lengths, segments of every size are cached until the
    device is full.

    Args:
        device: the device of the segments; the host by default.
        rounding: sizes are rounded up to multiples of this (bytes or a string) and of the device's granularity.
            Default: the environment variable ``FLNB_MEM_EXACT_ROUNDING``, or else 512 bytes.
    """

    name: ClassVar[str] = "exact"

    def __init__(self, device: MemoryDevice | None = None, rounding: Size = None) -> None:
        super().__init__(device)
        asked = tunable("ExactFit(rounding=...)", rounding, "FLNB_MEM_EXACT_ROUNDING", 512)
        self.rounding = rounded(asked, self.device.granularity)
        self.kept: dict[int, list[Segment]] = {}  # by size

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """Return a block in the cached segment of this size that was freed last, or in a new segment."""
        size = rounded(nbytes, self.rounding)
        kept = self.kept.get(size)
        segment = kept.pop() if kept else self._reserve(size)
        return Block(segment.address, segment.size, segment)

    def free(self, block: Block) -> None:
        """Add the block's segment to the cache, for the next request of the same size."""
        self.kept.setdefault(block.size, []).append(block.segment)

    def mend(self) -> None:
        """Rebuild the free lists from the segments without a live block."""
        self.kept = {}
        for segment, blocks in self._tiled():
            if not blocks:
                self.kept.setdefault(segment.size, []).append(segment)

    def _release_free(self) -> None:
        for kept in self.kept.values():
            while kept:
                self.device.release(kept.pop())
