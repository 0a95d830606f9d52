"""The contract of memory managers: a manager decides where in memory each tensor's bytes are stored.

A manager reserves *segments* from a memory device and cuts them into *blocks*, one for each tensor. It is called by
`flnb.dispatch.memory`, which does the checks, the statistics, the locks and the telemetry.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any, ClassVar, NamedTuple

from flnb_telemetry import schema

from flnb.interface.device import Lease, MemoryDevice, OutOfMemoryError, Segment, default_device, in_words
from flnb.interface.ledger import Ledger
from flnb.interface.part import Part

__all__ = [
    "AllocHint", "Block", "BlockState", "Lease", "MemoryDevice", "MemoryManager", "OutOfMemoryError", "Segment",
    "SegmentState", "Shortage", "in_words",
]  # fmt: skip

ALIGNMENT = 64
"""Every block begins at a multiple of this many bytes: one cache line, one AVX-512 register."""


@dataclass(slots=True)
class AllocHint:
    """Facts about an allocation: the tensor's shape, dtype and category, and the op and scope that allocate it.

    A manager that does not need hints sets ``wants_hint = False``, which saves half a microsecond per allocation.
    """

    shape: tuple[int, ...] = ()
    dtype: Any = None
    category: str = "unknown"
    op: str = ""
    scope: str = ""


class Block:
    """A range of a segment that holds one array: ``Block(address, size, segment)``. Managers may subclass it.

    The manager sets the address, the size (in bytes, rounded up by the manager's rules) and the segment. flnb sets the
    other attributes.

    Attributes:
        id: number of the allocation, never used twice.
        requested: the bytes of the request, before rounding.
        category: the purpose of the memory, an index in `flnb_telemetry.schema.CATEGORIES`.
        locks: the number of user locks that have not been removed.
        owner: a weak reference to the object from which NumPy made the array; None for a block that a user allocated.
        dropped: the time in ns at which the array of a locked block was deleted.
        manager: the manager to which the block belongs; None while the block is free.
        streams: the device's streams that have used the block; the first is the stream in which it was allocated. Empty
            if the device has no streams.
    """

    __slots__ = (
        "address", "category", "dropped", "id", "locks", "manager", "owner", "requested", "segment", "size", "streams",
    )  # fmt: skip

    def __init__(self, address: int, size: int, segment: Segment) -> None:
        self.address = address
        self.size = size
        self.segment = segment
        self.id = self.requested = self.category = self.dropped = self.locks = 0
        self.manager: MemoryManager | None = None
        self.owner: Any = None
        self.streams: tuple[int, ...] = ()

    @property
    def block(self) -> Block:
        """Return the block itself, so that blocks and references to owners can be in the same queue, `dropped`."""
        return self

    def __repr__(self) -> str:
        state = f"block {self.id}" if self.manager else "free block"
        place = f"at byte {self.address - self.segment.address} of segment {self.segment.id}"
        return f"<{state}: {self.requested} of {self.size} bytes used, {place}>"


class BlockState(NamedTuple):
    """A block, or a hole between blocks (with ``id`` 0), at the time of a snapshot: see `Block` for the fields."""

    address: int
    size: int
    requested: int = 0
    id: int = 0
    category: int = 0


class SegmentState(NamedTuple):
    """A segment with its blocks and holes at the time of a snapshot, by address, without gaps or overlaps."""

    segment: Segment
    blocks: tuple[BlockState, ...]


@dataclass(slots=True, eq=False)
class Shortage:
    """The state of memory at a failed request, from which `OutOfMemoryError.report` is made.

    The object refers to the active recording, from whose events the report computes remedies. The reference is dropped
    when the report is finished, or by `let_go`, so that a stored error does not prevent freeing the recording.

    Attributes:
        t: when the request failed, in ns of `time.perf_counter_ns`.
        manager: the manager that received the request.
        segments: the manager's segments, without references to the memory itself.
        locks: the number of user locks of each locked block, by the block's id.
        waiting: the ids of locked blocks whose arrays were deleted; the last `user_unlock` frees such a block.
        available: the largest total size, in bytes, that this manager's segments can have on the device; None if
            unknown.
        plan, category, scope: the op, the category of memory and the module path of the request, as in telemetry.
        line: the user's line that made the request, such as "train.py:12: h = x @ w".
        run: the active recording, None if there was none, or after `let_go`.
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
    line: str
    run: Any

    def let_go(self) -> None:
        """Drop the reference to the recording; after this call, the report cannot compute remedies."""
        self.run = None


FREED = 1
"""The value of `Block.dropped` in a block that a user freed; any time is larger."""
dropped: deque[Any] = deque()
"""Queue of blocks whose arrays were deleted, which `flnb.dispatch.freeing.drain` returns to their managers."""


class MemoryManager(Part, kind="memory manager", slot="manager"):
    """Base of all memory managers: derive from it and implement `alloc` and `free`.

    A manager that caches free segments also implements `release_cached`; a manager with free lists implements `mend`.
    Pass the class to `flnb.use_memory_manager`, and check it with `flnb.testing.check_manager`. This is a complete
    manager:

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
        name: the name in errors and in the dashboard; by default the name of the class.
        device: the `Lease` from which segments come, by ``self.device.reserve(nbytes)`` and ``.release(segment)``.
        min_block: NumPy allocates tensors of fewer bytes; by default the device's ``min_block``.
        wants_hint: whether `alloc` is called with an `AllocHint` (making one takes 0.5 us) instead of None.
        checked: whether each new block is checked to be in a segment of the manager and to overlap no other block.
        constructor_arguments: the arguments by name, except the device; an equal manager can be made from them.
    """

    name: ClassVar[str] = "abstract"
    wants_hint: ClassVar[bool] = True
    checked: ClassVar[bool] = True
    required = "alloc", "free"
    ledger: Ledger
    device: Lease
    constructor_arguments: dict[str, Any]

    def __new__(cls, *given: Any, **named: Any) -> MemoryManager:
        self = super().__new__(cls)
        self.constructor_arguments = _named(cls, given) | named
        self.constructor_arguments.pop("device", None)
        self.ledger = Ledger()  # here, so that an __init__ which forgets super().__init__ does no harm
        self.device = Lease(default_device())
        return self

    def __init__(self, device: MemoryDevice | Lease | None = None) -> None:
        if isinstance(device, MemoryDevice):
            self.device = Lease(device)
        elif isinstance(device, Lease):  # a manager that wraps another passes that one's on: one set of sums
            self.device = device
        elif device is not None:
            raise TypeError(
                f"{type(self).__name__}(device={device!r}): expected a MemoryDevice, such as flnb.memory.HostDevice() "
                f"or flnb.memory.SimulatedDevice('8GiB'), got {type(device).__name__}"
            )

    def attach(self, state: Any) -> None:
        """Make this manager the active one of a `State`, if the state's backend computes in this manager's memory."""
        state.locate()

    @cached_property
    def min_block(self) -> int:
        """Return the size in bytes below which NumPy allocates tensors itself."""
        return int(self.device.min_block)

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """Return a block of at least ``nbytes`` bytes at a multiple of 64, or raise `MemoryError`.

        ``stream`` is the handle of the device's stream that will use the block; 0 if the device has no streams.
        """
        raise self.lacks("alloc")

    def free(self, block: Block) -> None:
        """Free a block; the caller has checked that it belongs to this manager, is live and is not locked."""
        raise self.lacks("free")

    def release_cached(self) -> int:
        """Release segments without live blocks to the device; returns the number of bytes released."""
        return 0

    def mend(self) -> None:
        """Rebuild the free lists from the live blocks, ``self.ledger.live`` (by id), and ``self.device.segments``.

        Called after Ctrl-C interrupted `alloc`, `free` or `release_cached`. Without this method, the memory of one
        block may be lost.
        """

    def recover(self) -> None:
        """Correct the statistics and the free lists after Ctrl-C interrupted a call."""
        with self.ledger.lock:
            live = self.ledger.live.values()
            self.ledger.allocated = sum([block.size for block in live])
            if self.checked:
                self.ledger.places = sorted([(block.address, block.address + block.size) for block in live])
            self.device.recount()
            self.mend()

    def user_lock(self, block: Block) -> None:
        """Lock a block, so that it is not freed before `user_unlock` is called, even if its array is deleted.

        Locks are counted: each call needs its own `user_unlock`.

        Raises:
            ValueError: the block was freed, or is of another manager.
        """
        self._check_live(block, "user_lock")
        block.locks += 1
        self.device.tell(schema.LOCKED, block.id, block.locks)

    def user_unlock(self, block: Block) -> None:
        """Remove one lock of a block; after the last lock the block is freed if its array was deleted.

        Raises:
            ValueError: the block is not locked, was freed, or is of another manager.
        """
        self._check_live(block, "user_unlock")
        if not block.locks:
            raise ValueError(f"user_unlock: {block!r} is not locked")
        block.locks -= 1
        self.device.tell(schema.LOCKED, block.id, block.locks)
        if not block.locks and block.dropped > 0:
            dropped.append(block)
            self.settle(block)

    def stats(self) -> dict[str, int]:
        """Return the current numbers of the manager by name.

        In bytes: ``allocated``, ``reserved``, their peaks, and ``cached`` (reserved but not allocated). Counts:
        ``allocs``, ``frees``, ``live`` blocks and ``segments``.
        """
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
        """Return every segment with its blocks and the holes between them, all sorted by address."""
        self.settle()
        with self.ledger.lock:
            held = sorted(self._tiled(), key=lambda one: one[0].address)
            return [SegmentState(segment, with_holes(segment, blocks)) for segment, blocks in held]

    def _tiled(self) -> list[tuple[Segment, list[Block]]]:
        """Return every reserved segment with its live blocks, all sorted by address."""
        inside: dict[int, list[Block]] = {number: [] for number in self.device.segments}
        for block in sorted(self.ledger.live.values(), key=lambda block: block.address):
            inside[block.segment.id].append(block)
        return [(segment, inside[number]) for number, segment in list(self.device.segments.items())]

    def settle(self, block: Block | None = None) -> None:
        """Free every block whose array was deleted. If `free` raises an error, a warning is issued.

        An error about ``block``, if one is given, is raised instead.
        """
        Ledger.drain(block)

    def _check_live(self, block: Block, call: str) -> None:
        """Raise a `ValueError` unless a block belongs to this manager; the message names the method ``call``."""
        if block.manager is not self:
            owner = "it is free" if block.manager is None else f"it belongs to {block.manager!r}"
            raise ValueError(f"{call}: {block!r} is not a live block of {self!r}: {owner}")

    def __repr__(self) -> str:
        return f"<{self.name}: {in_words(self.ledger.allocated)} of {in_words(self.device.reserved)} in use>"


def _named(cls: type[MemoryManager], given: tuple[Any, ...]) -> dict[str, Any]:
    """Return a dict from parameter names to the positional arguments ``given`` to a manager class; the device is first.

    If the constructor's signature cannot be inspected (it is in C, or decorated), placeholder names are used. Then
    creating an equal manager fails with an error instead of losing settings silently.
    """
    try:
        shown = [p.name for p in signature(cls.__init__).parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD][1:]
    except ValueError:
        shown = []
    names = [*shown, *(f"argument {i + 1}" if i else "device" for i in range(len(shown), len(given)))]
    return dict(zip(names, given, strict=False))


def with_holes(segment: Segment, blocks: list[Block]) -> tuple[BlockState, ...]:
    """Return the blocks of a segment, which are sorted by address, with holes (blocks with ``id`` 0) between them."""
    tiles, position = [], segment.address
    for block in blocks:
        if block.address > position:
            tiles.append(BlockState(position, block.address - position))
        tiles.append(BlockState(block.address, block.size, block.requested, block.id, block.category))
        position = max(position, block.address + block.size)
    if position < segment.address + segment.size:
        tiles.append(BlockState(position, segment.address + segment.size - position))
    return tuple(tiles)
