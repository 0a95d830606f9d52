"""Slabs (Bonwick, 1994): segments divided into slots of one size, so that free slots need no merging."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from flnb.interface.memory import ALIGNMENT, AllocHint, Block, MemoryDevice, Segment
from flnb_backends.memory.cached import Cached, Size, rounded, tunable

FINEST = ALIGNMENT.bit_length() - 1  # classes are at least 64 bytes apart


class Shelf:
    """A slab: a segment divided into slots of one size.

    Attributes:
        size: the bytes of a slot.
        slots: the number of slots.
        live: the number of slots in use.
        fresh: the address of the first slot that was never used.
        free: addresses of the slots that were used and freed.
    """

    __slots__ = ("free", "fresh", "live", "segment", "size", "slots")

    def __init__(self, segment: Segment, size: int, slots: int) -> None:
        self.segment, self.size, self.slots = segment, size, slots
        self.live = 0
        self.fresh = segment.address
        self.free: list[int] = []


class Slot(Block):
    """A block with a reference to its slab."""

    __slots__ = ("shelf",)
    shelf: Shelf


class Slab(Cached):
    """Slab allocation: sizes are rounded up to four classes per power of two; blocks of a class share slabs.

    A block larger than a quarter of a slab gets a separate slab of its rounded size. An empty slab can be used by any
    class that needs a slab of that size. At most a fifth of a block above 256 bytes is wasted.

    Args:
        device: the device of the slabs; the host by default.
        slab: size of a slab (bytes or a string). Default: the environment variable ``FLNB_MEM_SLAB``, or else
            ``"2MiB"``.

    >>> import flnb
    >>> manager = flnb.memory.Slab(flnb.memory.SimulatedDevice())
    >>> [flnb.memory.allocate(manager, size).size for size in (100, 1000, 1025, 5 << 20)]
    [128, 1024, 1280, 5242880]
    """

    name: ClassVar[str] = "slab"

    def __init__(self, device: MemoryDevice | None = None, slab: Size = None) -> None:
        super().__init__(device)
        asked = tunable("Slab(slab=...)", slab, "FLNB_MEM_SLAB", "2MiB")
        self.slab = rounded(asked, self.device.granularity)
        self.open: defaultdict[int, dict[Shelf, None]] = defaultdict(dict)  # by class, those with a slot, oldest first
        self.empty: defaultdict[int, list[Segment]] = defaultdict(list)  # by size

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """Return a free slot of the oldest slab that has one, or a slot of a new slab."""
        coarse = (nbytes - 1).bit_length() - 3 if nbytes > 0 else 0
        size = rounded(nbytes, 1 << max(FINEST, coarse))
        shelves = self.open[size]
        shelf = next(iter(shelves), None) or self._shelf(size)
        if shelf.free:
            address = shelf.free.pop()
        else:
            address = shelf.fresh
            shelf.fresh += size
        shelf.live += 1
        if shelf.live < shelf.slots:
            shelves[shelf] = None
        else:
            shelves.pop(shelf, None)
        slot = Slot(address, size, shelf.segment)
        slot.shelf = shelf
        return slot

    def free(self, block: Block) -> None:
        """Free the block's slot, and also the slab if it has no other block."""
        shelf: Shelf = block.shelf  # type: ignore[attr-defined]
        shelves = self.open[shelf.size]
        shelf.live -= 1
        if shelf.live:
            shelf.free.append(block.address)
            shelves[shelf] = None
        else:
            shelves.pop(shelf, None)
            self.empty[shelf.segment.size].append(shelf.segment)

    def mend(self) -> None:
        """Rebuild the lists of slabs from the live slots."""
        self.open.clear()
        self.empty.clear()
        for segment, slots in self._tiled():
            if not slots:
                self.empty[segment.size].append(segment)
                continue
            shelf: Shelf = slots[0].shelf  # type: ignore[attr-defined]
            taken = {slot.address for slot in slots}
            shelf.fresh = segment.address + shelf.slots * shelf.size
            places = range(segment.address, shelf.fresh, shelf.size)
            shelf.free, shelf.live = [place for place in reversed(places) if place not in taken], len(slots)
            if shelf.free:
                self.open[shelf.size][shelf] = None

    def _shelf(self, size: int) -> Shelf:
        """Return an empty slab for slots of ``size`` bytes."""
        shared = size <= self.slab // 4
        room = self.slab if shared else rounded(size, self.device.granularity)
        empty = self.empty[room]
        segment = empty.pop() if empty else self._reserve(room)
        return Shelf(segment, size, room // size if shared else 1)

    def _release_free(self) -> None:
        for empty in self.empty.values():
            while empty:
                self.device.release(empty.pop())
