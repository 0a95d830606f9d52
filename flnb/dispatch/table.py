"""The op table: each op is declared once, with its shape rule and the gradient of each argument.

The gradient of an argument is a function called *pull*. Its arguments are the cotangent of the op's result (the
gradient of the loss with respect to the result), the plan, and the values that the op saved (None for values that the
pull does not read). It returns the cotangent of the argument. A pull calls public ops only: on Tensors it computes
numbers, on Variables it records a graph that can be differentiated again.
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

OPS: dict[str, Op] = {}


class Pull(NamedTuple):
    """The gradient of one argument: a function ``f(g, plan, *inputs, y)``, and the saved values that it reads.

    ``reads`` has the positions of the inputs that the function reads, and ``"y"`` if it reads the output. All other
    arguments are None.
    """

    reads: Collection[Any]
    function: Callable[..., Any]


def _one_each(plan: Plan) -> int:
    """Return the floating-point operations of an op: one per element of the result if the op is elementwise, else 0."""
    return plan.spec.size if plan.op.family == "elementwise" else 0


@dataclass(eq=False, repr=False)
class Op:
    """An op of the op table: name, shape rule and gradients.

    Args:
        name: the op's name in the array API, which is also the name of the backend's method.
        family: the kind of op, which determines its colour in the dashboard: elementwise, matmul, reduction, movement,
            norm, memory, optimizer.
        infer: the shape rule ``infer(op, specs, attributes) -> (shape, dtype)``; raises the error for wrong inputs.
        pulls: for each input its `Pull` (gradient function), or None for an input without gradient; or a function that
            returns the `Pull` for an input's position.
        arity: the number of input tensors; 0 if the op takes any number of them, in which case the last argument of a
            call is a tuple of attributes.
        writes_out: whether the backend's method takes ``out``; False if it returns a view.
        broadcasts: whether inputs are broadcast, so that their gradients are summed back to their shapes.
        accepts: the dtypes of inputs: "any", "numeric" (not bool), "float" (integers are cast), "integer", "bits"
            (integer or bool), "bool" (others are cast).
        real: whether complex inputs are an error.
        holomorphic: whether the gradient functions are written for real numbers and must be conjugated for complex
            numbers; False if they are already right for complex numbers.
        unpromoted: positions of inputs that keep their own dtype, such as conditions and indices.
        flops: estimates the floating-point operations of a call from its plan.
        body: for a composite op, the function that calls the ops of which it consists (`flnb.ops.composite`).
        joint: for a composite op, the function that returns the gradients of all inputs together.
        reads: the inputs that ``joint`` reads, and ``"y"`` if it reads the output, as in `Pull`; None for all of them.
        separately: for a `Combined` op, the function that calls the ops that it combines.
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
    separately: Callable[..., Any] | None = None
    index: int = -1
    gradient: Any = None

    traceable: ClassVar[bool] = True
    """Whether the op's pulls only call ops, so that one trace of a pull is valid for all nodes of a plan."""
    decomposes: ClassVar[bool] = True
    """Whether the ops of a composite's body may run in its place: in vmap, or if its gradient is differentiated."""

    @property
    def direct(self) -> bool:
        """Whether a composite's gradient reads the output alone, so that the gradient can itself be differentiated."""
        return self.reads == {"y"}

    def __post_init__(self) -> None:
        self.differentiable = callable(self.pulls) or any(self.pulls) or self.joint is not None
        self.plans: dict[Any, Plan] = {}
        self.entries = Entries(self)
        self.register()

    def register(self) -> None:
        """Add this op to the op table and to every state's table; a composite's gradient becomes a separate op."""
        if self.name in OPS:
            raise ValueError(f"an op named {self.name!r} is declared already")
        OPS[self.name] = self
        self.index = state.add_operator(self)
        if self.body is not None:
            self.gradient = JointPull(f"{self.name}_pull", self.family, body=self.joint, joint=self.joint)

    def key(self, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        """Return the key of a call's plan in the dict `plans`: specs and attributes, or the spec of a single tensor."""
        return (*specs, attributes) if not self.arity else specs[0] if len(specs) == 1 else specs

    def _pulls(self, count: int) -> list[Pull | None]:
        """Return the gradient functions of the first ``count`` inputs, None for an input without gradient."""
        pulls = [self.pulls(i) for i in range(count)] if callable(self.pulls) else list(self.pulls[:count])
        return pulls + [None] * (count - len(pulls))

    def pulls_for(self, specs: Sequence[Any]) -> tuple[Callable[..., Any] | None, ...]:
        """Return each argument's gradient function (or None) for a call on tensors of these specs."""
        return tuple(p and self._for(specs, p.function) for p in self._pulls(len(specs)))

    def joint_for(self, specs: Sequence[Any]) -> Callable[..., Any] | None:
        """Return the joint gradient function of a composite for tensors of these specs; None for other ops."""
        return self.joint and self._for(specs, self.joint)

    def _for(self, specs: Sequence[Any], pull: Callable[..., Any]) -> Callable[..., Any]:
        """Return a gradient function written for real numbers, adapted to complex numbers if a spec is complex."""
        has_complex = any(isinstance(s, Spec) and s.dtype.kind == "c" for s in specs)
        return _conjugated(pull) if self.holomorphic and has_complex else pull

    def saved(self, mask: int, count: int) -> tuple[bool, ...]:
        """Return a bool for each input and a last one for the output: whether it must be saved for gradients.

        Bit i of ``mask`` says whether the gradient of input i is needed; ``count`` is the number of inputs. For a
        composite, the result does not depend on the mask.
        """
        if self.joint is not None:
            read = {*range(count), "y"} if self.reads is None else self.reads
        else:
            read = {r for i, pull in enumerate(self._pulls(count)) if pull and mask >> i & 1 for r in pull.reads}
        return tuple(i in read for i in (*range(count), "y"))

    def outline(self, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Plan:
        """Return the plan of a composite, made by running its body on tensors without values.

        Raises:
            Untraceable: which ops run depends on values.
        """
        trace = Tracing()
        with use_interpreter(trace), state.recording(False):
            result, _ = self.body(*map(trace.input, specs), *attributes)  # type: ignore[misc]
        trace.steps.clear()  # its tensors refer to the trace: no cycle is left behind
        return self.complete(Plan(self, specs, attributes, result._spec))

    def complete(self, plan: Plan) -> Plan:
        """Store in a composite's plan which values are saved and which primitives are called; return the plan."""
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


@dataclass(eq=False, repr=False)
class Combined(Op):
    """Public ops that a backend may compute in one call, such as a convolution and the addition of its bias.

    The backend's method is optional. It is called for tensors of one dtype whose shapes the shape rule accepts.
    Otherwise, and for interpreters, ``separately(*operands, *attributes)`` calls the ops, as if the user had done so:
    each has an event and a node of its own. ``pulls`` are the gradient functions of the combined call.

    For an op that makes a tensor from no tensor, ``separately(spec, *arguments)`` is called, with the arguments of
    `flnb.dispatch.crossing.create`.
    """

    primitives: frozenset[str] = frozenset()
    """The names of the ops, for an op that creates a tensor; for others, a plan has those of a trace."""

    def combines(self, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> bool:
        """Return whether a backend's method may be called for these operands."""
        specs: tuple[Any, ...] = tuple([getattr(x, "_spec", None) for x in operands])
        if any(s is None or s.dtype is not specs[0].dtype or s.kind is not specs[0].kind for s in specs):
            return False
        try:
            self.infer(self, specs, attributes)
        except (TypeError, ValueError):  # the ops' own errors are raised instead
            return False
        return bool(specs[0].dtype.kind == "f")

    def complete(self, plan: Plan) -> Plan:
        """Store in a plan the names of the primitives that the combined call replaces; return the plan."""
        if self.primitives:
            plan.primitives = self.primitives
            return plan
        trace = Tracing()
        with use_interpreter(trace), state.recording(False):
            self.separately(*map(trace.input, plan.specs), *plan.attributes)  # type: ignore[misc]
        plan.primitives = frozenset([step.plan.op.name for step in trace.steps])
        trace.steps.clear()
        return plan


def not_inferred(op: Op, *_: Any) -> Any:
    """Raise a TypeError: the composite ``op`` has no shape rule; its body must run to find the result's shape."""
    raise TypeError(f"{op.name} is a composite without a shape rule: call it on tensors to find its result's shape")


@dataclass(eq=False, repr=False)
class JointPull(Op):
    """The gradient of a composite op as a separate op; for the composite "gelu", the backend's method is ``gelu_pull``.

    The method is optional. Without it, the gradient is computed op by op.
    """

    infer: Callable[..., Any] = not_inferred

    def register(self) -> None:
        """Add this op to the tables of all states, but not to the op table: it is never called by its name."""
        self.index = state.add_operator(self)


@dataclass(eq=False, repr=False)
class Update(JointPull):
    """An op that updates several tensors in place in one call of a backend's method, such as a step of Adam.

    Without such a method, the caller runs the ops named in ``primitives``, with the same result. It also does so if a
    subclass of the backend overrides one of these ops but not the update.
    """

    primitives: frozenset[str] = frozenset()
    reshapes: bool = False
    """Whether a tensor that is read may have another shape than the one that is written, with as many elements."""


def _conjugated(pull: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a gradient function for real numbers to one for complex numbers.

    The cotangent of z is dL/dRe z + i dL/dIm z, so that dL = Re(conj(g) dz). For a holomorphic y = f(z) it is
    conj(f'(z)) g, which is the conjugate of the real rule f'(z) g applied to conj(g).
    """
    conj = OPS["conj"].entries[1, ""]

    def pulled(g: Any, plan: Any, *saved: Any) -> Any:
        found = pull(conj(g), plan, *saved)
        return [x if x is None else conj(x) for x in found] if isinstance(found, (tuple, list)) else conj(found)

    return pulled


def shaped(rule: Callable[..., tuple[int, ...]] = lambda shape, *_: shape) -> Callable[..., Any]:
    """Return a shape rule: the shape is ``rule(first shape, *attributes)``, the dtype that of the first tensor.

    The first shape is the shape of the first tensor.
    """
    return lambda op, specs, attributes: (rule(specs[0].shape, *attributes), specs[0].dtype)


def named(function: Callable[..., Any], op: Op) -> Callable[..., Any]:
    """Set a public function's name to that of its op."""
    function.__name__ = function.__qualname__ = op.name
    function.__module__ = "flnb.ops"
    return function


def describe(specs: Sequence[Any]) -> str:
    """Return specs as text for an error message: ``float32[2,3] and float32[4]``."""
    return " and ".join(repr(s) if isinstance(s, Spec) else s.__name__ for s in specs)
