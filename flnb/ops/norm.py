"""Norms of vectors and matrices, and what singular values say about them."""

from __future__ import annotations

import math
from typing import Any

from flnb.dispatch.brief import brief
from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.creation import asarray
from flnb.ops.decomposition import svdvals
from flnb.ops.inverse import relative_tolerance
from flnb.ops.movement import expand_dims
from flnb.ops.packed import matrices
from flnb.tensor import ArrayLike, Tensor, axes_of

INFINITY = math.inf


def _euclidean(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """The root of the sum of squares, with gradient 0 at the origin: the subgradient of least norm."""
    total = r.sum(e.square(x), axis=axes, keepdims=keepdims)
    origin = e.equal(total, 0.0)
    return e.where(origin, 0.0, e.sqrt(e.where(origin, 1.0, total)))


def vector_norm(
    x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """The vector norm over ``axis`` (an int, several, or None for all): ``sum(abs(x) ** ord) ** (1 / ord)``.

    ``ord`` may also be infinity (the largest absolute value), -infinity (the smallest) or 0 (how many are not zero).

    >>> import flnb
    >>> flnb.linalg.vector_norm([3.0, -4.0])
    Tensor(5., float32[], numpy)
    """
    x = r.floating(x)
    x = e.abs(x) if x.dtype.kind == "c" else x
    axes = axes_of(axis, x.ndim, "vector_norm")
    over = tuple(range(x.ndim)) if axes is None else axes
    if ord == 2:
        return _euclidean(x, over, keepdims)
    size = e.abs(x)
    if ord == INFINITY:
        return r.max(size, axis=over, keepdims=keepdims)
    if ord == -INFINITY:
        return r.min(size, axis=over, keepdims=keepdims)
    if ord == 0:
        return r.sum(e.astype(e.not_equal(size, 0.0), size.dtype), axis=over, keepdims=keepdims)
    if ord == 1:
        return r.sum(size, axis=over, keepdims=keepdims)
    return e.pow(r.sum(e.pow(size, float(ord)), axis=over, keepdims=keepdims), 1.0 / ord)


def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: float | str = "fro") -> Tensor:
    """Norms (...) of matrices (..., M, N).

    ``ord``: "fro" (root of the sum of squares), "nuc" (sum of singular values), 2 and -2 (largest and smallest
    singular value), 1 and -1 (largest and smallest sum of a column), infinity and -infinity (likewise of a row).

    >>> import flnb
    >>> flnb.linalg.matrix_norm([[3.0, 0.0], [0.0, 4.0]])
    Tensor(5., float32[], numpy)
    """
    x = r.floating(x)
    matrices("matrix_norm", x._spec)
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in (1, -1, INFINITY, -INFINITY):
        sums = r.sum(e.abs(x), axis=-2 if ord in (1, -1) else -1)
    elif ord in (2, -2, "nuc"):
        sums = svdvals(x)
    else:
        raise ValueError(f"matrix_norm: ord must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {brief(ord)}")
    reduce = r.sum if ord == "nuc" else r.max if ord in (1, 2, INFINITY) else r.min
    y = reduce(sums, axis=-1)
    return expand_dims(expand_dims(y, axis=-1), axis=-1) if keepdims else y


def matrix_rank(x: ArrayLike, /, *, rtol: ArrayLike | None = None) -> Tensor:
    """Rank of matrices (..., M, N): how many singular values exceed ``rtol`` times the largest; int64.

    ``rtol`` is ``max(M, N) * eps`` unless given.

    >>> import flnb
    >>> flnb.linalg.matrix_rank([[1.0, 2.0], [2.0, 4.0]])
    Tensor(1, int64[], numpy)
    """
    x = r.floating(x)
    matrices("matrix_rank", x._spec)
    values = svdvals(x)  # the largest first, if there is any
    least = e.multiply(values[..., :1], expand_dims(relative_tolerance(x, rtol), axis=-1))
    return r.sum(e.astype(e.greater(values, least), "int64"), axis=-1)


def norm(x: ArrayLike, /, p: float = 2, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """The vector p-norm over ``axis`` (None: all): `linalg.vector_norm` with the argument names of torch.

    >>> import flnb
    >>> flnb.norm([3.0, -4.0])
    Tensor(5., float32[], numpy)
    """
    return vector_norm(asarray(x), axis=axis, keepdims=keepdims, ord=p)
