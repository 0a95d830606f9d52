"""Replays: the calls of a trace made to other managers, on a simulated device."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.memory.planned import Planned
from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry import schema
from flnb_telemetry.analysis.memory import holes

from flnb.dispatch import registry
from flnb.interface.memory import AllocHint, Lease, MemoryDevice, MemoryManager, OutOfMemoryError, Segment
from flnb.memory_lab.packing import pack
from flnb.memory_lab.replay_table import Replay
from flnb.memory_lab.traces import Trace, trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flnb_telemetry.schema import Ints

__all__ = ["Outcome", "Replay", "play", "replay"]

SLICE = 1 << 15
"""Calls between two reports of progress."""


class Counter(Lease):
    """A lease that counts what a manager reserves and emits no events, so that a running recording is not disturbed."""

    def __init__(self, device: MemoryDevice) -> None:
        super().__init__(device)
        self.call = 0
        self.changes: list[tuple[int, int]] = []  # (call, bytes reserved after it)
        self.native_calls = 0

    def _count(self, kind: int, segment: Segment, more: int) -> None:
        self.reserved += more
        self.peak = max(self.peak, self.reserved)
        self.native_calls += 1
        self.changes.append((self.call, self.reserved))

    def tell(self, kind: int, *words: int) -> None:
        """Emit nothing: a replay is not part of what is recorded."""


class Unmade(ValueError):
    """A manager that does not fit the device or the settings it is to be replayed with."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one manager made of a trace. Sizes in bytes; "at the peak": when most requested bytes were live.

    Attributes:
        manager: its name and what it was told.
        calls: made, all of the trace unless memory ran out.
        peak_reserved: the most that was taken from the device.
        ratio_at_peak: reserved / live (requested) at the peak, the headline: how much more than was asked for.
        ratio_average: the same over all calls: sum(reserved) / sum(live).
        unusable: sum(holes < r) / sum(holes) at the peak, r being the trace's largest request.
        internal: sum(size - requested) / sum(size) over the live blocks at the peak.
        largest_hole: at the peak.
        native_calls: segments reserved, resized and released.
        ns_per_call: what the manager took, one alloc or free.
        first_oom: (call, request) where the device was full, and nothing was called after it; None otherwise.
        live, reserved: bytes after each call.
    """

    manager: str
    calls: int
    peak_reserved: int
    ratio_at_peak: float
    ratio_average: float
    unusable: float
    internal: float
    largest_hole: int
    native_calls: int
    ns_per_call: float
    first_oom: tuple[int, int] | None
    live: Ints
    reserved: Ints


def play(
    source: Trace,
    spec: Any,
    capacity: int | str | MemoryDevice | None = None,
    tell: Callable[[int], object] | None = None,
) -> Outcome:
    """Make the calls of a trace to one manager and measure it; a device may be given in place of its capacity.

    ``tell`` is called with how many calls more are done with.
    """
    lease = Counter(capacity if isinstance(capacity, MemoryDevice) else SimulatedDevice(capacity, source.granularity))
    label, manager = _fresh(spec, lease, source)
    calls = source.calls
    blocks: dict[int, Any] = {}
    peak = int(np.argmax(source.live)) + 1 if len(calls) else 0
    stops = sorted({*range(SLICE, len(calls), SLICE), peak, len(calls)})
    begin, spent, oom, at_peak = 0, 0.0, None, (float("nan"), float("nan"), 0)
    for stop in stops:
        rows = np.abs(calls[begin:stop]) - 1
        hints = [_hint(source, row) for row in rows.tolist()] if manager.wants_hint else [None] * len(rows)
        requests = zip(calls[begin:stop].tolist(), source.nbytes[rows].tolist(), hints, strict=True)
        started = perf_counter()
        try:
            _call(manager, lease, begin, requests, blocks)
        except MemoryError as error:
            oom = (lease.call, int(source.nbytes[calls[lease.call] - 1]))
            if not isinstance(error, OutOfMemoryError) and lease.device.capacity is None:
                raise
        spent += perf_counter() - started
        if tell is not None:
            tell((len(calls) if oom else stop) - begin)
        if oom:
            break
        if stop == peak:
            at_peak = _fragmentation(source, blocks, lease)
        begin = stop
    made = len(calls) if oom is None else lease.call
    reserved, live = _reserved(lease, made), source.live[:made]
    ratio = float(reserved[peak - 1] / max(1, live[peak - 1])) if made >= peak > 0 else float("nan")
    return Outcome(
        label, made, lease.peak, ratio, float(reserved.sum() / max(1, live.sum())), *at_peak,
        lease.native_calls, 1e9 * spent / max(1, made), oom, live, reserved,
    )  # fmt: skip


def _call(
    manager: MemoryManager,
    lease: Counter,
    begin: int,
    requests: Iterable[tuple[int, int, AllocHint | None]],
    blocks: dict[int, Any],
) -> None:
    """Make calls (what, bytes, hint) from number ``begin`` on; `lease.call` is the one under way."""
    alloc, free, take = manager.alloc, manager.free, blocks.pop
    for lease.call, (call, nbytes, hint) in enumerate(requests, begin):
        if call > 0:
            blocks[call] = alloc(nbytes, 0, hint)
        else:
            free(take(-call))


def _hint(source: Trace, row: int) -> AllocHint:
    shape = source.shapes[row] if len(source.shapes) else ()
    return AllocHint(shape, None, schema.CATEGORIES[source.category[row]], source.op[row], source.scope[row])


def _fragmentation(source: Trace, blocks: dict[int, Any], lease: Counter) -> tuple[float, float, int]:
    """Return the share of free bytes unusable for the largest request, the internal waste, and the largest hole."""
    live = np.fromiter(blocks, np.int64, len(blocks)) - 1
    block = {
        "segment_id": np.array([b.segment.id for b in blocks.values()], np.int64),
        "address": np.array([b.address for b in blocks.values()], np.int64),
        "size": np.array([b.size for b in blocks.values()], np.int64),
    }
    held = lease.segments.values()
    segment = {
        "t": np.zeros(len(held)),
        "segment_id": np.array([s.id for s in held], np.int64),
        "address": np.array([s.address for s in held], np.int64),
        "size": np.array([s.size for s in held], np.int64),
    }
    free, total = holes(block, segment), int(block["size"].sum())
    unusable = float(free[free < source.nbytes.max(initial=0)].sum() / max(1, free.sum()))
    return unusable, float(1 - source.nbytes[live].sum() / max(1, total)), int(free.max(initial=0))


def _reserved(lease: Counter, made: int) -> Ints:
    """Bytes reserved after each call."""
    steps = np.zeros(made, np.int64)
    before = 0
    for call, now in lease.changes:
        if call < made:
            steps[call] += now - before
            before = now
    return np.cumsum(steps)


def _fresh(spec: Any, lease: Lease, asked: Trace | None = None) -> tuple[str, MemoryManager]:
    """Return the label and a fresh manager on this lease. Without a plan, `Planned` plans the trace."""
    given: dict[str, Any] = {}
    factory: Any = spec
    if isinstance(spec, str):
        factory, given = registry.parsed("memory manager", spec)
    elif isinstance(spec, MemoryManager):
        factory, given = type(spec), spec.told
    if not callable(factory):
        raise TypeError(f"replay: expected a memory manager's name, class or instance, or a function, got {spec!r}")
    try:
        manager = factory(lease, **({"plan": asked} if factory is Planned else {}) | given)
    except TypeError as error:
        raise TypeError(f"replay: {spec!r} cannot be made for another device: {error}") from error
    except ValueError as error:
        raise Unmade(f"replay: {spec!r} cannot be made for this device: {error}") from error
    if not isinstance(manager, MemoryManager):
        raise TypeError(f"replay: {spec!r} gave {manager!r}, expected a memory manager")
    if manager.device is not lease:
        raise TypeError(f"replay: {spec!r} took no device: give __init__ the argument device and pass it on to super()")
    name = manager.name if isinstance(spec, (str, MemoryManager)) else getattr(spec, "name", spec.__name__)
    options = ", ".join(f"{key}={value}" for key, value in given.items())
    return f"{name}({options})" if options else name, manager


def replay(
    source: Any,
    managers: Iterable[Any] = ("caching",),
    capacity: int | str | None = None,
    progress: bool = False,
    seconds: float = 5.0,
) -> Replay:
    """Replay a recorded program's allocations on other memory managers.

    Args:
        source: what `flnb.memory.trace` takes: a recording, a saved one, a trace.
        managers: names, also with settings (``"caching:split_limit=64MiB"``), classes, functions of a device, or
            instances, whose settings are taken. ``"planned"`` plans the whole trace.
        capacity: of the simulated device, bytes or a text with a unit; None for no limit.
        progress: show a bar (of tqdm).
        seconds: for the offline packing that the managers are held against (`flnb.memory.pack`).

    >>> import flnb
    >>> calls = flnb.memory.Trace.of_calls([1, 2, -1, 3], [3 << 20, 1 << 20, 4 << 20])
    >>> found = flnb.memory.replay(calls, ["native", flnb.memory.Caching(split_limit="16MiB")])
    >>> [(row.manager, row.peak_reserved >> 20) for row in found.rows]
    [('native', 5), ('caching(split_limit=16MiB)', 22)]
    >>> found.packing
    3 allocations in 5.00 MiB (optimal)

    Raises:
        TypeError: no source of a trace, or no manager that can be made for another device.
        ValueError: no manager of that name, or it has no such setting; or none of the managers can be made for the
            device. If others can, `Replay.unmade` says which cannot and why ("reserved" needs a capacity).
    """
    asked, specs = trace(source), [managers] if isinstance(managers, str) else list(managers)
    with _bar(len(asked.calls) * len(specs)) if progress else nullcontext() as bar:
        rows, unmade = list[Outcome](), list[Unmade]()
        for spec in specs:
            try:
                rows.append(play(asked, spec, capacity, bar and bar.update))
            except Unmade as error:
                unmade.append(error)
        if unmade and not rows:
            raise unmade[0]
    return Replay(asked, tuple(rows), pack(asked, seconds), tuple(map(str, unmade)))


def _bar(total: int) -> Any:
    from flnb.data.progress import progress

    return progress(None, "replay", total, unit="call", unit_scale=True)
