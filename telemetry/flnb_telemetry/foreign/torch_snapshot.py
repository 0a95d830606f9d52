"""Read PyTorch memory snapshots (`torch.cuda.memory._dump_snapshot`) as recordings.

A snapshot has, for each device, the last events of PyTorch's allocator and the state after the last event. The state
before the first event is found by undoing the events in reverse order; the recording begins with that state. Events
have requested sizes only, so the size of a freed block is assumed to be the request, rounded up as in PyTorch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.analysis.memory import NEVER
from flnb_telemetry.foreign import torch_events as te
from flnb_telemetry.foreign.plain_pickle import PickleError, read
from flnb_telemetry.foreign.torch_segments import Held, held_over
from flnb_telemetry.formats.stored import RunFileError
from flnb_telemetry.intern import Catalog, Context, Plan, Table
from flnb_telemetry.recording import Recording
from flnb_telemetry.safe_text import brief

if TYPE_CHECKING:
    from flnb_telemetry.schema import Columns, Ints

MOST_DEVICES = 1 << 16
MIN_BLOCK = 512
"""The size of every PyTorch block is a multiple of this number of bytes."""
Final: TypeAlias = tuple[int, int, int, int, bool]
"""A block that was live at the end: address, size, requested, stack, whether it was freed."""
LIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")


def load_snapshot(path: str | os.PathLike[str], device: int | None = None) -> Recording:
    """Read a PyTorch memory snapshot as a `Recording`, for `run.memory`, reports, replays and exports.

    No code in the file is executed. Events are converted to columns while the file is read, so that large files fit
    into memory. Blocks and segments from before the first event exist from the beginning of the recording.
    `run.stacks[context]` is the call stack of the blocks with that context id. Times are in µs in the file; events with
    equal times are moved apart by a few ns.

    Args:
        path: the file.
        device: the number of the GPU; by default that of the GPU with most events. `run.meta["devices"]` lists all.

    >>> import flnb
    >>> with flnb.record() as run:
    ...     y = flnb.ones((256, 256)) * 2.0
    >>> run.to_torch_snapshot("run.pickle")
    >>> snapshot = flnb.memory.load_snapshot("run.pickle")
    >>> snapshot.memory.peak.allocated == run.memory.peak.allocated
    True

    Raises:
        FileNotFoundError: there is no such file.
        RunFileError: the file is damaged, is not such a snapshot, or names code to be executed.
        ValueError: the file has no device with this number.
    """
    try:
        return _loaded(path, device)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"load_snapshot: no file {os.fspath(path)!r}; give one that torch.cuda.memory._dump_snapshot wrote"
        ) from None
    except (PickleError, te.SnapshotError) as error:
        raise RunFileError(
            f"load_snapshot: {os.fspath(path)!r} is not a readable PyTorch memory snapshot: {error}. Expected the file "
            f"that torch.cuda.memory._dump_snapshot or run.to_torch_snapshot wrote"
        ) from error


def _loaded(path: str | os.PathLike[str], device: int | None) -> Recording:
    stacks = te.Stacks()
    traces, segments, about = _parts(read(path, te.gatherer(stacks)))
    states = _states(segments, stacks)
    every = [te.joined_events(part, f"device_traces[{i}]") for i, part in enumerate(traces)]
    held = {state[0].device for state in states}
    used = {i: len(events.action) for i, events in enumerate(every) if len(events.action) or i in held}
    used |= dict.fromkeys(sorted(held - used.keys()), 0)
    if device is None:
        device = max(used, key=lambda i: used[i], default=0)
    elif device not in used:
        raise ValueError(f"load_snapshot: {os.fspath(path)!r} has no device {device}; it has {sorted(used)}")
    events = every[device] if device < len(every) else te.joined_events([], "")
    said = about.get("meta")
    kept = said.items() if isinstance(said, dict) else ()
    meta = {key: value for key, value in kept if type(value) in (str, int, float, bool)}
    facts = {"manager": "PyTorch's caching allocator", "device": f"cuda:{device}", "format": "PyTorch memory snapshot"}
    run = _recording(events, [state for state in states if state[0].device == device], stacks, about)
    run.name = about["name"] if type(about.get("name")) is str else Path(path).stem
    run.meta = facts | meta | {"devices": {str(i): n for i, n in sorted(used.items())}}
    return run


def _parts(whole: Any) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Return a snapshot's event lists, segments, and fields added by flnb; an old snapshot is a list of segments."""
    if isinstance(whole, list):
        whole = {"segments": whole, "device_traces": []}
    if not isinstance(whole, dict) or not ({"segments", "device_traces"} & whole.keys()):
        raise te.SnapshotError(f"the file holds {brief(whole)}, expected a dict with segments and device_traces")
    segments, traces = whole.get("segments", []), whole.get("device_traces", [])
    for name, value in (("segments", segments), ("device_traces", traces)):
        if not isinstance(value, list):
            raise te.SnapshotError(f"{name} is {brief(value)}, expected a list")
    for i, part in enumerate(traces):
        if not isinstance(part, list):
            raise te.SnapshotError(f"device_traces[{i}] is {brief(part)}, expected a list of events")
    about = whole.get("flnb", {})
    return traces, segments, dict(about) if isinstance(about, dict) else {}


def _states(segments: list[Any], stacks: te.Stacks) -> list[tuple[Held, list[Final]]]:
    """Return the segments that exist at the end of a snapshot, each with its live blocks."""
    states, lists = [], set[int]()
    for segment in segments:
        blocks = segment.get("blocks") if isinstance(segment, dict) else None
        if not isinstance(blocks, (list, tuple)):
            raise te.SnapshotError(f"a segment is {brief(segment)}, expected a dict with a list of blocks")
        if blocks and id(blocks) in lists:
            raise te.SnapshotError("two segments have the same list of blocks, expected one for each")
        lists.add(id(blocks))
        device = te.integer("a segment", "device", segment.get("device"), MOST_DEVICES)
        begin, size = (te.integer("a segment", name, segment.get(name)) for name in ("address", "total_size"))
        live, position = [], begin
        for block in blocks:
            at, size_of = _extent(block, position)
            if block.get("state") in LIVE:
                live.append(_live(block, at, size_of, stacks))
            position = at + size_of
        states.append((Held(device, begin, size, bool(segment.get("is_expandable", False))), live))
    return states


def _extent(block: Any, position: int) -> tuple[int, int]:
    """Return the address and size of a block; in old files blocks have no address, and `position` is used."""
    if not isinstance(block, dict) or not isinstance(block.get("state"), str):
        raise te.SnapshotError(f"a block is {brief(block)}, expected a dict with size and state")
    at = te.integer("a block", "address", block.get("address", position))
    return at, te.integer("a block", "size", block.get("size"))


def _live(block: dict[str, Any], at: int, size: int, stacks: te.Stacks) -> Final:
    """Return a block that was live at the end; old files have its call stack and requested size in "history"."""
    told, name = block, "requested_size"
    if history := block.get("history"):
        told, name = (history[0] if isinstance(history, (list, tuple)) else history), "real_size"
        if not isinstance(told, dict):
            raise te.SnapshotError(f"a block has history {brief(history)}, expected a list of dicts")
    requested = te.integer("a block", name, told.get(name, size))
    return at, size, requested, stacks.number(told.get("frames", ())), block["state"] != LIVE[0]


def _recording(
    events: te.Events, states: list[tuple[Held, list[Final]]], stacks: te.Stacks, about: dict[str, Any]
) -> Recording:
    start, end = _time_of(about, "start"), _time_of(about, "end")
    t = _times(events, start > 0)
    first, last = (int(t[0]), int(t[-1])) if len(t) else (0, 0)
    start = start if 0 < start <= first else first - 1
    tables: dict[str, Columns] = {name: schema.table(kind, []) for name, kind in schema.KINDS.items()}
    block = _blocks(events, t, [block for _, blocks in states for block in blocks], start)
    held = [held for held, _ in states]
    cuts = about.get("cuts")
    known = list(cuts) if isinstance(cuts, (list, tuple)) and all(type(at) is int for at in cuts) else None
    segments, block["segment_id"] = held_over(events, t, held, start, block["event"], block["address"], known)
    tables |= segments
    run = Recording()
    run.catalog, plan, context = _catalog(stacks)
    lane = np.zeros(len(block["t"]), np.int32)
    told = {name: block[name] for name in ("alloc_id", "address", "size", "requested", "segment_id")}
    told |= {"context": context[block["stack"]], "lane": lane}
    own = {"t": block["t"], "category": block["category"].astype(np.uint16), "plan": plan[block["stack"]]}
    tables["alloc"] = _like(tables["alloc"], told | own)
    for name, when in (("free_requested", "dropped"), ("free_completed", "end")):
        rows = np.flatnonzero(block[when] != NEVER)
        rows = rows[np.argsort(block[when][rows], kind="stable")]
        tables[name] = _like(tables[name], {key: column[rows] for key, column in (told | {"t": block[when]}).items()})
    run.tables, run.state, run.start = tables, "finished", start
    run.end = max(end, last, start + 1)
    tables["oom"] = _ooms(events, t, context, run)
    run.events = sum(len(table["lane"]) for table in tables.values())
    return run


def _time_of(about: dict[str, Any], name: str) -> int:
    """Return the time in ns that the field ``name`` of a snapshot has; 0 if ``about`` lacks this field.

    flnb writes the field as a tuple: whole µs, and further ns.
    """
    time = about.get(name)
    if isinstance(time, tuple) and len(time) == 2 and all(type(part) is int for part in time):
        us, ns = time
        return us * 1000 + ns if 0 <= us <= te.MOST_US and 0 <= ns < 1000 else 0
    return 0


def _like(empty: Columns, given: Columns) -> Columns:
    """Return those columns of `given` that the table `empty` has too, in the order of `empty`."""
    return {name: given[name] for name in empty}


def _times(events: te.Events, exact: bool) -> Ints:
    """Return the time of each event in ns; equal times are changed to increasing ones, unless times are `exact`."""
    t, ordinal = events.us * 1000 + events.ns, np.arange(len(events.us))
    found: Ints = np.maximum.accumulate(t if exact else t - ordinal)
    return found if exact else found + ordinal


def _blocks(events: te.Events, t: Ints, final: list[Final], start: int) -> Columns:
    """Return one row for each block: its times of allocation ("t"), request to free ("dropped") and free ("end").

    `final` has the blocks that are live at the end; `start` is the beginning of the recording (ns).
    At each address, the events from an allocation to the next free belong to one block. If the allocation is missing,
    the block is assumed to begin at the end of the previous block, or at the beginning of the recording.
    """
    chosen = np.flatnonzero(np.isin(events.action, (te.ALLOC, te.REQUESTED, te.COMPLETED)))
    chosen = chosen[np.argsort(events.address[chosen], kind="stable")]
    kind, address = events.action[chosen], events.address[chosen]
    first = np.ones(len(chosen), np.bool_)  # of its address
    first[1:] = address[1:] != address[:-1]
    ended = np.concatenate([[False], kind[:-1] == te.COMPLETED])[: len(chosen)]
    begins = (kind == te.ALLOC) | first | ended
    life = np.cumsum(begins) - 1
    row = np.flatnonzero(begins)
    told, known = chosen[row], kind[row] == te.ALLOC
    before = np.where(first[row], start, t[chosen[np.maximum(row - 1, 0)]]) if len(row) else np.empty(0, np.int64)
    block: Columns = {
        "address": events.address[told],
        "requested": events.size[told],
        "size": events.block[told],
        "stack": np.where(known, events.stack[told], 0),  # the stack of a free is not that of the allocation
        "category": events.category[told],
        "t": np.where(known, t[told], before),
        "event": np.where(known, told, np.where(first[row], -1, chosen[np.maximum(row - 1, 0)])) if len(row) else told,
    }
    for name, what in (("dropped", te.REQUESTED), ("end", te.COMPLETED)):
        block[name] = np.full(len(row), NEVER)
        block[name][life[kind == what]] = t[chosen[kind == what]]
    lost = (block["end"][:-1] == NEVER) & (block["address"][1:] == block["address"][:-1])  # its free is missing
    block["end"][:-1][lost] = block["t"][1:][lost]
    block["dropped"] = np.minimum(block["dropped"], block["end"])
    block = _with_final(block, final, start)
    block["size"] = np.where(
        block["size"] > 0, block["size"], np.maximum(MIN_BLOCK, -(-block["requested"] // MIN_BLOCK) * MIN_BLOCK)
    )
    order = np.lexsort((block["event"], block["t"]))
    return {name: column[order] for name, column in block.items()} | {"alloc_id": np.arange(1, len(order) + 1)}


def _with_final(block: Columns, final: list[Final], start: int) -> Columns:
    """Complete the table of blocks by the blocks that are live at the end (`final`), whose real sizes are known.

    Blocks without any event are added; they begin at `start` (ns), the beginning of the recording.
    """
    alive = np.flatnonzero(block["end"] == NEVER)
    where = {int(address): int(row) for address, row in zip(block["address"][alive], alive, strict=True)}
    older = []
    for address, size, requested, stack, freed in final:
        row = where.get(address)
        if row is not None:
            block["size"][row] = size
            block["stack"][row] = block["stack"][row] or stack
        else:
            dropped = start if freed else NEVER
            older.append((address, requested, size, stack, 0, start, -1, dropped, NEVER))
    added = np.array(older, np.int64).reshape(-1, len(block)).T
    return {name: np.concatenate([column, more]) for (name, column), more in zip(block.items(), added, strict=True)}


def _catalog(stacks: te.Stacks) -> tuple[Catalog, Ints, Ints]:
    """Return a catalog of plans (op, shape) and contexts, and each call stack's plan id and context id.

    Scope and line of a stack that PyTorch wrote are those of the user's innermost frame. A stack that flnb wrote begins
    with a frame that has the op and the scope; this frame is not stored as part of the stack.
    """
    contexts, plans = list[Context](), Table([Plan("", "", (), "", 0)])
    of_stack, called = [], {}
    for number, frames in enumerate(stacks.rows):
        ours = bool(frames and frames[0].about)
        if frames[ours:]:
            called[number] = frames[ours:]
        if ours:
            shape, dtype, phase, line = frames[0].about
            op, scope = frames[0].name, "" if frames[0].filename == OURS else frames[0].filename
        else:
            (op, scope), shape, dtype, phase = te.described(frames), (), "", 0
            line = ": ".join(scope.rsplit(":", 1))
        of_stack.append(plans.id_of(Plan(op, "", shape, dtype, 0)))
        contexts.append(Context(scope, phase, "", 0, line))
    catalog = Catalog(Table([""]), plans, Table(contexts))
    catalog.stacks = called
    return catalog, np.array(of_stack, np.uint32), np.arange(len(of_stack))


OURS = "flnb"
"""The file name in the frames of blocks without a scope."""


def _ooms(events: te.Events, t: Ints, context: Ints, run: Recording) -> Columns:
    """Return the table of out-of-memory events, whose context ids are in `context`.

    If the file does not have the free bytes, these are computed from the gaps between blocks.
    """
    table = schema.table(schema.kind_of("oom"), [])
    rows = []
    for i, told in sorted(events.ooms.items()):
        left = told.get("device_free", 0)
        state = run.memory.at(float(run.seconds_at(int(t[i]))))
        free = left + int(state.holes.sum())
        counted = {"free": free, "largest_hole": state.largest_hole} | told
        sizes = [counted.get(key, 0) for key in ("free", "largest_hole", "capacity")]
        rows.append((t[i], events.size[i], *sizes, told.get("reserved", state.reserved), context[events.stack[i]], 0))
    return dict(zip(table, np.array(rows, np.int64).reshape(-1, len(table)).T, strict=True))
