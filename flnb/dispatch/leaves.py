"""Leaves in telemetry: op records name them by number, and an event gives their name where an analysis will need it."""

from __future__ import annotations

from time import perf_counter_ns as clock
from typing import Any

from flnb_telemetry import intern, schema

from flnb.dispatch.plan import Spec
from flnb.interface.tape import PARENTS, PLAN, SEQ, Node

__all__ = ["tell", "tell_above"]

NAME, PARAMETER = 4, 5  # of a leaf's node
MOST = 4096
"""Nodes that are looked through for leaves."""


def tell(lane: Any, leaf: Node, spec: Spec) -> tuple[int, int]:
    """Emit a leaf's name; returns the code of a record about it, and its name's number."""
    plan = intern.plans.id_of(intern.Plan("leaf", "memory", spec.shape, spec.dtype.name, spec.nbytes))
    name = intern.strings.id_of(leaf[NAME]) if leaf[NAME] else 0
    code = plan << schema.PLAN_SHIFT
    lane.emit(schema.LEAF | code, clock(), leaf[SEQ], name, int(leaf[PARAMETER]))
    return code, name


def tell_above(lane: Any, tensors: tuple[Any, ...]) -> None:
    """Emit the leaves from which tensors were computed, if there are no more than `MOST` nodes between."""
    waiting = [(node, x._spec) for x in tensors for node in [getattr(x, "_node", None)] if node is not None]
    seen: set[int] = set()
    while waiting and len(seen) < MOST:
        node, spec = waiting.pop()
        if node[SEQ] in seen:
            continue
        seen.add(node[SEQ])
        if node[PLAN] is None:
            tell(lane, node, spec)
        else:
            above = zip(node[PARENTS] or (), node[PLAN].specs, strict=False)
            waiting += [(p, s) for p, s in above if p is not None and isinstance(s, Spec)]
