"""Finding elements: positions that are not zero, and places in a sorted row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.brief import brief
from flnb.dispatch.table import Op, describe
from flnb.ops import elementwise as e
from flnb.ops.creation import asarray
from flnb.ops.indexing import take
from flnb.ops.reduction import INTEGER, sum

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, Tensor


def count_nonzero(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """How many elements are not zero over ``axis`` (an int, several, or None for all); int64.

    >>> import flnb
    >>> flnb.count_nonzero([[1, 0], [0, 0]], axis=1)
    Tensor([1, 0], int64[2], numpy)
    """
    return sum(e.astype(asarray(x), np.bool_, copy=False), axis, keepdims)


_nonzero = Op("nonzero", "movement", lambda op, specs, attributes: ((specs[0].ndim, attributes[0]), INTEGER))


def nonzero(x: ArrayLike, /) -> tuple[Tensor, ...]:
    """Positions of the elements that are not zero, row-major: a vector of indices, int64, for each dimension.

    >>> import flnb
    >>> [i.tolist() for i in flnb.nonzero([[0, 5], [6, 0]])]
    [[0, 1], [1, 0]]

    Raises:
        ValueError: a 0-d tensor.
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


def searchsorted(
    x1: ArrayLike, x2: ArrayLike, /, side: Literal["left", "right"] = "left", sorter: ArrayLike | None = None
) -> Tensor:
    """Where to insert the elements of ``x2`` into the sorted vector ``x1`` so that it stays sorted; int64.

    Among equal elements ``"left"`` is the first such place and ``"right"`` the last. ``sorter`` is the `argsort` of an
    unsorted x1.

    >>> import flnb
    >>> flnb.searchsorted([1, 3, 5], [3, 4])
    Tensor([1, 2], int64[2], numpy)
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', got {brief(side)}")
    x1 = asarray(x1) if sorter is None else take(x1, sorter)
    return dispatch.call(_searchsorted, (x1, asarray(x2)), (side,))
