"""Sorting, searching and selecting: order, distinct values, positions, the largest elements, rows by index."""

from __future__ import annotations

import operator
from typing import Any, Literal, NamedTuple

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.arguments import axes_of, axis_of
from flnb.dispatch.brief import brief
from flnb.dispatch.table import Op, Pull, describe, shaped
from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.creation import asarray, ones
from flnb.ops.indexing import integers, take, take_along_axis, take_at
from flnb.ops.movement import concat, flatten, reshape, squeeze
from flnb.tensor import ArrayLike, Tensor


def _pull_sort(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """Gradient of sort: the elements of g, moved to the positions that x's elements had before they were sorted."""
    axis = plan.attributes[0]
    return take_along_axis(g, argsort(dispatch.call(_argsort, (x,), plan.attributes), axis), axis)


_sort = Op("sort", "movement", shaped(), (Pull({0}, _pull_sort),))
_argsort = Op("argsort", "movement", lambda op, specs, _: (specs[0].shape, r.INTEGER))


def sort(x: ArrayLike, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Sort elements along ``axis``, in ascending order unless ``descending``; NaN counts as largest.

    ``stable`` makes no difference here; `argsort` has the same argument.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.sort([2, 3, 1], descending=True)
    Tensor([3, 2, 1], int64[3], numpy)
    """
    return _ordered(_sort, x, axis, descending, stable)


def argsort(x: ArrayLike, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the indices, int64, that sort the elements along ``axis``, in ascending order unless ``descending``.

    With ``stable``, equal elements stay in their order.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.argsort([30, 10, 20])
    Tensor([1, 2, 0], int64[3], numpy)
    """
    return _ordered(_argsort, x, axis, descending, stable)


def _ordered(op: Op, x: Any, axis: int, descending: bool, stable: bool) -> Any:
    """Run sort or argsort on checked arguments."""
    x = asarray(x)
    position = axis_of(axis, x.ndim, op.name)
    return dispatch.call(op, (x,), (position, bool(descending), bool(stable)))


class UniqueAll(NamedTuple):
    """Results of `unique_all`: the distinct values, and for each value its first position in x and its count.

    ``inverse_indices`` has for each element of x the index of its value.
    """

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """Results of `unique_counts`: distinct values, and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """Results of `unique_inverse`: distinct values, and for each element the index of its value."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: ArrayLike, /) -> UniqueAll:
    """Find the distinct values of x in ascending order, where they occur first, and how often they occur.

    Each NaN is distinct from all others.

    Returns:
        ``values`` (n,); ``indices`` (n,), where each value occurs first in the flattened x; ``inverse_indices``, in the
        shape of x, so that ``take(values, inverse_indices)`` is x; ``counts`` (n,), how often each value occurs. All
        but the values are int64.

    Raises:
        TypeError: the values are no numbers.

    >>> import flnb
    >>> found = flnb.unique_all([7, 5, 7])
    >>> found.values.tolist(), found.indices.tolist(), found.inverse_indices.tolist(), found.counts.tolist()
    ([5, 7], [1, 0], [1, 0, 1], [1, 2])
    """
    x = asarray(x)
    flat = flatten(x)
    order = argsort(flat)
    ordered = take(flat, order)
    first = concat([ones((min(flat.size, 1),), np.bool_), e.not_equal(ordered[1:], ordered[:-1])])
    (starts,) = nonzero(first)
    inverse = take(r.cumulative_sum(first) - 1, argsort(order))
    counts = r.diff(starts, append=[flat.size])
    return UniqueAll(take(ordered, starts), take(order, starts), reshape(inverse, x.shape), counts)


def unique_counts(x: ArrayLike, /) -> UniqueCounts:
    """Find the distinct values of x in ascending order, and how often each occurs, int64.

    Raises:
        TypeError: the values are no numbers.

    >>> import flnb
    >>> values, counts = flnb.unique_counts([7, 5, 7])
    >>> values.tolist(), counts.tolist()
    ([5, 7], [1, 2])
    """
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """Find the distinct values of x in ascending order, and the index of each element's value among them, int64.

    The indices have the shape of x, so that ``take(values, inverse_indices)`` is x.

    Raises:
        TypeError: the values are no numbers.

    >>> import flnb
    >>> values, places = flnb.unique_inverse([7, 5, 7])
    >>> values.tolist(), places.tolist()
    ([5, 7], [1, 0, 1])
    """
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: ArrayLike, /) -> Tensor:
    """Find the distinct values of x in ascending order.

    Raises:
        TypeError: the values are no numbers.

    >>> import flnb
    >>> flnb.unique_values([7, 5, 7])
    Tensor([5, 7], int64[2], numpy)
    """
    return unique_all(x).values


def count_nonzero(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """Count the elements that are not zero over ``axis`` (an int, a tuple of ints, or None for all); int64.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.count_nonzero([[1, 0], [0, 0]], axis=1)
    Tensor([1, 0], int64[2], numpy)
    """
    return r.sum(e.astype(asarray(x), np.bool_, copy=False), axis, keepdims)


_nonzero = Op("nonzero", "movement", lambda op, specs, attributes: ((specs[0].ndim, attributes[0]), r.INTEGER))


def nonzero(x: ArrayLike, /) -> tuple[Tensor, ...]:
    """Find the positions of the elements that are not zero, in row-major order.

    The result is one vector of indices, int64, for each dimension of x.

    >>> import flnb
    >>> [i.tolist() for i in flnb.nonzero([[0, 5], [6, 0]])]
    [[0, 1], [1, 0]]

    Raises:
        ValueError: x is a 0-d tensor, which has no positions.
    """
    x = asarray(x)
    if x.ndim == 0:
        raise ValueError("nonzero: expected one dimension or more, got a 0-d tensor; use x != 0")
    found = dispatch.call(_nonzero, (x,), (count_nonzero(x).item(),))
    return tuple(found[i] for i in range(x.ndim))


def _infer_searchsorted(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
    """Shape rule of searchsorted: one index for each element to insert."""
    if specs[0].ndim != 1:
        raise ValueError(f"searchsorted: expected a vector of sorted elements, got {describe(specs[:1])}")
    return specs[1].shape, r.INTEGER


_searchsorted = Op("searchsorted", "reduction", _infer_searchsorted, real=True)


def searchsorted(
    x1: ArrayLike, x2: ArrayLike, /, side: Literal["left", "right"] = "left", sorter: ArrayLike | None = None
) -> Tensor:
    """Find the indices, int64, at which to insert the elements of ``x2`` into a sorted vector ``x1``.

    The result has the shape of x2. An element that is equal to elements of x1 is inserted before these with
    ``side="left"``, and behind them with ``"right"``. If x1 is not sorted, pass its `argsort` as ``sorter``.

    Raises:
        ValueError: the sorted elements are no vector.

    >>> import flnb
    >>> flnb.searchsorted([1, 3, 5], [3, 4])
    Tensor([1, 2], int64[2], numpy)
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', got {brief(side)}")
    x1 = asarray(x1) if sorter is None else take(x1, sorter)
    return dispatch.call(_searchsorted, (x1, asarray(x2)), (side,))


class Chosen(NamedTuple):
    """Results of `topk`, `max_with_indices` and `min_with_indices`: chosen elements, and their indices, int64."""

    values: Tensor
    indices: Tensor


_argtopk = Op(
    "argtopk", "reduction", real=True,
    infer=lambda op, specs, a: ((*specs[0].shape[: a[0]], a[1], *specs[0].shape[a[0] + 1 :]), r.INTEGER),
)  # fmt: skip


def topk(x: ArrayLike, k: int, /, axis: int = -1, largest: bool = True) -> Chosen:
    """Find the ``k`` largest elements along ``axis``, largest first, and their indices, int64.

    With ``largest=False``, find the smallest elements, smallest first. NaN is larger than any number. If elements are
    equal, any of them may be chosen.

    >>> import flnb
    >>> values, indices = flnb.topk([1.0, 4.0, 2.0, 3.0], 2)
    >>> values.tolist(), indices.tolist()
    ([4.0, 3.0], [1, 3])

    Raises:
        ValueError: ``k`` is negative, or larger than the number of elements along the axis.
    """
    x, count = asarray(x), operator.index(k)
    position = axis_of(axis, x.ndim, "topk")
    if not 0 <= count <= x.shape[position]:
        most = f"{x.shape[position]}, the number of elements along axis {axis} of {x._spec!r}"
        raise ValueError(f"topk: expected k from 0 to {most}, got {count}")
    indices = dispatch.call(_argtopk, (x,), (position, count, bool(largest)))
    return Chosen(take_along_axis(x, indices, axis=position), indices)


def max_with_indices(x: ArrayLike, /, axis: int = -1, keepdims: bool = False) -> Chosen:
    """Find the largest element along ``axis``, and its index, int64.

    Of equal elements the first is chosen, and it alone gets the gradient.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.
        ValueError: there is no element along the axis.

    >>> import flnb
    >>> flnb.max_with_indices(flnb.asarray([[1, 5], [7, 2]])).indices.tolist()
    [1, 0]
    """
    return _extremum(r.argmax, x, axis, keepdims)


def min_with_indices(x: ArrayLike, /, axis: int = -1, keepdims: bool = False) -> Chosen:
    """Find the smallest element along ``axis``, and its index, int64.

    Of equal elements the first is chosen, and it alone gets the gradient.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.
        ValueError: there is no element along the axis.

    >>> import flnb
    >>> flnb.min_with_indices([[1, 5], [7, 2]]).indices
    Tensor([0, 1], int64[2], numpy)
    """
    return _extremum(r.argmin, x, axis, keepdims)


def _extremum(arg: Any, x: Any, axis: int, keepdims: bool) -> Chosen:
    """Find the largest or smallest element along an axis, and its index; ``arg`` is argmax or argmin."""
    x = asarray(x)
    if not x.ndim and not axes_of(axis, 0, arg.__name__):
        x, axis, keepdims = reshape(x, (1,)), 0, False
    indices = arg(x, axis=axis, keepdims=True)
    found = Chosen(take_along_axis(x, indices, axis=axis), indices)
    return found if keepdims else Chosen(*(squeeze(part, axis=axis) for part in found))


def median(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """Median over ``axis`` (an int, a tuple of ints, or None for all); NaN if there is a NaN among the elements.

    Of an even number of elements it is the mean of the two in the middle.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.
        ValueError: there is no element along the axis.

    >>> import flnb
    >>> flnb.median([1.0, 9.0, 2.0, 4.0])
    Tensor(3., float32[], numpy)
    """
    x = r.floating(x)
    axes = axes_of(axis, x.ndim, "median")
    rows = flatten(r.reduced_last(x, axes)[0], start=x.ndim - len(axes))
    n = rows.shape[-1]
    if n == 0:
        raise ValueError(f"median: expected one element or more along axis {axis}, got {x._spec!r}")
    ordered = sort(rows, axis=-1)
    middle = (ordered[..., (n - 1) // 2] + ordered[..., n // 2]) * 0.5
    result = e.where(e.isnan(ordered[..., -1]), ordered[..., -1], middle)
    return reshape(result, r.reduced(x.shape, axes, keepdims))


def embedding(indices: ArrayLike, weight: ArrayLike, /) -> Tensor:
    """Look up the rows of ``weight`` (entries, features) at integer ``indices``.

    For indices of any shape (...) the result has the shape (..., features).

    >>> import flnb
    >>> flnb.embedding([2, 0], flnb.asarray([[1.0], [2.0], [3.0]])).tolist()
    [[3.0], [1.0]]

    Raises:
        TypeError: indices that are no integers.
        IndexError: an index out of range.
    """
    weight = weight if isinstance(weight, Tensor) else asarray(weight)
    if weight.ndim != 2:
        raise ValueError(f"embedding: expected a weight (entries, features), got {weight._spec!r}")
    return take_at(weight, integers("embedding", indices), 0)
