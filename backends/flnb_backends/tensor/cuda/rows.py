"""Launches kernels over rows of arrays (outer, n, inner); ``rows.cuh`` says how rows are divided among threads."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from flnb_backends.tensor.cuda import launcher
from flnb_backends.tensor.cuda.base import CudaBuffers

THREADS, LANES = 256, 32
"""Threads of a block, for which ``rows.cuh`` reserves shared memory, and of a warp."""
MOST_TILES = 64
"""The most threads along the third axis of a block."""
FEW_TILES = 512
"""The number of tiles needed to use a whole device; if there are fewer, long rows are cut into parts."""


class Rows(NamedTuple):
    """The rows of an array (outer, n, inner) along its second axis: ``outer * inner`` rows of n elements each.

    Attributes:
        inner: the extent of the last axis. In memory, the consecutive elements of a row are ``inner`` elements apart.
        chunk: the number of elements in each part of a row that is divided into parts; 0 if rows are not divided.
    """

    outer: int
    n: int
    inner: int
    chunk: int = 0

    @staticmethod
    def along(shape: tuple[int, ...], axis: int, count: int = 1) -> Rows:
        """Return the rows of a C-contiguous array of this shape along ``count`` axes, of which ``axis`` is the first.

        >>> from flnb_backends.tensor.cuda.rows import Rows
        >>> Rows.along((2, 3, 5), axis=1)
        Rows(outer=2, n=3, inner=5, chunk=0)
        """
        return Rows(math.prod(shape[:axis]), math.prod(shape[axis : axis + count]), math.prod(shape[axis + count :]))

    @property
    def parts(self) -> int:
        """Return the number of parts into which each row is cut."""
        return -(-self.n // self.chunk) if 0 < self.chunk < self.n else 1

    def block(self) -> tuple[int, int, int]:
        """Return the extents of a block of threads: rows per tile, threads per row, and tiles per block."""
        across = min(LANES, power_of_two(self.inner))
        along = min(THREADS // across, power_of_two(min(self.n, self.chunk or self.n)))
        along = max(along, THREADS // MOST_TILES // across)
        return across, along, THREADS // (across * along)

    def tiles(self) -> int:
        """Return the number of tiles; a tile is a group of neighbouring rows, or of parts of rows."""
        return self.outer * self.parts * -(-self.inner // self.block()[0])

    def cut(self) -> Rows:
        """Return the rows, cut into parts if very long (for accurate sums) or long and few (to fill the device)."""
        along = self.block()[1]
        most = 32 * along if self.tiles() < FEW_TILES else THREADS * along
        return self._replace(chunk=32 * along) if self.n > most else self


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which kernels compute: float32 for half precision, else the dtype itself.

    >>> import numpy as np
    >>> from flnb_backends.tensor.cuda.rows import accumulator
    >>> accumulator(np.dtype("float16")).name
    'float32'
    """
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype


def kernel_types(dtype: np.dtype[Any], **more: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    """Return a kernel's types by name: T for elements, A for the computation (`accumulator`), and those in ``more``."""
    return {"T": dtype, "A": accumulator(dtype), **more}


class RowKernels(CudaBuffers):
    """The base class of parts of the cuda backend that launch kernels over `Rows`."""

    def launch_rows(self, file: str, name: str, types: dict[str, np.dtype[Any]], rows: Rows, *arguments: Any) -> None:
        """Launch a kernel over rows, as `Launcher.launch` does; without rows do nothing.

        The extents of the rows follow ``arguments`` as the kernel's last arguments.
        """
        block = rows.block()
        if tiles := rows.tiles():
            extents = rows.outer, rows.n, rows.inner, rows.chunk or max(rows.n, 1)
            blocks = (min(-(-tiles // block[2]), launcher.BLOCKS),)
            self.launcher.launch(file, name, types, blocks, block, *arguments, *extents)
