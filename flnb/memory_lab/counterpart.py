"""A recording rewritten as if another memory manager had placed its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry import Recording, schema

from flnb.memory_lab.replaying import Counter, fresh, hint_of
from flnb.memory_lab.traces import recording, trace

if TYPE_CHECKING:
    from flnb_telemetry.schema import Columns, Ints

    from flnb.interface.memory import Block, MemoryManager
    from flnb.memory_lab.traces import Trace


def rerun(source: Any, manager: Any = "caching", capacity: int | str | None = None) -> Recording:
    """Return a copy of a recording in which another memory manager has placed the blocks.

    `flnb.view(run, flnb.memory.rerun(run, "buddy"))` shows two managers beside each other at any moment of a run. To
    compare the numbers of many managers, use `flnb.memory.replay`.

    Args:
        source: a recording, or the path of a saved one.
        manager: the manager's name (``"caching"``, ``"caching:split_limit=64MiB"``), its class, a function that makes a
            manager from a device, or an instance, whose settings are copied. ``"planned"`` plans the whole run.
        capacity: the capacity of the simulated device, in bytes or as a string with a unit; None for no limit. If
            memory runs out, the new recording has the state "failed" and ends there.

    >>> import flnb
    >>> with flnb.record("two") as run:
    ...     x = flnb.ones((1 << 18,)) + 1.0
    >>> other = flnb.memory.rerun(run, "native")
    >>> len(other.memory.block["t"]) == len(run.memory.block["t"])
    True
    >>> other.memory.peak.reserved == other.memory.peak.allocated  # a segment for each block
    True

    Raises:
        TypeError: the source is not a recording, or the manager cannot be created on the simulated device.
        ValueError: the recording has no allocation.
    """
    run = recording(source, "rerun")
    calls = trace(run)
    lease = Counter(SimulatedDevice(capacity, calls.granularity))
    label, made = fresh(manager, lease, calls)
    place, done, error = _placed(calls, made, lease)
    found = _copied(run, f"{run.name} under {label}")
    found.meta |= {"manager": label, "device": lease.device.name, "capacity": lease.device.capacity}
    if error is not None:
        found.state, found.error = "failed", error
    found.tables = {**found.tables, **_tables(run, calls, lease, place, done)}
    found.events = sum(len(table["lane"]) for table in found.tables.values())
    return found


def _placed(calls: Trace, manager: MemoryManager, lease: Counter) -> tuple[Ints, int, str | None]:
    """Replay a trace on a manager; return the blocks' places, the number of calls made, and an error text or None.

    The places are address, size and segment of each block, int64 (3, m). The error text is set if memory ran out.
    ``lease`` is the manager's lease, which stores the changes of segments.
    """
    place = np.zeros((3, len(calls.nbytes)), np.int64)
    blocks: dict[int, Block] = {}
    try:
        for lease.call, call in enumerate(calls.calls.tolist()):
            if call > 0:
                hint = hint_of(calls, call - 1) if manager.wants_hint else None
                block = blocks[call] = manager.alloc(int(calls.nbytes[call - 1]), 0, hint)
                place[:, call - 1] = block.address, block.size, block.segment.id
            else:
                manager.free(blocks.pop(-call))
    except MemoryError as full:
        if lease.device.capacity is None:
            raise
        return place, lease.call, f"{type(full).__name__}: {full}"
    return place, len(calls.calls), None


def _tables(run: Recording, calls: Trace, lease: Counter, place: Ints, done: int) -> dict[str, Columns]:
    """Return a recording's tables of block and segment events, with the blocks at new addresses.

    Args:
        run: the recording.
        calls: its trace.
        lease: the lease of the new manager, which has the events of the segments.
        place: address, size and segment of each block, int64 (3, m).
        done: the number of calls of the trace that were made before memory ran out.
    """
    rows, (born, died) = run.memory.block, calls.lifetimes
    alive, freed = np.flatnonzero(born < done), np.flatnonzero(died < done)
    tables = {"alloc": _rows(run.table("alloc"), rows, alive, place) | {"t": rows["t"][alive]}}
    for kind in ("free_requested", "free_completed"):
        tables[kind] = _rows(run.table(kind), rows, freed, place) | {"t": rows["end"][freed]}
    row = np.abs(calls.calls) - 1
    when = np.append(np.where(calls.calls > 0, rows["t"][row], rows["end"][row]), 0)
    for kind in ("segment_alloc", "segment_resize", "segment_free"):
        number = schema.kind_of(kind).number
        notes = np.array([change for change in lease.changes if change.kind == number], np.int64).reshape(-1, 6)
        about = {"t": when[notes[:, 0]], "segment_id": notes[:, 2], "address": notes[:, 3], "size": notes[:, 4]}
        about |= {"place": np.zeros(len(notes), np.int64)} if kind != "segment_free" else {}
        tables[kind] = about | {"lane": np.zeros(len(notes), np.int32)}
    return tables


def _copied(run: Recording, name: str) -> Recording:
    """Return a finished recording called ``name`` that shares the tables of the recording ``run``."""
    found = Recording(name)
    found.tables = {kind: run.table(kind) for kind in schema.KINDS}
    found.catalog, found.meta, found.captured = run.catalog, dict(run.meta), run.captured
    found.start, found.end = run.start, run.start + round(run.seconds * 1e9)
    found.state, found.error, found.over_limit = "finished", None, run.over_limit
    return found


def _rows(table: Columns, rows: Columns, chosen: Ints, place: Ints) -> Columns:
    """Return the rows of the ``chosen`` blocks with their new addresses, reduced to the columns of ``table``.

    Args:
        table: the events to imitate, such as those of kind "alloc".
        rows: all blocks, as in `Memory.block`.
        chosen: the indices of the blocks.
        place: the new address, size and segment of each block, int64 (3, m).
    """
    address, size, segment = place[:, chosen]
    found = {name: rows[name][chosen] for name in table if name in rows}
    return found | {"address": address, "size": size, "segment_id": segment}
