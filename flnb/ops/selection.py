"""Choosing elements by their order: the largest k, the middle, extrema together with their places."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.plan import size_of
from flnb.dispatch.table import Op
from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.creation import asarray
from flnb.ops.indexing import integers, take_along_axis
from flnb.ops.movement import permute_dims, reshape, squeeze
from flnb.ops.sorting import sort
from flnb.tensor import ArrayLike, Tensor, axes_of, axis_of


class Chosen(NamedTuple):
    """Elements along an axis, and their indices there, int64."""

    values: Tensor
    indices: Tensor


def _shortened(shape: tuple[int, ...], axis: int, k: int, *_: Any) -> tuple[int, ...]:
    return (*shape[:axis], k, *shape[axis + 1 :])


_argtopk = Op(
    "argtopk", "reduction", lambda op, specs, a: (_shortened(specs[0].shape, *a), r.INTEGER), real=True
)  # fmt: skip


def topk(x: ArrayLike, k: int, /, axis: int = -1, largest: bool = True) -> Chosen:
    """The ``k`` largest elements along ``axis``, largest first, and their indices; or the smallest, smallest first.

    NaN counts as largest. Of equal elements any may be chosen.

    >>> import flnb
    >>> values, indices = flnb.topk([1.0, 4.0, 2.0, 3.0], 2)
    >>> values.tolist(), indices.tolist()
    ([4.0, 3.0], [1, 3])

    Raises:
        ValueError: more elements asked for than there are.
    """
    x, count = asarray(x), operator.index(k)
    position = axis_of(axis, x.ndim, "topk")
    if not 0 <= count <= x.shape[position]:
        raise ValueError(f"topk: cannot choose {count} elements along axis {axis} of {x._spec!r}")
    indices = dispatch.call(_argtopk, (x,), (position, count, bool(largest)))
    return Chosen(take_along_axis(x, indices, axis=position), indices)


def max_with_indices(x: ArrayLike, /, axis: int = -1, keepdims: bool = False) -> Chosen:
    """The largest element along ``axis`` and its index; of equal ones the first, which alone gets the gradient.

    >>> import flnb
    >>> flnb.max_with_indices(flnb.asarray([[1, 5], [7, 2]])).indices.tolist()
    [1, 0]
    """
    return _extremum(r.argmax, x, axis, keepdims)


def min_with_indices(x: ArrayLike, /, axis: int = -1, keepdims: bool = False) -> Chosen:
    """The smallest element along ``axis`` and its index; of equal ones the first, which alone gets the gradient.

    >>> import flnb
    >>> flnb.min_with_indices([[1, 5], [7, 2]]).indices
    Tensor([0, 1], int64[2], numpy)
    """
    return _extremum(r.argmin, x, axis, keepdims)


def _extremum(arg: Any, x: Any, axis: int, keepdims: bool) -> Chosen:
    x = asarray(x)
    indices = arg(x, axis=axis, keepdims=True)
    found = Chosen(take_along_axis(x, indices, axis=axis), indices)
    return found if keepdims else Chosen(*(squeeze(part, axis=axis) for part in found))


def median(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """The middle element over ``axis`` (an int, several, or None for all); NaN where there is one.

    Of an even number of elements it is the mean of the two in the middle.

    >>> import flnb
    >>> flnb.median([1.0, 9.0, 2.0, 4.0])
    Tensor(3., float32[], numpy)
    """
    x = r.floating(x)
    found = axes_of(axis, x.ndim, "median")
    axes = tuple(range(x.ndim)) if found is None else found
    kept = [i for i in range(x.ndim) if i not in axes]
    shape = r.reduced(x.shape, axes, keepdims)
    n = size_of(tuple(x.shape[i] for i in axes))
    rows = reshape(permute_dims(x, (*kept, *axes)), (*[x.shape[i] for i in kept], n))
    if n == 0:
        raise ValueError(f"median: no element in the middle over axis {axis} of {x._spec!r}")
    ordered = sort(rows, axis=-1)
    middle = e.multiply(e.add(ordered[..., (n - 1) // 2], ordered[..., n // 2]), 0.5)
    return reshape(e.where(e.isnan(ordered[..., -1]), ordered[..., -1], middle), shape)


def embedding(indices: ArrayLike, weight: ArrayLike, /) -> Tensor:
    """Look up rows of ``weight`` (entries, features) at integer ``indices`` of any shape (...): (..., features).

    >>> import flnb
    >>> flnb.embedding([2, 0], flnb.asarray([[1.0], [2.0], [3.0]])).tolist()
    [[3.0], [1.0]]

    Raises:
        TypeError: indices that are no integers.
        IndexError: an index out of range.
    """
    if weight.ndim != 2:
        raise ValueError(f"embedding: expected a weight (entries, features), got {weight._spec!r}")
    return weight[integers("embedding", indices)]
