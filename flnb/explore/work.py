"""The work of a run's ops: calls, times, bytes and FLOPs by op and scope, for one step or for the whole run."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry.analysis import roofline

if TYPE_CHECKING:
    from flnb_telemetry import Recording
    from numpy.typing import NDArray


class Work(NamedTuple):
    """The work of one op in one scope (module path) of a run, per step: calls, ns, result bytes, FLOPs, bytes moved.

    ``typical`` is the typical time of a call in ns, which single slow calls do not change: the median, taken for each
    shape and averaged over the calls. ``spread`` is the distance between its quartiles: changes below it are noise.

    FLOPs are estimated from the shapes. ``traffic`` is the number of bytes that must be moved at least
    (`roofline.traffic`). Both are zero for ops without FLOPs, many of which are views.
    """

    calls: float = 0.0
    time: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0
    traffic: float = 0.0
    typical: float = 0.0
    spread: float = 0.0

    @property
    def one(self) -> float:
        """Return the time of a call in ns: the typical time, or the mean time if the typical time is not known."""
        return self.typical or self.per_call(self.time)

    def per_call(self, number: float) -> float:
        """Return ``number``, a sum over all calls, divided by the number of calls."""
        return number / self.calls


def step_durations(run: Recording) -> NDArray[np.int64]:
    """Return the durations (ns) of the steps of a run that are not inside another step of the same thread."""
    step = run.table("step")
    spans = []
    for lane in np.unique(step["lane"]):
        t0, t1 = (step[name][step["lane"] == lane] for name in ("t0", "t1"))
        order = np.lexsort((-t1, t0))
        t0, t1 = t0[order], t1[order]
        spans.append((t1 - t0)[np.r_[True, t1[1:] > np.maximum.accumulate(t1)[:-1]]])
    return np.concatenate(spans) if spans else np.empty(0, np.int64)


def in_steps(run: Recording) -> Any:
    """Return an array of booleans, one for each op of a run: whether it begins during a step, on any thread."""
    step, t = run.table("step"), run.table("op")["t0"]
    order = np.argsort(step["t0"], kind="stable")
    ends = np.maximum.accumulate(step["t1"][order])  # steps may lie within each other
    last = np.searchsorted(step["t0"][order], t, "right") - 1
    return (last >= 0) & (t < ends[last])


def total(works: dict[tuple[str, str], Work]) -> Work:
    """Return the sum of the work of several ops; its spread is infinite, so that no time counts as changed.

    Most of these ops are called once, so their spread is unknown.
    """
    total = Work(*map(sum, zip(Work(), *works.values(), strict=True)))
    return total._replace(typical=0.0, spread=math.inf)


def works_of(run: Recording, chosen: Any, steps: int, by: str = "scope") -> dict[tuple[str, str], Work]:
    """Return the work of the chosen ops of a run by (op, scope), divided by the number of steps.

    With ``by="line"`` the keys are (op, line); lines are without their numbers, as in "train.py: y = x * w".
    """
    table, catalog = run.table("op"), run.catalog
    ops = {name: table[name][chosen] for name in ("plan", "context", "node", "t0", "t1")}
    if not len(ops["plan"]):
        return {}
    plans, strings = catalog.plans.items, catalog.strings.items
    lines = by == "line"
    where = catalog.line[ops["context"]] if lines else catalog.places(ops["context"], ops["node"])[0]
    codes, member = np.unique((ops["plan"].astype(np.int64) << 32) | where, return_inverse=True)
    groups: dict[tuple[str, str], int] = {}
    each = [(plans[code >> 32], strings[code & 0xFFFFFFFF]) for code in codes.tolist()]
    each = [(plan, _unnumbered(place)) for plan, place in each] if lines else each
    group = np.array([groups.setdefault((plan.op, place), len(groups)) for plan, place in each])[member]
    moved = [roofline.traffic(plan) if plan.flops and plan.dtype in roofline.FLOATS else 0 for plan, _ in each]
    sizes = np.array([[plan.nbytes, plan.flops, nbytes] for (plan, _), nbytes in zip(each, moved, strict=True)], float)
    spent = (ops["t1"] - ops["t0"]).astype(np.float64)
    counts = np.bincount(group)
    sums = [counts, np.bincount(group, spent), *(np.bincount(group, column[member]) for column in sizes.T)]
    calls = [np.bincount(group, column[member]) / counts for column in _typical(spent, member)]
    rows = zip(*(column / steps for column in sums), *calls, strict=True)
    return {key: Work(*map(float, row)) for key, row in zip(groups, rows, strict=True)}


def _unnumbered(line: str) -> str:
    """Return a line of a program without its number, which edits change; without its source it is not changed."""
    return re.sub(r"^(?:In \[[0-9]+\]|(.+?)):[0-9]+: (?=.)", lambda found: f"{found[1] or 'cell'}: ", line)


def _typical(spent: NDArray[np.float64], member: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return for each group of calls the median of their times, and the distance between the quartiles.

    ``member`` has the number of each call's group. For fewer than three calls, half the median is returned as distance.
    """
    parts = np.split(spent[np.argsort(member, kind="stable")], np.cumsum(np.bincount(member))[:-1])
    low, middle, high = np.array([np.percentile(part, (25, 50, 75)) for part in parts]).T
    few = np.array([len(part) < 3 for part in parts])
    return np.stack([middle, np.where(few, middle / 2, high - low)])
