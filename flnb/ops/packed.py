"""Ops with several results, and the shape rules of matrices.

An op with several results is one row of the table. Its backend method returns them *packed*: the last axes of each are
flattened and joined along one, so ``eigh`` of (..., N, N) is one tensor (..., N + N*N). `cut` separates the named
results again, by ops that have gradients, and a pull cuts its cotangent in the same way.
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
    """The shape of a stack of matrices, checked."""
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        expected = "square matrices (..., N, N)" if square else "matrices (..., M, N)"
        raise ValueError(f"{op}: expected {expected}, got {x!r}")
    return tuple(x.shape)


def square(op: Op, specs: tuple[Any, ...], _: tuple[Any, ...]) -> tuple[Shape, Any]:
    """Shape rule of ops that map square matrices to square matrices."""
    return matrices(op.name, specs[0], square=True), specs[0].dtype


def cut(packed: Any, shapes: tuple[Shape, ...]) -> list[Any]:
    """Separate the results in a packed tensor, by the shapes of their own axes."""
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
    """A row with several results, whose shapes without the batch are ``shapes(M, N, *attributes)``.

    ``pull(cotangents, x, results, *attributes)`` receives cotangents and results as `cut` separates them.
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
    """The real part of complex numbers whose imaginary part is zero."""
    return e.real(x) if x.dtype.kind == "c" else x


def results(op: Op, x: Any, shapes: tuple[Shape, ...], *attributes: Any) -> list[Any]:
    """Run a packed op and separate its results."""
    return cut(dispatch.call(op, (x,), attributes), shapes)
