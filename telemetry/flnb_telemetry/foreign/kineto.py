"""Read traces of PyTorch's profiler (Kineto), and those that `run.save_trace` writes, as recordings.

Ops, annotations (`record_function`), modules, steps, allocations and frees, metrics, and kernels and copies of GPUs are
read. Other events are counted by category in `run.meta["not read"]`. Nothing in the file is executed.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.foreign.json_stream import TraceError, amount, extents, integer, read_trace, text
from flnb_telemetry.foreign.kineto_devices import COLUMNS, Devices
from flnb_telemetry.foreign.kineto_memory import Memory
from flnb_telemetry.foreign.nesting import Slices
from flnb_telemetry.formats.stored import RunFileError
from flnb_telemetry.intern import Catalog, Context, Plan, Table
from flnb_telemetry.recording import Recording
from flnb_telemetry.safe_text import brief

if TYPE_CHECKING:
    from flnb_telemetry.schema import Columns

MOST_US = 1e15  # µs, thirty years; so that sums of two times fit in 64 bits of ns
MOST_EVENTS = 50_000_000
STEP = "ProfilerStep#"
MODULE = "nn.Module: "


def load_trace(path: str | os.PathLike[str]) -> Recording:
    """Read a Chrome trace of PyTorch's profiler or of `run.save_trace`, compressed by gzip or not, as a `Recording`.

    Ops that PyTorch runs inside other ops (``aten::addmm`` in ``aten::linear``) count as separate ops, so the sum of
    the times of all ops exceeds the elapsed time. The scope path of an op consists of the annotations around it.

    Raises:
        FileNotFoundError: there is no such file.
        RunFileError: the file is damaged, cut off, or no such trace.
    """
    try:
        return _Trace(Path(path).name).read(path)
    except TraceError as error:
        raise RunFileError(
            f"flnb.load_run: {os.fspath(path)!r} is not a readable trace: {error}. Expected the JSON that "
            f"torch.profiler's export_chrome_trace or run.save_trace wrote"
        ) from error


FAMILIES = {
    "matmul": r"conv|(add|b|addb|badd|badb)?mm\b|linear|matmul|einsum|dot\b",
    "norm": r"\w*norm|softmax|log_softmax",
    "reduction": r"sum|mean|a?max\b|a?min\b|\w*loss|prod|argm",
    "movement": r"view|reshape|transpose|permute|expand|copy|cat\b|stack|select|slice|clone|flatten|as_strided|"
    r"(to|t|detach|zeros|ones|empty|resize|fill|zero)(_|\b)",
    "elementwise": r"r?(add|sub|mul|div)|exp|log|relu|tanh|sigmoid|gelu|pow|sqrt|threshold|where|neg|abs|clamp",
}
"""A regular expression for the names of PyTorch's ops in each family; an op belongs to the first that matches."""


class _Trace:
    """Collects the events of a trace while it is read, and makes a recording of them."""

    def __init__(self, name: str) -> None:
        self.name = name.removesuffix(".gz").removesuffix(".json")
        self.lanes: dict[tuple[Any, Any], int] = {}
        self.names: dict[tuple[Any, Any], str] = {}  # of threads
        self.plans, self.strings = Table([Plan("", "", (), "", 0)]), Table([""])
        self.contexts = Table([Context("", 0)])
        self.slices = Slices()
        self.memory, self.devices = Memory(self), Devices(self)
        self.steps: list[tuple[int, ...]] = []
        self.metrics: list[tuple[Any, ...]] = []
        self.unread: Counter[str] = Counter()
        self.window: tuple[int, int] | None = None
        self.first, self.last = 1 << 62, -(1 << 62)

    def read(self, path: str | os.PathLike[str]) -> Recording:
        head: dict[str, Any] = {}
        for number, event in enumerate(read_trace(path, head)):
            if number == MOST_EVENTS:
                raise TraceError(f"the file has more than {MOST_EVENTS:,} events; record fewer steps")
            if type(event) is not dict or type(event.get("ph")) is not str:
                raise TraceError(f"event {number} is {brief(event)}, expected an object with a string as ph")
            try:
                self.take(event)
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
                raise TraceError(f"event {number} is {brief(event)}: {error}") from error
        return self.recording(head)

    def take(self, event: dict[str, Any]) -> None:
        """Store one event of the trace, by its type and category."""
        kind, category, name = event["ph"], event.get("cat"), event.get("name")
        if kind == "X":
            t0 = self.ns(event, "ts")
            if (spent := self.ns(event, "dur")) < 0:
                self.unread["negative dur"] += 1
            else:
                self.slice(event, str(category), text(name, "name"), t0, t0 + spent)
        elif kind == "i" and name in ("[memory]", "[segment]"):
            self.memory.take(event, self.ns(event, "ts"), self.lane(event))
        elif kind == "C" and category == "metric":
            value = event["args"]["value"] if event["args"] else float(event["value"])
            at = self.ns(event, "ts"), integer(event.get("step", 0)), float(value)
            self.metrics.append((self.strings.id_of(text(name, "name")), *at, self.lane(event)))
        elif kind == "i" and category == "cuda_event":
            self.devices.instant(event, self.ns(event, "ts"))
        elif kind == "M" and name == "thread_name" and event.get("args"):
            self.names[event.get("pid"), event.get("tid")] = text(event["args"].get("name", ""), "the name of a thread")
        elif kind not in ("M", "s", "f", "C"):
            self.unread[str(category or name)] += 1

    def slice(self, event: dict[str, Any], category: str, name: str, t0: int, t1: int) -> None:
        """Store an event that lasted from `t0` to `t1` (ns): an op, annotation, step or the like, by `category`."""
        arguments = event.get("args") or {}
        if category == "Trace":
            self.window = t0, t1
        elif category == "cpu_op":
            context = arguments.get("scope"), arguments.get("phase"), arguments.get("line")
            node = integer(arguments.get("Sequence number", -1)) + (context[0] is None)  # PyTorch's begin at 0
            details = (self.plan(name, arguments), max(0, node), integer(arguments.get("block", 0)))
            known = self.context(*context) if context[0] is not None else -1
            self.slices.op(self.lane(event), t0, t1, name, (*details, integer(arguments.get("estimated", 0)), known))
        elif category == "user_annotation" and name.startswith(STEP) and name[len(STEP) :].isdecimal():
            total = integer(arguments.get("steps", 0))
            self.steps.append((t0, t1, int(name[len(STEP) :]), total, self.lane(event)))
        elif category == "user_annotation" or (category == "python_function" and name.startswith(MODULE)):
            scope = arguments.get("scope")
            module = bool(arguments.get("module", name.startswith(MODULE)))
            whole = text(scope, "scope") if scope is not None else None
            self.slices.scope(self.lane(event), t0, t1, name.removeprefix(MODULE), whole, module)
        elif not self.devices.slice(event, category, name, t0, t1):
            self.unread[category] += 1
            return
        elif arguments.get("emulated"):
            return  # of such slices the order alone is true
        self.first, self.last = min(self.first, t0), max(self.last, t1)

    def ns(self, event: dict[str, Any], key: str) -> int:
        """Return the time of an event ("ts") or its duration ("dur") in ns; `key` says which."""
        value: Any = event.get(key)
        if type(value) not in (int, float) or not abs(value) < MOST_US:
            raise ValueError(f"{key} is {brief(value)}, expected µs, a number below {MOST_US:.0e}")
        return round(value * 1000)

    def lane(self, event: dict[str, Any]) -> int:
        """Return the number of an event's thread, from 1."""
        key = event.get("pid"), event.get("tid")
        if not all(type(part) in (int, str) for part in key):
            raise ValueError(f"pid and tid are {brief(key[0])} and {brief(key[1])}, expected numbers or texts")
        return self.lanes.setdefault(key, len(self.lanes) + 1)

    def context(self, scope: Any, phase: Any, line: Any) -> int:
        """Return the context id of a scope path, phase and line, which are values found in the trace."""
        number = schema.PHASES.index(phase) if phase in schema.PHASES else 0
        return self.contexts.id_of(Context(text(scope, "scope"), number, "", 0, text(line or "", "line")))

    def plan(self, name: str, arguments: dict[str, Any]) -> int:
        """Return the plan id of the op `name`, given the arguments of its event (shapes, dtypes, ...)."""
        shapes = arguments.get("Input Dims", ())
        inputs = tuple(shape for each in shapes if (shape := extents(each)) is not None)
        shape = extents(arguments.get("Output Dims", ())) or ()
        nbytes, flops = (amount(arguments.get(key, 0)) for key in ("nbytes", "flops"))
        family, dtype = (text(arguments.get(key, ""), key) for key in ("family", "dtype"))
        return self.plans.id_of(Plan(name, family or family_of(name), shape, dtype, nbytes, flops, inputs))

    def recording(self, head: dict[str, Any]) -> Recording:
        """Return a recording of the events that were stored; `head` has the other values in the file."""
        ours = head["flnb"] if type(head.get("flnb")) is dict else {}
        base = head.get("baseTimeNanoseconds", 0)
        first, last = min(self.first, self.memory.first), max(self.last, self.memory.last)
        start, end = self.window or (first, last)
        end = max(end, last)
        if end < start:
            raise TraceError("the file has no ops, annotations or memory events; expected a trace of torch.profiler")
        run = Recording(self.name)
        ops, scopes = self.slices.tables(self.contexts)
        listed: dict[str, Columns] = {"op": ops, "scope": scopes, **self.memory.tables()}
        listed["step"] = columns(self.steps, "t0", "t1", "index", "total", "lane")
        listed["metric"] = columns(self.metrics, "name", "t", "step", "value", "lane")
        try:
            made = self.devices.tables(head.get("deviceProperties"), self.unread)
        except (TypeError, ValueError, AttributeError) as error:
            raise TraceError(f"of the events of devices, {error}") from error
        listed |= {kind: columns(rows, *COLUMNS[kind]) for kind, rows in made.items()}
        run.tables = {name: _typed(name, listed.get(name)) for name in schema.KINDS}
        run.catalog = Catalog(self.strings, self.plans, self.contexts)
        run.catalog.kernels, run.catalog.devices = self.devices.kernels, self.devices.infos
        run.events = sum(len(table["lane"]) for table in run.tables.values())
        run.start, run.end, run.state = start, max(end, start + 1), "finished"
        meta = ours["meta"].items() if type(ours.get("meta")) is dict else ()
        run.meta = {key: value for key, value in meta if type(value) in (str, int, bool)}
        names = {str(lane): self.names[thread] for thread, lane in self.lanes.items() if thread in self.names}
        run.meta |= (
            {"format": "Chrome trace"}
            | ({"threads": names} if names else {})
            | ({"began": began(base + start)} if type(base) is int and base else {})
        )
        run.meta |= self.memory.facts() | ({"not read": dict(self.unread)} if self.unread else {})
        if ours:
            lost = ours.get("dropped")
            run.over_limit = lost if type(lost) is int and 0 < lost < 1 << 62 else 0
            run.name, run.error = str(head.get("traceName", self.name)), ours.get("error") and str(ours["error"])
            run.state = "failed" if ours.get("state") == "failed" else "finished"
        return run


def family_of(op: str) -> str:
    """Return the family (kind of op, such as "matmul") to which an op of PyTorch belongs by its name; "" if unknown.

    >>> family_of("aten::addmm"), family_of("aten::view"), family_of("aten::frobnicate")
    ('matmul', 'movement', '')
    """
    return next((family for family, names in FAMILIES.items() if re.search(rf"aten::(\w*_)?({names})", op)), "")


def _typed(name: str, table: Columns | None) -> Columns:
    """Return a table with exactly the columns and dtypes that event kind `name` has, sorted by time.

    Columns that the given table lacks are filled with 0. Given None, the table has no rows.
    """
    empty = schema.table(schema.kind_of(name), [])
    if table is None or not len(table["lane"]):
        return empty
    order = np.argsort(table["t0" if "t0" in table else "t"], kind="stable")
    none = np.zeros(len(order), np.int64)
    return {key: table.get(key, none)[order].astype(column.dtype) for key, column in empty.items()}


def columns(rows: list[tuple[Any, ...]], *names: str) -> Columns:
    """Return rows of numbers as named columns; a column of integers is int64, any other float64."""
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(names)}


def began(ns: int) -> str:
    """Return a time in ns since 1970 in the text form that `Run.meta` has for a run's beginning; "" if out of range."""
    if not 0 < ns < 1 << 62:
        return ""
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S%z")
