"""Linear algebra of the NumPy backend, by LAPACK. Ops with several results return them packed (`flnb.ops.inverse`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flnb.dispatch.quiet import quiet_methods, unnamed
from flnb_backends.tensor.half import is_half, rounded, single

Array = np.ndarray[Any, Any]


def lapack(name: str, x: Array, *arguments: Any, **options: Any) -> Any:
    """Call a function of `numpy.linalg`; half precision is computed in float32. Errors name the op and the matrix."""
    try:
        return getattr(np.linalg, name)(single(x), *map(single, arguments), **options)
    except np.linalg.LinAlgError as error:
        raise np.linalg.LinAlgError(f"{name}: {error} ({x.dtype.name}{list(x.shape)})") from None


def pack(parts: Any, x: Array, out: Array | None) -> Array:
    """Flatten the results of one decomposition and join them along one last axis, behind the batch axes of x."""
    batch = x.shape[:-2]
    flat = [np.reshape(p, (*batch, math.prod(np.shape(p)[len(batch) :]))) for p in parts]
    if out is None:
        return np.concatenate(flat, -1, dtype=x.dtype, casting="unsafe")
    joined: Array = np.concatenate(flat, -1, out=out, casting="unsafe")
    return joined


def _plain(name: str) -> Callable[..., Array]:
    def method(self: Any, x: Array, out: Array | None = None) -> Array:
        return _into(lapack(name, x), x, out)

    return method


def _into(values: Array, x: Array, out: Array | None) -> Array:
    if out is None:
        return np.asarray(values).astype(values.dtype if x.dtype.itemsize > 2 else x.dtype, copy=False)
    np.copyto(out, values, casting="unsafe")
    return out


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
    """The decompositions and solvers of the NumPy backend."""

    matmul = _matmul
    cholesky, inv, det = _plain("cholesky"), _plain("inv"), _plain("det")
    eigvalsh, svdvals = _plain("eigvalsh"), _plain("svdvals")

    def solve(self, a: Array, b: Array, out: Array | None = None) -> Array:
        return _into(lapack("solve", a, b), a, out)

    def pinv(self, x: Array, rtol: Array, out: Array | None = None) -> Array:
        return _into(lapack("pinv", x, rtol=rtol), x, out)

    def eigh(self, x: Array, out: Array | None = None) -> Array:
        return pack(lapack("eigh", x), x, out)

    def qr(self, x: Array, mode: str, out: Array | None = None) -> Array:
        return pack(lapack("qr", x, mode=mode), x, out)

    def svd(self, x: Array, full: bool, out: Array | None = None) -> Array:
        return pack(lapack("svd", x, full_matrices=full), x, out)

    def slogdet(self, x: Array, out: Array | None = None) -> Array:
        return pack(lapack("slogdet", x), x, out)
