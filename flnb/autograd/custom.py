"""`custom_op`: makes an op (one node on the tape) from a user's function and a gradient that the user defines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from inspect import CO_VARARGS
from time import perf_counter as clock
from typing import Any

from flnb_telemetry import bus

from flnb.autograd.batched import rebatch, unbatch
from flnb.autograd.explain import defined_at
from flnb.autograd.tape import grad_of
from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.plan import Plan
from flnb.dispatch.source_lines import with_own_lines
from flnb.dispatch.table import Op, Pull, not_inferred
from flnb.ops.composite import Composite
from flnb.ops.creation import asarray, zeros_like
from flnb.ops.movement import stack
from flnb.tensor import Tensor


class GradientRuleError(RuntimeError):
    """Raised if a custom op's vjp or jvp returns an object that cannot be a gradient."""


class CustomOp(Composite):
    """An op made by `custom_op`: call it with tensors, and with attributes by keyword.

    Attributes:
        forward: the user's function.
        vjp, jvp: the functions set by `def_vjp` and `def_jvp`; None if not set.
        arguments: names of the function's parameters that are tensors.
        keywords: names of its keyword-only parameters, the attributes.
        takes_any: whether the function takes any number of tensors, as ``*tensors``.
    """

    traceable = decomposes = False

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__(forward.__name__, "elementwise", self._forward, self._pull)
        self.forward = forward
        self.vjp: Callable[..., Any] | None = None
        self.jvp: Callable[..., Any] | None = None
        self._parts: list[_Transposed] = []
        self.holomorphic = False  # a user's rule is right for complex numbers as it is
        code = forward.__code__
        self.arguments = code.co_varnames[: code.co_argcount]
        self.takes_any = bool(code.co_flags & CO_VARARGS)
        self.keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        self.__doc__ = forward.__doc__
        self.family = "custom"

    def register(self) -> None:
        """Do nothing: custom ops are not in the op table, so a notebook cell that defines one can run again."""

    def __call__(self, *tensors: Any, attributes: tuple[Any, ...] | None = None, **given: Any) -> Any:
        if attributes is not None:  # as composites are called
            return dispatch.call(self, tensors, attributes)
        if len(tensors) > len(self.arguments) and not self.takes_any:
            raise TypeError(
                f"{self.name}: takes {len(self.arguments)} tensors ({', '.join(self.arguments)}), got {len(tensors)}; "
                f"give attributes by keyword"
            )
        defaults = self.forward.__kwdefaults__ or {}
        try:
            values = tuple(given.pop(k) if k in given else defaults[k] for k in self.keywords)
        except KeyError as missing:
            raise TypeError(f"{self.name}: give the attribute {missing} as a keyword argument; it is missing") from None
        if given:
            raise TypeError(f"{self.name}: no attribute named {next(iter(given))!r}; it has {list(self.keywords)}")
        for keyword, value in zip(self.keywords, values, strict=True):
            if type(value).__hash__ is None:
                raise TypeError(
                    f"{self.name}: the attribute {keyword} is a {type(value).__name__}, which is not hashable; pass "
                    f"something immutable, such as a tuple for a list, and pass tensors by position"
                )
        return self(*[asarray(x) for x in tensors], attributes=values)[0]

    def def_vjp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the function that computes the gradient, the vector-Jacobian product; usable as a decorator.

        ``rule(g, y, *tensors, **attributes)`` is called with the result ``y`` and its cotangent ``g``. It returns the
        cotangent of each tensor (or None), as a tuple if there are several tensors. If the rule uses flnb's ops only,
        second derivatives are possible.
        """
        self.vjp = rule
        return rule

    def def_jvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the function that computes the directional derivative; without it, `flnb.jvp` uses the vjp.

        ``rule(tangents, y, *tensors, **attributes)`` is called with a tuple of one tangent per tensor, and the result
        ``y``. It returns the tangent of ``y``. Usable as a decorator.
        """
        self.jvp = rule
        return rule

    def _name(self, i: int) -> str:
        """Return the name of the user's i-th parameter; the number i, as text, for a tensor passed as ``*tensors``."""
        return self.arguments[i] if i < len(self.arguments) else str(i)

    def _forward(self, *values: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call the user's function with tensors and attributes; return the pair (result, ()).

        The empty tuple means that no values besides inputs and result are saved for the gradient.

        The function runs in a scope with the op's name. An event for the op is emitted only if the function returns an
        array. If it returns a Tensor, the ops that it calls emit events.
        """
        end = len(values) - len(self.keywords)
        tensors, attributes = values[:end], values[end:]
        with bus.scope(self.name):
            t0 = clock()
            made = self.forward(*tensors, **self._named(attributes))
            t1 = clock()
        if made is None or isinstance(made, (tuple, list, dict)):
            raise TypeError(
                f"{self.name}: a custom op returns one tensor, this returned {type(made).__name__} "
                f"({defined_at(self.forward)})"
            )
        result = asarray(made)
        if bus.lanes is not None and not isinstance(made, Tensor):
            lane = bus.lanes.lane
            key = tuple([x._spec for x in tensors]), attributes
            plan = self.plans.get(key) or self.plans.setdefault(key, Plan(self, *key, result._spec))
            lane.emit(plan.code, t0, t1, 0, lane.node, lane.context, 0, 0)
        return result if result._node is None else result.data, ()

    def _named(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Return the attributes, given as their values in order, as a dict of keyword arguments."""
        return dict(zip(self.keywords, values, strict=True))

    def _pull(self, g: Any, plan: Any, *saved: Any) -> list[Any]:
        """Compute the cotangents of all tensors by the user's vjp; under `vmap` one example at a time."""
        level = g._level
        if level is not None:
            rows = [self._pull(unbatch(g, level)[i], plan, *saved) for i in range(level.size)]
            return [None if c[0] is None else rebatch(stack(c), level) for c in zip(*rows, strict=True)]
        if self.jvp is not None and state.current().grad:
            count = len(saved) - 1
            if len(self._parts) < count:
                self._parts = [_Transposed(self, i, count) for i in range(count)]
            return [dispatch.call(part, (g, *saved), plan.attributes)[0] for part in self._parts[:count]]
        *tensors, y = _values(saved)
        return self._cotangents(g, plan.attributes, tensors, y)

    def _cotangents(self, g: Any, attributes: tuple[Any, ...], tensors: list[Any], y: Any) -> list[Any]:
        """Call the user's vjp; return one cotangent (or None) per tensor, after a check of shape and dtype."""
        if self.vjp is None:
            raise GradientRuleError(
                f"custom op {self.name!r} has no gradient: define it with @{self.name}.def_vjp, as "
                f"def rule(g, y, {', '.join(map(self._name, range(len(tensors))))}): ..."
            )
        made = self._call_rule("vjp", g, y, tensors, attributes)
        found = list(made) if isinstance(made, (tuple, list)) else [made]
        where = defined_at(self.vjp)
        if len(found) != len(tensors):
            raise GradientRuleError(
                f"the vjp of custom op {self.name!r} returned {len(found)} gradients, expected {len(tensors)}, one for "
                f"each of {', '.join(map(self._name, range(len(tensors))))} (None for one without); {where}"
            )
        found = [None if g is None else asarray(g) for g in found]
        for i, (g, x) in enumerate(zip(found, tensors, strict=True)):
            if g is not None and (g.shape, g.dtype) != (x.shape, x.dtype) and x.dtype.kind == "f":
                raise GradientRuleError(
                    f"the vjp of custom op {self.name!r} returned {g._spec!r} as the gradient of argument {i} "
                    f"({self._name(i)}), expected {x._spec!r} like the argument; {where}"
                )
        return found

    def _tangent(self, tangents: list[Any], attributes: tuple[Any, ...], tensors: list[Any], y: Any) -> Any:
        """Call the user's jvp; return the tangent of the result, after a check of shape and dtype."""
        made = self._call_rule("jvp", tuple(tangents), y, tensors, attributes)
        if (made.shape, made.dtype) != (y.shape, y.dtype):
            raise GradientRuleError(
                f"the jvp of custom op {self.name!r} returned {made._spec!r}, expected {y._spec!r} like the result; "
                f"{defined_at(self.jvp)}"
            )
        return made

    def _call_rule(self, which: str, given: Any, y: Any, tensors: list[Any], attributes: tuple[Any, ...]) -> Any:
        """Call the user's rule ``which`` ("vjp" or "jvp"); add a note with op and line to an error that it raises.

        Args:
            which: the name of the rule.
            given: the rule's first argument: the cotangent for a vjp, the tuple of tangents for a jvp.
            y: the op's result.
            tensors: the op's tensor arguments.
            attributes: the op's attributes, in order.
        """
        rule = getattr(self, which)
        try:
            return with_own_lines(partial(rule, **self._named(attributes)), given, y, *tensors)
        except Exception as error:
            error.add_note(f"in the {which} of custom op {self.name!r}, {defined_at(rule)}")
            raise


class _Transposed(Op):
    """The vjp of a custom op for one of its tensors, as a separate op with the operands ``(g, *tensors, y)``.

    This op is linear in ``g``, so its own vjp with respect to ``g`` is the jvp that the user defined. Its derivatives
    with respect to the tensors and ``y`` are computed from the ops of the user's vjp.
    """

    register = CustomOp.register

    def __init__(self, op: CustomOp, position: int, count: int) -> None:
        super().__init__(f"{op.name}_vjp", "custom", not_inferred, self._pull_of, body=self._cotangent)
        self.holomorphic = False
        self.op, self.position, self.count = op, position, count

    def _cotangent(self, g: Any, *values: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return the pair (the tensor's cotangent, ()); the cotangent is zeros if the user's vjp returns None."""
        end = len(values) - len(self.op.keywords)
        *tensors, y = values[:end]
        found = self.op._cotangents(g, values[end:], tensors, y)[self.position]
        return zeros_like(tensors[self.position]) if found is None else found, ()

    def _pull_of(self, i: int) -> Pull:
        """Return the gradient rule of the i-th operand (``g`` is number 0), which reads every operand."""
        return Pull({*range(self.count + 2), "y"}, self._by_g if i == 0 else partial(self._by_input, i))

    def _by_g(self, v: Any, plan: Any, g: Any, *saved: Any) -> Any:
        """Apply the user's jvp to a tangent ``v`` of the tensor, and to zeros for the other tensors."""
        *tensors, y = _values(saved[:-1])
        tangents = [v if i == self.position else zeros_like(x) for i, x in enumerate(tensors)]
        return self.op._tangent(tangents, plan.attributes, tensors, y)

    def _by_input(self, i: int, v: Any, plan: Any, *saved: Any) -> Any:
        """Return the gradient of the user's vjp with respect to operand ``i``; None if the vjp does not depend on it.

        ``v`` is the cotangent of the vjp's result.
        """
        g, *tensors, y = saved[:-1]
        again = state.current().grad
        with state.use(grad=True):
            found = self.op._cotangents(g, plan.attributes, tensors, y)[self.position]
        if getattr(found, "_node", None) is None:
            return None
        return grad_of(found, [saved[i]], v, retain_graph=True, create_graph=again)[0]


def _values(saved: Iterable[Any]) -> list[Any]:
    """Return a node's saved values for a user's rule: constants, or Variables if the rule itself is recorded."""
    recorded = state.current().grad
    return [x if recorded or type(x) is Tensor else x.data for x in saved]


def custom_op(forward: Callable[..., Any]) -> CustomOp:
    """Make an op of a function; used as a decorator. `CustomOp.def_vjp` then sets the op's gradient.

    The function takes plain Tensors by position, and attributes that are keyword-only and hashable. It returns one
    Tensor or NumPy array, and may use NumPy. The op is one node on the tape. In telemetry, the function's name is the
    name of the op if the function returns an array, else the name of a scope with the ops that it calls. Under
    `flnb.vmap` the op runs once per example. `flnb.testing.verify_grad` checks its gradient.

    >>> import flnb, numpy as np
    >>> @flnb.custom_op
    ... def soft_clip(x, *, limit=1.0):
    ...     return np.tanh(x.numpy() / limit) * limit
    >>> @soft_clip.def_vjp
    ... def _(g, y, x, *, limit):
    ...     return g * (1.0 - (y / limit) ** 2)
    >>> flnb.grad(lambda x: soft_clip(x, limit=2.0).sum())(flnb.asarray([0.0, 2.0])).tolist()
    [1.0, 0.41997432708740234]

    Raises:
        TypeError: ``forward`` is not a Python function.
    """
    if not hasattr(forward, "__code__"):
        raise TypeError(f"custom_op: expected a Python function, got {type(forward).__name__}")
    return CustomOp(forward)
