"""A recorded program's blocks as another manager would have placed them: a recording again, to be looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry import Recording, load_run, schema

from flnb.interface.memory import Segment
from flnb.memory.replaying import Counter, fresh, hint_of
from flnb.memory.traces import trace

if TYPE_CHECKING:
    from flnb_telemetry.schema import Columns

__all__ = ["rerun"]


class Notes(Counter):
    """A lease that notes when segments came, went and were resized: (call, kind, id, address, size)."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__(device)
        self.notes: list[tuple[int, int, int, int, int]] = []

    def _count(self, kind: int, segment: Segment, more: int) -> None:
        super()._count(kind, segment, more)
        self.notes.append((self.call, kind, segment.id, segment.address, segment.size))


def rerun(source: Any, manager: Any = "caching", capacity: int | str | None = None) -> Recording:
    """A recording with another memory manager's blocks and segments; its ops, steps, tape and times stay as they are.

    So `flnb.view(run, flnb.memory.rerun(run, "buddy"))` shows two managers beside each other, at any moment of a run;
    figures alone, of many managers at once, are `flnb.memory.replay`'s.

    Args:
        source: a recording, or the path of a saved one.
        manager: a name, also with settings (``"caching:split_limit=64MiB"``), a class, a function of a device, or an
            instance, whose settings are taken.
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
    run = source if isinstance(source, Recording) else load_run(source) if isinstance(source, str) else None
    if run is None:
        raise TypeError(
            f"flnb.memory.rerun: expected a recording (flnb.record) or the path of a saved one, got "
            f"{type(source).__name__}"
        )
    calls, rows = trace(run), run.memory.block
    lease = Notes(SimulatedDevice(capacity))
    label, made = fresh(manager, lease)
    place, done, error = np.zeros((3, len(rows["t"])), np.int64), 0, None
    blocks: dict[int, Any] = {}
    try:
        for lease.call, call in enumerate(calls.calls.tolist()):
            if call > 0:
                hint = hint_of(calls, call - 1) if made.wants_hint else None
                block = blocks[call] = made.alloc(int(calls.nbytes[call - 1]), 0, hint)
                place[:, call - 1] = block.address, block.size, block.segment.id
            else:
                made.free(blocks.pop(-call))
            done = lease.call + 1
    except MemoryError as full:
        if lease.device.capacity is None:
            raise
        error = f"{type(full).__name__}: {full}"
    born, died = calls.lifetimes
    when = np.append(
        np.where(calls.calls > 0, rows["t"][np.abs(calls.calls) - 1], rows["end"][np.abs(calls.calls) - 1]), 0
    )
    found = _copied(run, f"{run.name} under {label}")
    found.meta |= {"manager": label, "device": lease.device.name, "capacity": lease.device.capacity}
    if error is not None:
        found.state, found.error = "failed", error
    alive, freed = np.flatnonzero(born < done), np.flatnonzero(died < done)
    found.tables["alloc"] = _rows(run.table("alloc"), rows, alive, place) | {"t": rows["t"][alive]}
    for kind in ("free_requested", "free_completed"):
        found.tables[kind] = _rows(run.table(kind), rows, freed, place) | {"t": rows["end"][freed]}
    for number in (schema.SEGMENT_ALLOC, schema.SEGMENT_RESIZE, schema.SEGMENT_FREE):
        notes = np.array([note for note in lease.notes if note[1] == number], np.int64).reshape(-1, 5)
        kind = next(kind for kind in schema.KINDS.values() if kind.number == number)
        about = {"t": when[notes[:, 0]], "segment_id": notes[:, 2], "address": notes[:, 3], "size": notes[:, 4]}
        found.tables[kind.name] = about | {"lane": np.zeros(len(notes), np.int32)}
    found.events = sum(len(table["lane"]) for table in found.tables.values())
    return found


def _copied(run: Recording, name: str) -> Recording:
    """A recording that has ended, with the same tables."""
    found = Recording(name)
    found.tables = {kind: run.table(kind) for kind in schema.KINDS}
    found.catalog, found.meta, found.captured = run.catalog, dict(run.meta), run.captured
    found.start, found.end = run.start, run.start + round(run.seconds * 1e9)
    found.state, found.error, found.over_limit = "finished", None, run.over_limit
    return found


def _rows(table: Columns, rows: Columns, chosen: Any, place: Any) -> Columns:
    """The columns of a kind of event for some blocks, at their new places."""
    address, size, segment = place[:, chosen]
    found = {name: rows[name][chosen] for name in table if name in rows}
    return found | {"address": address, "size": size, "segment_id": segment}
