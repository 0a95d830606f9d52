"""Fourier transforms of the NumPy backend, by pocketfft."""

from __future__ import annotations

from typing import Any

import numpy as np

from flnb.dispatch.quiet import quiet_methods

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]


@quiet_methods
class Fourier:
    """The Fourier transforms of the NumPy backend. Ops have cut or padded their inputs to the right sizes."""

    def fftn(self, x: Array, axes: Axes, norm: Any, out: Array | None = None) -> Array:
        return np.fft.fftn(x, axes=axes, norm=norm, out=out)

    def ifftn(self, x: Array, axes: Axes, norm: Any, out: Array | None = None) -> Array:
        return np.fft.ifftn(x, axes=axes, norm=norm, out=out)

    def rfftn(self, x: Array, axes: Axes, norm: Any, out: Array | None = None) -> Array:
        return np.fft.rfftn(x, axes=axes, norm=norm, out=out)

    def irfftn(self, x: Array, axes: Axes, size: int, norm: Any, out: Array | None = None) -> Array:
        sizes = [*[x.shape[a] for a in axes[:-1]], size]
        return np.fft.irfftn(x, sizes, axes=axes, norm=norm, out=out)
