"""Exact-size free lists: a freed block serves a request of the same size, and no other."""

from __future__ import annotations

from typing import ClassVar

from flnb.interface.memory import AllocHint, Block, MemoryDevice, Segment
from flnb_backends.memory.cached import Cached, rounded, tunable

__all__ = ["ExactFit"]


class ExactFit(Cached):
    """Every block is a segment of its own, kept when it is freed: no search, no waste inside, no reuse across sizes.

    A training step that repeats asks for the same sizes again and finds them. One whose sizes change (sequences of
    other lengths) keeps memory for each that there ever was, until the device is full.

    Args:
        device: where segments come from; the host when not given.
        rounding: sizes are rounded up to multiples of this (bytes or a text), and of the device's granularity. Not
            given: ``FLNB_MEM_EXACT_ROUNDING``, else 512 bytes.
    """

    name: ClassVar[str] = "exact"

    def __init__(self, device: MemoryDevice | None = None, rounding: int | str | None = None) -> None:
        super().__init__(device)
        asked = tunable("ExactFit(rounding=...)", rounding, "FLNB_MEM_EXACT_ROUNDING", 512)
        self.rounding = rounded(asked, self.device.granularity)
        self.kept: dict[int, list[Segment]] = {}  # by size

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """The segment of this size that was freed last, or a new one."""
        size = rounded(nbytes, self.rounding)
        kept = self.kept.get(size)
        segment = kept.pop() if kept else self._reserve(size)
        return Block(segment.address, segment.size, segment)

    def free(self, block: Block) -> None:
        """Keep the segment for the next request of its size."""
        self.kept.setdefault(block.size, []).append(block.segment)

    def mend(self) -> None:
        """Keep every segment without a live block."""
        self.kept = {}
        for segment, blocks in self._tiled():
            if not blocks:
                self.kept.setdefault(segment.size, []).append(segment)

    def _release_free(self) -> None:
        for kept in self.kept.values():
            while kept:
                self.device.release(kept.pop())
