"""Reductions. Each primitive takes ``axis`` as a sorted tuple (all axes when the caller gave None) and ``keepdims``."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.autocast import cast_target
from flnb.dispatch.brief import brief
from flnb.dispatch.dtypes import default_dtype, is_float
from flnb.dispatch.plan import size_of
from flnb.dispatch.table import Op, Pull, named
from flnb.ops import elementwise as e
from flnb.ops.creation import arange, asarray, eye, full
from flnb.ops.movement import broadcast_to, concat, expand_dims, flip, moveaxis, pad, permute_dims, reshape
from flnb.tensor import ArrayLike, DTypeLike, Tensor, axes_of, axis_of

INTEGER = np.dtype(np.int64)

_TEXT = """{first}

    ``axis`` is an int, several in a tuple, or None for all elements; with ``keepdims`` they stay with extent 1.

    >>> import flnb
    >>> flnb.{name}([[1, 2], [3, 4]], axis=0)
    Tensor({values}, numpy)
"""
_CASTS = """
    With ``dtype`` elements are cast to it first, and the result has it."""


def reduced(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """The shape after reducing axes."""
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def _infer(dtype: Callable[[np.dtype[Any]], Any], needs_elements: bool = False) -> Callable[..., Any]:
    def infer(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
        axes, keepdims = attributes
        (spec,) = specs
        if needs_elements and 0 in [spec.shape[a] for a in axes]:
            raise ValueError(f"{op.name}: no element to choose along axis {axes} of {spec!r}")
        return reduced(spec.shape, axes, keepdims), dtype(spec.dtype)

    return infer


def _accumulator(dtype: np.dtype[Any]) -> Any:
    """The dtype of a sum: small integers and bool are summed in 64 bits, as the array API requires."""
    return INTEGER if dtype.kind in "bi" else np.dtype(np.uint64) if dtype.kind == "u" else dtype


def _expand(g: Any, plan: Any) -> Any:
    """Bring a reduced tensor back to the input's shape."""
    axes, _ = plan.attributes
    shape = plan.specs[0].shape
    return broadcast_to(reshape(g, reduced(shape, axes, True)), shape)


def _pull_extremum(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """Shared equally among equal extrema, so that the gradient is a subgradient whatever the order."""
    chosen = e.astype(e.equal(x, _expand(y, plan)), g.dtype)
    count = sum(chosen, axis=plan.attributes[0], keepdims=True)
    return e.multiply(e.divide(chosen, count), _expand(g, plan))


def _pull_prod(g: Any, plan: Any, x: Any, y: Any) -> Any:
    axes, _ = plan.attributes
    kept = [i for i in range(x.ndim) if i not in axes]
    order = (*kept, *axes)
    apart = permute_dims(x, order)
    others = _product_of_others(reshape(apart, (*apart.shape[: len(kept)], size_of(apart.shape[len(kept) :]))))
    return e.multiply(_expand(g, plan), permute_dims(reshape(others, apart.shape), np.argsort(order).tolist()))


def _product_of_others(x: Any) -> Any:
    """Products of rows without one element each, in log2(n) steps from both ends: right also where some are zero."""
    n = x.shape[-1]
    step = builtins.min(1, n)
    before, after = _shifted(x, step), _shifted(x, -step)
    while 0 < step < n:
        before, after = e.multiply(before, _shifted(before, step)), e.multiply(after, _shifted(after, -step))
        step *= 2
    return e.multiply(before, after)


def _shifted(x: Any, step: int) -> Any:
    """Rows moved by a number of places; ones come in."""
    n, ahead, back = x.shape[-1], builtins.max(step, 0), builtins.max(-step, 0)
    return pad(x[..., back : n - ahead], (*((0, 0),) * (x.ndim - 1), (ahead, back)), 1.0)


def _reduction(
    name: str, first: str, values: str, dtype: Callable[[np.dtype[Any]], Any], pull: Pull | None = None,
    needs_elements: bool = False, accepts: str = "any", real: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    rule = _infer(dtype, needs_elements)
    op = Op(name, "reduction", rule, [pull], accepts=accepts, real=real, flops=lambda plan: plan.specs[0].size)

    def apply(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
        x = asarray(x)
        axes = axes_of(axis, x.ndim, name)
        return dispatch.call(op, (x,), (tuple(range(x.ndim)) if axes is None else axes, bool(keepdims)))

    apply.__doc__ = _TEXT.format(first=first, name=name, values=values)
    return named(apply, op)


def _casting(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Add an argument ``dtype``, in which to compute, to a reduction."""

    def apply(
        x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, dtype: DTypeLike = None
    ) -> Tensor:
        if dtype is None:
            return reduce(x, axis, keepdims)
        return e.astype(reduce(e.astype(asarray(x), dtype, copy=False), axis, keepdims), dtype, copy=False)

    apply.__doc__ = (reduce.__doc__ or "").replace("extent 1.", "extent 1." + _CASTS)
    apply.__name__, apply.__qualname__, apply.__module__ = reduce.__name__, reduce.__name__, reduce.__module__
    return apply


_each = Pull((), lambda g, plan, x, y: _expand(g, plan))
sum = _casting(_reduction(
    "sum", "Sum of elements; integers and bool are summed in 64 bits.", "[4, 6], int64[2]", _accumulator, _each
))  # fmt: skip
prod = _casting(_reduction(
    "prod", "Product of elements; integers and bool are multiplied in 64 bits.", "[3, 8], int64[2]", _accumulator,
    Pull({0}, _pull_prod),
))  # fmt: skip
_chosen = Pull({0, "y"}, _pull_extremum)
max = _reduction(
    "max", "Largest element; equal ones share the gradient.", "[3, 4], int64[2]", lambda d: d, _chosen,
    needs_elements=True, real=True,
)  # fmt: skip
min = _reduction(
    "min", "Smallest element; equal ones share the gradient.", "[1, 2], int64[2]", lambda d: d, _chosen,
    needs_elements=True, real=True,
)  # fmt: skip
any = _reduction(
    "any", "Whether any element is true, or not zero.", "[ True,  True], bool[2]", lambda _: e.BOOL, accepts="bool"
)
all = _reduction(
    "all", "Whether all elements are true, or not zero.", "[ True,  True], bool[2]", lambda _: e.BOOL, accepts="bool"
)


def _arg(name: str, extreme: str, values: str) -> Callable[..., Any]:
    op = Op(name, "reduction", _infer(lambda _: INTEGER, needs_elements=True), real=True)

    def apply(x: ArrayLike, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
        x = asarray(x)
        if axis is not None and not hasattr(axis, "__index__"):
            raise TypeError(f"{op.name}: axis must be one int or None, got {brief(axis)}")
        if axis is None and x.ndim != 1:
            flat = dispatch.call(op, (reshape(x, (x.size,)),), ((0,), False))
            return reshape(flat, (1,) * x.ndim) if keepdims else flat
        axes = axes_of(0 if axis is None else axis, x.ndim, op.name)
        return dispatch.call(op, (x,), (axes, bool(keepdims)))

    apply.__doc__ = f"""Index of the first {extreme} element along ``axis``, int64; None counts in the flattened tensor.

    >>> import flnb
    >>> flnb.{name}([[1, 7], [5, 2]], axis=1)
    Tensor({values}, int64[2], numpy)
    """
    return named(apply, op)


argmax = _arg("argmax", "largest", "[1, 0]")
argmin = _arg("argmin", "smallest", "[0, 1]")


def _pull_cumulative(g: Any, plan: Any, x: Any, y: Any) -> Any:
    (axis,) = plan.attributes
    return flip(cumulative_sum(flip(g, axis=axis), axis=axis), axis=axis)


def _pull_running_product(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """dx[i] = sum over j >= i of g[j] y[j] / x[i], with each y[j] / x[i] multiplied out: right also where x is zero."""
    (axis,) = plan.attributes
    n = x.shape[axis]
    if n == 0:
        return g
    later = e.greater_equal(arange(n), reshape(arange(n), (n, 1)))  # row i: the factors of y[j] / x[i], column by j
    last = moveaxis(x, axis, -1)
    others = e.where(eye(n, dtype=np.bool_), 1.0, expand_dims(last, axis=-2))
    rows = cumulative_prod(others, axis=-1)
    pulled = sum(e.where(later, e.multiply(rows, expand_dims(moveaxis(g, axis, -1), axis=-2)), 0.0), axis=-1)
    return moveaxis(pulled, -1, axis)


def _cumulative(name: str, pull: Pull, initial: int, what: str, values: str) -> Callable[..., Any]:
    op = Op(name, "reduction", lambda op, specs, _: (specs[0].shape, _accumulator(specs[0].dtype)), [pull])

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

    With ``include_initial`` they begin with {initial}, and are one more. With ``dtype`` elements are cast to it first.

    >>> import flnb
    >>> flnb.{name}([2, 3, 4])
    Tensor({values}, int64[3], numpy)
    """
    return named(apply, op)


cumulative_sum = _cumulative("cumulative_sum", Pull((), _pull_cumulative), 0, "sums", "[2, 5, 9]")
cumulative_prod = _cumulative("cumulative_prod", Pull({0}, _pull_running_product), 1, "products", "[ 2,  6, 24]")


def _in_float32(function: Callable[..., Any], x: Any, **options: Any) -> Any:
    """Compute a mean of half precision in float32, since the sum may overflow; autocast may leave the result there."""
    y = function(e.astype(x, np.float32), **options)
    return y if cast_target("sum") == y.dtype else e.astype(y, x.dtype)


def mean(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """Arithmetic mean over ``axis`` (an int, several, or None for all).

    Integers are cast to the default floating dtype; half precision is summed in float32.

    >>> import flnb
    >>> flnb.mean([[1.0, 2.0], [3.0, 4.0]], axis=0)
    Tensor([2., 3.], float32[2], numpy)
    """
    x = floating(x)
    if x._spec.dtype.itemsize == 2:
        return _in_float32(mean, x, axis=axis, keepdims=keepdims)
    total = sum(x, axis=axis, keepdims=keepdims)
    return e.multiply(total, total.size / x.size if x.size else float("nan"))


def var(
    x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """Variance over ``axis`` (an int, several, or None for all): squared deviations over n - ``correction``.

    The default 0 is the population's variance; 1 is the unbiased estimate from a sample. NaN where n <= correction.
    Of complex numbers it is real: the sum of the variances of their parts.

    >>> import flnb
    >>> flnb.var([1.0, 3.0]), flnb.var([1.0, 3.0], correction=1)
    (Tensor(1., float32[], numpy), Tensor(2., float32[], numpy))
    """
    x = floating(x)
    if x._spec.dtype.itemsize == 2:
        return _in_float32(var, x, axis=axis, correction=correction, keepdims=keepdims)
    centred = e.subtract(x, mean(x, axis=axis, keepdims=True))
    squares = e.square(centred) if x.dtype.kind != "c" else e.add(e.square(e.real(centred)), e.square(e.imag(centred)))
    total = sum(squares, axis=axis, keepdims=keepdims)
    n = x.size / total.size if total.size else 0.0
    if n <= correction:
        return e.multiply(total, float("nan"))
    return e.multiply(total, 1.0 / (n - correction))


def std(
    x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """Standard deviation over ``axis``: the square root of `var`, with gradient 0 where all elements are equal.

    >>> import flnb
    >>> flnb.std([1.0, 3.0])
    Tensor(1., float32[], numpy)
    """
    variance = var(x, axis=axis, correction=correction, keepdims=keepdims)
    if variance._node is None:
        return e.sqrt(variance)
    zero = e.equal(variance, 0.0)
    return e.where(zero, 0.0, e.sqrt(e.where(zero, 1.0, variance)))


def diff(
    x: ArrayLike, /, axis: int = -1, n: int = 1, prepend: ArrayLike | None = None, append: ArrayLike | None = None
) -> Tensor:
    """Differences of neighbours along ``axis``, taken ``n`` times; ``prepend`` and ``append`` are joined on first.

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
    """A floating-point tensor: other dtypes are cast to the default one."""
    x = asarray(x)
    return x if is_float(x.dtype) else e.astype(x, default_dtype())
