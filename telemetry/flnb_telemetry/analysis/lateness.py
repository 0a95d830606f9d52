"""Why a rank came last to a call: its time in each scope since the ranks last met, compared with the other ranks.

Ranks *meet* in a call for which at least one of them stood still. From a meeting to the next call, a rank's time is
attributed to the innermost open scope. There are two exceptions. The time of a backward op is attributed to the scope
of its forward op. The time for which a `recv` or a `send` waits is attributed to a scope called "recv" or "send".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flnb_telemetry import quantity, schema
from flnb_telemetry.analysis.joining import PAIRS, View
from flnb_telemetry.intern import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from flnb_telemetry.analysis.collectives import Collectives
    from flnb_telemetry.schema import Ints

LEAST = 100_000
"""The smallest lateness, in nanoseconds, for which a reason is searched."""
MOST = 200
"""The largest number of meetings for which reasons are searched: those that cost most time."""
SHARE = 0.25
"""The smallest share of a rank's lateness that a scope must explain to be reported."""


class Reason(NamedTuple):
    """The scope where a late rank lost time before a call.

    `ns` is the rank's time in the scope, `median_ns` the other ranks' median, `text` the whole reason in words. `scope`
    is "" if no module and no named block explains the delay.
    """

    rank: int
    scope: str
    ns: int
    median_ns: int
    text: str


def reasons(calls: Collectives) -> dict[int, Reason]:
    """Return the reasons why ranks were late, by call number, for the calls that cost most.

    All calls of a rank up to the next call in which it waits for others share one reason, for example the calls for the
    gradient buckets of one backward.
    """
    if not len(calls) or len(calls.ranks) < 2:
        return {}
    chosen, since = _chosen(calls)
    if not chosen:
        return {}
    picked = np.array(list(chosen))
    names: dict[str, int] = {"": 0}
    spent = [_spent(view, since[row, picked], calls.begin[row, picked], names) for row, view in enumerate(calls.views)]
    found: dict[int, Reason] = {}
    rows = {rank: row for row, rank in enumerate(calls.ranks)}
    scopes = list(names)
    times = np.array([np.pad(table, ((0, 0), (0, len(scopes) - table.shape[1]))) for table in spent])
    for place, (call, others) in enumerate(chosen.items()):
        late = rows[int(calls.late_rank[call])]
        members = [row for row in np.flatnonzero(calls.begin[:, call]).tolist() if row != late]
        median = np.median(times[members, place], axis=0)
        reason = _reason(calls, call, scopes, times[late, place], median)
        found |= dict.fromkeys(others, reason)
    return dict(sorted(found.items()))


def _reason(
    calls: Collectives, call: int, scopes: list[str], own: NDArray[np.float64], median: NDArray[np.float64]
) -> Reason:
    excess = own - median
    at, behind, rank = int(excess.argmax()), int(calls.late_ns[call]), int(calls.late_rank[call])
    scope, ns, usual = scopes[at], int(own[at]), int(median[at])
    text = f"rank {rank} was last, by {quantity.duration(behind)}: "
    if excess[at] < SHARE * behind:
        text += "no module and no named block took it longer than the others"
        return Reason(rank, "", ns, usual, text)
    text += f"{quantity.duration(ns)} {f'in {scope}' if scope else 'outside of modules and named blocks'}, "
    return Reason(rank, scope, ns, usual, text + f"the median of the others {quantity.duration(usual)}")


def _chosen(calls: Collectives) -> tuple[dict[int, list[int]], Ints]:
    """Return the late calls to explain, and when each rank last left a collective before each call (ns).

    The first result is a dict: its keys are the numbers of the calls that cost most; its values are the numbers of all
    calls to which the same rank came late after the same earlier call. The times have the shape (ranks, calls).
    """
    met = np.flatnonzero((calls.waited > 0).any(axis=0) & (calls.last > 0))
    since, meeting = np.zeros((2, *calls.begin.shape), np.int64)
    for row, view in enumerate(calls.views):
        ends = calls.end[row, met]
        ends = np.sort(ends[ends > 0])
        at = np.searchsorted(ends, calls.begin[row], "right")
        meeting[row] = at
        since[row] = np.concatenate([[_beginning(view)], ends])[at]
    place = {rank: row for row, rank in enumerate(calls.ranks)}
    bound = max(calls.bounds)
    late = np.flatnonzero((calls.last > 0) & (calls.late_ns > max(LEAST, 2 * bound)))
    cost = calls.lost + calls.late_ns * 1e-3
    shared: dict[tuple[int, int], list[int]] = {}
    for call in late.tolist():
        row = place[int(calls.late_rank[call])]
        shared.setdefault((row, int(meeting[row, call])), []).append(call)
    groups = sorted(shared.values(), key=lambda group: -max(cost[group]))[:MOST]
    return {max(group, key=lambda call: float(cost[call])): group for group in groups}, since


def _beginning(view: View) -> int:
    """Return the time (ns) of a rank's first op, scope or collective call, 0 if there is none."""
    times = [view.table(kind)[name] for kind, name in (("scope", "t"), ("op", "t0"), ("collective_begin", "t"))]
    return min((int(t.min()) for t in times if len(t)), default=0)


def _spent(view: View, since: Ints, until: Ints, names: dict[str, int]) -> NDArray[np.float64]:
    """Return a rank's time (ns) in each scope, shape (spans, scopes), for the spans from `since` to `until`.

    The column of a scope is its number in `names`, to which new scopes are added.
    """
    order = np.argsort(since, kind="stable")
    start, stop = since[order], np.maximum(until, since)[order]
    at, context = partition(view)
    edges = np.unique(np.concatenate([at[(at > start[0]) & (at < stop.max())], start, stop]))
    middle, length = edges[:-1], np.diff(edges)
    span = np.searchsorted(start, middle, "right") - 1
    inside = middle < stop[span]
    scope = view.catalog.scope[np.concatenate([[0], context])[np.searchsorted(at, middle, "right")]]
    ops = view.table("op")
    within = np.searchsorted(start, ops["t0"], "right") - 1
    within = np.where((within >= 0) & (ops["t0"] < stop[within]), within, -1)
    ops = {name: ops[name][within >= 0] for name in ("t0", "t1", "context", "node")}
    owner, phase, _ = view.catalog.places(ops["context"], ops["node"])
    around = view.catalog.scope[ops["context"]]
    moved = (phase == schema.BACKWARD) & (owner != around)
    took = (ops["t1"] - ops["t0"])[moved]
    waits = view.table("wait")
    owed = np.searchsorted(start, waits["t0"], "right") - 1
    paired = np.isin(view.catalog.op[waits["plan"]], [view.catalog.strings.id_of(name) for name in PAIRS])
    paired &= (owed >= 0) & (waits["t0"] < stop[owed])
    stood = (waits["t1"] - waits["t0"])[paired]
    spans = np.concatenate([span[inside], *[within[within >= 0][moved]] * 2, *[owed[paired]] * 2])
    places = [scope[inside], owner[moved], around[moved], view.catalog.op[waits["plan"][paired]]]
    scopes = np.concatenate([*places, view.catalog.scope[waits["context"][paired]]])
    taken = np.concatenate([length[inside], took, -took, stood, -stood])
    local = np.unique(scopes)
    column = np.array([names.setdefault(view.catalog.strings.items[one], len(names)) for one in local.tolist()])
    key = order[spans] * len(names) + joined(scopes, local, column)
    return np.bincount(key, taken, len(since) * len(names)).reshape(len(since), len(names)).astype(np.float64)


def partition(view: View) -> tuple[Ints, Ints]:
    """Return the times (ns, ascending) at which a rank's innermost scope changes, and the context id after each."""
    found = [np.empty((2, 0), np.int64)]
    for t, context, entered, depth in _nested(view):
        order = np.lexsort((np.arange(len(depth)), depth))
        # of a scope that was left: the last one that was entered at the depth to which it returns
        known = np.maximum.accumulate(np.where(entered[order] > 0, np.arange(len(order)), -1))
        level = depth[order]
        outer = (known >= 0) & (level[known] == level) & (level > min(0, int(depth.min())))
        now = np.empty(len(depth), np.int64)
        now[order] = np.where(outer, context[order][known], 0)
        found.append(np.array([t, now]))
    whole = np.concatenate(found, axis=1)
    t, context = whole[:, np.argsort(whole[0], kind="stable")]
    return t, context


def blocks(view: View) -> tuple[Ints, Ints, Ints]:
    """Return the begin, end (0 if still open) and context id of each `flnb.scope` block of a rank's program."""
    found = [np.empty((3, 0), np.int64)]
    for t, context, entered, depth in _nested(view):
        inner = np.where(entered > 0, depth, depth + 1)
        order = np.lexsort((np.arange(len(depth)), inner))
        began = np.flatnonzero(entered[order] == schema.ENTER_BLOCK)
        after = np.minimum(began + 1, len(order) - 1)
        closed = (inner[order][after] == inner[order][began]) & (entered[order][after] == 0)
        found.append(np.array([t[order][began], np.where(closed, t[order][after], 0), context[order][began]]))
    start, stop, context = np.concatenate(found, axis=1)
    return start, stop, context


def _nested(view: View) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
    """Yield each thread's scope events as columns: time, context, enter (0 for leave), depth after the event."""
    scopes = view.table("scope")
    for lane in np.unique(scopes["lane"]).tolist():
        t, context, entered = (scopes[name][scopes["lane"] == lane] for name in ("t", "context", "enter"))
        yield t, context, entered, np.cumsum(np.where(entered > 0, 1, -1))
