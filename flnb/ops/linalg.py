"""Products of vectors and matrices."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.failure import refused
from flnb.dispatch.table import Combined, Op, Pull, describe
from flnb.ops import elementwise as e
from flnb.ops.arranging import roll
from flnb.ops.creation import asarray
from flnb.ops.movement import expand_dims, matrices, permute_dims, reshape, sum_to, transposed
from flnb.ops.reduction import sum
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, DTypeLike


def adjoint(x: Any) -> Any:
    """Return matrices with their last two axes exchanged and complex elements conjugated."""
    return conjugate(transposed(x))


def conjugate(x: Any) -> Any:
    """Return the complex conjugate; a real tensor is returned unchanged."""
    return e.conj(x) if x.dtype.kind == "c" else x


def batched(name: str, specs: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the broadcast batch dimensions (all but the last two) of the operands of the op ``name``."""
    a, b = specs
    try:
        return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(f"{name}: batch dimensions of {describe(specs)} do not broadcast") from None


def _infer(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
    """Shape rule of matmul for operands of two dimensions or more."""
    a, b = specs
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: inner extents must agree: {describe(specs)} have {a.shape[-1]} columns and {b.shape[-2]} rows"
        )
    return (*batched("matmul", specs), a.shape[-2], b.shape[-1]), a.dtype


def _over_rows(a: Any, g: Any) -> Any:
    """Return the product a.mH @ g of matrices (M, K) and (M, N); of batches of them, the sum, which is one product."""
    if a.ndim > 2:
        a, g = (reshape(x, (math.prod(x.shape[:-1]), x.shape[-1])) for x in (a, g))
    return adjoint(a) @ g


def _of_right(g: Any, plan: Any, a: Any, b: Any, y: Any) -> Any:
    """Gradient of the right operand b of matmul, which may be one matrix for a batch of matrices a."""
    shape = plan.specs[1].shape
    return sum_to(adjoint(a) @ g, shape) if len(shape) > 2 else _over_rows(a, g)


_matmul = Op(
    "matmul", "matmul", _infer,
    (Pull({1}, lambda g, plan, a, b, y: sum_to(g @ adjoint(b), plan.specs[0].shape)), Pull({0}, _of_right)),
    accepts="numeric", holomorphic=False, flops=lambda plan: 2 * plan.spec.size * plan.specs[0].shape[-1],
)  # fmt: skip


def matmul(a: ArrayLike, b: ArrayLike, /, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Matrix product over the last two axes, batched over the others.

    A vector is used as a row on the left, and as a column on the right. Transposing makes a view and costs nothing.

    Args:
        a: (..., M, K) or (K,), numeric.
        b: (..., K, N) or (K,), numeric.
        transpose_a: whether to exchange the last two axes of ``a`` before the product.
        transpose_b: whether to exchange the last two axes of ``b`` before the product.

    Returns:
        (..., M, N), without M or N where ``a`` or ``b`` is a vector.

    Raises:
        ValueError: the inner extents (K) differ.

    >>> import flnb
    >>> flnb.matmul([[1, 2], [3, 4]], [1, 1])
    Tensor([3, 7], int64[2], numpy)
    """
    a, b = a if isinstance(a, Tensor) else asarray(a), b if isinstance(b, Tensor) else asarray(b)
    a, b = transposed(a) if transpose_a else a, transposed(b) if transpose_b else b
    if a._spec.ndim > 1 and b._spec.ndim > 1:
        return _matmul.entries[2, ""](a, b, ())
    if a.ndim == 0 or b.ndim == 0:
        wrong = ValueError(f"matmul: expected tensors of one dimension or more, got {a._spec!r} and {b._spec!r}; use *")
        raise refused(wrong, "matmul", a, b)
    left = reshape(a, (1, a.shape[0])) if a.ndim == 1 else a
    right = reshape(b, (b.shape[0], 1)) if b.ndim == 1 else b
    y = dispatch.call(_matmul, (left, right))
    shape = (*y.shape[:-2], *(() if a.ndim == 1 else y.shape[-2:-1]), *(() if b.ndim == 1 else y.shape[-1:]))
    return reshape(y, shape)


def _infer_linear(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
    """Shape rule of a linear layer for x with two dimensions or more."""
    x, weight, *bias = specs
    fits = x.ndim >= 2 and weight.ndim == 2 and x.shape[-1] == weight.shape[1]
    if not fits or any(b.shape != weight.shape[:1] for b in bias):
        raise ValueError(f"linear: expected x (..., in), weight (out, in) and bias (out,), got {describe(specs)}")
    return (*x.shape[:-1], weight.shape[0]), x.dtype


def _separately(x: Any, weight: Any, bias: Any = None) -> Any:
    """Call the ops of which a linear layer consists."""
    x, weight = asarray(x), asarray(weight)
    if x.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"linear: x has {x.shape[-1]} features (shape {x.shape}), the weight expects {weight.shape[-1]}"
        )
    y = matmul(x, weight.mT)
    return y if bias is None else e.biased(y, asarray(bias))


_linear = Combined(
    "linear", "matmul", _infer_linear, separately=_separately,
    flops=lambda plan: _matmul.flops(plan) + plan.spec.size * (len(plan.specs) - 2),
    pulls=(
        Pull({1}, lambda g, plan, x, weight, *_: g @ weight),
        Pull({0}, lambda g, plan, x, *_: transposed(_over_rows(x, g))),  # g.mT @ x would differ in the last bits
        Pull((), lambda g, plan, *_: sum(g, tuple(range(g.ndim - 1)))),
    ),
)  # fmt: skip


def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> Tensor:
    """Affine map ``x @ weight.T + bias``, for x (..., in), weight (out, in) and bias (out,).

    The result has the shape (..., out).

    Raises:
        ValueError: x does not have as many features as the weight expects.

    >>> import flnb
    >>> flnb.linear(flnb.ones((1, 2)), flnb.ones((3, 2)), flnb.ones(3))
    Tensor([[3., 3., 3.]], float32[1,3], numpy)
    """
    operands = (x, weight) if bias is None else (x, weight, bias)
    return _linear.entries[len(operands), ""](*operands, ())


def matrix_transpose(x: ArrayLike, /) -> Tensor:
    """Return a view of matrices x (..., M, N) with the last two axes exchanged: (..., N, M).

    Raises:
        ValueError: x has fewer than two dimensions.

    >>> import flnb
    >>> flnb.matrix_transpose([[1, 2], [3, 4]]).tolist()
    [[1, 3], [2, 4]]
    """
    x = asarray(x)
    matrices("matrix_transpose", x._spec)
    return x.mT


def tensordot(a: ArrayLike, b: ArrayLike, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """Multiply elements of ``a`` and ``b``, and sum the products over pairs of axes, one of a and one of b.

    ``axes`` is an int n, which pairs the last n axes of a with the first n of b, or two lists of axes, one of a and one
    of b. The result has the other axes of a, then the other axes of b.

    >>> import flnb
    >>> flnb.tensordot(flnb.ones((2, 3, 4)), flnb.ones((4, 3, 5)), axes=((2, 1), (0, 1))).shape
    (2, 5)

    Raises:
        ValueError: the lists have different lengths, or the extents of paired axes differ.
    """
    a, b = asarray(a), asarray(b)
    if isinstance(axes, SupportsIndex):
        n = operator.index(axes)
        axes = range(a.ndim - n, a.ndim), range(n)
    left, right = ([i % x.ndim for i in given] for x, given in zip((a, b), axes, strict=True))
    if [a.shape[i] for i in left] != [b.shape[i] for i in right]:
        raise ValueError(f"tensordot: axes {left} of {a._spec!r} and {right} of {b._spec!r} must have equal extents")
    rows = [i for i in range(a.ndim) if i not in left]
    columns = [i for i in range(b.ndim) if i not in right]
    height, width, inner = ([x.shape[i] for i in axes] for x, axes in ((a, rows), (b, columns), (a, left)))
    flat_a = reshape(permute_dims(a, (*rows, *left)), (math.prod(height), math.prod(inner)))
    flat_b = reshape(permute_dims(b, (*right, *columns)), (math.prod(inner), math.prod(width)))
    return reshape(flat_a @ flat_b, (*height, *width))


def vecdot(a: ArrayLike, b: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """Sum of ``conj(a) * b`` along ``axis``, a negative int (counted from the end); the other axes broadcast.

    Raises:
        ValueError: the shapes do not broadcast.

    >>> import flnb
    >>> flnb.vecdot([[1, 2], [3, 4]], [10, 1])
    Tensor([12, 34], int64[2], numpy)
    """
    a, b = asarray(a), asarray(b)
    if not -min(a.ndim, b.ndim) <= axis < 0:
        raise ValueError(f"vecdot: axis must be between -{min(a.ndim, b.ndim)} and -1, got {axis}")
    if a.shape[axis] != b.shape[axis]:
        raise ValueError(f"vecdot: axis {axis} of {a._spec!r} and {b._spec!r} must have equal extents")
    products = conjugate(a) * b
    return sum(products, axis=axis, dtype=products.dtype)


def outer(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Products of each element of vector a (N,) with each element of vector b (M,): (N, M).

    Raises:
        ValueError: a tensor is no vector.

    >>> import flnb
    >>> flnb.linalg.outer([1, 2], [3, 4]).tolist()
    [[3, 4], [6, 8]]
    """
    a, b = asarray(a), asarray(b)
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError(f"outer: expected two vectors, got {a._spec!r} and {b._spec!r}")
    return expand_dims(a, axis=1) * b


def cross(a: ArrayLike, b: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """Cross product of vectors of three elements along ``axis``, a negative int; the other axes broadcast.

    Raises:
        ValueError: the axis does not have extent 3 in both tensors.

    >>> import flnb
    >>> flnb.linalg.cross([1, 0, 0], [0, 1, 0])
    Tensor([0, 0, 1], int64[3], numpy)
    """
    a, b = asarray(a), asarray(b)
    if not -min(a.ndim, b.ndim) <= axis < 0 or (a.shape[axis], b.shape[axis]) != (3, 3):
        raise ValueError(f"cross: expected a negative axis of extent 3, got axis={axis} of {a._spec!r} and {b._spec!r}")
    return roll(a, -1, axis) * roll(b, -2, axis) - roll(a, -2, axis) * roll(b, -1, axis)


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Tensor:
    """Copy diagonals (..., K) of matrices x (..., M, N): those ``offset`` places to the right of the main diagonal.

    Raises:
        ValueError: x has fewer than two dimensions.

    >>> import flnb
    >>> flnb.linalg.diagonal([[1, 2], [3, 4]])
    Tensor([1, 4], int64[2], numpy)
    """
    x = asarray(x)
    m, n = matrices("diagonal", x._spec)[-2:]
    first = np.arange(max(0, min(m + min(offset, 0), n - max(offset, 0))))
    return x[..., first - min(offset, 0), first + max(offset, 0)]


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike = None) -> Tensor:
    """Sums (...) of diagonals of matrices x (..., M, N), ``offset`` places to the right of the main diagonal.

    The result has the dtype ``dtype`` if it is given, else that of `flnb.sum`.

    Raises:
        ValueError: x has fewer than two dimensions.

    >>> import flnb
    >>> flnb.linalg.trace([[1, 2], [3, 4]])
    Tensor(5, int64[], numpy)
    """
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)
