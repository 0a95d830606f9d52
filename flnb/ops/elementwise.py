"""Elementwise primitives and their gradients, one row each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flnb.dispatch import ops as dispatch
from flnb.dispatch.plan import Spec
from flnb.ops.creation import asarray
from flnb.ops.table import Op, Pull, describe, shaped

BOOL = np.dtype(bool)
TWO_OVER_ROOT_PI = 2.0 / math.pi**0.5
Function = Callable[..., Any]


def broadcast(op: Op, specs: tuple[Any, ...]) -> tuple[int, ...]:
    """The broadcast shape of specs; Python scalars (given as their type) have none."""
    shapes = [s.shape for s in specs if isinstance(s, Spec)]
    if all(s == shapes[0] for s in shapes):
        return tuple(shapes[0])
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(
            f"{op.name}: shapes {' and '.join(map(str, shapes))} do not broadcast: aligned from the last dimension, "
            f"extents must be equal or 1 ({describe(specs)})"
        ) from None


def same(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The result has the inputs' broadcast shape and their dtype."""
    return broadcast(op, specs), next(s.dtype for s in reversed(specs) if isinstance(s, Spec))


def boolean(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The result has the inputs' broadcast shape and dtype bool."""
    return broadcast(op, specs), BOOL


def _unary(
    name: str, uses: str = "", pull: Function | None = None, accepts: str = "float", infer: Any = same
) -> Function:
    row = Op(name, "elementwise", infer, (Pull(uses, pull),) if pull else (), arity=1, accepts=accepts)
    return dispatch.unary(row)


def _binary(
    name: str, a: Pull | None = None, b: Pull | None = None, accepts: str = "numeric", infer: Any = same
) -> Function:
    return dispatch.binary(Op(name, "elementwise", infer, (a, b), arity=2, broadcasts=True, accepts=accepts))


def _extremum(name: str, wide: Function, strict: Function) -> Function:
    """The argument that was chosen takes the gradient; at a tie both get half."""

    def share(g: Any, a: Any, b: Any) -> Any:
        twice = add(astype(wide(a, b), g.dtype), astype(strict(a, b), g.dtype))
        return multiply(g, multiply(twice, 0.5))

    return _binary(name, Pull("01", lambda g, a, b, y: share(g, a, b)), Pull("01", lambda g, a, b, y: share(g, b, a)))


# One tensor: the pull takes the cotangent g, the input x and the output y, each None unless it is named in `uses`.

negative: Function = _unary("negative", "", lambda g, x, y: negative(g), accepts="numeric")
abs: Function = _unary("abs", "0", lambda g, x, y: multiply(g, sign(x)), accepts="numeric")
sign: Function = _unary("sign", "", lambda g, x, y: multiply(g, 0.0), accepts="numeric")
exp: Function = _unary("exp", "y", lambda g, x, y: multiply(g, y))
expm1: Function = _unary("expm1", "y", lambda g, x, y: multiply(g, add(y, 1.0)))
log: Function = _unary("log", "0", lambda g, x, y: divide(g, x))
log1p: Function = _unary("log1p", "0", lambda g, x, y: divide(g, add(x, 1.0)))
sqrt: Function = _unary("sqrt", "y", lambda g, x, y: divide(multiply(g, 0.5), y))
square: Function = _unary("square", "0", lambda g, x, y: multiply(multiply(g, 2.0), x), accepts="numeric")
sin: Function = _unary("sin", "0", lambda g, x, y: multiply(g, cos(x)))
cos: Function = _unary("cos", "0", lambda g, x, y: negative(multiply(g, sin(x))))
tanh: Function = _unary("tanh", "y", lambda g, x, y: multiply(g, subtract(1.0, multiply(y, y))))
erf: Function = _unary("erf", "0", lambda g, x, y: multiply(multiply(g, TWO_OVER_ROOT_PI), exp(negative(square(x)))))
floor: Function = _unary("floor", "", lambda g, x, y: multiply(g, 0.0), accepts="numeric")
ceil: Function = _unary("ceil", "", lambda g, x, y: multiply(g, 0.0), accepts="numeric")
round: Function = _unary("round", "", lambda g, x, y: multiply(g, 0.0), accepts="numeric")
isnan: Function = _unary("isnan", infer=boolean)
isinf: Function = _unary("isinf", infer=boolean)
isfinite: Function = _unary("isfinite", infer=boolean)
logical_not: Function = _unary("logical_not", accepts="bool", infer=boolean)
bitwise_invert: Function = _unary("bitwise_invert", accepts="integer")

# Two tensors: the pulls take g, a, b and y.

add: Function = _binary("add", Pull("", lambda g, a, b, y: g), Pull("", lambda g, a, b, y: g))
subtract: Function = _binary("subtract", Pull("", lambda g, a, b, y: g), Pull("", lambda g, a, b, y: negative(g)))
multiply: Function = _binary(
    "multiply", Pull("1", lambda g, a, b, y: multiply(g, b)), Pull("0", lambda g, a, b, y: multiply(g, a))
)
divide: Function = _binary(
    "divide",
    Pull("1", lambda g, a, b, y: divide(g, b)),
    Pull("1y", lambda g, a, b, y: negative(multiply(g, divide(y, b)))),
    accepts="float",
)
floor_divide: Function = _binary("floor_divide")
remainder: Function = _binary(
    "remainder",
    Pull("", lambda g, a, b, y: g),
    Pull("01", lambda g, a, b, y: negative(multiply(g, floor_divide(a, b)))),
)
pow: Function = _binary(
    "pow",
    Pull("01", lambda g, a, b, y: multiply(g, multiply(b, pow(a, subtract(b, 1.0))))),
    Pull("0y", lambda g, a, b, y: multiply(g, multiply(y, _log_or_zero(a)))),
)
equal: Function = _binary("equal", accepts="any", infer=boolean)
not_equal: Function = _binary("not_equal", accepts="any", infer=boolean)
less: Function = _binary("less", accepts="any", infer=boolean)
less_equal: Function = _binary("less_equal", accepts="any", infer=boolean)
greater: Function = _binary("greater", accepts="any", infer=boolean)
greater_equal: Function = _binary("greater_equal", accepts="any", infer=boolean)
maximum: Function = _extremum("maximum", greater_equal, greater)
minimum: Function = _extremum("minimum", less_equal, less)
logical_and: Function = _binary("logical_and", accepts="bool", infer=boolean)
logical_or: Function = _binary("logical_or", accepts="bool", infer=boolean)
logical_xor: Function = _binary("logical_xor", accepts="bool", infer=boolean)
bitwise_and: Function = _binary("bitwise_and", accepts="integer")
bitwise_or: Function = _binary("bitwise_or", accepts="integer")
bitwise_xor: Function = _binary("bitwise_xor", accepts="integer")
bitwise_left_shift: Function = _binary("bitwise_left_shift", accepts="integer")
bitwise_right_shift: Function = _binary("bitwise_right_shift", accepts="integer")


def _log_or_zero(a: Any) -> Any:
    """log(a) where a > 0, else 0: the limit of y log(a) at a = 0 that a gradient needs."""
    if not hasattr(a, "dtype"):
        return math.log(a) if a > 0 else 0.0
    positive = greater(a, 0.0)
    return multiply(log(where(positive, a, 1.0)), astype(positive, a.dtype))


def _infer_where(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if specs[0].dtype != BOOL:
        raise TypeError(f"where: the condition must be bool, got {specs[0]!r}; compare first, e.g. x > 0")
    return broadcast(op, specs), specs[1].dtype


_where = Op(
    "where", "elementwise", _infer_where,
    (
        None,
        Pull("0", lambda g, plan, c, a, b, y: where(c, g, 0.0)),
        Pull("0", lambda g, plan, c, a, b, y: where(c, 0.0, g)),
    ),
    broadcasts=True, unpromoted=(0,),
)  # fmt: skip


def where(condition: Any, x: Any, y: Any, /) -> Any:
    """Elements of ``x`` where ``condition`` (bool) holds, else of ``y``; the three broadcast."""
    return dispatch.call(_where, (condition, x, y))


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """Limit elements to [min, max]; either bound may be None."""
    if min is not None:
        x = maximum(x, min)
    return x if max is None else minimum(x, max)


def astype(x: Any, dtype: Any, /, *, copy: bool = True) -> Any:
    """The tensor in another dtype, rounded towards zero from floating point to integers."""
    target = np.dtype(dtype)
    if not copy and x.dtype == target:
        return x
    return dispatch.call(_astype, (x,), (target,))


_astype = Op(
    "astype", "movement", lambda op, specs, attributes: (specs[0].shape, attributes[0]),
    [Pull("", lambda g, plan, x, y: astype(g, plan.specs[0].dtype))], unpromoted=(0,),
)  # fmt: skip


def copy(x: Any, /) -> Any:
    """A copy in new memory, row-major."""
    return dispatch.call(_copy, (x,))


_copy = Op("copy", "movement", shaped(), [Pull("", lambda g, plan, x, y: g)], unpromoted=(0,))


def assign(target: Any, value: Any, /) -> Any:
    """Write ``value`` (broadcast and cast as needed) over the elements of ``target``; gives ``target``."""
    from flnb.ops.movement import broadcast_to

    return dispatch.call(_copy, (broadcast_to(asarray(value, target.dtype), target.shape),), (), target)
