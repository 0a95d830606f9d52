"""Memory managers and devices, statistics of their memory, and tools that analyse and reduce a program's memory.

>>> import flnb
>>> with flnb.use_memory_manager(flnb.memory.Caching(split_limit="64MiB")):
...     x = flnb.ones((1024, 256))
...     flnb.memory.stats()["allocated"]
1048576
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
from flnb.dispatch.memory import allocate, block_of, drain, reclaim, release
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
    from flnb.widgets.tune import tune

__all__ = [
    "AllocHint", "BestFit", "Block", "Buddy", "ByCategory", "Caching", "Codec", "Diff", "DryRun", "ExactFit",
    "Expandable", "Fit", "HostDevice", "LossyCast", "MemoryDevice", "MemoryManager", "Moves", "Native",
    "OutOfMemoryError", "Outcome", "Packing", "Plan", "Planned", "Postmortem", "Replay", "Reserved", "Segment",
    "SegmentState", "SimulatedDevice", "Slab", "Trace", "Zlib", "allocate", "block_of", "compress", "diff", "dry_run",
    "fit", "lean", "load_snapshot", "offload", "pack", "plan", "release", "release_cached", "replay", "rerun",
    "snapshot", "stats", "trace", "tune", "unlock",
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
    "flnb.widgets.tune": "tune",
}
"""Maps a module to the names that it adds to `flnb.memory`; each name is imported at its first access."""


def __getattr__(name: str) -> Any:
    """Import a function or class of the memory lab, listed in `_LAB`, when it is first used."""
    for home, names in _LAB.items():
        if name in names.split():
            value = globals()[name] = _tool(home, name)
            return value
    raise AttributeError(f"module 'flnb.memory' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})


def stats(manager: MemoryManager | None = None) -> dict[str, int]:
    """Return statistics of a memory manager, by default the active one.

    Returns:
        A dict with bytes (allocated, reserved, cached = reserved - allocated, peak_allocated, peak_reserved) and counts
        (allocs, frees, live blocks, segments).

    >>> import flnb
    >>> manager = flnb.memory.Caching(flnb.memory.SimulatedDevice())
    >>> block = flnb.memory.allocate(manager, 1000)
    >>> found = flnb.memory.stats(manager)
    >>> found["allocated"], found["reserved"], found["live"]
    (1024, 2097152, 1)
    """
    return (manager or current().manager).stats()


def snapshot(manager: MemoryManager | None = None) -> list[SegmentState]:
    """Return the segments of a memory manager, by default the active one, with the blocks and holes inside them.

    Returns:
        For each segment a pair (segment, blocks), sorted by address. Blocks have address, size, requested bytes, id
        and category; holes are blocks with id 0.

    >>> import flnb
    >>> manager = flnb.memory.Caching(flnb.memory.SimulatedDevice())
    >>> block = flnb.memory.allocate(manager, 1000)
    >>> [(segment, blocks)] = flnb.memory.snapshot(manager)
    >>> segment.size, [(one.size, one.id == block.id) for one in blocks]
    (2097152, [(1024, True), (2096128, False)])
    """
    return (manager or current().manager).snapshot()


def unlock(number: int, manager: MemoryManager | None = None) -> None:
    """Remove all user locks from a block, given the block's number in reports and recordings.

    Args:
        number: the block's ``id``.
        manager: the manager of the block; the active one by default.

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
        raise ValueError(f"unlock: {owner!r} has no live block {number}; pass the manager that allocated it")
    for _ in range(block.locks):
        owner.user_unlock(block)


def release_cached(manager: MemoryManager | None = None) -> int:
    """Release unused segments of a memory manager to its device; returns the number of bytes released.

    Programs (`flnb.jit`) free their memory first, and allocate it again when they run.

    Args:
        manager: a memory manager; the active one by default.

    >>> import flnb
    >>> manager = flnb.memory.Caching(flnb.memory.SimulatedDevice())
    >>> flnb.memory.release(manager, flnb.memory.allocate(manager, 1000))
    >>> flnb.memory.release_cached(manager)
    2097152
    """
    manager = manager or current().manager
    reclaim(manager)
    drain()
    return manager.release_cached()
