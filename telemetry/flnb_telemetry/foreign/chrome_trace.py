"""Write recordings as Chrome traces in the form of Kineto, PyTorch's profiler, for ui.perfetto.dev and others.

Events are written kind by kind in batches, so that the file may be larger than memory. Times are µs since the run
began, with decimals for the ns; `baseTimeNanoseconds` is the time at which the run began, in ns since 1970. Facts for
which Kineto has no keys (scope, phase, line, block) are stored as further arguments of an event. Other readers show or
ignore these arguments.
"""

from __future__ import annotations

import gzip
import json
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.foreign import chrome_devices
from flnb_telemetry.foreign.torch_export import epoch
from flnb_telemetry.formats import aside, svg

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from flnb_telemetry.recording import Recording
    from flnb_telemetry.schema import Columns, Ints

BATCH = 1 << 13  # events that become text at once
COUNTERS = 100_000  # points of the memory counter at most
PROCESS = 1
SEGMENTS = ("segment_alloc", "segment_resize", "segment_free")
OTHERS = ("kernel", "compile", "materialize", "collective", "wait")
"""Kinds of events that become slices named after their op; their categories are known to flnb only."""


def save_trace(run: Recording, path: str | os.PathLike[str]) -> None:
    """Write a run as a Chrome trace, compressed if the name ends in ".gz".

    An existing file is replaced only when the new one is complete.
    """
    with aside(path) as part, _opened(part, str(path).endswith(".gz")) as file:
        head = {
            "schemaVersion": 1, "deviceProperties": chrome_devices.properties(run), "displayTimeUnit": "ms",
            "record_shapes": 1, "profile_memory": 1,
            "traceName": run.name, "baseTimeNanoseconds": epoch(run), "flnb": _facts(run),
        }  # fmt: skip
        file.write(_json(head)[:-1].encode() + b',"traceEvents":[\n' + ",\n".join(_named(run)).encode())
        for batch in _events(run):
            if batch:
                file.write(b",\n" + ",\n".join(batch).encode())
        file.write(b"\n]}\n")


@contextmanager
def _opened(path: os.PathLike[str], compressed: bool) -> Iterator[BinaryIO | gzip.GzipFile]:
    """Open a file for writing; if `compressed`, by gzip, with neither file name nor time in the header."""
    with open(path, "wb") as file:
        if not compressed:
            yield file
            return
        with gzip.GzipFile("", "wb", 4, file, 0) as packed:
            yield packed


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _facts(run: Recording) -> dict[str, Any]:
    """Return the facts of a run that are stored besides its events: state, error, metadata, dropped events."""
    meta = {key: value for key, value in run.meta.items() if type(value) in (str, int, bool)}
    state = "finished" if run.state == "recording" else run.state
    return {"state": state, "error": run.error, "meta": meta, "dropped": run.dropped}


def _named(run: Recording) -> Iterator[str]:
    """Yield, as JSON, the events that name the process and its threads, and a slice that stands for the whole run."""
    meta = {"ph": "M", "pid": PROCESS, "ts": 0}
    yield _json(meta | {"name": "process_name", "tid": 0, "args": {"name": f"flnb: {run.name}"}})
    lanes = np.unique(np.concatenate([run.table(kind)["lane"] for kind in ("op", "alloc", "scope")]))
    names = run.threads()
    for lane in lanes.tolist():
        name = names.get(str(lane), f"thread {lane}")
        yield _json(meta | {"name": "thread_name", "tid": lane, "args": {"name": name}})
    whole = {"ph": "X", "cat": "Trace", "name": "flnb (0)", "pid": "Spans", "tid": "flnb", "ts": 0}
    yield _json(whole | {"dur": round(run.seconds * 1e9) / 1e3, "args": {"Op count": len(run.table("op")["t0"])}})


def _events(run: Recording) -> Iterator[list[str]]:
    """Yield all events except those of `_named`, in batches of JSON texts."""
    yield from _ops(run)
    yield from _flows(run)
    yield _scopes(run)
    yield [
        f'{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{index}","pid":{PROCESS},"tid":{lane},'
        f'"ts":{_us(t0 - run.start)},"dur":{_us(t1 - t0)},"args":{{"steps":{total}}}}}'
        for t0, t1, index, total, lane in schema.tuples(run.table("step"), "t0", "t1", "index", "total", "lane")
    ]
    yield from _memory(run)
    yield from _segments(run)
    yield from _metrics(run)
    yield from _others(run)
    yield from chrome_devices.events(run, PROCESS, _us)


def _us(ns: int) -> str:
    """Return a time in ns as text: exactly, in µs with three decimals.

    >>> _us(1234567), _us(-5)
    ('1234.567', '-0.005')
    """
    return f"-{_us(-ns)}" if ns < 0 else f"{ns // 1000}.{ns % 1000:03}"


def _batches(table: Columns, *names: str) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of the named columns as tuples of Python numbers, `BATCH` at a time."""
    for first in range(0, len(table[names[0]]), BATCH):
        yield list(zip(*(table[name][first : first + BATCH].tolist() for name in names), strict=True))


class _Texts:
    """Makes the JSON text of each plan and each context once, for all events that have this plan or context."""

    def __init__(self, run: Recording) -> None:
        self._plans, self._contexts = run.catalog.plans.items, run.catalog.contexts.items
        self._known: dict[tuple[str, int], str] = {}

    def name(self, plan: int) -> str:
        """Return the name of the op of a plan id, as JSON text."""
        return self._text("name", plan, lambda: _json(self._plans[plan].op))

    def plan(self, plan: int) -> str:
        """Return the arguments (op, shapes, dtypes) of the events with a plan id, as JSON text without braces."""
        return self._text("plan", plan, lambda: _inner(self._plan(plan)))

    def context(self, context: int) -> str:
        """Return the arguments (scope, phase, line) of the events with a context id, as JSON text without braces."""
        return self._text("context", context, lambda: _inner(self._context(context)))

    def scope(self, context: int) -> str:
        """Return the scope path of a context id."""
        return str(self._contexts[context].scope)

    def _text(self, kind: str, number: int, make: Any) -> str:
        found = self._known.get((kind, number))
        if found is None:
            found = self._known[kind, number] = make()
        return found

    def _plan(self, number: int) -> dict[str, Any]:
        plan = self._plans[number]
        return {
            "Input Dims": plan.inputs, "Input type": [plan.dtype] * len(plan.inputs), "Output Dims": plan.shape,
            "dtype": plan.dtype, "family": plan.family, "nbytes": plan.nbytes, "flops": plan.flops,
        }  # fmt: skip

    def _context(self, number: int) -> dict[str, Any]:
        context = self._contexts[number]
        return {"scope": context.scope, "phase": schema.PHASES[context.phase], "line": context.line}


def _inner(value: dict[str, Any]) -> str:
    """Return a dictionary as JSON without its braces."""
    return _json(value)[1:-1]


def _ops(run: Recording) -> Iterator[list[str]]:
    texts, start, number = _Texts(run), run.start, 0
    name, about, where = texts.name, texts.plan, texts.context
    columns = ("t0", "t1", "plan", "context", "lane", "node", "alloc_id", "estimated")
    for rows in _batches(run.table("op"), *columns):
        batch = []
        for t0, t1, plan, context, lane, node, block, estimated in rows:
            number += 1
            more = (f',"Sequence number":{node}' if node else "") + (',"estimated":1' if estimated else "")
            batch.append(
                f'{{"ph":"X","cat":"cpu_op","name":{name(plan)},"pid":{PROCESS},"tid":{lane},"ts":{_us(t0 - start)},'
                f'"dur":{_us(t1 - t0)},"args":{{"External id":{number},{about(plan)},{where(context)},'
                f'"block":{block}{more}}}}}'
            )
        yield batch


def _flows(run: Recording) -> Iterator[list[str]]:
    """Yield the arrows from the forward op of each tape node to the first backward op of the same node."""
    op = run.table("op")
    _, phase, _ = run.catalog.places(op["context"], op["node"])
    ends = [_first(op["node"], phase != schema.BACKWARD), _first(op["node"], phase == schema.BACKWARD)]
    _, *at = np.intersect1d(op["node"][ends[0]], op["node"][ends[1]], assume_unique=True, return_indices=True)
    for mark, more, rows in (("s", "", ends[0][at[0]]), ("f", ',"bp":"e"', ends[1][at[1]])):
        for batch in _batches({key: op[key][rows] for key in ("node", "lane", "t0")}, "node", "lane", "t0"):
            yield [
                f'{{"ph":"{mark}","id":{node},"pid":{PROCESS},"tid":{lane},"ts":{_us(t0 - run.start)},"cat":"fwdbwd",'
                f'"name":"fwdbwd"{more}}}'
                for node, lane, t0 in batch
            ]


def _first(node: Ints, chosen: Any) -> Ints:
    """Return for each tape node, by ascending id, the row of the first of its ops that are `chosen`.

    Args:
        node: the node id of each op, 0 for none.
        chosen: a mask of the ops.
    """
    rows = np.flatnonzero(chosen & (node > 0))
    return rows[np.unique(node[rows], return_index=True)[1]]


def _scopes(run: Recording) -> list[str]:
    """Return the scopes as slices; an event that leaves a scope ends the innermost open scope of its thread."""
    texts, found, end = _Texts(run), list[str](), run.start + round(run.seconds * 1e9)
    open_: dict[int, list[tuple[int, int, int]]] = {}

    def close(lane: int, t1: int) -> None:
        t0, context, enter = open_[lane].pop()
        scope = texts.scope(context)
        more = {"scope": scope, "module": int(enter == schema.ENTER_MODULE)}
        found.append(
            f'{{"ph":"X","cat":"user_annotation","name":{_json(scope.rpartition(".")[2])},"pid":{PROCESS},'
            f'"tid":{lane},"ts":{_us(t0 - run.start)},"dur":{_us(t1 - t0)},"args":{_json(more)}}}'
        )

    for t, context, enter, lane in schema.tuples(run.table("scope"), "t", "context", "enter", "lane"):
        if enter:
            open_.setdefault(lane, []).append((t, context, enter))
        elif open_.get(lane):
            close(lane, t)
    for lane, left in open_.items():
        for _ in range(len(left)):
            close(lane, max(end, left[-1][0]))
    return found


def _memory(run: Recording) -> Iterator[list[str]]:
    """Yield an instant event for each allocation and each free, and a counter of live and reserved bytes.

    In a long run, the counter has only the highest value in each of many intervals of equal length.
    """
    alloc, free = run.table("alloc"), run.table("free_completed")
    size = np.concatenate([alloc["size"], -free["size"]])
    t = np.concatenate([alloc["t"], free["t"]])
    order = np.argsort(t, kind="stable")
    known = np.concatenate([np.ones(len(alloc["t"]), np.bool_), np.isin(free["alloc_id"], alloc["alloc_id"])])
    live = np.cumsum(np.where(known, size, 0)[order])
    reserved = _reserved(run, t[order])
    names = ("address", "alloc_id", "segment_id", "context", "lane")
    columns = {key: np.concatenate([alloc[key], free[key]])[order] for key in names}
    none = np.zeros(len(free["t"]), np.int64)
    about = {"requested": alloc["requested"], "category": alloc["category"], "plan": alloc["plan"]}
    columns |= {key: np.concatenate([column.astype(np.int64), none])[order] for key, column in about.items()}
    columns |= {"t": t[order], "size": size[order], "live": live, "reserved": reserved}
    yield from _instants(run, columns)
    chosen = svg.extremes(COUNTERS, live, reserved) if len(t) else np.empty(0, np.int64)
    for rows in _batches({key: columns[key][chosen] for key in ("t", "live", "reserved")}, "t", "live", "reserved"):
        yield [
            f'{{"ph":"C","name":"memory","pid":{PROCESS},"tid":0,"ts":{_us(at - run.start)},'
            f'"args":{{"live":{now},"reserved":{held}}}}}'
            for at, now, held in rows
        ]


def _reserved(run: Recording, t: Ints) -> Ints:
    """Return the reserved bytes at the times `t` (ns, ascending)."""
    events = [
        (*row, kind != "segment_free")
        for kind in SEGMENTS
        for row in schema.tuples(run.table(kind), "t", "segment_id", "size")
    ]
    held, times, totals = dict[int, int](), [0], [0]
    for at, segment, size, there in sorted(events, key=lambda event: event[0]):
        before = held.pop(segment, 0)
        if there:
            held[segment] = size
        times.append(at)
        totals.append(totals[-1] + held.get(segment, 0) - before)
    return np.array(totals)[np.searchsorted(np.array(times), t, "right") - 1]


def _instants(run: Recording, columns: Columns) -> Iterator[list[str]]:
    """Yield an instant event for each memory event; `columns` has these in order of time."""
    texts = _Texts(run)
    names = ("t", "size", "live", "reserved", "requested", "category", "plan", "address", "alloc_id", "segment_id")
    for rows in _batches(columns, *names, "context", "lane"):
        batch = []
        for t, size, live, reserved, asked, category, plan, address, block, segment, context, lane in rows:
            made = f',"requested":{asked},"category":"{schema.CATEGORIES[category]}"' if size >= 0 else ""
            made += f',"op":{texts.name(plan)},{texts.plan(plan)}' if plan else ""
            batch.append(
                f'{{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":{PROCESS},"tid":{lane},'
                f'"ts":{_us(t - run.start)},"args":{{"Total Reserved":{reserved},"Total Allocated":{live},'
                f'"Bytes":{size},"Addr":{address},"Device Id":-1,"Device Type":0,"block":{block},"segment":{segment},'
                f"{texts.context(context)}{made}}}}}"
            )
        yield batch


def _segments(run: Recording) -> Iterator[list[str]]:
    places = [f',"place":{_json(name)}' if name else "" for name in run.catalog.strings.items]
    for kind in SEGMENTS:
        table = run.table(kind)
        for rows in _batches({"place": 0 * table["t"]} | table, "t", "segment_id", "address", "size", "place", "lane"):
            yield [
                f'{{"ph":"i","cat":"{kind}","s":"t","name":"[segment]","pid":{PROCESS},"tid":{lane},'
                f'"ts":{_us(t - run.start)},"args":{{"segment":{segment},"Addr":{address},'
                f'"Bytes":{size}{places[place]}}}}}'
                for t, segment, address, size, place, lane in rows
            ]


def _metrics(run: Recording) -> Iterator[list[str]]:
    """Yield the counter events of each metric; values that are not finite are written as texts."""
    strings = run.catalog.strings.items
    for rows in _batches(run.table("metric"), "t", "name", "step", "value", "lane"):
        yield [
            f'{{"ph":"C","cat":"metric","name":{_json(strings[name])},"pid":{PROCESS},"tid":{lane},'
            f'"ts":{_us(t - run.start)},"step":{step},'
            + (f'"args":{{"value":{value!r}}}}}' if math.isfinite(value) else f'"args":{{}},"value":"{value}"}}')
            for t, name, step, value, lane in rows
        ]


def _ends(op: Columns, table: Columns) -> Ints:
    """Return the ends of the slices in `table`, shortened so that slices and ops of a thread nest.

    If an op begins within a slice and ends after it, the slice is cut where the op begins. This happens to slices of
    compiling: the recorded time of an op excludes the compiling in its first call. So the op seems to begin later than
    it did, and some µs before the slice of the compiling ends.
    """
    ends: Ints = table["t1"].copy()
    for lane in np.unique(table["lane"]).tolist():
        ours, theirs = table["lane"] == lane, op["lane"] == lane
        t0, t1 = (np.concatenate([[0], op[name][theirs]]) for name in ("t0", "t1"))
        last = np.searchsorted(t0, ends[ours], "right") - 1
        crossed = (t0[last] > table["t0"][ours]) & (t1[last] > ends[ours])
        ends[ours] = np.where(crossed, t0[last], ends[ours])
    return ends


def _others(run: Recording) -> Iterator[list[str]]:
    texts = _Texts(run)
    for kind in OTHERS:
        table = run.table(kind)
        plan = table.get("plan", np.zeros(len(table["t0"]), np.int64))
        for rows in _batches(
            table | {"plan": plan, "t1": _ends(run.table("op"), table)}, "t0", "t1", "plan", "context", "lane"
        ):
            yield [
                f'{{"ph":"X","cat":"{kind}","name":{texts.name(plan) if plan else _json(kind)},"pid":{PROCESS},'
                f'"tid":{lane},"ts":{_us(t0 - run.start)},"dur":{_us(t1 - t0)},"args":{{{texts.context(context)}}}}}'
                for t0, t1, plan, context, lane in rows
            ]
