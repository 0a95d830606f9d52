"""How a loss depends on a Variable: the path of the gradient, or where it was cut, with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flnb_telemetry.analysis.paths import Why, shortest

from flnb.autograd.explain import line_of
from flnb.autograd.variable import NAME, Variable
from flnb.dispatch import source_lines, state
from flnb.dispatch.observe import Observer, call_of, observe
from flnb.dispatch.parts import use_tape
from flnb.dispatch.table import Op, describe
from flnb.interface.tape import PARENTS, PLAN, SEQ, Node, Tape
from flnb.tensor import Tensor

__all__ = ["Why", "why"]

AGAIN = "flnb.why(lambda: <the loss>, x) computes the loss once more and says where"


def why(loss: Variable | Callable[[], Any], x: Variable) -> Why:
    """Explain why a Variable gets a gradient from a loss, or does not: the path, or where it was cut.

    Args:
        loss: the loss before its `backward`, or a function without arguments that computes it. A function is run once
            and observed: then the cause of a cut is known as well (`detach`, `no_grad`, an integer dtype, an op without
            a gradient, or that `x` is never used), with its line. Values that leave flnb and return are not followed.
        x: a leaf such as a parameter, or any Variable on the way.

    >>> import flnb
    >>> w, x = flnb.Variable([2.0]), flnb.asarray([3.0])
    >>> w.name = "w"
    >>> loss = (w * x).sum()
    >>> flnb.why(loss, w)
    a gradient arrives, by
      sum of float32[1]: loss = (w * x).sum()
      multiply of float32[1] and float32[1]: loss = (w * x).sum()
      w
    >>> flnb.why(lambda: (w.detach() * x).sum(), w).reason
    "what 'multiply' was given is detached from the tape: by .detach(), .data, or as a Tensor of the same values"
    """
    if not isinstance(x, Variable):
        raise TypeError(f"why: x must be a Variable, got {type(x).__name__}")
    if x._node is None:
        return Why(False, reason=_needs_none(x))
    if isinstance(loss, Variable):
        return _path(loss, x)
    if not callable(loss) or isinstance(loss, Tensor):
        raise TypeError(
            f"why: expected the loss as a Variable, or a function that computes it; got {type(loss).__name__}"
        )
    watch = _Watch(x)
    with observe(watch), use_tape(_Notes(watch)):
        made = loss()
    if not isinstance(made, Tensor):
        raise TypeError(f"why: the function must return the loss as a Variable, it returned {type(made).__name__}")
    if isinstance(made, Variable) and made._node is not None and made._node[SEQ] in watch.below:
        return _path(made, x)
    return watch.cut(made)


def _needs_none(x: Variable) -> str:
    if x.dtype.kind not in "fc":
        return f"it is {x._spec!r}, and only floating-point Variables have gradients"
    return (
        "it does not require grad: it was given requires_grad=False, detached, computed under no_grad(), or computed "
        "from nothing that requires grad"
    )


def _path(loss: Variable, x: Variable) -> Why:
    """The shortest path down the tape."""
    root, goal = loss._node, x._node
    if root is None:
        return Why(False, reason=f"the loss itself is not on the tape; {AGAIN}")
    nodes: dict[int, Node] = {root[SEQ]: root}

    def above(seq: int) -> list[int]:
        parents = [parent for parent in nodes[seq][PARENTS] or () if parent is not None]
        nodes.update((parent[SEQ], parent) for parent in parents)
        return [parent[SEQ] for parent in parents]

    way = shortest(root[SEQ], goal[SEQ], above)
    if way:
        return Why(True, tuple(_describe_node(nodes[seq]) for seq in way))
    if any(node[PARENTS] is None for node in nodes.values()):
        return Why(False, reason=f"the graph was walked back and freed: ask before backward; or {AGAIN}")
    return Why(False, reason=f"nothing that the loss was computed from on the tape read it; {AGAIN}")


def _describe_node(node: Node) -> str:
    if node[PLAN] is None:
        return node[NAME] or f"leaf {-node[SEQ]}"
    plan = node[PLAN]
    return f"{plan.op.name} of {describe(plan.specs)}: {line_of(node).rpartition(': ')[2] or line_of(node)}"


class _Event(NamedTuple):
    """An op that ran: its buffers by number, the user's line, and whether gradients were recorded there."""

    op: Op
    inputs: tuple[int, ...]
    output: int
    dtype: Any
    grad: bool
    line: str


class _Watch(Observer):
    """Follow values through buffers, on the tape and off it."""

    def __init__(self, x: Variable) -> None:
        self.events: list[_Event] = []
        self._buffers: list[Any] = []  # kept, so that no address is used twice
        self._numbers: dict[Any, int] = {}
        self.below = {x._node[SEQ]}
        """Sequence numbers of the nodes through which a gradient reaches x."""
        self.start = self._number(x._data)
        self.live = {self.start}
        """Their results, as buffers."""

    def after(self, op: Op, arguments: tuple[Any, ...], result: Any) -> None:
        """Note the op with its input and output buffers."""
        inputs = tuple(self._number(buffer) for buffer in call_of(op, arguments).inputs)
        output = self._number(result, fresh=True)
        self.events.append(_Event(op, inputs, output, result.dtype, state.current().grad, source_lines.caller()))

    def on_tape(self, node: Node) -> None:
        """Note that the op that ran last, or the composite that ended with it, is a node."""
        if self.events and any(parent is not None and parent[SEQ] in self.below for parent in node[PARENTS]):
            self.below.add(node[SEQ])
            self.live.add(self.events[-1].output)

    def _number(self, buffer: Any, fresh: bool = False) -> int:
        """A number for a buffer; another array around the same memory has the same one, unless an op made it."""
        address = getattr(buffer, "__array_interface__", {"data": (id(buffer), False)})["data"][0]
        place = (address, getattr(buffer, "shape", ()))
        known = self._numbers.get(id(buffer), None if fresh else self._numbers.get(place))
        if known is None:
            known = len(self._buffers)
            self._numbers[place] = known
        self._buffers.append(buffer)
        self._numbers[id(buffer)] = known
        return known

    def cut(self, loss: Tensor) -> Why:
        """The place where the values of x that went into the loss left the tape for the last time."""
        goal = self._number(loss._data)
        if goal in self.live:
            return Why(False, reason="the loss that was returned is detached from the tape: by .detach() or .data")
        lost, cuts = {goal}, []
        for event in reversed(self.events):
            if event.output not in lost:
                continue
            cuts += [event] if self.live.intersection(event.inputs) else []
            lost.update(number for number in event.inputs if number not in self.live)
        if cuts:
            first = cuts[-1]
            return Why(False, reason=_reason(first), line=first.line)
        used = [event for event in self.events if self.start in event.inputs]
        if not used:
            return Why(False, reason="no op used it")
        reason = f"{len(used)} ops used it, but nothing that they gave went into the loss"
        return Why(False, reason=reason, line=used[-1].line)


def _reason(event: _Event) -> str:
    name = event.op.name
    if not event.grad:
        return f"{name!r} ran under no_grad()"
    if event.dtype.kind not in "fc":
        return f"{name!r} gives {event.dtype.name}, and no gradient flows through integers and truth values"
    if not event.op.differentiable:
        return f"{name!r} has no gradient"
    return f"what {name!r} was given is detached from the tape: by .detach(), .data, or as a Tensor of the same values"


class _Notes(Tape):
    """A tape that notes which ops it recorded."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    def record(self, node: Node) -> Node:
        """Pass it on."""
        self._watch.on_tape(node)
        return node
