"""Linear algebra: values against NumPy, and what is refused. Gradients: tests/ops/test_table.py."""

import numpy as np
import pytest

import flnb
from flnb import linalg

RNG = np.random.default_rng(3)


def close(got, expected):
    np.testing.assert_allclose(got._values(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (3, 5), (0, 2, 3), (2, 0, 3)])
def test_decompositions_give_back_the_matrix(shape):
    x = RNG.normal(size=shape)
    m, n = shape[-2:]
    for mode in ("reduced", "complete"):
        q, r = linalg.qr(flnb.asarray(x), mode=mode)
        assert q.shape == (*shape[:-2], m, m if mode == "complete" else min(m, n))
        close(q @ r, x)
        close(r, np.triu(r._values()))
    for full in (False, True):
        u, s, vh = linalg.svd(flnb.asarray(x), full_matrices=full)
        assert u.shape[-1] == (m if full else min(m, n))
        close((u[..., : min(m, n)] * s[..., None, :]) @ vh[..., : min(m, n), :], x)
        close(linalg.svdvals(flnb.asarray(x)), s._values())
    close(linalg.pinv(flnb.asarray(x)), np.linalg.pinv(x))


@pytest.mark.parametrize("shape", [(3, 3), (2, 1, 4, 4), (0, 3, 3), (2, 0, 0)])
def test_square_matrices(shape):
    x = RNG.normal(size=shape)
    definite = x @ x.swapaxes(-1, -2) + np.eye(shape[-1])
    t, d = flnb.asarray(x), flnb.asarray(definite)
    lower = linalg.cholesky(d)
    close(lower @ lower.mT, definite)
    close(linalg.cholesky(d, upper=True), lower.mT._values())
    values, vectors = linalg.eigh(d)
    close((vectors * values[..., None, :]) @ vectors.mT, definite)
    close(linalg.eigvalsh(d), values._values())
    close(linalg.inv(t), np.linalg.inv(x))
    close(linalg.det(t), np.linalg.det(x))
    sign, logarithm = linalg.slogdet(t)
    close(sign * flnb.exp(logarithm), np.linalg.det(x))
    for n in (-3, 0, 1, 2, 7):
        close(linalg.matrix_power(t, n), np.linalg.matrix_power(x, n))


def test_products():
    a, b = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(4, 3, 2))
    x, y = flnb.asarray(a), flnb.asarray(b)
    close(flnb.tensordot(x, y, axes=((2, 0), (0, 2))), np.tensordot(a, b, axes=((2, 0), (0, 2))))
    close(flnb.tensordot(x, y, axes=0), np.tensordot(a, b, axes=0))
    close(flnb.vecdot(x[0], x), np.vecdot(a[0], a))
    close(linalg.outer(x[0, 0], y[0, 0]), np.outer(a[0, 0], b[0, 0]))
    close(linalg.cross(y, y[0], axis=-2), np.cross(b, b[0], axis=-2))
    close(linalg.diagonal(x, offset=-1), np.diagonal(a, -1, 1, 2))
    close(linalg.trace(x, offset=1), np.trace(a, 1, 1, 2))
    close(flnb.matmul(x, x, transpose_b=True), a @ a.swapaxes(1, 2))
    assert linalg.trace(flnb.ones((2, 2), dtype=flnb.int32)).dtype == flnb.int64


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
@pytest.mark.parametrize("keepdims", [False, True])
def test_matrix_norms(order, keepdims):
    x = RNG.normal(size=(2, 4, 3))
    expected = np.linalg.norm(x, order, axis=(-2, -1), keepdims=keepdims)
    close(linalg.matrix_norm(flnb.asarray(x), ord=order, keepdims=keepdims), expected)


@pytest.mark.parametrize("order", [0, 1, 2, 3.5, -2, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [None, 1, (0, 2)])
def test_vector_norms(order, axis):
    x = RNG.normal(size=(2, 4, 3))
    expected = np.linalg.vector_norm(x, ord=order, axis=axis)
    close(linalg.vector_norm(flnb.asarray(x), ord=order, axis=axis), expected)


def test_norm_has_gradient_zero_at_the_origin():
    x = flnb.Variable(flnb.zeros((3,)))
    flnb.norm(x).backward()
    assert x.grad.tolist() == [0.0, 0.0, 0.0]


def test_rank():
    x = np.diag([1.0, 1e-3, 1e-9, 0.0])
    for rtol in (None, 1e-6, 1e-2):
        expected = np.linalg.matrix_rank(x, rtol=rtol)
        assert linalg.matrix_rank(flnb.asarray(x), rtol=rtol).item() == expected
    close(linalg.pinv(flnb.asarray(x), rtol=1e-6), np.linalg.pinv(x, rtol=1e-6))


def test_half_precision_is_computed_in_single():
    y = linalg.inv(flnb.asarray(np.diag([2.0, 4.0]).astype(np.float16)))
    assert y.dtype == flnb.float16
    assert y.tolist() == [[0.5, 0.0], [0.0, 0.25]]


@pytest.mark.parametrize("name", ["eigh", "svd"])
def test_equal_values_have_a_gradient_and_their_vectors_have_none(name):
    x = flnb.Variable(flnb.eye(3, dtype=flnb.float64))
    values, vectors = linalg.eigh(x) if name == "eigh" else (linalg.svd(x).S, linalg.svd(x).U)
    (values**2).sum().backward(retain_graph=True)
    close(x.grad, 2 * np.eye(3))
    x.zero_grad()
    (vectors[:, 0] * flnb.asarray([1.0, 2.0, 3.0])).sum().backward()
    assert flnb.isnan(x.grad).any()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: linalg.inv(flnb.ones((2, 3))), ValueError, r"inv: expected square matrices .*float32\[2,3\]"),
        (lambda: linalg.qr(flnb.ones(3)), ValueError, r"qr: expected matrices \(\.\.\., M, N\), got float32\[3\]"),
        (lambda: linalg.qr(flnb.ones((2, 2)), mode="r"), ValueError, "'reduced' or 'complete', got 'r'"),
        (lambda: linalg.solve(flnb.eye(2), flnb.ones((3, 1))), ValueError, r"2 equations .*float32\[3,1\]"),
        (lambda: linalg.solve(flnb.eye(2), flnb.ones(())), ValueError, r"solve: right-hand sides .*float32\[\]"),
        (lambda: linalg.inv(flnb.zeros((2, 2))), np.linalg.LinAlgError, r"inv: Singular matrix \(float32\[2, 2\]\)"),
        (lambda: linalg.cholesky(-flnb.eye(2)), np.linalg.LinAlgError, r"cholesky: .*not positive definite"),
        (lambda: linalg.cross(flnb.ones(2), flnb.ones(2)), ValueError, r"cross: expected a negative axis .* axis=-1"),
        (lambda: flnb.vecdot(flnb.ones(2), flnb.ones(2), axis=0), ValueError, r"vecdot: axis must be .* got 0"),
        (lambda: flnb.tensordot(flnb.ones((2, 3)), flnb.ones((2, 3)), axes=1), ValueError, r"tensordot: axes \[1\]"),
        (lambda: linalg.outer(flnb.ones((2, 2)), flnb.ones(2)), ValueError, r"outer: expected two vectors"),
        (lambda: linalg.matrix_norm(flnb.eye(2), ord=3), ValueError, "ord must be 'fro', .* got 3"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("name", ["qr", "svd"])
def test_how_completing_vectors_turn_has_no_gradient(name):
    x = flnb.Variable(np.random.default_rng(0).normal(size=(4, 2)))
    vectors = linalg.qr(x, mode="complete").Q if name == "qr" else linalg.svd(x).U
    weight = np.arange(16.0).reshape(4, 4)
    without = "mode='reduced'" if name == "qr" else "full_matrices=False"
    with pytest.raises(ValueError, match=rf"{name}: .*the last 2 columns .*rotated among themselves.*{without}"):
        (vectors * flnb.asarray(weight)).sum().backward()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_space_that_completing_vectors_span_moves_as_it_must(dtype):
    """I - x pinv(x) projects onto it, too."""
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(dtype)
    weight = flnb.asarray(np.random.default_rng(1).normal(size=(5, 5)).astype(dtype))
    gradients = []

    def spanned(vectors):
        return vectors[:, 3:] @ vectors[:, 3:].mT

    for project in (
        lambda x: spanned(linalg.qr(x, mode="complete").Q),
        lambda x: spanned(linalg.svd(x).U),
        lambda x: flnb.eye(5, dtype=dtype) - x @ linalg.pinv(x),
    ):
        x = flnb.Variable(values)
        (project(x) * weight).sum().backward()
        gradients.append(x.grad.numpy())
    for got in gradients[:2]:
        np.testing.assert_allclose(got, gradients[2], rtol=0, atol=200 * np.finfo(dtype).eps)
