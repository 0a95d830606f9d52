"""Collective calls joined over ranks: who waited for whom, how long transfers took, and how much computing hid.

Each collective call is one column of the arrays of `Collectives`; times are ns on the clock of the first rank. A call
has two parts. Until the last rank has made the call, the other ranks wait. After that, data is transferred.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import quantity, tables
from flnb_telemetry.analysis import lateness
from flnb_telemetry.analysis.joining import View, join, median, views
from flnb_telemetry.extras import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from flnb_telemetry.analysis.lateness import Reason
    from flnb_telemetry.schema import Ints

SHOWN = 16
LARGE = 1 << 14
"""The smallest call, in bytes, for which a bandwidth is computed; the time of smaller calls is mostly latency."""
MERGE = "merge the others, by flnb merge or flnb.telemetry.Ranks"


@dataclass(frozen=True, eq=False)
class Collectives:
    """The collective calls of all ranks, joined: n calls in order of time, R ranks; see `Recording.collectives`.

    Arrays have the shape (n,) or (R, n). Times are ns on the clock of the first rank. A time is 0 where a rank did not
    take part in a call, or where the call has not ended.

    Words in the printed table: *exposed* is the time for which a rank's program stood still in calls, either because
    other ranks were late or because data was on its way. *Overlapped* is the share of the transfer time (from the last
    rank's call to the end) during which the program did something else. "Cost the others" is how long the other ranks'
    programs stood still because this rank came last.

    Attributes:
        ranks: the numbers of the ranks, in the order of rows.
        hosts: the host on which each rank runs.
        bounds: the largest error of each rank's clock, ns.
        size: the number of ranks of the program, which exceeds the number of rows if recordings are missing.
        op, group: the names of each call's operation and group of ranks.
        seq: the number of each call in its group, from 1.
        dtype, elements, nbytes: the dtype, number of elements and bytes of the buffer passed to each call.
        bucket, holds: the number of the gradient bucket that was sent (-1 for none), and a few words on its content.
        step: the index of the training step of each call, -1 outside of steps.
        begin, end: the time at which each rank made each call, and the time at which that rank noticed the call's end.
        asked, waited: the time at which each rank's program began to stand still for the call, and for how many ns.
        last: the time at which the last rank called; 0 if not all ranks called.
        late_rank: the rank that called last, -1 if not all ranks called.
        late_ns: the time from the median of the other ranks' calls to the last rank's call, ns.
        late: the row of the rank that called last, -1 if not all ranks called.
        waiting: the time from each rank's call to the last rank's call, ns; the program may have computed meanwhile.
        transfer: the time from the last rank's call until each rank noticed the end, ns.
        blocked: the part of `waiting` for which the rank's program stood still, ns.
        lost: the time that the last rank cost the others: the median of their `blocked`, ns.
        lost_ns: for each rank, the sum of `lost` over the calls to which it came last.
        steps: the indices of the training steps.
        step_ns, exposed_ns: arrays (steps x ranks) of a step's duration, and of the part of it for which the rank's
            program stood still in calls.
        overlap: for each step, the share (0 to 1) of the transfer time for which the programs did not stand still; NaN
            if there was no transfer.

    >>> import flnb
    >>> with flnb.record() as run:
    ...     done = flnb.distributed.run_threads(2, lambda: flnb.distributed.all_reduce(flnb.ones(3)).sum())
    >>> run.collectives.op.tolist(), run.collectives.ranks
    (['all_reduce'], (0, 1))
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    bounds: tuple[int, ...]
    size: int
    op: NDArray[Any]
    group: NDArray[Any]
    dtype: NDArray[Any]
    holds: NDArray[Any]
    seq: Ints
    elements: Ints
    nbytes: Ints
    bucket: Ints
    step: Ints
    begin: Ints
    end: Ints
    asked: Ints
    waited: Ints
    last: Ints
    late_rank: Ints
    late_ns: Ints
    steps: Ints
    step_ns: Ints
    exposed_ns: Ints
    overlap: NDArray[np.float64]
    views: Sequence[View]

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def partial(self) -> str:
        """Return text that lists the recorded ranks ("ranks 0, 2 of 4") if some are missing; "" if all are recorded."""
        if len(self.ranks) >= self.size:
            return ""
        return f"rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))} of {self.size}"

    @cached_property
    def waiting(self) -> Ints:
        """Return the time (ns) that each rank waited for the last rank in each call, shape (ranks, calls)."""
        stop = np.where(self.end > 0, np.minimum(self.end, self.last), self.last)
        return np.where((self.begin > 0) & (self.last > 0), np.maximum(stop - self.begin, 0), 0)

    @cached_property
    def transfer(self) -> Ints:
        """Return the ns from the last rank's call until each rank noticed the end of the call, shape (ranks, calls)."""
        return np.where((self.end > 0) & (self.last > 0), np.maximum(self.end - self.last, 0), 0)

    @cached_property
    def blocked(self) -> Ints:
        """Return the ns for which each rank's program stood still before the last rank called, shape (ranks, calls)."""
        stop = np.minimum(self.asked + self.waited, self.last)
        return np.where((self.waited > 0) & (self.last > 0), np.maximum(stop - self.asked, 0), 0)

    @cached_property
    def lost(self) -> Ints:
        """Return for each call the time (ns) that its last rank cost the others: the median of their `blocked`."""
        members = self.begin > 0
        count = members.sum(axis=0)
        lost = np.where(members, self.blocked, -1)  # absent ranks first, then the last one, which waited for nobody
        lost[np.maximum(self.late, 0), np.arange(len(self))] = -1
        return median(lost, len(self.ranks) - count + 1, count - 1) * (self.late >= 0)

    @cached_property
    def late(self) -> Ints:
        """Return the row of the rank that called last in each call, -1 for none."""
        place = {rank: row for row, rank in enumerate(self.ranks)}
        return np.array([place.get(rank, -1) for rank in self.late_rank.tolist()], np.int64)

    @cached_property
    def lost_ns(self) -> Ints:
        """Return the total time that each rank cost the others by being last, in ns."""
        late = self.late
        return np.bincount(late[late >= 0], self.lost[late >= 0], len(self.ranks)).astype(np.int64)

    @cached_property
    def gb_s(self) -> NDArray[np.float64]:
        """Return each call's bus bandwidth in GB/s: bytes per link divided by the transfer time; NaN if unknown.

        The transfer time is known only if a program stood still for the call, because the end of a call that runs
        beside other work is not noticed. Calls of less than 16 KiB have NaN: they measure latency, not bandwidth.
        """
        stood = (self.waited > 0) & (self.asked <= self.last) & (self.end > self.last) & (self.last > 0)
        taken = np.where(stood, self.end - self.last, np.iinfo(np.int64).max).min(axis=0, initial=1 << 62)
        size = (self.begin > 0).sum(axis=0).astype(np.float64)
        share = {"all_reduce": 2 * (size - 1) / size.clip(1), "all_gather": size - 1, "broadcast": np.ones(len(self))}
        share["reduce_scatter"] = (size - 1) / size.clip(1)
        share["all_reduce_multiple"] = share["all_reduce"]
        found = np.full(len(self), np.nan)
        for op, factor in share.items():
            chosen = (self.op == op) & stood.any(axis=0) & (self.nbytes >= LARGE)
            found[chosen] = (factor * self.nbytes / taken)[chosen]
        return found

    @property
    def peak_gb_s(self) -> float:
        """Return the highest bandwidth measured, in GB/s; 0 if none was measured."""
        known = self.gb_s[~np.isnan(self.gb_s)]
        return float(known.max(initial=0.0))

    @cached_property
    def reasons(self) -> dict[int, Reason]:
        """Return a dict from call number to the `Reason` why the last rank was late, for the calls that cost most."""
        return lateness.reasons(self)

    def who(self) -> list[dict[str, Any]]:
        """Return one dict for each rank, sorted by the time that the rank cost the others, the longest first.

        Keys: rank, host, last (the number of calls to which the rank came last; a step may have many), lost_ns (the
        time that this cost the others in all), lost_ms_per_step, scope (the scope where it lost most of this time).
        """
        late, steps = self.late, max(1, len(self.steps))
        spent: dict[int, dict[str, int]] = {}
        for call, reason in self.reasons.items():
            scopes = spent.setdefault(reason.rank, {})
            scopes[reason.scope] = scopes.get(reason.scope, 0) + int(self.lost[call])
        rows = [
            {
                "rank": rank, "host": self.hosts[row], "last": int((late == row).sum()),
                "lost_ns": int(self.lost_ns[row]), "lost_ms_per_step": float(self.lost_ns[row]) / 1e6 / steps,
                "scope": max(spent.get(rank, {"": 0}).items(), key=lambda one: one[1])[0],
            }
            for row, rank in enumerate(self.ranks)
        ]  # fmt: skip
        return sorted(rows, key=lambda row: -row["lost_ns"])

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame, a row for each call and participating rank; times are ms since the first call."""
        rank, call = np.nonzero(self.begin)
        origin = self.begin[self.begin > 0].min(initial=1 << 62)
        named = {name: getattr(self, name)[call] for name in ("op", "group", "seq", "nbytes", "bucket", "step")}
        named["rank"] = np.array(self.ranks)[rank]
        named["begin"] = (self.begin[rank, call] - origin) / 1e6
        named["end"] = np.where(self.end[rank, call] > 0, (self.end[rank, call] - origin) / 1e6, np.nan)
        named |= {name: getattr(self, name)[rank, call] / 1e6 for name in ("waiting", "transfer", "waited")}
        return require("pandas", "lab", "a DataFrame").DataFrame(named)

    def summary(self) -> list[str]:
        """Return the facts with which the repr begins, each as a string."""
        ops = [f"{quantity.count(int((self.op == op).sum()))} {op}" for op in dict.fromkeys(self.op.tolist())]
        ranks, steps = len(self.ranks), len(self.steps)
        about = self.partial or f"{ranks} rank{'s' * (ranks != 1)}"
        facts = [f"{about}, {steps} step{'s' * (steps != 1)}: {', '.join(ops) or 'no collective calls'}"]
        if len(self.steps):
            exposed = self.exposed_ns.mean(axis=1)
            share = float(exposed.sum() / max(1.0, self.step_ns.mean(axis=1).sum()))
            hidden = self.overlap[~np.isnan(self.overlap)]
            facts.append(
                f"exposed {quantity.duration(exposed.mean())} a step, {quantity.percent(share)} of it"
                + (f"; {quantity.percent(float(hidden.mean()))} of the transfers overlapped" if len(hidden) else "")
            )
        if self.peak_gb_s:
            facts.append(f"bandwidth up to {quantity.significant(self.peak_gb_s)} GB/s")
        if self.partial:
            facts.append(f"who was late is unknown: {MERGE}")
        worst = sorted(self.reasons.items(), key=lambda one: -self.lost[one[0]])
        return facts + [reason.text for _, reason in worst[:1]]

    def cells(self) -> list[list[str]]:
        """Return the printed table of ranks as rows of strings, column titles first; empty if recordings are missing.

        The rank that cost the other ranks the most time comes first.
        """
        if self.partial:
            return []
        rows = self.who()[:SHOWN]
        titles = ["rank", "host", "calls as last", "cost the others", "a step", "mostly in"]
        return [titles] + [
            [
                str(row["rank"]), row["host"], quantity.count(row["last"]), quantity.duration(row["lost_ns"]),
                quantity.duration(row["lost_ms_per_step"] * 1e6), row["scope"] or quantity.UNKNOWN,
            ]
            for row in rows
        ]  # fmt: skip

    def __repr__(self) -> str:
        return "\n".join([*self.summary(), *tables.lines(self.cells(), "><>>><")])

    def _repr_html_(self) -> str:
        return tables.html(self.cells(), "><>>><", "; ".join(self.summary()))


def collectives(source: Any) -> Collectives:
    """Join the collective calls of all ranks.

    Args:
        source: a `Ranks`, or a recording in which ranks are threads.
    """
    return Collectives(**join(views(source)))
