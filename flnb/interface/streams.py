"""The contract by which a memory device orders the streams that use its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flnb.interface.memory import Block

__all__ = ["StreamOrder"]


class StreamOrder(Protocol):
    """Orders the streams of a device by the blocks that they use: the contract of `MemoryDevice.order`."""

    def stream(self) -> int:
        """Return the stream in which this thread's work runs now."""

    def given(self, block: Block) -> None:
        """Let the present stream wait for all that have used the memory of a block which has just been allocated."""

    def freed(self, block: Block) -> None:
        """Note the streams that have used a block which is about to go back to its manager."""
