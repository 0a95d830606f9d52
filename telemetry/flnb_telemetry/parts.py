"""Which backends and memory managers ran the ops of a recording, thread by thread, and when they were exchanged."""

from __future__ import annotations

from collections import ChainMap, Counter, deque
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from flnb_telemetry import bus, intern, schema

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 256
"""The largest number of changes of backend or manager that are stored; older ones are dropped."""
NAMED = ("backend", "manager", "device")


class Parts(NamedTuple):
    """The backend, memory manager and device active at one time, and the manager's sizes in bytes."""

    backend: str = ""
    manager: str = ""
    device: str = ""
    capacity: int | None = None
    min_block: int = 0
    granularity: int = 0


class Exchange(NamedTuple):
    """A change of the backend, manager or device that one thread uses, or that all threads use.

    Attributes:
        t: the time of the change, ns of `time.perf_counter_ns`.
        lane: the number of the thread, None for all threads.
        before: the parts that were used until then, None if unknown.
        after: the parts that are used from then on.
        ran: the number of ops that had begun until then, in all threads.
    """

    t: int
    lane: int | None
    before: Parts | None
    after: Parts
    ran: int

    @property
    def text(self) -> str:
        """The changed parts as text, such as "manager caching → buddy"."""
        pairs = [(name, getattr(self.before, name, ""), getattr(self.after, name)) for name in NAMED]
        changed = [f"{name} {old} → {new}" if old else f"{name} {new}" for name, old, new in pairs if old != new]
        return " · ".join(changed) or f"{self.after.backend}, {self.after.manager} set again"


Use: TypeAlias = tuple[int, int, bool, Parts]
"""An event of the kind "use": its time (ns), its lane, whether it is about all threads, and the parts in use."""
_libraries: dict[str, str] = {}
"""The libraries of each backend that was active during a recording, by the backend's name."""


def emit_parts(facts: dict[str, Any], everywhere: bool = False) -> None:
    """Emit an event: from now on, this thread uses the backend and memory manager in `facts`.

    Args:
        facts: the fields of `Parts` by name, and "libraries", the libraries with which the backend computes.
        everywhere: whether the event is about all threads rather than the calling thread.
    """
    used = Parts(**{name: facts[name] for name in Parts._fields})
    _libraries[used.backend] = facts.get("libraries", "")
    backend, manager, device = map(intern.strings.id_of, used[:3])
    capacity = -1 if used.capacity is None else used.capacity
    code = schema.USE | int(everywhere) << schema.AUX_SHIFT
    bus.emit(code, clock(), backend, manager, device, capacity, used.min_block, used.granularity)


class UsedParts:
    """Counts ops by the backend and memory manager that were active in their thread when they ran.

    Args:
        meta: the metadata of a recording, with the backend and manager at its beginning. If these were exchanged later,
            the entry "first" has those of the beginning (see `facts`).
    """

    def __init__(self, meta: dict[str, Any]) -> None:
        meta = meta | meta.get("first", {})
        first = Parts(**{name: meta[name] for name in Parts._fields if name in meta})
        self._first = self._everywhere = first
        self._computing = ChainMap({first.backend: meta.get("libraries", "")}, _libraries)
        self._own: dict[int, Parts] = {}  # by lane, where they differ from those everywhere
        self.newest: dict[int, int] = {}  # by lane, for those that ran ops, the time of the last one or exchange
        self._ops: Counter[Parts] = Counter()
        self._exchanged = False
        self._exchanges: deque[Exchange] = deque(maxlen=MOST)

    def take(self, batches: Sequence[tuple[int, schema.Records]]) -> None:
        """Count the ops in the next batches of records."""
        uses: list[Use] = []
        begun: list[tuple[int, schema.Ints]] = []
        for lane, rows in batches:
            kinds = schema.numbers(rows)
            for code, t, *numbers in rows[kinds == schema.USE].tolist():
                uses.append(use(t, lane, code >> schema.AUX_SHIFT, numbers, intern.strings.items))
            begun.append((lane, rows[kinds == schema.OP, 1]))
        self.count(uses, begun)

    def count(self, uses: list[Use], begun: list[tuple[int, schema.Ints]]) -> None:
        """Count the ops that began, by the parts that their threads used at that time.

        Args:
            uses: the next events of the kind "use" (see `use`).
            begun: pairs of a lane and the times (ns) at which ops began in this lane.
        """
        uses.sort(key=lambda one: one[0])
        times = [t for t, *_ in uses]
        self._exchanged = self._exchanged or bool(uses)
        ran = np.zeros(len(uses) + 1, np.int64)
        ran[0] = self._ops.total()
        for lane, t0 in begun:
            after = np.searchsorted(times, t0, "right")
            counts = np.bincount(after, minlength=len(ran))
            ran += counts
            until, here, before = np.cumsum(counts).tolist(), self._own.get(lane, self._everywhere), 0
            for at, (_, of, everywhere, parts) in enumerate(uses):
                if everywhere or of == lane:
                    self._ops[here] += until[at] - before
                    here, before = parts, until[at]
            self._ops[here] += until[-1] - before
            if len(t0):
                self.newest[lane] = max(int(t0.max()), self.newest.get(lane, 0))
        self._ops = +self._ops
        for (t, lane, everywhere, parts), count in zip(uses, np.cumsum(ran).tolist(), strict=False):
            self._exchange(t, lane, everywhere, parts, count)

    def _exchange(self, t: int, lane: int, everywhere: bool, parts: Parts, ran: int) -> None:
        """Store that a thread, or all threads if `everywhere`, changed to other parts at the time ``t``.

        At that time ``ran`` ops had begun.
        Consecutive changes of the same thread, between which no op ran, are joined into one.
        """
        where = None if everywhere else lane
        before: Parts | None = self._everywhere if everywhere else self._own.get(lane, self._everywhere)
        last = self._exchanges[-1] if self._exchanges else None
        if last is not None and (last.lane, last.ran) == (where, ran):
            before = self._exchanges.pop().before
        if everywhere:
            self._everywhere, self._own = parts, {}
        else:
            self._own[lane] = parts
        self.newest[lane] = max(t, self.newest.get(lane, 0))
        if ran and (everywhere or parts != before):
            self._exchanges.append(Exchange(t, where, before if before != Parts() else None, parts, ran))

    def exchanges(self, ended: bool) -> list[Exchange]:
        """Return the newest exchanges; if the run has `ended`, only those after which an op ran."""
        total = self._ops.total()
        return [one for one in self._exchanges if not ended or one.ran < total]

    def facts(self) -> dict[str, Any]:
        """Return new entries for `meta` with all backends, managers and devices that ran, sorted by number of ops.

        Sizes such as the capacity are those of the manager with most ops. "first" has the fields of `Parts` at the
        beginning. If the backend and the manager never changed, the result is empty.
        """
        used = [parts for parts, _ in self._ops.most_common()] or [self._first]
        if used == [self._first] and not self._exchanged:
            return {}
        return self._named(used) | {"first": self._first._asdict()}

    def active(self) -> dict[str, Any]:
        """Return entries like those of `facts`, with the backends and managers that the program's threads use now.

        Those of the thread that ran an op last come first.
        """
        lanes = sorted(self.newest, key=lambda lane: -self.newest[lane])
        return (
            self._named(list(dict.fromkeys(self._own.get(lane, self._everywhere) for lane in lanes))) if lanes else {}
        )

    def _named(self, used: list[Parts]) -> dict[str, Any]:
        backend, manager, device = (", ".join(dict.fromkeys(names)) for names in list(zip(*used, strict=True))[:3])
        computing = "; ".join(filter(None, (self._computing.get(parts.backend) for parts in used)))
        libraries = "; ".join(dict.fromkeys(computing.split("; ")))  # some are those of several backends
        return used[0]._asdict() | {"backend": backend, "manager": manager, "device": device, "libraries": libraries}


def use(t: int, lane: int, everywhere: int, numbers: Sequence[int], strings: Sequence[str]) -> Use:
    """Decode an event of the kind "use"; returns its time, its lane, whether it is about all threads, and the parts.

    Args:
        t: the time, ns of `time.perf_counter_ns`.
        lane: the number of the thread.
        everywhere: the event's field "everywhere", whose lowest bit is set if the event is about all threads.
        numbers: the other fields, in the order of `Parts`: three string ids, then numbers; -1 for no capacity.
        strings: the strings behind the ids.
    """
    backend, manager, device = (strings[number] for number in numbers[:3])
    capacity, *others = numbers[3:]
    return t, lane, bool(everywhere & 1), Parts(backend, manager, device, None if capacity < 0 else capacity, *others)
