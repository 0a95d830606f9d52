"""The path of a gradient from the loss to a Variable on a recorded tape, or the reason why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import quantity, schema
from flnb_telemetry.analysis.graph import acts, pairs
from flnb_telemetry.safe_text import safe_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flnb_telemetry.analysis.tape import Tape


_ENDS = {
    schema.DETACH: "its values were detached from the tape",
    schema.INTEGER: "its values became integers or truth values, which have no gradient",
    schema.NO_RULE: "its values were used by an op that has no gradient",
}


class Why(NamedTuple):
    """Whether a gradient reaches a Variable: the `path` from the loss, or the `reason` and the user's `line`."""

    reached: bool
    path: tuple[str, ...] = ()
    reason: str = ""
    line: str = ""

    def __repr__(self) -> str:
        if not self.reached:
            return safe_lines(f"no gradient arrives: {self.reason}" + (f"\n  at {self.line}" if self.line else ""))
        return safe_lines("a gradient arrives, by\n" + "\n".join(f"  {step}" for step in self.path))


def why(tape: Tape, x: Any) -> Why:
    """Return whether the loss's gradient reaches `x`: a Variable, leaf name, node or node id (see `Tape.why`)."""
    asked = _asked(tape, x)
    if isinstance(asked, Why):
        return asked
    graph = tape.graph
    known = np.append(graph.id, graph.leaf_id)
    place = np.flatnonzero(known == asked)
    if not len(place):
        return _cut(tape, asked)
    row = int(place[0])
    return Why(True, tuple(_text(tape, step) for step in _way(tape, row if row < len(graph) else len(graph) - row - 1)))


def _asked(tape: Tape, x: Any) -> int | Why:
    """Return the id of the node or leaf that `x` names; if `x` has no gradient, return a `Why` with the reason."""
    if isinstance(x, str):
        named = [leaf for leaf in tape.leaves if leaf.name == x] or [
            leaf for leaf in tape.leaves if leaf.name.endswith(f".{x}")
        ]
        if len(named) == 1:
            return named[0].id
        names = ", ".join(sorted({leaf.name for leaf in named or tape.leaves if leaf.name})[:12]) or "none"
        what = "is the name of several tensors on this tape" if named else "is not a parameter or input on this tape"
        raise LookupError(
            f"run.tape.why: {x!r} {what}; the parameters and inputs with names are: {names}. "
            f"Give one of these in full, or the Variable itself"
        )
    if isinstance(x, int):
        return x
    number = getattr(x, "id", None)
    if isinstance(number, int):
        return number
    if not hasattr(x, "_node"):
        raise TypeError(f"run.tape.why: expected a Variable, its name, or a node of the tape; got {type(x).__name__}")
    if x._node is None:
        floating = np.dtype(x.dtype).kind not in "iub"
        return Why(False, reason="it does not require grad" if floating else f"it is {x.dtype}, which has no gradient")
    return int(x._node[2])


def _way(tape: Tape, row: int) -> list[int]:
    """Return the rows on the shortest path from the loss to the node or leaf in a row; leaf i has the row -1 - i."""
    start, parent = tape.graph.start.tolist(), tape.graph.parent.tolist()
    return shortest(len(tape.graph) - 1, row, lambda node: parent[start[node] : start[node + 1]] if node >= 0 else ())


def shortest(root: int, goal: int, above: Callable[[int], Iterable[int]]) -> list[int]:
    """Return the shortest path from node `root` to node `goal`, both included; [] if there is none.

    The path follows ``above(node)``, which returns the nodes that a node reads.
    """
    came = {root: root}
    waiting = [root]
    for step in waiting:
        for read in above(step):
            if read not in came:
                came[read] = step
                waiting.append(read)
        if goal in came:
            break
    else:
        return []
    way = [goal]
    while way[-1] != root:
        way.append(came[way[-1]])
    return way[::-1]


def _text(tape: Tape, row: int) -> str:
    """Return a line of text about the node or leaf in a row: op or name, shape, scope, gradient norm.

    Leaf i has the row -1 - i.
    """
    if row < 0:
        leaf = tape.leaves[-1 - row]
        about = f"{leaf.name or f'leaf {-leaf.id}'} {quantity.extents(leaf.shape)}"
        norm, bad = leaf.norm, leaf.bad
    else:
        node = tape.nodes[row]
        about = f"{node.op} {quantity.extents(node.shape)} {node.dtype}  {node.scope}".rstrip()
        norm, bad = node.norm, node.bad
    gradient = "NaN or Inf" if bad else "" if norm is None else quantity.norm(norm)
    return about + (f"  |grad| {gradient}" if gradient else "")


def _cut(tape: Tape, number: int) -> Why:
    """Return the reason why the loss does not depend on the node or leaf with the id ``number``.

    The reason is found by following the ops that use the node or leaf.
    """
    ops, cuts = acts(tape.table), tape.table("cut")
    child, parent = pairs(ops, tape.table("edge"))
    below, fresh = np.array([number]), np.array([number])
    while len(fresh):
        fresh = np.setdiff1d(child[np.isin(parent, fresh)], below)
        below = np.append(below, fresh)
    strings = tape.catalog.strings.items
    for code, reason in _ENDS.items():
        ends = np.flatnonzero((cuts["reason"] == code) & np.isin(cuts["node"], below))
        if len(ends):
            return Why(False, reason=reason, line=strings[cuts["line"][ends[-1]]])
    if len(below) > 1:
        return Why(False, reason=f"{len(below) - 1} ops used it, but this loss depends on none of their results")
    users = (cuts["reason"] == schema.NO_GRAD) & (tape.catalog.phase[cuts["context"]] != schema.OPTIMIZER)
    frozen = sorted({strings[i] for i in cuts["line"][users].tolist()})
    if frozen:
        reason = "no op that is on the tape used it; ops ran under no_grad(), which is not on the tape"
        return Why(False, reason=reason, line="\n  or at ".join(frozen))
    return Why(False, reason="it was never used by an op that is on the tape")
