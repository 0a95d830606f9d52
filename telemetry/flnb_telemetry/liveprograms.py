"""Programs in the live dashboard: kernels with the ops that each computes, and what each thread did when."""

from __future__ import annotations

from time import perf_counter_ns as clock
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from flnb_telemetry import livedevices, quantity, schema
from flnb_telemetry.safe_text import safe_text
from flnb_telemetry.tally import Tally, buckets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.analysis.devices import Source
    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.run import Run
    from flnb_telemetry.schema import Batches, Columns, Ints

    Arrays = dict[str, NDArray[Any]]

ROWS, STEPS = 8000, 8
"""The most events and steps in a frame; older ones are left out."""
KINDS = ("record", "compile", "materialize", "kernel", "op")
"""The kinds of events in a frame's section; its column "kind" has their positions here."""
OWN = schema.among(schema.RECORD, schema.COMPILE, schema.MATERIALIZE, schema.KERNEL)
NAMED = 4
"""So many ops are in the name of a kernel."""


class Kernel(NamedTuple):
    """A fused kernel: what it computes, wherever it ran.

    Attributes:
        name: its first ops and the shape of its result; different for each kernel.
        plan, context: those of its events.
        parts: plan, context and estimated share of the time of each op that it computes.
    """

    name: str
    plan: int
    context: int
    parts: list[tuple[int, int, float]]


class Kernels:
    """The different kernels of a run, in the order in which they were seen first, and how long they took.

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
        """Return the number of the kernel of each kernel event; -1 where its ops were not recorded.

        Args:
            kernel, op: the tables of events of these kinds, from the beginning of a thread or of a batch on.
        """
        found, order, first = _matched(kernel, op)
        numbers = np.full(len(kernel["t0"]), -1, np.int64)
        if not len(found):
            return numbers
        count = kernel["ops"][found]
        place = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        rows = order[np.repeat(first, count) + place]
        mixed = (_hashed(op["plan"][rows]) ^ _hashed(op["context"][rows] << 1)) * (2 * place + 1).astype(np.uint64)
        own = _hashed(kernel["plan"][found]) ^ _hashed(kernel["context"][found] << 1)
        key = own ^ np.add.reduceat(mixed, np.cumsum(count) - count)
        spent = kernel["t1"][found] - kernel["t0"][found]
        longest = np.argsort(-spent, kind="stable")  # of which the times of the ops are the most exact
        fresh, at, which = np.unique(key[longest], return_index=True, return_inverse=True)
        own_numbers = np.empty(len(fresh), np.int64)
        for i in np.argsort(longest[at]).tolist():
            k = int(longest[at[i]])
            own_numbers[i] = self._known.setdefault(int(fresh[i]), len(self.items))
            if own_numbers[i] == len(self.items):
                ops = order[first[k] : first[k] + count[k]]
                self._add(int(kernel["plan"][found[k]]), int(kernel["context"][found[k]]), op, ops)
        numbers[found[longest]] = own_numbers[which.reshape(-1)]
        return numbers

    def _add(self, plan: int, context: int, op: Columns, rows: Ints) -> None:
        """Append a kernel of which the events of the ops are given."""
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

    def count(self, kernel: Columns, op: Columns) -> None:
        """Add events to the statistics."""
        numbers = self.numbers(kernel, op)
        rows = np.flatnonzero(numbers >= 0)
        if len(rows):
            names = np.array([self.catalog.strings.id_of(each.name) for each in self.items], np.int64)
            spent = kernel["t1"][rows] - kernel["t0"][rows]
            self.tally.add(names[numbers[rows]], spent, buckets(spent), self.catalog.nbytes[kernel["plan"][rows]])

    def told(self, first: int) -> dict[str, Any]:
        """Return the kernels from a number on, as JSON."""
        items = [
            {"name": safe_text(name), "plan": plan, "context": context}
            | {"parts": [[op, where, round(share, 5)] for op, where, share in parts]}
            for name, plan, context, parts in self.items[first:]
        ]
        return {"first": first, "items": items}


def _hashed(numbers: Ints) -> NDArray[np.uint64]:
    """Return a number of 64 bits for each number, which looks like a random one."""
    made = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for factor, shift in ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27)):
        made = (made ^ (made >> np.uint64(shift))) * np.uint64(factor)
    return made ^ (made >> np.uint64(31))


def _matched(kernel: Columns, op: Columns) -> tuple[Ints, Ints, Ints]:
    """Find the ops of kernels: in each thread, those of one kernel follow those of the kernel before it.

    Returns:
        The rows of kernels with ops; rows of ops, of which those of one kernel follow each other; and for each of these
        kernels where its own begin.
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


class Window(livedevices.Window):
    """The latest events of programs; its `table` is that of a `Recording`."""

    own: ClassVar[NDArray[np.bool_]] = OWN
    home: ClassVar[NDArray[np.bool_]] = schema.among()
    kept: ClassVar[NDArray[np.bool_]] = OWN | schema.among(schema.OP, schema.STEP, schema.COLLECTIVE_BEGIN)


def section(source: Source, kernels: Kernels, start: int, now: int) -> tuple[dict[str, Any], Arrays]:
    """Return a frame's section on programs: the entry "programs" of its head (see protocol.ts), and its arrays.

    Times in the arrays are ms since ``origin_ms``, which counts from the start of the run.

    Args:
        source: the events.
        kernels: those of the run.
        start, now: the time at which the run began, and the current time, ns.
    """
    found: dict[str, list[Any]] = {name: [] for name in ("kind", "lane", "t0", "t1", "plan", "context", "number")}
    for kind, name in enumerate(KINDS):
        table = source.table(name)
        rows = np.arange(len(table["t0"])) if name != "op" else np.flatnonzero(table["estimated"] == 0)
        none = np.zeros(len(table["t0"]), np.int64)
        counted = {"compile": "values", "materialize": "count"}.get(name, "")
        numbers = kernels.numbers(table, source.table("op")) if name == "kernel" else table.get(counted, none)
        found["kind"].append(np.full(len(rows), kind))
        found["number"].append(numbers[rows])
        for column in ("lane", "t0", "t1", "plan", "context"):
            found[column].append(table.get(column, none)[rows])
    columns = {name: np.concatenate(parts).astype(np.int64) for name, parts in found.items()}
    late = np.argsort(columns["t0"], kind="stable")[-ROWS:]
    step = source.table("step")
    since = int(columns["t0"][late[0]]) if len(late) else now
    whole = np.flatnonzero(step["t0" if len(columns["t0"]) > ROWS else "t1"] >= since)[-STEPS:]
    if len(whole) == STEPS:
        late = late[columns["t0"][late] >= step["t0"][whole[0]]]
    columns = {name: column[late] for name, column in columns.items()}
    origin = int(columns["t0"][0]) if len(late) else now
    origin = min([origin, *step["t0"][whole].tolist()])
    lanes, place = np.unique(columns["lane"], return_inverse=True)
    arrays: Arrays = columns | {"lane": place.reshape(-1)}
    arrays |= {name: (columns[name] - origin) / 1e6 for name in ("t0", "t1")}
    ranks = _ranks(source)
    about = {
        "origin_ms": (origin - start) / 1e6,
        "now_ms": (now - start) / 1e6,
        "rows": len(late),
        "lanes": [{"thread": lane, "rank": ranks.get(lane)} for lane in lanes.tolist()],
        "steps": [
            {"step": index, "t0": (t0 - origin) / 1e6, "t1": (t1 - origin) / 1e6}
            for index, t0, t1 in zip(*(step[name][whole].tolist() for name in ("index", "t0", "t1")), strict=True)
        ],
    }
    return {"programs": about}, {f"programs.{name}": column.astype(np.float64) for name, column in arrays.items()}


def _ranks(source: Source) -> dict[int, int]:
    """Return the rank of each thread that is one of several ranks."""
    calls, groups = source.table("collective_begin"), source.catalog.groups.items
    pairs = {(lane, groups[group]) for lane, group in schema.tuples(calls, "lane", "group")}
    return {lane: group.rank for lane, group in pairs if group.size > 1}


def finished(source: Source, start: int, end: int) -> tuple[dict[str, Any], Arrays]:
    """Return the section of a recording of programs that has ended, and the table of its kernels."""
    kernels = Kernels(source.catalog)
    kernels.count(source.table("kernel"), source.table("op"))
    about, arrays = section(source, kernels, start, end)
    return about | {"kernels": kernels.told(0)}, arrays | kernels.tally.columns("kernel")


class LivePrograms:
    """The programs of a live view: collects its records, and builds the section when it has changed."""

    def __init__(self, catalog: Catalog) -> None:
        self.window, self.kernels = Window(catalog), Kernels(catalog)
        self._version = -1
        self._due = self._told = 0

    def take(self, batches: Batches) -> None:
        """Receive the next records of some threads: pairs of a lane and its records."""
        self.window.take(batches)
        for lane, rows in batches:
            kinds = rows[:, 0] & 0xFF
            if (kinds == schema.KERNEL).any():
                alone = [(lane, rows)]
                kernel, op = (schema.table(schema.KINDS[name], alone) for name in ("kernel", "op"))
                self.kernels.count(kernel, op)

    def news(self, run: Run, keyframe: bool) -> tuple[dict[str, Any], Arrays]:
        """Return the section for a frame's head and arrays; empty unless it has changed or ``keyframe`` is set.

        It is rebuilt so seldom that this takes at most a tenth of the time.
        """
        began, window = clock(), self.window
        due = window.version != self._version and began >= self._due
        if not (keyframe or due):
            return {}, {}
        self._version, spent = window.version, thread_time_ns()
        about, arrays = section(window, self.kernels, run.start, run.end or began)
        self._told = 0 if keyframe else self._told
        about["kernels"] = self.kernels.told(self._told)
        self._told = len(self.kernels.items)
        arrays |= self.kernels.tally.columns("kernel")
        self._due = clock() + max(100_000_000, 9 * (thread_time_ns() - spent))
        return about, arrays
