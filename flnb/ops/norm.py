"""Norms of vectors and matrices, and the rank of matrices."""

from __future__ import annotations

import math

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


def vector_norm(
    x: ArrayLike, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, ord: float = 2
) -> Tensor:
    """Vector norm over ``axis`` (an int, a tuple of ints, or None for all): ``sum(abs(x) ** ord) ** (1 / ord)``.

    ``ord`` may also be infinity (the largest absolute value), -infinity (the smallest) or 0 (the number of elements
    that are not zero). The gradient of the 2-norm of zeros is 0.

    >>> import flnb
    >>> flnb.linalg.vector_norm([3.0, -4.0])
    Tensor(5., float32[], numpy)
    """
    x = r.floating(x)
    x = e.abs(x) if x.dtype.kind == "c" else x
    over = axes_of(axis, x.ndim, "vector_norm"), keepdims
    if ord == 2:
        return r.root(r.sum(e.square(x), *over))
    size = e.abs(x)
    if ord in (INFINITY, -INFINITY):
        return (r.max if ord > 0 else r.min)(size, *over)
    if ord == 0:
        return r.sum(e.astype(e.not_equal(size, 0.0), size.dtype), *over)
    if ord == 1:
        return r.sum(size, *over)
    return r.sum(e.pow(size, float(ord)), *over) ** (1.0 / ord)


def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: float | str = "fro") -> Tensor:
    """Norms (...) of matrices x (..., M, N).

    ``ord`` is "fro" for the root of the sum of squares, "nuc" for the sum of singular values, 2 or -2 for the largest
    or smallest singular value, 1 or -1 for the largest or smallest sum of a column's absolute values, infinity or
    -infinity for the same of a row.

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
    """Rank (...) of matrices x (..., M, N), int64: how many singular values exceed ``rtol`` times the largest.

    ``rtol`` is ``max(M, N) * eps`` unless given, with the machine epsilon ``eps`` of the dtype.

    >>> import flnb
    >>> flnb.linalg.matrix_rank([[1.0, 2.0], [2.0, 4.0]])
    Tensor(1, int64[], numpy)
    """
    x = r.floating(x)
    matrices("matrix_rank", x._spec)
    values = svdvals(x)  # in descending order
    least = values[..., :1] * expand_dims(relative_tolerance(x, rtol), axis=-1)
    return r.sum(values > least, axis=-1)


def norm(x: ArrayLike, /, p: float = 2, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """Vector p-norm over ``axis`` (an int, a tuple of ints, or None for all).

    It is `flnb.linalg.vector_norm` with the argument names of torch.

    >>> import flnb
    >>> flnb.norm([3.0, -4.0])
    Tensor(5., float32[], numpy)
    """
    return vector_norm(asarray(x), axis=axis, keepdims=keepdims, ord=p)
