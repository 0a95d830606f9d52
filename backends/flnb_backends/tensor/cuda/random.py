"""Random numbers on a CUDA device by the counter-based generator Philox4x32-10, whose keys come from NumPy's generator.

Each call draws a 64-bit key. Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flnb_backends.tensor.cuda.base import Buffer, CudaBuffers

if TYPE_CHECKING:
    from typing import Any


class RandomNumbers(CudaBuffers):
    """The methods of the cuda backend for random numbers. A seed gives the same numbers again, but not NumPy's."""

    def random_uniform(self, low: float, high: float, source: np.random.Generator, out: Buffer) -> Buffer:
        return self._drawn("random_uniform", low, high, source, out)

    def random_normal(self, mean: float, std: float, source: np.random.Generator, out: Buffer) -> Buffer:
        return self._drawn("random_normal", mean, std, source, out)

    def _drawn(self, name: str, one: float, other: float, source: np.random.Generator, out: Buffer) -> Buffer:
        y = self.written(out, out.shape, out.dtype)
        double = out.dtype == np.float64
        types: dict[str, np.dtype[Any]] = {"T": out.dtype, "F": np.dtype(np.float64 if double else np.float32)}
        threads = -(-y.size // (2 if double else 4))  # each makes this many numbers of one block of Philox
        key = source.integers(1 << 64, dtype=np.uint64)
        self.launcher.launch_each("random", name, types, threads, y, y.size, np.float64(one), np.float64(other), key)
        return self.finished(y, out)
