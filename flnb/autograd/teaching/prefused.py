"""A tape that records a sequence of ops, for which a gradient is registered, as one node.

Programs of tiny ops spend most of their time on overhead. When the last op of a registered sequence is recorded, its
node gets the inputs of the sequence and the values that all ops of the sequence saved. The nodes of the other ops are
dropped (pre-fused gradients).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from flnb.autograd import explain
from flnb.autograd.hooks import Inside
from flnb.autograd.tape import Linked, follow
from flnb.dispatch import crossing as dispatch
from flnb.dispatch.plan import Plan
from flnb.dispatch.table import OPS
from flnb.interface.tape import PARENTS, PLAN, SAVED, SEQ, Node
from flnb.ops import elementwise as e

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.interface.tape import Walk
    from flnb.tensor import Tensor

Pattern = Any


class MatchedOp(NamedTuple):
    """One op of a fused sequence, as passed to the gradient function: its plan and its saved values."""

    plan: Any
    saved: list[Any]

    @property
    def output(self) -> Any:
        """The result of the op; None if the op did not save it, because its own gradient does not read the result."""
        return self.saved[-1]


@dataclass(frozen=True, eq=False)
class Sequence:
    """A registered sequence of ops and its gradient. In a fused node's plan, this object takes the place of the op.

    Attributes:
        last: name of the last op.
        steps: a triple for each of the other ops in order: the number of the op in the sequence that reads its result,
            the position of the result among the arguments of that op, and the op's own name.
        pull: the function that computes the gradient, see `register_sequence`.
    """

    name: str
    last: str
    steps: tuple[tuple[int, int, str], ...]
    pull: Callable[..., Any]
    decomposes: ClassVar[bool] = True
    direct: ClassVar[bool] = False
    gradient: ClassVar[Any] = None

    @property
    def traceable(self) -> bool:
        """Whether the gradient function may be compiled: True for functions of flnb, False for a user's function."""
        return self.pull.__module__.startswith("flnb.")

    def body(self, *_: Any) -> Any:
        """Raise an error: a second derivative needs the inputs of the sequence, which were not saved."""
        raise RuntimeError(
            f"the fused gradient of {self.name!r} cannot be differentiated again; for second derivatives, record "
            f"the ops on another tape: with flnb.use_tape('linked'): ..."
        )

    remake = body


_by_last: dict[str, list[Sequence]] = {}


def register_sequence(name: str, pattern: Pattern, pull: Callable[..., Any]) -> Sequence:
    """Register a sequence of ops that the "prefused" tape records as one node; returns its `Sequence`.

    A sequence that was registered under the same name is replaced.

    Args:
        name: the name of the fused op in error messages.
        pattern: the name of the last op, followed by the patterns of its arguments: ``("log", ("add", "exp", "exp"))``.
            None, or no pattern for an argument, matches any value; these values are the inputs of the sequence.
        pull: a function that computes the gradient by calling public ops. It is called as ``pull(g, *ops)`` with the
            cotangent of the last op's result and a `MatchedOp` for each op in the order of the pattern. It returns the
            cotangents of the inputs of the sequence, in order. ``MatchedOp.saved`` has the inputs and the output of the
            op; None for values that the op's own gradient does not read.

    >>> import flnb
    >>> from flnb.autograd.teaching.prefused import register_sequence
    >>> def pull(g, exp, negative):
    ...     return (-(g * exp.output),)
    >>> entry = register_sequence("decay", ("exp", "negative"), pull)
    >>> with flnb.use_tape("prefused") as tape:
    ...     y = flnb.exp(-flnb.Variable([0.0]))
    >>> y._node[0].op.name, tape.fused
    ('decay', 1)
    """
    last, steps = _ops_of(pattern)
    entry = Sequence(name, last, steps, pull)
    for entries in _by_last.values():
        entries[:] = [old for old in entries if old.name != name]
    _by_last.setdefault(last, []).append(entry)
    return entry


def _ops_of(pattern: Pattern) -> tuple[str, tuple[tuple[int, int, str], ...]]:
    """Return the name of a pattern's last op, and its other ops as in `Sequence.steps`."""
    steps: list[tuple[int, int, str]] = []

    def spell(part: Pattern, owner: int) -> str:
        op, *arguments = (part,) if isinstance(part, str) else part
        if op not in OPS:
            raise ValueError(f"register_sequence: no op is named {op!r} (in {part!r})")
        for argument, inner in enumerate(arguments):
            if inner is not None:
                at = len(steps)
                steps.append((owner, argument, ""))
                steps[at] = (owner, argument, spell(inner, at + 1))
        return str(op)

    return spell(pattern, 0), tuple(steps)


class Prefused(Linked):
    """A tape that records registered sequences of ops (`register_sequence`) as one node each.

    Values inside such a sequence have no node. So these are errors: to compute the gradient of such a value, to set a
    hook on it after the sequence has been recorded, and to compute a second derivative.

    Attributes:
        fused: the number of sequences that were recorded as one node.
    """

    name: ClassVar[str] = "prefused"

    def __init__(self) -> None:
        self.fused = 0
        self._plans: dict[Any, Any] = {}

    def record(self, node: Node) -> Node:
        for sequence in _by_last.get(node[PLAN].op.name, ()):
            parts = [node]
            for owner, argument, name in sequence.steps:
                parents = parts[owner][PARENTS]
                part = parents[argument] if argument < len(parents) else None
                if part is None or part[PLAN] is None or part[PARENTS] is None or part[PLAN].op.name != name:
                    break
                # hooked, or its saved values are stored elsewhere; or these may have been written since
                if type(part[PLAN]) not in (Plan, Inside) or part[SEQ] < dispatch.last_write:
                    break
                parts.append(part)
            else:
                fused = self._fuse(sequence, parts)
                if fused is not None:
                    return fused
        return node

    def _fuse(self, sequence: Sequence, parts: list[Node]) -> Node | None:
        """Fuse the nodes ``parts`` of a sequence into one; return None if that is impossible.

        ``parts`` begins with the node of the op that ran last."""
        key = (sequence, *[part[PLAN] for part in parts])
        if key not in self._plans:
            self._plans[key] = _shared_facts(sequence, parts)
        made = self._plans[key]
        if made is None:
            return None
        parents = tuple([parts[part][PARENTS][argument] for part, argument in made.edges])
        if None in parents:  # an input that needs no gradient: its op has not saved what the pull reads
            return None
        saved = [x for part in parts for x in part[SAVED:]]
        for i in made.inside:
            saved[i] = _alone(saved[i])
        for part, plan in zip(parts[1:], made.marks, strict=True):
            part[PLAN] = plan
        self.fused += 1
        return [made.plan, parents, *parts[0][SEQ:SAVED], *saved, tuple([part[SEQ] for part in parts[1:]])]

    def walk(self, root: Node, walk: Walk) -> None:
        walk.reached.append(root)
        stops = walk.stops

        def pull(node: Node) -> None:
            if type(node[PLAN].op) is Sequence and node[PARENTS] is not None and not stops.isdisjoint(node[-1]):
                raise RuntimeError(
                    f"the gradient with respect to a value inside {node[PLAN].op.name!r} was fused away; record on "
                    f"another tape: with flnb.use_tape('linked'): ...\n  It is {explain.describe_node(node)}"
                )
            walk.pull(node)

        follow(walk, pull if stops else None)


class _Made(NamedTuple):
    """Facts shared by all fused nodes of one sequence with the same plans.

    Attributes:
        plan: the plan of the fused node.
        edges: a pair for each input of the sequence: the number of the op that reads it, and its position among the
            arguments of that op.
        inside: positions of those saved values that were computed inside the sequence.
        marks: plans for the nodes of the fused inner ops; with such a plan, setting a hook on the node is an error.
    """

    plan: Any
    edges: list[tuple[int, int]]
    inside: list[int]
    marks: list[Inside]


def _shared_facts(sequence: Sequence, parts: list[Node]) -> _Made | None:
    """Return the facts that all fused nodes with these plans share; None if such nodes cannot be fused.

    Nodes cannot be fused if one of their ops broadcasts, is complex, or is itself fused.

    Args:
        sequence: the registered sequence of ops.
        parts: the nodes of the sequence's ops, that of the last op first.
    """
    plans = [part[PLAN] for part in parts]
    if any(type(p.op) is Sequence or p.shrinks.count(None) < len(p.shrinks) for p in plans):
        return None
    if any(p.spec.dtype.kind == "c" for p in plans):  # pulls of sequences do not conjugate
        return None
    inner = {(owner, argument): i for i, (owner, argument, _) in enumerate(sequence.steps, start=1)}
    edges: list[tuple[int, int]] = []

    def follow_inputs(part: int) -> None:
        for argument in range(len(plans[part].specs)):
            if (part, argument) in inner:
                follow_inputs(inner[part, argument])
            else:
                edges.append((part, argument))

    follow_inputs(0)
    cuts = list(pairwise(accumulate([len(part) - SAVED for part in parts], initial=0)))

    def joint(g: Any, _: Any, *saved: Any) -> Any:
        return sequence.pull(g, *[MatchedOp(p, list(saved[a:b])) for p, (a, b) in zip(plans, cuts, strict=True)])

    plan = copy(plans[0])
    plan.op, plan.joint = sequence, joint
    plan.specs = tuple([plans[part].specs[argument] for part, argument in edges])
    plan.shrinks = (None,) * len(edges)
    plan.compiled = None if sequence.traceable else False
    saved = [x for part in parts for x in part[SAVED:]]
    nodes = {id(part) for part in parts[1:]}
    made_inside = [i for i, x in enumerate(saved) if id(getattr(x, "_node", None)) in nodes]
    marks = [p if type(p) is Inside else Inside(p, sequence.name) for p in plans[1:]]
    return _Made(plan, edges, made_inside, marks)


def _alone(x: Any) -> Tensor:
    """Return a Variable's value as a Tensor without a node; both share one record of in-place writes."""
    kept = dispatch.detached(x._data, x._spec)
    kept._written = getattr(x, "_root", x)._write_note
    return kept


def _logaddexp(g: Any, log: MatchedOp, _: MatchedOp, a: MatchedOp, b: MatchedOp) -> Any:
    """Gradient of log(exp(a) + exp(b)); the quotient g / (exp(a) + exp(b)) is computed once for both arguments."""
    share = e.divide(g, log.saved[0])
    return e.multiply(share, a.output), e.multiply(share, b.output)


def _logsumexp(g: Any, log: MatchedOp, total: MatchedOp, exp: MatchedOp) -> Any:
    """Gradient of log(sum(exp(x)))."""
    shares = total.plan.pulls[0](e.divide(g, log.saved[0]), total.plan, *total.saved)
    return (e.multiply(shares, exp.output),)


register_sequence("logaddexp", ("log", ("add", "exp", "exp")), _logaddexp)
register_sequence("logsumexp", ("log", ("sum", "exp")), _logsumexp)
