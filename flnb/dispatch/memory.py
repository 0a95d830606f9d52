"""Allocation: checks, counts and emits every request to a memory manager.

An array's memory is owned by a small ctypes object, to which the array and all its views refer. After that object was
deleted, the block is freed (`flnb.dispatch.freeing`).
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from threading import get_ident
from time import perf_counter_ns as clock
from typing import Any
from weakref import WeakSet

import numpy as np
from flnb_telemetry import bus, intern, schema

from flnb.dispatch import source_lines, state
from flnb.dispatch.freeing import OwnerReference, append_dropped, drain, free_own, give_up, next_id, release
from flnb.dispatch.plan import spec_of
from flnb.dispatch.shortage import out_of_memory
from flnb.interface.living import Living
from flnb.interface.memory import ALIGNMENT, AllocHint, Block, MemoryManager, dropped

__all__ = [
    "Owner", "allocate", "array_in", "block_of", "drain", "end", "holders", "keepers", "memory_of", "owner_of",
    "reclaim", "refuse_arrays", "release",
]  # fmt: skip

_ALLOC, _PLAN_BITS = schema.ALLOC, schema.PLAN_BITS


def allocate(
    manager: MemoryManager,
    nbytes: int,
    plan_code: int = 0,
    category: int = 0,
    hint: Any = None,
    make: Callable[[int], Callable[[int], Any]] | None = None,
) -> Any:
    """Allocate a block of at least ``nbytes`` bytes from a manager, count it and emit its event.

    Args:
        plan_code: the code of the op that allocates (`flnb.dispatch.plan.Plan.code`), 0 for none; or `OF_AN_OP`.
        category: index into `flnb_telemetry.schema.CATEGORIES`.
        hint: an `AllocHint` for the manager, or an object with the ``shape`` and ``dtype`` from which to make one.
        make: makes the object that owns the memory, called as ``make(size)(address)``: `memory_of` or `owner_of`. The
            block is freed after this object was deleted.

    Returns:
        The block; with ``make`` the object that owns the memory. Its attribute ``block`` is the block.

    Raises:
        OutOfMemoryError: neither the manager nor its device has enough memory.

    >>> import flnb
    >>> manager = flnb.memory.Caching(flnb.memory.SimulatedDevice())
    >>> flnb.memory.allocate(manager, 1000).size
    1024
    """
    if nbytes < 0:
        raise ValueError(f"allocate: got {nbytes} bytes, expected 0 or more")
    ledger = manager.ledger
    block: Any = None
    valid = False
    try:
        hint = _hint(hint, plan_code, category) if hint is not None and manager.wants_hint else None
        with ledger.lock:
            lanes = bus.lanes  # read under the lock: a recording that begins later finds the new block by itself
            lane: Any = None if lanes is None else lanes.last
            if lanes is not None and lane.ident != get_ident():
                lane = lanes.lane
            if dropped:
                free_own(manager, None, lane)
            order = manager.device.order
            block = manager.alloc(nbytes, 0 if order is None else order.stream(), hint)
            if not isinstance(block, Block):
                raise _no_block(manager, block, nbytes)
            block.id = number = next_id()
            block.manager = manager
            block.requested, block.category = nbytes, category
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
        if lane is not None:
            code, segment = _ALLOC | category << 8 | plan_code & _PLAN_BITS, block.segment.id
            context = lane.context if plan_code else source_lines.here(lane.context)
            lane.pending += (code, clock(), number, block.address, block.size, nbytes, segment, context)
        if dropped:  # blocks of other managers, whose locks are not taken while this manager's is held
            drain()
        if make is None:
            return block
        owner = make(block.size)(block.address)
        owner.block = block
        reference = OwnerReference(owner, append_dropped)
        reference.block = block
        block.owner = reference  # from now on the block goes with its owner
        return owner
    except BaseException as error:
        if block is None and isinstance(error, MemoryError):
            if not _freed_more(manager):
                raise out_of_memory(manager, nbytes, plan_code, category, error) from error
            return allocate(manager, nbytes, plan_code, category, hint, make)
        _undo(manager, block, valid, error)
        raise


def _no_block(manager: MemoryManager, found: Any, nbytes: int) -> TypeError:
    """Return the error for a manager whose `alloc` returned an object that is not a block (``found``)."""
    return TypeError(f"memory manager {manager.name!r}: alloc({nbytes}) returned {found!r}, expected a Block")


def _hint(like: Any, plan_code: int, category: int) -> AllocHint:
    """Return facts about an allocation for a manager that wants them.

    The arguments are those of `allocate`; ``like`` is its argument ``hint``. An `AllocHint` is returned unchanged.
    """
    if isinstance(like, AllocHint):
        return like
    op = intern.plans.items[plan_code >> schema.PLAN_SHIFT][0]
    return AllocHint(like.shape, like.dtype, schema.CATEGORIES[category], op, bus.threads.here.path)


def _freed_more(manager: MemoryManager) -> bool:
    """Free queued blocks and, if there were none, the memory of programs; return whether anything was freed."""
    waiting = len(dropped)
    drain()
    return waiting > 0 or reclaim(manager)


def _undo(manager: MemoryManager, block: Any, valid: bool, error: BaseException) -> None:
    """Free a block that its caller will not receive, because ``error`` was raised after the block's allocation.

    ``valid`` says whether the block had passed the checks. A block that failed them is left as it is, unless ``error``
    is an interruption such as Ctrl-C.
    """
    if valid or not isinstance(error, Exception):
        with manager.ledger.lock:
            if isinstance(block, Block) and block.owner is None:
                give_up(manager, block)
            manager.recover()


holders: WeakSet[Any] = WeakSet()
"""Objects that can free memory now and allocate it again later: with ``manager`` and ``release() -> bool``."""


def reclaim(manager: MemoryManager) -> bool:
    """Call `release` of all `holders` of a manager's memory; return whether any memory was released."""
    return sum(each.release() for each in list(holders) if each.manager is manager) > 0


keepers: Living[Any] = Living()
"""Objects that cache data for managers, such as functions with programs; each has a method ``forget(manager)``."""


def end(manager: MemoryManager) -> None:
    """Release a manager's memory that programs and caches hold, after the manager's ``with`` block has ended.

    Blocks of tensors stay valid. Functions under `flnb.jit` discard their programs for this manager. Nothing is
    released if the manager is still the session's.
    """
    if state.session.manager is not manager:
        reclaim(manager)
        for each in list(keepers):
            each.forget(manager)


def array_in(
    manager: MemoryManager,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    nbytes: int,
    plan_code: int = 0,
    category: int = 0,
) -> np.ndarray[Any, Any]:
    """Allocate an uninitialised C-contiguous array of ``nbytes`` bytes in a separate block, aligned to 64 bytes.

    The block, ``array.base.block``, is freed after the array and all its views were deleted. ``plan_code`` and
    ``category`` are the numbers of the op's plan and of the memory category for the allocation's event.

    Raises:
        TypeError: the manager's device has addresses, but no memory.
        OutOfMemoryError: neither the manager nor its device has enough memory.
    """
    if not manager.device.addressable:
        raise refuse_arrays(manager)
    hint = spec_of(shape, dtype)
    return np.ndarray(shape, dtype, allocate(manager, nbytes, plan_code, category, hint, memory_of))


def refuse_arrays(manager: MemoryManager) -> TypeError:
    """Return the error for an array in a manager whose device has addresses but no memory."""
    return TypeError(
        f"{manager!r} is on the device {manager.device.name!r}, which has addresses but no memory: "
        f"use it for replays and checks and under flnb.use_backend('meta'), whose tensors have no values, and a "
        f"manager on flnb.memory.HostDevice() for tensors that do"
    )


class Owner:
    """The owner of a block, to which buffers and views refer; the block is freed after this object is deleted."""

    __slots__ = ("__weakref__", "block")
    block: Block

    def __init__(self, address: int) -> None:
        """Make the owner of the memory at ``address``; the memory is not read. `allocate` sets `block`."""


@lru_cache(4096)
def memory_of(size: int) -> Any:
    """Return a function of an address that returns an object of ``size`` bytes there, usable by NumPy as a buffer."""
    kind: Any = type("BlockMemory", (ctypes.c_char * size,), {"__slots__": ("block",)})
    return kind.from_address


def owner_of(size: int) -> Any:
    """Return the class `Owner`, whose objects own memory that the host cannot read.

    It can be called as the function that `memory_of` returns, ``owner_of(size)(address)``; the size is not used.
    """
    return Owner


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
