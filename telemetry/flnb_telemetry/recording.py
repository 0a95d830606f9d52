"""A recording: the events of a program as columns, and the analyses of them."""

from __future__ import annotations

import sys
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from flnb_telemetry import device_words, named, pump, quantity, schema, summary
from flnb_telemetry.analysis import tape
from flnb_telemetry.analysis.collectives import Collectives, collectives
from flnb_telemetry.analysis.memory import NEVER, Memory
from flnb_telemetry.analysis.ops import OpStats
from flnb_telemetry.eventtable import EventTable
from flnb_telemetry.excerpt import excerpt
from flnb_telemetry.exports import Exports
from flnb_telemetry.extras import require, tool
from flnb_telemetry.formats import svg
from flnb_telemetry.formats.stored import Stored
from flnb_telemetry.lane import PREPARING, outermost
from flnb_telemetry.parts import UsedParts
from flnb_telemetry.run import Run
from flnb_telemetry.safe_text import html_text, safe_lines
from flnb_telemetry.worker import Worker

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from flnb_telemetry.formats.folder import Folder, Written
    from flnb_telemetry.intern import Frame

WRITER = "flnb-writer"
"""The name of the thread that writes batches to disk."""
watchers: list[Callable[[Recording], None]] = []
"""Functions called with each recording just before it begins and again when it has ended (see its `state`), so that a
dashboard can follow it."""


class Recording(Exports, Run):
    """The events of a program and the analyses of them: `flnb.record` yields one, `flnb.load_run` reads one.

    A recording is complete when the block of `record` ends, even by an error. Before that, each analysis covers the
    events until now.

    Analyses: `ops`, `memory`, `tape`, `metrics`, `steps`, `collectives`, `devices`, and `calls` for single ops. Raw
    data: `table`, `to_pandas`, `to_arrow`, `to_polars`, `sql`, `save`. Times are seconds since the beginning, except in
    `table`, `to_arrow` and `start`, which have nanoseconds of `time.perf_counter_ns`.

    Args:
        name: the name of the recording in displays.
        limit: the most bytes of records to store, None without a limit; further records are counted in `dropped`.
        grad_interval: seconds between two backward passes whose gradient norms are measured; None measures none.
        folder: the folder to which events are written while the program runs; None to store them in memory.

    >>> import flnb
    >>> with flnb.record("demo") as run:
    ...     y = flnb.ones((2, 3)) + 1.0
    >>> run.name, run.state, run.ops["add"].count
    ('demo', 'finished', 1)
    """

    joined: Any = None
    """The `Ranks` whose collective calls a dashboard shows beside this recording; None for those of the recording."""
    captured: Any = None
    """The stored inputs of ops (`flnb.explore.Calls`), None unless `flnb.record(inputs=True)` stored them."""

    def __init__(
        self, name: str = "run", *, limit: int | None = 1 << 30, grad_interval: float | None = 0.5,
        folder: Folder | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, grad_interval, "recording")
        self.over_limit = 0  # records that arrived after `limit` bytes, or could not be written
        self._limit = NEVER if limit is None else limit // schema.RECORD_BYTES
        self.folder, self.patience = folder, None if folder is None else folder.patience
        written = folder.settings() if folder else {}
        self._settings = {"limit": limit, "grad_interval": grad_interval, "stacks": False} | written
        self._batches: schema.Batches = []
        self._written: Written | None = None  # the state of the folder to which `_batches` is the rest
        self._writer = Worker(WRITER)
        self._unwritten: Exception | None = None
        self.tables: Mapping[str, schema.Columns] = {}  # those of a file
        self._table = EventTable(-1, [], {})
        self._analyses: dict[str, tuple[EventTable, Any]] = {}  # by name: what it was made from, and the analysis

    def describe(self) -> None:
        """Set `meta` to the facts known at the beginning, such as versions, machine and the recording's settings."""
        super().describe()
        self.meta |= self._settings | {"buffer": self.buffer}
        if self.folder is not None:
            self.folder.begin(self)
            self._written = self.folder.written

    def feed(self, lane: int, records: schema.Records) -> None:
        """Receive the next records, shape (n, 8), of the thread with the number `lane`.

        Raises:
            OSError: an earlier batch of events could not be written to disk.
        """
        if self._unwritten is not None:
            raise self._unwritten
        with self._lock:
            fitting = records[: self._limit - self.events]
            self.events += len(fitting)
            if len(fitting) < len(records):
                self.over_limit += len(records) - len(fitting)
                self.meta.setdefault("full_at", round(self.seconds, 6))  # s since the beginning
            if len(fitting):
                self._batches.append((lane, fitting))
        if self.folder is not None and self.folder.due(self._batches):
            if self.folder.late(self._batches):
                self._writer.wait()  # a slow disk: the buffers of threads fill, and what exceeds them is counted
            if not self._writer.busy:
                self._writer.start(partial(self._store, self.folder))

    def _store(self, folder: Folder) -> None:
        """Move the events in memory to the folder, on a thread of its own, so that other sinks need not wait for it.

        After an error the events are lost, and the next call of `feed` raises the error.
        """
        batches = list(self._batches)
        try:
            if batches and self._unwritten is None:
                self._used.take(batches)
                self.meta |= self._used.facts()
                folder.write(self, batches)
        except Exception as error:
            self._unwritten = error
        with self._lock:  # for `_now`, no event is in both or in neither
            self._written = folder.written
            if self._unwritten is not None:
                self._lose(batches)
            del self._batches[: len(batches)]

    def _store_all(self, folder: Folder) -> None:
        """Write the events in memory, and end the thread that writes."""
        if self._batches and self.failure is None:
            self._writer.start(partial(self._store, folder))
        self._writer.stop()

    def _lose(self, batches: schema.Batches) -> None:
        """Count events in memory as lost."""
        lost = sum(len(rows) for _, rows in batches)
        self.events, self.over_limit = self.events - lost, self.over_limit + lost

    def finish(self, error: BaseException | None = None) -> None:
        """Receive the last events and stop; `meta` then lists the backends and managers that ran."""
        try:
            super().finish(error)
        except KeyboardInterrupt:
            raise  # `record` calls again; events that are still to come need the open folder
        except BaseException:
            self._complete()
            raise
        self._complete()

    def _complete(self) -> None:
        """Close the folder, and add to `meta` the facts that are known only after the last event."""
        if self.folder is not None:
            self._close(self.folder)
        else:
            self._used = UsedParts(self.meta)
            self._used.take(list(self._batches))  # no lock: nothing is fed any more
            self.meta |= self._used.facts()

    def _close(self, folder: Folder) -> None:
        """Write the last events, and turn the folder into a file."""
        if sys.is_finalizing():  # no other thread runs any more, nor can a file be opened: the folder stays
            return
        if folder.own:
            self._store_all(folder)
            if self.failure is None and self._unwritten is not None:
                self.failure = self._unwritten
                warnings.warn(str(self.failure), RuntimeWarning, stacklevel=2)
        if self.failure is not None:
            self._lose(self._batches)
            self._batches = []
            self.state, self.error = "failed", f"interrupted: {type(self.failure).__name__}: {self.failure}"
        folder.close(self)

    def chunks(self, kind: str) -> Iterator[schema.Columns]:
        """Yield the events of one kind as one or more tables like that of `table`.

        A recording in a file is read piece by piece, in the order of writing, so the file may be larger than memory.
        """
        if self.end is not None and not self._batches and isinstance(self.tables, Stored):
            yield from self.tables.chunks(kind)
        else:
            yield self.table(kind)

    def between(self, kinds: Iterable[str], t0: int, t1: int, most: int) -> dict[str, schema.Columns] | None:
        """Return the events of some kinds that happened between two times (ns), each kind as a table like `table`.

        Of a recording on disk only the row groups with such events are read. Return None if these have more than
        `most` events, or if events were lost, so that the tables could lack some.
        """
        self.catalog.refresh()
        with self._lock:
            stored, batches = self._stored(), list(self._batches)
        if self.over_limit:
            return None
        return excerpt(stored, batches, kinds, t0, t1, most)

    def table(self, kind: str) -> schema.Columns:
        """Return the events of one kind as named columns, in order of time.

        Args:
            kind: a name in `flnb_telemetry.schema.KINDS`, such as "op" or "alloc".

        Returns:
            NumPy arrays of equal length by name; "lane" numbers the thread that emitted each event. Times are ns of
            `time.perf_counter_ns`.

        Raises:
            KeyError: `kind` is not a kind of event.
        """
        return self._now()(kind)

    def _now(self) -> EventTable:
        """Return the tables of all events that have been emitted until now."""
        if self.end is None:
            pump.flush()
        self.catalog.refresh()
        with self._lock:
            if self._table.events != self.events:
                self._table = EventTable(self.events, list(self._batches), self._stored())
                self._analyses.clear()
            return self._table

    def _stored(self) -> Mapping[str, schema.Columns]:
        """Return the events on disk; those in memory come after them."""
        if self.folder is not None and self._written is not None and not isinstance(self.tables, Stored):
            return self.folder.stored(self._written)  # also when the run has ended, and its file is not written yet
        return self.tables

    def _cached(self, key: str, make: Callable[[EventTable], Any]) -> Any:
        """Return `make(table)` for the events until now; the result is cached under `key` until new events arrive."""
        table = self._now()
        made = self._analyses.get(key)
        if made is None or made[0] is not table:  # another thread may store one of an earlier table at any time
            made = self._analyses[key] = (table, make(table))
        return made[1]

    @property
    def stacks(self) -> dict[int, tuple[Frame, ...]]:
        """Call stacks by context id, innermost frame first: from a PyTorch snapshot or ``flnb.record(stacks=True)``."""
        return self.catalog.stacks if self.meta.get("stacks", True) else {}

    @property
    def seconds(self) -> float:
        """The duration of the recording in seconds, until now while it runs."""
        return float(self.seconds_at(self.end or time.perf_counter_ns()))

    @property
    def ops(self) -> OpStats:
        """Statistics of the ops, a row for each name; `.by("scope", "phase")` groups by other keys. See `OpStats`."""
        prepared = [each for kind in PREPARING for each in schema.tuples(self.table(kind), "t0", "t1")]
        return OpStats(self.table("op"), self.catalog, prepared=sum(t1 - t0 for t0, t1 in outermost(prepared)))

    @property
    def collectives(self) -> Collectives:
        """The collective calls of all ranks: who was late and why, waiting, overlap. See `Collectives`."""
        return collectives(self)

    @property
    def devices(self) -> Any:
        """The work of devices: launches and copies with their times, idle gaps, bytes moved, blocks.

        See `flnb_telemetry.analysis.devices.Devices`.
        """
        return self._cached("devices", lambda _: tool(*device_words.TOOLS["analysis"])(self))

    @property
    def calls(self) -> Any:
        """The single ops with their inputs: `calls[i]` is the i-th op that ran; iterating yields all stored ones.

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

        If gradients became NaN or Inf, it is instead the tape of the first pass with NaN or Inf after the last pass
        without. `.step(i)` returns the tape of another step.
        """
        return self._cached("tape", lambda table: tape.of(table, self.start, self.catalog))

    def to_pandas(self, kind: str = "op") -> Any:
        """Return the events of one kind as a pandas DataFrame, with names (op, shape, scope, ...) in place of ids.

        Times are seconds since the beginning. Needs pandas, of the extra "lab".
        """
        return named.frame(self, kind)

    def to_arrow(self, kind: str = "op") -> Any:
        """Return `table(kind)` as a `pyarrow.Table`: ids and nanoseconds as recorded. Needs pyarrow."""
        return require("pyarrow", "lab", "an Arrow table").table(self.table(kind))

    def to_polars(self, kind: str = "op") -> Any:
        """Return the events of one kind as a polars DataFrame, named as in `to_pandas`. Needs polars and pyarrow.

        >>> import flnb
        >>> with flnb.record() as run:
        ...     y = flnb.ones((2, 3)) * 2.0
        >>> run.to_polars()["op", "shape"].rows()
        [('full', '2×3'), ('multiply', '2×3')]
        """
        return require("polars", "polars", "a polars DataFrame").from_arrow(named.arrow(self, kind))

    def sql(self, query: str, *parameters: Any) -> Any:
        """Return the answer to a SQL query as a pandas DataFrame, by DuckDB, which the extra "lab" installs.

        Tables are `ops`, `memory` (blocks, with the time at which each was `freed`), `scopes`, `steps`, `metrics`, and
        one for each kind of event; times are seconds since the beginning. Only tables that the query names are read.

        Args:
            query: the SQL text, with "?" for each parameter.
            parameters: the values of these parameters.

        Raises:
            ImportError: DuckDB is not installed.
            TypeError: the query is not a string.
            ValueError: the query is empty, or DuckDB rejects it.

        >>> import flnb
        >>> with flnb.record() as run:
        ...     y = flnb.ones(3) * 2.0 * 3.0
        >>> run.sql("select op, count(*) as n from ops group by op having n > ?", 1).values.tolist()
        [['multiply', 2]]
        """
        return named.query(self, query, *parameters)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run to a `.flnb` file, which `flnb.load_run` reads. Needs pyarrow.

        An existing file is replaced only when the new one is complete.
        """
        from flnb_telemetry.formats import parquet

        parquet.save(self, path)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the recording {self.name!r} cannot be pickled: save it with run.save(path), then load_run")

    def summary(self) -> list[str]:
        """Return the facts with which the run's repr begins (name, duration, events, ...), each as a string."""
        return list(map(safe_lines, summary.facts(self)))

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
