"""Predicts how tensor lifetimes in a recorded training step change if tensors saved by some modules are offloaded.

As with `flnb.memory.offload`, a saved block is moved away when only the tape refers to it and the next op on large
tensors runs. It is moved back when the backward of the first op that saved it begins. A recording does not contain the
variables that refer to a block, so a block is assumed to be in use until the last module call that reads it has ended.
For a module that stores a result in a variable until its own end, this assumption is too early.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from flnb_telemetry.analysis.memory import NEVER

from flnb.autograd.keeping import STAYING
from flnb.memory_lab.traces import Trace

if TYPE_CHECKING:
    from collections.abc import Collection

    from flnb.memory_lab.lifetimes import Call, Step
    from flnb.memory_lab.nodes import Node

__all__ = ["LEAST", "STAYING", "Idle", "Moved", "inside", "movable", "moved", "shortest"]

LEAST = 16 << 10
"""The smallest size in bytes of blocks that are moved."""
KEPT_LAST = 2
"""The number of blocks, of those moved back last, that stay allocated until other blocks are moved back."""


class Moved(NamedTuple):
    """An offloaded block: its row in the trace, the time of its move away, and the intervals in which it is back.

    Times are in ticks (`Trace.TICK`); an interval is [begin, end).
    """

    row: int
    away: int
    back: list[tuple[int, int]]


class Idle(NamedTuple):
    """A block that can be offloaded: the modules that saved it, and the time (s) after which only the tape uses it."""

    scopes: frozenset[str]
    since: float


def inside(scope: str, modules: Collection[str]) -> bool:
    """Return whether a scope is one of the scopes ``modules``, or nested in one of them."""
    return any(scope == module or scope.startswith(f"{module}.") for module in modules)


def movable(step: Step) -> dict[int, Idle]:
    """Return the blocks that can be offloaded, by row of the trace: blocks whose last reference is held by the tape.

    In the recording, such a block was freed together with the last node that saved it. If the backward of that node was
    not recorded, the block must have been made, read and saved inside one outermost module.
    """
    trace, found = step.trace, {}
    born, _ = trace.lifetimes
    for row, savers in step.nodes.saved_by.items():
        if trace.nbytes[row] < LEAST or trace.category[row] in STAYING:
            continue
        users = [*savers, *step.nodes.read_by.get(row, ())]
        alone = step.nodes.held_alone(row)
        if alone is None:
            alone = len({step.outermost(scope) for scope in (trace.scope[row], *(node.scope for node in users))}) == 1
        if alone and all(step.outermost(node.scope) for node in savers):
            since = max(step.passed_on(node, int(born[row])) for node in users)
            if step.until < math.inf and row in step.nodes.results and not step.nodes.read_by.get(row):
                since = math.inf  # it was just made, and an op that reads it may follow
            found[row] = Idle(frozenset(node.scope for node in savers), since)
    return found


def moved(step: Step, modules: Collection[str], again: Collection[Call] = ()) -> list[Moved]:
    """Return the blocks that are moved if the given modules are offloaded, except blocks of recomputed calls.

    Args:
        step: the recorded training step.
        modules: the scopes of the modules to offload.
        again: the calls of modules that are recomputed.
    """
    at, run_again = step.trace.t, {node.seq for call in again for node in call.nodes}
    nodes = [node for node in step.nodes.list if node.seq not in run_again]
    ends = [float(at[min(call.end, len(at) - 1)]) for call in again]
    records = sorted([node.t1 for node in nodes if node.largest >= LEAST] + ends)
    stay = {row for call in again for row in call.inputs}
    stay |= {row for node in nodes for row in node.saves if not inside(node.scope, modules)}
    going = {}
    for row in dict.fromkeys(row for node in nodes for row in node.saves if row in step.movable):
        after = int(np.searchsorted(records, step.movable[row].since, "right"))
        if row not in stay and after < len(records):
            going[row] = step.nodes.following(records[after]) * Trace.TICK
    back = _returns(step, nodes, going)
    # a block that was moved is freed by the next allocation, at the latest by that of its own copy
    return [Moved(row, min([away, *(since for since, _ in back[row])]), back[row]) for row, away in going.items()]


def shortest(step: Step, modules: Collection[str], again: Collection[Call] = ()) -> tuple[str, ...]:
    """Return the smallest set of modules whose offloading moves the same blocks.

    An outer module replaces the modules inside it. ``again`` has the calls of modules that are recomputed in backward.
    """
    found = tuple(dict.fromkeys(modules))
    rows = {one.row for one in moved(step, found, again)}
    for outer in sorted({scope[:end] for scope in found for end, c in enumerate(scope) if c == "."}, key=len):
        if step.own(outer) and sum(inside(scope, (outer,)) for scope in found) > 1:
            tried = (*(scope for scope in found if not inside(scope, (outer,))), outer)
            if {one.row for one in moved(step, tried, again)} == rows:
                found = tried
    return found


def _returns(step: Step, nodes: list[Node], going: Collection[int]) -> dict[int, list[tuple[int, int]]]:
    """Return, for each offloaded block, the intervals [begin, end) in ticks in which a copy is back for backward.

    Args:
        step: the recorded training step.
        nodes: the nodes that saved blocks.
        going: the rows of the offloaded blocks in the trace.
    """
    tick, n = Trace.TICK, len(step.trace)
    _, died = step.trace.lifetimes
    found: dict[int, list[tuple[int, int]]] = {row: [] for row in going}
    pulls = [(node.pulled, node) for node in nodes if node.pulled is not None]
    pulls.sort(key=lambda pull: (pull[0][0], -pull[1].seq))  # nodes that allocate nothing come first
    left = Counter(row for _, node in pulls for row in node.saves if row in found)
    here: dict[int, int] = {}  # since when
    recent: deque[int] = deque()
    for (begin, done), node in pulls:
        wanted = [row for row in node.saves if row in found]
        absent = [row for row in wanted if row not in here]
        for i, row in enumerate(absent):
            now = here[row] = begin * tick - (len(absent) - i)
            recent.append(row)
            while len(recent) > KEPT_LAST:
                old = recent.popleft()
                if old != row and old in here:
                    found[old].append((here.pop(old), done * tick if old in wanted else now + 1))
        for row in wanted:
            left[row] -= 1
            if not left[row] and row in here:  # its last node is done
                since = here.pop(row)
                found[row].append((since, max(since + 1, int(died[row]) * tick)))
    for row, since in here.items():
        found[row].append((since, max(since + 1, int(died[row]) * tick) if died[row] < n else NEVER))
    return found
