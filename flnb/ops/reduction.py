"""Reductions over axes, and running sums and products.

The attributes of a reduction's entry in the op table are the axes, a sorted tuple of ints >= 0, and ``keepdims``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.arguments import axes_of, axis_of
from flnb.dispatch.autocast import cast_target
from flnb.dispatch.brief import brief
from flnb.dispatch.dtypes import default_dtype, is_float
from flnb.dispatch.table import Op, Pull, named
from flnb.ops import elementwise as e
from flnb.ops.creation import arange, asarray, eye, full
from flnb.ops.movement import broadcast_to, concat, expand_dims, flatten, flip, moveaxis, pad, permute_dims, reshape
from flnb.tensor import ArrayLike, DTypeLike, Tensor

INTEGER = np.dtype(np.int64)

_TEXT = """{first}

    ``axis`` is an int, a tuple of ints, or None for all axes; with ``keepdims`` reduced axes stay, with extent 1.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.{name}([[1, 2], [3, 4]], axis=0)
    Tensor({values}, numpy)
"""
_CASTS = """
    With ``dtype`` elements are cast to it first, and the result has it."""


def reduced(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """Return the shape of the result of a reduction over ``axes`` of a tensor of shape ``shape``."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape) if keepdims or i not in axes)


def _infer(dtype: Callable[[np.dtype[Any]], Any], needs_elements: bool = False) -> Callable[..., Any]:
    """Make the shape rule of a reduction; ``dtype`` maps the input's dtype to the result's.

    With ``needs_elements`` the rule raises a ValueError where there is no element along an axis.
    """

    def infer(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
        axes, keepdims = attributes
        (spec,) = specs
        if needs_elements and 0 in [spec.shape[a] for a in axes]:
            raise ValueError(f"{op.name}: expected one element or more along axes {axes}, got {spec!r}")
        return reduced(spec.shape, axes, keepdims), dtype(spec.dtype)

    return infer


def summed(dtype: np.dtype[Any]) -> Any:
    """Return the dtype of a sum: integers and bool are summed in 64 bits, as the array API requires."""
    return INTEGER if dtype.kind in "bi" else np.dtype(np.uint64) if dtype.kind == "u" else dtype


def _expand(g: Any, plan: Any) -> Any:
    """Broadcast a reduction's result, or the gradient of it, to the shape of the reduction's input."""
    axes, _ = plan.attributes
    shape = plan.specs[0].shape
    return broadcast_to(reshape(g, reduced(shape, axes, True)), shape)


def _pull_extremum(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """Gradient of max and min, which all elements equal to the result share equally."""
    chosen = e.astype(e.equal(x, _expand(y, plan)), g.dtype)
    return chosen / sum(chosen, plan.attributes[0], keepdims=True) * _expand(g, plan)


def _pull_prod(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """Gradient of prod: for each element, g times the product of the others, which is right for zeros, too."""
    apart, order = reduced_last(x, plan.attributes[0])
    others = _product_of_others(flatten(apart, start=x.ndim - len(plan.attributes[0])))
    return _expand(g, plan) * permute_dims(reshape(others, apart.shape), np.argsort(order).tolist())


def reduced_last(x: Any, axes: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """Return x with the axes to reduce moved to the end, and the new order of x's axes as a tuple of ints."""
    order = (*[i for i in range(x.ndim) if i not in axes], *axes)
    return permute_dims(x, order), order


def _product_of_others(x: Any) -> Any:
    """Return a tensor whose element [..., i] is the product of all x[..., j] with j != i, in log2(n) steps."""
    n = x.shape[-1]
    step = builtins.min(1, n)
    before, after = _shifted(x, step), _shifted(x, -step)
    while 0 < step < n:
        before, after = before * _shifted(before, step), after * _shifted(after, -step)
        step *= 2
    return before * after


def _shifted(x: Any, step: int) -> Any:
    """Return x with elements moved by ``step`` along the last axis (if negative, to the left) and ones in the gap."""
    n, ahead, back = x.shape[-1], builtins.max(step, 0), builtins.max(-step, 0)
    return pad(x[..., back : n - ahead], (*((0, 0),) * (x.ndim - 1), (ahead, back)), 1.0)


def _reduction(
    name: str, first: str, values: str, dtype: Callable[[np.dtype[Any]], Any], pull: Pull | None = None,
    needs_elements: bool = False, accepts: str = "any", real: bool = False, casts: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """Declare a reduction and return its public function.

    Args:
        name: the op's name.
        first: the first sentence of the public docstring.
        values: the values, dtype and shape that the docstring's example shows.
        dtype: maps the input's dtype to the result's.
        pull: the gradient function; None if the op has no gradient.
        needs_elements: whether a reduction over no elements is an error.
        accepts, real: which dtypes the op takes, as in `Op`.
        casts: whether the function has an argument ``dtype``: the dtype of its computation and result.
    """
    rule = _infer(dtype, needs_elements)
    op = Op(name, "reduction", rule, [pull], accepts=accepts, real=real, flops=lambda plan: plan.specs[0].size)

    def apply(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        x = x if isinstance(x, Tensor) else asarray(x)
        return op.entries[1, ""](x, (axes_of(axis, x._spec.ndim, name), bool(keepdims)))

    def casting(
        x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, dtype: DTypeLike = None
    ) -> Tensor:
        x = x if isinstance(x, Tensor) else asarray(x)
        x = x if dtype is None else e.astype(x, dtype, copy=False)
        y = op.entries[1, ""](x, (axes_of(axis, x._spec.ndim, name), bool(keepdims)))
        return y if dtype is None else e.astype(y, dtype, copy=False)

    doc = _TEXT.format(first=first, name=name, values=values)
    apply.__doc__, casting.__doc__ = doc, doc.replace("extent 1.", "extent 1." + _CASTS)
    return named(casting if casts else apply, op)


sum = _reduction(
    "sum", "Sum of elements; integers and bool are summed in 64 bits.", "[4, 6], int64[2]", summed,
    Pull((), lambda g, plan, x, y: _expand(g, plan)), casts=True,
)  # fmt: skip
prod = _reduction(
    "prod", "Product of elements; integers and bool are multiplied in 64 bits.", "[3, 8], int64[2]", summed,
    Pull({0}, _pull_prod), casts=True,
)  # fmt: skip
max, min = (
    _reduction(
        name, f"{adjective} element; equal ones share the gradient.", values, lambda d: d,
        Pull({0, "y"}, _pull_extremum), needs_elements=True, real=True,
    )
    for name, adjective, values in (("max", "Largest", "[3, 4], int64[2]"), ("min", "Smallest", "[1, 2], int64[2]"))
)  # fmt: skip
any, all = (
    _reduction(name, f"Whether {name} {of} true, or not zero.", "[ True,  True], bool[2]", lambda _: e.BOOL,
               accepts="bool")
    for name, of in (("any", "element is"), ("all", "elements are"))
)  # fmt: skip


def _arg(name: str, extreme: str, values: str) -> Callable[..., Any]:
    """Declare argmax or argmin; its docstring contains ``extreme`` ("largest") and the example's result ``values``."""
    op = Op(name, "reduction", _infer(lambda _: INTEGER, needs_elements=True), real=True)

    def apply(x: ArrayLike, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
        x = asarray(x)
        if axis is not None and not hasattr(axis, "__index__"):
            raise TypeError(f"{op.name}: axis must be one int or None, got {brief(axis)}")
        axes = axes_of(axis, x.ndim, op.name)
        if len(axes) != 1:  # all, or none of a 0-d tensor
            flat = dispatch.call(op, (reshape(x, (x.size,)),), ((0,), False))
            return reshape(flat, (1,) * x.ndim) if keepdims else flat
        return dispatch.call(op, (x,), (axes, bool(keepdims)))

    apply.__doc__ = f"""Index of the first {extreme} element along ``axis``, int64; None: in the flattened tensor.

    Raises:
        numpy.exceptions.AxisError: the axis is out of range.
        ValueError: there is no element along the axis.

    >>> import flnb
    >>> flnb.{name}([[1, 7], [5, 2]], axis=1)
    Tensor({values}, int64[2], numpy)
    """
    return named(apply, op)


argmax = _arg("argmax", "largest", "[1, 0]")
argmin = _arg("argmin", "smallest", "[0, 1]")


def _pull_running_product(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """Gradient of cumulative_prod: dx[i] is the sum over j >= i of g[j] y[j] / x[i], also where x[i] is zero.

    Each y[j] / x[i] is computed as the product of the other factors, which takes memory for n * n numbers per row.
    """
    (axis,) = plan.attributes
    n = x.shape[axis]
    if n == 0:
        return g
    later = arange(n) >= reshape(arange(n), (n, 1))  # (i, j): whether x[i] is a factor of y[j]
    others = e.where(eye(n, dtype=np.bool_), 1.0, expand_dims(moveaxis(x, axis, -1), axis=-2))
    terms = cumulative_prod(others, axis=-1) * expand_dims(moveaxis(g, axis, -1), axis=-2)
    return moveaxis(sum(e.where(later, terms, 0.0), axis=-1), -1, axis)


def _cumulative(name: str, pull: Pull, initial: int, what: str, values: str) -> Callable[..., Any]:
    """Declare a running sum or product, and return its public function.

    Args:
        name: the op's name.
        pull: the gradient function.
        initial: the sum or product of no elements, 0 or 1.
        what: "sums" or "products", for the public docstring.
        values: the result of the docstring's example.
    """
    op = Op(name, "reduction", lambda op, specs, _: (specs[0].shape, summed(specs[0].dtype)), [pull])

    def apply(
        x: ArrayLike, /, axis: int | None = None, dtype: DTypeLike = None, include_initial: bool = False
    ) -> Tensor:
        x = asarray(x) if dtype is None else e.astype(asarray(x), dtype, copy=False)
        if axis is None and x.ndim != 1:
            raise ValueError(f"{name}: give one axis, the tensor has {x.ndim} dimensions")
        position = axis_of(0 if axis is None else axis, x.ndim, name)
        y = dispatch.call(op, (x,), (position,))
        y = y if dtype is None else e.astype(y, dtype, copy=False)
        if not include_initial:
            return y
        return concat([full(reduced(x.shape, (position,), True), initial, y.dtype), y], axis=position)

    apply.__doc__ = f"""Running {what} along ``axis``, which may be omitted for a vector.

    With ``include_initial`` the result begins with {initial} and is longer by one element. With ``dtype`` elements are
    cast to it first.

    Raises:
        numpy.exceptions.AxisError: the axis is out of range.
        ValueError: x has several dimensions, and no axis is given.

    >>> import flnb
    >>> flnb.{name}([2, 3, 4])
    Tensor({values}, int64[3], numpy)
    """
    return named(apply, op)


cumulative_sum: Callable[..., Any] = _cumulative(
    "cumulative_sum",
    Pull((), lambda g, plan, x, y: flip(cumulative_sum(flip(g, *plan.attributes), *plan.attributes), *plan.attributes)),
    0, "sums", "[2, 5, 9]",
)  # fmt: skip
cumulative_prod = _cumulative("cumulative_prod", Pull({0}, _pull_running_product), 1, "products", "[ 2,  6, 24]")


def in_float32(function: Callable[..., Any], x: Any, **options: Any) -> Any:
    """Compute ``function``, such as mean, of half-precision x in float32, to avoid overflow; cast the result back.

    Inside of autocast the result stays float32 if autocast computes sums in float32.
    """
    y = function(e.astype(x, np.float32), **options)
    return y if cast_target("sum") == y.dtype else e.astype(y, x.dtype)


def mean(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """Arithmetic mean over ``axis`` (an int, a tuple of ints, or None for all).

    Integers are cast to the default floating dtype; half precision is summed in float32.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.mean([[1.0, 2.0], [3.0, 4.0]], axis=0)
    Tensor([2., 3.], float32[2], numpy)
    """
    x = floating(x)
    if x._spec.dtype.itemsize == 2:
        return in_float32(mean, x, axis=axis, keepdims=keepdims)
    total = sum(x, axis, keepdims)
    return total * (total.size / x.size if x.size else float("nan"))


def var(
    x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """Variance over ``axis``: the sum of squared deviations from the mean, divided by n - ``correction``.

    ``axis`` is an int, a tuple of ints, or None for all; n is the number of elements over them. ``correction`` is 0 for
    the variance of a population, 1 for the unbiased estimate from a sample. The result is NaN if n <= correction. The
    variance of complex numbers is real: the sum of the variances of their real and imaginary parts.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.var([1.0, 3.0]), flnb.var([1.0, 3.0], correction=1)
    (Tensor(1., float32[], numpy), Tensor(2., float32[], numpy))
    """
    x = floating(x)
    if x._spec.dtype.itemsize == 2:
        return in_float32(var, x, axis=axis, correction=correction, keepdims=keepdims)
    centred = x - mean(x, axis=axis, keepdims=True)
    squares = e.square(centred) if x.dtype.kind != "c" else e.square(e.real(centred)) + e.square(e.imag(centred))
    total = sum(squares, axis, keepdims)
    n = x.size / total.size if total.size else 0.0
    return total * (1.0 / (n - correction) if n > correction else float("nan"))


def std(
    x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """Standard deviation over ``axis``: the square root of `var`, with gradient 0 where all elements are equal.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.std([1.0, 3.0])
    Tensor(1., float32[], numpy)
    """
    x = floating(x)
    if x._spec.dtype.itemsize == 2:
        return in_float32(std, x, axis=axis, correction=correction, keepdims=keepdims)
    return root(var(x, axis=axis, correction=correction, keepdims=keepdims))


def root(x: Any) -> Any:
    """Square root with gradient 0 instead of infinity at 0."""
    if x._node is None:
        return e.sqrt(x)
    zero = e.equal(x, 0.0)
    return e.where(zero, 0.0, e.sqrt(e.where(zero, 1.0, x)))


def diff(
    x: ArrayLike, /, axis: int = -1, n: int = 1, prepend: ArrayLike | None = None, append: ArrayLike | None = None
) -> Tensor:
    """Differences of neighbouring elements along ``axis``, taken ``n`` times.

    First, ``prepend`` and ``append`` are joined to x along the axis.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.diff([1, 4, 9])
    Tensor([3, 5], int64[2], numpy)
    """
    x = asarray(x)
    position = axis_of(axis, x.ndim, "diff")
    if n < 0:
        raise ValueError(f"diff: n must be 0 or more, got {n}")
    x = concat([part for part in (prepend, x, append) if part is not None], axis=position)
    before = (slice(None),) * position
    minus = e.not_equal if x.dtype.kind == "b" else e.subtract
    for _ in range(n):
        x = minus(x[(*before, slice(1, None))], x[(*before, slice(None, -1))])
    return x


def floating(x: Any) -> Any:
    """Convert values to a floating-point tensor; other dtypes are cast to `flnb.default_dtype()`."""
    x = x if isinstance(x, Tensor) else asarray(x)
    return x if is_float(x._spec.dtype) else e.astype(x, default_dtype())
