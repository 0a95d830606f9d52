"""Sparse matrices beside dense ones and SciPy's."""

import numpy as np
import pytest

import flnb
from flnb import sparse
from flnb.testing import verify_grad


def stored(seed=0, shape=(4, 6), count=9):
    """Values and places; some places twice, some rows empty."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, shape[0] - 1, count), rng.integers(0, shape[1], count)
    return rng.normal(size=count), rows, columns, shape


def dense_of(values, rows, columns, shape):
    made = np.zeros(shape)
    np.add.at(made, (rows, columns), values)
    return made


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (1, 1), (3, 0)])
def test_three_formats_are_one_matrix(shape):
    count = 9 if 0 not in shape else 0
    rng = np.random.default_rng(1)
    rows, columns = (rng.integers(0, max(n, 1), count) for n in shape)
    values = rng.normal(size=count)
    wanted = dense_of(values, rows, columns, shape)
    a = sparse.coo(values, (rows, columns), shape)
    np.testing.assert_allclose(a.todense().numpy(), wanted)
    np.testing.assert_allclose(a.T.todense().numpy(), wanted.T)
    np.testing.assert_allclose(sparse.csr(*a.to_csr(), shape).todense().numpy(), wanted)
    np.testing.assert_allclose(sparse.csc(*a.to_csc(), shape).todense().numpy(), wanted)
    np.testing.assert_allclose(sparse.coo(*a.to_coo(), shape).todense().numpy(), wanted)
    np.testing.assert_allclose(sparse.from_dense(flnb.asarray(wanted)).todense().numpy(), wanted)


@pytest.mark.parametrize("extents", [(), (3,), (0,)])
def test_products_are_those_of_the_dense_matrix(extents):
    values, rows, columns, shape = stored()
    a, wanted = sparse.coo(values, (rows, columns), shape), dense_of(values, rows, columns, shape)
    right = np.random.default_rng(2).normal(size=(6, *extents))
    left = np.random.default_rng(3).normal(size=(*extents, 4))
    np.testing.assert_allclose((a @ flnb.asarray(right)).numpy(), wanted @ right)
    np.testing.assert_allclose(sparse.dot(flnb.asarray(left), a).numpy(), left @ wanted)


@pytest.mark.parametrize("extents", [(), (3,)])
def test_gradients_of_both_factors_to_the_second_order(extents):
    values, rows, columns, shape = stored()
    dense = np.random.default_rng(2).normal(size=(6, *extents))

    def product(values, dense):
        y = sparse.coo(values, (rows, columns), shape) @ dense
        return y * y

    assert verify_grad(product, [values, dense]) == 2
    assert verify_grad(lambda v: flnb.sin(sparse.coo(v, (rows, columns), shape).todense()), [values]) == 1


def test_a_gradient_has_the_pattern_of_its_matrix():
    values, rows, columns, shape = stored()
    kept = flnb.Variable(values)
    x = flnb.asarray(np.random.default_rng(2).normal(size=(6, 5)))
    (sparse.coo(kept, (rows, columns), shape) @ x).sum().backward()
    whole = flnb.Variable(dense_of(values, rows, columns, shape))
    (whole @ x).sum().backward()
    np.testing.assert_allclose(kept.grad.numpy(), whole.grad.numpy()[rows, columns])


def test_what_scipy_holds_comes_and_goes():
    scipy = pytest.importorskip("scipy.sparse")
    matrix = scipy.random(7, 5, 0.4, format="csr", random_state=0)
    for given in (matrix, matrix.tocsc(), matrix.tocoo(), scipy.coo_array(matrix)):
        a = sparse.from_scipy(given)
        np.testing.assert_allclose(a.todense().numpy(), matrix.toarray())
        assert abs(scipy.csr_array(a.to_csr(), shape=a.shape) - matrix).max() == 0
        assert abs(scipy.csc_array(a.to_csc(), shape=a.shape) - matrix).max() == 0
        assert abs(scipy.coo_array(a.to_coo(), shape=a.shape) - matrix).max() == 0


def test_it_says_what_it_is():
    assert repr(sparse.coo([1.0, 2.0], ([0, 1], [1, 1]), (2, 3))) == "Sparse(2 of 2 x 3 elements, float32)"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: sparse.coo([1.0], ([0, 1], [0]), (2, 2)), ValueError, r"and n integer rows, got float32\[1\] and"),
        (lambda: sparse.coo([1.0], ([0.5], [0]), (2, 2)), ValueError, r"integer rows.*float64\[1\]"),
        (lambda: sparse.coo([1.0], ([2], [0]), (2, 2)), ValueError, "row numbers go from 2 to 2, there are 2 rows"),
        (lambda: sparse.csr([1.0], [5], [0, 1], (1, 3)), ValueError, "column numbers go from 5 to 5"),
        (lambda: sparse.csr([1.0], [0], [0, 1], (2, 3)), ValueError, r"3 starts that rise from 0 to 1, got \[0, 1\]"),
        (lambda: sparse.csc([1.0], [0], [1, 0, 1, 1], (2, 3)), ValueError, "4 starts that rise from 0 to 1"),
        (lambda: sparse.csr([1.0], [0], [0, 1], (3,)), ValueError, r"expected a shape \(M, N\), got \(3,\)"),
        (lambda: sparse.csr([0, 1], [0], [1.0], (1, 1)), ValueError, r"order is csr\(values, columns, starts, shape\)"),
        (lambda: sparse.csr([1.0], [0, 1], [0], (1, 1)), ValueError, r"order is csr\(values, columns, starts, shape\)"),
        (
            lambda: sparse.csc([1, 2], [0, 2], [0, 1], (2, 1)),
            ValueError,
            r"order is csc\(values, rows, starts, shape\)",
        ),
        (
            lambda: sparse.coo([1.0], [0, 1, 0], (2, 2)),
            ValueError,
            r"two arrays, \(rows, columns\), got 3; .*, shape",
        ),
        (lambda: sparse.from_dense(flnb.ones((2,))), ValueError, r"expected a matrix, got float32\[2\]"),
        (lambda: sparse.from_scipy(np.ones((2, 2))), TypeError, "got ndarray; use flnb.sparse.from_dense"),
        (lambda: sparse.dot(flnb.ones((2, 2)), flnb.ones((2, 2))), TypeError, "one sparse and one dense factor"),
        (lambda: sparse.coo([1.0], ([0], [0]), (2, 3)) @ flnb.ones((2, 2)), ValueError, r"first extent is 3.*\[2,2\]"),
        (
            lambda: sparse.dot(flnb.ones((4, 3)), sparse.coo([1.0], ([0], [0]), (2, 3))),
            ValueError,
            r"last.* 2, .*\[4,3\]",
        ),
        (lambda: sparse.dot(flnb.ones((2, 2, 2)), sparse.coo([1.0], ([0], [0]), (2, 3))), ValueError, "vector or matr"),
    ],
)
def test_wrong_arguments_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
