"""Allocation: checks, counts and emits every request to a memory manager and every free.

An array's memory is owned by a small ctypes object, to which the array and all its views refer. When that object is
deleted, a weak reference to it is put into a queue. The manager's `free` is called later, at the next allocation or
when statistics are read. No Python code runs during the deletion, because CPython would ignore a Ctrl-C during such
code.
"""

from __future__ import annotations

import ctypes
import warnings
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import count
from threading import get_ident
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
from flnb_telemetry import bus, encoding, intern, schema
from flnb_telemetry.withblock import with_block

from flnb.dispatch import state
from flnb.dispatch.shortage import out_of_memory
from flnb.interface.ledger import Ledger
from flnb.interface.living import Living
from flnb.interface.memory import ALIGNMENT, FREED, AllocHint, Block, MemoryManager, dropped

if TYPE_CHECKING:
    from flnb_telemetry.lane import Lane

__all__ = [
    "allocate", "announce", "announce_manager", "array_in", "aside", "block_of", "drain", "end", "holders", "keepers",
    "owner_in",
    "reclaim", "release",
]  # fmt: skip

_next_id = count(1).__next__
_ndarray = np.ndarray
_KEEP_CODE = ~0xFFFFFF  # a mask that leaves the number of the plan in a plan's code


def allocate(
    manager: MemoryManager, nbytes: int, plan_code: int = 0, category: int = 0, hint: AllocHint | None = None
) -> Block:
    """Allocate a block of at least ``nbytes`` bytes from a manager, count it and emit its event.

    Args:
        plan_code: the code of the op that allocates (`flnb.dispatch.plan.Plan.code`), 0 for none.
        category: index into `flnb_telemetry.schema.CATEGORIES`.
        hint: facts about the allocation, for the manager.

    Raises:
        OutOfMemoryError: neither the manager nor its device has enough memory.

    >>> import flnb
    >>> manager = flnb.memory.Caching(flnb.memory.SimulatedDevice())
    >>> flnb.memory.allocate(manager, 1000).size
    1024
    """
    if dropped:
        drain()
    if nbytes < 0:
        raise ValueError(f"allocate: got {nbytes} bytes, expected 0 or more")
    ledger = manager.ledger
    block: Any = None
    valid = False
    try:
        with ledger.lock:
            order = manager.device.order
            block = manager.alloc(nbytes, 0 if order is None else order.stream(), hint)
            if not isinstance(block, Block):
                raise TypeError(
                    f"memory manager {manager.name!r}: alloc({nbytes}) returned {block!r}, expected a Block"
                )
            block.id = number = _next_id()
            block.manager = manager
            block.requested = nbytes
            block.category = category
            if manager.checked:
                _check(manager, block, nbytes)
            valid = True
            if order is not None:
                order.given(block)
            ledger.allocs += 1
            ledger.live[number] = block
            ledger.allocated = allocated = ledger.allocated + block.size
            if allocated > ledger.peak:
                ledger.peak = allocated
        lanes = bus.lanes
        if lanes is not None:
            lane = lanes.last
            if lane.ident != get_ident():
                lane = lanes.lane
            code = schema.ALLOC | category << 8 | plan_code & _KEEP_CODE
            segment = block.segment.id
            lane.pending += (code, clock(), number, block.address, block.size, nbytes, segment, lane.context)
        return block
    except MemoryError as error:
        if reclaim(manager):
            return allocate(manager, nbytes, plan_code, category, hint)
        raise out_of_memory(manager, nbytes, plan_code, category, error) from error
    except BaseException as error:
        if valid or not isinstance(error, Exception):  # the device failed, or Ctrl-C: the block reached no caller
            with ledger.lock:
                if isinstance(block, Block):
                    _give_up(manager, block)
                manager.recover()
        raise


holders: WeakSet[Any] = WeakSet()
"""Objects that can free memory now and allocate it again later: with ``manager`` and ``release() -> bool``."""


def reclaim(manager: MemoryManager) -> bool:
    """Call `release` of all `holders` of a manager's memory; return whether any memory was released."""
    return sum(each.release() for each in list(holders) if each.manager is manager) > 0


keepers: Living[Any] = Living()
"""Objects that cache data for managers, such as functions with programs; each has a method ``forget(manager)``."""


def end(manager: MemoryManager) -> None:
    """Release the memory that programs have on a manager whose ``with`` block has ended, and cached data about it.

    Blocks of tensors stay valid. A program that runs on the manager later allocates its memory again.
    """
    if state.session.manager is not manager:
        reclaim(manager)
        for each in list(keepers):
            each.forget(manager)


def _give_up(manager: MemoryManager, block: Block) -> None:
    """Free a block that no array received, because of an error or Ctrl-C right after its allocation."""
    live = manager.ledger.live
    if live.get(block.id) is not block:
        block.id, block.manager = _next_id(), manager
        live[block.id] = block
    block.dropped = FREED
    dropped.append(block)


def drain(mine: Block | None = None) -> None:
    """Free every block in the queue: those whose arrays were deleted.

    If a manager's `free` raises an error, the block stays allocated and a warning is issued; for the block ``mine`` the
    error itself is raised. An entry is removed from the queue only after its block was freed, so that Ctrl-C loses no
    block. An entry whose block was already freed is ignored.
    """
    while dropped:
        try:
            entry: Any = dropped[0]
            owned = type(entry) is _Owner
            block: Any = entry.block if owned else entry
            manager = block.manager
            ledger = manager.ledger
        except IndexError:  # another thread took it
            return
        except AttributeError:  # the block is free already, or Ctrl-C came before the array owned it
            _forget(entry)
            continue
        try:
            with ledger.lock:
                if block.id in ledger.live and (block.owner is entry if owned else block.dropped):
                    if not block.locks:
                        _free(manager, block, mine)
                    elif block.dropped <= FREED:  # from now on it waits for its last user_unlock
                        block.dropped = clock()
                _forget(entry)
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C
                manager.recover()
            raise


def _forget(entry: Any) -> None:
    """Remove the entry of a freed block from the queue, unless another thread already has."""
    try:
        dropped.remove(entry)
    except ValueError:
        pass


def _free(manager: MemoryManager, block: Block, mine: Block | None) -> None:
    """Return a live block to its manager; update the sums and emit the event."""
    ledger, lanes = manager.ledger, bus.lanes
    address, size = block.address, block.size  # `free` may merge the block with others
    if lanes is not None:  # emitted before `free`, which may release the segment
        lane = lanes.last
        if lane.ident != get_ident():
            lane = lanes.lane
        now = clock()
        asked = block.dropped if block.dropped > FREED else now
        segment = block.segment.id
        lane.pending += (encoding.FREE, now, block.id, address, size, asked, segment, lane.context)
    try:
        del ledger.live[block.id]
        ledger.allocated -= size
        block.dropped = 0
        block.owner = block.manager = None
        if manager.device.order is not None:
            manager.device.order.freed(block)
        manager.free(block)
        if manager.checked:
            places, place = ledger.places, (address, address + size)
            index = bisect_left(places, place)
            if places[index : index + 1] == [place]:
                del places[index]
    except Exception as error:  # counted again, under a new id since its free was emitted
        block.manager, block.id, block.size = manager, _next_id(), size
        ledger.live[block.id] = block
        ledger.allocated += size
        if bus.lanes is not None:
            _tell(bus.lanes.lane, block, block.segment)
        if block is mine:
            raise
        warnings.warn(
            f"flnb: memory manager {manager.name!r}: free({block!r}) raised {error!r}; the block stays allocated",
            RuntimeWarning,
            stacklevel=3,
        )


Ledger.drain = staticmethod(drain)


def _tell(lane: Lane, block: Any, segment: Any) -> None:
    """Emit an event about an existing block to ``lane``, for a recording that started after the block's allocation."""
    code = schema.ALLOC | block.category << 8
    lane.emit(code, clock(), block.id, block.address, block.size, block.requested, segment.id)


def release(manager: MemoryManager, block: Block) -> None:
    """Free a block that was allocated by `allocate`; blocks of arrays are freed with their arrays.

    Raises:
        ValueError: the block belongs to another manager, or was freed before.

    >>> import flnb
    >>> manager = flnb.memory.Caching(flnb.memory.SimulatedDevice())
    >>> flnb.memory.release(manager, flnb.memory.allocate(manager, 1000))
    >>> manager.stats()["live"]
    0
    """
    manager._check_live(block, "release")
    if block.dropped > FREED:
        raise ValueError(f"release: {block!r} was freed before and only waits for its last user_unlock")
    if block.owner is not None:
        raise ValueError(f"release: {block!r} holds an array; it is freed when the array and its views are deleted")
    block.dropped = FREED
    dropped.append(block)
    drain(block)


def array_in(
    manager: MemoryManager,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    nbytes: int,
    plan_code: int = 0,
    category: int = 0,
) -> np.ndarray[Any, Any]:
    """Allocate an uninitialised C-contiguous array of ``nbytes`` bytes in a separate block, aligned to 64 bytes.

    The block, ``array.base.block``, is freed after the array and all its views were deleted.
    """
    if not manager.device.addressable:
        raise TypeError(
            f"{manager!r} is on the device {manager.device.name!r}, which has addresses but no memory: "
            f"use it for replays and checks and under flnb.use_backend('meta'), whose tensors have no values, and a "
            f"manager on flnb.memory.HostDevice() for tensors that do"
        )
    owner = owner_in(manager, _memory, shape, dtype, nbytes, plan_code, category)
    return _ndarray(shape, dtype, owner)


def owner_in(
    manager: MemoryManager,
    make: Callable[[Block], Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    nbytes: int,
    plan_code: int = 0,
    category: int = 0,
) -> Any:
    """Allocate a block of ``nbytes`` bytes, and return ``make(block)``, whose attribute ``block`` becomes the block.

    The block is freed after that object was deleted.
    """
    hint = None
    if manager.wants_hint:
        op = intern.plans.items[plan_code >> schema.PLAN_SHIFT][0]
        hint = AllocHint(shape, dtype, schema.CATEGORIES[category], op, bus.threads.here.path)
    block: Any = None
    try:
        block = allocate(manager, nbytes, plan_code, category, hint)
        owner = make(block)
        reference = _Owner(owner, _append_dropped)
        reference.block = block
        block.owner = reference  # from now on the block goes with its owner
        return owner
    except BaseException:
        if block is not None and block.owner is None:
            _give_up(manager, block)
        raise


class Owner:
    """The owner of a block, to which buffers and views refer; the block is freed after this object is deleted."""

    __slots__ = ("__weakref__", "block")

    def __init__(self, block: Block) -> None:
        self.block = block


def _memory(block: Block) -> Any:
    """Return the object that owns a block's bytes, from which NumPy can make arrays."""
    owner = _memory_of(block.size)(block.address)
    owner.block = block
    return owner


def block_of(array: Any) -> Block | None:
    """Return the block that holds the elements of an array or view; None if NumPy allocated their memory.

    >>> import flnb
    >>> with flnb.use_memory_manager(flnb.memory.Caching()):
    ...     x = flnb.ones((1000,))
    >>> flnb.memory.block_of(x.numpy()).requested
    4000
    """
    while isinstance(array, np.ndarray):
        array = array.base
    return getattr(array, "block", None)


class _Owner(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to the memory owner of an array, with the block to free once the owner is deleted.

    Its callback is the method `append` of the queue `dropped`, so that no Python code runs when the owner is deleted.
    """

    __slots__ = ("block",)
    block: Block


_append_dropped: Any = dropped.append


@lru_cache(4096)
def _memory_of(size: int) -> Any:
    """Return a function of an address that returns an object of ``size`` bytes there, usable by NumPy as a buffer."""
    kind: Any = type("BlockMemory", (ctypes.c_char * size,), {"__slots__": ("block",)})
    return kind.from_address


def _check(manager: MemoryManager, block: Block, nbytes: int) -> None:
    """Raise an error unless a new block is in a segment of its manager and overlaps no other; store its address."""
    segment, places = block.segment, manager.ledger.places
    start, end = block.address, block.address + block.size
    inside = (
        segment.id in manager.device.segments and segment.address <= start and end <= segment.address + segment.size
    )
    if not inside or block.size < nbytes or start % ALIGNMENT:
        raise ValueError(
            f"memory manager {manager.name!r}: alloc({nbytes}) returned {block!r}; expected at least {nbytes} bytes "
            f"at a multiple of {ALIGNMENT}, inside a segment returned by self.device.reserve and not yet released"
        )
    index = bisect_left(places, (start, end))
    for low, high in places[max(0, index - 1) : index + 1]:
        if low < end and start < high:
            low, high = low - segment.address, high - segment.address
            raise ValueError(
                f"memory manager {manager.name!r}: alloc({nbytes}) returned {block!r}, of which bytes {low} to {high} "
                f"of the segment are in use by another block; expected memory that no block in use overlaps"
            )
    places.insert(index, (start, end))


_asides: Living[MemoryManager] = Living()
"""Managers of other devices, to which blocks are moved from the computing device; see `aside`."""


@with_block
def aside(manager: MemoryManager) -> Iterator[None]:
    """Context in which recordings count a manager's blocks separately, because its device does not compute."""
    users, user = manager.device.users, object()
    try:
        manager.device.aside = True
        users.add(user)
        _asides.add(manager)
        if len(users) == 1 and bus.lanes is not None:
            announce_manager(bus.lanes.lane, manager)
        yield
    finally:
        users.discard(user)


def announce(lane: Lane) -> None:
    """Emit the segments and live blocks that exist when a recording begins.

    These belong to the active manager, to the manager that was set (if it is for another device than the backend, it is
    not active), and to managers marked by `aside`. The blocks of a device's own manager are emitted when the device is
    first used. Blocks of other managers are not part of the recording.
    """
    drain()
    here = state.current()
    moved_to = [manager for manager in _asides if manager.device.users or manager.ledger.live]
    known: list[Any] = [here.manager, here.parts["manager"], *moved_to]
    for manager in dict.fromkeys(known):
        announce_manager(lane, manager)


def announce_manager(lane: Lane, manager: MemoryManager) -> None:
    """Emit the segments, live blocks and user locks of one manager."""
    try:
        states = manager.snapshot()
    except Exception as error:  # a manager under test must not stop a recording
        warnings.warn(f"flnb: {manager!r} is missing from the recording's start: {error!r}", stacklevel=2)
        return
    for segment, blocks in states:
        if manager.device.aside:
            lane.emit(schema.ASIDE, clock(), segment.id)
        place = intern.strings.id_of(manager.device.place)
        lane.emit(schema.SEGMENT_ALLOC, clock(), segment.id, segment.address, segment.size, place)
        for block in blocks:
            if block.id:
                _tell(lane, block, segment)
    for held in list(manager.ledger.live.values()):
        if held.locks:
            lane.emit(schema.LOCKED, clock(), held.id, held.locks)


bus.announcers.append(announce)
