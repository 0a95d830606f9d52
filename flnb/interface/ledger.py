"""Statistics and live blocks of one memory manager."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.interface.memory import Block


class Ledger:
    """The statistics that flnb maintains for a memory manager.

    Attributes:
        allocs: the number of allocations so far.
        allocated, peak: the bytes of live blocks, now and at their maximum.
        live: the live blocks by id.
        places: the begin and end addresses of live blocks, sorted; empty for managers that are not `checked`.
        lock: the lock by which one thread at a time uses the manager.
    """

    drain: ClassVar[Callable[[Block | None], None]]
    """Frees all blocks whose arrays were deleted; `flnb.dispatch.freeing` sets it to its function `drain`."""

    __slots__ = ("allocated", "allocs", "live", "lock", "peak", "places")

    def __init__(self) -> None:
        self.allocs = self.allocated = self.peak = 0
        self.live: dict[int, Block] = {}
        self.places: list[tuple[int, int]] = []
        self.lock = threading.RLock()

    def vacate(self, address: int, size: int) -> None:
        """Remove the block of ``size`` bytes at ``address`` from `places`, if `places` has this block."""
        places, place = self.places, (address, address + size)
        index = bisect_left(places, place)
        if places[index : index + 1] == [place]:
            del places[index]
