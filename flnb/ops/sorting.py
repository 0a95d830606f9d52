"""Sorting, and the sets of distinct values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.table import Op, Pull, shaped
from flnb.ops import elementwise as e
from flnb.ops.creation import asarray, ones
from flnb.ops.indexing import take, take_along_axis
from flnb.ops.movement import concat, flatten, reshape
from flnb.ops.reduction import INTEGER, cumulative_sum, diff
from flnb.ops.searching import nonzero
from flnb.tensor import ArrayLike, Tensor, axis_of


def _pull_sort(g: Any, plan: Any, x: Any, y: Any) -> Any:
    axis = plan.attributes[0]
    return take_along_axis(g, argsort(dispatch.call(_argsort, (x,), plan.attributes), axis), axis)


_sort = Op("sort", "movement", shaped(), (Pull({0}, _pull_sort),))
_argsort = Op("argsort", "movement", lambda op, specs, _: (specs[0].shape, INTEGER))


def sort(x: ArrayLike, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Elements in ascending order along ``axis``, or descending; NaN counts as largest.

    >>> import flnb
    >>> flnb.sort([2, 3, 1], descending=True)
    Tensor([3, 2, 1], int64[3], numpy)
    """
    return _ordered(_sort, x, axis, descending, stable)


def argsort(x: ArrayLike, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Indices, int64, that put the elements along ``axis`` in order; with ``stable`` equal ones stay in theirs.

    >>> import flnb
    >>> flnb.argsort([30, 10, 20])
    Tensor([1, 2, 0], int64[3], numpy)
    """
    return _ordered(_argsort, x, axis, descending, stable)


def _ordered(op: Op, x: Any, axis: int, descending: bool, stable: bool) -> Any:
    x = asarray(x)
    position = axis_of(axis, x.ndim, op.name)
    return dispatch.call(op, (x,), (position, bool(descending), bool(stable)))


class UniqueAll(NamedTuple):
    """The results of `unique_all`."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The results of `unique_counts`."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The results of `unique_inverse`."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: ArrayLike, /) -> UniqueAll:
    """Distinct values in ascending order, with first positions, inverse and counts.

    ``indices``: where each value occurs first in the flattened x. ``inverse_indices``, in the shape of x: the place of
    each element's value among them. ``counts``: how often each occurs. All int64. Each NaN is distinct from all others.

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
    inverse = take(cumulative_sum(first) - 1, argsort(order))
    counts = diff(starts, append=[flat.size])
    return UniqueAll(take(ordered, starts), take(order, starts), reshape(inverse, x.shape), counts)


def unique_counts(x: ArrayLike, /) -> UniqueCounts:
    """Distinct values in ascending order, and how often each occurs, int64.

    >>> import flnb
    >>> values, counts = flnb.unique_counts([7, 5, 7])
    >>> values.tolist(), counts.tolist()
    ([5, 7], [1, 2])
    """
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """Distinct values in ascending order, and the place of each element's value among them, in the shape of ``x``.

    >>> import flnb
    >>> values, places = flnb.unique_inverse([7, 5, 7])
    >>> values.tolist(), places.tolist()
    ([5, 7], [1, 0, 1])
    """
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: ArrayLike, /) -> Tensor:
    """Distinct values in ascending order.

    >>> import flnb
    >>> flnb.unique_values([7, 5, 7])
    Tensor([5, 7], int64[2], numpy)
    """
    return unique_all(x).values
