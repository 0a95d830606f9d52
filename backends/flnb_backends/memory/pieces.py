"""Best fit: free pieces of memory are split to the requested size, and merged with free neighbours.

`Fitting` uses segments of fixed size, and `Growing` segments that are enlarged in place. Derived classes decide how
sizes are rounded, and from which pool of free pieces a request is served.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from flnb.interface.memory import Block, Segment
from flnb_backends.memory.cached import UNLIMITED, Cached, rounded

MIB = 1 << 20
MIN_BLOCK = 512


class Piece(Block):
    """A part of a segment, in use or free, with references to its neighbours in the segment and to its pool."""

    __slots__ = ("free", "left", "pool", "right")

    def __init__(self, address: int, size: int, segment: Segment, pool: Pool, left: Piece | None = None) -> None:
        # like Block.__init__, whose call would take as long as the rest
        self.address = address
        self.size = size
        self.segment = segment
        self.id = self.requested = self.category = self.dropped = self.locks = 0
        self.free = True
        self.pool = pool
        self.left = left
        self.manager = self.owner = None
        self.right: Piece | None = None

    def unpool(self) -> None:
        """Remove the piece from the free pieces of its pool."""
        pool = self.pool
        if pool.loose is self:
            pool.loose = None
            return
        listed = pool.listed
        index = bisect_left(listed, (self.size, self.segment.id, self.address))
        if index < len(listed) and listed[index][3] is self:
            del listed[index]

    def keep(self) -> None:
        """Add the piece to the free pieces of its pool."""
        insort(self.pool.listed, (self.size, self.segment.id, self.address, self))

    def join(self, right: Piece) -> None:
        """Merge the right neighbour into this piece; the neighbour's object becomes one of the pool's spare objects."""
        self.size += right.size
        self.right = after = right.right
        if after is not None:
            after.left = self
        pool = self.pool
        right.right = pool.spare
        pool.spare = right

    @property
    def whole(self) -> bool:
        """Return whether the piece fills its segment."""
        return self.size == self.segment.size


class Pool:
    """A set of free pieces from which requests are served.

    Attributes:
        listed: free pieces, as tuples (size, id of the segment, address, piece), sorted. The id comes before the
            address because operating systems return addresses in any order, and a program should get the same pieces in
            every run and in replays.
        loose: one free piece that is not listed, None if there is none. Mostly it is the rest of a segment, from which
            blocks are split off and into which they are merged. Adding it to ``listed`` after each split or merge would
            take longer than the split or merge.
        least: the smallest rest, in bytes, that is split off a piece; a smaller rest remains a part of the block.
        recycling: a free piece of this many bytes or more is not used again; its segment is released when it is empty.
        end: in a growing segment, a piece of 0 bytes at the segment's end that is never free; its left neighbour is
            the last piece of the segment. None for other segments.
        spare: an unused `Piece` object, left over from a merge; its attribute `right` is the next one. A split uses
            this object, because creating a new one would take as long as the rest of the split.
    """

    __slots__ = ("end", "least", "listed", "loose", "recycling", "spare")

    def __init__(self, least: int = MIN_BLOCK, recycling: int = UNLIMITED) -> None:
        self.listed: list[tuple[int, int, int, Piece]] = []
        self.least, self.recycling = least, recycling
        self.loose: Piece | None = None
        self.end: Piece | None = None
        self.spare: Piece | None = None

    @property
    def entries(self) -> list[tuple[int, int, int, Piece]]:
        """Return the list of all free pieces, after adding the piece `loose` to the list."""
        if self.loose is not None:
            self.loose.keep()
            self.loose = None
        return self.listed


class Fitting(Cached):
    """Serves a request from the smallest free piece that is large enough, and splits off the rest.

    Of equal pieces, the one in the oldest segment at the lowest address is taken.
    """

    split_limit = UNLIMITED
    pools: tuple[Pool, ...] = ()

    def take(self, pool: Pool, size: int) -> Piece:
        """Return a piece of at least ``size`` bytes, which is no longer free.

        It is the smallest of the pool's free pieces that are large enough or, if none is, a piece of a new segment.
        A larger piece is split, and the remainder stays free, unless the remainder would be too small.
        """
        listed, piece = pool.listed, pool.loose
        index = bisect_left(listed, (size,))
        least = listed[index][0] if index < len(listed) else UNLIMITED
        if least > pool.recycling:
            least = pool.recycling
        if piece is not None and size <= piece.size < least:
            pool.loose = None
        else:
            if piece is not None and piece.size == least:  # the list decides which of equal pieces is the first
                piece.keep()
                pool.loose = None
            piece = listed.pop(index)[3] if least < pool.recycling else self._grow(pool, size)
        whole = piece.size
        if whole - size >= pool.least and whole < self.split_limit:
            rest = pool.spare
            if rest is None:
                rest = Piece(piece.address + size, whole - size, piece.segment, pool, piece)
            else:
                pool.spare = rest.right
                rest.address = piece.address + size
                rest.size = whole - size
                rest.segment = piece.segment
                rest.left = piece
            rest.right = right = piece.right
            if right is not None:
                right.left = rest
            piece.right = rest
            piece.size = size
            loose = pool.loose
            if loose is not None:
                insort(listed, (loose.size, loose.segment.id, loose.address, loose))
            pool.loose = rest
        piece.free = False
        return piece

    def free(self, block: Block) -> None:
        """Merge the block with its free neighbours and add it to its pool."""
        piece: Piece = block  # type: ignore[assignment]
        if piece.free:
            raise ValueError(f"free: {piece!r} of {self!r} was already freed")
        pool, left, right = piece.pool, piece.left, piece.right
        if pool.recycling < UNLIMITED and self._recycled(piece):
            return
        piece.free = True
        if right is not None and right.free:
            if right is pool.loose:
                pool.loose = None
            else:
                right.unpool()
            piece.size += right.size
            piece.right = after = right.right
            if after is not None:
                after.left = piece
            right.right = pool.spare
            pool.spare = right
        if left is not None and left.free:
            left.unpool()
            left.join(piece)
            piece = left
        loose = pool.loose
        if loose is not None:
            insort(pool.listed, (loose.size, loose.segment.id, loose.address, loose))
        pool.loose = piece

    def mend(self) -> None:
        """Rebuild the free pieces from the gaps between blocks in use; segments without such blocks are released."""
        for pool in self.pools:
            pool.listed.clear()
            pool.loose = pool.spare = None
        for segment, blocks in self._tiled():
            if blocks:
                self._retile(segment, blocks)  # type: ignore[arg-type]
            else:
                self._emptied(segment)

    def _retile(self, segment: Segment, live: list[Piece]) -> None:
        """Rebuild a segment's list of pieces from the pieces in use, sorted by address, and new free pieces between."""
        pool, position, last, ends = live[0].pool, segment.address, None, segment.address + segment.size
        for piece in (*live, None):
            begins = ends if piece is None else piece.address
            if begins > position:
                hole = Piece(position, begins - position, segment, pool, last)
                last = _linked(last, hole)
                hole.keep()
            if piece is not None:
                piece.free = False
                last, position = _linked(last, piece), begins + piece.size
        _linked(last, None)

    def _emptied(self, segment: Segment) -> None:
        """Release a segment without blocks in use."""
        self.device.release(segment)

    def _recycled(self, piece: Piece) -> bool:
        """Release the segment of a piece being freed if the segment is empty then, and too large to be cached.

        Return whether the segment was released.
        """
        beside = [one for one in (piece.left, piece.right) if one is not None and one.free]
        size = piece.size + sum(one.size for one in beside)
        if size < piece.pool.recycling or size != piece.segment.size:
            return False
        for one in beside:
            one.unpool()
        try:
            self.device.release(piece.segment)
        except Exception:  # nothing has changed: the block stays allocated
            for one in beside:
                one.keep()
            raise
        piece.free = True
        return True

    def _grow(self, pool: Pool, size: int) -> Piece:
        """Return a free piece of at least ``size`` bytes in a new segment, without adding it to the pool's entries."""
        segment = self._reserve(self._segment_size(size))
        return Piece(segment.address, segment.size, segment, pool)

    def _segment_size(self, size: int) -> int:
        """Return the size of the segment to reserve for a request of ``size`` bytes."""
        return rounded(size, 2 * MIB)

    def _release_free(self) -> None:
        for pool in self.pools:
            pool.spare = None  # it may refer to a segment that is released now
            for *_, piece in [entry for entry in pool.entries if entry[3].whole]:
                self._give_back(piece)

    def _give_back(self, piece: Piece) -> None:
        """Release the segment that a free piece fills."""
        piece.unpool()
        self.device.release(piece.segment)


def _linked(left: Piece | None, right: Piece | None) -> Piece | None:
    """Make two pieces neighbours, either of which may be None, and return the right one."""
    if left is not None:
        left.right = right
    if right is not None:
        right.left = left
    return right


class Growing(Fitting):
    """Best fit in one segment for each pool; the segment grows at its end by multiples of `step` bytes.

    If the device cannot enlarge a segment, another one is reserved. Free memory at a segment's end is released to the
    device when memory is short, or by `release_cached`.
    """

    step = 2 * MIB

    def _grow(self, pool: Pool, size: int) -> Piece:
        try:
            return self._extended(pool, size, self.step)
        except MemoryError:
            self._shrink()
            return self._extended(pool, size, 1)

    def _extended(self, pool: Pool, size: int, step: int) -> Piece:
        """Enlarge the pool's segment, or reserve a new one; return a free piece of ``size`` bytes or more at its end.

        Args:
            pool: the pool for which memory is needed.
            size: the bytes of the request.
            step: the segment grows by a multiple of this many bytes.
        """
        end = pool.end
        if end is not None and (last := end.left) is not None:
            segment, lacks = end.segment, size - (last.size if last.free else 0)
            if self.device.resize(segment, segment.size + rounded(lacks, step)):
                begin, end.address = end.address, segment.address + segment.size
                if last.free:
                    last.unpool()
                    last.size += end.address - begin
                    return last
                piece = Piece(begin, end.address - begin, segment, pool, last)
                piece.right, last.right, end.left = end, piece, piece
                return piece
        segment = self.device.reserve(rounded(size, step), growing=True)
        piece = Piece(segment.address, segment.size, segment, pool)
        piece.right = pool.end = Piece(segment.address + segment.size, 0, segment, pool, piece)
        pool.end.free = False
        return piece

    def _retile(self, segment: Segment, live: list[Piece]) -> None:
        super()._retile(segment, live)
        end = live[0].pool.end
        if end is not None and end.segment is segment:
            last: Piece | None = live[-1]
            while last is not None and last.right is not None:
                last = last.right
            _linked(last, end)
            end.address = segment.address + segment.size

    def _emptied(self, segment: Segment) -> None:
        for pool in self.pools:
            if pool.end is not None and pool.end.segment is segment:
                pool.end = None
        super()._emptied(segment)

    def _release_free(self) -> None:
        super()._release_free()
        for pool in self.pools:
            if pool.end is not None:
                self._trim(pool.end)

    def _give_back(self, piece: Piece) -> None:
        if piece.right is piece.pool.end:
            piece.pool.end = None
        super()._give_back(piece)

    def _trim(self, end: Piece) -> None:
        """Release the free memory before a segment's last piece, ``end``, in multiples of the device's granularity."""
        last, segment = end.left, end.segment
        if last is None or last.left is None or not last.free:
            return
        last.unpool()
        before = segment.size
        if self.device.resize(segment, before - last.size):
            last.size -= before - segment.size
            end.address = segment.address + segment.size
        if last.size:
            last.keep()
        else:
            last.left.join(last)
