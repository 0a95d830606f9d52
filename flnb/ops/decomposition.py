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
from flnb.ops.inverse import Shape, packed, plain, solve, square
from flnb.ops.linalg import adjoint
from flnb.ops.movement import concat, expand_dims, matrices

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, Tensor


class EighResult(NamedTuple):
    """Results of `eigh`: ascending ``eigenvalues`` (..., N), and ``eigenvectors`` (..., N, N), one in each column."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """Results of `qr`: ``Q`` with orthonormal columns, and the upper triangular ``R``."""

    Q: Tensor
    R: Tensor


class SVDResult(NamedTuple):
    """Results of `svd`: ``U`` (..., M, K), the descending singular values ``S`` (..., K), and ``Vh`` (..., K, N)."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def symmetric(x: Any) -> Any:
    """Return (x + x^H) / 2 for square matrices x: the mean of each matrix and its adjoint."""
    return (x + adjoint(x)) * 0.5


def lower(x: Any, diagonal: float) -> Any:
    """Return the lower triangles of matrices, with the diagonals multiplied by the number ``diagonal``."""
    n, m = x.shape[-2:]
    return x * asarray(np.tri(n, m, -1) + diagonal * np.eye(n, m), dtype=x.dtype)


def columns(x: Any, vectors: Any) -> Any:
    """Multiply the j-th column of matrices x by the j-th element of vectors."""
    return x * expand_dims(vectors, axis=-2)


def _gaps(w: Any, cotangent: Any) -> Any:
    """Return the matrix of 1 / (w_j - w_i), with 0 on the diagonal, for eigenvalues or squared singular values w.

    The vectors of equal values are not unique (they can be rotated into each other), so a gradient with respect to
    these vectors is not defined. The caller will multiply the result by ``cotangent``. Therefore, where w_i and w_j are
    equal, the result is NaN if that element of ``cotangent`` is not zero; otherwise it is 0.
    """
    difference = expand_dims(w, axis=-2) - expand_dims(w, axis=-1)
    equal = e.equal(difference, 0.0)
    others = asarray(~np.eye(w.shape[-1], dtype=bool))
    undefined = e.logical_and(equal, e.logical_and(e.not_equal(cotangent, 0.0), others))
    inverse = e.astype(e.logical_not(equal), w.dtype) / e.where(equal, 1.0, difference)
    return e.where(undefined, math.nan, inverse)


# Cholesky


def _pull_cholesky(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """Gradient of cholesky (Murray, "Differentiation of the Cholesky decomposition", 2016, equation 10)."""
    upper = adjoint(y)
    return symmetric(adjoint(solve(upper, adjoint(solve(upper, lower(upper @ g, 0.5))))))


_cholesky = Op("cholesky", "matmul", square, [Pull({"y"}, _pull_cholesky)], accepts="float", holomorphic=False)


def cholesky(x: ArrayLike, /, *, upper: bool = False) -> Tensor:
    """Cholesky factor L of symmetric positive definite x (..., N, N), with ``x = L @ L.mT``; ``L.mT`` if ``upper``.

    Only the lower triangle of x is read, and x is assumed to be symmetric. The gradient is symmetric.

    >>> import flnb
    >>> flnb.linalg.cholesky(flnb.asarray([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]

    Raises:
        numpy.linalg.LinAlgError: x is not positive definite.
    """
    y = dispatch.call(_cholesky, (asarray(x),))
    return adjoint(y) if upper else y


# Eigenvalues


def _pull_eigh(g: list[Any], _: Any, y: list[Any]) -> Any:
    """Gradient of eigh.

    Giles, "Collected matrix derivative results for forward and reverse mode AD" (2008), section 3.1.
    """
    (g_values, g_vectors), (w, v) = g, y
    turned = adjoint(v) @ g_vectors
    return symmetric((v @ (turned * _gaps(plain(w), turned)) + columns(v, plain(g_values))) @ adjoint(v))


_eigh = packed("eigh", lambda _, n: ((n,), (n, n)), _pull_eigh)


def eigh(x: ArrayLike, /) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric x (..., N, N), of which only the lower triangle is read.

    Where eigenvalues are equal, their eigenvectors are not unique, and a gradient through them is NaN.

    Raises:
        ValueError: the matrices are not square.

    >>> import flnb
    >>> flnb.linalg.eigh(flnb.asarray([[2.0, 0.0], [0.0, 1.0]])).eigenvalues.tolist()
    [1.0, 2.0]
    """
    values, vectors = _eigh(x)
    return EighResult(plain(values), vectors)


def _pull_eigvalsh(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """Gradient of eigvalsh, computed from the eigenvectors."""
    v = eigh(x).eigenvectors
    return symmetric(columns(v, g) @ adjoint(v))


def _infer_values(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Shape, Any]:
    """Shape rule of eigenvalues and singular values: min(M, N) real numbers for each matrix (M, N)."""
    shape = matrices(op.name, specs[0], square=op.name == "eigvalsh")
    return (*shape[:-2], min(shape[-2:])), real_dtype(specs[0].dtype)


_eigvalsh = Op("eigvalsh", "matmul", _infer_values, [Pull({0}, _pull_eigvalsh)], accepts="float", holomorphic=False)


def eigvalsh(x: ArrayLike, /) -> Tensor:
    """Eigenvalues (..., N), ascending, of symmetric x (..., N, N), of which only the lower triangle is read.

    Raises:
        ValueError: the matrices are not square.

    >>> import flnb
    >>> flnb.linalg.eigvalsh([[2.0, 1.0], [1.0, 2.0]]).round()
    Tensor([1., 3.], float32[2], numpy)
    """
    return dispatch.call(_eigvalsh, (asarray(x),))


# Vectors that complete a basis


def _of_first(op: str, count: int, g: Any, vectors: Any) -> Any:
    """Return the gradient with respect to the first ``count`` columns of a unitary matrix, given that of all columns.

    The first columns, Q1, are unique; the others, Q2, only complete the basis. As all columns stay orthonormal, Q2
    changes with Q1 by dQ2 = -Q1 dQ1^H Q2, so the gradient with respect to Q2 adds to that with respect to Q1. A
    decomposition may return any rotation of the columns of Q2 among themselves, so there is no gradient with respect to
    such a rotation.

    Args:
        op: the name of the decomposition, for the error message.
        count: the number of columns of Q1.
        g: the gradient with respect to all columns.
        vectors: the unitary matrices, whose columns are Q1 and Q2.

    Raises:
        ValueError: ``g`` depends on a rotation of Q2.
    """
    first, others = vectors[..., :count], vectors[..., count:]
    of_others = g[..., count:]
    along = adjoint(others) @ of_others
    turn = e.abs(along - adjoint(along))
    if turn.size and turn._bounds()[1] > finfo(g.dtype).eps ** 0.5 * e.abs(g)._bounds()[1]:
        raise ValueError(
            f"{op}: the last {others.shape[-1]} columns of {vectors._spec!r} complete a basis. They are not unique, "
            f"because they can be rotated among themselves, and this gradient depends on that rotation. Call these "
            f"columns Q2: use a function that no rotation changes, such as Q2 @ Q2.mT, or leave Q2 out by "
            f"{_WITHOUT[op]}"
        )
    return g[..., :count] - others @ (adjoint(of_others) @ first)


_WITHOUT = {"qr": "mode='reduced'", "svd": "full_matrices=False"}


# QR


def _qr_shapes(m: int, n: int, mode: str) -> tuple[Shape, ...]:
    """Return the shapes of Q and R for a matrix (m, n); Q is square if ``mode`` is "complete"."""
    k = m if mode == "complete" else min(m, n)
    return (m, k), (k, n)


def _pull_qr(g: list[Any], x: Any, y: list[Any], mode: str) -> Any:
    """Gradient of qr; for a wide matrix it is computed from the gradient for the square left part of the matrix.

    Walter and Lehmann, "Walter's algorithm for the derivative of QR" (2010).
    """
    (g_q, g_r), (q, r) = g, y
    m, n = x.shape[-2:]
    if q.shape[-1] > n:
        g_q, q, g_r, r = _of_first("qr", n, g_q, q), q[..., :n], g_r[..., :n, :], r[..., :n, :]
    if m >= n:
        return _pull_tall_qr(g_q, g_r, q, r)
    g_q = g_q + x[..., m:] @ adjoint(g_r[..., m:])
    return concat([_pull_tall_qr(g_q, g_r[..., :m], q, r[..., :m]), q @ g_r[..., m:]], axis=-1)


def _pull_tall_qr(g_q: Any, g_r: Any, q: Any, r: Any) -> Any:
    """Gradient of qr for a matrix with at least as many rows as columns."""
    half = lower(r @ adjoint(g_r) - adjoint(g_q) @ q, 0.5)
    return adjoint(solve(r, adjoint(g_q + q @ (half + adjoint(half)))))


_qr = packed("qr", _qr_shapes, _pull_qr, reads={0, "y"}, only_square=False)


def qr(x: ArrayLike, /, *, mode: str = "reduced") -> QRResult:
    """QR decomposition of matrices x (..., M, N): ``x = Q @ R``.

    Q (..., M, K) has orthonormal columns, and R (..., K, N) is upper triangular. K is min(M, N), or M with
    ``mode="complete"``.

    Raises:
        ValueError: x has fewer than two dimensions.

    >>> import flnb
    >>> q, r = flnb.linalg.qr(flnb.asarray([[3.0, 1.0], [4.0, 2.0]]))
    >>> [round(value, 4) for value in (q @ r).flatten().tolist()]
    [3.0, 1.0, 4.0, 2.0]
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode must be 'reduced' or 'complete', got {brief(mode)}")
    return QRResult(*_qr(x, mode))


# Singular values


def _svd_shapes(m: int, n: int, full: bool) -> tuple[Shape, ...]:
    """Return the shapes of U, S and Vh for a matrix (m, n); U and Vh are square if ``full``."""
    k = min(m, n)
    return (m, m if full else k), (k,), (n if full else k, n)


def _pull_svd(g: list[Any], x: Any, y: list[Any], full: bool) -> Any:
    """Gradient of svd (Townsend, "Differentiating the singular value decomposition", 2016, equations 31 to 38)."""
    (g_u, g_s, g_vh), (u, s, vh) = g, y
    g_s, s = plain(g_s), plain(s)
    v, g_v, count = adjoint(vh), adjoint(g_vh), s.shape[-1]
    if u.shape[-1] > count:
        g_u, u = _of_first("svd", count, g_u, u), u[..., :count]
    if v.shape[-1] > count:
        g_v, v = _of_first("svd", count, g_v, v), v[..., :count]
        vh = adjoint(v)
    row, column, squares = expand_dims(s, axis=-2), expand_dims(s, axis=-1), e.square(s)
    left, right = adjoint(u) @ g_u, vh @ g_v
    skew_u, skew_v = left - adjoint(left), right - adjoint(right)
    inner = _gaps(squares, left) * skew_u * row + _gaps(squares, right) * skew_v * column
    if x.dtype.kind == "c":  # U and Vh may change their phases together
        inner = inner + skew_u * asarray(np.eye(s.shape[-1]), dtype=s.dtype) / (2.0 * column)
    pulled = (u @ inner + columns(u, g_s)) @ vh
    if u.shape[-2] > u.shape[-1]:
        pulled = pulled + ((g_u - u @ left) / row) @ vh
    if v.shape[-2] > v.shape[-1]:
        pulled = pulled + (u / row) @ adjoint(g_v - v @ right)
    return pulled


_svd = packed("svd", _svd_shapes, _pull_svd, reads={0, "y"}, only_square=False)


def svd(x: ArrayLike, /, *, full_matrices: bool = True) -> SVDResult:
    """Singular value decomposition, ``x = (U * S) @ Vh``, of x (..., M, N), with K = min(M, N) singular values S.

    With ``full_matrices`` U (..., M, M) and Vh (..., N, N) are square; without it they are (..., M, K) and (..., K, N).
    The vectors that make U or Vh square are not unique. A function of these vectors has a gradient if every choice of
    them leads to the same result, as for the projection onto their span. Other functions raise a ValueError in the
    backward pass.

    Raises:
        ValueError: x has fewer than two dimensions.

    >>> import flnb
    >>> flnb.linalg.svd(flnb.asarray([[0.0, 2.0], [1.0, 0.0]])).S.tolist()
    [2.0, 1.0]
    """
    u, s, vh = _svd(x, bool(full_matrices))
    return SVDResult(u, plain(s), vh)


def _pull_svdvals(g: Any, plan: Any, x: Any, y: Any) -> Any:
    """Gradient of svdvals, computed from the singular vectors."""
    u, _, vh = svd(x, full_matrices=False)
    return columns(u, g) @ vh


_svdvals = Op("svdvals", "matmul", _infer_values, [Pull({0}, _pull_svdvals)], accepts="float", holomorphic=False)


def svdvals(x: ArrayLike, /) -> Tensor:
    """Singular values (..., min(M, N)) of matrices (..., M, N), descending.

    Raises:
        ValueError: x has fewer than two dimensions.

    >>> import flnb
    >>> flnb.linalg.svdvals([[0.0, 3.0], [4.0, 0.0]]).round()
    Tensor([4., 3.], float32[2], numpy)
    """
    return dispatch.call(_svdvals, (asarray(x),))
