"""A tape that makes one node of a registered sequence of ops, with one pull.

Chains of tiny ops spend their time between the ops. Where the gradient of a sequence is registered, the tape replaces
nodes as they are made: the last op's node takes over the parents of the first ones and what all of them saved, and the
others are forgotten (001, section 5.2.1: pre-fused gradients).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from flnb.autograd import explain
from flnb.autograd.tape import Linked, follow
from flnb.dispatch import ops as dispatch
from flnb.dispatch.plan import ALWAYS, Plan
from flnb.interface.tape import PARENTS, PLAN, SAVED, SEQ, Node
from flnb.ops import elementwise as e
from flnb.ops.table import OPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.autograd.tape import Walk

__all__ = ["Part", "Prefused", "Sequence", "register_sequence"]

Pattern = Any


class Part(NamedTuple):
    """One op of a sequence, as its fused pull sees it."""

    plan: Any
    saved: list[Any]

    @property
    def output(self) -> Any:
        """The op's result, None where its own gradient does not read it."""
        return self.saved[-1]


@dataclass(frozen=True)
class Sequence:
    """A registered sequence: what it looks like, and its gradient. Stands in for an op in a fused node's plan."""

    name: str
    pattern: Pattern
    pull: Callable[..., Any]
    decomposes: ClassVar[bool] = True

    def body(self, *_: Any) -> Any:
        """What differentiating twice would run again: the values that went in were not kept."""
        raise RuntimeError(
            f"the fused gradient of {self.name!r} cannot be differentiated again; record what is differentiated "
            f"twice on another tape: with flnb.use_tape('linked'): ..."
        )


_by_last: dict[str, list[Sequence]] = {}


def register_sequence(name: str, pattern: Pattern, pull: Callable[..., Any]) -> Sequence:
    """Fuse a sequence of ops on the prefused tape; gives its entry. A name that is registered is replaced.

    Args:
        name: shown in errors and by ``backward``'s messages.
        pattern: the last op's name and the patterns of its arguments, ``("log", ("add", "exp", "exp"))``; None is any
            value, and arguments left out are None.
        pull: ``pull(g, *parts)``, with a `Part` for each op in the pattern's order (the last op first), gives the
            cotangents of the Nones in order. It calls public ops. A part's ``saved`` holds what the op itself saved
            for its gradient: inputs and output, None where it reads none.

    >>> import flnb
    >>> from flnb.autograd.prefused import register_sequence
    >>> def pull(g, exp, negative):
    ...     return (-(g * exp.output),)
    >>> entry = register_sequence("decay", ("exp", "negative"), pull)
    >>> with flnb.use_tape("prefused") as tape:
    ...     y = flnb.exp(-flnb.Variable([0.0]))
    >>> y._node[0].op.name, tape.fused
    ('decay', 1)
    """
    pattern = _spelled(pattern)
    entry = Sequence(name, pattern, pull)
    for entries in _by_last.values():
        entries[:] = [old for old in entries if old.name != name]
    _by_last.setdefault(pattern[0], []).append(entry)
    return entry


def _spelled(pattern: Pattern) -> tuple[Any, ...]:
    """A pattern as nested tuples, checked."""
    op, *arguments = (pattern,) if isinstance(pattern, str) else pattern
    if op not in OPS:
        raise ValueError(f"register_sequence: no op is named {op!r} (in {pattern!r})")
    return (op, *(None if a is None else _spelled(a) for a in arguments))


class Prefused(Linked):
    """Fuses registered sequences (`register_sequence`) into one node each.

    A fused node has no place for what lies inside the sequence: gradients with respect to such a value, or a second
    derivative, are errors that say so.

    Attributes:
        fused: how many sequences were fused.
    """

    name: ClassVar[str] = "prefused"

    def __init__(self) -> None:
        self.fused = 0
        self._plans: dict[Any, Any] = {}

    def record(self, node: Node) -> Node:
        for sequence in _by_last.get(node[PLAN].op.name, ()):
            parts: list[Node] = []
            edges: list[tuple[Any, Any]] = []
            if _matches(sequence.pattern, node, parts, edges) and dispatch.last_write < parts[-1][SEQ]:
                return self._fuse(sequence, parts, edges)
        return node

    def _fuse(self, sequence: Sequence, parts: list[Node], edges: list[tuple[Any, Any]]) -> Node:
        last = parts[0]
        key = (sequence, *[part[PLAN] for part in parts])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = _plan(sequence, parts, tuple(spec for _, spec in edges))
        self.fused += 1
        inside = tuple([part[SEQ] for part in parts[1:]])
        saved = [x for part in parts for x in part[SAVED:]]
        return [plan, tuple([p for p, _ in edges]), *last[SEQ:SAVED], *saved, inside]

    def walk(self, root: Node, walk: Walk) -> None:
        walk.reached.append(root)
        stops = walk.stops

        def pull(node: Node) -> None:
            if type(node[PLAN].op) is Sequence and node[PARENTS] is not None and not stops.isdisjoint(node[-1]):
                raise RuntimeError(
                    f"the gradient with respect to a value inside {node[PLAN].op.name!r} was fused away; record on "
                    f"another tape: with flnb.use_tape('linked'): ...\n  It is {explain.in_words(node)}"
                )
            walk.pull(node)

        follow(walk, pull if stops else None)


def _matches(pattern: tuple[Any, ...], node: Any, parts: list[Node], edges: list[tuple[Any, Any]]) -> bool:
    """Whether a node ends a sequence; collects its nodes and, where the pattern ends, parents and their specs."""
    if node is None or node[PLAN] is None or node[PARENTS] is None or node[PLAN].op.name != pattern[0]:
        return False
    plan, arguments = node[PLAN], pattern[1:]
    if type(plan.op) is Sequence or any(shape is not None for shape in plan.shrinks):
        return False
    parts.append(node)
    for i, parent in enumerate(node[PARENTS]):
        inner = arguments[i] if i < len(arguments) else None
        if inner is None:
            edges.append((parent, plan.specs[i]))
        elif not _matches(inner, parent, parts, edges):
            return False
    return True


def _plan(sequence: Sequence, parts: list[Node], specs: tuple[Any, ...]) -> Any:
    """The last op's plan with the sequence's gradient and inputs."""
    plan = object.__new__(Plan)
    for slot in Plan.__slots__:
        setattr(plan, slot, getattr(parts[0][PLAN], slot))
    plans = [part[PLAN] for part in parts]
    ends = list(accumulate([len(part) - SAVED for part in parts], initial=0))

    def joint(g: Any, _: Any, *saved: Any) -> Any:
        return sequence.pull(g, *[Part(p, list(saved[a:b])) for p, (a, b) in zip(plans, pairwise(ends), strict=True)])

    plan.op, plan.joint, plan.specs = sequence, joint, specs  # type: ignore[assignment]
    plan.shrinks = (None,) * len(specs)
    plan.straight, plan.light = False, ALWAYS
    return plan


def _logaddexp(g: Any, log: Part, _: Part, a: Part, b: Part) -> Any:
    """g exp(a) / (exp(a) + exp(b)) and the like: the quotient is taken once."""
    share = e.divide(g, log.saved[0])
    return e.multiply(share, a.output), e.multiply(share, b.output)


def _logsumexp(g: Any, log: Part, total: Part, exp: Part) -> Any:
    shares = total.plan.pulls[0](e.divide(g, log.saved[0]), total.plan, *total.saved)
    return (e.multiply(shares, exp.output),)


register_sequence("logaddexp", ("log", ("add", "exp", "exp")), _logaddexp)
register_sequence("logsumexp", ("log", ("sum", "exp")), _logsumexp)
