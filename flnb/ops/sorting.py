"""Sorting, and the sets of distinct values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.ops import elementwise as e
from flnb.ops.creation import asarray, ones
from flnb.ops.indexing import take, take_along_axis
from flnb.ops.movement import concat, flatten, reshape
from flnb.ops.reduction import INTEGER, cumulative_sum, diff
from flnb.ops.searching import nonzero
from flnb.ops.table import Op, Pull, shaped
from flnb.tensor import axis_of


def _pull_sort(g: Any, plan: Any, x: Any, y: Any) -> Any:
    axis = plan.attributes[0]
    return take_along_axis(g, argsort(dispatch.call(_argsort, (x,), plan.attributes), axis), axis)


_sort = Op("sort", "movement", shaped(), (Pull({0}, _pull_sort),))
_argsort = Op("argsort", "movement", lambda op, specs, _: (specs[0].shape, INTEGER))


def sort(x: Any, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The elements in order along ``axis``; NaN counts as largest.

    >>> import flnb
    >>> flnb.sort(flnb.asarray([2, 3, 1]), descending=True).tolist()
    [3, 2, 1]
    """
    return _ordered(_sort, x, axis, descending, stable)


def argsort(x: Any, /, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The indices, int64, that put the elements along ``axis`` in order; equal ones stay in theirs if ``stable``."""
    return _ordered(_argsort, x, axis, descending, stable)


def _ordered(op: Op, x: Any, axis: int, descending: bool, stable: bool) -> Any:
    x = asarray(x)
    position = axis_of(axis, x.ndim, op.name)
    return dispatch.call(op, (x,), (position, bool(descending), bool(stable)))


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Any
    inverse_indices: Any


def unique_all(x: Any, /) -> UniqueAll:
    """The distinct values in order, where each occurs first, which of them each element is, and how often each occurs.

    Every NaN is distinct from all others.

    >>> import flnb
    >>> found = flnb.unique_all(flnb.asarray([7, 5, 7]))
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


def unique_counts(x: Any, /) -> UniqueCounts:
    """The distinct values in order, and how often each occurs."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """The distinct values in order, and which of them each element is, in the shape of ``x``."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any, /) -> Any:
    """The distinct values in order.

    >>> import flnb
    >>> flnb.unique_values(flnb.asarray([7, 5, 7])).tolist()
    [5, 7]
    """
    return unique_all(x).values
