"""How kernels of rows are launched: arrays (outer, n, inner) whose rows are shared among threads as `rows.cuh` says."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from flnb_backends.tensor.cuda import launcher
from flnb_backends.tensor.cuda.base import CudaBuffers

__all__ = ["RowKernels", "Rows", "accumulator", "kernel_types"]

THREADS, LANES = 256, 32
"""Threads of a block, for which `rows.cuh` has memory, and of a warp."""
MOST_TILES = 64
"""The largest third extent of a block."""
FEW_TILES = 512
"""So many blocks of rows keep a device busy: fewer long rows are cut into parts."""


class Rows(NamedTuple):
    """Rows of n elements that are ``inner`` elements apart, in an array (outer, n, inner).

    Attributes:
        chunk: into parts of how many elements each row is cut; 0 for no cut.
    """

    outer: int
    n: int
    inner: int
    chunk: int = 0

    @staticmethod
    def along(shape: tuple[int, ...], axis: int, count: int = 1) -> Rows:
        """The rows of an array along ``count`` axes, from ``axis`` on."""
        return Rows(math.prod(shape[:axis]), math.prod(shape[axis : axis + count]), math.prod(shape[axis + count :]))

    @property
    def parts(self) -> int:
        """How many parts each row is cut into."""
        return -(-self.n // self.chunk) if 0 < self.chunk < self.n else 1

    def block(self) -> tuple[int, int, int]:
        """The extents of a block: neighbouring rows, threads along each, and how many of such tiles."""
        across = min(LANES, _power_of_two(self.inner))
        along = min(THREADS // across, _power_of_two(min(self.n, self.chunk or self.n)))
        along = max(along, THREADS // MOST_TILES // across)
        return across, along, THREADS // (across * along)

    def tiles(self) -> int:
        """How many tiles of neighbouring rows there are."""
        return self.outer * self.parts * -(-self.inner // self.block()[0])

    def cut(self) -> Rows:
        """Cut rows that are long, for the accuracy of sums, or long and few, so that there is work for all."""
        along = self.block()[1]
        most = 32 * along if self.tiles() < FEW_TILES else THREADS * along
        return self._replace(chunk=32 * along) if self.n > most else self


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which kernels compute: float32 for half precision, else the dtype itself."""
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype


def kernel_types(dtype: np.dtype[Any], **more: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    """The types of a kernel on elements T of a dtype that computes in A, and of others by name."""
    return {"T": dtype, "A": accumulator(dtype), **more}


class RowKernels(CudaBuffers):
    """Launches kernels whose last parameters are the extents of `Rows`."""

    def launch_rows(self, file: str, name: str, types: dict[str, np.dtype[Any]], rows: Rows, *arguments: Any) -> None:
        """Launch a kernel of rows, as `Launcher.launch`; nothing if there is no row."""
        block = rows.block()
        if tiles := rows.tiles():
            extents = rows.outer, rows.n, rows.inner, rows.chunk or max(rows.n, 1)
            blocks = (min(-(-tiles // block[2]), launcher.BLOCKS),)
            self.launcher.launch(file, name, types, blocks, block, *arguments, *extents)
