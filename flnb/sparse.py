"""Sparse matrices, made from coordinates (COO), compressed rows (CSR) or columns (CSC), and products with dense ones.

The stored values are a tensor. If it is a Variable, its gradient has one number for each stored element. Products
consist of public ops, so that they can be differentiated any number of times and used inside of `flnb.vmap`.

>>> import flnb
>>> values = flnb.Variable([1.0, 2.0, 3.0])
>>> a = flnb.sparse.csr(values, [0, 2, 1], [0, 2, 3], (2, 3))
>>> a.todense().tolist()
[[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]
>>> (a @ flnb.asarray([1.0, 10.0, 100.0])).sum().backward()
>>> values.grad.tolist()
[1.0, 100.0, 10.0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.ops.creation import asarray
from flnb.ops.documentation import readable
from flnb.ops.indexing import put_add
from flnb.ops.movement import expand_dims
from flnb.tensor import ArrayLike, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["Sparse", "coo", "csc", "csr", "dot", "from_dense", "from_scipy"]

ORDER = {
    "coo": "the order is coo(values, (rows, columns), shape)",
    "csr": "the order is csr(values, columns, starts, shape)",
    "csc": "the order is csc(values, rows, starts, shape)",
}


class Sparse:
    """A matrix that stores some of its elements; the others are 0. Make one with `coo`, `csr`, `csc` or ``from_dense``.

    Elements that are stored twice add up. The stored elements stay in their given order.

    Attributes:
        values: the stored elements, a tensor of shape (stored,).
        rows, columns: their positions, int64 arrays of shape (stored,).
        shape: (M, N).
    """

    def __init__(self, values: Any, rows: Ints, columns: Ints, shape: tuple[int, int]) -> None:
        self.values, self.rows, self.columns, self.shape = values, rows, columns, shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the stored values, a NumPy dtype."""
        return self.values.dtype

    @property
    def T(self) -> Sparse:
        """The transpose, of shape (N, M), which shares the stored values."""
        return Sparse(self.values, self.columns, self.rows, self.shape[::-1])

    def todense(self) -> Any:
        """Return the matrix (M, N) as a tensor, with all its zeros."""
        return put_add(self.values, (self.rows, self.columns), self.shape)

    def to_coo(self) -> tuple[NDArray[Any], tuple[Ints, Ints]]:
        """Return ``(values, (rows, columns))`` as NumPy arrays, the argument of ``scipy.sparse.coo_array``."""
        return np.array(self.values._values()), (self.rows.copy(), self.columns.copy())

    def to_csr(self) -> tuple[NDArray[Any], Ints, Ints]:
        """Return ``(values, columns, row starts)`` as NumPy arrays, the argument of ``scipy.sparse.csr_array``."""
        return _compressed(self.values, self.rows, self.columns, self.shape[0])

    def to_csc(self) -> tuple[NDArray[Any], Ints, Ints]:
        """Return ``(values, rows, column starts)`` as NumPy arrays, the argument of ``scipy.sparse.csc_array``."""
        return _compressed(self.values, self.columns, self.rows, self.shape[1])

    def __matmul__(self, dense: Any) -> Any:
        return dot(self, dense)

    def __repr__(self) -> str:
        m, n = self.shape
        return f"Sparse({len(self.rows)} of {m} x {n} elements, {self.dtype.name})"


def coo(values: ArrayLike, places: tuple[ArrayLike, ArrayLike], shape: tuple[int, int]) -> Sparse:
    """Make a sparse matrix from values (n,) and their places, ``(rows, columns)``, two integer arrays (n,).

    >>> import flnb
    >>> flnb.sparse.coo([1.0, 2.0], ([0, 0], [1, 1]), (1, 2)).todense().tolist()
    [[0.0, 3.0]]

    Raises:
        ValueError: the lengths differ, or a place is outside of the shape.
    """
    values, (m, n) = asarray(values), _shape("coo", shape)
    if len(places) != 2:
        raise ValueError(f"sparse.coo: expected two arrays, (rows, columns), got {len(places)}; {ORDER['coo']}")
    rows, columns = places
    return Sparse(values, _places("coo", "row", rows, values, m), _places("coo", "column", columns, values, n), (m, n))


def csr(values: ArrayLike, columns: ArrayLike, starts: ArrayLike, shape: tuple[int, int]) -> Sparse:
    """Make a sparse matrix (M, N) from values (n,), which are given row by row, and their column numbers (n,).

    ``starts`` (M + 1,) has the position of each row's first value; its last element is n. It is SciPy's ``indptr``.

    >>> import flnb
    >>> flnb.sparse.csr([1.0, 2.0], [0, 2], [0, 1, 2], (2, 3)).todense().tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]

    Raises:
        ValueError: the lengths differ, a column is outside of the shape, or the starts do not rise from 0 to n.
    """
    m, n = _shape("csr", shape)
    return _uncompressed("csr", "column", values, columns, starts, m, n)


def csc(values: ArrayLike, rows: ArrayLike, starts: ArrayLike, shape: tuple[int, int]) -> Sparse:
    """Make a sparse matrix (M, N) from values (n,), which are given column by column, and their row numbers (n,).

    ``starts`` (N + 1,) has the position of each column's first value; its last element is n. It is SciPy's ``indptr``.

    >>> import flnb
    >>> flnb.sparse.csc([1.0, 2.0], [0, 1], [0, 1, 1, 2], (2, 3)).todense().tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]

    Raises:
        ValueError: the lengths differ, a row is outside of the shape, or the starts do not rise from 0 to n.
    """
    m, n = _shape("csc", shape)
    return _uncompressed("csc", "row", values, rows, starts, n, m).T


def from_dense(x: ArrayLike) -> Sparse:
    """Make a sparse matrix of the elements of a dense one (M, N) that are not 0.

    If ``x`` is a Variable, gradients flow back to it. The gradient of an element that is not stored is 0.

    Raises:
        ValueError: ``x`` is not a matrix.

    >>> import flnb
    >>> flnb.sparse.from_dense([[0.0, 2.0]]).values
    Tensor([2.], float32[1], numpy)
    """
    x = asarray(x)
    if x.ndim != 2:
        raise ValueError(f"sparse.from_dense: expected a matrix, got {x._spec!r}")
    rows, columns = np.nonzero(x._values())
    return Sparse(x[rows, columns], rows, columns, x.shape)


def from_scipy(matrix: Any) -> Sparse:
    """Make a sparse matrix from a ``scipy.sparse`` matrix or array of any format; the values are copied.

    >>> import flnb
    >>> from types import SimpleNamespace as Like  # a scipy.sparse.csr_array(...) in its place
    >>> matrix = Like(tocoo=lambda: Like(data=[2.0], row=[0], col=[1], shape=(1, 2)))
    >>> flnb.sparse.from_scipy(matrix).todense().tolist()
    [[0.0, 2.0]]

    Raises:
        TypeError: ``matrix`` has no method ``tocoo``.
    """
    if not hasattr(matrix, "tocoo"):
        raise TypeError(
            f"sparse.from_scipy: expected a scipy.sparse matrix, got {type(matrix).__name__}; "
            f"use flnb.sparse.from_dense for dense ones"
        )
    found = matrix.tocoo()
    return coo(found.data, (found.row, found.col), found.shape)


def dot(a: Any, b: Any) -> Any:
    """Multiply a sparse matrix and a dense matrix or vector, in either order; the result is dense.

    For a sparse matrix (M, N), a dense right factor has the shape (N,) or (N, K), and a dense left factor (M,) or
    (K, M). The computation needs memory for K numbers for each stored element.

    >>> import flnb
    >>> a = flnb.sparse.coo([2.0], ([0], [1]), (1, 2))
    >>> flnb.sparse.dot(a, flnb.asarray([[1.0], [5.0]])).tolist()
    [[10.0]]
    >>> flnb.sparse.dot(flnb.asarray([3.0]), a).tolist()
    [0.0, 6.0]

    Raises:
        TypeError: both factors are sparse, or both dense.
        ValueError: the inner extents differ, or the dense factor is neither a vector nor a matrix.
    """
    if isinstance(a, Sparse) is isinstance(b, Sparse):
        raise TypeError(
            f"sparse.dot: expected one sparse and one dense factor, got {type(a).__name__} and {type(b).__name__}; "
            f"make one dense with .todense(), or use flnb.matmul"
        )
    right = isinstance(a, Sparse)
    matrix, dense = (a, asarray(b)) if right else (b.T, asarray(a))
    if dense.ndim not in (1, 2) or dense.shape[0 if right else -1] != matrix.shape[1]:
        raise ValueError(
            f"sparse.dot: expected a dense vector or matrix whose {'first' if right else 'last'} extent is "
            f"{matrix.shape[1]}, that of the sparse matrix, got {dense._spec!r}"
        )
    if dense.ndim == 1:
        return put_add(matrix.values * dense[matrix.columns], (matrix.rows,), matrix.shape[:1])
    if not right:
        return dot(matrix, dense.mT).mT
    products = expand_dims(matrix.values, axis=1) * dense[matrix.columns]
    return put_add(products, (matrix.rows,), (matrix.shape[0], dense.shape[1]))


def _shape(name: str, shape: Any) -> tuple[int, int]:
    """Return a shape as two ints; raise an error, which names the function ``name``, unless it is two ints >= 0."""
    if len(tuple(shape)) != 2 or any(n < 0 for n in shape):
        raise ValueError(f"sparse.{name}: expected a shape (M, N), got {shape}")
    m, n = shape
    return int(m), int(n)


def _places(name: str, what: str, given: Any, values: Tensor, extent: int) -> Ints:
    """Return the row or column numbers of the values (n,) as an int64 array; raise an error if they are wrong.

    Args:
        name: the name of the public function, for errors.
        what: "row" or "column".
        given: the numbers, n integers from 0 to ``extent`` - 1.
        values: the stored values.
        extent: how many rows or columns the matrix has.
    """
    found = np.array(given._values() if isinstance(given, Tensor) else given)
    if values.ndim != 1 or found.shape != values.shape or (found.size and found.dtype.kind not in "iu"):
        raise ValueError(
            f"sparse.{name}: expected values of shape (n,) and n integer {what}s, got {values._spec!r} and "
            f"{found.dtype.name}{list(found.shape)}; {ORDER[name]}"
        )
    if found.size and (found.min() < 0 or found.max() >= extent):
        raise ValueError(
            f"sparse.{name}: {what} numbers go from {found.min()} to {found.max()}, there are {extent} {what}s; "
            f"{ORDER[name]}"
        )
    return found.astype(np.int64)


def _uncompressed(name: str, what: str, values: Any, inner: Any, starts: Any, outer: int, extent: int) -> Sparse:
    """Make a matrix (outer, extent) from compressed rows (CSR); `csc` transposes the matrix that this function returns.

    ``inner`` has the column of each value, and ``starts`` the position of each row's first value. Errors contain the
    name of the public function, ``name``, and the word ``what`` for the numbers in ``inner``: "row" or "column".
    """
    values = asarray(values)
    places = _places(name, what, inner, values, extent)
    begins = np.array(starts._values() if isinstance(starts, Tensor) else starts).astype(np.int64)
    if begins.shape != (outer + 1,) or begins[0] != 0 or begins[-1] != len(places) or (np.diff(begins) < 0).any():
        raise ValueError(
            f"sparse.{name}: expected {outer + 1} starts that rise from 0 to {len(places)}, got "
            f"{begins.tolist()!s:.60}; {ORDER[name]}"
        )
    return Sparse(values, np.repeat(np.arange(outer), np.diff(begins)), places, (outer, extent))


def _compressed(values: Tensor, outer: Ints, inner: Ints, count: int) -> tuple[NDArray[Any], Ints, Ints]:
    """Sort values by row (``outer``), then by column (``inner``); returns values, columns, and where each row starts.

    There are ``count`` rows. To compress by columns, pass the columns as ``outer`` and the rows as ``inner``.
    """
    order = np.lexsort((inner, outer))
    starts = np.concatenate([[0], np.cumsum(np.bincount(outer, minlength=count))])
    return np.array(values._values())[order], inner[order], starts


for _name in __all__:
    readable(globals()[_name])
