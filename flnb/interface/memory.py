"""The memory manager: who decides where a tensor's bytes lie. A manager is policy only.

It cuts blocks out of segments that it reserves from its device. Checking, counting, locking and events belong to
`flnb.dispatch.memory`, which calls the plain methods below, so whatever is typed into a cell is measured for free.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from flnb_telemetry import bus, schema
from flnb_telemetry.quantity import bytes_of, size

from flnb.interface.ledger import Ledger
from flnb.interface.replaceable import Replaceable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "AllocHint", "Block", "BlockState", "MemoryDevice", "MemoryManager", "OutOfMemoryError", "Segment", "SegmentState",
    "Shortage", "bytes_of", "in_words",
]  # fmt: skip

ALIGNMENT = 64
"""Every block begins at a multiple of this many bytes: one cache line, one AVX-512 register."""


ADDRESSES = 1 << 60
"""No device has more bytes, whether it knows its capacity or not."""


def in_words(nbytes: int) -> str:
    """A size for people, exact bytes included: ``64.0 MiB (67108864 bytes)``."""
    return f"{size(nbytes)} ({nbytes} bytes)" if nbytes >= 1024 else f"{nbytes} bytes"


class OutOfMemoryError(MemoryError):
    """A request that neither the manager's free blocks nor its device can serve.

    Attributes (bytes): ``request``; ``free``, all that nobody uses, reserved or not; ``largest_hole``, the largest
    piece of it in a row; ``reserved`` by the manager; ``capacity`` of the device, None where it is not known.
    ``shortage`` is how memory lay then, None where no manager was asked through the crossing.
    """

    request = free = largest_hole = reserved = 0
    capacity: int | None = None
    shortage: Shortage | None = None

    def __init__(self, message: str = "", **about: Any) -> None:
        super().__init__(message)
        self.__dict__.update(about)

    @property
    def report(self) -> Any:
        """What blocked the request and what would have worked: a `flnb.memory.Postmortem`, made when first asked for.

        Raises:
            ValueError: the error was raised by hand, so it is not known how memory lay.
        """
        found = self.__dict__.get("_report")
        if found is None:
            from flnb.memory.postmortem import postmortem

            found = self.__dict__["_report"] = postmortem(self)
        return found


@dataclass(slots=True)
class AllocHint:
    """What an allocation is for. A manager that does not care sets ``wants_hint = False`` and saves the time."""

    shape: tuple[int, ...] = ()
    dtype: Any = None
    category: str = "unknown"
    op: str = ""
    scope: str = ""


@dataclass(slots=True, eq=False)
class Segment:
    """A contiguous range that a device lent out. ``handle`` keeps the memory alive; ``id`` is never used twice."""

    address: int
    size: int
    handle: Any = None
    device: MemoryDevice | None = None
    id: int = 0


class Block:
    """A range of a segment given to one array: ``Block(address, size, segment)``. Managers may subclass it.

    The manager sets address, size (bytes, rounded as it likes) and segment; the crossing fills in the rest: ``id``
    (never used twice), ``requested`` bytes, ``category``, the number of user ``locks``, ``dropped`` (when its array
    went, ns) and ``manager``, which is None while the block is free.
    """

    __slots__ = ("address", "category", "dropped", "id", "locks", "manager", "requested", "segment", "size")

    def __init__(self, address: int, size: int, segment: Segment) -> None:
        self.address = address
        self.size = size
        self.segment = segment
        self.id = self.requested = self.category = self.dropped = self.locks = 0
        self.manager: MemoryManager | None = None

    def __repr__(self) -> str:
        state = f"block {self.id}" if self.manager else "free block"
        return f"<{state} at {self.address:#x}: {self.requested} of {self.size} bytes in segment {self.segment.id}>"


class BlockState(NamedTuple):
    """A block or a hole (``id`` 0) as it was when a snapshot was taken."""

    address: int
    size: int
    requested: int = 0
    id: int = 0
    category: int = 0


class SegmentState(NamedTuple):
    """A segment and what tiles it, by address: no gap, no overlap."""

    segment: Segment
    blocks: tuple[BlockState, ...]


class Shortage(NamedTuple):
    """How memory lay when a request failed: what `OutOfMemoryError.report` is made from.

    Attributes:
        t: when, ns of `time.perf_counter_ns`.
        manager: who was asked.
        segments: what it held, without the memory itself.
        locks: the number of user locks of each block that has any, by id.
        waiting: ids of the locked blocks whose arrays are gone: they wait for their last `user_unlock`.
        available: bytes that the device had left for this manager's segments and new ones; None: not known.
        plan, category, scope: of what asked, as telemetry numbers and names them.
        run: the recording that ran, None where nothing was recorded.
    """

    t: int
    manager: MemoryManager
    segments: list[SegmentState]
    locks: dict[int, int]
    waiting: frozenset[int]
    available: int | None
    plan: int
    category: int
    scope: str
    run: Any


class MemoryDevice:
    """Where segments come from. Implement `reserve` and `release`; capacity is checked before `reserve` is called.

    A device that can make segments larger where they are implements `reserve_growing` and `resize` as well.

    Attributes:
        capacity: the most bytes it lends at a time; None: not known, `reserve` raises `MemoryError` by itself.
        granularity: sizes are rounded up to multiples of this.
        addressable: whether NumPy can read and write there.
        min_block: the smallest tensor, in bytes, that is worth a block.
        reserved: bytes lent out now, to all managers together.
    """

    name: ClassVar[str] = "device"
    granularity: ClassVar[int] = 4096
    addressable: ClassVar[bool] = True
    min_block: ClassVar[int] = 0

    def __init__(self, capacity: int | str | None = None) -> None:
        self.capacity = None if capacity is None else bytes_of(capacity, f"the capacity of {type(self).__name__}")
        self.reserved = 0

    def reserve(self, nbytes: int) -> Segment:
        """A new segment of ``nbytes`` (a multiple of the granularity), or `MemoryError`."""
        raise NotImplementedError(f"device {self.name!r} does not implement 'reserve'")

    def release(self, segment: Segment) -> None:
        """Take a segment back. Nothing lies in it any more."""
        raise NotImplementedError(f"device {self.name!r} does not implement 'release'")

    def reserve_growing(self, nbytes: int) -> Segment:
        """Like `reserve`, with as many addresses behind it as `resize` may ever need. Here: none."""
        return self.reserve(nbytes)

    def resize(self, segment: Segment, nbytes: int) -> bool:
        """Make a segment end after ``nbytes`` (a multiple of the granularity); False, and nothing done, if it cannot.

        The lease checks the capacity before, and sets ``segment.size`` after. Nothing lies in what is cut off.
        """
        return False

    def __repr__(self) -> str:
        capacity = "unknown capacity" if self.capacity is None else in_words(self.capacity)
        return f"<{type(self).__name__}: {capacity}, {in_words(self.reserved)} reserved>"


class Lease:
    """What one manager holds of a device: the crossing between the two, with sums and events.

    Everything but `reserve`, `resize` and `release` is the device's own.
    """

    next_id: ClassVar[Callable[[], int]] = count(1).__next__

    def __init__(self, device: MemoryDevice) -> None:
        self.reserved = self.peak = 0
        self.segments: dict[int, Segment] = {}
        self.device = device
        self.addressable = device.addressable  # asked for every array
        self.aside = False  # not of the device that tensors are computed on: `flnb.dispatch.memory.aside`

    def reserve(self, nbytes: int, growing: bool = False) -> Segment:
        """A segment of at least ``nbytes`` bytes, which `resize` will make larger if it is ``growing``.

        Raises:
            OutOfMemoryError: the device has no room for it.
        """
        rounded = self._rounded("reserve", nbytes)
        self._check_room(f"a segment of {in_words(rounded)}", rounded)
        segment = self.device.reserve_growing(rounded) if growing else self.device.reserve(rounded)
        segment.id = Lease.next_id()
        self.segments[segment.id] = segment
        if self.aside:
            bus.emit(schema.ASIDE, clock(), segment.id)
        self._count(schema.SEGMENT_ALLOC, segment, segment.size)
        return segment

    def resize(self, segment: Segment, nbytes: int) -> bool:
        """Whether the device made a segment at least ``nbytes`` large, or as small, without moving it.

        Raises:
            OutOfMemoryError: the device has no room for what it would grow by.
        """
        rounded = self._rounded("resize", nbytes)
        self._check_held("resize", segment)
        more = rounded - segment.size
        self._check_room(f"{in_words(max(more, 0))} more in segment {segment.id}", more)
        done = more == 0 or self.device.resize(segment, rounded)
        if done and more:
            segment.size = rounded
            self._count(schema.SEGMENT_RESIZE, segment, more)
        return done

    def release(self, segment: Segment) -> None:
        """Give a segment back; `ValueError` when it is not held any more or never was."""
        self._check_held("release", segment)
        del self.segments[segment.id]
        try:
            self.device.release(segment)
        except Exception:
            self.segments[segment.id] = segment
            raise
        self._count(schema.SEGMENT_FREE, segment, -segment.size)

    def _count(self, kind: int, segment: Segment, more: int) -> None:
        self.reserved += more
        self.peak = max(self.peak, self.reserved)
        self.device.reserved += more
        bus.emit(kind, clock(), segment.id, segment.address, segment.size)

    def _rounded(self, call: str, nbytes: int) -> int:
        if nbytes <= 0:
            raise ValueError(f"{call}: got {nbytes} bytes, expected a positive number")
        return -(-nbytes // self.device.granularity) * self.device.granularity

    def _check_room(self, what: str, more: int) -> None:
        device = self.device
        if more > 0 and more > (ADDRESSES if device.capacity is None else device.capacity - device.reserved):
            limit = "any address" if device.capacity is None else in_words(device.capacity)
            raise OutOfMemoryError(
                f"{device.name}: no room for {what}: {in_words(device.reserved)} of {limit} are reserved",
                request=more,
                capacity=device.capacity,
                reserved=device.reserved,
            )

    def _check_held(self, call: str, segment: Segment) -> None:
        if segment.id not in self.segments:
            raise ValueError(f"{call}: segment {segment.id} is not held by this manager; it was released before")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def __del__(self) -> None:
        if self.reserved:  # the manager is gone with all its blocks, and so are the segments
            self.device.reserved -= self.reserved


dropped: deque[Block] = deque()
"""Blocks whose arrays are gone. A finaliser only appends; `flnb.dispatch.memory.drain` hands them back."""


class MemoryManager(Replaceable):
    """Base of all managers: implement `alloc` and `free`; `release_cached` and `snapshot` where there is more to say.

    This is a whole manager. Give it to `flnb.use_memory_manager`, or try it with `flnb.testing.check_manager`:

    >>> import flnb
    >>> from bisect import insort
    >>> from flnb.memory import Block, MemoryManager
    >>> class FirstFit(MemoryManager):
    ...     '''One arena; the first hole that is large enough.'''
    ...
    ...     def __init__(self, device=None):
    ...         super().__init__(device)
    ...         self.arena = self.device.reserve(64 << 20)
    ...         self.holes = [(self.arena.address, self.arena.size)]  # by address
    ...
    ...     def alloc(self, nbytes, stream=0, hint=None):
    ...         size = max(1, -(-nbytes // 64)) * 64
    ...         for i, (address, room) in enumerate(self.holes):
    ...             if room >= size:
    ...                 self.holes[i : i + 1] = [(address + size, room - size)] if room > size else []
    ...                 return Block(address, size, self.arena)
    ...         raise MemoryError("no hole is large enough")
    ...
    ...     def free(self, block):
    ...         insort(self.holes, (block.address, block.size))
    ...         merged = []
    ...         for address, size in self.holes:
    ...             if merged and sum(merged[-1]) == address:  # begins where the hole before it ends
    ...                 merged[-1] = (merged[-1][0], merged[-1][1] + size)
    ...             else:
    ...                 merged.append((address, size))
    ...         self.holes = merged
    >>> flnb.testing.check_manager(FirstFit).title
    'FirstFit: all 8 checks passed'
    >>> with flnb.use_memory_manager(FirstFit) as manager:
    ...     x = flnb.ones((1024, 256))
    >>> manager.stats()["allocated"]
    1048576
    >>> del x
    >>> manager.stats()["allocated"]
    0

    Attributes:
        name: shown in errors and in the dashboard; the class name where none is given.
        device: where segments come from, ``self.device.reserve(nbytes)`` and ``.release(segment)``.
        min_block: tensors of fewer bytes do not come here; the device's own unless set.
        wants_hint: whether `alloc` is given an `AllocHint` (0.5 us each); otherwise None.
        checked: whether every block is checked to lie in a segment that the manager holds.
        told: what its constructor was told beside the device, by which another like it can be made.
    """

    name: ClassVar[str] = "abstract"
    wants_hint: ClassVar[bool] = True
    checked: ClassVar[bool] = True
    ledger: Ledger
    device: Lease
    told: dict[str, Any]

    def __new__(cls, *given: Any, **named: Any) -> MemoryManager:
        self = super().__new__(cls)
        names = cls.__init__.__code__.co_varnames[1 : 1 + len(given)] if given else ()
        self.told = {
            name: value for name, value in (*zip(names, given, strict=False), *named.items()) if name != "device"
        }
        from flnb_backends.memory.host import host

        self.ledger = Ledger()  # here, so that an __init__ which forgets super().__init__ does no harm
        self.device = Lease(host())
        return self

    def __init__(self, device: MemoryDevice | Lease | None = None) -> None:
        if device is not None:  # a manager that wraps another passes that one's lease on: one set of sums
            self.device = device if isinstance(device, Lease) else Lease(device)

    @cached_property
    def min_block(self) -> int:
        """Tensors of fewer bytes are left to NumPy."""
        return int(self.device.min_block)

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """A block of at least ``nbytes`` bytes at a multiple of 64, or `MemoryError`."""
        raise NotImplementedError(f"memory manager {self.name!r} does not implement 'alloc'")

    def free(self, block: Block) -> None:
        """Take a block back. The crossing has checked that it is this manager's, live and not locked."""
        raise NotImplementedError(f"memory manager {self.name!r} does not implement 'free'")

    def release_cached(self) -> int:
        """Give segments that hold nothing back to the device; returns their bytes."""
        return 0

    def user_lock(self, block: Block) -> None:
        """Keep a block from being freed, though its array may go, until `user_unlock`. Locks are counted."""
        self._check_live(block, "user_lock")
        block.locks += 1

    def user_unlock(self, block: Block) -> None:
        """Take one lock off; the last one frees the block if its array went meanwhile."""
        self._check_live(block, "user_unlock")
        if not block.locks:
            raise ValueError(f"user_unlock: {block!r} is not locked")
        block.locks -= 1
        if not block.locks and block.dropped > 0:
            dropped.append(block)
            self.settle(block)

    def stats(self) -> dict[str, int]:
        """Sums in bytes (allocated, reserved, cached, their peaks) and counts (allocs, frees, live, segments)."""
        self.settle()
        ledger, lease = self.ledger, self.device
        return {
            "allocs": ledger.allocs,
            "frees": ledger.allocs - len(ledger.live),
            "live": len(ledger.live),
            "allocated": ledger.allocated,
            "peak_allocated": ledger.peak,
            "reserved": lease.reserved,
            "peak_reserved": lease.peak,
            "cached": lease.reserved - ledger.allocated,
            "segments": len(lease.segments),
        }

    def snapshot(self) -> list[SegmentState]:
        """Every segment with the blocks and holes that tile it, by address."""
        self.settle()
        with self.ledger:
            tiles: dict[int, list[BlockState]] = {number: [] for number in self.device.segments}
            for block in sorted(self.ledger.live.values(), key=lambda block: block.address):
                state = BlockState(block.address, block.size, block.requested, block.id, block.category)
                tiles[block.segment.id].append(state)
            segments = sorted(self.device.segments.values(), key=lambda segment: segment.address)
            return [SegmentState(segment, with_holes(segment, tiles[segment.id])) for segment in segments]

    def settle(self, block: Block | None = None) -> None:
        """Hand back every block whose array is gone. An error of `free` is a warning, except about ``block``."""
        from flnb.dispatch.memory import drain

        drain(block)

    def _check_live(self, block: Block, call: str) -> None:
        if block.manager is not self:
            owner = "it is free" if block.manager is None else f"it belongs to {block.manager!r}"
            raise ValueError(f"{call}: {block!r} is no live block of {self!r}: {owner}")

    def __repr__(self) -> str:
        return f"<{self.name}: {in_words(self.ledger.allocated)} of {in_words(self.device.reserved)} in use>"


def with_holes(segment: Segment, blocks: list[BlockState]) -> tuple[BlockState, ...]:
    """The blocks of a segment, sorted by address, with free ones in the gaps between them."""
    tiles, position = [], segment.address
    for block in blocks:
        if block.address > position:
            tiles.append(BlockState(position, block.address - position))
        tiles.append(block)
        position = max(position, block.address + block.size)
    if position < segment.address + segment.size:
        tiles.append(BlockState(position, segment.address + segment.size - position))
    return tuple(tiles)
