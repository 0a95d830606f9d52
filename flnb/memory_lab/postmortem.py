"""The report of an out-of-memory error: what blocked the request, what refers to it, and which remedies help.

The report is made from the state of memory that the error stored, from the frames of its traceback, and from the
recording that ran at the time, if any. Without a recording, no remedies are predicted.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb_telemetry import intern, schema

from flnb.memory_lab.owners import Owner, models, owners
from flnb.memory_lab.remedies import Remedies, search
from flnb.memory_lab.report_text import as_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.interface.memory import BlockState, OutOfMemoryError, SegmentState, Shortage

SHOWN = 8
"""The most tensors in the list of blockers."""


class Blocker(NamedTuple):
    """A live block that is in the way of the request. Sizes are in bytes, ages in seconds; unknown texts are "".

    Attributes:
        names: the variables that refer to the block.
        line: the user's line that made its tensor.
        held: all references to the block, as text.
        locks: the number of user locks on the block.
        orphaned: whether a user lock alone keeps the block, because its array is gone.
        taped: whether the tape has saved the block for a gradient.
    """

    id: int
    size: int
    category: str
    names: tuple[str, ...]
    op: str
    scope: str
    shape: tuple[int, ...] | None
    line: str
    age: float | None
    held: str
    locks: int
    orphaned: bool = False
    taped: bool = False

    @property
    def label(self) -> str:
        """Return a short name: a variable, or else the module and op, or else the block's number."""
        made = ".".join(part for part in (self.scope, self.op) if part)
        return self.names[0] if self.names else made or f"block {self.id}"


class Closest(NamedTuple):
    """The segment in which the fewest bytes must be freed to serve the request.

    Attributes:
        begin, end: the place for the request in the segment, as offsets in bytes.
        blocks: the live blocks at that place.
    """

    segment: SegmentState
    begin: int
    end: int
    blocks: tuple[BlockState, ...]

    @property
    def freed(self) -> int:
        """Return the bytes that would have to be freed."""
        return sum(block.size for block in self.blocks)


class Postmortem:
    """The report of an out-of-memory error: why a request failed, and which changes would have helped.

    Attributes:
        request: the requested bytes.
        op, scope: the op that requested them, and the module in which it ran.
        line: the user's line that requested them, such as "train.py:12: h = x @ w".
        verdict: a sentence: memory was full, or fragmented, or the request can never fit.
        manager, device: the names of the memory manager and its device.
        capacity: the capacity of the device in bytes, None if unknown.
        free: all unused bytes.
        unreserved: the bytes that the manager had not reserved from the device; None if unknown.
        largest_hole: the bytes of the largest hole in any segment.
        live: the bytes in live blocks.
        segments: the segments with their blocks and holes.
        closest: the segment in which the fewest bytes have to be freed, None if no segment is large enough.
        blockers: the blocks to free in `closest`, or else the largest live blocks.
        locked: blocks under user locks, which stay until `user_unlock`.
        cached: bytes of empty segments, which `release_cached` would have returned to the device.
        shortage: the state of memory from which the report is made.
        models: modules in variables, by the scope in which they are called.

    Raises:
        ValueError: the error was not raised by creating a tensor or by `flnb.memory.allocate`.

    >>> import flnb
    >>> manager = flnb.memory.BestFit(flnb.memory.SimulatedDevice("8MiB"))
    >>> with flnb.record():
    ...     blocks = [flnb.memory.allocate(manager, 1 << 20) for _ in range(8)]
    ...     for block in blocks[:6:2]:
    ...         flnb.memory.release(manager, block)
    ...     try:
    ...         flnb.memory.allocate(manager, 2 << 20)
    ...     except flnb.memory.OutOfMemoryError as error:
    ...         report = error.report
    >>> report.verdict
    'fragmented, not full: enough is free, but no piece is large enough'
    >>> [blocker.id == blocks[1].id for blocker in report.blockers]
    [True]
    """

    def __init__(self, error: OutOfMemoryError) -> None:
        at = error.shortage
        if at is None:
            raise ValueError(
                "OutOfMemoryError.report: the state of memory at this error was not stored and is unknown; there is a "
                "report only if creating a tensor or flnb.memory.allocate ran out of memory"
            )
        self.shortage, self.segments = at, at.segments
        self.op, self.scope, self.line = intern.plans.items[at.plan].op, at.scope, at.line
        self.manager, self.device, self.capacity = at.manager.name, at.manager.device.name, error.capacity
        self.request, self.free = error.request, error.free
        tiles = [block for state in at.segments for block in state.blocks]
        gaps, live = [tile.size for tile in tiles if not tile.id], [tile for tile in tiles if tile.id]
        self.live, self.largest_hole = sum(block.size for block in live), max(gaps, default=0)
        self.unreserved = None
        if at.available is not None:
            self.unreserved = max(0, at.available - sum(state.segment.size for state in at.segments))
        self.cached = sum(state.segment.size for state in at.segments if not any(block.id for block in state.blocks))
        self.verdict = _verdict(error, at, self.largest_hole)
        self.closest = closest_segment(at, error.request)
        blocks = self.closest.blocks if self.closest else sorted(live, key=lambda block: -block.size)
        described = _described(at, owners(error.__traceback__))
        self.blockers = tuple(map(described, blocks[:SHOWN]))
        self.locked = tuple(described(block) for block in live if block.id in at.locks)
        self.models = models(error.__traceback__)

    @cached_property
    def remedies(self) -> Remedies:
        """The remedies, each replayed on the recorded trace; computed at the first access.

        After that, the error no longer refers to the recording (`Shortage.let_go`).
        """
        found = search(self.shortage, self.request, (*self.blockers, *self.locked), self.cached, self.models)
        self.shortage.let_go()
        return found

    def __repr__(self) -> str:
        return as_text(self)


def _verdict(error: OutOfMemoryError, at: Shortage, largest: int) -> str:
    """Return a sentence that says why a request failed; ``largest`` is the largest hole in bytes."""
    if error.capacity is not None and error.request > error.capacity:
        return "never to fit: more than the device has"
    if error.free < error.request:
        return "full: less is free than was asked for"
    if largest >= error.request:
        return f"a hole is large enough, but {at.manager.name} does not use it for this request"
    if error.unreserved >= error.request:
        return f"not full: the device has room left, but not for the segment that {at.manager.name} wants"
    return "fragmented, not full: enough is free, but no piece is large enough"


def closest_segment(at: Shortage, request: int) -> Closest | None:
    """Return the place at which the fewest bytes must be freed for a request, avoiding locked blocks if possible."""
    best: tuple[int, int, Closest] | None = None
    for state in at.segments:
        tiles = state.blocks
        first = room = cost = 0
        for last, tile in enumerate(tiles):
            room, cost = room + tile.size, cost + _cost(tile, at)
            while room - tiles[first].size >= request:
                room, cost, first = room - tiles[first].size, cost - _cost(tiles[first], at), first + 1
            if room >= request and (best is None or (cost, state.segment.size) < best[:2]):
                begin = tiles[first].address - state.segment.address
                within = tuple(tile for tile in tiles[first : last + 1] if tile.id)
                best = (cost, state.segment.size, Closest(state, begin, begin + request, within))
    return None if best is None else best[2]


def _cost(tile: BlockState, at: Shortage) -> int:
    """Return the cost of freeing a block: its bytes, or far more if the block is locked in the state of memory ``at``.

    The cost of a hole is 0.
    """
    return (tile.size << 32 if tile.id in at.locks else tile.size) if tile.id else 0


def _described(at: Shortage, held: dict[int, Owner]) -> Callable[[BlockState], Blocker]:
    """Return a function that describes a block by its recorded op and the variables that refer to it.

    ``at`` is the state of memory at the failure, and ``held`` maps ids of blocks to the references to the blocks.
    """
    rows: dict[int, tuple[Any, Any, int]] = {}
    if at.run is not None:
        plans, contexts = at.run.catalog.plans.items, at.run.catalog.contexts.items
        wanted = {block.id for state in at.segments for block in state.blocks if block.id}
        for number, plan, context, t in schema.tuples(at.run.memory.block, "alloc_id", "plan", "context", "t"):
            if number in wanted:
                rows[number] = plans[plan], contexts[context], t

    def describe(block: BlockState) -> Blocker:
        owner, orphaned = held.get(block.id, Owner()), block.id in at.waiting
        plan, context, born = rows.get(block.id, (intern.plans.items[0], intern.contexts.items[0], at.t))
        traced = bool(plan.op)  # a block that was live when the recording began is recorded without its op
        return Blocker(
            block.id, block.size, schema.CATEGORIES[block.category], owner.names, plan.op or owner.op, context.scope,
            owner.shape if owner.shape is not None else plan.shape if traced else None, owner.line or context.innermost,
            (at.t - born) / 1e9 if traced else None,
            "a user lock alone: its array is gone" if orphaned else owner.held, at.locks.get(block.id, 0), orphaned,
            bool(owner.gradients),
        )  # fmt: skip

    return describe
