"""The op table's rows. An op is declared once, with its shape rule and the gradient of each argument.

A pull takes the cotangent and the saved values (None where not saved) and gives the argument's cotangent. It calls
public ops only, so on Tensors it computes numbers and on Variables it records a graph to differentiate again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb.dispatch import state
from flnb.dispatch.plan import Plan, Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["OPS", "Op", "Pull"]

OPS: dict[str, Op] = {}


class Pull:
    """The gradient of one argument: what it reads of the saved values, and the function.

    ``uses`` names the saved values it reads: ``"0"``, ``"1"``, ... the inputs by position, ``"y"`` the output.
    The function is called as ``f(g, *inputs, y)`` for elementwise ops and ``f(g, plan, *inputs, y)`` where
    ``planned``, for ops whose gradient needs shapes or attributes.
    """

    __slots__ = ("function", "planned", "uses")

    def __init__(self, uses: str, function: Callable[..., Any], planned: bool = False) -> None:
        self.uses = uses
        self.function = function
        self.planned = planned


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
        accepts: which dtypes: "any", "numeric" (not bool), "float" (integers are cast), "integer", "bool" (cast).
        unpromoted: positions of arguments that keep their own dtype (conditions, indices).
        flops: estimated floating-point operations of a plan.
    """

    joint: Callable[..., Any] | None = None
    """For composites, the one pull of all arguments."""
    apply: Callable[..., Any] | None = None
    """For ops on one or two tensors, the fast public function."""

    def __init__(
        self,
        name: str,
        family: str,
        infer: Callable[..., Any],
        pulls: Sequence[Pull | None] | Callable[[int], Pull | None] = (),
        arity: int = 0,
        writes_out: bool = True,
        broadcasts: bool = False,
        accepts: str = "any",
        unpromoted: Sequence[int] = (),
        flops: Callable[[Plan], int] | None = None,
    ) -> None:
        if name in OPS:
            raise ValueError(f"an op named {name!r} is declared already")
        self.name = name
        self.family = family
        self.infer = infer
        self.pulls = pulls
        self.arity = arity
        self.writes_out = writes_out
        self.broadcasts = broadcasts
        self.accepts = accepts
        self.unpromoted = frozenset(unpromoted)
        self._flops = flops
        self.differentiable = callable(pulls) or any(pulls)
        self.planned = callable(pulls) or any(p.planned for p in pulls if p)
        self.plans: dict[Any, Plan] = {}
        self.index = len(state.operators)
        OPS[name] = self
        state.operators.append(self)
        for live in list(state.live):
            live.table.append(state.bind(live.backend, self))

    def flops(self, plan: Plan) -> int:
        """Floating-point operations of one call."""
        return self._flops(plan) if self._flops else (plan.spec.size if self.family == "elementwise" else 0)

    def _pulls(self, count: int) -> list[Pull | None]:
        if callable(self.pulls):
            return [self.pulls(i) for i in range(count)]
        return [*self.pulls, *[None] * (count - len(self.pulls))]

    def pulls_for(self, count: int) -> tuple[Callable[..., Any] | None, ...]:
        """The pull functions for a call with this many tensors."""
        return tuple(p.function if p else None for p in self._pulls(count))

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


def describe(specs: Sequence[Any]) -> str:
    """Specs for an error message: ``float32[2,3] and float32[4]``."""
    return " and ".join(repr(s) if isinstance(s, Spec) else s.__name__ for s in specs)
