"""Captured programs in the live dashboard: their fused kernels, with the ops that each kernel computes."""

from __future__ import annotations

from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import quantity, schema
from flnb_telemetry.safe_text import safe_text
from flnb_telemetry.tally import Tally, buckets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.analysis.devices import Source
    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.run import Run
    from flnb_telemetry.schema import Batches, Columns, Ints

    Arrays = dict[str, NDArray[Any]]

EVERY = 100_000_000
"""The least time between two tables of kernels, ns."""
NAMED = 4
"""The largest number of ops in the name of a kernel."""


class Kernel(NamedTuple):
    """A fused kernel, identified by the ops that it computes; kernels with the same ops count as one.

    Attributes:
        name: its first ops and the shape of its result, as text; unique among the kernels of a run.
        plan, context: the plan id and context id in the kernel's events.
        parts: for each op that the kernel computes its plan id, context id and estimated share of the time (0 to 1).
    """

    name: str
    plan: int
    context: int
    parts: list[tuple[int, int, float]]


class Kernels:
    """The different kernels of a run, and statistics of their times.

    Kernels are in the order of their first runs, in a live view of several threads only within each thread's batches.

    Args:
        catalog: resolves the ids in records.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.items: list[Kernel] = []
        self.tally = Tally()
        self._known: dict[int, int] = {}
        self._names: set[str] = set()

    def numbers(self, kernel: Columns, op: Columns) -> Ints:
        """Return for each kernel event the index of its kernel; -1 if its ops were not recorded.

        Args:
            kernel, op: the tables of the events of these two kinds: all events of a run, or those of one batch of
                records.
        """
        found, order, first = _matched(kernel, op)
        numbers = np.full(len(kernel["t0"]), -1, np.int64)
        if not len(found):
            return numbers
        count = kernel["ops"][found]
        place = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        rows = order[np.repeat(first, count) + place]
        mixed = _hashed((_hashed(op["plan"][rows]) ^ _hashed(op["context"][rows] << 1)) + place.astype(np.uint64))
        own = _hashed(kernel["plan"][found]) ^ _hashed(kernel["context"][found] << 1)
        key = own ^ np.add.reduceat(mixed, np.cumsum(count) - count)
        spent = kernel["t1"][found] - kernel["t0"][found]
        longest = np.argsort(-spent, kind="stable")  # of several, the one with the most exact times of ops
        fresh, at, which = np.unique(key[longest], return_index=True, return_inverse=True)
        own_numbers = np.empty(len(fresh), np.int64)
        for i in np.argsort(np.unique(key[np.argsort(found)], return_index=True)[1]).tolist():  # by their first events
            k = int(longest[at[i]])
            own_numbers[i] = self._known.setdefault(int(fresh[i]), len(self.items))
            if own_numbers[i] == len(self.items):
                ops = order[first[k] : first[k] + count[k]]
                self._add(int(kernel["plan"][found[k]]), int(kernel["context"][found[k]]), op, ops)
        numbers[found[longest]] = own_numbers[which.reshape(-1)]
        return numbers

    def _add(self, plan: int, context: int, op: Columns, rows: Ints) -> None:
        """Append a kernel to `items`, given its plan and context ids; its ops are the rows `rows` of the table `op`."""
        spent = op["t1"][rows] - op["t0"][rows]
        shares = spent / spent.sum() if spent.any() else np.full(len(rows), 1 / len(rows))
        parts = zip(op["plan"][rows].tolist(), op["context"][rows].tolist(), shares.tolist(), strict=True)
        described = self.catalog.plans.items[plan]
        names = described.op.split("+")
        name = f"{'+'.join(names[:NAMED])}{'+…' if len(names) > NAMED else ''} {quantity.extents(described.shape)}"
        number = sum(each == name or each.startswith(f"{name} #") for each in self._names)
        name = f"{name} #{number + 1}" if number else name
        self._names.add(name)
        self.items.append(Kernel(name, plan, context, list(parts)))

    def count(self, kernel: Columns, op: Columns, whole: bool = False) -> None:
        """Add kernel events to the statistics of times; `whole` says whether they are all events of a run."""
        numbers = self.numbers(kernel, op)
        rows = np.flatnonzero(numbers >= 0)
        if len(rows):
            names = np.array([self.catalog.strings.id_of(each.name) for each in self.items], np.int64)
            spent = kernel["t1"][rows] - kernel["t0"][rows]
            self.tally.add(names[numbers[rows]], spent, buckets(spent), self.catalog.nbytes[kernel["plan"][rows]])
            if whole:
                self.tally.settle(names[numbers[rows]], spent)

    def to_json(self, first: int) -> dict[str, Any]:
        """Return the kernels from the index `first` on, as JSON."""
        items = [
            {"name": safe_text(name), "plan": plan, "context": context}
            | {"parts": [[op, where, round(share, 5)] for op, where, share in parts]}
            for name, plan, context, parts in self.items[first:]
        ]
        return {"first": first, "items": items}


def _hashed(numbers: Ints | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a pseudo-random hash of 64 bits of each number."""
    made = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for factor, shift in ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27)):
        made = (made ^ (made >> np.uint64(shift))) * np.uint64(factor)
    return made ^ (made >> np.uint64(31))


def _matched(kernel: Columns, op: Columns) -> tuple[Ints, Ints, Ints]:
    """Find the op events that belong to each kernel event: in each thread, ops are in the same order as their kernels.

    Returns:
        The rows of kernel events with ops; the rows of their ops, kernel by kernel; and for each of these kernels
        the index at which its ops begin.
    """
    estimated = np.flatnonzero(op["estimated"] == 1)
    order = estimated[np.argsort(op["lane"][estimated], kind="stable")]
    lanes, found, first = op["lane"][order], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for lane in np.unique(kernel["lane"]).tolist():
        rows = np.flatnonzero((kernel["lane"] == lane) & (kernel["ops"] > 0))
        ends = np.cumsum(kernel["ops"][rows])
        begin, end = np.searchsorted(lanes, [lane, lane + 1]).tolist()
        whole = ends <= end - begin  # a recording may end within one
        found.append(rows[whole])
        first.append(begin + (ends - kernel["ops"][rows])[whole])
    return np.concatenate(found), order, np.concatenate(first)


def finished(source: Source) -> tuple[dict[str, Any], Arrays]:
    """Return a frame's section on the kernels of a recording that has ended (see protocol.ts), and their times."""
    kernels = Kernels(source.catalog)
    kernels.count(source.table("kernel"), source.table("op"), whole=True)
    return {"kernels": kernels.to_json(0)}, kernels.tally.columns("kernel")


class LivePrograms:
    """The captured programs of a live view: counts runs of kernels, and makes a frame's section after such runs."""

    def __init__(self, catalog: Catalog) -> None:
        self.kernels = Kernels(catalog)
        self._events = self._sent_events = self._due = self._sent_kernels = 0

    def take(self, batches: Batches) -> None:
        """Receive the next records, in pairs of a thread's number and its records."""
        for lane, rows in batches:
            kinds = rows[:, 0] & 0xFF
            if (kinds == schema.KERNEL).any():
                alone = [(lane, rows)]
                kernel, op = (schema.table(schema.KINDS[name], alone) for name in ("kernel", "op"))
                self.kernels.count(kernel, op)
                self._events += len(kernel["t0"])

    def news(self, run: Run, keyframe: bool) -> tuple[dict[str, Any], Arrays]:
        """Return a frame's section on programs: an entry for the frame's head, and arrays.

        Unless ``keyframe`` is True, both are empty if no kernel has run since the last call, or if the section is not
        due yet.
        """
        if not keyframe and (self._events == self._sent_events or clock() < self._due):
            return {}, {}
        self._sent_events, self._due = self._events, clock() + EVERY
        self._sent_kernels = 0 if keyframe else self._sent_kernels
        about = {"kernels": self.kernels.to_json(self._sent_kernels)}
        self._sent_kernels = len(self.kernels.items)
        return about, self.kernels.tally.columns("kernel")
