"""A recording: everything that was emitted while it ran, as columns, and the analyses of it."""

from __future__ import annotations

import itertools
import platform
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from flnb_telemetry import bus, pump, quantity, schema
from flnb_telemetry.analysis import tape
from flnb_telemetry.analysis.memory import Memory
from flnb_telemetry.analysis.ops import OpStats
from flnb_telemetry.extras import require, tool
from flnb_telemetry.formats import svg
from flnb_telemetry.intern import Catalog, Frame
from flnb_telemetry.parts import UsedParts
from flnb_telemetry.safe_text import html_text, safe_lines, safe_text
from flnb_telemetry.withblock import WithBlock

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

BLOCK = 4096  # records
_numbers = itertools.count(1)
watchers: list[Callable[[Recording], None]] = []
"""Called with each recording just before it begins and again when it has ended (see its `state`): how a dashboard
follows what is recorded."""


class Run:
    """What a recording and a live view are alike: a sink with a name, a beginning, a state and an end."""

    live = False
    failure: BaseException | None = None
    buffer = bus.DEFAULT_BUFFER
    session: pump.Session | None = None

    def __init__(self, name: str, grad_interval: float | None, state: str) -> None:
        self.name = name
        self.number = next(_numbers)
        self.grad_interval = grad_interval
        self.state = state
        self.error: str | None = None
        self.start = time.perf_counter_ns()
        self.end: int | None = None
        self.events = 0
        self.meta: dict[str, Any] = {}
        self._used = UsedParts({})
        self.catalog = Catalog()
        self._lock = threading.Lock()

    def feed(self, lane: int, records: schema.Records) -> None:
        """Take rows from the pump."""
        raise NotImplementedError

    def begin(self) -> None:
        """Attach to the bus."""
        self.meta = described()
        self._used = UsedParts(self.meta)
        self.session = pump.attach(self, buffer=self.buffer)

    def finish(self, error: BaseException | None = None) -> None:
        """Detach from the bus; with an error the run is "failed" but just as complete."""
        try:
            pump.detach(self)
        finally:
            self.end = time.perf_counter_ns()
            self.state = "finished" if error is None else "failed"
            self.error = None if error is None else f"{type(error).__name__}: {error}".rstrip(": ")

    def seconds_at(self, t: Any) -> Any:
        """Times in ns (an array or one) as seconds since the beginning."""
        return (t - self.start) / 1e9

    def in_seconds(self, table: schema.Columns) -> schema.Columns:
        """A table of events with its times as seconds since the beginning."""
        times = table.keys() & {"t", "t0", "t1", "t_last"}
        return table | {name: self.seconds_at(table[name]) for name in times}


class Recording(Run):
    """What `record` gives and `load_run` reads. Complete as soon as the block ends, however it ended.

    Analyses: `ops`, `memory`, `tape`, `metrics`, `steps`. Single ops: `calls`. Raw data: `table(kind)`, `to_pandas`,
    `to_arrow`, `save`. While still recording, each answers from what was recorded until then. Times are seconds since
    the beginning, except in `table`, which gives the records' own `perf_counter` nanoseconds (from `start` on).
    `tables`: what a file held, in place of what a pump feeds.
    """

    captured: Any = None
    """What keeps the inputs of ops, where those are kept."""

    def __init__(self, name: str = "run", *, limit: int = 1 << 30, grad_interval: float | None = 0.5) -> None:
        super().__init__(name, grad_interval, "recording")
        self.over_limit = 0  # records that came when `limit` bytes were held already
        self._limit = limit // schema.RECORD_BYTES
        self._batches: list[tuple[int, schema.Records]] = []
        self.tables: dict[str, schema.Columns] = {}
        self._columns: dict[str, tuple[int, schema.Columns]] = {}
        self._made: dict[str, tuple[int, Any]] = {}

    def feed(self, lane: int, records: schema.Records) -> None:
        """Take rows from the pump."""
        with self._lock:
            fitting = records[: self._limit - self.events]
            self.events += len(fitting)
            self.over_limit += len(records) - len(fitting)
            if len(fitting):
                self._batches.append((lane, fitting))

    def finish(self, error: BaseException | None = None) -> None:
        """Detach from the bus; `meta` names the parts that ran."""
        super().finish(error)
        used = UsedParts(self.meta)
        used.take(list(self._batches))  # without the lock: nobody feeds any more
        self.meta |= used.facts()

    def table(self, kind: str) -> schema.Columns:
        """The columns of one kind (see `schema.KINDS`) and the "lane" each row came from, in order of time."""
        return self._present()[1](kind)

    def _present(self) -> tuple[int, Callable[[str], schema.Columns]]:
        """The number of events held now, and `table` of these without this recording.

        What is made from it is kept here, and must not lead back here: such a cycle would keep all records.
        """
        if self.end is None:
            pump.flush()
        self.catalog.refresh()
        if self.tables:
            return self.events, partial(_read, self.tables)
        with self._lock:
            return self.events, partial(_held, list(self._batches), self.events, self._columns)

    def _cached(self, key: str, make: Callable[[Callable[[str], schema.Columns]], Any]) -> Any:
        """What `make` gave of the table of the events held now."""
        events, table = self._present()
        found = self._made.get(key)
        if found is None or found[0] != events:
            found = self._made[key] = (events, make(table))
        return found[1]

    @property
    def stacks(self) -> dict[int, tuple[Frame, ...]]:
        """Call stacks by context, innermost frame first, as read from a PyTorch snapshot."""
        return self.catalog.stacks

    @property
    def seconds(self) -> float:
        """How long the recording lasted (until now, while it runs)."""
        return float(self.seconds_at(self.end or time.perf_counter_ns()))

    @property
    def ops(self) -> OpStats:
        """Op statistics, a row for each op name; `.by("scope", "phase")` for others, `.sort(column)`, `.to_pandas()`.

        The ops that ran one by one are in `calls`.
        """
        return OpStats(self.table("op"), self.catalog)

    @property
    def calls(self) -> Any:
        """The ops that ran, with their inputs: `calls[i]` is the i-th of the recording; iterate over all stored ones.

        Raises:
            LookupError: their inputs were not kept.
        """
        if self.captured is None:
            raise LookupError(
                "run.calls: single ops are kept, with their inputs, by flnb.record(inputs=True) only; statistics are "
                "in run.ops, times and places in run.to_pandas()"
            )
        return self.captured

    @property
    def memory(self) -> Memory:
        """Memory over time: `.timeline()`, `.at(t)`, `.peak`, `.fragmentation()`."""
        memory: Memory = self._cached("memory", lambda table: Memory(table, self.start, self.catalog))
        return memory

    @property
    def steps(self) -> schema.Columns:
        """One row for each step: index, t0, t1 and seconds (s), total (steps in all, 0 if unknown)."""
        table = self.in_seconds(self.table("step"))
        return {key: table[key] for key in ("index", "t0", "t1", "total")} | {"seconds": table["t1"] - table["t0"]}

    @property
    def metrics(self) -> dict[str, schema.Columns]:
        """Metrics recorded by `log`: for each name the columns step, t and value."""
        table = self.in_seconds(self.table("metric"))
        return {
            self.catalog.strings.items[number]: {key: table[key][chosen] for key in ("step", "t", "value")}
            for number in dict.fromkeys(table["name"].tolist())
            for chosen in [table["name"] == number]
        }

    @property
    def dropped(self) -> int:
        """Events that were lost, because a buffer was full or the recording had reached its limit."""
        return int(self.table("dropped")["count"].sum()) + self.over_limit

    @property
    def tape(self) -> tape.Tape:
        """The tape of the last backward whose gradients were measured; `.step(i)` for that of a step.

        Where gradients had NaN or Inf it is the first of the last backwards in a row that had them.
        """
        found: tape.Tape = self._cached("tape", lambda table: tape.of(table, self.start, self.catalog))
        return found

    def to_pandas(self, kind: str = "op") -> Any:
        """A DataFrame of `table(kind)`: ids spelled out (op, family, dtype, shape, scope, phase), times in seconds."""
        found, catalog = self.in_seconds(self.table(kind)), self.catalog
        named: schema.Columns = {}
        if "plan" in found:
            plans = [catalog.plans.items[number] for number in found.pop("plan")]
            for part in ("op", "family", "dtype", "shape", "nbytes"):
                named[part] = np.fromiter((getattr(plan, part) for plan in plans), object, len(plans))
        if "context" in found:
            context = found.pop("context")
            scope, phase, _ = catalog.places(context, found.get("node", np.zeros_like(context)))
            named["scope"] = catalog.named(scope)
            named["phase"] = np.array(schema.PHASES, object)[phase]
        if "category" in found:
            found["category"] = np.array(schema.CATEGORIES, object)[found["category"]]
        if "direction" in found:
            found["direction"] = np.array(schema.DIRECTIONS, object)[found["direction"]]
        if "name" in found:
            found["name"] = catalog.named(found["name"])
        return require("pandas", "lab", "a DataFrame").DataFrame(named | found)

    def to_arrow(self, kind: str = "op") -> Any:
        """A `pyarrow.Table` of `table(kind)`: ids and nanoseconds as recorded."""
        return require("pyarrow", "lab", "an Arrow table").table(self.table(kind))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to a `.flnb` file, aside first and then renamed. Needs pyarrow."""
        from flnb_telemetry.formats import parquet

        parquet.save(self, path)

    def to_torch_snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write the memory of the run as a PyTorch memory snapshot, which PyTorch's viewer shows.

        That is pytorch.org/memory_viz or `python -m torch.cuda._memory_viz trace_plot FILE`; `load_run` reads it again.
        Frames are call stacks where the run has them, else the op and, as their file, the scope.
        """
        from flnb_telemetry import formats

        tool(*formats.FOREIGN["write"].split(":"))(self, path)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the recording {self.name!r} cannot be pickled: save it with run.save(path), then load_run")

    def summary(self) -> list[str]:
        """Facts about the run, one a line."""
        counted = len(self.steps["index"])
        head = f"run '{safe_text(self.name)}' {self.state}: {quantity.duration(self.seconds * 1e9)}, {counted} steps, "
        facts = [head + f"{quantity.count(self.events)} events"]
        if self.captured is not None:
            facts.append(self.captured.summary())
        if self.error:
            facts.append(f"ended by {self.error}")
        about = [f"{key} {self.meta[key]}" for key in ("backend", "manager", "device") if self.meta.get(key)]
        if about:
            facts.append(", ".join(about))
        if dropped := self.dropped:
            facts.append(f"{quantity.count(dropped)} events were dropped: counts, times and memory are lower bounds")
        if len((oom := self.table("oom"))["t"]):
            asked, free, hole = (quantity.size(oom[key][-1]) for key in ("requested", "free", "largest_hole"))
            facts.append(f"out of memory: asked for {asked}, free {free}, largest hole {hole}")
        if len((locked := self.table("locked"))["t"]):
            still = len(self.memory.locks(int(locked["t"][-1])))
            facts.append(f"user locks: on {len(np.unique(locked['alloc_id']))} blocks, {still} of them still locked")
        if len((released := self.table("released"))["t"]):
            given = quantity.size(int(released["nbytes"].sum()))
            facts.append(f"release_cached gave back {given}: {len(released['t'])} times, by managers too")
        if len((moves := self.table("transfer"))["t0"]):
            facts.append("saved tensors moved: " + ", ".join(_moved(moves)))
        for name, metric in self.metrics.items():
            first, last = (quantity.significant(metric["value"][i]) for i in (0, -1))
            facts.append(f"{name}: {first} → {last} ({len(metric['value'])} values)")
        return facts

    def __repr__(self) -> str:
        parts = list(self.summary())
        if len(self.table("op")["t0"]):
            slowest = ", ".join(f"{'/'.join(row.key)} {quantity.percent(row.share)}" for row in self.ops.rows[:5])
            parts.append(f"op time: {slowest}")
        if len(self.table("alloc")["t"]):
            parts.append(repr(self.memory))
        return safe_lines("\n".join(parts))

    def _repr_html_(self) -> str:
        facts = "".join(f"<div>{html_text(fact)}</div>" for fact in self.summary())
        curves = "".join(svg.curve(name, m["step"], m["value"]) for name, m in self.metrics.items())
        return f"<div>{facts}{curves}{svg.memory_timeline(self.memory, self.seconds)}{svg.op_bars(self.ops)}</div>"


class record(WithBlock[Recording]):
    """Record everything that runs inside: ``with flnb.record() as run: train()``, then ``run.ops`` and the rest.

    Args:
        name: what the run is called.
        buffer: bytes of records (64 each) that a thread may have waiting ("16MiB" or an int); what is beyond when they
            are next taken is dropped and counted. As Python numbers, waiting records take some three times as much.
        limit: bytes the whole recording may hold; beyond, events are dropped and counted.
        grad_interval: seconds between two backwards whose gradient norms are taken; None for those alone that make NaN
            or Inf.
    """

    def __init__(
        self,
        name: str = "run",
        *,
        buffer: str | int = "16MiB",
        limit: str | int = "1GiB",
        grad_interval: float | None = 0.5,
    ) -> None:
        self._name, self._grad_interval = name, grad_interval
        self._buffer = quantity.bytes_of(buffer, "record(buffer=...)")
        self._limit = quantity.bytes_of(limit, "record(limit=...)")
        self._run: Recording | None = None

    def begin(self) -> Recording:
        self._run = run = Recording(self._name, limit=self._limit, grad_interval=self._grad_interval)
        run.buffer = self._buffer
        _tell(run)
        run.begin()
        return run

    def end(self, error: BaseException | None) -> None:
        if self._run is not None:
            try:
                self._run.finish(error)
            finally:
                _tell(self._run)

    def _recreate_cm(self) -> record:
        return record(self._name, buffer=self._buffer, limit=self._limit, grad_interval=self._grad_interval)


def _tell(run: Recording) -> None:
    for watch in watchers[:]:
        watch(run)


def _moved(moves: schema.Columns) -> Iterator[str]:
    """The moves of saved tensors in words, by direction."""
    for direction in np.unique(moves["direction"]):
        chosen = moves["direction"] == direction
        spent, nbytes = (moves["t1"] - moves["t0"])[chosen].sum(), moves["nbytes"][chosen].sum()
        count = quantity.count(int(chosen.sum()))
        yield f"{count} {schema.DIRECTIONS[direction]} ({quantity.size(nbytes)} in {quantity.duration(spent)})"


def _read(tables: dict[str, schema.Columns], kind: str) -> schema.Columns:
    """The columns of one kind, of those that a file held."""
    return dict(tables[schema.kind_of(kind).name])


def _held(
    batches: list[tuple[int, schema.Records]], events: int, made: dict[str, tuple[int, schema.Columns]], kind: str
) -> schema.Columns:
    """The columns of one kind, of a recording's first batches; `made` keeps those that were asked for last."""
    what = schema.kind_of(kind)
    found = made.get(kind)
    if found is None or found[0] != events:
        found = made[kind] = (events, columns(what, batches))
    return dict(found[1])


def columns(kind: schema.Kind, batches: list[tuple[int, schema.Records]]) -> schema.Columns:
    """The columns of one kind from batches of records and the lane of each, in order of time."""
    chosen = [(lane, rows, (rows[:, 0] & 0xFF) == kind.number) for lane, rows in batches]
    count = [int(np.count_nonzero(which)) for _, _, which in chosen]
    words, at = np.empty((schema.WORDS, sum(count)), np.int64), 0
    for _, rows, which in chosen:
        for first in range(0, len(rows), BLOCK):  # turned round while it is in the cache
            part = rows[first : first + BLOCK][which[first : first + BLOCK]]
            words[:, at : at + len(part)] = part.T
            at += len(part)
    lane = np.repeat(np.array([lane for lane, _, _ in chosen], np.int32), count)
    if (words[1, 1:] < words[1, :-1]).any():
        order = np.argsort(words[1], kind="stable")
        words, lane = words[:, order], lane[order]
    return schema.columns(kind, words.T) | {"lane": lane}


def described() -> dict[str, Any]:
    """Facts about this process, with what the describers on the bus add (backend, manager, device, capacity)."""
    facts: dict[str, Any] = {"began": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "schema": schema.VERSION}
    facts |= {"python": platform.python_version(), "numpy": np.__version__, "platform": sys.platform}
    for describe in bus.describers:
        facts |= describe()
    return facts
