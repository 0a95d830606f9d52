"""A recording: everything that was emitted while it ran, as columns, and the analyses of it."""

from __future__ import annotations

import itertools
import platform
import sys
import threading
import time
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flnb_telemetry import bus, pump, quantity, schema
from flnb_telemetry.analysis import tape as tapes
from flnb_telemetry.analysis.memory import Memory
from flnb_telemetry.analysis.ops import OpStats
from flnb_telemetry.catalog import Catalog
from flnb_telemetry.extras import require
from flnb_telemetry.formats import svg

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import NDArray

_numbers = itertools.count(1)
watchers: list[Callable[[Recording, int], None]] = []
"""Called with each recording and its buffer bytes just before it begins and again when it has ended (see its `state`):
how a dashboard follows what is recorded."""


class Recording:
    """What `record` gives and `load_run` reads. Complete as soon as the block ends, however it ended.

    Analyses: `ops`, `memory`, `tape`, `metrics`, `steps`. Raw data: `table(kind)`, `to_pandas`, `to_arrow`, `save`.
    While still recording, each answers from what was recorded until then. Times are seconds since the beginning,
    except in `table`, which gives the records' own `perf_counter` nanoseconds (`start` is the beginning).
    """

    failure: BaseException | None = None

    def __init__(
        self,
        name: str = "run",
        *,
        limit: int = 1 << 30,
        grad_interval: float | None = 0.5,
        catalog: Catalog | None = None,
    ) -> None:
        self.name = name
        self.number = next(_numbers)
        self.grad_interval = grad_interval
        self.state: Literal["recording", "finished", "failed"] = "recording"
        self.error: str | None = None
        self.start = time.perf_counter_ns()
        self.end: int | None = None
        self.meta: dict[str, Any] = {}
        self.over_limit = 0  # records that came when `limit` bytes were held already
        self.events = 0
        self.catalog = catalog or Catalog()
        self._limit = limit // schema.RECORD_BYTES
        self._batches: list[tuple[int | NDArray[np.int32], schema.Records]] = []  # one lane, or that of each row
        self._lock = threading.Lock()
        self._made: dict[object, tuple[int, Any]] = {}

    def feed(self, lane: int, records: schema.Records) -> None:
        """Take rows from the pump."""
        with self._lock:
            fitting = records[: self._limit - self.events]
            self.events += len(fitting)
            self.over_limit += len(records) - len(fitting)
            if len(fitting):
                self._batches.append((lane, fitting))

    def restore(self, lanes: NDArray[np.int32], records: schema.Records) -> None:
        """Take back rows that `table` once gave: for readers of files."""
        self._batches.append((lanes, records))
        self.events += len(records)

    def table(self, kind: str | int) -> schema.Columns:
        """The columns of one kind (see `schema.KINDS`) and the "lane" each row came from, in order of time."""
        what = schema.kind_of(kind)

        def make() -> schema.Columns:
            lane, rows = self._merged()
            chosen = np.flatnonzero((rows[:, 0] & 0xFF) == what.number)
            chosen = chosen[np.argsort(rows[chosen, 1], kind="stable")]
            return schema.columns(what, rows[chosen]) | {"lane": lane[chosen]}

        return dict(self._cached(what.name, make))

    def _merged(self) -> tuple[NDArray[np.int32], schema.Records]:
        """The lane of each row, and all rows; held as one batch from then on."""
        with self._lock:
            lanes = [np.broadcast_to(np.asarray(lane, np.int32), len(rows)) for lane, rows in self._batches]
            lane = np.concatenate([np.empty(0, np.int32), *lanes])
            rows = np.concatenate([np.empty((0, schema.WORDS), np.int64), *(rows for _, rows in self._batches)])
            self._batches = [(lane, rows)]
        return lane, rows

    def _cached(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` gave for the events held now."""
        if self.end is None:
            pump.flush()
            self.catalog.refresh()
        events = self.events
        found = self._made.get(key)
        if found is None or found[0] != events:
            found = self._made[key] = (events, make())
        return found[1]

    @property
    def seconds(self) -> float:
        """How long the recording lasted (until now, while it runs)."""
        return ((self.end or time.perf_counter_ns()) - self.start) / 1e9

    @property
    def ops(self) -> OpStats:
        """Op statistics: by op name; `.by("scope", "phase")` for others, `.sort(column)`, `.to_pandas()`."""
        return OpStats(self.table("op"), self.catalog)

    @property
    def memory(self) -> Memory:
        """Memory over time: `.timeline()`, `.at(t)`, `.peak`, `.fragmentation()`."""
        memory: Memory = self._cached("memory", lambda: Memory(self.table, self.start, self.catalog))
        return memory

    @property
    def steps(self) -> schema.Columns:
        """One row for each step: index, t0, t1 and seconds (s), total (steps in all, 0 if unknown)."""
        table = self.table("step")
        t0, t1 = ((table[name] - self.start) / 1e9 for name in ("t0", "t1"))
        return {"index": table["index"], "t0": t0, "t1": t1, "seconds": t1 - t0, "total": table["total"]}

    @property
    def metrics(self) -> dict[str, schema.Columns]:
        """What `log` recorded: for each name the columns step, t and value."""
        table = self.table("metric")
        t = (table["t"] - self.start) / 1e9
        return {
            self.catalog.strings.items[number]: {
                "step": table["step"][chosen],
                "t": t[chosen],
                "value": table["value"][chosen],
            }
            for number in dict.fromkeys(table["name"].tolist())
            for chosen in [np.flatnonzero(table["name"] == number)]
        }

    @property
    def dropped(self) -> int:
        """Events that were lost, because a buffer was full or the recording had reached its limit."""
        return int(self.table("dropped")["count"].sum()) + self.over_limit

    @property
    def tape(self) -> tapes.Tape:
        """The tape of the last backward whose gradients were sampled; `.step(i)` for that of a step."""
        found: tapes.Tape = self._cached("tape", lambda: self._tape(None))
        return found

    def _tape(self, index: int | None) -> tapes.Tape:
        ops, stats, steps = self.table("op"), self.table("grad_stat"), self.table("step")
        groups = tapes.groups(stats, stats["lane"])
        if index is not None:
            where = np.flatnonzero(steps["index"] == index)
            if not len(where):
                known = f"{steps['index'].min()} to {steps['index'].max()}" if len(steps["index"]) else "no steps"
                raise LookupError(f"run.tape: no step {index} in this recording; it has {known}")
            t0, t1 = int(steps["t0"][where[-1]]), int(steps["t1"][where[-1]])
            groups = [rows for rows in groups if t0 <= stats["t"][rows[0]] <= t1]
            if not groups:  # not sampled: the graph is there all the same, without norms
                ops = {name: column[(ops["t0"] >= t0) & (ops["t1"] <= t1)] for name, column in ops.items()}
        chosen = groups[-1] if groups else np.empty(0, np.int64)
        picked = {name: column[chosen] for name, column in stats.items()}
        t, step = 0.0, -1 if index is None else index
        if len(chosen):
            t = float(picked["t"][-1] - self.start) / 1e9
            around = np.flatnonzero((steps["t0"] <= picked["t"][-1]) & (picked["t"][-1] <= steps["t1"]))
            step = int(steps["index"][around[-1]]) if len(around) else -1
        found = tapes.build(ops, self.table("edge"), self.table("leaf"), picked, self.catalog, index=step, t=t)
        return found.joined(self._tape)

    def readable(self, kind: str | int = "op") -> schema.Columns:
        """The columns of one kind, ids spelled out (op, family, dtype, shape, scope, phase), times in seconds."""
        table, catalog = self.table(kind), self.catalog
        found: schema.Columns = {}
        for name, column in table.items():
            if name in ("t", "t0", "t1", "t_last"):
                found[name] = (column - self.start) / 1e9
            elif name == "plan":
                plans = [catalog.plans.items[number] for number in column]
                for part in ("op", "family", "dtype", "shape", "nbytes"):
                    found[part] = _objects([getattr(plan, part) for plan in plans])
            elif name == "context":
                contexts = [catalog.contexts.items[number] for number in column]
                found["scope"] = _objects([context.scope for context in contexts])
                phases = catalog.phases(table) if kind in ("op", schema.OP) else catalog.phase[column]
                found["phase"] = np.array(schema.PHASES, object)[phases]
            elif name == "category":
                found[name] = np.array(schema.CATEGORIES, object)[column]
            elif name == "name":
                found[name] = catalog.names(column)
            elif name != "reserved" or column.any():
                found[name] = column
        return found

    def to_pandas(self, kind: str | int = "op") -> Any:
        """A DataFrame of `readable(kind)`."""
        return require("pandas", "lab", "a DataFrame").DataFrame(self.readable(kind))

    def to_arrow(self, kind: str | int = "op") -> Any:
        """A `pyarrow.Table` of `table(kind)`: ids and nanoseconds as recorded."""
        return require("pyarrow", "lab", "an Arrow table").table(self.table(kind))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to a `.flnb` file, aside first and then renamed. Needs pyarrow."""
        from flnb_telemetry.formats import parquet

        parquet.save(self, path)

    def finish(self, error: BaseException | None = None) -> None:
        """End the recording here; with an error it is "failed" but just as complete."""
        self.end = time.perf_counter_ns()
        self.catalog.refresh()
        self.state = "finished" if error is None else "failed"
        if error is not None:
            self.error = f"{type(error).__name__}: {error}".rstrip(": ")

    def summary(self) -> list[str]:
        """What the run was, one fact a line."""
        counted = len(self.steps["index"])
        head = f"run {self.name!r} {self.state}: {quantity.duration(self.seconds * 1e9)}, {counted} steps, "
        facts = [head + f"{quantity.count(self.events)} events"]
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
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        facts = "".join(f"<div>{escape(fact)}</div>" for fact in self.summary())
        curves = "".join(svg.curve(name, m["step"], m["value"]) for name, m in self.metrics.items())
        return f"<div>{facts}{curves}{svg.memory_timeline(self.memory)}{svg.op_bars(self.ops)}</div>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


class record:
    """Record everything that runs inside: ``with flnb.record() as run: train()``, then ``run.ops`` and the rest.

    Args:
        name: what the run is called.
        buffer: bytes each thread may have waiting ("16MiB" or an int); beyond, events are dropped and counted.
        limit: bytes the whole recording may hold; beyond, events are dropped and counted.
        grad_interval: seconds between two backwards whose gradient norms are taken; None for never.
    """

    def __init__(
        self,
        name: str = "run",
        *,
        buffer: str | int = "16MiB",
        limit: str | int = "1GiB",
        grad_interval: float | None = 0.5,
    ) -> None:
        self._buffer = quantity.bytes_of(buffer, "record(buffer=...)")
        self._options = {"limit": quantity.bytes_of(limit, "record(limit=...)"), "grad_interval": grad_interval}
        self._name = name

    def __enter__(self) -> Recording:
        self._run = Recording(self._name, **self._options)  # type: ignore[arg-type]
        self._run.meta = described()
        self._tell()
        pump.attach(self._run, buffer=self._buffer)
        return self._run

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> Literal[False]:
        try:
            pump.detach(self._run)
        finally:
            self._run.finish(error)
            self._tell()
        return False

    def _tell(self) -> None:
        for watch in watchers[:]:
            watch(self._run, self._buffer)


def running() -> list[Recording]:
    """The recordings that are being made now, the first begun first."""
    return [sink for sink in (pump.session.sinks if pump.session else ()) if isinstance(sink, Recording)]


def described() -> dict[str, Any]:
    """Facts about this process, with what the describers on the bus add (backend, manager, device, capacity)."""
    facts: dict[str, Any] = {
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": sys.platform,
        "schema": schema.VERSION,
    }
    for describe in bus.describers:
        facts |= describe()
    return facts


def _objects(values: list[Any]) -> NDArray[Any]:
    """An object array of the values as they are, tuples included."""
    found = np.empty(len(values), object)
    found[:] = values
    return found
