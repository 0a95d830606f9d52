"""Memory managers and devices, what they hold, and how to use them by hand.

flnb.set_memory_manager(flnb.memory.Caching(split_limit="64MiB"))
flnb.memory.stats()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_backends.memory.best_fit import BestFit
from flnb_backends.memory.caching import Caching
from flnb_backends.memory.expandable import Expandable
from flnb_backends.memory.host import HostDevice
from flnb_backends.memory.native import Native
from flnb_backends.memory.planned import Plan, Planned
from flnb_backends.memory.reserved import Reserved
from flnb_backends.memory.simulated import SimulatedDevice
from flnb_backends.memory.teaching.buddy import Buddy
from flnb_backends.memory.teaching.by_category import ByCategory
from flnb_backends.memory.teaching.exact import ExactFit
from flnb_backends.memory.teaching.slab import Slab
from flnb_telemetry.extras import tool as _tool

from flnb.autograd.offloading import Codec, LossyCast, Moves, Zlib, compress, offload
from flnb.dispatch.memory import allocate, block_of, release
from flnb.dispatch.state import current
from flnb.interface.memory import AllocHint, Block, MemoryDevice, MemoryManager, OutOfMemoryError, Segment, SegmentState

if TYPE_CHECKING:
    from flnb_telemetry.foreign.torch_snapshot import load_snapshot

    from flnb.memory_lab.counterpart import rerun
    from flnb.memory_lab.diffing import Diff, diff
    from flnb.memory_lab.dry_runs import DryRun, dry_run
    from flnb.memory_lab.fitting import Fit, fit
    from flnb.memory_lab.packing import Packing, pack
    from flnb.memory_lab.planning import plan
    from flnb.memory_lab.postmortem import Postmortem
    from flnb.memory_lab.recompute import lean
    from flnb.memory_lab.replaying import Outcome, Replay, replay
    from flnb.memory_lab.traces import Trace, trace

__all__ = [
    "AllocHint", "BestFit", "Block", "Buddy", "ByCategory", "Caching", "Codec", "Diff", "DryRun", "ExactFit",
    "Expandable", "Fit", "HostDevice", "LossyCast", "MemoryDevice", "MemoryManager", "Moves", "Native",
    "OutOfMemoryError", "Outcome", "Packing", "Plan", "Planned", "Postmortem", "Replay", "Reserved", "Segment",
    "SegmentState", "SimulatedDevice", "Slab", "Trace", "Zlib", "allocate", "block_of", "compress", "diff", "dry_run",
    "fit", "lean", "load_snapshot", "offload", "pack", "plan", "release", "release_cached", "replay", "rerun",
    "snapshot", "stats", "trace", "unlock",
]  # fmt: skip


_LAB = {
    "flnb_telemetry.foreign.torch_snapshot": "load_snapshot",
    "flnb.memory_lab.counterpart": "rerun",
    "flnb.memory_lab.diffing": "Diff diff",
    "flnb.memory_lab.dry_runs": "DryRun dry_run",
    "flnb.memory_lab.fitting": "Fit fit",
    "flnb.memory_lab.packing": "Packing pack",
    "flnb.memory_lab.planning": "plan",
    "flnb.memory_lab.postmortem": "Postmortem",
    "flnb.memory_lab.recompute": "lean",
    "flnb.memory_lab.replaying": "Outcome Replay replay",
    "flnb.memory_lab.traces": "Trace trace",
}
"""Names of the memory lab and of foreign formats, which are imported when they are asked for."""


def __getattr__(name: str) -> Any:
    for home, names in _LAB.items():
        if name in names.split():
            value = globals()[name] = _tool(home, name)
            return value
    raise AttributeError(f"module 'flnb.memory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def stats(manager: MemoryManager | None = None) -> dict[str, int]:
    """Return sums and counts of a manager, the active one when none is given.

    Bytes: allocated, reserved, cached (reserved but not allocated), peak_allocated, peak_reserved.
    Counts: allocs, frees, live (blocks), segments.
    """
    return (manager or current().manager).stats()


def snapshot(manager: MemoryManager | None = None) -> list[SegmentState]:
    """Return every segment of a manager with the blocks and holes inside it."""
    return (manager or current().manager).snapshot()


def unlock(number: int, manager: MemoryManager | None = None) -> None:
    """Take every user lock off a block, by its number, as reports and recordings name it.

    Args:
        manager: whose block it is; the active one when not given.

    >>> import flnb
    >>> manager = flnb.memory.Caching(flnb.memory.SimulatedDevice("8MiB"))
    >>> block = flnb.memory.allocate(manager, 1024)
    >>> manager.user_lock(block)
    >>> flnb.memory.unlock(block.id, manager)
    >>> block.locks
    0

    Raises:
        ValueError: the manager has no live block of this number.
    """
    owner = manager or current().manager
    block = owner.ledger.live.get(number)
    if block is None:
        raise ValueError(f"unlock: {owner!r} has no live block {number}; give the manager whose it is")
    for _ in range(block.locks):
        owner.user_unlock(block)


def release_cached(manager: MemoryManager | None = None) -> int:
    """Give memory that no tensor uses back to the device; returns the bytes."""
    return (manager or current().manager).release_cached()
