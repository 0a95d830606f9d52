"""Ops with several results, such as eigh, and checks of the shapes of matrices.

An op of the table has one result. The backend's method for an op with several returns them *packed*: each result
without its batch dimensions is flattened, and they are joined along the last axis, so that the eigenvalues (..., N) and
eigenvectors (..., N, N) of `eigh` are one tensor (..., N + N*N). `cut` separates them by ops that have gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.plan import size_of
from flnb.dispatch.table import Op, Pull
from flnb.ops import elementwise as e
from flnb.ops.movement import reshape

Shape = tuple[int, ...]


def matrices(op: str, x: Any, square: bool = False) -> Shape:
    """Check that x is a tensor (or spec) of matrices, or of square ones, and return its shape; errors name ``op``."""
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        expected = "square matrices (..., N, N)" if square else "matrices (..., M, N)"
        raise ValueError(f"{op}: expected {expected}, got {x!r}")
    return tuple(x.shape)


def square(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Shape, Any]:
    """Shape rule of ops whose input and result are square matrices (..., N, N)."""
    return matrices(op.name, specs[0], square=True), specs[0].dtype


def cut(packed: Any, shapes: tuple[Shape, ...]) -> list[Any]:
    """Separate the results in a packed tensor, given the shapes of all without their batch dimensions."""
    parts, start = [], 0
    for shape in shapes:
        stop = start + size_of(shape)
        parts.append(reshape(packed[..., start:stop], (*packed.shape[:-1], *shape)))
        start = stop
    return parts


def packed(
    name: str,
    shapes: Callable[..., tuple[Shape, ...]],
    pull: Callable[..., Any],
    reads: Collection[Any] = ("y",),
    only_square: bool = True,
) -> Op:
    """Declare an op of matrices (..., M, N) with several packed results.

    Args:
        name: the op's name.
        shapes: ``shapes(M, N, *attributes)`` returns the shapes of the results without their batch dimensions.
        pull: the gradient, ``pull(gradients, x, results, *attributes)``: one gradient for each result, and the results.
        reads: what the gradient reads, as in `Pull`: 0 for x, "y" for the results; it gets None for the other.
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

    return Op(name, "matmul", infer, [Pull(reads, pulled)], accepts="float", holomorphic=False)


def plain(x: Any) -> Any:
    """Return the real part of complex numbers, whose imaginary part is known to be 0; real ones as they are."""
    return e.real(x) if x.dtype.kind == "c" else x


def results(op: Op, x: Any, shapes: tuple[Shape, ...], *attributes: Any) -> list[Any]:
    """Run a packed op and separate its results."""
    return cut(dispatch.call(op, (x,), attributes), shapes)
