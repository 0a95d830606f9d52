"""Makes out-of-memory errors: their text, and the snapshot of memory from which their report is made."""

from __future__ import annotations

from time import perf_counter_ns as clock
from typing import TYPE_CHECKING

from flnb_telemetry import bus, intern, pump, schema

from flnb.dispatch import source_lines
from flnb.interface.memory import FREED, OutOfMemoryError, Segment, SegmentState, Shortage, in_words

if TYPE_CHECKING:
    from flnb.interface.memory import MemoryManager


def out_of_memory(
    manager: MemoryManager, nbytes: int, plan_code: int, category: int, cause: BaseException
) -> OutOfMemoryError:
    """Emit the event of a failed request; returns the error, whose text has the sizes and advice.

    Args:
        manager: the memory manager that failed.
        nbytes: the bytes requested.
        plan_code, category: the numbers of the request's op and memory category, as in `flnb.memory.allocate`.
        cause: the error that the manager raised.
    """
    lease, now, segments = manager.device, clock(), manager.snapshot()
    capacity, reserved = lease.capacity, lease.reserved
    holes = [block.size for state in segments for block in state.blocks if not block.id]
    left = 0 if capacity is None else max(0, capacity - lease.device.reserved)
    free, largest = sum(holes) + left, max(holes, default=0)
    context = 0 if bus.lanes is None else bus.lanes.lane.context
    if not intern.contexts.items[context].line:  # not within a recorded op
        context = source_lines.here(context)
    if bus.lanes is not None:
        asked = min(nbytes, 2**53)
        bus.lanes.lane.emit(schema.OOM, now, asked, free, largest, capacity or 0, reserved, context)
    if capacity is not None and nbytes > capacity:
        advice = "it can never fit: use a smaller batch or tensor, or a device with a larger capacity"
    elif free >= nbytes and not reserved:
        advice = "nothing is reserved yet, and this manager reserves more at a time: try another, for example 'native'"
    elif free >= nbytes:
        advice = (
            "there is enough in total but not in one piece or not for this manager's segment sizes: "
            "free tensors that live long, call manager.release_cached(), or try another memory manager"
        )
    else:
        advice = "use a smaller batch, free tensors you no longer need (del x), or compute under flnb.no_grad()"
    most, unreserved = ("unknown",) * 2 if capacity is None else map(in_words, (capacity, left))
    message = (
        f"{manager.name} on {lease.name}: out of memory: asked for {in_words(nbytes)}, free {in_words(free)}: "
        f"{advice}\nFree in its segments {in_words(free - left)}, the largest hole {in_words(largest)}; reserved "
        f"{in_words(reserved)}, not yet reserved {unreserved}, capacity {most}.\n"
        f"What blocks the request and what would have let it through is in error.report. "
        f"Cause: {str(cause) or 'the manager found no room'}"
    )
    sizes = {"request": nbytes, "free": free, "unreserved": left, "largest_hole": largest, "reserved": reserved}
    locked = [block for block in manager.ledger.live.values() if block.locks]
    # a stored error must not keep memory alive: segments without their handles
    states = [SegmentState(Segment(held.address, held.size, id=held.id), blocks) for held, blocks in segments]
    shortage = Shortage(
        now, manager, states, {block.id: block.locks for block in locked},
        frozenset(block.id for block in locked if block.dropped > FREED),
        None if capacity is None else left + reserved, plan_code >> schema.PLAN_SHIFT, category,
        bus.threads.here.path, intern.contexts.items[context].innermost, pump.recording(),
    )  # fmt: skip
    return OutOfMemoryError(message, **sizes, capacity=capacity, shortage=shortage)
