"""Finding elements: positions that are not zero, and places in a sorted row."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.ops import elementwise as e
from flnb.ops.creation import asarray
from flnb.ops.indexing import take
from flnb.ops.reduction import INTEGER, sum
from flnb.ops.table import Op, describe


def count_nonzero(x: Any, /, axis: Any = None, keepdims: bool = False) -> Any:
    """How many elements are not zero, over ``axis`` (an int or several; None: all); int64."""
    return sum(e.astype(asarray(x), np.bool_, copy=False), axis, keepdims)


_nonzero = Op("nonzero", "movement", lambda op, specs, attributes: ((specs[0].ndim, attributes[0]), INTEGER))


def nonzero(x: Any, /) -> tuple[Any, ...]:
    """The positions of the elements that are not zero, row-major: for each dimension a vector of indices.

    >>> import flnb
    >>> [i.tolist() for i in flnb.nonzero(flnb.asarray([[0, 5], [6, 0]]))]
    [[0, 1], [1, 0]]
    """
    x = asarray(x)
    if x.ndim == 0:
        raise ValueError("nonzero: a 0-d tensor has no positions; use x != 0")
    found = dispatch.call(_nonzero, (x,), (count_nonzero(x).item(),))
    return tuple(found[i] for i in range(x.ndim))


def _infer_searchsorted(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
    if specs[0].ndim != 1:
        raise ValueError(f"searchsorted: the sorted tensor must be a vector, got {describe(specs[:1])}")
    return specs[1].shape, INTEGER


_searchsorted = Op("searchsorted", "reduction", _infer_searchsorted, real=True)


def searchsorted(x1: Any, x2: Any, /, side: Literal["left", "right"] = "left", sorter: Any = None) -> Any:
    """Where to insert the elements of ``x2`` into the sorted vector ``x1`` so that it stays sorted; int64.

    ``"left"`` gives the first such place, ``"right"`` the last. ``sorter`` is the `argsort` of an x1 that is unsorted.

    >>> import flnb
    >>> flnb.searchsorted(flnb.asarray([1, 3, 5]), flnb.asarray([3, 4])).tolist()
    [1, 2]
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    x1 = asarray(x1) if sorter is None else take(x1, sorter)
    return dispatch.call(_searchsorted, (x1, asarray(x2)), (side,))
