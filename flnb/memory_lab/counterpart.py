"""The counterpart of a recording: the same program with its blocks placed by another memory manager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry import Recording, schema

from flnb.memory_lab.replaying import Counter, _fresh, _hint
from flnb.memory_lab.traces import recording, trace

if TYPE_CHECKING:
    from flnb_telemetry.schema import Columns, Ints

    from flnb.interface.memory import Block, MemoryManager, Segment
    from flnb.memory_lab.traces import Trace

__all__ = ["rerun"]


class Notes(Counter):
    """A lease that logs each change of a segment as (call, kind, id, address, size)."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__(device)
        self.notes: list[tuple[int, int, int, int, int]] = []

    def _count(self, kind: int, segment: Segment, more: int) -> None:
        super()._count(kind, segment, more)
        self.notes.append((self.call, kind, segment.id, segment.address, segment.size))


def rerun(source: Any, manager: Any = "caching", capacity: int | str | None = None) -> Recording:
    """Return a copy of a recording with the blocks and segments of another memory manager.

    So `flnb.view(run, flnb.memory.rerun(run, "buddy"))` shows two managers beside each other, at any moment of a run;
    figures alone, of many managers at once, are `flnb.memory.replay`'s.

    Args:
        source: a recording, or the path of a saved one.
        manager: a name, also with settings (``"caching:split_limit=64MiB"``), a class, a function of a device, or an
            instance, whose settings are taken. ``"planned"`` plans the whole run.
        capacity: of the simulated device, bytes or a text with a unit; None for no limit. Where it is full the
            recording is "failed", and nothing is allocated after it.

    >>> import flnb
    >>> with flnb.record("two") as run:
    ...     x = flnb.ones((1 << 18,)) + 1.0
    >>> other = flnb.memory.rerun(run, "native")
    >>> len(other.memory.block["t"]) == len(run.memory.block["t"])
    True
    >>> other.memory.peak.reserved == other.memory.peak.allocated  # a segment for each block
    True

    Raises:
        TypeError: no recording, or no manager that can be made for another device.
        ValueError: there is no allocation in it.
    """
    run = recording(source, "rerun")
    calls = trace(run)
    lease = Notes(SimulatedDevice(capacity, calls.granularity))
    label, made = _fresh(manager, lease, calls)
    place, done, error = _placed(calls, made, lease)
    found = _copied(run, f"{run.name} under {label}")
    found.meta |= {"manager": label, "device": lease.device.name, "capacity": lease.device.capacity}
    if error is not None:
        found.state, found.error = "failed", error
    found.tables |= _tables(run, calls, lease, place, done)
    found.events = sum(len(table["lane"]) for table in found.tables.values())
    return found


def _placed(calls: Trace, manager: MemoryManager, lease: Notes) -> tuple[Ints, int, str | None]:
    """Return address, size and segment of each block, shape (3, m); the calls made; the error that ended them."""
    place = np.zeros((3, len(calls.nbytes)), np.int64)
    blocks: dict[int, Block] = {}
    try:
        for lease.call, call in enumerate(calls.calls.tolist()):
            if call > 0:
                hint = _hint(calls, call - 1) if manager.wants_hint else None
                block = blocks[call] = manager.alloc(int(calls.nbytes[call - 1]), 0, hint)
                place[:, call - 1] = block.address, block.size, block.segment.id
            else:
                manager.free(blocks.pop(-call))
    except MemoryError as full:
        if lease.device.capacity is None:
            raise
        return place, lease.call, f"{type(full).__name__}: {full}"
    return place, len(calls.calls), None


def _tables(run: Recording, calls: Trace, lease: Notes, place: Ints, done: int) -> dict[str, Columns]:
    """Return the tables of block and segment events at their new addresses."""
    rows, (born, died) = run.memory.block, calls.lifetimes
    alive, freed = np.flatnonzero(born < done), np.flatnonzero(died < done)
    tables = {"alloc": _rows(run.table("alloc"), rows, alive, place) | {"t": rows["t"][alive]}}
    for kind in ("free_requested", "free_completed"):
        tables[kind] = _rows(run.table(kind), rows, freed, place) | {"t": rows["end"][freed]}
    row = np.abs(calls.calls) - 1
    when = np.append(np.where(calls.calls > 0, rows["t"][row], rows["end"][row]), 0)
    for kind in ("segment_alloc", "segment_resize", "segment_free"):
        number = schema.kind_of(kind).number
        notes = np.array([note for note in lease.notes if note[1] == number], np.int64).reshape(-1, 5)
        about = {"t": when[notes[:, 0]], "segment_id": notes[:, 2], "address": notes[:, 3], "size": notes[:, 4]}
        tables[kind] = about | {"lane": np.zeros(len(notes), np.int32)}
    return tables


def _copied(run: Recording, name: str) -> Recording:
    """Return a finished recording with the same tables."""
    found = Recording(name)
    found.tables = {kind: run.table(kind) for kind in schema.KINDS}
    found.catalog, found.meta, found.captured = run.catalog, dict(run.meta), run.captured
    found.start, found.end = run.start, run.start + round(run.seconds * 1e9)
    found.state, found.error, found.over_limit = "finished", None, run.over_limit
    return found


def _rows(table: Columns, rows: Columns, chosen: Ints, place: Ints) -> Columns:
    """The columns of a kind of event for some blocks, at their new places."""
    address, size, segment = place[:, chosen]
    found = {name: rows[name][chosen] for name in table if name in rows}
    return found | {"address": address, "size": size, "segment_id": segment}
