"""Linear algebra and Fourier transforms, by functions that NumPy (with LAPACK) and CuPy have in common.

An op with several results, such as qr, returns them packed in one array (`flnb.ops.inverse`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flnb.dispatch.quiet import quiet_methods, unnamed
from flnb_backends.tensor.half import is_half, rounded, single

Array = np.ndarray[Any, Any]
Axes = tuple[int, ...]


def pack(parts: Any, x: Array, out: Array | None) -> Array:
    """Flatten the results of a decomposition and join them along the last axis, after x's batch axes."""
    batch = x.shape[:-2]
    flat = [part.reshape(*batch, math.prod(part.shape[len(batch) :])) for part in parts]
    if out is None:
        return np.concatenate(flat, -1, dtype=x.dtype, casting="unsafe")
    return np.concatenate(flat, -1, out=out, casting="unsafe")


def _plain(name: str) -> Callable[..., Array]:
    def method(self: Any, x: Array, out: Array | None = None) -> Array:
        return self._into(self._lapack(name, x), x, out)

    return method


def _transform(name: str) -> Callable[..., Array]:
    def method(self: Any, x: Array, axes: Axes, norm: Any, out: Array | None = None) -> Array:
        return self._transformed(name, x, None, axes, norm, out)

    return method


@unnamed
def _matmul(self: Any, a: Array, b: Array, out: Array | None = None) -> Array:
    half, wanted = None, out
    if a.itemsize == 2 and is_half(a):
        half, a, b, out = a, single(a), single(b), None
    if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous and (out is None or out.flags.c_contiguous):
        rows = math.prod(a.shape[:-1])  # one product instead of one of each example
        into = None if out is None else out.reshape(rows, b.shape[1])
        flat = np.matmul(a.reshape(rows, a.shape[-1]), b, into)
        product: Array = flat.reshape(*a.shape[:-1], b.shape[1]) if out is None else out
    else:
        product = np.matmul(a, b, out)
    return product if half is None else rounded(product, half, wanted)


@quiet_methods
class LinearAlgebra:
    """Matrix products, decompositions, solvers and Fourier transforms.

    A backend on CuPy's arrays overrides only `_lapack`, `_transformed` and `_into`, the methods that call NumPy.
    """

    matmul = _matmul
    cholesky, inv, det, eigvalsh = _plain("cholesky"), _plain("inv"), _plain("det"), _plain("eigvalsh")
    fftn, ifftn, rfftn = _transform("fftn"), _transform("ifftn"), _transform("rfftn")

    def svdvals(self, x: Array, out: Array | None = None) -> Array:
        return self._into(self._lapack("svd", x, compute_uv=False), x, out)

    def solve(self, a: Array, b: Array, out: Array | None = None) -> Array:
        return self._into(self._lapack("solve", a, b), a, out)

    def pinv(self, x: Array, rtol: Array, out: Array | None = None) -> Array:
        return self._into(self._lapack("pinv", x, rtol), x, out)

    def eigh(self, x: Array, out: Array | None = None) -> Array:
        return pack(self._lapack("eigh", x), x, out)

    def qr(self, x: Array, mode: str, out: Array | None = None) -> Array:
        return pack(self._lapack("qr", x, mode=mode), x, out)

    def svd(self, x: Array, full: bool, out: Array | None = None) -> Array:
        return pack(self._lapack("svd", x, full_matrices=full), x, out)

    def slogdet(self, x: Array, out: Array | None = None) -> Array:
        return pack(self._lapack("slogdet", x), x, out)

    def irfftn(self, x: Array, axes: Axes, size: int, norm: Any, out: Array | None = None) -> Array:
        return self._transformed("irfftn", x, [*[x.shape[a] for a in axes[:-1]], size], axes, norm, out)

    def _lapack(self, name: str, x: Array, *arguments: Any, **options: Any) -> Any:
        """Call the function ``name`` of `numpy.linalg`, in float32 for half precision; errors name op and matrix."""
        try:
            return getattr(np.linalg, name)(single(x), *map(single, arguments), **options)
        except np.linalg.LinAlgError as error:
            raise np.linalg.LinAlgError(f"{name}: {error} ({x.dtype.name}{list(x.shape)})") from None

    def _transformed(self, name: str, x: Array, sizes: Any, axes: Axes, norm: Any, out: Array | None) -> Array:
        """Call the function ``name`` of `numpy.fft`; x has been cut or padded to the right sizes before."""
        return getattr(np.fft, name)(x, sizes, axes=axes, norm=norm, out=out)

    def _into(self, values: Array, x: Array, out: Array | None) -> Array:
        if out is None:
            return np.asarray(values).astype(values.dtype if x.dtype.itemsize > 2 else x.dtype, copy=False)
        np.copyto(out, values, casting="unsafe")
        return out
