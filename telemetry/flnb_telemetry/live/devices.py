"""Devices in the live dashboard: a window of their latest events, and the section of a frame made from it."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns as clock
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flnb_telemetry import device_words, schema
from flnb_telemetry.analysis.devices import EMULATED, Devices, devices
from flnb_telemetry.analysis.memory import NEVER
from flnb_telemetry.intern import joined
from flnb_telemetry.safe_text import safe_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.analysis.devices import Source
    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.run import Run
    from flnb_telemetry.schema import Columns, Ints, Records

    Arrays = dict[str, NDArray[Any]]

ROWS = 1 << 15
"""The most records in a window; older ones are dropped, except those of memory that is still in use."""
TASKS, STEPS, BLOCKS, OPS, GAPS = 3000, 8, 3000, 6000, 60
"""The most tasks (launches and copies), steps, blocks, ops and idle gaps in a frame; older ones are left out."""
OWN = schema.among(*(kind[0] for kind in device_words.KINDS))
HOME = schema.among(device_words.DEVICE, schema.SEGMENT_ALLOC, schema.SEGMENT_RESIZE, schema.ALLOC)
KEPT = HOME | OWN | schema.among(schema.STEP, schema.OP, schema.FREE_COMPLETED)


class Window:
    """The latest events of devices; its `table` works like that of a `Recording`.

    Args:
        catalog: the names behind the ids in records.
        limit: the largest number of records to store; older ones are dropped.

    Attributes:
        own: for each kind of event (by number), whether events of the kind are about devices.
        kept: whether events of the kind are stored.
        home: whether events of the kind describe memory; they are stored until that memory is freed.
    """

    own: ClassVar[NDArray[np.bool_]] = OWN
    home: ClassVar[NDArray[np.bool_]] = HOME
    kept: ClassVar[NDArray[np.bool_]] = KEPT

    def __init__(self, catalog: Catalog, limit: int = ROWS) -> None:
        self.catalog, self._limit = catalog, limit
        self.version = 0  # incremented by each change
        self.seen = False  # whether there was a launch or copy
        self._batches: deque[tuple[int, Records]] = deque()
        self._rows = 0
        self._home = np.empty((0, schema.WORDS), np.int64)  # of dropped batches, the records of memory still in use
        self._known: dict[str, Columns] = {}

    def take(self, batches: list[tuple[int, Records]]) -> None:
        """Append the next records, in pairs of a thread's number and its records."""
        for lane, rows in batches:
            kinds = rows[:, 0] & 0xFF
            here = self.own[kinds]
            self.seen |= bool((kinds[here] != device_words.DEVICE).any())
            self._batches.append((lane, rows[self.kept[kinds]]))
            self._rows += len(self._batches[-1][1])
            while self._rows > self._limit and len(self._batches) > 1:
                self._leave(self._batches.popleft()[1])
            self.version += 1
            self._known.clear()

    def _leave(self, rows: Records) -> None:
        """Drop `rows`, the oldest records, except those about memory that is still in use."""
        self._rows -= len(rows)
        kinds = rows[:, 0] & 0xFF
        home = np.concatenate([self._home, rows[self.home[kinds]]])
        gone = np.isin(home[:, 2], rows[kinds == schema.FREE_COMPLETED, 2]) & ((home[:, 0] & 0xFF) == schema.ALLOC)
        self._home = home[~gone]

    def table(self, kind: str) -> Columns:
        """Return the events of one kind as columns, in order of time."""
        if kind not in self._known:
            self._known[kind] = schema.table(schema.KINDS[kind], [(0, self._home), *self._batches])
        return self._known[kind]


def section(source: Source, start: int, now: int) -> tuple[dict[str, Any], Arrays]:
    """Return a frame's section on devices: the entry "devices" of the frame's head (see protocol.ts), and arrays.

    Times in the arrays are ms since ``origin_ms``, which counts from the start of the run.

    Args:
        source: the events.
        start, now: the time at which the run began, and the current time, ns.
    """
    source = _Late(source)
    found = devices(source)
    chosen, steps = _chosen(found)
    task = {name: column[chosen] for name, column in found.task.items()}
    begins = [*task["t0"][:1].tolist(), *(step.t0 for step in steps[:1])]
    origin = min(begins, default=now)
    kernels, number = np.unique(task["kernel"], return_inverse=True)
    arrays: Arrays = {
        name: task[name]
        for name in ("seq", "route", "nbytes", "pinned", "device", "stream", "context", "plan", "slot", "bound")
    }
    arrays |= {name: _ms(task[name], origin) for name in ("t0", "t1", "ran0", "ran1", "seen")}
    arrays["kernel"] = number.reshape(-1)
    arrays |= _others(found, origin) | _blocks(source, found, origin) | _ops(found, task, origin)
    gaps = [gap for place in found.places for gap in found.gaps(place) if gap.t1 > origin][-GAPS:]
    about = {
        "origin_ms": (origin - start) / 1e6,
        "now_ms": (now - start) / 1e6,
        "rows": int(chosen.sum()),
        "devices": [_described(found, place) for place in found.places],
        "kernels": [_kernel(source.catalog.kernels.items[one], found) for one in kernels.tolist()],
        "note": EMULATED if found.emulated else "",
        "steps": [
            {"step": one.step, "t0": (one.t0 - origin) / 1e6, "t1": (one.t1 - origin) / 1e6, "launches": one.launches}
            | {"copies": one.copies, "to_device": one.to_device, "to_host": one.to_host, "waits": one.waits}
            for one in steps
        ],
        "gaps": [
            {"device": found.places.index(gap.device), "t0": (gap.t0 - origin) / 1e6, "t1": (gap.t1 - origin) / 1e6}
            | {"cause": gap.cause, "plan": gap.plan, "seq": int(found.task["seq"][gap.next])}
            for gap in gaps
        ],
    }
    return {"devices": about}, {f"devices.{name}": column.astype(np.float64) for name, column in arrays.items()}


class _Late:
    """The part of a source for a frame: the last `TASKS` tasks, and all events and blocks since the first of them."""

    def __init__(self, source: Source) -> None:
        self.catalog, self._source = source.catalog, source
        begun = np.sort(np.concatenate([source.table(kind)["t0"] for kind in ("launch", "copy")]))
        self._since = int(begun[-TASKS]) if len(begun) > TASKS else -NEVER

    def table(self, kind: str) -> Columns:
        """Return the events of one kind, without those that ended before the first task of the frame began."""
        found = self._source.table(kind)
        if kind == "alloc":
            freed = self._source.table("free_completed")
            late = joined(found["alloc_id"], freed["alloc_id"], freed["t"], NEVER) >= self._since
        elif kind in ("device", "ran", "traffic", "segment_alloc", "segment_resize", "segment_free"):
            return found
        else:
            late = found["t1" if "t1" in found else "t"] >= self._since
        return {name: column[late] for name, column in found.items()}


def _chosen(found: Devices) -> tuple[NDArray[np.bool_], list[Any]]:
    """Return a mask of the tasks to show, and the training steps to show."""
    t0 = found.task["t0"]
    chosen = np.arange(len(t0)) >= len(t0) - TASKS
    steps = [step for step in found.steps if step.launches + step.copies]
    if len(steps) > STEPS:
        chosen &= t0 >= steps[-STEPS].t0
    return chosen, steps[-STEPS:]


def _ms(t: Ints, origin: int) -> NDArray[np.float64]:
    """Convert times from ns to ms since `origin` (ns); 0 (unknown) becomes NaN, `NEVER` infinity."""
    return np.where(t == NEVER, np.inf, np.where(t > 0, (t - origin) / 1e6, np.nan))


def _described(found: Devices, place: str) -> dict[str, Any]:
    """Return a description of the device at `place` for JSON."""
    info, at = found.infos.get(place), found.places.index(place)
    bound = found.task["bound"][(found.task["device"] == at) & (found.task["ran1"] > 0)]
    about = {"place": place, "name": safe_text(info.name) if info else "", "emulated": bool(info and info.emulated)}
    about |= {"order": info.order if info else "", "seed": info.seed if info else 0}
    return about | {"bound_ns": int(np.median(bound)) if len(bound) else 0}


def _kernel(kernel: device_words.Kernel, found: Devices) -> dict[str, Any]:
    """Return a description of a kernel and its launches for JSON."""
    return kernel._asdict() | {"name": safe_text(kernel.name), "traffic": found.traffic.get(kernel.name)}


def _others(found: Devices, origin: int) -> Arrays:
    """Return the events of streams and the waits of the host since `origin` (ns), as arrays for a frame."""
    event, wait = found.event, found.wait
    late, still = event["t"] >= origin, wait["t1"] >= origin
    arrays: Arrays = {f"event_{name}": event[name][late] for name in ("seq", "event", "awaited", "device", "stream")}
    arrays["event_t"] = _ms(event["t"][late], origin)
    arrays |= {f"wait_{name}": wait[name][still] for name in ("event", "device", "stream")}
    return arrays | {f"wait_{name}": _ms(wait[name][still], origin) for name in ("t0", "t1")}


def _blocks(source: Source, found: Devices, origin: int) -> Arrays:
    """Return the segments, and the blocks in use since `origin` (ns), as arrays for a frame.

    The array ``segment_device`` has the index of each segment's device, -1 for pinned memory.
    """
    names = [source.catalog.strings.id_of(place) for place in found.places]
    block, segment = found.block, source.table("segment_alloc")
    kept = np.flatnonzero((block["end"] >= origin) | (block["until"] >= origin))[-BLOCKS:]
    home = segment["segment_id"]
    order = np.argsort(home, kind="stable")
    at = order[np.minimum(np.searchsorted(home[order], block["segment_id"][kept]), max(len(home) - 1, 0))]
    words = {"id": "alloc_id", "segment": "segment_id", "size": "size", "category": "category", "plan": "plan"}
    words |= {"context": "context", "streams": "streams", "event": "event", "on": "on"}
    arrays: Arrays = {f"block_{name}": block[word][kept] for name, word in words.items()}
    arrays["block_offset"] = block["address"][kept] - segment["address"][at] if len(home) else kept
    until = np.where(block["until"] > 0, block["until"], 0)
    for name, t in (("begin", block["t"]), ("end", block["end"]), ("until", until)):
        arrays[f"block_{name}"] = _ms(t[kept], origin)
    rows = np.flatnonzero(segment["place"] > 0)
    place = segment["place"][rows].tolist()
    arrays["segment_id"], arrays["segment_size"] = home[rows], segment["size"][rows]
    arrays["segment_device"] = np.array([names.index(one) if one in names else -1 for one in place], np.float64)
    arrays["segment_begin"] = _ms(segment["t"][rows], origin)
    freed = source.table("segment_free")
    gone = dict(zip(freed["segment_id"].tolist(), freed["t"].tolist(), strict=True))
    arrays["segment_end"] = _ms(np.array([gone.get(one, NEVER) for one in home[rows].tolist()], np.int64), origin)
    used, what = found.use["block"], found.use["task"]
    late = found.task["t0"][what] >= origin
    arrays["use_seq"], arrays["use_block"] = found.task["seq"][what[late]], block["alloc_id"][used[late]]
    return arrays


def _ops(found: Devices, task: Columns, origin: int) -> Arrays:
    """Return the ops since `origin` (ns) of the thread that queued the most tasks, as arrays for the browser."""
    lanes, count = np.unique(task["lane"], return_counts=True)
    op = found.op
    mine = op["lane"] == (lanes[count.argmax()] if len(lanes) else -1)
    rows = np.flatnonzero(mine & (op["t1"] >= origin))[-OPS:]
    arrays: Arrays = {f"op_{name}": op[name][rows] for name in ("plan", "context")}
    return arrays | {f"op_{name}": _ms(op[name][rows], origin) for name in ("t0", "t1")}


class LiveDevices:
    """The devices of a live view: collects records about devices, and makes the frame section when it has changed."""

    def __init__(self, catalog: Catalog) -> None:
        self.window = Window(catalog)
        self._version = -1
        self._due = 0

    def news(self, run: Run, keyframe: bool) -> tuple[dict[str, Any], Arrays]:
        """Return a frame's section on devices: an entry for the frame's head, and arrays.

        Both are empty if the frame is to have no section. A keyframe always has the section. Other frames have the
        section if it has changed, but so rarely that making it takes at most 10 % of the time.
        """
        began, window = clock(), self.window
        due = window.version != self._version and began >= self._due
        if not window.seen or not (keyframe or due):
            return {}, {}
        self._version, spent = window.version, thread_time_ns()
        about, arrays = section(window, run.start, run.end or began)
        self._due = clock() + max(100_000_000, 9 * (thread_time_ns() - spent))
        return about, arrays
