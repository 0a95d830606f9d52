"""Gradients of indexing on a CUDA device: scatter into zeros, where values with equal indices are added.

Sums use no atomics and add in the order of the elements, so that results are the same to the bit in every run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_backends.tensor.cuda.creation import Creation
from flnb_backends.tensor.cuda.sorting import Sorting

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_backends.tensor.cuda.base import Buffer

Key = tuple[Any, ...]
INDEX = np.dtype(np.int64)
WHOLE = ("slice", None, None, None)
_PART = np.dtype([(name, np.int64, 64) for name in ("extent", "start", "step", "count")])


def part_of(shape: tuple[int, ...], key: Key) -> Any:
    """Return the part of an array that a key of slices and ints selects, as the struct for the kernel ``place``."""
    made = np.zeros((), _PART)
    made["extent"][: len(shape)], made["count"][: len(shape)], made["step"] = shape, shape, 1
    for axis, k in enumerate(k for k in key if k is not None):
        if isinstance(k, tuple):
            chosen = range(shape[axis])[slice(*k[1:])]
            made["start"][axis], made["step"][axis], made["count"][axis] = chosen.start, chosen.step, len(chosen)
        else:
            made["start"][axis], made["count"][axis] = k % shape[axis], 1
    return made[()]


def indexed_axes(key: Key) -> tuple[int, int] | None:
    """Return the range (first, last + 1) of the axes that are indexed by tensors.

    Return None if these axes are not adjacent, or if the key contains anything but index tensors and ``:``.
    """
    axes = [axis for axis, k in enumerate(key) if k != WHOLE]
    together = axes and axes[-1] - axes[0] == len(axes) - 1
    if not together or any(not isinstance(key[axis], tuple) or key[axis][0] != "index" for axis in axes):
        return None
    return axes[0], axes[-1] + 1


class Indexing(Creation, Sorting):
    """The methods of the cuda backend that write values to indexed positions.

    Attributes:
        gather: a method that returns ``x[key]``, called with x, the index tensors, the encoded key, and out.
        broadcast_to: a method that returns a view of a buffer, broadcast to a shape.
    """

    gather: Callable[..., Buffer]
    broadcast_to: Callable[..., Buffer]

    def place(self, x: Buffer, shape: tuple[int, ...], key: Key, out: Buffer | None = None) -> Buffer:
        x, y = self.contiguous(x), self.written(out, shape, x.dtype)
        types = {"K": np.dtype(f"u{x.dtype.itemsize}")}
        if y.size:
            part = part_of(shape, key)
            self.launcher.launch_each("indexing", "place", types, y.size, x, y, y.size, len(shape), part)
        return self.finished(y, out)

    def scatter_add(self, g: Buffer, *arguments: Any) -> Buffer:
        *indices, shape, key, out = arguments
        g, y = self.contiguous(g), self.written(out, shape, g.dtype)
        if y.nbytes:
            launcher = self.launcher
            launcher.driver.fill(y.data.ptr, 0, y.nbytes, launcher.stream())
        if g.size:
            rows, outer, extent, inner = self._rows(indices, shape, key)
            types = {"T": g.dtype, "F": np.dtype(np.float32) if g.dtype == np.float16 else g.dtype, "I": INDEX}
            order = self.argsort(rows, 0, False, True)
            sizes = outer, rows.size, inner, extent
            self.launcher.launch_each("scattering", "add_rows", types, g.size, g, rows, order, y, *sizes)
        return self.finished(y, out)

    def _rows(self, indices: list[Buffer], shape: tuple[int, ...], key: Key) -> tuple[Buffer, int, int, int]:
        """Return, for each row of the gradient g, the row of y to which it is added; and y's extents.

        The extents are (outer, extent, inner). With g as an array (outer, n, inner), the sum is
        ``y[:, rows[i]] += g[:, i]``. If the indexed axes are not adjacent, each element is a row. ``shape`` is the
        shape of y.
        """
        axes = indexed_axes(key)
        if axes is None:
            size = math.prod(shape)
            numbers = self.arange(0, 1, self.new((size,), INDEX)).reshape(shape)
            rows = self.contiguous(self.gather(numbers, *indices, key, None))
            return rows.reshape(rows.size), 1, size, 1
        ordered = [indices[k[1]] for k in key if k[0] == "index"]
        together = np.broadcast_shapes(*(index.shape for index in ordered))
        rows = self.new((math.prod(together),), INDEX)
        for axis, index in enumerate(ordered, axes[0]):
            given = self.contiguous(index if index.shape == together else self.broadcast_to(index, together))
            types, first = {"T": INDEX, "F": INDEX, "I": index.dtype}, int(axis == axes[0])
            launched = "scattering", "add_axis", types, rows.size, given, rows, rows.size, shape[axis], first
            self.launcher.launch_each(*launched)
        return rows, math.prod(shape[: axes[0]]), math.prod(shape[axes[0] : axes[1]]), math.prod(shape[axes[1] :])
