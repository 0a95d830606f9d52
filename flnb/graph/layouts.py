"""Layouts: the memory, offset and strides of each recorded value; views share the memory of their base."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from flnb.graph.lending import address_of

if TYPE_CHECKING:
    from flnb.graph.values import Value


class Layout(NamedTuple):
    """The memory location of a value's elements.

    Attributes:
        root: the value that owns the memory of the elements.
        offset: the bytes from the first element of ``root`` to the first element of the value.
        strides: the bytes to the next element along each axis.
    """

    root: Value
    offset: int
    strides: tuple[int, ...]


def is_view(value: Value) -> bool:
    """Return whether a value is a view, which shares its input's memory."""
    return value.op is not None and value.op.body is None and not value.op.writes_out


def row_major(shape: tuple[int, ...], itemsize: int = 1) -> tuple[int, ...]:
    """Return the strides, in bytes, of a C-contiguous array."""
    return tuple([itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape))])


class Layouts(dict["Value", Layout]):
    """A dict from values to their layouts, each computed at its first lookup."""

    def __missing__(self, value: Value) -> Layout:
        spec = value.spec
        if value.op is None:
            found = Layout(value, 0, value.tensor._data.strides)
        elif is_view(value):
            root, offset, strides = self[value.inputs[0]]
            below = value.inputs[0].spec
            outline = as_strided(np.empty((), below.dtype), below.shape, strides)
            seen = value.place.backend.viewer(value.op.name)(outline, *value.attributes)
            found = Layout(root, offset + address_of(seen) - address_of(outline), seen.strides)
        else:
            found = Layout(value, 0, row_major(spec.shape, spec.dtype.itemsize))
        self[value] = found
        return found

    def contiguous(self, value: Value) -> bool:
        """Return whether a value is C-contiguous."""
        wanted = row_major(value.spec.shape, value.spec.dtype.itemsize)
        return not value.spec.size or all(
            n == 1 or a == b for n, a, b in zip(value.spec.shape, self[value].strides, wanted, strict=True)
        )
