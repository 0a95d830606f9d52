"""The intern tables as arrays, so that columns of plan and context ids can be looked up all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import intern, schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.intern import Context, Plan, Table


class Catalog:
    """Three intern tables and, for each plan and context id, what an analysis groups by (as ids of `strings`).

    `refresh` takes in what was interned since; the process's own tables are used when none are given.
    """

    def __init__(
        self,
        strings: Table[str] = intern.strings,
        plans: Table[Plan] = intern.plans,
        contexts: Table[Context] = intern.contexts,
    ) -> None:
        self.strings, self.plans, self.contexts = strings, plans, contexts
        self.op = self.family = self.nbytes = self.scope = self.phase = np.empty(0, np.int64)
        self.refresh()

    def refresh(self) -> Catalog:
        """Extend the arrays to the tables' present length."""
        name = self.strings.id_of
        if fresh := self.plans.items[len(self.op) :]:
            self.op = _extended(self.op, [name(plan.op) for plan in fresh])
            self.family = _extended(self.family, [name(plan.family) for plan in fresh])
            self.nbytes = _extended(self.nbytes, [plan.nbytes for plan in fresh])
        if new := self.contexts.items[len(self.scope) :]:
            self.scope = _extended(self.scope, [name(context.scope) for context in new])
            self.phase = _extended(self.phase, [context.phase for context in new])
        return self

    def names(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Strings of string ids, as an object array."""
        found: NDArray[Any] = np.array(self.strings.items, object)[ids]
        return found

    def phases(self, ops: schema.Columns) -> NDArray[np.int64]:
        """The phase of each op: what user code said, else forward for what made a tape node."""
        phase = self.phase[ops["context"]]
        found: NDArray[np.int64] = np.where((phase == 0) & (ops["node"] > 0), schema.FORWARD, phase)
        return found


def _extended(array: NDArray[np.int64], values: list[int]) -> NDArray[np.int64]:
    return np.concatenate([array, np.array(values, np.int64)])
