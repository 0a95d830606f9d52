"""Ops that move elements without computing new values: views, padding, joining."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.arguments import axes_of, axis_of
from flnb.dispatch.brief import brief
from flnb.dispatch.failure import refused
from flnb.dispatch.plan import size_of
from flnb.dispatch.table import Op, Pull, describe, shaped
from flnb.ops import elementwise as e
from flnb.ops.creation import asarray, ones_like, single
from flnb.tensor import ArrayLike, Tensor

_reshape = Op(
    "reshape", "movement", shaped(lambda _, shape: shape), writes_out=False,
    pulls=(Pull((), lambda g, plan, x, y: reshape(g, plan.specs[0].shape)),),
)  # fmt: skip


def reshape(x: ArrayLike, /, shape: int | Sequence[int], *more: int, copy: bool | None = None) -> Tensor:
    """Return the elements, in row-major order, in another shape; an extent of -1 is computed from the others.

    The result is a view if x is contiguous, else a copy. ``copy=True`` always copies; ``copy=False`` never does.
    If x is the result of an op on a tensor that is not contiguous, it depends on the backend and on the size whether x
    is contiguous. So a write to the reshaped tensor may or may not change x in this case.

    Raises:
        ValueError: the shape has another number of elements, or a copy is needed but ``copy`` is False.

    >>> import flnb
    >>> flnb.reshape([1, 2, 3, 4], (2, -1)).tolist()
    [[1, 2], [3, 4]]
    """
    x = x if isinstance(x, Tensor) else asarray(x)
    wanted = (shape, *more) if not isinstance(shape, (tuple, list)) else shape
    target = _extents(tuple(map(operator.index, wanted)), x._spec.size)
    if target is None:
        wrong = ValueError(f"reshape: {x.size} elements of shape {x.shape} do not fit shape {tuple(wanted)}")
        raise refused(wrong, "reshape", x)
    if copy:
        x = e.copy(x)
    if target == x.shape:
        return x
    if not x._is_contiguous():
        if copy is False:
            wrong = ValueError(f"reshape: {x._spec!r} is not contiguous and needs a copy to become {target}")
            raise refused(wrong, "reshape", x)
        x = e.copy(x)
    return _reshape.entries[1, ""](x, (target,))


@lru_cache(4096)
def _extents(wanted: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    """Return the shape ``wanted``, with an extent -1 replaced; None if it cannot have ``size`` elements in all."""
    known = size_of(tuple(n for n in wanted if n != -1))
    if wanted.count(-1) == 1 and known and size % known == 0:
        wanted = tuple(size // known if n == -1 else n for n in wanted)
    return None if any(n < 0 for n in wanted) or size_of(wanted) != size else wanted


def along_axis(vector: Any, axis: int, ndim: int) -> Any:
    """Reshape a vector to ``ndim`` dimensions, with extent 1 in all but ``axis``."""
    return reshape(vector, tuple(-1 if i == axis else 1 for i in range(ndim)))


_permute = Op(
    "permute_dims", "movement", shaped(lambda shape, axes: tuple(shape[a] for a in axes)), writes_out=False,
    pulls=(Pull((), lambda g, plan, x, y: permute_dims(g, np.argsort(plan.attributes[0]).tolist())),),
)  # fmt: skip


def permute_dims(x: ArrayLike, /, axes: Sequence[int]) -> Tensor:
    """Return a view with the dimensions in the order ``axes``.

    Raises:
        ValueError: ``axes`` does not name each dimension exactly once.

    >>> import flnb
    >>> flnb.permute_dims(flnb.ones((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    x = x if isinstance(x, Tensor) else asarray(x)
    order = _order(tuple(axes), x._spec.ndim)
    if order is None:
        raise ValueError(
            f"permute_dims: expected axes that name each of the {x.ndim} dimensions of shape {x.shape} once, got "
            f"{brief(tuple(axes))}"
        )
    return _permute.entries[1, ""](x, (order,))


@lru_cache(4096)
def _order(axes: tuple[int, ...], ndim: int) -> tuple[int, ...] | None:
    """Convert negative axes to positive ones; returns None if the axes are no permutation of the dimensions."""
    order = tuple(a % ndim if -ndim <= a < ndim else a for a in axes)
    return order if sorted(order) == list(range(ndim)) else None


def transposed(x: Any) -> Any:
    """Return the same view of matrices x (..., M, N) as ``x.mT``, with the last two axes exchanged; twice as fast."""
    ndim = x._spec.ndim
    return _permute.entries[1, ""](x, _last_exchanged(ndim)) if ndim > 1 else x.mT  # which raises the error


@lru_cache(64)
def _last_exchanged(ndim: int) -> tuple[tuple[int, ...]]:
    """Return the attributes of `permute_dims` that exchange the last two of ``ndim`` axes."""
    return ((*range(ndim - 2), ndim - 1, ndim - 2),)


_broadcast = Op(
    "broadcast_to", "movement", shaped(lambda _, shape: shape), writes_out=False,
    pulls=(Pull((), lambda g, plan, x, y: sum_to(g, plan.specs[0].shape)),),
)  # fmt: skip


def moveaxis(x: ArrayLike, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Tensor:
    """Return a view with the dimensions ``source`` (one or several) moved to ``destination``.

    The other dimensions stay in their order.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.moveaxis(flnb.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = asarray(x)
    given = [(a,) if not isinstance(a, (tuple, list)) else tuple(a) for a in (source, destination)]
    origin, target = [[axis_of(a, x.ndim, "moveaxis") for a in axes] for axes in given]
    if len(origin) != len(target) or len(set(origin)) != len(origin) or len(set(target)) != len(target):
        raise ValueError(
            f"moveaxis: source {source} and destination {destination} must name equally many axes, each once"
        )
    moved = dict(zip(target, origin, strict=True))
    rest = (a for a in range(x.ndim) if a not in origin)
    return permute_dims(x, tuple(moved[i] if i in moved else next(rest) for i in range(x.ndim)))


def broadcast_to(x: ArrayLike, /, shape: Sequence[int]) -> Tensor:
    """Return a read-only view of another shape, repeated along new dimensions and dimensions of extent 1.

    Raises:
        ValueError: x does not broadcast to ``shape``.

    >>> import flnb
    >>> flnb.broadcast_to([1, 2], (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    x, target = asarray(x), tuple(shape)
    if x.shape == target:
        return x
    pairs = zip(reversed(x.shape), reversed(target), strict=False)
    negative = any(m < 0 for m in target)
    if negative or x.ndim > len(target) or any(n not in (1, m) for n, m in pairs):
        why = "; extents must be at least 0" if negative else ""
        wrong = ValueError(f"broadcast_to: shape {x.shape} does not broadcast to {brief(target)}{why}")
        raise refused(wrong, "broadcast_to", x)
    return dispatch.call(_broadcast, (x,), (target,))


def sum_to(g: Any, shape: tuple[int, ...]) -> Any:
    """Sum ``g``, the gradient of a broadcast tensor, to ``shape``, the shape that the tensor had before."""
    from flnb.ops.reduction import sum

    if g.shape == shape:
        return g
    lead = g.ndim - len(shape)
    axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 and g.shape[lead + i] != 1))
    return reshape(sum(g, axis=axes), shape)


def expand_dims(x: ArrayLike, /, axis: int = 0) -> Tensor:
    """Return a view with a new dimension of extent 1 at ``axis``.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.expand_dims(flnb.ones((2, 3)), axis=1).shape
    (2, 1, 3)
    """
    x = asarray(x)
    position = axis_of(axis, x.ndim + 1, "expand_dims")
    return reshape(x, (*x.shape[:position], 1, *x.shape[position:]))


def squeeze(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Return a view without the dimensions ``axis``, which must have extent 1; None removes all of extent 1.

    Raises:
        ValueError: a dimension has another extent.

    >>> import flnb
    >>> flnb.squeeze(flnb.ones((1, 3, 1))).shape
    (3,)
    """
    x = asarray(x)
    axes = axes_of([i for i, n in enumerate(x.shape) if n == 1] if axis is None else axis, x.ndim, "squeeze")
    for a in axes:
        if x.shape[a] != 1:
            raise ValueError(f"squeeze: axis {a} of shape {x.shape} has extent {x.shape[a]}, expected extent 1")
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in axes))


def matrices(op: str, x: Any, square: bool = False) -> tuple[int, ...]:
    """Return the shape of x, a tensor or spec, after a check that it holds matrices (square ones if ``square``)."""
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        expected = "square matrices (..., N, N)" if square else "matrices (..., M, N)"
        raise ValueError(f"{op}: expected {expected}, got {x!r}")
    return tuple(x.shape)


def flatten(x: ArrayLike, /, start: int = 0) -> Tensor:
    """Join the dimensions from ``start`` on into one; a 0-d tensor becomes a vector of one element.

    >>> import flnb
    >>> flnb.flatten(flnb.ones((2, 3, 4)), start=1).shape
    (2, 12)
    """
    x = asarray(x)
    return reshape(x, (*x.shape[:start], size_of(x.shape[start:])))


_pad = Op(
    "pad", "movement",
    shaped(lambda shape, widths, _: tuple(n + sum(added) for n, added in zip(shape, widths, strict=True))),
    pulls=(Pull((), lambda g, plan, x, y: g[_inside(plan)]),),
)  # fmt: skip


def _inside(plan: Any) -> tuple[slice, ...]:
    """Return the index of the original elements in a padded tensor, given the plan of the padding."""
    return tuple(slice(b, b + n) for (b, _), n in zip(plan.attributes[0], plan.specs[0].shape, strict=True))


def pad(
    x: ArrayLike, /, widths: Sequence[tuple[int, int]], value: float | Tensor = 0.0, mode: str = "constant"
) -> Tensor:
    """Add elements around a tensor; ``widths`` holds one pair (before, after) for each dimension.

    ``mode`` chooses the new elements, as in NumPy: "constant" adds ``value``, a number or a Tensor of one element;
    "edge" repeats the outermost elements; "symmetric" mirrors the tensor, and "reflect" mirrors it without repeating
    the outermost elements.

    Raises:
        ValueError: there is not one pair of widths >= 0 for each dimension, or the mode is unknown.
        TypeError: ``value`` is complex, and x is not.

    >>> import flnb
    >>> flnb.pad([1, 2, 3], ((2, 1),), mode="symmetric")
    Tensor([2, 1, 1, 2, 3, 3], int64[6], numpy)
    """
    x = asarray(x)
    try:
        pairs = tuple((int(b), int(a)) for b, a in widths)
    except (TypeError, ValueError):
        pairs = ((-1, -1),)  # refused below
    if len(pairs) != x.ndim or any(n < 0 for pair in pairs for n in pair):
        raise ValueError(f"pad: expected {x.ndim} pairs of widths >= 0 for shape {x.shape}, got {brief(widths)}")
    if mode == "constant" and isinstance(value, Tensor):
        inside = dispatch.call(_pad, (ones_like(x, np.bool_),), (pairs, False))
        return e.where(inside, pad(x, pairs), single(asarray(value, x.dtype), "pad"))
    if mode == "constant":
        if isinstance(value, complex) and x.dtype.kind != "c":
            raise TypeError(f"pad: the value {value} does not fit {x._spec!r}; cast the tensor with .astype first")
        fill = complex(value) if x.dtype.kind == "c" else value if isinstance(value, int) else float(value)
        return dispatch.call(_pad, (x,), (pairs, fill))
    return _mirrored(x, pairs, mode)


def _mirrored(x: Any, pairs: tuple[tuple[int, int], ...], mode: Any) -> Any:
    """Pad with elements of the tensor itself, by taking elements at repeated or mirrored indices.

    NumPy computes these indices: it pads 0, 1, ... in the same mode.
    """
    from flnb.ops.indexing import take

    if mode not in ("edge", "symmetric", "reflect"):
        raise ValueError(f"pad: mode must be 'constant', 'edge', 'symmetric' or 'reflect', got {brief(mode)}")
    for axis, pair in enumerate(pairs):
        if any(pair):
            if x.shape[axis] == 0:
                raise ValueError(f"pad: axis {axis} of {x._spec!r} has no element to pad with")
            x = take(x, asarray(np.pad(np.arange(x.shape[axis]), pair, mode)), axis=axis)
    return x


def _infer_concat(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
    """Shape rule of concat: the extents along the axis add up, the others must agree."""
    (axis,) = attributes
    if len({(*s.shape[:axis], *s.shape[axis + 1 :]) for s in specs}) > 1 or len({s.ndim for s in specs}) > 1:
        raise ValueError(f"concat: shapes must agree except in axis {axis}, got {describe(specs)}")
    first = specs[0].shape
    return (*first[:axis], sum(s.shape[axis] for s in specs), *first[axis + 1 :]), specs[0].dtype


def _pull_concat(i: int) -> Pull:
    """Gradient of the i-th tensor of concat: the part of the result's gradient where that tensor was written."""

    def pull(g: Any, plan: Any, *_: Any) -> Any:
        (axis,) = plan.attributes
        start = sum(s.shape[axis] for s in plan.specs[:i])
        return g[(*(slice(None),) * axis, slice(start, start + plan.specs[i].shape[axis]))]

    return Pull((), pull)


_concat = Op("concat", "movement", _infer_concat, _pull_concat)


def concat(arrays: Sequence[ArrayLike], /, axis: int | None = 0) -> Tensor:
    """Join tensors along an existing dimension; with ``axis=None`` they are flattened first.

    Raises:
        ValueError: the shapes differ in another dimension than ``axis``.

    >>> import flnb
    >>> flnb.concat([[[1, 2]], [[3, 4]]]).tolist()
    [[1, 2], [3, 4]]
    """
    parts = tuple([x if isinstance(x, Tensor) else asarray(x) for x in arrays])
    if not parts:
        raise ValueError("concat: expected one tensor or more, got none")
    if axis is None:
        parts, axis = tuple(flatten(x) for x in parts), 0
    position = axis_of(axis, parts[0].ndim, "concat")
    return _concat.entries[len(parts), ""](*parts, (position,))


def stack(arrays: Sequence[ArrayLike], /, axis: int = 0) -> Tensor:
    """Join tensors of the same shape along a new dimension.

    Raises:
        ValueError: the shapes differ, or there is no tensor.

    >>> import flnb
    >>> flnb.stack([[1, 2], [3, 4]], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    return concat([expand_dims(x, axis=axis) for x in arrays], axis=axis)


_flip = Op(
    "flip", "movement", shaped(), writes_out=False,
    pulls=(Pull((), lambda g, plan, x, y: flip(g, axis=plan.attributes[0])),),
)  # fmt: skip


def flip(x: ArrayLike, /, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Return a view with the order of elements reversed along ``axis`` (an int, a tuple of ints, or None for all).

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.flip([1, 2, 3])
    Tensor([3, 2, 1], int64[3], numpy)
    """
    x = asarray(x)
    return dispatch.call(_flip, (x,), (axes_of(axis, x.ndim, "flip"),))
