"""A user's own op: a forward function with a gradient stated by the user, one node on the tape."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import CO_VARARGS
from time import perf_counter as clock
from typing import Any

from flnb_telemetry import bus

from flnb.autograd.batched import enclose, expose
from flnb.autograd.tape import grad_of
from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.plan import Plan
from flnb.dispatch.table import Op, Pull, not_inferred
from flnb.ops.composite import Composite
from flnb.ops.creation import asarray, zeros_like
from flnb.ops.movement import stack
from flnb.tensor import Tensor

__all__ = ["CustomOp", "GradientRuleError", "custom_op"]


class GradientRuleError(RuntimeError):
    """A custom op's vjp or jvp returned something that cannot be a gradient."""


class CustomOp(Composite):
    """An op made by `custom_op`: call it with tensors, and with attributes by keyword."""

    traceable = decomposes = False

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__(forward.__name__, "elementwise", self._forward, self._pull)
        self.forward = forward
        self.vjp: Callable[..., Any] | None = None
        self.jvp: Callable[..., Any] | None = None
        self._parts: list[_Transposed] = []
        code = forward.__code__
        self.holomorphic = False  # a user's rule is right for complex numbers as it is
        self.arguments = code.co_varnames[: code.co_argcount]
        self.takes_any = bool(code.co_flags & CO_VARARGS)
        self.keywords = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        self.__doc__ = forward.__doc__
        self.family = "custom"

    def register(self) -> None:
        """Do nothing: a cell that defines an op can run again, and no backend has a method for it."""

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
            raise TypeError(f"{self.name}: the attribute {missing} is missing") from None
        if given:
            raise TypeError(f"{self.name}: no attribute named {next(iter(given))!r}; it has {list(self.keywords)}")
        for keyword, value in zip(self.keywords, values, strict=True):
            if type(value).__hash__ is None:
                raise TypeError(
                    f"{self.name}: the attribute {keyword} is a {type(value).__name__}, which has no hash; give "
                    f"something that cannot change, a tuple for a list, and tensors by position"
                )
        return self(*[asarray(x) for x in tensors], attributes=values)[0]

    def def_vjp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the gradient: ``rule(g, y, *tensors, **attributes)`` returns one cotangent per tensor, None for none.

        ``g`` is the cotangent of the result ``y``. A single tensor's cotangent may be returned as it is, several in a
        tuple. If the rule uses flnb's ops only, it can be differentiated again.
        """
        self.vjp = rule
        return rule

    def def_jvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the directional derivative, which `flnb.jvp` uses instead of deriving it from the vjp.

        ``rule(tangents, y, *tensors, **attributes)`` returns the tangent of ``y``, from one tangent per tensor.
        """
        self.jvp = rule
        return rule

    def _name(self, i: int) -> str:
        return self.arguments[i] if i < len(self.arguments) else str(i)

    def _named(self, values: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self.keywords, values, strict=True))

    def _forward(self, *arguments: Any) -> tuple[Any, tuple[Any, ...]]:
        """The body: the user's function in a scope of the op's name, and an event for what NumPy computed."""
        tensors, attributes = self._split(arguments)
        with bus.scope(self.name):
            t0 = clock()
            made = self.forward(*tensors, **self._named(attributes))
            t1 = clock()
        result = self._checked_result(made)
        if bus.lanes is not None and not isinstance(made, Tensor):
            lane = bus.lanes.lane
            code = self._plan(tensors, attributes, result).code
            lane.emit(code, t0, t1, 0, lane.node, lane.context, 0, 0)
        return result, ()

    def _plan(self, tensors: tuple[Any, ...], attributes: tuple[Any, ...], result: Any) -> Plan:
        specs = tuple([x._spec for x in tensors])
        key = (specs, attributes)
        return self.plans.get(key) or self.plans.setdefault(key, Plan(self, specs, attributes, result._spec))

    def _split(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Separate tensors and attributes, which come one after the other."""
        end = len(values) - len(self.keywords)
        return values[:end], values[end:]

    def _checked_result(self, made: Any) -> Any:
        if made is None or isinstance(made, (tuple, list, dict)):
            raise TypeError(
                f"{self.name}: a custom op returns one tensor, this returned {type(made).__name__} "
                f"({_line(self.forward)})"
            )
        result = asarray(made)
        return result.data if getattr(result, "_node", None) is not None else result

    def _pull(self, g: Any, plan: Any, *saved: Any) -> list[Any]:
        """The joint pull: the user's vjp, for one example at a time where cotangents are batched."""
        level = g._level
        if level is not None:
            rows = [self._pull(expose(g, level)[i], plan, *saved) for i in range(level.size)]
            return [None if c[0] is None else enclose(stack(c), level) for c in zip(*rows, strict=True)]
        if self.jvp is not None and state.current().grad:
            return [
                transposed(g, *saved, attributes=plan.attributes) for transposed in self._transposed(len(saved) - 1)
            ]
        *tensors, y = _values(saved)
        return self._cotangents(g, plan.attributes, tensors, y)

    def _cotangents(self, g: Any, attributes: tuple[Any, ...], tensors: list[Any], y: Any) -> list[Any]:
        """The result of the user's vjp, checked."""
        if self.vjp is None:
            raise GradientRuleError(
                f"custom op {self.name!r} has no gradient: define it with @{self.name}.def_vjp, as "
                f"def rule(g, y, {', '.join(map(self._name, range(len(tensors))))}): ..."
            )
        return self._checked(self._call_rule("vjp", g, y, tensors, attributes), tensors)

    def _tangent(self, tangents: list[Any], attributes: tuple[Any, ...], tensors: list[Any], y: Any) -> Any:
        """The result of the user's jvp, checked."""
        made = self._call_rule("jvp", tuple(tangents), y, tensors, attributes)
        if (made.shape, made.dtype) != (y.shape, y.dtype):
            raise GradientRuleError(
                f"the jvp of custom op {self.name!r} returned {_like(made)}, expected {_like(y)} like the result; "
                f"{_line(self.jvp)}"
            )
        return made

    def _call_rule(self, which: str, given: Any, y: Any, tensors: list[Any], attributes: tuple[Any, ...]) -> Any:
        """The result of the user's vjp or jvp."""
        rule = getattr(self, which)
        try:
            return rule(given, y, *tensors, **self._named(attributes))
        except Exception as error:
            error.add_note(f"in the {which} of custom op {self.name!r}, {_line(rule)}")
            raise

    def _transposed(self, count: int) -> list[_Transposed]:
        if len(self._parts) < count:
            self._parts = [_Transposed(self, i, count) for i in range(count)]
        return self._parts[:count]

    def _checked(self, made: Any, tensors: list[Any]) -> list[Any]:
        """Check a vjp's cotangents: as many as tensors, each like its tensor."""
        found = list(made) if isinstance(made, (tuple, list)) else [made]
        where = _line(self.vjp)
        if len(found) != len(tensors):
            raise GradientRuleError(
                f"the vjp of custom op {self.name!r} returned {len(found)} gradients, expected {len(tensors)}, one for "
                f"each of {', '.join(map(self._name, range(len(tensors))))} (None for one without); {where}"
            )
        for i, (g, x) in enumerate(zip(found, tensors, strict=True)):
            if g is None:
                continue
            g = found[i] = asarray(g)
            if (g.shape, g.dtype) != (x.shape, x.dtype) and x.dtype.kind == "f":
                raise GradientRuleError(
                    f"the vjp of custom op {self.name!r} returned {_like(g)} as the gradient of argument {i} "
                    f"({self._name(i)}), expected {_like(x)} like the argument; {where}"
                )
        return found


class _Transposed(Op):
    """The vjp of a custom op for one argument, as an op of its own: linear in g, where its own vjp is the op's jvp.

    Called as ``(g, *tensors, y)``. For the other arguments it is differentiated through the user's rule.
    """

    def __init__(self, op: CustomOp, position: int, count: int) -> None:
        super().__init__(f"{op.name}_vjp", "custom", not_inferred, self._pull_of, body=self._cotangent)
        self.holomorphic = False
        self.of, self.position, self.count = op, position, count

    def register(self) -> None:
        """Do nothing: not in the op table either."""

    def __call__(self, *tensors: Any, attributes: tuple[Any, ...] = ()) -> Any:
        return dispatch.call(self, tensors, attributes)[0]

    def _cotangent(self, g: Any, *arguments: Any) -> tuple[Any, tuple[Any, ...]]:
        tensors, y, attributes = arguments[: self.count], arguments[self.count], arguments[self.count + 1 :]
        found = self.of._cotangents(g, attributes, list(tensors), y)[self.position]
        return zeros_like(tensors[self.position]) if found is None else found, ()

    def _pull_of(self, i: int) -> Pull:
        return Pull({*range(self.count + 2), "y"}, self._by_g if i == 0 else partial(self._by_input, i))

    def _by_g(self, v: Any, plan: Any, g: Any, *saved: Any) -> Any:
        *tensors, y = _values(saved[: self.count + 1])
        tangents = [v if i == self.position else zeros_like(x) for i, x in enumerate(tensors)]
        return self.of._tangent(tangents, plan.attributes, tensors, y)

    def _by_input(self, i: int, v: Any, plan: Any, *saved: Any) -> Any:
        g, *tensors = saved[: self.count + 1]
        again = state.current().grad
        with state.use(grad=True):
            found = self.of._cotangents(g, plan.attributes, tensors, saved[self.count + 1])[self.position]
        if getattr(found, "_node", None) is None:
            return None
        return grad_of(found, [saved[i]], v, retain_graph=True, create_graph=again)[0]


def _values(saved: tuple[Any, ...]) -> list[Any]:
    """The values a node saved, for a user's rule: off the tape, unless the rule is recorded itself."""
    recorded = state.current().grad
    return [x if recorded or type(x) is Tensor else x.data for x in saved]


def _like(x: Tensor) -> str:
    return f"{x.dtype.name}[{','.join(map(str, x.shape))}]"


def _line(function: Any) -> str:
    """The line on which a user's function begins."""
    code = function.__code__
    return f"defined at {code.co_filename}:{code.co_firstlineno}"


def custom_op(forward: Callable[..., Any]) -> CustomOp:
    """Make an op of a function, whose gradient is then stated by `CustomOp.def_vjp`; a decorator.

    The function takes plain Tensors (and attributes by keyword only, which must be hashable) and returns one Tensor or
    NumPy array; it may use NumPy. The op is one node on the tape and known by the function's name in telemetry: as an
    op if it returns an array, else as the scope of the ops it uses. Under `flnb.vmap` it runs once per example. Check
    it with `flnb.testing.verify_grad`.

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
        TypeError: something that is no Python function.
    """
    if not hasattr(forward, "__code__"):
        raise TypeError(f"custom_op: expected a Python function, got {type(forward).__name__}")
    return CustomOp(forward)
