"""Frees: the queue of blocks whose arrays were deleted, and the return of these blocks to their managers.

When the owner of an array's memory is deleted, a weak reference to it is put into the queue `dropped`. No Python code
runs during the deletion, because CPython would ignore a Ctrl-C during such code. The manager's `free` is called later,
at the next allocation or when statistics are read.
"""

from __future__ import annotations

import warnings
import weakref
from itertools import count
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus, schema
from flnb_telemetry.encoding import FREE

from flnb.interface.ledger import Ledger
from flnb.interface.memory import FREED, Block, MemoryManager, dropped

if TYPE_CHECKING:
    from flnb_telemetry.lane import Lane

next_id = count(1).__next__
"""Returns a number for an allocation."""


class OwnerReference(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to the memory owner of an array, with the block to free once the owner is deleted.

    Its callback is `append_dropped`, so that no Python code runs when the owner is deleted.
    """

    __slots__ = ("block",)
    block: Block


append_dropped: Any = dropped.append
"""Puts an entry into the queue: an `OwnerReference`, or a `Block` that a user freed."""


def drain(mine: Block | None = None) -> None:
    """Free every block in the queue: those whose arrays were deleted.

    If a manager's `free` raises an error, the block stays allocated and a warning is issued; but if the block is
    ``mine``, the error itself is raised. An entry is removed from the queue only after its block was freed, so that
    Ctrl-C loses no block. An entry whose block was already freed is ignored.
    """
    while dropped:
        try:
            entry = dropped[0]
            manager: Any = entry.block.manager
            lock = manager.ledger.lock
        except IndexError:  # another thread took it
            return
        except AttributeError:  # the block is free already, or Ctrl-C came before the array owned it
            _forget(entry)
            continue
        try:
            with lock:
                free_own(manager, mine)
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


def free_own(manager: MemoryManager, mine: Block | None = None, lane: Lane | None = None) -> None:
    """Free the blocks of ``manager`` that are in the queue; the caller holds the manager's lock. See `drain`.

    An error of the manager's `free` becomes a warning, unless it is about the block ``mine``, which the caller frees.
    ``lane`` is this thread's buffer of events; if it is None, it is looked up.
    """
    ledger, order = manager.ledger, manager.device.order
    live = ledger.live
    if lane is None and bus.lanes is not None:
        lane = bus.lanes.lane
    now = 0 if lane is None else clock()
    # No `tuple`, which Python 3.11 allocates after iteration began: the collector may run then, and add to the queue.
    for entry in list(dropped):
        block: Any = getattr(entry, "block", None)
        if block is None or block.manager is not manager:
            continue
        number = block.id
        if number in live and (block.owner is entry or block.dropped):
            if block.locks:
                if block.dropped <= FREED:  # from now on it waits for its last user_unlock
                    block.dropped = clock()
            else:
                address, size = block.address, block.size  # `free` may merge the block with others
                if lane is not None:  # emitted before `free`, which may release the segment
                    asked = block.dropped if block.dropped > FREED else now
                    lane.pending += (FREE, now, number, address, size, asked, block.segment.id, lane.context)
                try:
                    del live[number]
                    ledger.allocated -= size
                    block.dropped = 0
                    block.owner = block.manager = None
                    if order is not None:
                        order.freed(block)
                    manager.free(block)
                    if manager.checked:
                        ledger.vacate(address, size)
                except Exception as error:
                    _count_again(manager, block, size)
                    if block is mine:
                        raise
                    warnings.warn(
                        f"flnb: memory manager {manager.name!r}: free({block!r}) raised {error!r}; "
                        f"the block stays allocated",
                        RuntimeWarning,
                        stacklevel=3,
                    )
        try:
            dropped.remove(entry)
        except ValueError:  # another thread has removed it
            pass


def _count_again(manager: MemoryManager, block: Any, size: int) -> None:
    """Count a block of ``size`` bytes as allocated again, under a new id, after its `free` raised an error."""
    ledger = manager.ledger
    block.manager, block.id, block.size = manager, next_id(), size
    ledger.live[block.id] = block
    ledger.allocated += size
    if bus.lanes is not None:
        emit_block(bus.lanes.lane, block, block.segment)


def give_up(manager: MemoryManager, block: Block) -> None:
    """Free a block that no array received, because of an error or Ctrl-C right after its allocation."""
    live = manager.ledger.live
    if live.get(block.id) is not block:
        block.id, block.manager = next_id(), manager
        live[block.id] = block
    block.dropped = FREED
    dropped.append(block)


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
        raise ValueError(f"release: {block!r} was released before; its last user_unlock will free it")
    if block.owner is not None:
        raise ValueError(f"release: {block!r} holds an array; it is freed when the array and its views are deleted")
    block.dropped = FREED
    dropped.append(block)
    drain(block)


def emit_block(lane: Lane, block: Any, segment: Any) -> None:
    """Emit an event about an existing block to ``lane``, for a recording that started after the block's allocation."""
    code = schema.ALLOC | block.category << 8
    lane.emit(code, clock(), block.id, block.address, block.size, block.requested, segment.id)


Ledger.drain = staticmethod(drain)
