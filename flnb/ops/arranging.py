"""Functions that repeat, shift, split and mask tensors; they consist of ops that move elements."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from flnb.dispatch.arguments import axis_of
from flnb.dispatch.brief import brief
from flnb.dispatch.plan import size_of, spec_of
from flnb.ops import elementwise as e
from flnb.ops.creation import arange, asarray
from flnb.ops.indexing import take
from flnb.ops.movement import along_axis, broadcast_to, concat, expand_dims, flatten, matrices, moveaxis, reshape
from flnb.tensor import ArrayLike, DTypeLike, Tensor


def broadcast_arrays(*arrays: ArrayLike) -> list[Tensor]:
    """Broadcast all tensors to their common shape, as read-only views with unchanged dtypes.

    Raises:
        ValueError: the shapes do not broadcast.

    >>> import flnb
    >>> a, b = flnb.broadcast_arrays([1, 2], [[3], [4]])
    >>> a.shape, b.tolist()
    ((2, 2), [[3, 3], [4, 4]])
    """
    tensors = [asarray(x) for x in arrays]
    try:
        shape = np.broadcast_shapes(*(x.shape for x in tensors))
    except ValueError:
        shapes = " and ".join(str(x.shape) for x in tensors)
        raise ValueError(f"broadcast_arrays: shapes {shapes} do not broadcast") from None
    return [broadcast_to(x, shape) for x in tensors]


def meshgrid(*arrays: ArrayLike, indexing: Literal["xy", "ij"] = "xy") -> list[Tensor]:
    """Return the coordinates of the points of a grid, given one vector of coordinates per dimension.

    For n vectors the result is n tensors of the grid's shape.

    With ``indexing="ij"`` the values of the i-th vector vary along dimension i of the results; with ``"xy"`` the first
    two dimensions of the results are exchanged.

    Raises:
        ValueError: an array has more than one dimension, or ``indexing`` is unknown.

    >>> import flnb
    >>> rows, columns = flnb.meshgrid([1, 2], [3, 4, 5], indexing="ij")
    >>> rows.tolist(), columns.tolist()
    ([[1, 1, 1], [2, 2, 2]], [[3, 4, 5], [3, 4, 5]])
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', got {brief(indexing)}")
    vectors = [asarray(x) for x in arrays]
    if any(x.ndim > 1 for x in vectors):
        raise ValueError(f"meshgrid: expected vectors, got shapes {', '.join(str(x.shape) for x in vectors)}")
    n = len(vectors)
    order = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    spread = [along_axis(x, axis, n) for x, axis in zip(vectors, order, strict=True)]
    return [e.copy(x) for x in broadcast_arrays(*spread)]


def unstack(x: ArrayLike, /, axis: int = 0) -> tuple[Tensor, ...]:
    """Split a tensor into its slices along ``axis``, each without that dimension.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> [row.tolist() for row in flnb.unstack([[1, 2], [3, 4]])]
    [[1, 2], [3, 4]]
    """
    x = asarray(x)
    moved = moveaxis(x, axis, 0)
    return tuple(moved[i] for i in range(moved.shape[0]))


def repeat(x: ArrayLike, repeats: ArrayLike, /, axis: int | None = None) -> Tensor:
    """Repeat each element, or each slice along ``axis``, several times in a row.

    ``repeats`` is one integer for all elements or slices, or one for each of them. With ``axis=None`` x is flattened
    first.

    Raises:
        ValueError: a count is negative.

    >>> import flnb
    >>> flnb.repeat([1, 2], [1, 3])
    Tensor([1, 2, 2, 2], int64[4], numpy)
    """
    x = asarray(x)
    if axis is None:
        x, axis = flatten(x), 0
    position = axis_of(axis, x.ndim, "repeat")
    n = x.shape[position]
    counts = repeats if isinstance(repeats, Tensor) else np.asarray(repeats)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or counts.size not in (1, n):
        got = spec_of(counts.shape, counts.dtype)
        raise ValueError(f"repeat: expected one integer or one for each of {n} slices, got {got!r}")
    each = counts.tolist() if counts.ndim else [counts.item()]
    if any(k < 0 for k in each):
        raise ValueError(f"repeat: counts must be 0 or more, got {min(each)}")
    if len(each) != 1:
        return take(x, asarray(np.repeat(np.arange(n), each)), axis=position)
    before, after = x.shape[:position], x.shape[position + 1 :]
    wide = broadcast_to(expand_dims(x, axis=position + 1), (*before, n, each[0], *after))
    return reshape(wide, (*before, n * each[0], *after))


def tile(x: ArrayLike, repetitions: Sequence[int], /) -> Tensor:
    """Repeat the whole tensor along each dimension, as many times as ``repetitions`` says.

    If x and ``repetitions`` have different lengths, they are aligned at the last dimension.

    Raises:
        ValueError: a number of repetitions is negative.

    >>> import flnb
    >>> flnb.tile([1, 2], (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    x = asarray(x)
    times = tuple(operator.index(n) for n in repetitions)
    if any(n < 0 for n in times):
        raise ValueError(f"tile: repetitions must be 0 or more, got {times}")
    shape = (1,) * (len(times) - x.ndim) + x.shape
    times = (1,) * (x.ndim - len(times)) + times
    apart = reshape(x, tuple(m for n in shape for m in (1, n)))
    wide = broadcast_to(apart, tuple(m for n, k in zip(shape, times, strict=True) for m in (k, n)))
    return reshape(wide, tuple(n * k for n, k in zip(shape, times, strict=True)))


def iota(shape: int | Sequence[int], repetitions: Sequence[int] = (), dtype: DTypeLike = None) -> Tensor:
    """Make a tensor of 0, 1, 2, ... in row-major order, and repeat it as `tile` does; int64 unless a dtype is given.

    >>> import flnb
    >>> flnb.iota((2, 2), (1, 2)).tolist()
    [[0, 1, 0, 1], [2, 3, 2, 3]]
    """
    extents = (operator.index(shape),) if hasattr(shape, "__index__") else tuple(shape)
    return tile(reshape(arange(size_of(extents), dtype=dtype), extents), repetitions)


def roll(x: ArrayLike, /, shift: int | tuple[int, ...], axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Shift elements along one or several axes; elements shifted beyond the last position reappear at the first.

    ``shift`` and ``axis`` may be tuples of equal length; with ``axis=None`` the flattened elements are shifted.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.roll([1, 2, 3, 4], 1)
    Tensor([4, 1, 2, 3], int64[4], numpy)
    """
    x = asarray(x)
    if axis is None:
        if isinstance(shift, tuple):
            raise ValueError(f"roll: the shifts {shift} need as many axes: give axis a tuple of {len(shift)} ints")
        return reshape(roll(flatten(x), shift, 0), x.shape)
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: expected as many shifts as axes, got shift {brief(shift)} and axis {brief(axis)}")
    for by, one in zip(shifts, axes, strict=True):
        position = axis_of(one, x.ndim, "roll")
        n = x.shape[position]
        cut = n - by % n if n else 0
        before = (slice(None),) * position
        if cut != n:
            x = concat([x[(*before, slice(cut, None))], x[(*before, slice(None, cut))]], axis=position)
    return x


def tril(x: ArrayLike, /, k: int = 0) -> Tensor:
    """Lower triangles of matrices (..., M, N), with zeros above the ``k``-th diagonal.

    Diagonal 0 is the main one, 1 the one above it.

    Raises:
        ValueError: x has fewer than two dimensions.

    >>> import flnb
    >>> flnb.tril([[1, 2], [3, 4]]).tolist()
    [[1, 0], [3, 4]]
    """
    return _triangle(x, k, "tril", e.greater_equal)


def triu(x: ArrayLike, /, k: int = 0) -> Tensor:
    """Upper triangles of matrices (..., M, N), with zeros below the ``k``-th diagonal.

    Diagonal 0 is the main one, 1 the one above it.

    Raises:
        ValueError: x has fewer than two dimensions.

    >>> import flnb
    >>> flnb.triu([[1, 2], [3, 4]]).tolist()
    [[1, 2], [0, 4]]
    """
    return _triangle(x, k, "triu", e.less_equal)


def _triangle(x: Any, k: int, name: str, compare: Any) -> Any:
    """Set elements of matrices to 0 where ``compare(row + k, column)`` is false."""
    x = asarray(x)
    rows, columns = matrices(name, x._spec)[-2:]
    kept = compare(arange(rows)[:, None] + k, arange(columns))
    return e.where(kept, x, False)  # False is zero in every dtype
