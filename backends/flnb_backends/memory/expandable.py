"""The caching manager with segments that grow in place, like PyTorch's expandable segments.

There is one segment for small requests and one for large requests, so no memory is wasted at the ends of many segments.
If a request needs only a part of a free piece, the rest is always split off and can be merged with its neighbour later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flnb_backends.memory.cached import UNLIMITED, tunable
from flnb_backends.memory.caching import SMALL
from flnb_backends.memory.pieces import MIN_BLOCK, Growing, Pool

if TYPE_CHECKING:
    from flnb.interface.memory import AllocHint, Block, MemoryDevice
    from flnb_backends.memory.cached import Size


class Expandable(Growing):
    """Best fit with splitting and merging in two segments that grow in place: for requests up to 1 MiB, and above.

    Args:
        device: the device of the segments; the host by default. On devices that cannot enlarge a segment, a new segment
            is reserved for each request that does not fit.
        split_limit: free pieces of this size or more are not split (bytes or ``"64MiB"``). Default: the environment
            variable ``FLNB_MEM_SPLIT_SIZE_MB``, or else no limit.
        step: segments grow by multiples of this size (bytes or a string). Default: ``FLNB_MEM_EXPANDABLE_STEP``, or
            else ``"2MiB"``, the size of a GPU's pages.

    >>> import flnb
    >>> manager = flnb.memory.Expandable(flnb.memory.SimulatedDevice())
    >>> blocks = [flnb.memory.allocate(manager, 3 << 20) for _ in range(5)]
    >>> manager.stats()["segments"], manager.stats()["reserved"] >> 20
    (1, 16)
    """

    name: ClassVar[str] = "expandable"

    def __init__(self, device: MemoryDevice | None = None, split_limit: Size = None, step: Size = None) -> None:
        super().__init__(device)
        self.split_limit = tunable("Expandable(split_limit=...)", split_limit, "FLNB_MEM_SPLIT_SIZE_MB", UNLIMITED)
        self.step = tunable("Expandable(step=...)", step, "FLNB_MEM_EXPANDABLE_STEP", "2MiB")
        self.small, self.large = self.pools = Pool(), Pool()

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """Return a block in the smallest free piece that is large enough; if there is none, a segment grows."""
        size = (nbytes + 511) & -512 or MIN_BLOCK
        return self.take(self.small if size <= SMALL else self.large, size)
