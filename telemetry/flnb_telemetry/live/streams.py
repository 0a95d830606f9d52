"""The work of devices over time as rows of bars, one row for each stream: when a device ran each launch and copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flnb_telemetry import device_words
from flnb_telemetry.intern import Plan, located
from flnb_telemetry.live.bars import PAIR, T0, T1, pair

if TYPE_CHECKING:
    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.live.bars import Bars
    from flnb_telemetry.schema import Columns, Ints

TASKS = ("launch", "copy", "ran")
"""The kinds of events that `Streams.bars` needs besides "op"."""
FIRST = 1 << 40
"""The number of the first stream's lane; threads have smaller numbers."""
QUEUED = 1 << 16
"""The most tasks that wait for the times at which their device ran them; older ones are left out."""


class Streams:
    """The streams of a run, each a lane of the timeline, and the tasks that were queued in them.

    Tasks of an emulated device have no times, only an order, and are left out.

    Args:
        catalog: resolves the ids in records.
        lanes: the numbers of lanes that are known already, to which new ones are added.

    Attributes:
        lanes: by rank (-1 without ranks), device and stream, the number of its lane, from `FIRST` on.
    """

    def __init__(self, catalog: Catalog, lanes: dict[tuple[int, str, int], int] | None = None) -> None:
        self.catalog = catalog
        self.lanes = {} if lanes is None else lanes
        self._queued = np.empty((4, 0), np.int64)  # number, context, thread and plan

    def bars(self, tables: dict[str, Columns], ranks: dict[int, int]) -> dict[int, Bars]:
        """Return the tasks that devices have run, by lane: events of shape (5, n), in order, without overlaps.

        Args:
            tables: the next events of the kinds in `TASKS`, and the ops of the same time.
            ranks: the ranks of threads, in a distributed program.
        """
        launch, copy, ran = (tables[kind] for kind in TASKS)
        if not any(len(table["seq"]) for table in (launch, copy, ran)):
            return {}
        names = [kernel.name for kernel in self.catalog.kernels.items]
        copies = [f"copy {route}" for route in device_words.ROUTES]
        for table, own, family in ((launch, names, "elementwise"), (copy, copies, "movement")):
            if len(table["seq"]):
                what = table["kernel" if table is launch else "route"].astype(np.int64)
                plan = self._plans(table, what, own, family, tables["op"])
                new = np.array([table["seq"], table["context"], table["lane"], plan], np.int64)
                self._queued = np.concatenate([self._queued, new], axis=1)
        at, known = located(self._queued[0], ran["seq"], sort=True)
        rows = np.flatnonzero(known & (ran["bound"] >= 0))
        rows = rows[np.argsort(ran["t0"][rows], kind="stable")]
        _, context, thread, plan = self._queued[:, at[rows]]
        lane = self._lanes(context, thread, ranks)
        found = {}
        for number in np.unique(lane).tolist():
            mine = lane == number
            events = np.zeros((5, int(mine.sum())), np.int64)
            events[T0], events[T1] = ran["t0"][rows[mine]], ran["t1"][rows[mine]]
            events[T1, :-1] = np.minimum(events[T1, :-1], events[T0, 1:])  # clocks are known to within a bound
            events[PAIR] = pair(plan[mine], context[mine])
            found[number] = events
        done = np.isin(self._queued[0], ran["seq"])
        self._queued = self._queued[:, ~done][:, -QUEUED:]
        return found

    def _lanes(self, context: Ints, thread: Ints, ranks: dict[int, int]) -> Ints:
        """Return the lane of each task, given its context and the thread that queued it; new lanes are added."""
        both, which = np.unique(np.array([context, thread]), axis=1, return_inverse=True)
        items = self.catalog.contexts.items
        keys = [(ranks.get(owner, -1), items[one].device, items[one].stream) for one, owner in both.T.tolist()]
        for key in sorted(set(keys)):
            self.lanes.setdefault(key, FIRST + len(self.lanes))
        return np.array([self.lanes[key] for key in keys], np.int64)[which.reshape(-1)]

    def _plans(self, table: Columns, what: Ints, names: list[str], family: str, op: Columns) -> Ints:
        """Return the plan of the op that queued each task; if it is not known, a plan with the name of the task.

        Args:
            table: the tasks.
            what: the index of each task's name in ``names``.
            names: the names of kernels, or of the routes of copies.
            family: the family of tasks whose op is not known.
            op: the ops of the same time.
        """
        known, which = np.unique(what, return_inverse=True)
        plans = [self.catalog.plans.id_of(Plan(names[one], family, (), "", 0)) for one in known.tolist()]
        found = np.array(plans, np.int64)[which.reshape(-1)]
        order = np.argsort(op["t0"], kind="stable")
        if len(order):
            row = order[np.maximum(np.searchsorted(op["t0"][order], table["t0"], "right") - 1, 0)]
            inside = (
                (op["t0"][row] <= table["t0"]) & (op["t1"][row] >= table["t0"]) & (op["lane"][row] == table["lane"])
            )
            found = np.where(inside, op["plan"][row].astype(np.int64), found)
        return found
