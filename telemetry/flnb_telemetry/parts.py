"""Which backends and memory managers ran the ops of a recording, thread by thread."""

from __future__ import annotations

from collections import ChainMap, Counter
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import bus, intern, schema

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Parts", "UsedParts", "emit_parts"]


class Parts(NamedTuple):
    """The backend, memory manager and device active at one time, and the manager's sizes in bytes."""

    backend: str = ""
    manager: str = ""
    device: str = ""
    capacity: int | None = None
    min_block: int = 0
    granularity: int = 0


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
        meta: the metadata of a recording at its beginning, with the first backend and manager.
    """

    def __init__(self, meta: dict[str, Any]) -> None:
        first = Parts(**{name: meta[name] for name in Parts._fields if name in meta})
        self._first = self._everywhere = first
        self._computing = ChainMap({first.backend: meta.get("libraries", "")}, _libraries)
        self._own: dict[int, Parts] = {}  # by lane, where they differ from those everywhere
        self._ops: Counter[Parts] = Counter()
        self._exchanged = False

    def take(self, batches: Sequence[tuple[int, schema.Records]]) -> None:
        """Count the ops in the next batches of records."""
        told: list[tuple[int, int, bool, Parts]] = []
        for lane, rows in batches:
            for code, t, *numbers in rows[rows[:, 0] & 0xFF == schema.USE].tolist():
                backend, manager, device = (intern.strings.items[number] for number in numbers[:3])
                capacity, *others = numbers[3:]
                parts = Parts(backend, manager, device, None if capacity < 0 else capacity, *others)
                told.append((t, lane, bool(code >> schema.AUX_SHIFT & 1), parts))
        told.sort(key=lambda one: one[0])
        self._exchanged = self._exchanged or bool(told)
        for lane, rows in batches:
            here = [(t, parts) for t, of, all_, parts in told if all_ or of == lane]
            begun = rows[rows[:, 0] & 0xFF == schema.OP, 1]
            after = np.searchsorted([t for t, _ in here], begun, "right")
            used = [self._own.get(lane, self._everywhere), *(parts for _, parts in here)]
            for parts, count in zip(used, np.bincount(after, minlength=len(used)).tolist(), strict=True):
                if count:
                    self._ops[parts] += count
        for _, lane, all_, parts in told:
            if all_:
                self._everywhere, self._own = parts, {}
            else:
                self._own[lane] = parts

    def facts(self, running: bool = False) -> dict[str, Any]:
        """Return new entries for `meta` with all backends, managers and devices that ran, sorted by number of ops.

        Sizes such as the capacity are those of the manager with most ops. If the backend and the manager never changed,
        the result is empty. While the program is ``running``, the parts that its next ops will use are named, too.
        """
        used = [parts for parts, _ in self._ops.most_common()]
        if running:
            used += dict.fromkeys(parts for parts in (self._everywhere, *self._own.values()) if parts not in used)
        used = used or [self._first]
        if used == [self._first] and not self._exchanged:
            return {}
        backend, manager, device = (", ".join(dict.fromkeys(names)) for names in list(zip(*used, strict=True))[:3])
        computing = "; ".join(filter(None, (self._computing.get(parts.backend) for parts in used)))
        libraries = "; ".join(dict.fromkeys(computing.split("; ")))  # some are those of several backends
        return used[0]._asdict() | {"backend": backend, "manager": manager, "device": device, "libraries": libraries}
