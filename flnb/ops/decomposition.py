"""Matrix decompositions with gradients: cholesky, eigh, qr, svd."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.brief import brief
from flnb.dispatch.dtypes import real_dtype
from flnb.dispatch.table import Op, Pull
from flnb.ops import elementwise as e
from flnb.ops.creation import asarray
from flnb.ops.dtypes import finfo
from flnb.ops.inverse import solve
from flnb.ops.linalg import adjoint, matmul
from flnb.ops.movement import concat, expand_dims
from flnb.ops.packed import Shape, matrices, packed, plain, results, square

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, Tensor


class EighResult(NamedTuple):
    """``eigenvalues`` (..., N), ascending, and ``eigenvectors`` (..., N, N), one a column."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """``Q`` with orthonormal columns and ``R``, upper triangular."""

    Q: Tensor
    R: Tensor


class SVDResult(NamedTuple):
    """``U`` (..., M, K), ``S`` (..., K), descending, and ``Vh`` (..., K, N)."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def symmetric(x: Any) -> Any:
    """The mean of a matrix and its adjoint."""
    return e.multiply(e.add(x, adjoint(x)), 0.5)


def lower(x: Any, diagonal: float) -> Any:
    """The lower triangle of x, its diagonal multiplied by a number."""
    n, m = x.shape[-2:]
    return e.multiply(x, asarray(np.tri(n, m, -1) + diagonal * np.eye(n, m), dtype=x.dtype))


def _gaps(w: Any, cotangent: Any) -> Any:
    """1 / (w_j - w_i) at (i, j), and 0 on the diagonal.

    Vectors that belong to equal values can be rotated into each other, and a gradient by them is not defined: NaN
    where one is asked for, 0 where the cotangent is zero because only values are used.
    """
    difference = e.subtract(expand_dims(w, axis=-2), expand_dims(w, axis=-1))
    equal = e.equal(difference, 0.0)
    others = asarray(~np.eye(w.shape[-1], dtype=bool))
    undefined = e.logical_and(equal, e.logical_and(e.not_equal(cotangent, 0.0), others))
    inverse = e.divide(e.astype(e.logical_not(equal), w.dtype), e.where(equal, 1.0, difference))
    return e.where(undefined, math.nan, inverse)


# Cholesky


def _pull_cholesky(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """The gradient of cholesky (Murray, "Differentiation of the Cholesky decomposition", 2016, equation 10)."""
    upper = adjoint(y)
    half = solve(upper, lower(matmul(upper, g), 0.5))
    return symmetric(adjoint(solve(upper, adjoint(half))))


_cholesky = Op("cholesky", "matmul", square, [Pull({"y"}, _pull_cholesky)], accepts="float", holomorphic=False)


def cholesky(x: ArrayLike, /, *, upper: bool = False) -> Tensor:
    """L with ``x = L @ L.mT`` for symmetric positive definite x (..., N, N); its adjoint if ``upper``.

    The lower triangle of x is read, and x taken to be symmetric; so is its gradient.

    >>> import flnb
    >>> flnb.linalg.cholesky(flnb.asarray([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]

    Raises:
        numpy.linalg.LinAlgError: a matrix that is not positive definite.
    """
    y = dispatch.call(_cholesky, (asarray(x),))
    return adjoint(y) if upper else y


# Eigenvalues


def _pull_eigh(g: list[Any], _: Any, y: list[Any]) -> Any:
    """The gradient of eigh.

    Giles, "Collected matrix derivative results for forward and reverse mode AD" (2008), section 3.1.
    """
    (g_values, g_vectors), (w, v) = g, y
    g_values, w = plain(g_values), plain(w)
    turned = matmul(adjoint(v), g_vectors)
    inner = e.multiply(turned, _gaps(w, turned))
    scaled = e.multiply(v, expand_dims(g_values, axis=-2))
    return symmetric(matmul(e.add(matmul(v, inner), scaled), adjoint(v)))


_eigh = packed("eigh", lambda _, n: ((n,), (n, n)), _pull_eigh)


def eigh(x: ArrayLike, /) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric x (..., N, N), of which the lower triangle is read.

    The gradient by vectors is NaN where eigenvalues are equal, as the vectors are not determined there.

    >>> import flnb
    >>> flnb.linalg.eigh(flnb.asarray([[2.0, 0.0], [0.0, 1.0]])).eigenvalues.tolist()
    [1.0, 2.0]
    """
    x = asarray(x)
    n = matrices("eigh", x._spec, square=True)[-1]
    values, vectors = results(_eigh, x, ((n,), (n, n)))
    return EighResult(plain(values), vectors)


def _pull_eigvalsh(g: Any, plan: Any, x: Any, y: Any) -> Any:
    v = eigh(x).eigenvectors
    return symmetric(matmul(e.multiply(v, expand_dims(g, axis=-2)), adjoint(v)))


def _infer_values(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Shape, Any]:
    shape = matrices(op.name, specs[0], square=op.name == "eigvalsh")
    return (*shape[:-2], min(shape[-2:])), real_dtype(specs[0].dtype)


_eigvalsh = Op("eigvalsh", "matmul", _infer_values, [Pull({0}, _pull_eigvalsh)], accepts="float", holomorphic=False)


def eigvalsh(x: ArrayLike, /) -> Tensor:
    """Eigenvalues (..., N), ascending, of symmetric x (..., N, N), of which only the lower triangle is read.

    >>> import flnb
    >>> flnb.linalg.eigvalsh([[2.0, 1.0], [1.0, 2.0]]).round()
    Tensor([1., 3.], float32[2], numpy)
    """
    return dispatch.call(_eigvalsh, (asarray(x),))


# Vectors that complete a basis


def _of_first(op: str, count: int, g: Any, vectors: Any) -> Any:
    """The cotangent of the first columns Q1 of a unitary matrix, from that of all.

    The others, Q2, follow the first by dQ2 = -Q1 dQ1^H Q2, as all stay orthonormal. How they turn among themselves is
    the algorithm's choice: no gradient can say it, and it is refused where the cotangent asks.
    """
    first, others = vectors[..., :count], vectors[..., count:]
    of_others = g[..., count:]
    along = matmul(adjoint(others), of_others)
    turn = e.abs(e.subtract(along, adjoint(along)))
    if turn.size and turn._bounds()[1] > finfo(g.dtype).eps ** 0.5 * e.abs(g)._bounds()[1]:
        raise ValueError(
            f"{op}: of {vectors._spec!r} the last {others.shape[-1]} columns complete a basis, and the matrix does not "
            f"determine how they turn among themselves, which this gradient asks; use what does not depend on it, such "
            f"as their projection Q2 @ Q2.mT, or {_WITHOUT[op]}, which leaves them out"
        )
    return e.subtract(g[..., :count], matmul(others, matmul(adjoint(of_others), first)))


_WITHOUT = {"qr": "mode='reduced'", "svd": "full_matrices=False"}


# QR


def _qr_shapes(m: int, n: int, mode: str) -> tuple[Shape, ...]:
    k = m if mode == "complete" else min(m, n)
    return (m, k), (k, n)


def _pull_qr(g: list[Any], x: Any, y: list[Any], mode: str) -> Any:
    """The gradient of qr; wide matrices by their square part.

    Walter and Lehmann, "Walter's algorithm for the derivative of QR" (2010).
    """
    (g_q, g_r), (q, r) = g, y
    m, n = x.shape[-2:]
    if q.shape[-1] > n:
        g_q, q, g_r, r = _of_first("qr", n, g_q, q), q[..., :n], g_r[..., :n, :], r[..., :n, :]
    if m >= n:
        return _pull_tall_qr(g_q, g_r, q, r)
    rest, square = x[..., m:], r[..., :m]
    g_q = e.add(g_q, matmul(rest, adjoint(g_r[..., m:])))
    return concat([_pull_tall_qr(g_q, g_r[..., :m], q, square), matmul(q, g_r[..., m:])], axis=-1)


def _pull_tall_qr(g_q: Any, g_r: Any, q: Any, r: Any) -> Any:
    m = e.subtract(matmul(r, adjoint(g_r)), matmul(adjoint(g_q), q))
    half = lower(m, 0.5)
    mirrored = e.add(half, adjoint(half))
    return adjoint(solve(r, adjoint(e.add(g_q, matmul(q, mirrored)))))


_qr = packed("qr", _qr_shapes, _pull_qr, reads={0, "y"}, only_square=False)


def qr(x: ArrayLike, /, *, mode: str = "reduced") -> QRResult:
    """``x = Q @ R`` for x (..., M, N): Q (..., M, K), R (..., K, N), K = min(M, N), or M if ``mode="complete"``.

    >>> import flnb
    >>> q, r = flnb.linalg.qr(flnb.asarray([[3.0, 1.0], [4.0, 2.0]]))
    >>> [round(value, 4) for value in (q @ r).flatten().tolist()]
    [3.0, 1.0, 4.0, 2.0]
    """
    x = asarray(x)
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode must be 'reduced' or 'complete', got {brief(mode)}")
    m, n = matrices("qr", x._spec)[-2:]
    return QRResult(*results(_qr, x, _qr_shapes(m, n, mode), mode))


# Singular values


def _svd_shapes(m: int, n: int, full: bool) -> tuple[Shape, ...]:
    k = min(m, n)
    return (m, m if full else k), (k,), (n if full else k, n)


def _pull_svd(g: list[Any], x: Any, y: list[Any], full: bool) -> Any:
    """The gradient of svd (Townsend, "Differentiating the singular value decomposition", 2016, equations 31 to 38)."""
    (g_u, g_s, g_vh), (u, s, vh) = g, y
    g_s, s = plain(g_s), plain(s)
    v, g_v, count = adjoint(vh), adjoint(g_vh), s.shape[-1]
    if u.shape[-1] > count:
        g_u, u = _of_first("svd", count, g_u, u), u[..., :count]
    if v.shape[-1] > count:
        g_v, v = _of_first("svd", count, g_v, v), v[..., :count]
        vh = adjoint(v)
    row, column = expand_dims(s, axis=-2), expand_dims(s, axis=-1)
    squares = e.square(s)
    left, right = matmul(adjoint(u), g_u), matmul(vh, g_v)
    skew_u, skew_v = e.subtract(left, adjoint(left)), e.subtract(right, adjoint(right))
    inner = e.multiply(e.multiply(_gaps(squares, left), skew_u), row)
    inner = e.add(inner, e.multiply(e.multiply(_gaps(squares, right), skew_v), column))
    if x.dtype.kind == "c":  # the phases of the vectors, which U and Vh share
        inner = e.add(inner, e.divide(e.multiply(skew_u, asarray(np.eye(s.shape[-1]), dtype=s.dtype)), 2.0 * column))
    pulled = matmul(e.add(matmul(u, inner), e.multiply(u, expand_dims(g_s, axis=-2))), vh)
    if u.shape[-2] > u.shape[-1]:
        outside = e.subtract(g_u, matmul(u, left))
        pulled = e.add(pulled, matmul(e.divide(outside, row), vh))
    if v.shape[-2] > v.shape[-1]:
        outside = e.subtract(g_v, matmul(v, right))
        pulled = e.add(pulled, matmul(e.divide(u, row), adjoint(outside)))
    return pulled


_svd = packed("svd", _svd_shapes, _pull_svd, reads={0, "y"}, only_square=False)


def svd(x: ArrayLike, /, *, full_matrices: bool = True) -> SVDResult:
    """``x = (U * S) @ Vh`` with orthonormal U, Vh; for x (..., M, N) K = min(M, N), or full square U and Vh.

    The vectors that make U or Vh square have a gradient through what does not depend on how they turn among
    themselves: one vector, or the space that several span.

    >>> import flnb
    >>> flnb.linalg.svd(flnb.asarray([[0.0, 2.0], [1.0, 0.0]])).S.tolist()
    [2.0, 1.0]
    """
    x = asarray(x)
    m, n = matrices("svd", x._spec)[-2:]
    full = bool(full_matrices) and m != n
    u, s, vh = results(_svd, x, _svd_shapes(m, n, full), full)
    return SVDResult(u, plain(s), vh)


def _pull_svdvals(g: Any, plan: Any, x: Any, y: Any) -> Any:
    u, _, vh = svd(x, full_matrices=False)
    return matmul(e.multiply(u, expand_dims(g, axis=-2)), vh)


_svdvals = Op("svdvals", "matmul", _infer_values, [Pull({0}, _pull_svdvals)], accepts="float", holomorphic=False)


def svdvals(x: ArrayLike, /) -> Tensor:
    """Singular values (..., min(M, N)) of matrices (..., M, N), descending.

    >>> import flnb
    >>> flnb.linalg.svdvals([[0.0, 3.0], [4.0, 0.0]]).round()
    Tensor([4., 3.], float32[2], numpy)
    """
    return dispatch.call(_svdvals, (asarray(x),))
