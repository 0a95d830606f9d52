"""The live view: folds records into what the dashboard shows and packs the news of each tick into one frame.

`Live` is a sink: `begin` attaches it to the bus. It knows nothing of notebooks; whoever sends the frames calls `frame`
from any thread, and as rarely as the reader of the frames can take them.
"""

from __future__ import annotations

import math
from collections import deque
from time import perf_counter_ns as clock
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.analysis import tape
from flnb_telemetry.intern import NONE, joined
from flnb_telemetry.livememory import LiveMemory
from flnb_telemetry.recording import Run, columns, described
from flnb_telemetry.tally import Tally, buckets

if TYPE_CHECKING:
    from flnb_telemetry.livememory import Arrays

PROTOCOL = 1
FOLD_AT = 1 << 16  # records waiting at most for a frame before they are folded in without one
HISTORY = 8192  # steps, and values of metrics, that a keyframe tells again
TAPE_RECORDS = 1 << 18
TAPE_NODES = 1500
TABLE_SECONDS = 0.25
_MEMORY = (schema.ALLOC, schema.FREE_COMPLETED, schema.SEGMENT_ALLOC, schema.SEGMENT_FREE)
_U32 = {"alloc.segment", "alloc.plan", "alloc.context", "segment.id", "release.id"}
_U32 |= {"op.name", "op.family", "scope.name", "metric.name"}


class Live(Run):
    """Incremental statistics of one run, for a dashboard.

    Example: ``live = Live("digits"); live.begin(); content, buffer = live.frame(keyframe=True); live.finish()``.
    """

    live = True

    def __init__(self, name: str = "run", grad_interval: float | None = 0.2) -> None:
        super().__init__(name, grad_interval, "waiting")
        self.dropped = 0
        self._movement = self.catalog.strings.id_of("movement")  # views: their bytes are somebody else's
        self.memory = LiveMemory()
        self.by_op, self.by_scope = Tally(), Tally()
        self._ahead = NONE  # the scopes of the latest tape nodes, for their backward
        self._waiting: list[tuple[int, schema.Records]] = []
        self._sequence = 0
        self._frame_ns = 0
        self._share = 0.0
        self._small_bytes = 0
        self._drop_times: list[int] = []
        self._steps = self._metrics = self._leaves = np.empty((0, schema.WORDS), np.int64)
        self._told = {"steps": 0, "metrics": 0, "strings": 0, "plans": 0, "contexts": 0}
        self._table_due = 0.0
        self._rate: deque[tuple[int, int, int]] = deque(maxlen=24)  # (time, events, frames) of the last frames
        self._tape: dict[str, Any] | None = None
        self._recent: deque[tuple[int, schema.Records]] = deque()
        self._recent_rows = 0
        self._samples: list[tuple[int, schema.Records]] = []  # gradient statistics that are in no tape yet

    def finish(self, error: BaseException | None = None) -> None:
        """Detach from the bus; what was collected stays."""
        self._share = self._cost()
        super().finish(error)

    def feed(self, lane: int, records: schema.Records) -> None:
        """Take rows from the pump."""
        with self._lock:
            self._waiting.append((lane, records))
            self.events += len(records)
            if self.state == "waiting" and lane:
                self.state = "recording"
            if sum(len(part) for _, part in self._waiting) > FOLD_AT:
                self._fold()

    def _fold(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        self.catalog.refresh()
        rows = waiting[0][1] if len(waiting) == 1 else np.concatenate([part for _, part in waiting])
        kinds = rows[:, 0] & 0xFF
        present = np.bincount(kinds, minlength=16)

        def of(kind: int) -> schema.Records:
            return rows if present[kind] == len(rows) else rows[kinds == kind] if present[kind] else rows[:0]

        ops, drops = of(schema.OP), of(schema.DROPPED)
        if len(ops):
            self._count(ops)
        if present[list(_MEMORY)].any():
            self.memory.fold(rows[np.isin(kinds, _MEMORY)], ops)
        self._steps = np.concatenate([self._steps, of(schema.STEP)])
        self._metrics = np.concatenate([self._metrics, of(schema.METRIC)])
        self._leaves = np.concatenate([self._leaves, of(schema.LEAF)])[-TAPE_RECORDS:]
        if len(drops):
            self.dropped += int(drops[:, 2].sum())
            self.events -= len(drops)
            self._drop_times = [*self._drop_times[:1], int(drops[:, 1].min()), int(drops[:, 3].max())]
        if present[schema.GRAD_STAT]:
            self._samples += [(lane, part[(part[:, 0] & 0xFF) == schema.GRAD_STAT]) for lane, part in waiting]
        self._recent.extend(waiting)
        self._recent_rows += len(rows)
        while self._recent_rows > TAPE_RECORDS and len(self._recent) > 1:
            self._recent_rows -= len(self._recent.popleft()[1])

    def _count(self, ops: schema.Records) -> None:
        code, t0, t1, block, node, context = ops[:, :6].T.copy()  # columns of their own: read once, not row by row
        catalog, plan, spent = self.catalog, code >> schema.PLAN_SHIFT, t1 - t0
        bucket, nbytes = buckets(spent), catalog.nbytes[plan]
        scope, _, ahead = catalog.places(context, node, self._ahead)
        self._ahead = ahead[:, -FOLD_AT:]
        self.by_op.add(catalog.op[plan], spent, bucket, nbytes)
        self.by_scope.add(scope, spent, bucket, nbytes)
        small = (catalog.nbytes < (self.meta.get("min_block") or 0)) & (catalog.family != self._movement)
        self._small_bytes += int((nbytes * (small[plan] & (block == 0))).sum())

    def _new_tape(self) -> dict[str, Any] | None:
        """The tape of the last sampled backward once its step, or 0.1 s, has passed."""
        if not self._samples:
            return None
        stats = np.concatenate([part for _, part in self._samples])
        t = int(stats[:, 1].max())
        step = self._steps[self._steps[:, 2] >= t][:1]
        if not len(step) and clock() - t < 100_000_000:
            return None
        first = stats[stats[:, 2] > 0, 2].min(initial=t)
        since = step[0, 1] if len(step) else 0
        recent = [(lane, part) for lane, part in self._recent if part[-1, 1] >= since]
        batches = {"grad_stat": self._samples, "step": [(0, self._steps)], "leaf": [(0, self._leaves)]}
        batches |= {"edge": recent, "op": [(lane, part[part[:, 4] >= first]) for lane, part in recent]}
        self._samples = []

        def table(name: str) -> schema.Columns:
            return columns(schema.KINDS[name], batches[name])

        return _tape_message(tape.of(table, self.start, self.catalog, limit=TAPE_NODES))

    def _step_at(self, t: int) -> int | None:
        """The index of the first step that ended after t, or of the last one."""
        if not self.dropped or not len(self._steps):
            return None
        row = min(int(np.searchsorted(self._steps[:, 2], t)), len(self._steps) - 1)
        return int(self._steps[row, 3])

    def frame(self, keyframe: bool) -> tuple[dict[str, Any], bytes]:
        """The news since the last frame, or with `keyframe` everything: the content and the buffer of its arrays."""
        began = thread_time_ns()
        with self._lock:
            self._fold()
            keyframe = keyframe or self.memory.incomplete or not self._sequence
            if keyframe:
                self.meta |= described()
            arrays, thinned = self.memory.news(keyframe, self.start)
            now = clock()
            if keyframe or now / 1e9 >= self._table_due:
                self._table_due = now / 1e9 + TABLE_SECONDS
                arrays |= self._tables()
            arrays |= self._history(keyframe)
            self._sequence += 1
            fresh = self._new_tape()
            self._tape = fresh or self._tape
            index, buffer = packed(arrays)
            content = {"type": "frame", "protocol": PROTOCOL, "keyframe": keyframe, "seq": self._sequence}
            content |= {"run": self._run(), "counters": self._counters(now, thinned), "arrays": index}
            content |= self._names(keyframe)
            if fresh or (keyframe and self._tape):
                content["tape"] = self._tape
        self._frame_ns += thread_time_ns() - began
        return content, buffer

    def _run(self) -> dict[str, Any]:
        about = {name: str(self.meta.get(name) or "") for name in ("backend", "manager", "device")}
        numbers = {"capacity": self.meta.get("capacity"), "min_block": self.meta.get("min_block") or 0}
        state, error = self.state, self.error
        if self.failure is not None:
            state, error = "failed", f"the live view stopped: {self.failure!r}"
        return {"id": self.number, "name": self.name, "state": state, "error": error} | about | numbers

    def _counters(self, now: int, thinned: bool) -> dict[str, Any]:
        self._rate.append((now, self.events, self._sequence))
        before = self._rate[0]
        span = max(1, now - before[0]) / 1e9
        recent = self._steps[-10:]
        session = self.session
        total = int(recent[-1, 4]) if len(recent) else 0
        drops = self._drop_times or [0]
        return {
            "t": ((self.end or now) - self.start) / 1e9,
            "step": int(recent[-1, 3]) if len(recent) else None,
            "steps_total": total or None,
            "events": self.events,
            "events_per_s": (self.events - before[1]) / span if len(self._rate) > 1 else 0.0,
            "dropped": self.dropped,
            "dropped_first_step": self._step_at(drops[0]),
            "dropped_last_step": self._step_at(drops[-1]),
            "telemetry_share": self._cost() if self.end is None else self._share,
            "buffer_used": session.buffer_used if session is not None else 0,
            "buffer_capacity": session.capacity if session is not None else 0,
            "tick_hz": (self._sequence - before[2]) / span if len(self._rate) > 1 else 0.0,
            "step_seconds": float((recent[:, 2] - recent[:, 1]).mean() / 1e9) if len(recent) else None,
            "small_bytes": self._small_bytes,
            "memory_thinned": thinned,
        }

    def _cost(self) -> float:
        """What recording and this view of it cost, as a share of the time since they began."""
        session = self.session
        if session is None:
            return 0.0
        return min(1.0, session.share() + self._frame_ns / max(1, clock() - session.started))

    def _tables(self) -> Arrays:
        found: Arrays = {}
        for prefix, tally in (("op", self.by_op), ("scope", self.by_scope)):
            found[f"{prefix}.p99"] = tally.p99()
            found |= {f"{prefix}.{name}": getattr(tally, name) for name in ("name", "count", "total", "max", "bytes")}
        found["op.family"] = joined(self.by_op.name, self.catalog.op, self.catalog.family)
        return {name: column for name, column in found.items() if len(column)}

    def _history(self, keyframe: bool) -> Arrays:
        steps = self._steps[0 if keyframe else self._told["steps"] :]
        metrics = self._metrics[0 if keyframe else self._told["metrics"] :]
        found = {"step.index": steps[:, 3], "step.t0": self.seconds_at(steps[:, 1])}
        found["step.t1"] = self.seconds_at(steps[:, 2])
        found |= {"metric.name": metrics[:, 0] >> schema.PLAN_SHIFT, "metric.step": metrics[:, 2]}
        found["metric.t"] = self.seconds_at(metrics[:, 1])
        found["metric.value"] = np.ascontiguousarray(metrics[:, 3]).view(np.float64)
        self._steps, self._metrics = _shortened(self._steps, 3), _shortened(self._metrics, 2)
        self._told |= {"steps": len(self._steps), "metrics": len(self._metrics)}
        return {name: column for name, column in found.items() if len(column)}

    def _names(self, keyframe: bool) -> dict[str, Any]:
        """The intern tables, whole or what was added since the last frame."""
        self.catalog.refresh()
        found: dict[str, Any] = {}
        for name in ("strings", "plans", "contexts"):
            table = getattr(self.catalog, name)
            first = 0 if keyframe else self._told[name]
            items: list[Any] = list(table.items[first:])
            self._told[name] = first + len(items)
            if name == "plans":
                keys = ("op", "family", "shape", "dtype", "nbytes")
                items = [dict(zip(keys, plan[:5], strict=True)) for plan in items]
            elif name == "contexts":
                items = [{"scope": scope, "phase": schema.PHASES[phase]} for scope, phase in items]
            if items:
                found[name] = {"first": first, "items": items}
        return found


def packed(arrays: Arrays) -> tuple[dict[str, list[Any]], bytes]:
    """Arrays one after the other, each at a multiple of 8 bytes, and for each name [dtype, offset, length]."""
    index: dict[str, list[Any]] = {}
    buffer = bytearray()
    for name, array in arrays.items():
        code = "u8" if name == "alloc.category" else "u32" if name in _U32 else "f64"
        index[name] = [code, len(buffer), len(array)]
        buffer += array.astype({"u8": np.uint8, "u32": np.uint32, "f64": np.float64}[code]).tobytes()
        buffer += bytes(-len(buffer) % 8)
    return index, bytes(buffer)


def _shortened(rows: schema.Records, step: int) -> schema.Records:
    """Rows of every second step in the older half, where there are too many; `step` is the word with its index."""
    if len(rows) <= HISTORY:
        return rows
    half = len(rows) // 2
    old = rows[:half]
    numbers = np.unique(old[:, step])
    return np.concatenate([old[np.isin(old[:, step], numbers[::2])], rows[half:]])


def _tape_message(found: tape.Tape) -> dict[str, Any]:
    node_keys = ("id", "plan", "context", "parents", "forward_ns", "backward_ns", "saved", "norm", "bad", "numel")
    leaf_keys = ("id", "name", "parameter", "plan", "norm", "bad")
    nodes = [{key: getattr(node, key) for key in node_keys} for node in found.nodes]
    leaves = [{key: getattr(leaf, key) for key in leaf_keys} for leaf in found.leaves]
    for item in (*nodes, *leaves):
        if item["norm"] is not None and not math.isfinite(item["norm"]):
            item["norm"] = None  # JSON has no NaN; `bad` says it
    return {"step": found.index, "t": found.t, "nodes": nodes, "leaves": leaves, "truncated": found.truncated}
