"""The op table's rows. An op is declared once, with its shape rule and the gradient of each argument.

A pull takes the cotangent, the plan and the saved values (None where not saved) and returns the argument's cotangent.
It calls public ops only, so on Tensors it computes numbers and on Variables it records a graph to differentiate again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from flnb.dispatch import state
from flnb.dispatch.crossing import Entries
from flnb.dispatch.interpreter import use_interpreter
from flnb.dispatch.plan import Plan, Spec
from flnb.dispatch.tracing import Tracing

__all__ = ["OPS", "Op", "Pull", "describe", "named", "shaped"]

OPS: dict[str, Op] = {}


class Pull(NamedTuple):
    """The gradient of one argument: the saved values it reads, and the function ``f(g, plan, *inputs, y)``.

    ``reads`` holds positions of inputs, and ``"y"`` for the output; the function gets None for all others.
    """

    reads: Collection[Any]
    function: Callable[..., Any]


def _one_each(plan: Plan) -> int:
    return plan.spec.size if plan.op.family == "elementwise" else 0


@dataclass(eq=False, repr=False)
class Op:
    """One row of the table.

    Args:
        name: array-API name; the backend's method has the same.
        family: colour in the dashboard: elementwise, matmul, reduction, movement, norm, memory, optimizer.
        infer: ``infer(op, specs, attributes) -> (shape, dtype)``; raises the error for wrong shapes or dtypes.
        pulls: one `Pull` per argument, None where there is no gradient; or a function of the argument's position.
        arity: how many tensors; 0 for any number of them, with a tuple of attributes.
        writes_out: the method takes ``out``; False for views.
        broadcasts: inputs were broadcast, so cotangents are summed back to the inputs' shapes.
        accepts: which dtypes: "any", "numeric" (not bool), "float" (integers are cast), "integer", "bits" (integer or
            bool), "bool" (cast).
        real: complex numbers are refused.
        holomorphic: pulls are written as for real numbers, and conjugated around for complex ones; False: they are
            right for complex numbers as they are.
        unpromoted: positions of arguments that keep their own dtype (conditions, indices).
        flops: estimated floating-point operations of a plan's call.
        body: of a composite, the ops it consists of (`flnb.ops.composite`).
        joint: of a composite, the one pull of all arguments, which gets the body's kept values after the inputs.
        reads: what that reads of the inputs and the output, as in `Pull`; None: all of them.
    """

    name: str
    family: str
    infer: Callable[..., Any]
    pulls: Sequence[Pull | None] | Callable[[int], Pull | None] = ()
    arity: int = 0
    writes_out: bool = True
    broadcasts: bool = False
    accepts: str = "any"
    real: bool = False
    holomorphic: bool = True
    unpromoted: Sequence[int] = ()
    flops: Callable[[Plan], int] = _one_each
    body: Callable[..., Any] | None = None
    joint: Callable[..., Any] | None = None
    reads: Collection[Any] | None = None
    index: int = -1
    gradient: Any = None

    traceable: ClassVar[bool] = True
    """Whether its pulls consist of ops alone, so that a trace of them stands for all of its nodes."""
    decomposes: ClassVar[bool] = True
    """Of a composite: whether its body's ops may stand for it, under vmap and where its gradient is differentiated."""

    @property
    def direct(self) -> bool:
        """Whether a composite's joint pull is differentiated as it is, because it reads the output alone."""
        return self.reads == {"y"}

    def __post_init__(self) -> None:
        self.differentiable = callable(self.pulls) or any(self.pulls) or self.joint is not None
        self.plans: dict[Any, Plan] = {}
        self.entries = Entries(self)
        self.register()

    def register(self) -> None:
        """Enter the op into the table and the states' tables; a composite's joint pull is a row of its own there."""
        if self.name in OPS:
            raise ValueError(f"an op named {self.name!r} is declared already")
        OPS[self.name] = self
        self.index = state.add_operator(self)
        if self.body is not None:
            self.gradient = JointPull(f"{self.name}_pull", self.family, body=self.joint, joint=self.joint)

    def key(self, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        """The key of a call's plan: the specs and the attributes, or the spec alone where that suffices."""
        return (*specs, attributes) if not self.arity else specs[0] if len(specs) == 1 else specs

    def _pulls(self, count: int) -> list[Pull | None]:
        pulls = [self.pulls(i) for i in range(count)] if callable(self.pulls) else list(self.pulls)
        return pulls + [None] * (count - len(pulls))

    def pulls_for(self, specs: Sequence[Any]) -> tuple[Callable[..., Any] | None, ...]:
        """The pull functions for a call on tensors of these specs."""
        return tuple(p and self._for(specs, p.function) for p in self._pulls(len(specs)))

    def joint_for(self, specs: Sequence[Any]) -> Callable[..., Any] | None:
        """A composite's joint pull for a call on tensors of these specs."""
        return self.joint and self._for(specs, self.joint)

    def _for(self, specs: Sequence[Any], pull: Callable[..., Any]) -> Callable[..., Any]:
        has_complex = any(isinstance(s, Spec) and s.dtype.kind == "c" for s in specs)
        return _conjugated(pull) if self.holomorphic and has_complex else pull

    def saved(self, mask: int, count: int) -> tuple[bool, ...]:
        """Which of the inputs, and at the end whether the output, are read by the pulls of a set of arguments.

        Bit i of ``mask`` is argument i. A composite's joint pull reads the same for every set.
        """
        if self.joint is not None:
            read = {*range(count), "y"} if self.reads is None else self.reads
        else:
            read = {r for i, pull in enumerate(self._pulls(count)) if pull and mask >> i & 1 for r in pull.reads}
        return tuple(i in read for i in (*range(count), "y"))

    def outline(self, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Plan:
        """The plan of a composite, from a run of its body without values.

        Raises:
            Untraceable: the body depends on values.
        """
        trace = Tracing()
        with use_interpreter(trace), state.recording(False):
            result, _ = self.body(*map(trace.input, specs), *attributes)  # type: ignore[misc]
        trace.steps.clear()  # its tensors refer to the trace: no cycle is left behind
        return self.complete(Plan(self, specs, attributes, result._spec))

    def complete(self, plan: Plan) -> Plan:
        """Find the specs that a composite keeps for its gradient, and the primitives that it consists of."""
        trace = Tracing()
        inputs = [trace.input(spec) for spec in plan.specs]
        with use_interpreter(trace), state.recording(False):
            result, kept = self.body(*inputs, *plan.attributes)  # type: ignore[misc]
            *reads, reads_result = plan.saves[-1]
            saved = [x if read else None for x, read in zip(inputs, reads, strict=True)]
            last = result if reads_result else None
            self.joint(trace.input(result._spec), plan, *saved, *kept, last)  # type: ignore[misc]
        plan.kept = tuple([x._spec for x in kept])
        plan.weight = max(spec.nbytes for spec in (plan.spec, *plan.kept))
        plan.primitives = frozenset([step.plan.op.name for step in trace.steps])
        trace.steps.clear()
        return plan

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def not_inferred(op: Op, *_: Any) -> Any:
    raise TypeError(f"{op.name} is a composite: its shape is what its body gives")


@dataclass(eq=False, repr=False)
class JointPull(Op):
    """The gradient of a composite as a row, for which a backend may have a method: ``NAME_pull``."""

    infer: Callable[..., Any] = not_inferred

    def register(self) -> None:
        """Add it to the states' tables alone: it is never called by name."""
        self.index = state.add_operator(self)


def _conjugated(pull: Callable[..., Any]) -> Callable[..., Any]:
    """The pull for complex numbers made from one written for real ones.

    A cotangent of z is dL/dRe z + i dL/dIm z, so that dL = Re(conj(g) dz); with y = f(z) holomorphic, that of z is
    conj(f'(z)) g, the conjugate of f'(z) conj(g).
    """
    conj = OPS["conj"].entries[1, ""]

    def pulled(g: Any, plan: Any, *saved: Any) -> Any:
        found = pull(conj(g), plan, *saved)
        return [x if x is None else conj(x) for x in found] if isinstance(found, (tuple, list)) else conj(found)

    return pulled


def shaped(rule: Callable[..., tuple[int, ...]] = lambda shape, *_: shape) -> Callable[..., Any]:
    """Make the shape rule ``rule(shape of the first tensor, *attributes)``; the dtype stays."""
    return lambda op, specs, attributes: (rule(specs[0].shape, *attributes), specs[0].dtype)


def named(function: Callable[..., Any], op: Op) -> Callable[..., Any]:
    """Name a public function after its op."""
    function.__name__ = function.__qualname__ = op.name
    function.__module__ = "flnb.ops"
    return function


def describe(specs: Sequence[Any]) -> str:
    """Specs as text for an error message: ``float32[2,3] and float32[4]``."""
    return " and ".join(repr(s) if isinstance(s, Spec) else s.__name__ for s in specs)
