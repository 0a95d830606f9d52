"""The caching manager: caches freed memory, splits large free pieces, and merges free neighbours.

Sizes are rounded up to multiples of 512 bytes. Requests up to 1 MiB are served from segments of 2 MiB, and requests
below 10 MiB from segments of 20 MiB. For a larger request a separate segment is reserved, a multiple of 2 MiB. Each
request gets the smallest free piece that is large enough; of equal pieces, the one in the oldest segment at the lowest
address. The rest of the piece is split off if it has at least 512 bytes (1 MiB in the segments for large requests).
When the device is full, free segments are released and the request is tried once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flnb_backends.memory.cached import UNLIMITED, rounded, tunable
from flnb_backends.memory.pieces import MIB, MIN_BLOCK, Fitting, Pool

if TYPE_CHECKING:
    from flnb.interface.memory import AllocHint, Block, MemoryDevice
    from flnb_backends.memory.cached import Size

SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT = 10 * MIB
ROUND_SEGMENT = 2 * MIB


class Caching(Fitting):
    """Best fit: splits free pieces, merges free neighbours, and caches segments that are empty.

    Args:
        device: the device of the segments; the host by default.
        split_limit: free pieces of this size or more are not split (bytes or ``"64MiB"``). Default: the environment
            variable ``FLNB_MEM_SPLIT_SIZE_MB``, or else no limit.
        recycling_limit: free pieces of this size or more are not used again; their segment is released to the device
            as soon as it is empty. Default: ``FLNB_MEM_RECYCLING_SIZE_MB``, or else no limit.
    """

    name: ClassVar[str] = "caching"

    def __init__(
        self, device: MemoryDevice | None = None, split_limit: Size = None, recycling_limit: Size = None
    ) -> None:
        super().__init__(device)
        called = type(self).__name__
        self.split_limit = tunable(f"{called}(split_limit=...)", split_limit, "FLNB_MEM_SPLIT_SIZE_MB", UNLIMITED)
        self.recycling_limit = tunable(
            f"{called}(recycling_limit=...)", recycling_limit, "FLNB_MEM_RECYCLING_SIZE_MB", UNLIMITED
        )
        self.small, self.large = self.pools = self._two_pools()

    def _two_pools(self) -> tuple[Pool, ...]:
        """Return empty pools of free pieces for small and for large requests."""
        return Pool(), Pool(least=SMALL, recycling=self.recycling_limit)

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """Return a block in the smallest free piece that is large enough, or in a new segment."""
        size = (nbytes + 511) & -512 or MIN_BLOCK
        return self.take(self.small if size <= SMALL else self.large, size)

    def _segment_size(self, size: int) -> int:
        if size <= SMALL:
            return SMALL_SEGMENT
        return LARGE_SEGMENT if size < OWN_SEGMENT else rounded(size, ROUND_SEGMENT)
