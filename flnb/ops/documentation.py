"""Wrap and document public functions: docstrings of elementwise ops, readable signatures, errors that are recorded.

The docstring of an elementwise op is made from its entry in the op table and this list of examples and first lines.

abs([-1.5, 2.0]) = [1.5, 2. ] float32[2]
    Absolute value; for complex numbers the magnitude.
acos([-1.0, 1.0]) = [3.1416, 0.    ] float32[2]
    Inverse cosine in radians, 0 to pi; NaN outside [-1, 1].
acosh([1.0, 2.0]) = [0.   , 1.317] float32[2]
    Inverse hyperbolic cosine; NaN below 1.
add([1, 2], 10) = [11, 12] int64[2]
    Sum of two tensors: x1 + x2.
asin([0.0, 1.0]) = [0.    , 1.5708] float32[2]
    Inverse sine in radians, -pi/2 to pi/2; NaN outside [-1, 1].
asinh([0.0, 1.0]) = [0.    , 0.8814] float32[2]
    Inverse hyperbolic sine.
atan([0.0, 1.0]) = [0.    , 0.7854] float32[2]
    Inverse tangent in radians, -pi/2 to pi/2.
atan2([1.0, 1.0], [1.0, -1.0]) = [0.7854, 2.3562] float32[2]
    Angle of the point (x2, x1) in radians, -pi to pi: the inverse tangent of x1 / x2 by quadrant.
atanh([0.0, 0.5]) = [0.    , 0.5493] float32[2]
    Inverse hyperbolic tangent; infinite at -1 and 1, NaN outside of [-1, 1].
bitwise_and([6, 5], 3) = [2, 1] int64[2]
    Bitwise and: the bits that are set in both; for bool, logical and.
bitwise_invert([0, 5]) = [-1, -6] int64[2]
    Bitwise not: every bit is flipped; for bool, logical not.
bitwise_left_shift([1, 3], 2) = [ 4, 12] int64[2]
    The bits of x1 moved x2 places to the left: x1 * 2**x2.
bitwise_or([6, 5], 3) = [7, 7] int64[2]
    Bitwise or: the bits that are set in at least one; for bool, logical or.
bitwise_right_shift([8, 5], 2) = [2, 1] int64[2]
    The bits of x1 moved x2 places to the right: x1 // 2**x2.
bitwise_xor([6, 5], 3) = [5, 6] int64[2]
    Bitwise xor: the bits that are set in exactly one; for bool, logical xor.
ceil([-1.5, 1.5]) = [-1.,  2.] float32[2]
    The smallest integer not below x, in x's dtype.
conj([1 + 2j]) = [1.-2.j] complex64[1]
    Complex conjugate: the imaginary part is negated; real numbers do not change.
copysign([1.0, 2.0], [-1.0, 1.0]) = [-1.,  2.] float32[2]
    The magnitude of x1 with the sign of x2.
cos([0.0, 3.1415927]) = [ 1., -1.] float32[2]
    Cosine of x in radians.
cosh([0.0, 1.0]) = [1.    , 1.5431] float32[2]
    Hyperbolic cosine.
divide([1, 3], 2) = [0.5, 1.5] float32[2]
    Quotient in floating point: x1 / x2; infinite or NaN where x2 is 0.
equal([1, 2], 2) = [False,  True] bool[2]
    Whether x1 == x2; NaN equals nothing.
erf([0.0, 1.0]) = [0.    , 0.8427] float32[2]
    Error function: 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x.
exp([0.0, 1.0]) = [1.    , 2.7183] float32[2]
    Exponential: e to the power of x.
expm1([1e-8]) = [1.e-08] float32[1]
    exp(x) - 1, without loss of precision for small x.
floor([-1.5, 1.5]) = [-2.,  1.] float32[2]
    The largest integer not above x, in x's dtype.
floor_divide([7, -7], 2) = [ 3, -4] int64[2]
    Quotient rounded down to an integer: x1 // x2.
greater([1, 2, 3], 2) = [False, False,  True] bool[3]
    Whether x1 > x2; false where either is NaN.
greater_equal([1, 2, 3], 2) = [False,  True,  True] bool[3]
    Whether x1 >= x2; false where either is NaN.
hypot([3.0, 5.0], [4.0, 12.0]) = [ 5., 13.] float32[2]
    Length of the hypotenuse: sqrt(x1**2 + x2**2), without overflow.
imag([1 + 2j]) = [2.] float32[1]
    Imaginary part; 0 for real numbers.
isfinite([1.0, float("inf")]) = [ True, False] bool[2]
    Whether each element is finite: neither infinite nor NaN.
isinf([1.0, float("-inf")]) = [False,  True] bool[2]
    Whether each element is infinite, of either sign.
isnan([1.0, float("nan")]) = [False,  True] bool[2]
    Whether each element is NaN (not a number).
less([1, 2, 3], 2) = [ True, False, False] bool[3]
    Whether x1 < x2; false where either is NaN.
less_equal([1, 2, 3], 2) = [ True,  True, False] bool[3]
    Whether x1 <= x2; false where either is NaN.
log([1.0, 10.0]) = [0.    , 2.3026] float32[2]
    Natural logarithm; -inf at 0, NaN for negative numbers.
log10([1.0, 100.0]) = [0., 2.] float32[2]
    Logarithm to base 10; -inf at 0, NaN for negative numbers.
log1p([1e-8]) = [1.e-08] float32[1]
    log(1 + x), without loss of precision for small x.
log2([1.0, 8.0]) = [0., 3.] float32[2]
    Logarithm to base 2; -inf at 0, NaN for negative numbers.
logaddexp([0.0, 1000.0], 0.0) = [6.9315e-01, 1.0000e+03] float32[2]
    log(exp(x1) + exp(x2)), without overflow.
logical_and([True, True], [True, False]) = [ True, False] bool[2]
    Whether both are true; numbers other than zero are true.
logical_not([True, False]) = [False,  True] bool[2]
    Whether each element is false; zero is false.
logical_or([True, False], [False, False]) = [ True, False] bool[2]
    Whether at least one is true; numbers other than zero are true.
logical_xor([True, True], [True, False]) = [False,  True] bool[2]
    Whether exactly one is true; numbers other than zero are true.
maximum([1, 5], [4, 2]) = [4, 5] int64[2]
    The larger of two elements, NaN if either is NaN; equal elements get half of the gradient each.
minimum([1, 5], [4, 2]) = [1, 2] int64[2]
    The smaller of two elements, NaN if either is NaN; equal elements get half of the gradient each.
multiply([1, 2], [10, 20]) = [10, 40] int64[2]
    Product of two tensors, element by element: x1 * x2.
negative([1, -2]) = [-1,  2] int64[2]
    Each element negated: -x.
nextafter([0.0], 1.0) = [1.e-45] float32[1]
    The next representable number after x1 in the direction of x2.
not_equal([1, 2], 2) = [ True, False] bool[2]
    Whether x1 != x2; NaN differs from everything.
positive([1, -2]) = [ 1, -2] int64[2]
    Copy of x: +x.
pow([2.0, 3.0], [3.0, 0.5]) = [8.    , 1.7321] float32[2]
    x1 to the power of x2; 0**0 is 1. A negative power of integers is a ValueError.
real([1 + 2j]) = [1.] float32[1]
    Real part; real numbers do not change.
reciprocal([0.5, 4.0]) = [2.  , 0.25] float32[2]
    1 / x; infinite at 0.
remainder([7, -7], 3) = [1, 2] int64[2]
    Remainder of x1 // x2, with the sign of x2: x1 % x2.
round([0.5, 1.5, 2.4]) = [0., 2., 2.] float32[3]
    The nearest integer, in x's dtype; of two equally near ones the even one.
sign([-3.0, 0.0, 2.0]) = [-1.,  0.,  1.] float32[3]
    Sign of x: -1, 0 or 1; for complex numbers x / abs(x).
signbit([-0.0, 1.0]) = [ True, False] bool[2]
    Whether the sign bit is set: true for negative numbers and -0.0.
sin([0.0, 1.5707964]) = [0., 1.] float32[2]
    Sine of x in radians.
sinh([0.0, 1.0]) = [0.    , 1.1752] float32[2]
    Hyperbolic sine.
sqrt([4.0, 2.0]) = [2.    , 1.4142] float32[2]
    Square root; NaN for negative numbers.
square([3, -4]) = [ 9, 16] int64[2]
    Each element times itself: x**2.
subtract([1, 2], 10) = [-9, -8] int64[2]
    Difference of two tensors: x1 - x2.
tan([0.0, 0.7853982]) = [0., 1.] float32[2]
    Tangent of x in radians.
tanh([0.0, 1.0]) = [0.    , 0.7616] float32[2]
    Hyperbolic tangent, between -1 and 1.
trunc([-1.5, 1.5]) = [-1.,  1.] float32[2]
    The integer part: x rounded towards zero, in x's dtype.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from inspect import Parameter, Signature
from types import FunctionType
from typing import TYPE_CHECKING, Any

from numpy.exceptions import AxisError

from flnb.dispatch.failure import failed_function
from flnb.dispatch.spelling import KEYWORDS
from flnb.dispatch.table import OPS

if TYPE_CHECKING:
    from flnb.dispatch.table import Op
    from flnb.tensor import Tensor


class Shown(str):
    """A string for use as an annotation that `inspect.signature` prints without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


_ACCEPTED = {
    "any": "Takes any dtype.",
    "numeric": "Takes any dtype but bool.",
    "float": "Takes any dtype; integers and bool are cast to `flnb.default_dtype()` first.",
    "integer": "Takes an integer dtype.",
    "bits": "Takes an integer dtype or bool.",
    "bool": "Takes any dtype; numbers are cast to bool first.",
}
_MADE = {"boolean": "is bool", "magnitude": "{} dtype, for complex numbers that of their parts", "same": "{} dtype"}
_TEXT = """{first}

    {accepted}{real}
    {result}{gradient}
    With ``out``, a Tensor of the result's shape and dtype, the result is written into it.

    Raises:
        TypeError: the dtype is not accepted, or the values are no numbers.
        ValueError: ``out`` has another shape or dtype{shapes}.

    >>> import flnb
    >>> flnb.{name}({arguments})
    Tensor({values}, {spec}, numpy)
"""
_ENTRY = re.compile(r"^ *(\w+)\((.*)\) = (.*) (\w+\[.*\])\n +(.*)$", re.M)
_EXAMPLES = {name: rest for name, *rest in _ENTRY.findall(__doc__ or "")}


def readable(member: Any) -> Any:
    """Let `inspect` and IPython show the signatures of a function or class without quotes; return ``member``."""
    inner = getattr(member, "__wrapped__", member)
    if isinstance(inner, type):
        for own in vars(inner).values():
            if not isinstance(own, type):
                readable(own)
    elif isinstance(inner, FunctionType):
        inner.__annotations__ = {name: Shown(text) for name, text in inner.__annotations__.items()}
    return member


def documented(op: Op) -> Callable[..., Tensor]:
    """Return the public function of an op of one or two tensors, after adding a readable signature and docstring."""
    function: Any = op.entries[op.arity, ""]
    tensors = [Parameter(x, Parameter.POSITIONAL_ONLY, annotation=Shown("ArrayLike")) for x in ("x1", "x2")]
    tensors = tensors if op.arity == 2 else [tensors[0].replace(name="x")]
    out = Parameter("out", Parameter.KEYWORD_ONLY, default=None, annotation=Shown("Tensor | None"))
    function.__signature__ = Signature([*tensors, out], return_annotation=Shown("Tensor"))
    function.__annotations__ = {x.name: x.annotation for x in (*tensors, out)} | {"return": Shown("Tensor")}
    if op.name in _EXAMPLES:
        function.__doc__ = _docstring(op, *_EXAMPLES[op.name])
    return function


def _docstring(op: Op, arguments: str, values: str, spec: str, first: str) -> str:
    """Make the docstring of an elementwise op from its entry in the op table, its example and its first line.

    The example is a call with ``arguments``, which returns a tensor that is printed with ``values`` and ``spec``.
    """
    two = op.arity == 2
    shape, dtype = ("the shape to which x1 and x2 broadcast", "their common") if two else ("the shape of x", "its")
    return _TEXT.format(
        first=first, name=op.name, arguments=arguments, values=values, spec=spec,
        accepted=_ACCEPTED[op.accepts], real=" Complex numbers are refused." if op.real else "",
        result=f"The result has {shape} and {_MADE[op.infer.__name__].format(dtype)}.",
        gradient="" if op.differentiable else " It has no gradient.",
        shapes=", or x1 and x2 do not broadcast" if two else "",
    )  # fmt: skip


_NO_TENSORS = ("flnb.ops.creation", "flnb.random")
"""Modules whose functions take no tensors: their errors are no failed ops."""
_UNWRAPPED = ("asarray", "broadcast_to", "copy", "current_generator", "matmul", "relu", "reshape", "sigmoid", "where")
"""Functions that are called so often that a wrapper's 0.1 us would matter. They report bad arguments themselves."""
_NAMES = set(OPS)
"""The names of ops and public functions, by which errors begin."""


def public(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function for export, so that a recording shows its errors as failed ops (`flnb.dispatch.failure`).

    Errors begin with the name of the function that was called, not of a function or op that it is made of. For a
    keyword of torch the error names the keyword that flnb uses:

    >>> import flnb
    >>> flnb.sum(flnb.ones((2, 3)), dim=1)
    Traceback (most recent call last):
    TypeError: sum: no argument is named dim; as in NumPy and the array API it is axis=
    """
    name = function.__name__
    op = OPS.get(name)
    readable(function)
    _NAMES.add(name)
    if function.__module__ == "flnb.ops.dtypes" or name in _UNWRAPPED:
        return function
    if op is not None and function is op.entries.get((op.arity, "")):
        return function
    code, family = function.__code__, op.family if op is not None else "movement"
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    ours = {theirs: mine for theirs, names in KEYWORDS.items() for mine in names if mine in parameters}

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            for theirs in keywords:
                if theirs in ours and isinstance(error, TypeError):
                    raise TypeError(
                        f"{name}: no argument is named {theirs}; as in NumPy and the array API it is {ours[theirs]}="
                    ) from None
            if type(error) in (TypeError, ValueError, IndexError, AxisError):
                _rename(error, name)
            if function.__module__ not in _NO_TENSORS:
                failed_function(error, name, family, (*arguments, *keywords.values()))
            raise

    return checked


def _rename(error: Exception, name: str) -> None:
    """Let an error's message begin with ``name``, in place of the name of the op that raised it."""
    text = str(error)
    first, colon, rest = text.partition(": ")
    if colon and first in _NAMES:
        text = f"{name}: {rest}"
    elif not hasattr(error, "__notes__") and not re.match(r"[\w.]+(: |\()", text):
        text = f"{name}: {text}"
    error.args = (text,)
    if isinstance(error, AxisError):
        AxisError.__init__(error, text)  # which prints a text of its own, not args
