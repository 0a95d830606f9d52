"""Ranks of recordings on a common clock, and their collective calls joined by group and sequence number."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry.intern import located

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.schema import Columns, Ints

PAIRS = ("send", "recv")
"""Operations between two ranks, which are not collective and so are not joined."""
SEQ_BITS = 44
DIFFERS = "dtypes differ"
"""The text shown as the dtype of a call if its ranks passed different dtypes."""


class View(NamedTuple):
    """One rank's data for analyses: events with times on the common clock, and the names behind their ids.

    `bound` is the largest error (ns) of these times. `table(kind)` returns the events of one kind that the rank's
    communicating threads emitted, as columns.
    """

    rank: int
    host: str
    process: int
    bound: int
    table: Callable[[str], Columns]
    catalog: Catalog


def views(source: Any) -> list[View]:
    """Return a `View` of each rank, given a `Ranks` or one recording in which ranks are threads."""
    if hasattr(source, "views"):
        return source.views()
    return of_recording(source)


def of_recording(run: Any, offset: int = 0, bound: int = 0) -> list[View]:
    """Return the ranks in one recording, one for each process or thread that communicates.

    Args:
        run: the recording.
        offset: the ns to add to all times.
        bound: the largest error of the times, ns.
    """
    begun = run.table("collective_begin")
    infos = run.catalog.groups.items
    lanes: dict[int, set[int]] = {}
    for lane, group in sorted({*zip(begun["lane"].tolist(), begun["group"].tolist(), strict=True)}):
        if infos[group].size > 1 and "/" not in infos[group].name:
            lanes.setdefault(infos[group].rank, set()).add(lane)
    own = run.meta.get("rank")
    if own is not None:
        lanes = {int(own): set().union(*lanes.values())}
    return [_view(run, rank, own, offset, bound) for rank, own in sorted(lanes.items())]


def _view(run: Any, rank: int, lanes: set[int], offset: int, bound: int) -> View:
    known: dict[str, Columns] = {}
    chosen = np.array(sorted(lanes), np.int64)

    def table(kind: str) -> Columns:
        if kind not in known:
            found = run.table(kind)
            if len(chosen):
                mine = np.isin(found["lane"], chosen)
                found = found if mine.all() else {name: column[mine] for name, column in found.items()}
            known[kind] = found | {name: found[name] + offset for name in found.keys() & {"t", "t0", "t1"}}
        return known[kind]

    infos = run.catalog.groups.items
    groups = table("collective_begin")["group"]
    info = infos[int(groups[0])] if len(groups) else None
    host, process = (info.host, info.process) if info else (run.meta.get("host", ""), run.meta.get("process", 0))
    return View(rank, str(host), int(process), bound, table, run.catalog)


def join(ranks: Sequence[View]) -> dict[str, Any]:
    """Join the ranks' collective calls, and return the attributes of `analysis.collectives.Collectives` by name."""
    names: dict[str, int] = {}
    sizes: dict[int, int] = {}
    calls = [_calls(view, names, sizes) for view in ranks]
    keys = np.unique(np.concatenate([np.empty(0, np.int64), *(found["key"] for found in calls)]))
    n, count = len(keys), len(ranks)
    filled = {name: np.zeros((count, n), np.int64) for name in ("begin", "end", "asked", "waited")}
    shared = {name: np.full(n, -1, np.int64) for name in ("elements", "nbytes", "bucket", "step")}
    op, dtype, holds = np.full((3, n), "", object)
    for row, (view, found) in enumerate(zip(ranks, calls, strict=True)):
        at = np.searchsorted(keys, found["key"])
        for name, cells in filled.items():
            cells[row, at] = found[name]
        plans = [view.catalog.plans.items[plan] for plan in found["plan"].tolist()]
        op[at], before = [plan.op for plan in plans], dtype[at]
        dtype[at] = own = np.array([plan.dtype for plan in plans], object)
        held = np.array([view.catalog.strings.items[name] for name in found["name"].tolist()], object)
        holds[at[held != ""]] = held[held != ""]
        dtype[at[(before != "") & (before != own)]] = DIFFERS
        for name, column in shared.items():
            column[at] = np.maximum(column[at], found[name])
    first = np.where(filled["begin"] > 0, filled["begin"], np.iinfo(np.int64).max).min(axis=0, initial=1 << 62)
    order = np.argsort(first, kind="stable")
    filled = {name: cells[:, order] for name, cells in filled.items()}
    shared = {name: column[order] for name, column in shared.items()}
    keys, listed = keys[order], list(names)
    group = keys >> SEQ_BITS
    size = np.array([sizes[number] for number in range(len(listed))], np.int64)[group]
    about: dict[str, Any] = {
        "ranks": tuple(view.rank for view in ranks),
        "hosts": tuple(view.host for view in ranks),
        "bounds": tuple(view.bound for view in ranks),
        "size": max([count, *sizes.values()]),
        "op": op[order],
        "dtype": dtype[order],
        "holds": holds[order],
        "group": np.array(listed, object)[group],
        "seq": keys & ((1 << SEQ_BITS) - 1),
        "views": ranks,
    }
    about |= _lateness(filled["begin"], size, about["ranks"])
    return about | filled | shared | _exposure(ranks, filled, about["last"], shared["step"])


def _calls(view: View, names: dict[str, int], sizes: dict[int, int]) -> Columns:
    """Return one rank's calls as columns: key (group and sequence number), times, plan, bytes, bucket, step and others.

    New groups are added to `names` (numbers by group name) and `sizes` (ranks by group number).
    """
    begun, ended, waits = (view.table(kind) for kind in ("collective_begin", "collective", "wait"))
    infos, plans = view.catalog.groups.items, view.catalog.plans.items
    number = np.full(len(infos), -1, np.int64)
    for group in np.unique(np.concatenate([begun["group"], ended["group"], waits["group"]])).tolist():
        if infos[group].size > 1:
            number[group] = names.setdefault(infos[group].name, len(names))
            sizes[int(number[group])] = infos[group].size
    met = np.array([plan.op not in PAIRS and plan.family == "communication" for plan in plans], np.bool_)

    def only(table: Columns) -> Columns:
        """Return the last event of each call, sorted by a new column "key", the number that identifies the call."""
        group = number[table["group"]]
        key = np.where((group >= 0) & met[table["plan"]], (group << SEQ_BITS) | table["seq"], -1)
        order = np.argsort(key, kind="stable")
        kept = order[(key[order] >= 0) & (np.append(key[order][1:], -1) != key[order])]
        return {name: column[kept] for name, column in table.items()} | {"key": key[kept]}

    begun, ended, waits = only(begun), only(ended), only(waits)
    key = np.unique(np.concatenate([begun["key"], ended["key"], waits["key"]]))
    found = {
        name: np.zeros(len(key), np.int64) for name in ("begin", "end", "asked", "waited", "plan", "bucket", "name")
    }
    for table, start in ((ended, "t0"), (begun, "t")):
        at = np.searchsorted(key, table["key"])
        found["begin"][at], found["plan"][at], found["bucket"][at] = table[start], table["plan"], table["bucket"]
    found["name"][np.searchsorted(key, begun["key"])] = begun["name"]
    found["end"][np.searchsorted(key, ended["key"])] = ended["t1"]
    at = np.searchsorted(key, waits["key"])
    last = waits["t1"] == found["end"][at]  # else the program stood still while the call was started
    found["asked"][at[last]], found["waited"][at[last]] = waits["t0"][last], (waits["t1"] - waits["t0"])[last]
    amounts = [(prod(plans[plan].shape), plans[plan].nbytes) for plan in found["plan"].tolist()]
    elements, nbytes = np.array(amounts, np.int64).reshape(-1, 2).T
    about = {"key": key, "elements": elements, "nbytes": nbytes}
    return found | about | {"step": step_of(view, found["begin"])}


def step_of(view: View, t: Ints) -> Ints:
    """Return for each time in `t` (ns) the index of the rank's training step, -1 outside of steps."""
    steps = view.table("step")
    if not len(steps["t0"]):
        return np.full(len(t), -1, np.int64)
    order = np.argsort(steps["t0"], kind="stable")
    t0, t1, index = (steps[name][order] for name in ("t0", "t1", "index"))
    at = np.maximum(np.searchsorted(t0, t, "right") - 1, 0)
    return np.where((t0[at] <= t) & (t <= t1[at]), index[at], -1)


def median(values: Ints, first: Any, count: Any) -> Ints:
    """Return for each column of `values` the median of some of its entries.

    The columns are sorted first. The median of a column is that of its ``count`` sorted values from index ``first`` on,
    or 0 where ``count`` is 0.
    """
    ascending = np.sort(values, axis=0)
    columns, most = np.arange(values.shape[1]), max(len(values) - 1, 0)
    low = ascending[np.clip(first + (count - 1) // 2, 0, most), columns] if len(values) else columns
    high = ascending[np.clip(first + count // 2, 0, most), columns] if len(values) else columns
    return np.where(count > 0, low + (high - low) // 2, 0)


def _lateness(begin: Ints, size: Ints, ranks: tuple[int, ...]) -> dict[str, Ints]:
    """Return for each call the time of the last rank's call, that rank's number, and its delay (ns).

    The delay is counted from the median of the other ranks' calls.

    Args:
        begin: the times at which the ranks called, shape (ranks, calls), ns; 0 where a rank did not call.
        size: the number of ranks in the group of each call.
        ranks: the numbers of the ranks.

    Returns:
        The columns "last", "late_rank" and "late_ns": 0, -1 and 0 for a call that not all ranks made.
    """
    count = (begin > 0).sum(axis=0)
    complete = (count == size) & (count > 1)
    last = np.where(complete, begin.max(axis=0, initial=0), 0)
    late = np.where(complete, begin.argmax(axis=0) if len(begin) else 0, -1)
    others = np.where(complete, count - 1, 0)
    behind = np.where(complete, last - median(begin, len(begin) - count, others), 0)
    numbers = np.array([*ranks, -1], np.int64)
    return {"last": last, "late_rank": numbers[late], "late_ns": behind}


def _exposure(ranks: Sequence[View], calls: dict[str, Ints], last: Ints, step: Ints) -> dict[str, Any]:
    """Return the attributes of `Collectives` about steps: `steps`, `step_ns`, `exposed_ns` and `overlap`.

    Args:
        ranks: the events of each rank.
        calls: the columns of the joined calls, such as "begin" and "end".
        last: the time of the last rank's call, for each call, ns; 0 if not all ranks called.
        step: the index of the training step of each call.
    """
    tables_ = [view.table("step") for view in ranks]
    steps = np.unique(np.concatenate([np.empty(0, np.int64), *(table["index"] for table in tables_)]))
    took, exposed = np.zeros((2, len(steps), len(ranks)), np.int64)
    flown, hidden = np.zeros((2, len(steps)), np.int64)
    for row, (view, table) in enumerate(zip(ranks, tables_, strict=True)):
        np.add.at(took[:, row], np.searchsorted(steps, table["index"]), table["t1"] - table["t0"])
        waits = view.table("wait")
        at, known = located(steps, step_of(view, waits["t0"]))
        mine = (calls["end"][row] > last) & (last > 0) & (calls["begin"][row] > 0)
        bins, inside = located(steps, step[mine])
        flights = last[mine], calls["end"][row][mine], np.where(inside, bins, len(steps))
        stood = waits["t0"], waits["t1"], np.where(known, at, len(steps))
        flight = _covered(*flights, len(steps))
        exposed[:, row] = stand = _covered(*stood, len(steps))
        start, end, where = (np.concatenate(pair) for pair in zip(flights, stood, strict=True))
        flown += flight
        hidden += _covered(start, end, where, len(steps)) - stand
    share = np.divide(hidden, flown, out=np.full(len(steps), np.nan), where=flown > 0)
    return {"steps": steps, "step_ns": took, "exposed_ns": exposed, "overlap": share}


def _covered(start: Ints, end: Ints, bins: Ints, count: int) -> Ints:
    """Return the time (ns) that intervals cover, summed in ``count`` bins; ``bins`` has the bin of each interval.

    Time that is covered by several intervals counts once, for the interval that began first.
    """
    order = np.argsort(start, kind="stable")
    start, end, bins = start[order], end[order], bins[order]
    before = np.concatenate([[0], np.maximum.accumulate(end)[:-1]]) if len(end) else end
    new = np.maximum(end - np.maximum(start, before), 0)
    return np.bincount(bins, new, count + 1)[:count].astype(np.int64)
