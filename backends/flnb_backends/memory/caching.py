"""The caching manager: keeps what was freed, cuts large pieces up, and puts neighbours together again.

Sizes are rounded up to 512 bytes. Up to 1 MiB they come out of segments of 2 MiB, below 10 MiB out of 20 MiB, above
out of a segment of their own, a multiple of 2 MiB. The best fit is taken: the smallest free piece, then the lowest
address. What is left over is split off when it is worth keeping (512 bytes of a small piece, 1 MiB of a large one).
When the device is full, segments that hold nothing go back and the request is tried once more.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from typing import ClassVar, TypeAlias

from flnb_telemetry.quantity import bytes_of

from flnb.interface.memory import AllocHint, Block, MemoryDevice, MemoryManager, Segment

__all__ = ["Caching"]

MIB = 1 << 20
MIN_BLOCK = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT = 10 * MIB
ROUND_SEGMENT = 2 * MIB
UNLIMITED = 1 << 62


class Piece(Block):
    """A block, free or not, that knows its neighbours in the segment and the pool it belongs to."""

    __slots__ = ("free", "left", "pool", "right")

    def __init__(self, address: int, size: int, segment: Segment, pool: Pool, left: Piece | None = None) -> None:
        super().__init__(address, size, segment)
        self.free, self.pool, self.left = True, pool, left
        self.right: Piece | None = None

    def unpool(self) -> None:
        """Leave the pool; an interrupted call may have done it already."""
        index = bisect_left(self.pool, (self.size, self.address))
        if index < len(self.pool) and self.pool[index][2] is self:
            del self.pool[index]

    def join(self, right: Piece) -> None:
        """Take over the right neighbour's room, and its neighbour."""
        self.size += right.size
        self.right = after = right.right
        if after is not None:
            after.left = self


Pool: TypeAlias = "list[tuple[int, int, Piece]]"
"""Free pieces, sorted by size, then address."""


class Caching(MemoryManager):
    """Best fit with splitting and merging over cached segments.

    Args:
        device: where segments come from; the host when not given.
        split_limit: pieces of this size or more are given out whole (bytes or ``"64MiB"``). Not given: the
            environment variable ``FLNB_MEM_SPLIT_SIZE_MB``, else no limit.
        recycling_limit: large pieces of this size or more are not given out again: they go back to the device as
            soon as their segment holds nothing. Not given: ``FLNB_MEM_RECYCLING_SIZE_MB``, else no limit.
    """

    name: ClassVar[str] = "caching"
    wants_hint: ClassVar[bool] = False
    checked: ClassVar[bool] = False

    def __init__(
        self,
        device: MemoryDevice | None = None,
        split_limit: int | str | None = None,
        recycling_limit: int | str | None = None,
    ) -> None:
        super().__init__(device)
        self.split_limit = _limit("Caching(split_limit=...)", split_limit, "FLNB_MEM_SPLIT_SIZE_MB")
        self.recycling_limit = _limit("Caching(recycling_limit=...)", recycling_limit, "FLNB_MEM_RECYCLING_SIZE_MB")
        self.small: Pool = []
        self.large: Pool = []

    # Ctrl-C can interrupt these methods between any two calls. The order of the statements is such that it can lose
    # the piece at hand at worst, never give memory out twice; a lost piece comes back with its neighbours.

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """The best fitting free piece, or a piece of a new segment."""
        size = (nbytes + 511) & -512 or MIN_BLOCK
        small = size <= SMALL
        pool = self.small if small else self.large
        index = bisect_left(pool, (size,))
        if index < len(pool) and (small or pool[index][0] < self.recycling_limit):
            piece = pool.pop(index)[2]
        else:
            piece = self._grow(size, pool)
        whole = piece.size
        if whole - size >= (MIN_BLOCK if small else SMALL) and whole < self.split_limit:
            rest = Piece(piece.address + size, whole - size, piece.segment, pool, piece)
            rest.right = right = piece.right
            if right is not None:
                right.left = rest
            piece.right = rest
            piece.size = size
            insort(pool, (rest.size, rest.address, rest))
        piece.free = False
        return piece

    def free(self, block: Block) -> None:
        """Merge the block with its free neighbours and keep it for later."""
        piece: Piece = block  # type: ignore[assignment]
        if piece.free:
            raise ValueError(f"free: {piece!r} of {self!r} was freed before")
        piece.free = True
        pool, left, right = piece.pool, piece.left, piece.right
        if left is not None and left.free:
            left.unpool()
            left.join(piece)
            piece = left
        if right is not None and right.free:
            right.unpool()
            piece.join(right)
        if piece.size >= self.recycling_limit and pool is self.large and piece.left is piece.right is None:
            self.device.release(piece.segment)
        else:
            insort(pool, (piece.size, piece.address, piece))

    def release_cached(self) -> int:
        """Give every segment that holds nothing back to the device; returns their bytes."""
        self.settle()
        with self.ledger:
            before = self.device.reserved
            for pool in self.small, self.large:
                for _, _, piece in [entry for entry in pool if entry[2].left is entry[2].right is None]:
                    piece.unpool()
                    self.device.release(piece.segment)
            return int(before - self.device.reserved)

    def _grow(self, size: int, pool: Pool) -> Piece:
        if size <= SMALL:
            wanted = SMALL_SEGMENT
        else:
            wanted = LARGE_SEGMENT if size < OWN_SEGMENT else -(-size // MIB // 2) * ROUND_SEGMENT
        try:
            segment = self.device.reserve(wanted)
        except MemoryError:
            if not self.release_cached():
                raise
            segment = self.device.reserve(wanted)
        return Piece(segment.address, segment.size, segment, pool)


def _limit(name: str, given: int | str | None, variable: str) -> int:
    """A limit in bytes: what was given, or else the environment's MiB, or else none."""
    if given is None and (text := os.environ.get(variable)):
        given, name = f"{text}MiB", f"the environment variable {variable}, a number of MiB,"
    return UNLIMITED if given is None else bytes_of(given, name)
