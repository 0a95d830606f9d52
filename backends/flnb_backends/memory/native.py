"""The native manager: every block is a separate segment."""

from __future__ import annotations

from typing import ClassVar

from flnb.interface.memory import AllocHint, Block, MemoryManager


class Native(MemoryManager):
    """Reserves a segment of the device for every block, and releases it when the block is freed.

    There is no cache and no fragmentation, but every allocation is a call to the device.
    """

    name: ClassVar[str] = "native"
    wants_hint: ClassVar[bool] = False

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """Return a block that fills a new segment."""
        segment = self.device.reserve(max(nbytes, 1))
        return Block(segment.address, segment.size, segment)

    def free(self, block: Block) -> None:
        """Release the block's segment."""
        self.device.release(block.segment)

    def mend(self) -> None:
        """Release every segment without a live block."""
        used = {block.segment.id for block in self.ledger.live.values()}
        for segment in list(self.device.segments.values()):
            if segment.id not in used:
                self.device.release(segment)
