"""Linear systems, inverses, determinants and powers of matrices, and how an op returns several results.

An op of the table has one result. If a decomposition has several, the backend's method returns them *packed*: all
dimensions of each result but the batch dimensions are flattened, and the results are joined along the last axis. So the
eigenvalues (..., N) and eigenvectors (..., N, N) of `eigh` become one tensor (..., N + N*N). `cut` separates them by
ops that have gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.dtypes import real_dtype
from flnb.dispatch.plan import size_of
from flnb.dispatch.table import Op, Pull, describe
from flnb.ops import elementwise as e
from flnb.ops.creation import asarray, eye
from flnb.ops.dtypes import finfo
from flnb.ops.linalg import adjoint, batched, conjugate
from flnb.ops.movement import broadcast_to, expand_dims, matrices, reshape, sum_to

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, Tensor


Shape = tuple[int, ...]


def square(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Shape, Any]:
    """Shape rule of ops whose input and result are square matrices (..., N, N)."""
    return matrices(op.name, specs[0], square=True), specs[0].dtype


def cut(packed: Any, shapes: tuple[Shape, ...]) -> list[Any]:
    """Separate the results in a packed tensor; ``shapes`` has the shape of each without its batch dimensions."""
    parts, start = [], 0
    for shape in shapes:
        stop = start + size_of(shape)
        parts.append(reshape(packed[..., start:stop], (*packed.shape[:-1], *shape)))
        start = stop
    return parts


def packed(
    name: str, shapes: Callable[..., tuple[Shape, ...]], pull: Callable[..., Any], reads: Collection[Any] = ("y",),
    only_square: bool = True,
) -> Callable[..., list[Any]]:  # fmt: skip
    """Declare an op of matrices (..., M, N) with several packed results; returns ``run(x, *attributes) -> results``.

    Args:
        name: the op's name.
        shapes: ``shapes(M, N, *attributes)`` returns the shapes of the results without their batch dimensions.
        pull: returns the gradient of x, called as ``pull(gradients, x, results, *attributes)``; ``gradients`` lists the
            gradient of each of the results.
        reads: the values that ``pull`` reads, as in `Pull`: 0 for x, "y" for the results. It gets None for the others.
        only_square: whether M and N must be equal.
    """

    def parts(spec: Any, attributes: tuple[Any, ...]) -> tuple[Shape, ...]:
        return shapes(*spec.shape[-2:], *attributes)

    def infer(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[Shape, Any]:
        shape = matrices(op.name, specs[0], only_square)
        return (*shape[:-2], sum(map(size_of, parts(specs[0], attributes)))), specs[0].dtype

    def pulled(g: Any, plan: Any, x: Any, y: Any) -> Any:
        pieces = parts(plan.specs[0], plan.attributes)
        return pull(cut(g, pieces), x, None if y is None else cut(y, pieces), *plan.attributes)

    op = Op(name, "matmul", infer, [Pull(reads, pulled)], accepts="float", holomorphic=False)

    def run(x: Any, *attributes: Any) -> list[Any]:
        x = asarray(x)
        return cut(dispatch.call(op, (x,), attributes), parts(x._spec, attributes))

    return run


def plain(x: Any) -> Any:
    """Return the real parts of complex numbers, whose imaginary parts must be zero; return real numbers unchanged."""
    return e.real(x) if x.dtype.kind == "c" else x


class SlogdetResult(NamedTuple):
    """Results of `slogdet`, both of shape (...): the determinant is ``sign * exp(logabsdet)``."""

    sign: Tensor
    logabsdet: Tensor


def _infer_solve(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
    """Shape rule of solve, for matrices (..., N, N) and right-hand sides (..., N, K)."""
    a, b = specs
    n = matrices("solve", a, square=True)[-1]
    if b.shape[-2] != n:
        raise ValueError(f"solve: {n} equations need right-hand sides (..., {n}, K) or ({n},), got {describe(specs)}")
    return (*batched("solve", specs), n, b.shape[-1]), a.dtype


_solve = Op(
    "solve", "matmul", _infer_solve,
    (
        Pull({0, "y"}, lambda g, plan, a, b, y: sum_to(-(solve(adjoint(a), g) @ adjoint(y)), plan.specs[0].shape)),
        Pull({0}, lambda g, plan, a, b, y: sum_to(solve(adjoint(a), g), plan.specs[1].shape)),
    ),
    accepts="float", holomorphic=False,
)  # fmt: skip


def solve(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """Solve ``a @ x = b`` for x, with a (..., N, N) and b (..., N, K), or one vector (N,); batch dimensions broadcast.

    >>> import flnb
    >>> flnb.linalg.solve(flnb.asarray([[2.0, 0.0], [0.0, 4.0]]), flnb.asarray([2.0, 2.0])).tolist()
    [1.0, 0.5]

    Raises:
        numpy.linalg.LinAlgError: a matrix in ``a`` is singular.
    """
    a, b = asarray(a), asarray(b)
    if b.ndim == 0:
        raise ValueError(f"solve: right-hand sides are vectors or matrices, got {b._spec!r}")
    if b.ndim > 1:
        return dispatch.call(_solve, (a, b))
    y = dispatch.call(_solve, (a, expand_dims(b, axis=1)))
    return reshape(y, y.shape[:-1])


_inv = Op(
    "inv", "matmul", square,
    [Pull({"y"}, lambda g, plan, x, y: -(adjoint(y) @ (g @ adjoint(y))))],
    accepts="float", holomorphic=False,
)  # fmt: skip


def inv(x: ArrayLike, /) -> Tensor:
    """Inverse of square matrices x (..., N, N).

    For ``inv(a) @ b`` use ``solve(a, b)``, which is faster and more accurate.

    Raises:
        numpy.linalg.LinAlgError: a matrix in x is singular.

    >>> import flnb
    >>> flnb.linalg.inv([[2.0, 0.0], [0.0, 4.0]]).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return dispatch.call(_inv, (asarray(x),))


def _scaled_inverse(g: Any, x: Any) -> Any:
    """Return the adjoints of the inverses of matrices x (..., N, N), each multiplied by a number in g (...)."""
    return expand_dims(expand_dims(g, axis=-1), axis=-1) * adjoint(inv(x))


_det = Op(
    "det", "matmul",
    lambda op, specs, _: (matrices("det", specs[0], square=True)[:-2], specs[0].dtype),
    [Pull({0, "y"}, lambda g, plan, x, y: _scaled_inverse(g * conjugate(y), x))],
    accepts="float", holomorphic=False,
)  # fmt: skip


def det(x: ArrayLike, /) -> Tensor:
    """Determinants (...) of square matrices x (..., N, N); the gradient needs matrices that are not singular.

    Raises:
        ValueError: the matrices are not square.

    >>> import flnb
    >>> flnb.linalg.det([[2.0, 0.0], [0.0, 4.0]])
    Tensor(8., float32[], numpy)
    """
    return dispatch.call(_det, (asarray(x),))


def _pull_slogdet(g: Any, x: Any, results: Any) -> Any:
    """Gradient of slogdet.

    With t = tr(inv(x) dx), the logarithm changes by Re(t), and the sign of a complex determinant by i Im(t) times the
    sign.
    """
    g_sign, g_log = g
    if x.dtype.kind == "c":
        g_log = plain(g_log) + e.imag(g_sign * e.conj(results[0])) * 1j
    return _scaled_inverse(g_log, x)


_slogdet = packed("slogdet", lambda *_: ((), ()), _pull_slogdet, reads={0, "y"})


def slogdet(x: ArrayLike, /) -> SlogdetResult:
    """Sign and logarithm of the absolute value of determinants of x (..., N, N); unlike `det` it does not overflow.

    Raises:
        ValueError: the matrices are not square.

    >>> import flnb
    >>> sign, logarithm = flnb.linalg.slogdet(-flnb.eye(3) * 1e30)
    >>> sign.item(), round(logarithm.item(), 3)
    (-1.0, 207.233)
    """
    sign, logarithm = _slogdet(x)
    return SlogdetResult(sign, plain(logarithm))


def _pull_pinv(g: Any, plan: Any, x: Any, rtol: Any, y: Any) -> Any:
    """Gradient of pinv.

    Golub and Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares" (1973), eq. 4.12.
    """
    gh, yh = adjoint(g), adjoint(y)
    rows, columns = gh @ y @ yh, yh @ y @ gh
    return -(yh @ (g @ yh)) + (rows - x @ (y @ rows)) + (columns - columns @ y @ x)


_pinv = Op(
    "pinv", "matmul",
    lambda op, specs, _: ((*(s := matrices("pinv", specs[0]))[:-2], s[-1], s[-2]), specs[0].dtype),
    [Pull({0, "y"}, _pull_pinv), None],
    accepts="float", unpromoted=(1,), holomorphic=False,
)  # fmt: skip


def relative_tolerance(x: Any, rtol: Any) -> Any:
    """Return ``rtol`` as one number for each matrix of x (..., M, N); if it is None, ``max(M, N) * eps`` is used."""
    *batch, m, n = x.shape
    value = asarray(float(max(m, n) * finfo(x.dtype).eps) if rtol is None else rtol)
    return broadcast_to(e.astype(value, real_dtype(x.dtype)), tuple(batch))


def pinv(x: ArrayLike, /, *, rtol: ArrayLike | None = None) -> Tensor:
    """Moore-Penrose pseudo-inverse (..., N, M) of matrices x (..., M, N).

    Singular values up to ``rtol`` times the largest count as zero; ``rtol`` is ``max(M, N) * eps`` unless given, with
    the machine epsilon ``eps`` of the dtype. The gradient assumes that the rank does not change.

    Raises:
        ValueError: x has fewer than two dimensions.

    >>> import flnb
    >>> flnb.linalg.pinv([[2.0, 0.0], [0.0, 0.0]]).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    x = asarray(x)
    matrices("pinv", x._spec)
    return dispatch.call(_pinv, (x, relative_tolerance(x, rtol)))


def matrix_power(x: ArrayLike, n: int, /) -> Tensor:
    """Return the n-th power of square matrices x (..., N, N), by repeated squaring; for n < 0, of their inverses.

    Raises:
        ValueError: the matrices are not square.

    >>> import flnb
    >>> flnb.linalg.matrix_power(flnb.asarray([[1.0, 1.0], [0.0, 1.0]]), 5).tolist()
    [[1.0, 5.0], [0.0, 1.0]]
    """
    x, left = asarray(x), operator.index(n)
    shape = matrices("matrix_power", x._spec, square=True)
    if left == 0:
        return broadcast_to(eye(shape[-1], dtype=x.dtype), shape)
    power = inv(x) if left < 0 else x
    left, result = abs(left), None
    while left:
        if left & 1:
            result = power if result is None else result @ power
        left >>= 1
        power = power @ power if left else power
    return result  # type: ignore[return-value]
