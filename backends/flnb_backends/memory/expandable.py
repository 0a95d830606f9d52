"""The caching manager over segments that grow: the next request continues in the room that one leaves at the end.

As in PyTorch's expandable segments: one segment for small pieces and one for large ones, so that no room is lost
between segments, and every remainder is split off, since it will be merged again with its neighbour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flnb_backends.memory.cached import UNLIMITED, tunable
from flnb_backends.memory.caching import SMALL
from flnb_backends.memory.pieces import MIN_BLOCK, Growing, Pool

if TYPE_CHECKING:
    from flnb.interface.memory import AllocHint, Block, MemoryDevice

__all__ = ["Expandable"]


class Expandable(Growing):
    """Best fit with splitting and merging over two segments that grow in place: up to 1 MiB, and above.

    Args:
        device: where segments come from; the host when not given. On one that cannot resize, segments are as large as
            the request that began them.
        split_limit: pieces of this size or more are given out whole (bytes or ``"64MiB"``). Not given: the
            environment variable ``FLNB_MEM_SPLIT_SIZE_MB``, else no limit.
        step: segments grow by multiples of this (bytes, or ``"2MiB"``, the default and a page of a GPU). Not given:
            ``FLNB_MEM_EXPANDABLE_STEP``.

    >>> import flnb
    >>> manager = flnb.memory.Expandable(flnb.memory.SimulatedDevice())
    >>> blocks = [flnb.memory.allocate(manager, 3 << 20) for _ in range(5)]
    >>> manager.stats()["segments"], manager.stats()["reserved"] >> 20
    (1, 16)
    """

    name: ClassVar[str] = "expandable"

    def __init__(
        self,
        device: MemoryDevice | None = None,
        split_limit: int | str | None = None,
        step: int | str | None = None,
    ) -> None:
        super().__init__(device)
        self.split_limit = tunable("Expandable(split_limit=...)", split_limit, "FLNB_MEM_SPLIT_SIZE_MB", UNLIMITED)
        self.step = tunable("Expandable(step=...)", step, "FLNB_MEM_EXPANDABLE_STEP", "2MiB")
        self.small, self.large = self.pools = Pool(), Pool()

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """The best fitting free piece, or one at the end of the segment, which grows for it."""
        size = (nbytes + 511) & -512 or MIN_BLOCK
        return self.take(self.small if size <= SMALL else self.large, size)
