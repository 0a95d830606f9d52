"""Checks of arguments that many functions of tensors have: ``device``, and ``axis``."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from flnb.dispatch.brief import brief

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_device(device: Any) -> None:
    """Raise a ValueError for a ``device`` argument that is neither None nor "cpu"."""
    if device is not None and not (isinstance(device, str) and device == "cpu"):
        raise ValueError(
            f"device must be 'cpu' (or None), got {brief(device)}; flnb.use_backend chooses where tensors are computed"
        )


def axes_of(axis: SupportsIndex | Sequence[int] | None, ndim: int, op: str) -> tuple[int, ...]:
    """Convert an ``axis`` argument (an int, several, or None for all) to a sorted tuple of ints from 0 to ndim - 1.

    For a 0-d tensor, axis 0 and -1 are accepted, as in NumPy, and the result is empty. ``op`` is named in errors.

    Raises:
        ValueError: an axis occurs twice, or is out of range (`numpy.exceptions.AxisError`, which is an IndexError too).
    """
    if axis is None:
        return tuple(range(ndim))
    if type(axis) is int and -ndim <= axis < ndim:
        return (axis % ndim,)
    given = tuple(map(operator.index, axis if isinstance(axis, (tuple, list)) else (axis,)))
    if not ndim and given in ((), (0,), (-1,)):
        return ()
    axes = {axis_of(a, ndim, op) for a in given}
    if len(axes) != len(given):
        raise ValueError(f"{op}: axis {axis} names a dimension twice")
    return tuple(sorted(axes))


def axis_of(axis: SupportsIndex, ndim: int, op: str) -> int:
    """Convert one axis to an int from 0 to ndim - 1; ``op`` is named in errors. A 0-d tensor has no axis.

    Raises:
        ValueError: the axis is out of range (`numpy.exceptions.AxisError`, which is an IndexError too).
    """
    position = operator.index(axis)
    if not -ndim <= position < ndim:
        raise np.exceptions.AxisError(f"{op}: axis {position} is out of range for a tensor of {ndim} dimensions")
    return position % ndim
