"""Copies of arrays that preserve the layout in memory, similar layouts of other sizes, and code that makes such arrays.

The result of an op can depend on more than its inputs' values: on the order of axes in memory, on gaps between
elements and on alignment. To reproduce a result, these must be preserved.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LINE = 64  # bytes of a cache line; the vectorised loops of NumPy may depend on the position within it


@dataclass(frozen=True, slots=True)
class Kept:
    """A copy of the memory of an array, with dtype, shape and strides.

    ``offset`` is the number of bytes in ``memory`` before element 0; it is above 0 if strides are negative. ``start``
    is the address of the original memory modulo 64.
    """

    memory: bytes = field(repr=False)
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    start: int = 0

    def array(self) -> Array:
        """Return a new array with the same values and strides, at an address that is equal modulo 64."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        room = np.empty(len(self.memory) + LINE, np.uint8)
        skip = (self.start - room.ctypes.data) % LINE
        room[skip : skip + len(self.memory)] = np.frombuffer(self.memory, np.uint8)
        return np.ndarray(self.shape, self.dtype, room, skip + self.offset, self.strides)

    def __str__(self) -> str:
        strided = "" if Layout.of(self.array()).plain else " strided"
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]{strided}"


def keep(array: Array) -> Kept:
    """Copy the memory that an array spans, including the gaps between its elements.

    >>> import numpy as np
    >>> kept = keep(np.arange(6.0).reshape(2, 3).T)
    >>> kept.array().strides, kept.array().tolist()
    ((8, 24), [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]])
    """
    if not array.size:
        return Kept(b"", array.dtype, array.shape, array.strides)
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    before = -sum(step for step in steps if step < 0)
    length = before + sum(step for step in steps if step > 0) + array.itemsize
    address = array.ctypes.data - before
    return Kept(ctypes.string_at(address, length), array.dtype, array.shape, array.strides, before, address % LINE)


@dataclass(frozen=True)
class Layout:
    """A recipe for an array with a certain layout in memory, starting from a C-contiguous base array.

    Attributes:
        base: the shape of the base array.
        key: for each axis of the base array the slice that is taken first.
        axes: the order into which the axes of the sliced array are then permuted.
        flips: the axes of the permuted array that are flipped.
        shape: the shape to which the array is broadcast in the end.
    """

    base: tuple[int, ...]
    key: tuple[slice, ...]
    axes: tuple[int, ...]
    flips: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, like: Array, shape: tuple[int, ...] | None = None) -> Layout:
        """Return the layout of the array ``like``, or a layout of the same kind for another shape."""
        shape = like.shape if shape is None else shape
        still = [n > 1 and s == 0 for n, s in zip(like.shape, like.strides, strict=True)]
        extents = [1 if fixed else n for n, fixed in zip(shape, still, strict=True)]
        order = sorted(range(like.ndim), key=lambda i: (-abs(like.strides[i]) if like.shape[i] > 1 else 0, i))
        if all(like.shape[i] < 2 for i in order) or like.flags.c_contiguous:
            order = list(range(like.ndim))
        sizes = [extents[i] for i in order]
        keys = [slice(0, n) for n in sizes]
        expected = like.itemsize
        for place in reversed(range(like.ndim)):
            axis = order[place]
            if like.shape[axis] < 2 or still[axis]:
                continue
            if abs(like.strides[axis]) != expected:  # a gap: in the innermost axis between elements, else between rows
                inner = place + 1 if place + 1 < like.ndim else place
                step = 2 if inner == place else 1
                sizes[inner] = extents[order[inner]] * step + (step == 1)
                keys[inner] = slice(0, sizes[inner] - (step == 1), step)
            expected = abs(like.strides[axis]) * like.shape[axis]
        axes = tuple(order.index(i) for i in range(like.ndim))
        flips = tuple(i for i in range(like.ndim) if like.shape[i] > 1 and like.strides[i] < 0)
        return cls(tuple(sizes), tuple(keys), axes, flips, tuple(shape))

    @property
    def plain(self) -> bool:
        """Return whether arrays of this layout are C-contiguous."""
        return self.base == self.shape and self.axes == tuple(range(len(self.shape))) and not self.flips

    def filled(self, values: Array) -> tuple[Array, Array]:
        """Return a base array, and an array of this layout that is a view of it and is filled with ``values``.

        Elements of the base that are not part of the array repeat the first value.
        """
        base = np.full(self.base, values.flat[0] if values.size else 0, values.dtype)
        key: Any = (*self.key, Ellipsis)  # of a 0-d array too, a view
        seen = base[key].transpose(self.axes)
        if self.flips:
            seen = np.flip(seen, self.flips)
        seen[...] = values[tuple(slice(0, n) for n in seen.shape)]
        return base, seen if seen.shape == self.shape else np.broadcast_to(seen, self.shape)

    def code(self, base: str) -> str:
        """Return Python code that makes an array of this layout; ``base`` is the code of the base array."""
        text = base
        if any(k != slice(0, n) for k, n in zip(self.key, self.base, strict=True)):
            inside = ", ".join(f":{k.stop}" + (f":{k.step}" if (k.step or 1) > 1 else "") for k in self.key)
            text += f"[{inside}]"
        if self.axes != tuple(range(len(self.axes))):
            text += ".T" if self.axes == tuple(reversed(range(len(self.axes)))) else f".transpose{self.axes}"
        if self.flips:
            text = f"np.flip({text}, {self.flips})"
        seen = tuple(len(range(*k.indices(n))) for k, n in zip(self.key, self.base, strict=True))
        if tuple(seen[i] for i in self.axes) != self.shape:
            text = f"np.broadcast_to({text}, {self.shape})"
        return text


def canonical(array: Array) -> Array:
    """Copy an array into the layout that the code of `Layout` produces.

    That code ignores the strides of axes of extent 1, so these strides may differ from those of ``array``.

    >>> import numpy as np
    >>> from flnb.explore.layout import canonical
    >>> canonical(np.flip(np.arange(12.0).reshape(3, 4), 1)[:, :1]).strides
    (16, 8)
    """
    return Layout.of(array).filled(array)[1]
