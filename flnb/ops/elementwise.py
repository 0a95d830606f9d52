"""Elementwise ops and their gradients: each op is an entry of the op table.

In the functions that compute gradients, ``g`` is the gradient of the loss with respect to the result, ``plan`` stores
the shapes and dtypes of the call, ``x`` (or ``a`` and ``b``) is the input, and ``y`` the result. Inputs and results are
saved, and passed to such a function, only if its `Pull` lists them; it gets None for the others.
"""

from __future__ import annotations

import cmath
import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.arguments import check_device
from flnb.dispatch.dtypes import dtype_of, is_float, real_dtype
from flnb.dispatch.plan import Spec
from flnb.dispatch.table import Op, Pull, describe, shaped
from flnb.ops.creation import asarray, refuse_complex, zeros_like
from flnb.ops.documentation import documented
from flnb.tensor import ArrayLike, DTypeLike, Tensor

BOOL = np.dtype(bool)
HALF = np.dtype(np.float16)
TWO_OVER_ROOT_PI = 2.0 / math.pi**0.5
Function = Callable[..., Tensor]


def broadcast(op: Op, specs: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape to which an op's operands broadcast, given their specs; a Python number has its type as spec."""
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
    """Shape rule: the result has the shape to which the operands broadcast, and their dtype."""
    return broadcast(op, specs), next(s.dtype for s in reversed(specs) if isinstance(s, Spec))


def boolean(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape rule: the result has the shape to which the operands broadcast, and dtype bool."""
    return broadcast(op, specs), BOOL


def magnitude(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape rule: the result is real; for complex numbers it has the dtype of their real parts."""
    return specs[0].shape, real_dtype(specs[0].dtype)


def _unary(
    name: str, reads: Collection[Any] = (), pull: Function | None = None, accepts: str = "float", infer: Any = same,
    real: bool = False, holomorphic: bool = True,
) -> Function:  # fmt: skip
    """Declare an op of one tensor and return its public function; the arguments are those of `Op`.

    ``pull(g, plan, x, y)`` returns the gradient of the input x. It gets None for x unless ``reads`` contains 0, and
    for the result y unless ``reads`` contains "y".
    """
    pulls = (Pull(reads, pull),) if pull else ()
    row = Op(name, "elementwise", infer, pulls, arity=1, accepts=accepts, real=real, holomorphic=holomorphic)
    return documented(row)


def _binary(
    name: str, a: Pull | None = None, b: Pull | None = None, accepts: str = "numeric", infer: Any = same,
    real: bool = False,
) -> Function:  # fmt: skip
    """Declare an op of two tensors and return its public function; ``a`` and ``b`` compute the operands' gradients.

    The other arguments are those of `Op`.
    """
    row = Op(name, "elementwise", infer, (a, b), arity=2, broadcasts=True, accepts=accepts, real=real)
    return documented(row)


def _extremum(name: str, wide: Function, strict: Function) -> Function:
    """Declare maximum or minimum; ``wide`` and ``strict`` compare two tensors, for example by >= and by >.

    The operand that the op chooses gets the gradient; where both are equal, each gets half.
    """

    def share(g: Any, a: Any, b: Any) -> Any:
        """Return the part of the gradient ``g`` that operand a gets."""
        return g * ((astype(wide(a, b), g.dtype) + astype(strict(a, b), g.dtype)) * 0.5)

    first, second = (
        Pull({0, 1}, lambda g, plan, a, b, y: share(g, a, b)),
        Pull({0, 1}, lambda g, plan, a, b, y: share(g, b, a)),
    )
    return _binary(name, first, second, real=True)


def _flat(g: Any, plan: Any, *_: Any) -> Any:
    """Return a gradient of zeros, for functions that are constant between jumps, such as floor."""
    return g * 0.0


# Of one tensor

negative = _unary("negative", (), lambda g, plan, x, y: -g, "numeric")
positive = _unary("positive", (), lambda g, plan, x, y: g, "numeric")
abs = _unary("abs", {0}, lambda g, plan, x, y: g * sign(x), "numeric", magnitude, holomorphic=False)
sign: Function = _unary("sign", {0, "y"}, lambda g, plan, x, y: _turn(g, x, y), "numeric", holomorphic=False)
exp: Function = _unary("exp", {"y"}, lambda g, plan, x, y: g * y)
expm1 = _unary("expm1", {"y"}, lambda g, plan, x, y: g * (y + 1.0))
log: Function = _unary("log", {0}, lambda g, plan, x, y: g / x)
log1p = _unary("log1p", {0}, lambda g, plan, x, y: g / (x + 1.0))
log2 = _unary("log2", {0}, lambda g, plan, x, y: g / (x * math.log(2.0)))
log10 = _unary("log10", {0}, lambda g, plan, x, y: g / (x * math.log(10.0)))
sqrt: Function = _unary("sqrt", {"y"}, lambda g, plan, x, y: g * 0.5 / y)
square: Function = _unary("square", {0}, lambda g, plan, x, y: g * 2.0 * x, "numeric")
reciprocal = _unary("reciprocal", {"y"}, lambda g, plan, x, y: -(g * (y * y)))
sin: Function = _unary("sin", {0}, lambda g, plan, x, y: g * cos(x))
cos: Function = _unary("cos", {0}, lambda g, plan, x, y: -(g * sin(x)))
tan = _unary("tan", {"y"}, lambda g, plan, x, y: g * (y * y + 1.0))
asin = _unary("asin", {0}, lambda g, plan, x, y: g / sqrt(1.0 - square(x)))
acos = _unary("acos", {0}, lambda g, plan, x, y: -(g / sqrt(1.0 - square(x))))
atan = _unary("atan", {0}, lambda g, plan, x, y: g / (square(x) + 1.0))
sinh: Function = _unary("sinh", {0}, lambda g, plan, x, y: g * cosh(x))
cosh: Function = _unary("cosh", {0}, lambda g, plan, x, y: g * sinh(x))
tanh = _unary("tanh", {"y"}, lambda g, plan, x, y: g * (1.0 - y * y))
asinh = _unary("asinh", {0}, lambda g, plan, x, y: g / sqrt(square(x) + 1.0))
acosh = _unary("acosh", {0}, lambda g, plan, x, y: g / (sqrt(x - 1.0) * sqrt(x + 1.0)))
atanh = _unary("atanh", {0}, lambda g, plan, x, y: g / (1.0 - square(x)))
erf = _unary("erf", {0}, lambda g, plan, x, y: g * TWO_OVER_ROOT_PI * exp(-square(x)), real=True)
floor, ceil, trunc = (_unary(name, (), _flat, "numeric", real=True) for name in ("floor", "ceil", "trunc"))
round = _unary("round", (), _flat, "numeric")
real: Function = _unary(
    "real", {0}, lambda g, plan, x, y: astype(g, x.dtype, copy=False), "numeric", magnitude, holomorphic=False
)
imag = _unary(
    "imag", {0}, lambda g, plan, x, y: g * (1j if x.dtype.kind == "c" else 0.0), "numeric", magnitude,
    holomorphic=False,
)  # fmt: skip
conj: Function = _unary("conj", (), lambda g, plan, x, y: conj(g), "numeric", holomorphic=False)
isnan, isinf, isfinite = (_unary(name, accepts="any", infer=boolean) for name in ("isnan", "isinf", "isfinite"))
signbit = _unary("signbit", infer=boolean, real=True)
logical_not = _unary("logical_not", accepts="bool", infer=boolean)
bitwise_invert = _unary("bitwise_invert", accepts="bits")


def _turn(g: Any, x: Any, y: Any) -> Any:
    """Gradient of sign: 0 for real x; for complex x, the part of g that is perpendicular to y, divided by abs(x)."""
    return _flat(g, None) if x.dtype.kind != "c" else (g - y * real(conj(y) * g)) / abs(x)


# Of two tensors. A saved operand may be a Python number.

_passed = Pull((), lambda g, plan, a, b, y: g)
_negated = Pull((), lambda g, plan, a, b, y: -g)
_zero = Pull((), _flat)
add = _binary("add", _passed, _passed)
subtract = _binary("subtract", _passed, _negated)
multiply = _binary("multiply", Pull({1}, lambda g, plan, a, b, y: g * b), Pull({0}, lambda g, plan, a, b, y: g * a))
divide = _binary(
    "divide",
    Pull({1}, lambda g, plan, a, b, y: g / b),
    Pull({1, "y"}, lambda g, plan, a, b, y: -(g * (y / b))),
    "float",
)
floor_divide = _binary("floor_divide", real=True)
remainder = _binary("remainder", _passed, Pull({0, 1}, lambda g, plan, a, b, y: -(g * (a // b))), real=True)
pow: Function = _binary(
    "pow",
    Pull({0, 1}, lambda g, plan, a, b, y: g * _slope(a, b)),
    Pull({0, "y"}, lambda g, plan, a, b, y: g * (y * _rate(a, y))),
)
atan2 = _binary(
    "atan2",
    Pull({0, 1}, lambda g, plan, a, b, y: g * (b / (a * a + b * b))),
    Pull({0, 1}, lambda g, plan, a, b, y: -(g * (a / (a * a + b * b)))), "float", real=True,
)  # fmt: skip
hypot = _binary(
    "hypot", Pull({0, "y"}, lambda g, plan, a, b, y: g * (a / y)), Pull({1, "y"}, lambda g, plan, a, b, y: g * (b / y)),
    "float", real=True,
)  # fmt: skip
logaddexp = _binary(
    "logaddexp",
    Pull({0, "y"}, lambda g, plan, a, b, y: g * _share(a, y)),
    Pull({1, "y"}, lambda g, plan, a, b, y: g * _share(b, y)), "float", real=True,
)  # fmt: skip
copysign: Function = _binary(
    "copysign",
    Pull({0, 1}, lambda g, plan, a, b, y: g * copysign(1.0, a) * copysign(1.0, b)),
    _zero,
    "float",
    real=True,
)
nextafter = _binary("nextafter", _passed, _zero, "float", real=True)
equal, not_equal = (_binary(name, accepts="any", infer=boolean) for name in ("equal", "not_equal"))
less, less_equal, greater, greater_equal = (
    _binary(name, accepts="any", infer=boolean, real=True)
    for name in ("less", "less_equal", "greater", "greater_equal")
)
maximum: Function = _extremum("maximum", greater_equal, greater)
minimum: Function = _extremum("minimum", less_equal, less)
logical_and, logical_or, logical_xor = (
    _binary(name, accepts="bool", infer=boolean) for name in ("logical_and", "logical_or", "logical_xor")
)
bitwise_and, bitwise_or, bitwise_xor, bitwise_left_shift, bitwise_right_shift = (
    _binary(f"bitwise_{name}", accepts="integer" if "shift" in name else "bits")
    for name in ("and", "or", "xor", "left_shift", "right_shift")
)


def _share(a: Any, y: Any) -> Any:
    """Derivative of y = logaddexp(a, b) with respect to a: exp(a - y), but 0 where a, b and y are -inf."""
    return exp(a - maximum(y, -65504.0 if y.dtype == HALF else -3e38))


def _slope(a: Any, b: Any) -> Any:
    """Derivative of a^b with respect to a: b a^(b - 1), but 0 at b = 0 for every a, because a^0 is always 1."""
    if not hasattr(b, "dtype"):
        return b * pow(a, b - 1.0) if b else zeros_like(a)
    odd = logical_or(equal(a, 0.0), logical_not(isfinite(a)))
    return b * pow(a, where(logical_and(odd, equal(b, 0.0)), 1.0, b) - 1.0)


def _rate(a: Any, y: Any) -> Any:
    """Return log(a), by which y = a^b is multiplied in its derivative with respect to b.

    For real a < 0 the result is 0 instead; at a = 0 it is 0, or -1 if y is infinite.
    """
    if not hasattr(a, "dtype"):
        if a == 0:
            return -astype(isinf(y), y.dtype)
        return cmath.log(a) if y.dtype.kind == "c" else math.log(a) if a > 0 else 0.0
    has_log = not_equal(a, 0.0) if a.dtype.kind == "c" else greater(a, 0.0)
    poles = logical_and(equal(a, 0.0), isinf(y))
    return log(where(has_log, a, 1.0)) * astype(has_log, a.dtype) - astype(poles, a.dtype)


def _infer_where(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape rule of `where`: the shape to which all three operands broadcast, and the dtype of the last two."""
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
    """Choose elements of ``x`` where ``condition`` is true, else of ``y``.

    The three operands broadcast. The result has the common dtype of x and y. Only chosen elements get a gradient.

    Raises:
        TypeError: ``condition`` is not bool.

    >>> import flnb
    >>> flnb.where([True, False, True], [1, 2, 3], 0)
    Tensor([1, 0, 3], int64[3], numpy)
    """
    return dispatch.call(_where, (condition, x, y))


def clip(x: ArrayLike, /, min: ArrayLike | None = None, max: ArrayLike | None = None) -> Tensor:
    """Limit elements to the range from ``min`` to ``max``.

    Each limit is a number, a tensor that broadcasts against x, or None for no limit. The result has the dtype of x.
    For an element between the limits, or equal to one, the gradient flows to the element. For an element beyond a
    limit, the gradient flows to this limit.

    Raises:
        ValueError: the shapes do not broadcast.

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
    """Limit elements by `maximum` and `minimum`, in the dtype of x."""
    y = x if min is None else maximum(x, min)
    y = y if max is None else minimum(y, max)
    return y if y.dtype == x.dtype else astype(y, x.dtype)


def astype(x: ArrayLike, dtype: DTypeLike, /, *, copy: bool = True, device: str | None = None) -> Tensor:
    """Convert a tensor to another dtype; floating-point numbers become integers by rounding towards zero.

    With ``copy=False`` x itself is returned if it has the dtype already. The gradient is cast to the dtype of x.

    Raises:
        TypeError: x is complex and ``dtype`` real, so that the imaginary part would be lost.

    >>> import flnb
    >>> flnb.astype(flnb.asarray([1.7, -1.7]), flnb.int64)
    Tensor([ 1, -1], int64[2], numpy)
    """
    check_device(device)
    x, target = asarray(x), dtype_of(dtype)
    if not copy and x.dtype == target:
        return x
    refuse_complex("astype", x.dtype, target)
    return dispatch.call(_astype, (x,), (target,))


def biased(y: Any, bias: Any) -> Any:
    """Add a bias to a product y; if autocast computed y in half precision, a float32 bias is cast to y's dtype."""
    computed = y._spec.dtype
    if bias.dtype is not computed and computed.itemsize == 2 and is_float(computed) and bias.dtype == np.float32:
        bias = astype(asarray(bias), computed)
    return add(y, bias)


_astype = Op(
    "astype", "movement", lambda op, specs, attributes: (specs[0].shape, attributes[0]),
    [Pull((), lambda g, plan, x, y: _uncast(g, plan.specs[0].dtype))], unpromoted=(0,), holomorphic=False,
)  # fmt: skip


def _uncast(g: Any, dtype: np.dtype[Any]) -> Any:
    """Cast a gradient to ``dtype``, the dtype of the input of `astype`; a real dtype gets the real part only."""
    return astype(real(g) if g.dtype.kind == "c" and dtype.kind != "c" else g, dtype)


def copy(x: ArrayLike, /) -> Tensor:
    """Copy a tensor to new memory, in row-major order.

    >>> import flnb
    >>> x = flnb.asarray([1, 2])
    >>> flnb.copy(x) is x
    False
    """
    return _copy.entries[1, ""](x, ())


_copy = Op("copy", "movement", shaped(), [Pull((), lambda g, plan, x, y: g)], unpromoted=(0,))


def assign(target: Tensor, value: ArrayLike, /) -> Tensor:
    """Write ``value`` into ``target`` in place, and return ``target``.

    The value is broadcast to the target's shape and cast to its dtype.

    Raises:
        RuntimeError: ``target`` is a Variable that requires grad, and gradients are recorded.

    >>> import flnb
    >>> flnb.assign(flnb.zeros(3), 7)
    Tensor([7., 7., 7.], float32[3], numpy)
    """
    from flnb.ops.movement import broadcast_to

    if not isinstance(target, Tensor) or getattr(value, "_spec", None) is not target._spec:
        value = broadcast_to(asarray(value, target.dtype), target.shape)
    return dispatch.write(_copy, (value,), (), target)
