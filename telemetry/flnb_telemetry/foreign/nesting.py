"""Finds the annotations around each op in a trace, where both are slices (intervals of time) of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.intern import Context

if TYPE_CHECKING:
    from flnb_telemetry.intern import Table
    from flnb_telemetry.schema import Columns

BACKWARD = "autograd::engine::evaluate_function"
OPTIMIZER = "Optimizer.step#"


class Slices:
    """Collects the ops and annotations of each thread, in any order, and returns them as tables."""

    def __init__(self) -> None:
        self._ops: dict[int, list[tuple[Any, ...]]] = {}
        self._scopes: dict[int, list[tuple[Any, ...]]] = {}

    def op(self, lane: int, t0: int, t1: int, name: str, details: tuple[int, ...]) -> None:
        """Add an op of the thread `lane` from `t0` to `t1` (ns).

        `details` are the ids of plan, node and block, whether the time is estimated (0 or 1), and the context id, -1 if
        the context follows from the annotations around the op.
        """
        phase = schema.BACKWARD if name.startswith(BACKWARD) else 0
        self._ops.setdefault(lane, []).append((t0, -t1, 1, phase, details))

    def scope(self, lane: int, t0: int, t1: int, name: str, path: str | None, module: bool) -> None:
        """Add an annotation of the thread `lane` from `t0` to `t1` (ns), which becomes a scope.

        `path` is its full scope path; None appends `name` to the path of the scopes around it. `module` says
        whether the annotation is a module's call.
        """
        phase = schema.OPTIMIZER if name.startswith(OPTIMIZER) else 0
        self._scopes.setdefault(lane, []).append((t0, -t1, 0, phase, (name, path, module)))

    def tables(self, contexts: Table[Context]) -> tuple[Columns, Columns]:
        """Return the tables of ops and of scope events; contexts that are new are added to `contexts`."""
        ops, scopes = list[tuple[int, ...]](), list[tuple[int, ...]]()
        for lane in sorted(self._ops.keys() | self._scopes.keys()):
            around: list[tuple[int, str, int]] = []  # end, scope and phase of each slice that is open
            every = self._ops.pop(lane, []) + self._scopes.pop(lane, [])
            for t0, end, is_op, own, details in sorted(every, key=lambda one: one[:3]):
                while around and around[-1][0] < -end:  # it ended before this one ends: it is not around it
                    around.pop()
                _, scope, phase = around[-1] if around else (0, "", 0)
                phase = own or phase
                if is_op:
                    plan, node, block, estimated, context = details
                    known = context if context >= 0 else contexts.id_of(Context(scope, phase))
                    ops.append((t0, -end, block, node, known, estimated, plan, lane))
                else:
                    name, path, module = details
                    scope = path if path is not None else f"{scope}.{name}" if scope else name
                    context = contexts.id_of(Context(scope, phase))
                    enter = schema.ENTER_MODULE if module else schema.ENTER_BLOCK
                    scopes += [(t0, context, enter, lane), (-end, context, 0, lane)]
                around.append((-end, scope, phase))
        names = ("t0", "t1", "alloc_id", "node", "context", "estimated", "plan", "lane")
        return _columns(ops, names), _columns(scopes, ("t", "context", "enter", "lane"))


def _columns(rows: list[tuple[int, ...]], names: tuple[str, ...]) -> Columns:
    """Return rows of integers as columns with the given names."""
    made = np.array(rows, np.int64).reshape(-1, len(names)).T
    return dict(zip(names, made, strict=True))
