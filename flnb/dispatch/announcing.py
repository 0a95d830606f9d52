"""Emits what exists when a recording begins: segments, live blocks, and the managers to which they belong."""

from __future__ import annotations

import warnings
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus, intern, schema
from flnb_telemetry.withblock import with_block

from flnb.dispatch import state
from flnb.dispatch.freeing import drain, emit_block
from flnb.interface.living import Living

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb_telemetry.lane import Lane

    from flnb.interface.memory import MemoryManager

_asides: Living[MemoryManager] = Living()
"""Managers of other devices, to which blocks are moved from the computing device; see `aside`."""


@with_block
def aside(manager: MemoryManager) -> Iterator[None]:
    """Context manager in which recordings count a manager's blocks separately.

    It is for managers that store data away from the device on which tensors are computed.
    """
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

    This concerns the active manager; the manager that the user has set, which is not active if the backend's memory is
    on another device; and managers marked by `aside`. The blocks of a device's own manager are emitted when the device
    is first used. Blocks of other managers are not part of the recording.
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
        warnings.warn(f"flnb: the recording lacks the earlier blocks of {manager!r}: {error!r}", stacklevel=2)
        return
    for segment, blocks in states:
        if manager.device.aside:
            lane.emit(schema.ASIDE, clock(), segment.id)
        place = intern.strings.id_of(manager.device.place)
        lane.emit(schema.SEGMENT_ALLOC, clock(), segment.id, segment.address, segment.size, place)
        for block in blocks:
            if block.id:
                emit_block(lane, block, segment)
    for held in list(manager.ledger.live.values()):
        if held.locks:
            lane.emit(schema.LOCKED, clock(), held.id, held.locks)
