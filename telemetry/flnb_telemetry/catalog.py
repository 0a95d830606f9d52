"""The intern tables as arrays, so that columns of plan and context ids can be looked up all at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import intern, schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.intern import Context, Plan, Table

    Ints = NDArray[np.int64]


NONE = np.empty((2, 0), np.int64)


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
        self.op, self.family, self.nbytes = np.empty((3, 0), np.int64)
        self.scope, self.phase = np.empty((2, 0), np.int64)
        self.refresh()

    def refresh(self) -> None:
        """Extend the arrays to the tables' present length."""
        name = self.strings.id_of
        if fresh := [(name(p.op), name(p.family), p.nbytes) for p in self.plans.items[len(self.op) :]]:
            known = np.array([self.op, self.family, self.nbytes])
            self.op, self.family, self.nbytes = np.concatenate([known, np.array(fresh).T], axis=1)
        if new := [(name(c.scope), c.phase) for c in self.contexts.items[len(self.scope) :]]:
            known = np.array([self.scope, self.phase])
            self.scope, self.phase = np.concatenate([known, np.array(new).T], axis=1)

    def named(self, ids: NDArray[Any]) -> NDArray[Any]:
        """The strings of string ids, as an object array."""
        found: NDArray[Any] = np.array(self.strings.items, object)[ids]
        return found

    def places(self, context: Ints, node: Ints, earlier: Ints = NONE) -> tuple[Ints, Ints, Ints]:
        """The scope (string id) and phase of ops, and the (node, scope) pairs, shape (2, n), of the forward ones.

        The phase is what user code said, else forward for what made a tape node. An op of the backward phase works for
        a tape node: it belongs to the scope of that node's forward op, if that is among these or the `earlier` pairs.
        """
        scope, phase = self.scope[context], self.phase[context]
        phase[(phase == 0) & (node > 0)] = schema.FORWARD
        back = phase == schema.BACKWARD
        ahead = np.concatenate([earlier, np.array([node, scope])[:, ~back & (node > 0)]], axis=1)
        scope[back] = joined(node[back], ahead[0], ahead[1], scope[back])
        return scope, phase, ahead


def joined(ids: Ints, keys: Ints, values: Ints, otherwise: Any = 0) -> Ints:
    """The value of each id, `otherwise` where `keys` lacks it; of equal keys the first counts."""
    if not len(keys) or not len(ids):
        return np.broadcast_to(np.asarray(otherwise, np.int64), len(ids)).copy()
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    slot = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
    found: Ints = np.where(keys[slot] == ids, values[order[slot]], otherwise)
    return found
