"""Traces of gradient functions (pulls), which `flnb.autograd.compiled_pulls` converts to functions of buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from flnb.dispatch import state
from flnb.dispatch.failure import Untraceable
from flnb.dispatch.interpreter import use_interpreter
from flnb.dispatch.plan import Plan, Spec
from flnb.dispatch.promotion import find_plan
from flnb.dispatch.tracing import Traced, Tracing
from flnb.interface.tape import SAVED
from flnb.ops.movement import sum_to

__all__ = ["Branch", "Number", "branches_of"]

LONGEST = 32
"""The largest number of ops in a compiled pull; for longer pulls, the overhead of public ops does not matter."""


class Number:
    """Placeholder for a Python number saved by a node, while the ops of a gradient function are traced.

    The number differs from node to node, so the generated text must not contain its value: a gradient function can only
    pass the placeholder to an op.

    Args:
        name: the expression for the number in the generated text.
        kind: the number's type, float or int.
    """

    def __init__(self, name: str, kind: type) -> None:
        self.name, self.kind = name, kind

    def _unknown(self, *_: Any) -> NoReturn:
        raise Untraceable

    __bool__ = __eq__ = __ne__ = _unknown  # else it would answer of itself
    __hash__ = None  # type: ignore[assignment]


class PullTracing(Tracing):
    """Traces the ops that a gradient function calls, by running it on tensors without values.

    The numbers that a node saved are placeholders (`Number`), too. A gradient function that creates a tensor, for
    example by `zeros`, cannot be traced.
    """

    def apply(self, op: Any, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        if len(self.steps) > LONGEST:
            raise Untraceable
        if not any(isinstance(x, Number) for x in operands):
            return super().apply(op, operands, attributes)
        if not all(isinstance(x, (Traced, Number, float, int)) for x in operands):
            raise Untraceable
        specs = tuple(
            x._spec if isinstance(x, Traced) else x.kind if isinstance(x, Number) else type(x) for x in operands
        )
        if len({s.dtype for s in specs if isinstance(s, Spec)}) > 1 or op.accepts in ("integer", "bits", "bool"):
            raise Untraceable  # a conversion would have to come first
        return self.add(find_plan(op, specs, attributes, state.current()), operands)

    def create(self, *_: Any) -> NoReturn:
        raise Untraceable


class Branch(NamedTuple):
    """A part of a compiled gradient function: it computes the gradients of one input of the op, of two, or of all.

    Attributes:
        condition: the Python expression that is true if the part runs; "" means always.
        trace: the ops to run, in order.
        whole: lines of text that call the backend's method for a composite's gradient, in place of the ops.
        inputs: the tensors that the ops read, each with the expression for its buffer.
        given: pairs of an input's position and the traced tensor that is its gradient.
        last: the Python expression that is true if this part is the last to read the node; "" means never.
    """

    condition: str
    trace: PullTracing
    whole: tuple[str, ...]
    inputs: list[tuple[Traced, str]]
    given: list[tuple[int, Traced]]
    last: str


def branches_of(plan: Plan, saved: Sequence[Any]) -> list[Branch]:
    """Trace the gradient functions of a plan.

    Args:
        plan: the plan (op, shapes, attributes).
        saved: the values that a node of this plan saved; only their dtypes and shapes are used.

    Raises:
        Untraceable: a gradient function does more than call ops.
    """
    return _joint(plan, saved) if plan.joint is not None else _single(plan)


def _single(plan: Plan) -> list[Branch]:
    """Trace the gradient function of each input of an op; if exactly two need gradients, also both in one branch."""
    wanted = [i for i, pull in enumerate(plan.pulls) if pull is not None and isinstance(plan.specs[i], Spec)]
    branches = [
        _traced(
            plan, [i], f"p{i} is not None", " and ".join([*(f"p{j} is None" for j in wanted if j > i), "not retain"])
        )
        for i in wanted
    ]
    if len(wanted) == 2:
        a, b = wanted
        together = f"p{a} is not None and p{b} is not None and p{a} is not p{b}"
        branches.insert(0, _traced(plan, wanted, together, "not retain"))
    return branches


def _traced(plan: Plan, places: list[int], condition: str, last: str) -> Branch:
    """Trace the gradient functions of the inputs at the positions ``places``; returns the branch that runs them.

    ``condition`` and ``last`` are attributes of this `Branch`.
    """
    trace = PullTracing()
    g = trace.input(plan.spec)
    inputs: list[tuple[Traced, str]] = [(g, "g")]
    given = []
    for i in places:
        saved = _inputs(trace, (*plan.specs, plan.spec), plan.op.saved(1 << i, len(plan.specs)), inputs)
        pull: Any = plan.pulls[i]
        if not pull.__module__.startswith("flnb."):
            raise Untraceable  # a user's function is called for every node
        with use_interpreter(trace):
            result = pull(g, plan, *saved)
            shape = plan.shrinks[i]
            if shape is not None:
                result = sum_to(result, shape)
        given.append((i, _checked(result, plan.specs[i])))
    return Branch(condition, trace, (), inputs, given, last)


def _joint(plan: Plan, saved: Sequence[Any]) -> list[Branch]:
    """Trace the gradient function of a composite op, or write a call of the backend's method for it if there is one."""
    trace = PullTracing()
    g = trace.input(plan.spec)
    inputs = [(g, "g")]
    specs = [None if x is None else getattr(x, "_spec", type(x)) for x in saved]
    values = _inputs(trace, specs, [s is not None for s in specs], inputs)
    gradient = plan.op.gradient
    if gradient is not None and state.current().offers(plan, gradient.index):  # where not to be called: by public ops
        results = [(i, trace.input(spec)) for i, spec in enumerate(plan.specs) if spec.dtype.kind not in "biu"]
        data = ", ".join("None" if s is None else f"node[{SAVED + i}]._data" for i, s in enumerate(specs))
        wanted = ", ".join(f"p{i} is not None" for i in range(len(plan.specs)))
        names = ", ".join(f"r{i}" for i in range(len(plan.specs)))
        lines = (
            f"given = pull_whole(plan, here, node[2], g, ({data},), ({wanted},))",
            "if given is None: return True",
            f"{names}, = given",
        )
        return [Branch("", trace, lines, [(x, f"r{i}") for i, x in results], results, "not retain")]
    with use_interpreter(trace):
        pulled = plan.joint(g, plan, *values)  # type: ignore[misc]
    given = [(i, _checked(x, plan.specs[i])) for i, x in enumerate(pulled) if x is not None]
    return [Branch("", trace, (), inputs, given, "not retain")]


def _inputs(trace: Tracing, specs: Sequence[Any], read: Sequence[bool], inputs: list[tuple[Traced, str]]) -> list[Any]:
    """Make placeholders for the saved values of a node: traced tensors and `Number` objects; None for unread values.

    The traced tensors are added to ``inputs``, each with the expression that reads its buffer from the node.

    Args:
        trace: the trace to which the tensors belong.
        specs: for each saved value its spec, or its type if it is a number.
        read: for each saved value whether the gradient function reads it.
        inputs: the list to add to.
    """
    values: list[Any] = []
    for i, (spec, wanted) in enumerate(zip(specs, read, strict=True)):
        if not wanted:
            values.append(None)
        elif isinstance(spec, Spec):
            values.append(trace.input(spec))
            inputs.append((values[-1], f"node[{SAVED + i}]._data"))
        elif spec in (float, int):
            values.append(Number(f"node[{SAVED + i}]", spec))
        else:
            raise Untraceable
    return values


def _checked(result: Any, spec: Any) -> Traced:
    """Return ``result``, a gradient, if its shape and dtype are those of ``spec``; else raise `Untraceable`."""
    if type(result) is not Traced or result._spec is not spec:
        raise Untraceable
    return result
