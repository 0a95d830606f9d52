"""The buddy system (Knowlton, 1965): sizes are powers of two, and a block's other half is found from its address."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from flnb.interface.memory import ALIGNMENT, AllocHint, Block, MemoryDevice, Segment
from flnb_backends.memory.cached import Cached, Size, tunable


class Buddy(Cached):
    """Buddy allocation: sizes are powers of two; larger blocks are halved, and free halves are merged.

    The time of a call is at most proportional to the number of sizes, and no free piece is too small to be used. But on
    average a quarter of each block is wasted, and at worst half of it.

    Args:
        device: the device of the segments; the host by default.
        arena: size of the segments (bytes or a string), a power of two; larger requests get larger ones. Default: the
            environment variable ``FLNB_MEM_BUDDY_ARENA``, or else ``"64MiB"``.
        smallest: size of the smallest block, a power of two, at least 64 bytes. Default: ``FLNB_MEM_BUDDY_SMALLEST``,
            or else 512 bytes.

    >>> import flnb
    >>> manager = flnb.memory.Buddy(flnb.memory.SimulatedDevice())
    >>> [flnb.memory.allocate(manager, size).size for size in (700, 1024, 1025)]
    [1024, 1024, 2048]
    """

    name: ClassVar[str] = "buddy"

    def __init__(self, device: MemoryDevice | None = None, arena: Size = None, smallest: Size = None) -> None:
        super().__init__(device)
        self.arena = _power("arena", tunable("Buddy(arena=...)", arena, "FLNB_MEM_BUDDY_ARENA", "64MiB"))
        self.smallest = _power("smallest", tunable("Buddy(smallest=...)", smallest, "FLNB_MEM_BUDDY_SMALLEST", 512))
        if self.arena < max(self.smallest, self.device.granularity):
            raise ValueError(
                f"Buddy: arena={self.arena} bytes, expected at least the smallest block ({self.smallest}) and the "
                f"granularity of the device ({self.device.granularity})"
            )
        self.holes: defaultdict[int, dict[int, Segment]] = defaultdict(dict)  # by size, the segment of each address

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """Return a block: the smallest free block that is large enough is halved until a half would be too small."""
        size = max(self.smallest, 1 << (nbytes - 1).bit_length()) if nbytes > 1 else self.smallest
        holes = self.holes
        have = min((hole for hole in holes if hole >= size and holes[hole]), default=0)
        if have:
            address, segment = holes[have].popitem()
        else:
            segment = self._reserve(max(self.arena, size))
            address, have = segment.address, segment.size
        while have > size:
            have >>= 1
            holes[have][address + have] = segment
        return Block(address, size, segment)

    def free(self, block: Block) -> None:
        """Free a block. As long as the block's other half is free, too, merge both into one block of twice the size."""
        address, size, segment = block.address, block.size, block.segment
        begin, whole = segment.address, segment.size
        while size < whole:
            other = begin + (address - begin ^ size)
            if self.holes[size].pop(other, None) is None:
                break
            address = min(address, other)
            size <<= 1
        self.holes[size][address] = segment

    def mend(self) -> None:
        """Rebuild the lists of free blocks: halve every segment until its live blocks are apart from free blocks."""
        self.holes.clear()
        for segment, blocks in self._tiled():
            waiting = [(segment.address, segment.size, blocks)]
            while waiting:
                address, size, inside = waiting.pop()
                if not inside:
                    self.holes[size][address] = segment
                elif inside[0].size < size:
                    size >>= 1
                    middle = address + size
                    waiting.append((address, size, [block for block in inside if block.address < middle]))
                    waiting.append((middle, size, [block for block in inside if block.address >= middle]))

    def _release_free(self) -> None:
        for size, holes in list(self.holes.items()):
            for address, segment in list(holes.items()):
                if size == segment.size:
                    del holes[address]
                    self.device.release(segment)


def _power(what: str, nbytes: int) -> int:
    """Return ``nbytes``, or raise ValueError if it is not a power of two, or is below the alignment of blocks.

    Args:
        what: name of the setting, for the error.
    """
    if nbytes & (nbytes - 1) or nbytes < ALIGNMENT:
        raise ValueError(f"Buddy({what}={nbytes}): expected a power of two, at least {ALIGNMENT} bytes")
    return nbytes
