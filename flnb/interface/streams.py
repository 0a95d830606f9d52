"""The contract for synchronizing streams that use the same device memory one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flnb.interface.memory import Block


class StreamOrder(Protocol):
    """Makes streams of a device wait for each other when they reuse memory; the contract of `MemoryDevice.order`."""

    def stream(self) -> int:
        """Return the handle of this thread's current stream."""

    def given(self, block: Block) -> None:
        """Make the current stream wait for all streams that have used the memory of a newly allocated block."""

    def freed(self, block: Block) -> None:
        """Store which streams (``block.streams``) have used a block that is about to be freed."""
