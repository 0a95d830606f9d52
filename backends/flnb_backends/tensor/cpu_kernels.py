"""The compiler of the backend "cpu" for programs, and its random numbers, which machine code draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_backends.native.onednn import library
from flnb_backends.native.uniform import draw
from flnb_backends.tensor.numpy import NumpyBackend, native

if TYPE_CHECKING:
    import numpy as np

    from flnb_backends.tensor.rows import Array


class Kernels(NumpyBackend):
    """The methods of the backend "cpu" that use machine code of their own, other than composites.

    Attributes:
        threads: how many threads kernels of programs use; 0 for as many as OpenMP by default.
    """

    threads = 0

    def kernels(self) -> Any:
        if super().kernels() is None:
            return None
        dnn = library()
        return native()(min(self.threads or dnn.threads, dnn.most_threads), dnn.team)

    def random_uniform(self, low: float, high: float, source: np.random.Generator, out: Array) -> Array:
        if (low, high) == (0.0, 1.0) and draw(source, out):
            return out
        return super().random_uniform(low, high, source, out)
