"""Replays: make the allocations and frees of a trace again with other memory managers on a simulated device."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

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

SLICE = 1 << 13
"""The number of replayed calls between two reports of progress."""


class Change(NamedTuple):
    """A change of a segment: the index of the trace's call, the kind (reserve, resize, release), and the segment."""

    call: int
    kind: int
    id: int
    address: int
    size: int
    reserved: int
    """The bytes in all segments after the change."""


class Counter(Lease):
    """A lease that stores the changes of segments in a list and emits no events to recordings."""

    def __init__(self, device: MemoryDevice) -> None:
        super().__init__(device)
        self.call = 0
        self.changes: list[Change] = []

    def _count(self, kind: int, segment: Segment, more: int) -> None:
        self.reserved += more
        self.peak = max(self.peak, self.reserved)
        self.changes.append(Change(self.call, kind, segment.id, segment.address, segment.size, self.reserved))

    def tell(self, kind: int, *words: int) -> None:
        """Do nothing; the method of the base class emits an event."""


class Unmade(ValueError):
    """Raised if a manager rejects the device or settings of a replay."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of replaying a trace on one memory manager. Sizes are in bytes.

    The peak is the call after which the most requested bytes are live.

    Attributes:
        manager: the manager's name and settings.
        calls: the number of calls made: all of the trace, unless memory ran out.
        peak_reserved: the most bytes that were reserved from the device at once.
        ratio_at_peak: reserved bytes / live (requested) bytes at the peak.
        ratio_average: the same ratio over all calls: sum(reserved) / sum(live).
        unusable: the share of the free bytes at the peak that are in holes smaller than the trace's largest request.
        internal: sum(size - requested) / sum(size), both sums over the live blocks at the peak.
        largest_hole: the bytes of the largest hole at the peak.
        native_calls: how often a segment was reserved, resized or released.
        ns_per_call: the mean time of the manager's `alloc` and `free`, in ns.
        first_oom: (index of the call, bytes requested) of the request that failed and ended the replay, or None.
        live, reserved: int64 arrays, the bytes after each call.
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
    """Replay a trace on one memory manager; returns the measured `Outcome`.

    Args:
        source: the trace.
        spec: the manager: a name, class, instance or function, as for `replay`, or a pair of class and settings.
        capacity: the capacity of the simulated device (bytes, or a string with a unit); or the device itself.
        tell: a function that is called to report progress, with the number of calls made since the last report.
    """
    lease = Counter(capacity if isinstance(capacity, MemoryDevice) else SimulatedDevice(capacity, source.granularity))
    label, manager = fresh(spec, lease, source)
    calls = source.calls
    blocks: dict[int, Any] = {}
    peak = int(np.argmax(source.live)) + 1 if len(calls) else 0
    stops = sorted({*range(SLICE, len(calls), SLICE), peak, len(calls)})
    begin, spent, oom, at_peak = 0, 0.0, None, (float("nan"), float("nan"), 0)
    for stop in stops:
        rows = np.abs(calls[begin:stop]) - 1
        hints = [hint_of(source, row) for row in rows.tolist()] if manager.wants_hint else [None] * len(rows)
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
    after = np.searchsorted([change.call for change in lease.changes], np.arange(made), "right")
    reserved = np.array([0, *(change.reserved for change in lease.changes)], np.int64)[after]
    live = source.live[:made]
    ratio = float(reserved[peak - 1] / max(1, live[peak - 1])) if made >= peak > 0 else float("nan")
    return Outcome(
        label, made, lease.peak, ratio, float(reserved.sum() / max(1, live.sum())), *at_peak,
        len(lease.changes), 1e9 * spent / max(1, made), oom, live, reserved,
    )  # fmt: skip


def _call(
    manager: MemoryManager,
    lease: Counter,
    begin: int,
    requests: Iterable[tuple[int, int, AllocHint | None]],
    blocks: dict[int, Any],
) -> None:
    """Replay some calls of a trace.

    Args:
        manager: the manager on which to make the calls.
        lease: the manager's lease; ``lease.call`` is set to the index of each call. After an error it is the index of
            the call that failed.
        begin: the index of the first call.
        requests: for each call the allocation's number (negative for its free), the bytes and the hint.
        blocks: a dict from an allocation's number to its live block.
    """
    alloc, free, take = manager.alloc, manager.free, blocks.pop
    for lease.call, (call, nbytes, hint) in enumerate(requests, begin):
        if call > 0:
            blocks[call] = alloc(nbytes, 0, hint)
        else:
            free(take(-call))


def hint_of(source: Trace, row: int) -> AllocHint:
    """Return the hint for an allocation of a trace, given its row."""
    shape = source.shapes[row] if len(source.shapes) else ()
    return AllocHint(shape, None, schema.CATEGORIES[source.category[row]], source.op[row], source.scope[row])


def _fragmentation(source: Trace, blocks: dict[int, Any], lease: Counter) -> tuple[float, float, int]:
    """Return `Outcome.unusable`, `Outcome.internal` and `Outcome.largest_hole`, for ``blocks`` as the live blocks."""

    def columns(rows: list[tuple[int, int, int]]) -> dict[str, Ints]:
        found = np.array(rows, np.int64).reshape(-1, 3).T
        return dict(zip(("segment_id", "address", "size"), found, strict=True))

    live = np.fromiter(blocks, np.int64, len(blocks)) - 1
    block = columns([(b.segment.id, b.address, b.size) for b in blocks.values()])
    segment = columns([(s.id, s.address, s.size) for s in lease.segments.values()])
    segment["t"] = np.zeros_like(segment["size"])
    free, total = holes(block, segment), int(block["size"].sum())
    unusable = float(free[free < source.nbytes.max(initial=0)].sum() / max(1, free.sum()))
    return unusable, float(1 - source.nbytes[live].sum() / max(1, total)), int(free.max(initial=0))


def fresh(spec: Any, lease: Lease, asked: Trace | None = None) -> tuple[str, MemoryManager]:
    """Create a manager on a lease; return the manager's name with its settings, and the manager.

    Args:
        spec: a name, a class, an instance (whose settings are copied), a pair of class and settings, or a function that
            makes the manager from a device.
        lease: the lease from which the manager gets its segments.
        asked: the trace from which the manager `Planned` makes its plan if its settings contain none.
    """
    given: dict[str, Any] = {}
    factory: Any = spec
    if isinstance(spec, str):
        factory, given = registry.parsed("memory manager", spec)
    elif isinstance(spec, MemoryManager):
        factory, given = type(spec), spec.constructor_arguments
    elif isinstance(spec, tuple):
        factory, given = spec
    if not callable(factory):
        raise TypeError(f"replay: expected a memory manager's name, class or instance, or a function, got {spec!r}")
    try:
        manager = factory(lease, **({"plan": asked} if factory is Planned else {}) | given)
    except TypeError as error:
        raise TypeError(f"replay: {spec!r} cannot be created for the simulated device: {error}") from error
    except ValueError as error:
        raise Unmade(f"replay: {spec!r} cannot be created for the simulated device: {error}") from error
    if not isinstance(manager, MemoryManager):
        raise TypeError(f"replay: {spec!r} returned {manager!r}, expected a memory manager")
    if manager.device is not lease:
        raise TypeError(
            f"replay: {spec!r} did not use the device it was given: its __init__ should take `device` and pass it to "
            f"super().__init__(device)"
        )
    name = (
        manager.name
        if isinstance(spec, (str, MemoryManager, tuple))
        else getattr(spec, "name", getattr(spec, "__name__", "manager"))
    )
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
        source: a recording, the path of a saved one, or a `Trace`, as for `flnb.memory.trace`.
        managers: names (``"caching"``, ``"caching:split_limit=64MiB"``), classes, functions that make a manager from a
            device, or instances, whose settings are copied. ``"planned"`` plans the whole trace.
        capacity: the capacity of the simulated device, in bytes or as a string with a unit; None for no limit.
        progress: whether to show a progress bar (of tqdm).
        seconds: the time limit of the offline packing with which the managers are compared (`flnb.memory.pack`).

    Returns:
        A `Replay` with an `Outcome` for each manager. It prints as a table.

    >>> import flnb
    >>> calls = flnb.memory.Trace.of_calls([1, 2, -1, 3], [3 << 20, 1 << 20, 4 << 20])
    >>> found = flnb.memory.replay(calls, ["native", flnb.memory.Caching(split_limit="16MiB")])
    >>> [(row.manager, row.peak_reserved >> 20) for row in found.rows]
    [('native', 5), ('caching(split_limit=16MiB)', 22)]
    >>> found.packing
    3 allocations in 5.00 MiB (optimal)

    Raises:
        TypeError: the source has no trace, or a manager cannot be created on the simulated device.
        ValueError: there is no manager of that name, or the manager has no such setting; or all managers reject the
            device. If only some managers reject the device, `Replay.unmade` has the reasons ("reserved" needs a
            capacity).
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
    """Return a progress bar for ``total`` calls."""
    from flnb.data.progress import progress

    return progress(None, "replay", total, unit="call", unit_scale=True)


def stand_in(device: Lease | MemoryDevice, capacity: int) -> MemoryDevice:
    """Return a simulated device with a capacity (bytes) and with the granularity of ``device``.

    Segments can grow if those of ``device`` can.
    """
    real = device if isinstance(device, MemoryDevice) else device.device
    grows = type(real).resize is not MemoryDevice.resize
    kind: Any = SimulatedDevice if grows else type("StandIn", (SimulatedDevice,), {"resize": MemoryDevice.resize})
    return kind(capacity, real.granularity)
