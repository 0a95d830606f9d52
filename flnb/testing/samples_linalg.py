"""Sample calls of linear algebra: batched, wide, tall, non-contiguous and empty matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flnb import linalg, ops
from flnb.testing.sample import Array, Sample


def _spread(rng: np.random.Generator, *shape: int) -> Array:
    """Return random matrices whose singular values are spread evenly from 1 to 2."""
    m, n = shape[-2:]
    k = min(m, n)
    if not np.prod(shape):
        return np.zeros(shape)
    left, _, right = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
    values = np.linspace(2.0, 1.0, k)
    return np.asarray((left * values) @ right)


def _definite(x: Any) -> Any:
    """Return the symmetric positive definite matrix ``x @ x^T + I``."""
    return ops.add(ops.matmul(x, x.mT), ops.eye(x.shape[-1], dtype=x.dtype))


def _symmetric(x: Any) -> Any:
    """Return ``x + x^T``."""
    return ops.add(x, x.mT)


def _signed(vectors: Any) -> Any:
    """Multiply columns by the sign of their first element, because a decomposition may choose that sign freely."""
    return ops.multiply(vectors, ops.sign(vectors[..., :1, :]))


def completing(vectors: Any, count: int) -> Any:
    """Return the matrix of the projection onto the space of all columns after the first ``count``."""
    others = vectors[..., count:]
    return ops.matmul(others, ops.conj(others).mT)


def _right_vectors(x: Any) -> Any:
    """Return the right singular vectors of ``x`` as columns with fixed signs."""
    return _signed(linalg.svd(x, full_matrices=False).Vh.mT)


SQUARE: dict[str, Callable[..., Any]] = {
    "cholesky": lambda x: linalg.cholesky(_definite(x)),
    "eigvalsh": lambda x: linalg.eigvalsh(_symmetric(x)),
    "inv": linalg.inv,
    "det": linalg.det,
    "slogdet": lambda x: linalg.slogdet(x).logabsdet,
}
ANY = {
    "svdvals": linalg.svdvals,
    "pinv": linalg.pinv,
    "qr": lambda x: linalg.qr(x).Q,
    "svd": lambda x: _signed(linalg.svd(x, full_matrices=False).U),
}


def linalg_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of all ops of `flnb.linalg`, and of matrix products."""
    for name, function in SQUARE.items():
        yield Sample(name, function, (_spread(rng, 3, 3),))
        yield Sample(name, function, (_spread(rng, 2, 1, 3, 3),), "batched")
        yield Sample(name, lambda x, f=function: f(x[::2].mT), (_spread(rng, 4, 3, 3),), "strided")
        yield Sample(name, function, (_spread(rng, 0, 3, 3),), "empty batch")
        yield Sample(name, function, (_spread(rng, 2, 0, 0),), "empty matrix")
    for name, function in ANY.items():
        for shape in ((3, 3), (4, 3), (3, 4), (2, 4, 3)):
            yield Sample(name, function, (_spread(rng, *shape),), "x".join(map(str, shape)))
        yield Sample(name, lambda x, f=function: f(x.mT), (_spread(rng, 2, 3, 4),), "strided")
        yield Sample(name, function, (_spread(rng, 0, 4, 3),), "empty batch")
    yield from _several_results(rng)
    yield from _systems(rng)
    yield from _norms(rng)
    yield from _products(rng)


def _several_results(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of decompositions with several results, one sample for each result."""
    for shape in ((3, 3), (2, 4, 3), (3, 4)):
        note = "x".join(map(str, shape))
        yield Sample("qr", lambda x: linalg.qr(x).R, (_spread(rng, *shape),), f"R {note}")
        yield Sample("svd", lambda x: linalg.svd(x, full_matrices=False).S, (_spread(rng, *shape),), f"S {note}")
        yield Sample("svd", _right_vectors, (_spread(rng, *shape),), f"Vh {note}")
    for shape in ((2, 5, 3), (4, 3), (3, 5)):
        note = "x".join(map(str, shape))
        k = min(shape[-2:])
        whole = (_spread(rng, *shape),)
        yield Sample("qr", lambda x: linalg.qr(x, mode="complete").R, whole, f"complete R {note}")
        yield Sample("qr", lambda x, k=k: linalg.qr(x, mode="complete").Q[..., :k], whole, f"complete Q {note}")
        yield Sample("qr", lambda x, k=k: completing(linalg.qr(x, mode="complete").Q, k), whole, f"rest {note}")
        yield Sample("svd", lambda x: linalg.svd(x).S, whole, f"full S {note}")
        yield Sample("svd", lambda x, k=k: _signed(linalg.svd(x).Vh.mT[..., :k]), whole, f"full Vh {note}")
        yield Sample("svd", lambda x, k=k: completing(linalg.svd(x).U, k), whole, f"rest of U {note}")
        yield Sample("svd", lambda x, k=k: completing(linalg.svd(x).Vh.mT, k), whole, f"rest of Vh {note}")
    one = (_spread(rng, 4, 3),)
    yield Sample("qr", lambda x: _signed(linalg.qr(x, mode="complete").Q[..., 3:]), one, "one vector more")
    yield Sample("eigh", lambda x: linalg.eigh(_symmetric(x)).eigenvalues, (_spread(rng, 2, 3, 3),), "values")
    yield Sample("eigh", lambda x: _signed(linalg.eigh(_symmetric(x)).eigenvectors), (_spread(rng, 2, 3, 3),))
    yield Sample("slogdet", lambda x: linalg.slogdet(x).sign, (_spread(rng, 3, 3),), "sign")
    yield Sample("cholesky", lambda x: linalg.cholesky(_definite(x), upper=True), (_spread(rng, 3, 3),), "upper")


def _systems(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of linear systems and matrix powers."""
    yield Sample("solve", linalg.solve, (_spread(rng, 3, 3), rng.normal(size=(3, 2))))
    yield Sample("solve", linalg.solve, (_spread(rng, 3, 3), rng.normal(size=3)), "vector")
    yield Sample("solve", linalg.solve, (_spread(rng, 2, 1, 3, 3), rng.normal(size=(4, 3, 2))), "broadcast")
    strided = _spread(rng, 3, 3), rng.normal(size=(2, 3))
    yield Sample("solve", lambda a, b: linalg.solve(a.mT, b.mT), strided, "strided")
    yield Sample("solve", linalg.solve, (_spread(rng, 3, 3), np.zeros((3, 0))), "empty")
    for n in (-2, 0, 1, 5):
        yield Sample("matmul", lambda x, n=n: linalg.matrix_power(x, n), (_spread(rng, 2, 3, 3),), f"power {n}")


def _norms(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of vector and matrix norms."""
    for p in (0, 1, 2, 3, 0.5, np.inf, -np.inf, -1):
        op, inputs = "sqrt" if p == 2 else "abs", (rng.normal(size=(2, 3, 2)),)
        yield Sample(op, lambda x, p=p: linalg.vector_norm(x, axis=1, ord=p), inputs, f"vector norm {p}")
    yield Sample("sqrt", lambda x: ops.norm(x, keepdims=True), (rng.normal(size=(2, 3)),), "all")
    yield Sample("sqrt", ops.norm, (rng.normal(size=()),), "0d")
    yield Sample("sqrt", ops.norm, (np.zeros((0, 2)),), "empty")
    which: tuple[Any, ...] = ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)
    for order in which:
        op = "sqrt" if order == "fro" else "svdvals" if order in ("nuc", 2, -2) else "abs"
        inputs, note = (_spread(rng, 2, 3, 2),), f"matrix norm {order}"
        yield Sample(op, lambda x, p=order: linalg.matrix_norm(x, ord=p, keepdims=True), inputs, note)
    yield Sample("svdvals", linalg.matrix_rank, (np.ones((2, 3, 3), np.float32),), "matrix rank")


def _products(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples of products of matrices and vectors, and of diagonals."""

    def normal(*shape: int) -> Array:
        return rng.normal(size=shape)

    transposed = {"transpose_a": True, "transpose_b": True}
    yield Sample("matmul", lambda a, b: ops.matmul(a, b, **transposed), (normal(4, 3), normal(2, 4)), "transposed")
    yield Sample("matmul", ops.matmul, (normal(2, 0, 3), normal(3, 4)), "empty rows")
    yield Sample("matmul", ops.matmul, (normal(2, 0), normal(0, 4)), "empty sum")
    yield Sample("matmul", ops.matmul, (normal(4), normal(4)), "vectors")
    yield Sample("matmul", lambda a, b: ops.matmul(a[::2].mT, b), (normal(4, 3, 2), normal(3, 2)), "strided")
    yield Sample("matmul", ops.tensordot, (normal(2, 3, 4), normal(3, 4, 2)), "tensordot")
    axes = (0, -1), (2, 0)
    yield Sample("matmul", lambda a, b: ops.tensordot(a, b, axes=axes), (normal(2, 3, 4), normal(4, 3, 2)), "axes")
    yield Sample("sum", ops.vecdot, (normal(2, 1, 3), normal(4, 3)), "vecdot")
    yield Sample("multiply", linalg.outer, (normal(3), normal(2)), "outer")
    yield Sample("subtract", linalg.cross, (normal(2, 3), normal(3)), "cross")
    yield Sample("subtract", lambda a, b: linalg.cross(a, b, axis=-2), (normal(3, 2), normal(4, 3, 1)), "cross axis")
    for offset in (-2, 0, 1, 4):
        note = f"diagonal {offset}"
        yield Sample("gather", lambda x, k=offset: linalg.diagonal(x, offset=k), (normal(2, 3, 4),), note)
    yield Sample("sum", lambda x: linalg.trace(x, offset=1), (normal(2, 3, 4),), "trace")
