"""The op table's rows. An op is declared once, with its shape rule and the gradient of each argument.

A pull takes the cotangent and the saved values (None where not saved) and gives the argument's cotangent. It calls
public ops only, so on Tensors it computes numbers and on Variables it records a graph to differentiate again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from flnb.dispatch import state
from flnb.dispatch.plan import Plan, Spec

__all__ = ["OPS", "Op", "Pull", "describe", "shaped"]

OPS: dict[str, Op] = {}


class Pull(NamedTuple):
    """The gradient of one argument: what it reads of the saved values, and the function.

    ``uses`` names the saved values it reads: ``"0"``, ``"1"``, ... the inputs by position, ``"y"`` the output.
    The function is called as ``f(g, *inputs, y)`` for ops on the fast paths (arity 1 and 2) and as
    ``f(g, plan, *inputs, y)`` for the others, whose gradients need shapes or attributes.
    """

    uses: str
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
        arity: 1 or 2 for the fast paths, 0 for any number of tensors with attributes.
        writes_out: the method takes ``out``; False for views.
        broadcasts: inputs were broadcast, so cotangents are summed back to the inputs' shapes.
        accepts: which dtypes: "any", "numeric" (not bool), "float" (integers are cast), "integer", "bits" (integer or
            bool), "bool" (cast).
        real: complex numbers are refused.
        holomorphic: pulls are written as for real numbers, and conjugated around for complex ones; False: they are
            right for complex numbers as they are.
        unpromoted: positions of arguments that keep their own dtype (conditions, indices).
        flops: estimated floating-point operations of a plan's call.
        joint: for composites, the one pull of all arguments.
        uses: what that reads of the inputs and the output, as in `Pull`; None: all of them.
        apply: for ops on one or two tensors, the fast public function.
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
    joint: Callable[..., Any] | None = None
    uses: str | None = None
    apply: Callable[..., Any] | None = None

    decomposes: ClassVar[bool] = True
    """Of a composite: whether its body's ops may stand for it, under vmap and where its gradient is differentiated."""

    @property
    def direct(self) -> bool:
        """Of a composite: whether its joint pull is differentiated as it is, because it reads the output alone."""
        return self.uses == "y"

    def __post_init__(self) -> None:
        self.differentiable = callable(self.pulls) or any(self.pulls)
        self.planned = self.arity == 0
        self.plans: dict[Any, Plan] = {}
        self.register()

    def register(self) -> None:
        """Enter the op into the table and the states' tables."""
        if self.name in OPS:
            raise ValueError(f"an op named {self.name!r} is declared already")
        self.index = len(state.operators)
        OPS[self.name] = self
        state.operators.append(self)
        for live in list(state.live):
            live.table.append(live.bound(self))

    def _pulls(self, count: int) -> list[Pull | None]:
        pulls = [self.pulls(i) for i in range(count)] if callable(self.pulls) else list(self.pulls)
        return pulls + [None] * (count - len(pulls))

    def pulls_for(self, specs: Sequence[Any]) -> tuple[Callable[..., Any] | None, ...]:
        """The pull functions for a call on tensors of these specs."""
        pulls = [p.function if p else None for p in self._pulls(len(specs))]
        if self.holomorphic and any(isinstance(s, Spec) and s.dtype.kind == "c" for s in specs):
            return tuple(p and _conjugated(p) for p in pulls)
        return tuple(pulls)

    def saved_by(self, position: int, count: int) -> list[bool]:
        """Which of the inputs, and at the end the output, the pull of one argument reads."""
        pull = self._pulls(count)[position]
        return [pull is not None and name in pull.uses for name in (*map(str, range(count)), "y")]

    def saves_for(self, count: int) -> tuple[tuple[bool, ...], ...]:
        """For every set of arguments that need a gradient (bit i: argument i), which inputs, and the output, to save.

        Only up to two arguments are told apart; with more, everything that any pull reads is saved.
        """
        pulls = self._pulls(count)
        keep = []
        for mask in range(1 << count) if count <= 2 else (0,):
            wanted = "".join(p.uses for i, p in enumerate(pulls) if p and (count > 2 or mask >> i & 1))
            keep.append((*(str(i) in wanted for i in range(count)), "y" in wanted))
        return tuple(keep)

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def _conjugated(pull: Callable[..., Any]) -> Callable[..., Any]:
    """The pull for complex numbers of one written for real ones.

    A cotangent of z is dL/dRe z + i dL/dIm z, so that dL = Re(conj(g) dz); with y = f(z) holomorphic, that of z is
    conj(f'(z)) g, the conjugate of f'(z) conj(g).
    """
    from flnb.ops.elementwise import conj

    def pulled(g: Any, *saved: Any) -> Any:
        return conj(pull(conj(g), *saved))

    return pulled


def shaped(rule: Callable[..., tuple[int, ...]] = lambda shape, *_: shape) -> Callable[..., Any]:
    """The shape rule ``rule(shape of the first tensor, *attributes)``; the dtype stays."""
    return lambda op, specs, attributes: (rule(specs[0].shape, *attributes), specs[0].dtype)


def describe(specs: Sequence[Any]) -> str:
    """Specs for an error message: ``float32[2,3] and float32[4]``."""
    return " and ".join(repr(s) if isinstance(s, Spec) else s.__name__ for s in specs)
