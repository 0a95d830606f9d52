"""Collective calls in the live dashboard: a window of the latest events, and the section of a frame made from it."""

from __future__ import annotations

from collections import deque
from time import perf_counter_ns as clock
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import bus, intern, schema
from flnb_telemetry.analysis.collectives import Collectives
from flnb_telemetry.analysis.joining import join, of_recording, views
from flnb_telemetry.analysis.lateness import blocks
from flnb_telemetry.analysis.stuck import AFTER, latest, stuck
from flnb_telemetry.safe_text import safe_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.analysis.joining import View
    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.run import Run
    from flnb_telemetry.schema import Ints, Records

    Arrays = dict[str, NDArray[Any]]

ROWS = 1 << 17
"""The most records in a window; older ones are dropped."""
BARS = 2000
"""The largest number of bars (merged ops) that one batch of records adds; only the longest bars are added."""
PAUSE = 50_000
"""The longest pause, in ns, between two ops that are merged into one bar."""
CELLS, SPANS, ACTIVITY = 40_000, 8000, 12_000
"""The largest numbers of cells (calls x ranks), spans (steps, scopes, waits) and bars of ops in a frame."""
CALLS, STEPS = 2000, 48
"""The most calls and steps in a frame; older ones are left out."""
KEPT = schema.among(schema.COLLECTIVE_BEGIN, schema.COLLECTIVE, schema.WAIT, schema.STEP, schema.SCOPE)
CHUNK = 8192
"""The number of ops of a finished recording that are merged at once, into at most `BARS` bars."""
FRESH = 1000
"""The most batches of records that wait to be sent to another process."""
STEP_SPAN, WAIT_SPAN, SCOPE_SPAN = 0, 5, 4


class Window:
    """The latest events of ranks: collective calls, steps, scopes, and ops.

    Consecutive ops of the same family (such as "matmul") and scope are merged into one bar. No events are stored before
    a group of several ranks has communicated. The method `table` works like that of a `Recording`.

    Args:
        catalog: the names behind the ids in records.
        limit: the largest number of records to store; older ones are dropped.
    """

    def __init__(self, catalog: Catalog, limit: int = ROWS) -> None:
        self.catalog, self._limit = catalog, limit
        self.meta: dict[str, Any] = {}
        self.bounds: dict[int, int] = {}
        self.version = 0  # incremented by each change
        self.seen = False
        self.fresh: list[tuple[int, Records]] | None = None  # if a list, the batches since a caller emptied it
        self._batches: deque[tuple[int, Records]] = deque()
        self._rows = 0
        self._ahead = intern.NONE
        self._known: dict[str, schema.Columns] = {}

    def take(self, batches: list[tuple[int, Records]]) -> None:
        """Append the next records, in pairs of a thread's number and its records; their ops are merged into bars."""
        for lane, rows in batches:
            kinds = rows[:, 0] & 0xFF
            if not self.seen:
                groups = np.unique(rows[kinds == schema.COLLECTIVE_BEGIN, 3]).tolist()
                self.seen = any(self.catalog.groups.items[group].size > 1 for group in groups)
            if self.seen:
                self.add(lane, np.concatenate([rows[KEPT[kinds]], self._bars(rows[kinds == schema.OP])]))

    def add(self, lane: int, rows: Records) -> None:
        """Append records of one thread, in which ops have already been merged into bars.

        Args:
            lane: the number of the thread.
            rows: the records.
        """
        if not len(rows):
            return
        self.seen = True
        self._batches.append((lane, rows))
        if self.fresh is not None:
            self.fresh.append((lane, rows))
            del self.fresh[:-FRESH]
        self._rows += len(rows)
        while self._rows > self._limit and len(self._batches) > 1:
            self._rows -= len(self._batches.popleft()[1])
        self.version += 1
        self._known.clear()

    def table(self, kind: str) -> schema.Columns:
        """Return the events of one kind as columns, in order of time."""
        if kind not in self._known:
            self._known[kind] = schema.table(schema.KINDS[kind], list(self._batches))
        return self._known[kind]

    def _bars(self, ops: Records) -> Records:
        """Merge ops of equal family, scope and phase that follow each other into bars.

        The scope of a bar is the scope of its ops; for backward ops, the scope of their forward ops.
        """
        if not len(ops):
            return ops
        catalog = self.catalog
        plan, context, node = ops[:, 0] >> schema.PLAN_SHIFT, ops[:, 5], ops[:, 4]
        scope, phase, ahead = catalog.places(context, node, self._ahead)
        self._ahead = ahead[:, -(1 << 16) :]
        family = catalog.family[plan]
        place = np.array([family, scope, phase])
        fresh = (place[:, 1:] != place[:, :-1]).any(axis=0) | (ops[1:, 1] - ops[:-1, 2] > PAUSE)
        first = np.flatnonzero(np.append(True, fresh))
        bars = np.zeros((len(first), schema.WORDS), np.int64)
        bars[:, 0], bars[:, 1] = ops[first, 0], ops[first, 1]
        bars[:, 2] = np.maximum.reduceat(ops[:, 2], first)
        bars = bars if len(bars) <= BARS else bars[np.sort(np.argsort(bars[:, 1] - bars[:, 2])[:BARS])]
        first = first if len(bars) == len(first) else np.flatnonzero(np.isin(ops[:, 1], bars[:, 1]))[: len(bars)]
        pairs, which = np.unique(np.array([scope, phase])[:, first], axis=1, return_inverse=True)
        names, number = catalog.strings.items, catalog.contexts.id_of
        ids = [number(intern.Context(names[one], each)) for one, each in pairs.T.tolist()]
        bars[:, 5] = np.array(ids, np.int64)[which.reshape(-1)]
        catalog.refresh()
        return bars


def section(ranks: list[View], start: int, now: int, states: dict[int, str]) -> tuple[dict[str, Any], Arrays]:
    """Return a dashboard frame's section on ranks: the entry "collectives" of its head (see protocol.ts), and arrays.

    Args:
        ranks: the latest events of each rank, with ops merged into bars.
        start, now: the time at which the run began, and the current time, ns.
        states: texts about ranks that do not follow from events, such as "has died".
    """
    calls = Collectives(**join(ranks))
    chosen = _chosen(calls)
    begun = calls.begin[:, chosen]
    origin = int(begun[begun > 0].min(initial=now))
    steps = [view.table("step")["t0"] for view in ranks]
    origin = min([origin, *(int(t[t >= origin - 10_000_000_000].min(initial=origin)) for t in steps)])
    words = {name: list(dict.fromkeys(getattr(calls, name)[chosen])) for name in ("op", "group", "dtype")}
    families, names = [""], [""]
    arrays: Arrays = {name: _codes(getattr(calls, name)[chosen], known) for name, known in words.items()}
    arrays |= {name: getattr(calls, name)[chosen] for name in ("seq", "elements", "nbytes", "bucket", "step", "gb_s")}
    arrays |= {"late": calls.late_ns[chosen] / 1e6, "last": _ms(calls.last[chosen], origin)}
    arrays["late_rank"] = calls.late[chosen]
    arrays["holds"] = np.array([_number(names, name) for name in calls.holds[chosen].tolist()], np.uint32)
    arrays |= {name: _ms(getattr(calls, name)[:, chosen], origin).ravel() for name in ("begin", "end")}
    arrays |= _spans(ranks, origin, now, names) | _activity(ranks, origin, families)
    about = {
        "origin_ms": (origin - start) / 1e6,
        "now_ms": (now - start) / 1e6,
        "rows": int(chosen.sum()),
        "ranks": [
            {"rank": view.rank, "host": safe_text(view.host), "process": view.process, "bound_ns": view.bound}
            | {"seen_ms": (latest(view) - start) / 1e6}
            for view in ranks
        ],
        "names": [safe_text(name) for name in names], "families": families,
    } | _findings(calls, chosen) | {"stuck": stuck(calls, ranks, now, states)}  # fmt: skip
    about |= {f"{name}s": known for name, known in words.items()}
    return about, {f"collectives.{name}": column for name, column in arrays.items()}


def _codes(values: NDArray[Any], names: list[str]) -> NDArray[np.uint32]:
    """Return for each value its index in `names`, as uint32."""
    place = {name: number for number, name in enumerate(names)}
    return np.array([place[value] for value in values], np.uint32)


def _ms(t: Ints, origin: int) -> NDArray[np.float64]:
    """Convert times from ns to ms since `origin` (ns); 0 (unknown) becomes NaN."""
    return np.where(t > 0, (t - origin) / 1e6, np.nan)


def _chosen(calls: Collectives) -> NDArray[np.bool_]:
    """Return a mask of the calls to show: the latest calls of the latest steps."""
    most = min(CALLS, CELLS // max(1, len(calls.ranks)))
    chosen = np.arange(len(calls)) >= len(calls) - most
    if len(calls.steps) > STEPS:
        chosen &= (calls.step < 0) | (calls.step >= calls.steps[-STEPS])
    return chosen


def _spans(ranks: list[View], origin: int, now: int, names: list[str]) -> Arrays:
    """Return the steps, phases, scopes and waits of all ranks as bars, in ms since `origin` (ns).

    The names of the scopes are added to `names`. Open scopes end at the time `now` (ns).
    """
    found = [np.empty((0, 5))]
    for row, view in enumerate(ranks):
        step, wait, op = (view.table(kind) for kind in ("step", "wait", "op"))
        phase = view.catalog.phase[op["context"]]
        first = np.flatnonzero(np.append(True, phase[1:] != phase[:-1])[: len(phase)])
        end = np.maximum.reduceat(op["t1"], first) if len(first) else first
        named = phase[first] > 0
        first, end = first[named], end[named]
        start, stop, context = blocks(view)
        stop = np.where(stop > 0, stop, now)
        for t0, t1, kind, name in (
            (step["t0"], step["t1"], STEP_SPAN, step["index"]),
            (op["t0"][first], end, phase[first], 0),
            (start, stop, SCOPE_SPAN, _numbers(names, view, view.catalog.scope[context])),
            (wait["t0"], wait["t1"], WAIT_SPAN, wait["seq"]),
        ):
            found.append(_bars(row, t0, t1, origin, kind, name))
    return _columns("span", found, SPANS, ("rank", "start", "end", "kind", "name"))


def _number(names: list[str], name: str) -> int:
    """Return the index of `name` in the list `names`, to which it is added if it is new."""
    if name not in names:
        names.append(name)
    return names.index(name)


def _numbers(names: list[str], view: View, ids: Ints) -> Ints:
    """Return for each string id the index of its text in the list `names`, to which new ones are added."""
    used, which = np.unique(ids, return_inverse=True)
    return np.array([_number(names, view.catalog.strings.items[one]) for one in used.tolist()], np.int64)[which]


def _activity(ranks: list[View], origin: int, families: list[str]) -> Arrays:
    """Return the merged ops of all ranks as bars, in ms since `origin` (ns); their families are added to `families`."""
    found = [np.empty((0, 4))]
    for row, view in enumerate(ranks):
        op = view.table("op")
        family = _numbers(families, view, view.catalog.family[op["plan"]])
        found.append(_bars(row, op["t0"], op["t1"], origin, family))
    return _columns("act", found, ACTIVITY, ("rank", "start", "end", "family"))


def _bars(row: int, t0: Ints, t1: Ints, origin: int, *more: Any) -> NDArray[np.float64]:
    """Return the bars of one rank as an array with a row for each bar.

    The columns are the rank's row number ``row``, begin and end (ns since `origin`), and the arrays or numbers `more`.
    Bars that end before `origin` (ns) are left out.
    """
    bars = np.zeros((len(t0), 3 + len(more)))
    for at, column in enumerate((row, t0 - origin, t1 - origin, *more)):
        bars[:, at] = column
    return bars[t1 > origin]


def _columns(prefix: str, found: list[NDArray[np.float64]], most: int, names: tuple[str, ...]) -> Arrays:
    """Return bars as a dict of columns, with start and end in ms; of more than `most` bars, those that end last.

    Args:
        prefix: the beginning of the columns' names in the result, as in "act_start".
        found: the bars as rows, with times in ns, one array for each rank.
        most: the largest number of bars to return.
        names: the names of the columns.
    """
    rows = np.concatenate(found)
    rows = rows[np.argsort(rows[:, 2], kind="stable")[-most:]]
    return {
        f"{prefix}_{name}": rows[:, at] / 1e6 if name in ("start", "end") else rows[:, at].astype(np.uint32)
        for at, name in enumerate(names)
    }


def _findings(calls: Collectives, chosen: NDArray[np.bool_]) -> dict[str, Any]:
    """Return, for JSON, which ranks were late and why, the time that steps lost, and the bandwidths measured.

    ``chosen`` is a mask of the calls that are shown.
    """
    row = np.cumsum(chosen) - 1
    reasons = [
        {"row": int(row[call]), "rank": reason.rank, "scope": safe_text(reason.scope)}
        | {"ms": reason.ns / 1e6, "median_ms": reason.median_ns / 1e6, "text": safe_text(reason.text, 400)}
        for call, reason in calls.reasons.items()
        if chosen[call]
    ]
    late = [{key: value for key, value in one.items() if key != "lost_ns"} for one in calls.who()]
    took, exposed = calls.step_ns.mean(axis=1) / 1e6, calls.exposed_ns.mean(axis=1) / 1e6
    steps = [
        {"step": index, "ms": ms, "exposed_ms": lost, "share": lost / ms if ms else 0.0}
        | {"overlap": None if hidden != hidden else hidden}
        for index, ms, lost, hidden in zip(
            calls.steps.tolist(), took.tolist(), exposed.tolist(), calls.overlap.tolist(), strict=True
        )
    ][-STEPS:]
    peak, ops = calls.peak_gb_s, []
    for op in dict.fromkeys(calls.op.tolist()):
        known = calls.gb_s[(calls.op == op) & ~np.isnan(calls.gb_s)]
        if len(known):
            middle = float(np.median(known))
            ops.append({"op": op, "gb_s": middle, "share": middle / peak})
    return {"reasons": reasons, "late": late, "steps": steps, "bandwidth": {"peak_gb_s": peak, "ops": ops}}


def finished(source: Any, start: int, end: int) -> tuple[dict[str, Any], Arrays]:
    """Return a frame's section on collective calls of a recording that has ended: an entry for the head, and arrays.

    Args:
        source: the recording, or `Ranks`.
        start, end: the times at which the run began and ended, ns.
    """
    ranks = []
    for view in views(source):
        window = Window(view.catalog, limit=1 << 62)
        kinds = [schema.KINDS[name] for name in ("collective_begin", "collective", "wait", "step", "scope")]
        window.take([(view.rank, np.concatenate([schema.rows(kind, view.table(kind.name)) for kind in kinds]))])
        op, begun = view.table("op"), np.sort(view.table("step")["t0"])
        ops = schema.rows(schema.KINDS["op"], op)[op["t0"] >= (begun[-STEPS] if len(begun) > STEPS else 0)]
        window.take([(view.rank, ops[first : first + CHUNK]) for first in range(0, len(ops), CHUNK)])
        if window.seen:
            ranks.append(view._replace(table=window.table))
    if not ranks:
        return {}, {}
    about, arrays = section(ranks, start, end, {})
    return {"collectives": about}, arrays


def known_states() -> dict[int, str]:
    """Return texts about the ranks for which this process waits, such as "has died", by rank."""
    found: dict[int, str] = {}
    for ask in bus.state_sources:
        found |= ask()
    return found


class LiveCollectives:
    """The collective calls of a live view: collects records, and makes the frame section when it has changed.

    Attributes:
        states: texts from other processes about ranks, such as "has died", by rank.
        shift: the time on this process's clock minus the time on the ranks' common clock, ns.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.window = Window(catalog)
        self.states: dict[int, str] = {}
        self.shift = 0
        self._version = -1
        self._due = self._stuck_due = 0

    def news(self, run: Run, keyframe: bool) -> tuple[dict[str, Any], Arrays]:
        """Return a frame's section on collective calls: an entry for the frame's head, and arrays.

        Both are empty if the frame is to have no section. A keyframe always has the section. Other frames have the
        section if it has changed, but so rarely that making it takes at most 10 % of the time.
        """
        began, window = clock(), self.window
        changed = window.version != self._version or began > self._stuck_due
        if not window.seen or not (keyframe or (changed and began >= self._due)):
            return {}, {}
        self._version, spent = window.version, thread_time_ns()
        window.meta = run.meta
        ranks = [view._replace(bound=window.bounds.get(view.rank, view.bound)) for view in of_recording(window)]
        about, arrays = section(ranks, run.start, run.end or began - self.shift, known_states() | self.states)
        spent = thread_time_ns() - spent  # CPU time, not waiting: ranks may be threads that compute
        self._due = clock() + max(100_000_000, 9 * spent)
        self._stuck_due = clock() + (1_000_000_000 if about["stuck"] else int(AFTER * 1e9))
        return {"collectives": about}, arrays
