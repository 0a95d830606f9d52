"""`flnb.why`: the path of the gradient from a loss to a Variable, or where the path is cut."""

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
    """Explain why a gradient flows from a loss to a Variable, or where its path is cut.

    Args:
        loss: the loss, before its ``backward`` is called; or a function without arguments that computes the loss. A
            function is called once, and its ops are observed. Then the result also has the line at which the path is
            cut, and the reason: ``detach``, ``no_grad``, an integer dtype, an op without a gradient, or that ``x`` was
            not used. Values that are converted to NumPy and back are not followed.
        x: a leaf such as a parameter, or any Variable from which the loss was computed.

    Returns:
        A `Why` with the path of the gradient from the loss to ``x``, or with the reason why there is none.

    Raises:
        TypeError: ``x`` is not a Variable, or ``loss`` is neither a Variable nor a function that returns one.

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
    """Return the reason why a Variable that is not on the tape gets no gradient: its dtype, or requires_grad."""
    if x.dtype.kind not in "fc":
        return f"it is {x._spec!r}, and only floating-point Variables have gradients"
    return (
        "it does not require grad: it was given requires_grad=False, detached, computed under no_grad(), or computed "
        "from nothing that requires grad"
    )


def _path(loss: Variable, x: Variable) -> Why:
    """Return a `Why` with the shortest path on the tape from a loss to ``x``.

    If there is no path, the `Why` only says that the tape has none, not which line has cut it.
    """
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
        return Why(False, reason=f"the graph was freed by a backward: call why before it; or {AGAIN}")
    return Why(False, reason=f"nothing that the loss was computed from on the tape read it; {AGAIN}")


def _describe_node(node: Node) -> str:
    """Describe a node in one line: the op, its inputs' shapes and its source line; or a leaf's name."""
    if node[PLAN] is None:
        return node[NAME] or f"leaf {-node[SEQ]}"
    plan = node[PLAN]
    return f"{plan.op.name} of {describe(plan.specs)}: {line_of(node).rpartition(': ')[2] or line_of(node)}"


class _Event(NamedTuple):
    """An op that ran while the loss was computed.

    Attributes:
        inputs: numbers of the buffers that the op read (see `_Watch`).
        output: number of the buffer that the op wrote.
        dtype: the dtype of the result.
        grad: whether gradients were recorded when the op ran.
        line: the line of the user's program that called the op.
    """

    op: Op
    inputs: tuple[int, ...]
    output: int
    dtype: Any
    grad: bool
    line: str


class _Watch(Observer):
    """Follows a Variable's values from op to op through their buffers, on and off the tape.

    Buffers are numbered in the order in which they are first seen.

    Attributes:
        events: the ops that ran, in order.
        below: sequence numbers of the nodes from which a gradient flows to the Variable.
        live: numbers of the buffers that hold these nodes' results.
        start: number of the Variable's own buffer.
    """

    def __init__(self, x: Variable) -> None:
        self.events: list[_Event] = []
        self._buffers: list[Any] = []  # kept, so that no address is used twice
        self._numbers: dict[Any, int] = {}
        self.below = {x._node[SEQ]}
        self.start = self._number(x._data)
        self.live = {self.start}

    def after(self, op: Op, arguments: tuple[Any, ...], result: Any) -> None:
        """Append an op, which has just run, to ``events``."""
        inputs = tuple(self._number(buffer) for buffer in call_of(op, arguments).inputs)
        output = self._number(result, fresh=True)
        self.events.append(_Event(op, inputs, output, result.dtype, state.current().grad, source_lines.caller()))

    def on_tape(self, node: Node) -> None:
        """Store that the last op made ``node``, if a gradient flows from this node to the Variable."""
        if self.events and any(parent is not None and parent[SEQ] in self.below for parent in node[PARENTS]):
            self.below.add(node[SEQ])
            self.live.add(self.events[-1].output)

    def _number(self, buffer: Any, fresh: bool = False) -> int:
        """Return a buffer's number, shared by arrays on the same memory; with ``fresh``, the buffer gets a new one."""
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
        """Explain at which op the path from the Variable to the loss is cut: an op that read values without a node."""
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
    """Return the reason why no gradient flows back through an op that read the Variable's values."""
    name = event.op.name
    if not event.grad:
        return f"{name!r} ran under no_grad()"
    if event.dtype.kind not in "fc":
        return f"{name!r} gives {event.dtype.name}, and no gradient flows through integers and truth values"
    if not event.op.differentiable:
        return f"{name!r} has no gradient"
    return f"what {name!r} was given is detached from the tape: by .detach(), .data, or as a Tensor of the same values"


class _Notes(Tape):
    """A tape that records like the default one, and also passes each new node to a `_Watch`."""

    def __init__(self, watch: _Watch) -> None:
        self._watch = watch

    def record(self, node: Node) -> Node:
        self._watch.on_tape(node)
        return node
