"""Elementwise primitives and their gradients, one row each."""

from __future__ import annotations

import cmath
import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.dtypes import dtype_of, is_float, real_dtype
from flnb.dispatch.plan import Spec
from flnb.dispatch.table import Op, Pull, describe, shaped
from flnb.ops.creation import asarray, refuse_complex, zeros_like
from flnb.ops.documentation import documented
from flnb.tensor import ArrayLike, DTypeLike, Tensor, check_device

BOOL = np.dtype(bool)
HALF = np.dtype(np.float16)
TWO_OVER_ROOT_PI = 2.0 / math.pi**0.5
Function = Callable[..., Tensor]


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


def magnitude(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The result is real: of complex numbers it has the dtype of their parts."""
    return specs[0].shape, real_dtype(specs[0].dtype)


def _unary(
    name: str, reads: Collection[Any] = (), pull: Function | None = None, accepts: str = "float", infer: Any = same,
    real: bool = False, holomorphic: bool = True,
) -> Function:  # fmt: skip
    pulls = (Pull(reads, pull),) if pull else ()
    row = Op(name, "elementwise", infer, pulls, arity=1, accepts=accepts, real=real, holomorphic=holomorphic)
    return documented(row)


def _binary(
    name: str, a: Pull | None = None, b: Pull | None = None, accepts: str = "numeric", infer: Any = same,
    real: bool = False,
) -> Function:  # fmt: skip
    row = Op(name, "elementwise", infer, (a, b), arity=2, broadcasts=True, accepts=accepts, real=real)
    return documented(row)


def _extremum(name: str, wide: Function, strict: Function) -> Function:
    """Make maximum or minimum: the chosen argument takes the gradient; at a tie both get half."""

    def share(g: Any, a: Any, b: Any) -> Any:
        twice = add(astype(wide(a, b), g.dtype), astype(strict(a, b), g.dtype))
        return multiply(g, multiply(twice, 0.5))

    first, second = (
        Pull({0, 1}, lambda g, plan, a, b, y: share(g, a, b)),
        Pull({0, 1}, lambda g, plan, a, b, y: share(g, b, a)),
    )
    return _binary(name, first, second, real=True)


def _flat(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """The gradient of a function that is constant between its jumps."""
    return multiply(g, 0.0)


# One tensor: the pull takes the cotangent g, the input x and the output y, each None unless `reads` names it.

negative: Function = _unary("negative", (), lambda g, plan, x, y: negative(g), accepts="numeric")
positive: Function = _unary("positive", (), lambda g, plan, x, y: g, accepts="numeric")
abs: Function = _unary(
    "abs", {0}, lambda g, plan, x, y: multiply(g, sign(x)), accepts="numeric", infer=magnitude, holomorphic=False
)
sign: Function = _unary("sign", {0, "y"}, lambda g, plan, x, y: _turn(g, x, y), accepts="numeric", holomorphic=False)
exp: Function = _unary("exp", {"y"}, lambda g, plan, x, y: multiply(g, y))
expm1: Function = _unary("expm1", {"y"}, lambda g, plan, x, y: multiply(g, add(y, 1.0)))
log: Function = _unary("log", {0}, lambda g, plan, x, y: divide(g, x))
log1p: Function = _unary("log1p", {0}, lambda g, plan, x, y: divide(g, add(x, 1.0)))
log2: Function = _unary("log2", {0}, lambda g, plan, x, y: divide(g, multiply(x, math.log(2.0))))
log10: Function = _unary("log10", {0}, lambda g, plan, x, y: divide(g, multiply(x, math.log(10.0))))
sqrt: Function = _unary("sqrt", {"y"}, lambda g, plan, x, y: divide(multiply(g, 0.5), y))
square: Function = _unary("square", {0}, lambda g, plan, x, y: multiply(multiply(g, 2.0), x), accepts="numeric")
reciprocal: Function = _unary("reciprocal", {"y"}, lambda g, plan, x, y: negative(multiply(g, multiply(y, y))))
sin: Function = _unary("sin", {0}, lambda g, plan, x, y: multiply(g, cos(x)))
cos: Function = _unary("cos", {0}, lambda g, plan, x, y: negative(multiply(g, sin(x))))
tan: Function = _unary("tan", {"y"}, lambda g, plan, x, y: multiply(g, add(multiply(y, y), 1.0)))
asin: Function = _unary("asin", {0}, lambda g, plan, x, y: divide(g, sqrt(subtract(1.0, square(x)))))
acos: Function = _unary("acos", {0}, lambda g, plan, x, y: negative(divide(g, sqrt(subtract(1.0, square(x))))))
atan: Function = _unary("atan", {0}, lambda g, plan, x, y: divide(g, add(square(x), 1.0)))
sinh: Function = _unary("sinh", {0}, lambda g, plan, x, y: multiply(g, cosh(x)))
cosh: Function = _unary("cosh", {0}, lambda g, plan, x, y: multiply(g, sinh(x)))
tanh: Function = _unary("tanh", {"y"}, lambda g, plan, x, y: multiply(g, subtract(1.0, multiply(y, y))))
asinh: Function = _unary("asinh", {0}, lambda g, plan, x, y: divide(g, sqrt(add(square(x), 1.0))))
acosh: Function = _unary(
    "acosh", {0}, lambda g, plan, x, y: divide(g, multiply(sqrt(subtract(x, 1.0)), sqrt(add(x, 1.0))))
)
atanh: Function = _unary("atanh", {0}, lambda g, plan, x, y: divide(g, subtract(1.0, square(x))))
erf: Function = _unary(
    "erf", {0}, lambda g, plan, x, y: multiply(multiply(g, TWO_OVER_ROOT_PI), exp(negative(square(x)))), real=True
)
floor: Function = _unary("floor", (), _flat, accepts="numeric", real=True)
ceil: Function = _unary("ceil", (), _flat, accepts="numeric", real=True)
trunc: Function = _unary("trunc", (), _flat, accepts="numeric", real=True)
round: Function = _unary("round", (), _flat, accepts="numeric")
real: Function = _unary(
    "real",
    {0},
    lambda g, plan, x, y: astype(g, x.dtype, copy=False),
    accepts="numeric",
    infer=magnitude,
    holomorphic=False,
)
imag: Function = _unary(
    "imag", {0}, lambda g, plan, x, y: multiply(g, 1j if x.dtype.kind == "c" else 0.0),
    accepts="numeric", infer=magnitude,
    holomorphic=False,
)  # fmt: skip
conj: Function = _unary("conj", (), lambda g, plan, x, y: conj(g), accepts="numeric", holomorphic=False)
isnan: Function = _unary("isnan", accepts="any", infer=boolean)
isinf: Function = _unary("isinf", accepts="any", infer=boolean)
isfinite: Function = _unary("isfinite", accepts="any", infer=boolean)
signbit: Function = _unary("signbit", infer=boolean, real=True)
logical_not: Function = _unary("logical_not", accepts="bool", infer=boolean)
bitwise_invert: Function = _unary("bitwise_invert", accepts="bits")


def _turn(g: Any, x: Any, y: Any) -> Any:
    """The gradient of sign: 0 for real numbers; for complex y = x / abs(x) the part of g across y, over abs(x)."""
    if x.dtype.kind != "c":
        return _flat(g, None, x, y)
    along = multiply(y, real(multiply(conj(y), g)))
    return divide(subtract(g, along), abs(x))


# Two tensors: the pulls take g, a, b and y. Saved arguments may be Python numbers, so these use operators.

add: Function = _binary("add", Pull((), lambda g, plan, a, b, y: g), Pull((), lambda g, plan, a, b, y: g))
subtract: Function = _binary(
    "subtract", Pull((), lambda g, plan, a, b, y: g), Pull((), lambda g, plan, a, b, y: negative(g))
)
multiply: Function = _binary(
    "multiply", Pull({1}, lambda g, plan, a, b, y: multiply(g, b)), Pull({0}, lambda g, plan, a, b, y: multiply(g, a))
)
divide: Function = _binary(
    "divide",
    Pull({1}, lambda g, plan, a, b, y: divide(g, b)),
    Pull({1, "y"}, lambda g, plan, a, b, y: negative(multiply(g, divide(y, b)))),
    accepts="float",
)
floor_divide: Function = _binary("floor_divide", real=True)
remainder: Function = _binary(
    "remainder",
    Pull((), lambda g, plan, a, b, y: g),
    Pull({0, 1}, lambda g, plan, a, b, y: negative(multiply(g, floor_divide(a, b)))),
    real=True,
)
pow: Function = _binary(
    "pow",
    Pull({0, 1}, lambda g, plan, a, b, y: multiply(g, _slope(a, b))),
    Pull({0, "y"}, lambda g, plan, a, b, y: multiply(g, multiply(y, _rate(a, y)))),
)
atan2: Function = _binary(
    "atan2",
    Pull({0, 1}, lambda g, plan, a, b, y: g * (b / (a * a + b * b))),
    Pull({0, 1}, lambda g, plan, a, b, y: -(g * (a / (a * a + b * b)))),
    accepts="float", real=True,
)  # fmt: skip
hypot: Function = _binary(
    "hypot", Pull({0, "y"}, lambda g, plan, a, b, y: g * (a / y)), Pull({1, "y"}, lambda g, plan, a, b, y: g * (b / y)),
    accepts="float", real=True,
)  # fmt: skip
logaddexp: Function = _binary(
    "logaddexp",
    Pull({0, "y"}, lambda g, plan, a, b, y: g * _share(a, y)),
    Pull({1, "y"}, lambda g, plan, a, b, y: g * _share(b, y)),
    accepts="float", real=True,
)  # fmt: skip
copysign: Function = _binary(
    "copysign",
    Pull({0, 1}, lambda g, plan, a, b, y: g * copysign(1.0, a) * copysign(1.0, b)),
    Pull((), lambda g, plan, a, b, y: multiply(g, 0.0)),
    accepts="float", real=True,
)  # fmt: skip
nextafter: Function = _binary(
    "nextafter", Pull((), lambda g, plan, a, b, y: g), Pull((), lambda g, plan, a, b, y: multiply(g, 0.0)),
    accepts="float", real=True,
)  # fmt: skip
equal: Function = _binary("equal", accepts="any", infer=boolean)
not_equal: Function = _binary("not_equal", accepts="any", infer=boolean)
less: Function = _binary("less", accepts="any", infer=boolean, real=True)
less_equal: Function = _binary("less_equal", accepts="any", infer=boolean, real=True)
greater: Function = _binary("greater", accepts="any", infer=boolean, real=True)
greater_equal: Function = _binary("greater_equal", accepts="any", infer=boolean, real=True)
maximum: Function = _extremum("maximum", greater_equal, greater)
minimum: Function = _extremum("minimum", less_equal, less)
logical_and: Function = _binary("logical_and", accepts="bool", infer=boolean)
logical_or: Function = _binary("logical_or", accepts="bool", infer=boolean)
logical_xor: Function = _binary("logical_xor", accepts="bool", infer=boolean)
bitwise_and: Function = _binary("bitwise_and", accepts="bits")
bitwise_or: Function = _binary("bitwise_or", accepts="bits")
bitwise_xor: Function = _binary("bitwise_xor", accepts="bits")
bitwise_left_shift: Function = _binary("bitwise_left_shift", accepts="integer")
bitwise_right_shift: Function = _binary("bitwise_right_shift", accepts="integer")


def _share(a: Any, y: Any) -> Any:
    """exp(a - y), the share of a in logaddexp; 0 where y is -inf, the log of an empty sum, instead of NaN."""
    return exp(subtract(a, maximum(y, -65504.0 if y.dtype == HALF else -3e38)))


def _slope(a: Any, b: Any) -> Any:
    """b a^(b - 1), and 0 at b = 0 where a is 0, infinite or NaN: a^0 is 1 everywhere."""
    if not hasattr(b, "dtype"):
        return b * pow(a, b - 1.0) if b else zeros_like(a)
    odd = logical_or(equal(a, 0.0), logical_not(isfinite(a)))
    return b * pow(a, where(logical_and(odd, equal(b, 0.0)), 1.0, b) - 1.0)


def _rate(a: Any, y: Any) -> Any:
    """The rate at which y = a^b grows with b: log(a), and 0 for real a < 0 and at a = 0, unless y is infinite."""
    if not hasattr(a, "dtype"):
        if a == 0:
            return negative(astype(isinf(y), y.dtype))
        return cmath.log(a) if y.dtype.kind == "c" else math.log(a) if a > 0 else 0.0
    has_log = not_equal(a, 0.0) if a.dtype.kind == "c" else greater(a, 0.0)
    poles = logical_and(equal(a, 0.0), isinf(y))
    return subtract(multiply(log(where(has_log, a, 1.0)), astype(has_log, a.dtype)), astype(poles, a.dtype))


def _infer_where(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if specs[0].dtype != BOOL:
        raise TypeError(f"where: the condition must be bool, got {specs[0]!r}; compare first, e.g. x > 0")
    return broadcast(op, specs), next(s.dtype for s in specs[1:] if isinstance(s, Spec))


_where = Op(
    "where", "elementwise", _infer_where,
    (
        None,
        Pull({0}, lambda g, plan, c, a, b, y: where(c, g, 0.0)),
        Pull({0}, lambda g, plan, c, a, b, y: where(c, 0.0, g)),
    ),
    broadcasts=True, unpromoted=(0,),
)  # fmt: skip


def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike, /) -> Tensor:
    """Elements of ``x`` where ``condition`` holds, elsewhere of ``y``.

    The three broadcast; the result has the common dtype of x and y. Gradients flow only to the chosen elements.

    Raises:
        TypeError: a condition that is not bool.

    >>> import flnb
    >>> flnb.where([True, False, True], [1, 2, 3], 0)
    Tensor([1, 0, 3], int64[3], numpy)
    """
    return dispatch.call(_where, (condition, x, y))


def clip(x: ArrayLike, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
    """Limit elements to the range from ``min`` to ``max``.

    Both are numbers or tensors that broadcast; None sets no limit. The result has the dtype of x. The gradient flows to
    the elements within the limits, and to a limit where an element is beyond it.

    >>> import flnb
    >>> flnb.clip([-2.0, 0.5, 3.0], 0.0, 1.0)
    Tensor([0. , 0.5, 1. ], float32[3], numpy)
    """
    x = asarray(x)
    bounds = [b if b is None or isinstance(b, (int, float)) else asarray(b) for b in (min, max)]
    if min is max is None or x._node is None or not state.current().grad:
        return _clipped(x, *bounds)
    with state.recording(any(getattr(b, "_node", None) is not None for b in bounds)):
        y = _clipped(x, *bounds)
    with state.recording(False):
        within = [test(x, b) for test, b in zip((greater_equal, less_equal), bounds, strict=True) if b is not None]
        inside = functools.reduce(logical_and, within)
    return where(inside, x, y)


def _clipped(x: Any, min: Any, max: Any) -> Any:
    y = x if min is None else maximum(x, min)
    y = y if max is None else minimum(y, max)
    return y if y.dtype == x.dtype else astype(y, x.dtype)


def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: bool = True, device: str | None = None) -> Tensor:
    """Convert a tensor to another dtype; floating point is rounded towards zero where integers are asked for.

    ``copy=False`` returns x itself if it has the dtype already. The gradient is cast back.

    Raises:
        TypeError: from complex to real, which would lose the imaginary part.

    >>> import flnb
    >>> flnb.astype(flnb.asarray([1.7, -1.7]), flnb.int64)
    Tensor([ 1, -1], int64[2], numpy)
    """
    check_device(device)
    target = dtype_of(dtype)
    if not copy and x.dtype == target:
        return x
    refuse_complex("astype", x.dtype, target)
    return dispatch.call(_astype, (x,), (target,))


def biased(y: Any, bias: Any) -> Any:
    """A product plus its bias; a float32 bias does not widen what autocast computed in half precision."""
    computed = y._spec.dtype
    if bias.dtype is not computed and computed.itemsize == 2 and is_float(computed) and bias.dtype == np.float32:
        bias = astype(asarray(bias), computed)
    return add(y, bias)


_astype = Op(
    "astype", "movement", lambda op, specs, attributes: (specs[0].shape, attributes[0]),
    [Pull((), lambda g, plan, x, y: _uncast(g, plan.specs[0].dtype))], unpromoted=(0,), holomorphic=False,
)  # fmt: skip


def _uncast(g: Any, dtype: np.dtype[Any]) -> Any:
    """A cotangent in the dtype before a cast: its real part, where real numbers became complex."""
    return astype(real(g) if g.dtype.kind == "c" and dtype.kind != "c" else g, dtype)


def copy(x: ArrayLike, /) -> Tensor:
    """A copy of the tensor in new memory, row-major.

    >>> import flnb
    >>> x = flnb.asarray([1, 2])
    >>> flnb.copy(x) is x
    False
    """
    return dispatch.call(_copy, (x,))


_copy = Op("copy", "movement", shaped(), [Pull((), lambda g, plan, x, y: g)], unpromoted=(0,))


def assign(target: Tensor, value: ArrayLike, /) -> Tensor:
    """Write ``value`` over the elements of ``target``, in place, and return ``target``.

    The value is broadcast and cast to the target's shape and dtype.

    Raises:
        RuntimeError: the target is a Variable that requires grad, while gradients are recorded.

    >>> import flnb
    >>> flnb.assign(flnb.zeros(3), 7)
    Tensor([7., 7., 7.], float32[3], numpy)
    """
    from flnb.ops.movement import broadcast_to

    if not isinstance(target, Tensor) or getattr(value, "_spec", None) is not target._spec:
        value = broadcast_to(asarray(value, target.dtype), target.shape)
    return dispatch.write(_copy, (value,), (), target)
