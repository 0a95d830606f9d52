"""The caching manager: it keeps freed memory, splits large pieces, and merges neighbours again.

Sizes are rounded up to 512 bytes. Up to 1 MiB they come out of segments of 2 MiB, below 10 MiB out of 20 MiB, above
out of a segment of their own, a multiple of 2 MiB. The best fit is taken: the smallest free piece, then the first in
the oldest segment. The remainder is split off if it is worth keeping (512 bytes of a small piece, 1 MiB of a large
one). When the device is full, free segments are returned and the request is tried once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flnb_backends.memory.cached import UNLIMITED, rounded, tunable
from flnb_backends.memory.pieces import MIB, MIN_BLOCK, Fitting, Pool

if TYPE_CHECKING:
    from flnb.interface.memory import AllocHint, Block, MemoryDevice

__all__ = ["Caching"]

SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT = 10 * MIB
ROUND_SEGMENT = 2 * MIB


class Caching(Fitting):
    """Best fit with splitting and merging over cached segments.

    Args:
        device: where segments come from; the host when not given.
        split_limit: pieces of this size or more are given out whole (bytes or ``"64MiB"``). Not given: the
            environment variable ``FLNB_MEM_SPLIT_SIZE_MB``, else no limit.
        recycling_limit: large pieces of this size or more are not given out again: they go back to the device as
            soon as their segment holds nothing. Not given: ``FLNB_MEM_RECYCLING_SIZE_MB``, else no limit.
    """

    name: ClassVar[str] = "caching"

    def __init__(
        self,
        device: MemoryDevice | None = None,
        split_limit: int | str | None = None,
        recycling_limit: int | str | None = None,
    ) -> None:
        super().__init__(device)
        called = type(self).__name__
        self.split_limit = tunable(f"{called}(split_limit=...)", split_limit, "FLNB_MEM_SPLIT_SIZE_MB", UNLIMITED)
        self.recycling_limit = tunable(
            f"{called}(recycling_limit=...)", recycling_limit, "FLNB_MEM_RECYCLING_SIZE_MB", UNLIMITED
        )
        self.small, self.large = self.pools = self._two_pools()

    def _two_pools(self) -> tuple[Pool, ...]:
        return Pool(), Pool(least=SMALL, recycling=self.recycling_limit)

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """The best fitting free piece, or a piece of a new segment."""
        size = (nbytes + 511) & -512 or MIN_BLOCK
        return self.take(self.small if size <= SMALL else self.large, size)

    def _segment_size(self, size: int) -> int:
        if size <= SMALL:
            return SMALL_SEGMENT
        return LARGE_SEGMENT if size < OWN_SEGMENT else rounded(size, ROUND_SEGMENT)
