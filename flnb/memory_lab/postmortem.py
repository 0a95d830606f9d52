"""The report of an out-of-memory error: what blocked the request, who owns it, and what would have worked.

Everything is made from what the error kept of that moment, from the frames it passed through and, where one ran, from
the recording. Without a recording nothing is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb_telemetry import intern, schema

from flnb.memory_lab.owners import Model, Owner, models, owners
from flnb.memory_lab.remedies import Remedies, search

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flnb.interface.memory import BlockState, OutOfMemoryError, SegmentState, Shortage

__all__ = ["Blocker", "Closest", "Postmortem", "postmortem"]

SHOWN = 8
"""Tensors in the list of what blocks the request."""


class Blocker(NamedTuple):
    """A live block in the way: sizes in bytes, age in seconds (None: not known), "" for what is not known."""

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

    @property
    def label(self) -> str:
        """Its variable, else module and op that made it, else its number."""
        made = ".".join(part for part in (self.scope, self.op) if part)
        return self.names[0] if self.names else made or f"block {self.id}"


class Closest(NamedTuple):
    """The segment where the least has to go for the request to fit: begin and end of that place, offsets in bytes."""

    segment: SegmentState
    begin: int
    end: int
    blocks: tuple[BlockState, ...]

    @property
    def freed(self) -> int:
        """Bytes that would have to be freed."""
        return sum(block.size for block in self.blocks)


@dataclass(frozen=True, eq=False, repr=False)
class Postmortem:
    """Why a request failed and what would have worked. All sizes in bytes.

    Attributes:
        request: what was asked for, by which ``op``, in which module (``scope``).
        verdict: full, fragmented, or never to fit.
        manager, device: their names; capacity: of the device, None where it is not known.
        free: all that nobody uses; unreserved: what of it the device had left, None where that is not known.
        largest_hole: the largest free piece in any segment; live: in live blocks.
        segments: how memory lay.
        closest: where the least has to go, None where no segment is large enough.
        blockers: the tensors there, or the largest of all, where there is no such place.
        locked: blocks under user locks: they stay until `user_unlock`.
        cached: bytes of segments that held nothing, which `release_cached` would have given back.
        models: modules in variables, by the scope in which each is called.

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

    request: int
    op: str
    scope: str
    verdict: str
    manager: str
    device: str
    capacity: int | None
    free: int
    unreserved: int | None
    live: int
    largest_hole: int
    segments: list[SegmentState]
    closest: Closest | None
    blockers: tuple[Blocker, ...]
    locked: tuple[Blocker, ...]
    cached: int
    shortage: Shortage
    models: Mapping[str, Model]

    @cached_property
    def remedies(self) -> Remedies:
        """What would have worked, each replayed on the recorded trace; made when first asked for.

        After that the error lets go of the recording (`Shortage.let_go`).
        """
        found = search(self.shortage, self.request, (*self.blockers, *self.locked), self.cached, self.models)
        self.shortage.let_go()
        return found

    def __repr__(self) -> str:
        from flnb.memory_lab.report_text import as_text

        return as_text(self)


def postmortem(error: OutOfMemoryError) -> Postmortem:
    """Create the report of an error; see `OutOfMemoryError.report`."""
    at = error.shortage
    if at is None:
        raise ValueError(
            "OutOfMemoryError.report: this error was not raised for a request to a memory manager, so it is not known "
            "how memory lay; there is a report where a tensor or flnb.memory.allocate found no room"
        )
    tiles = [block for state in at.segments for block in state.blocks]
    gaps = [tile.size for tile in tiles if not tile.id]
    live = [tile for tile in tiles if tile.id]
    reserved = sum(state.segment.size for state in at.segments)
    closest = closest_segment(at, error.request)
    blocks = closest.blocks if closest is not None else sorted(live, key=lambda block: -block.size)[:SHOWN]
    about = _About(at, owners(error.__traceback__))
    plan = intern.plans.items[at.plan]
    return Postmortem(
        request=error.request,
        op=plan.op,
        scope=at.scope,
        verdict=_verdict(error, at, gaps),
        manager=at.manager.name,
        device=at.manager.device.name,
        capacity=error.capacity,
        free=error.free,
        unreserved=None if at.available is None else max(0, at.available - reserved),
        live=sum(block.size for block in live),
        largest_hole=max(gaps, default=0),
        segments=at.segments,
        closest=closest,
        blockers=tuple(about.blocker(block) for block in blocks[:SHOWN]),
        locked=tuple(about.blocker(block) for block in live if block.id in at.locks),
        cached=sum(state.segment.size for state in at.segments if not any(block.id for block in state.blocks)),
        shortage=at,
        models=models(error.__traceback__),
    )


def _verdict(error: OutOfMemoryError, at: Shortage, gaps: list[int]) -> str:
    if error.capacity is not None and error.request > error.capacity:
        return "never to fit: more than the device has"
    if error.free < error.request:
        return "full: less is free than was asked for"
    if max(gaps, default=0) >= error.request:
        return f"a hole is large enough, but {at.manager.name} does not use it for this request"
    if error.unreserved >= error.request:
        return f"not full: the device has room left, but not for the segment that {at.manager.name} wants"
    return "fragmented, not full: enough is free, but no piece is large enough"


def closest_segment(at: Shortage, request: int) -> Closest | None:
    """Return the place for a request where the fewest bytes have to be freed; locked blocks count most."""
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
    return (tile.size << 32 if tile.id in at.locks else tile.size) if tile.id else 0


class _About:
    """Facts about blocks, from the recording (if there is one) and from their owners."""

    def __init__(self, at: Shortage, held: dict[int, Owner]) -> None:
        self.at, self.held = at, held
        self.rows: dict[int, tuple[Any, Any, int]] = {}
        if at.run is not None:
            rows, catalog = at.run.memory.block, at.run.catalog
            plans, contexts = catalog.plans.items, catalog.contexts.items
            wanted = {block.id for state in at.segments for block in state.blocks if block.id}
            for number, plan, context, t in schema.tuples(rows, "alloc_id", "plan", "context", "t"):
                if number in wanted:
                    self.rows[number] = (plans[plan], contexts[context], t)

    def blocker(self, block: BlockState) -> Blocker:
        owner = self.held.get(block.id, Owner())
        plan, context, born = self.rows.get(block.id, (intern.plans.items[0], intern.contexts.items[0], self.at.t))
        traced = bool(plan.op)  # what lived when the recording began is announced without its op
        shape = owner.shape if owner.shape is not None else plan.shape if traced else None
        held = "a user lock alone: its array is gone" if block.id in self.at.waiting else owner.held
        return Blocker(
            block.id, block.size, schema.CATEGORIES[block.category], owner.names,
            plan.op or owner.op, context.scope, shape, owner.line,
            (self.at.t - born) / 1e9 if traced else None, held, self.at.locks.get(block.id, 0),
        )  # fmt: skip
