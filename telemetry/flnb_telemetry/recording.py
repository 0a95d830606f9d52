"""A recording: everything that was emitted while it ran, as columns, and the analyses of it."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from flnb_telemetry import device_words, pump, quantity, schema
from flnb_telemetry.analysis import tape
from flnb_telemetry.analysis.collectives import Collectives, collectives
from flnb_telemetry.analysis.memory import Memory
from flnb_telemetry.analysis.ops import OpStats
from flnb_telemetry.exports import Exports
from flnb_telemetry.extras import require, tool
from flnb_telemetry.formats import svg
from flnb_telemetry.parts import UsedParts
from flnb_telemetry.run import Run
from flnb_telemetry.safe_text import html_text, safe_lines, safe_text
from flnb_telemetry.withblock import WithBlock

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from flnb_telemetry.intern import Frame, Table

watchers: list[Callable[[Recording], None]] = []
"""Functions called with each recording just before it begins and again when it has ended (see its `state`), so that a
dashboard can follow it."""


class _Table:
    """The columns of the events that a recording held at one time, by kind; each kind is computed once.

    Analyses keep it instead of the recording: a reference cycle would keep all records alive.
    """

    def __init__(self, events: int, batches: schema.Batches, known: dict[str, schema.Columns]) -> None:
        self.events, self._batches, self._known = events, batches, dict(known)

    def __call__(self, kind: str) -> schema.Columns:
        """Return the columns of one kind, such as "op"."""
        what = schema.kind_of(kind)
        if kind not in self._known:
            self._known[kind] = schema.table(what, self._batches)
        return dict(self._known[kind])


class Recording(Exports, Run):
    """The events of a program and the analyses of them: `flnb.record` yields one, `flnb.load_run` reads one.

    It is complete as soon as the block of `record` ends, even by an error; while recording, each analysis covers the
    events until now.

    Analyses: `ops`, `memory`, `tape`, `metrics`, `steps`, `collectives`, `devices`, `calls` for single ops. Raw data:
    `table(kind)`, `to_pandas`, `to_arrow`, `save`. Times are seconds since the beginning, except in `table`, which has
    nanoseconds of `time.perf_counter_ns`, as `start` has.

    Args:
        name: what displays call it.
        limit: bytes of records to keep; further ones are counted in `dropped`.
        grad_interval: seconds between two backward passes whose gradient norms are measured; None measures none.

    >>> import flnb
    >>> with flnb.record("demo") as run:
    ...     y = flnb.ones((2, 3)) + 1.0
    >>> run.name, run.state, run.ops["add"].count
    ('demo', 'finished', 1)
    """

    joined: Any = None
    """The `Ranks` whose collective calls a dashboard shows beside this recording; None: its own."""
    captured: Any = None
    """The stored inputs of ops (`flnb.explore.Calls`), None unless `flnb.record(inputs=True)` stored them."""

    def __init__(self, name: str = "run", *, limit: int = 1 << 30, grad_interval: float | None = 0.5) -> None:
        super().__init__(name, grad_interval, "recording")
        self.over_limit = 0  # records that arrived after `limit` bytes
        self._limit = limit // schema.RECORD_BYTES
        self._batches: schema.Batches = []
        self.tables: dict[str, schema.Columns] = {}  # those of a file, which has no batches
        self._table = _Table(-1, [], {})
        self._analyses: dict[str, tuple[_Table, Any]] = {}  # by name: what it was made from, and the analysis

    def feed(self, lane: int, records: schema.Records) -> None:
        """Receive the next records, shape (n, 8), of the thread with the number `lane`."""
        with self._lock:
            fitting = records[: self._limit - self.events]
            self.events += len(fitting)
            self.over_limit += len(records) - len(fitting)
            if len(fitting):
                self._batches.append((lane, fitting))

    def finish(self, error: BaseException | None = None) -> None:
        """Receive the last events and stop; `meta` then names the backends and managers that ran."""
        super().finish(error)
        used = UsedParts(self.meta)
        used.take(list(self._batches))  # no lock: nothing is fed any more
        self.meta |= used.facts()

    def table(self, kind: str) -> schema.Columns:
        """Return the events of one kind as named columns, in order of time.

        Args:
            kind: a name in `flnb_telemetry.schema.KINDS`, such as "op" or "alloc".

        Returns:
            NumPy arrays of one length by name; "lane" numbers the thread that emitted each event. Times are ns of
            `time.perf_counter_ns`.

        Raises:
            KeyError: an unknown kind.
        """
        return self._now()(kind)

    def _now(self) -> _Table:
        """Return the tables of all events that have been emitted until now."""
        if self.end is None:
            pump.flush()
        self.catalog.refresh()
        with self._lock:
            if self._table.events != self.events:
                self._table = _Table(self.events, list(self._batches), self.tables)
                self._analyses.clear()
            return self._table

    def _cached(self, key: str, make: Callable[[_Table], Any]) -> Any:
        """Return `make(table)` of the events until now, computed once as long as no new events arrive."""
        table = self._now()
        made = self._analyses.get(key)
        if made is None or made[0] is not table:  # another thread may store one of an earlier table at any time
            made = self._analyses[key] = (table, make(table))
        return made[1]

    @property
    def stacks(self) -> dict[int, tuple[Frame, ...]]:
        """Call stacks, innermost frame first, by the context id of memory blocks; only PyTorch snapshots have them."""
        return self.catalog.stacks

    @property
    def seconds(self) -> float:
        """The duration of the recording in seconds, until now while it runs."""
        return float(self.seconds_at(self.end or time.perf_counter_ns()))

    @property
    def ops(self) -> OpStats:
        """Statistics of the ops, one row per op name; `.by("scope", "phase")` groups otherwise. See `OpStats`."""
        return OpStats(self.table("op"), self.catalog)

    @property
    def collectives(self) -> Collectives:
        """The collective calls of ranks, joined: who was late and why, waiting, overlap. See `Collectives`."""
        return collectives(self)

    @property
    def devices(self) -> Any:
        """What devices did: launches and copies with their times, idle gaps, bytes moved, blocks.

        See `flnb_telemetry.analysis.devices.Devices`.
        """
        return self._cached("devices", lambda _: tool(*device_words.TOOLS["analysis"])(self))

    @property
    def calls(self) -> Any:
        """The single ops with their inputs: `calls[i]` is the i-th op that ran; iterate over all stored ones.

        Raises:
            LookupError: the run was not recorded with `flnb.record(inputs=True)`.
        """
        if self.captured is None:
            raise LookupError(
                "run.calls: the inputs of single ops were not stored; record with flnb.record(inputs=True). Statistics "
                "of all ops are in run.ops, their times and scopes in run.to_pandas()"
            )
        return self.captured

    @property
    def memory(self) -> Memory:
        """Memory over time: `.timeline()`, `.at(t)`, `.peak` and `.fragmentation()`. See `Memory`."""
        least = int(self.meta.get("min_block") or 0)
        return self._cached("memory", lambda table: Memory(table, self.start, self.catalog, least))

    @property
    def steps(self) -> schema.Columns:
        """The training steps as columns: index, t0 and t1 (s), seconds, and total (planned steps, 0 if unknown)."""
        table = self.in_seconds(self.table("step"))
        return {key: table[key] for key in ("index", "t0", "t1", "total")} | {"seconds": table["t1"] - table["t0"]}

    @property
    def metrics(self) -> dict[str, schema.Columns]:
        """The metrics recorded by `flnb.log`: for each name the columns step, t (s) and value."""
        table = self.in_seconds(self.table("metric"))
        return {
            self.catalog.strings.items[number]: {key: table[key][chosen] for key in ("step", "t", "value")}
            for number in dict.fromkeys(table["name"].tolist())
            for chosen in [table["name"] == number]
        }

    @property
    def dropped(self) -> int:
        """The number of events lost because a thread's buffer was full or the recording reached its limit."""
        return int(self.table("dropped")["count"].sum()) + self.over_limit

    @property
    def tape(self) -> tape.Tape:
        """The tape (the graph of differentiated ops) of the last backward pass whose gradient norms were measured.

        If that pass produced NaN or Inf, it is the first of the consecutive passes that did. `.step(i)` returns the
        tape of another step.
        """
        return self._cached("tape", lambda table: tape.of(table, self.start, self.catalog))

    def to_pandas(self, kind: str = "op") -> Any:
        """Return the events of one kind as a pandas DataFrame, with names (op, shape, scope, ...) in place of ids.

        Times are seconds since the beginning. Needs pandas, of the extra "lab".
        """
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
        for name, values in (("category", schema.CATEGORIES), ("direction", schema.DIRECTIONS)):
            if name in found:
                found[name] = np.array(values, object)[found[name]]
        if "name" in found:
            found["name"] = catalog.named(found["name"])
        return require("pandas", "lab", "a DataFrame").DataFrame(named | found)

    def to_arrow(self, kind: str = "op") -> Any:
        """Return `table(kind)` as a `pyarrow.Table`: ids and nanoseconds as recorded. Needs pyarrow."""
        return require("pyarrow", "lab", "an Arrow table").table(self.table(kind))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to a `.flnb` file, which `flnb.load_run` reads. Needs pyarrow.

        An existing file is replaced only when the new one is complete.
        """
        from flnb_telemetry.formats import parquet

        parquet.save(self, path)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the recording {self.name!r} cannot be pickled: save it with run.save(path), then load_run")

    def summary(self) -> list[str]:
        """Return the facts about the run that its repr begins with, one text each."""
        numbers = self.steps["index"].tolist()
        steps = f"{len(numbers)} steps" + (f" ({numbers[0]} to {numbers[-1]})" if numbers and numbers[0] else "")
        head = f"run '{safe_text(self.name)}' {self.state}: {quantity.duration(self.seconds * 1e9)}, {steps}, "
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
        if len((chosen := self.table("choice"))["t0"]):
            facts.append("quickest ways, timed once: " + ", ".join(_chosen(chosen, self.catalog.strings)))
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
        return f"<div>{facts}{''.join(svg.pictures(self))}</div>"


class record(WithBlock[Recording]):
    """Record everything that runs inside: ``with flnb.record() as run: train()``, then read ``run.ops`` and the rest.

    Args:
        name: what displays call the run.
        buffer: bytes of records (64 each) that may wait in each thread's buffer ("16MiB" or an int); further ones are
            dropped and counted. As Python numbers, waiting records take about three times as much.
        limit: bytes of records that the whole recording may hold; further events are dropped and counted.
        grad_interval: seconds between two backward passes whose gradient norms are measured; None measures only those
            that produce NaN or Inf.

    >>> import flnb
    >>> with flnb.telemetry.record("demo") as run:
    ...     y = flnb.ones(3) * 2.0
    >>> run.ops["multiply"].count
    1
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


def _tell(run: Recording) -> None:
    """Call all `watchers` with a recording that begins or has ended."""
    for watch in watchers[:]:
        watch(run)


def _chosen(choices: schema.Columns, strings: Table[str]) -> Iterator[str]:
    """Describe the ways that were chosen for ops, from the table of kind "choice"."""
    counts = Counter(schema.tuples(choices, "name", "way"))
    for (op, way), count in sorted(counts.items()):
        yield f"{strings.items[op]} by {strings.items[way]} ({quantity.count(count)})"


def _moved(moves: schema.Columns) -> Iterator[str]:
    """Describe the transfers of saved tensors, one text for each direction, from the table of kind "transfer"."""
    for direction in np.unique(moves["direction"]):
        chosen = moves["direction"] == direction
        spent, nbytes = (moves["t1"] - moves["t0"])[chosen].sum(), moves["nbytes"][chosen].sum()
        count = quantity.count(int(chosen.sum()))
        yield f"{count} {schema.DIRECTIONS[direction]} ({quantity.size(nbytes)} in {quantity.duration(spent)})"
