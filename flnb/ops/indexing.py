"""Indexing: ``x[key]``, its gradient, and assignment.

A basic key (ints, slices, None, ...) is one `slice` op, a view. A key with integer or bool arrays is one `gather`.
Keys become hashable tuples: an int, ``("slice", start, stop, step)``, None for a new axis, ``("index", i)`` for the
i-th index tensor, ``("truth", value)`` for a bool.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.table import Op, Pull, shaped
from flnb.ops.creation import arange, asarray
from flnb.ops.elementwise import assign
from flnb.ops.movement import broadcast_to, reshape
from flnb.tensor import ArrayLike, Tensor, axis_of

MOST = 66  # operands of an indexing op: the tensor, values, and an index for each of NumPy's 64 dimensions
TRUTHS = (("truth", True), ("truth", False))


@lru_cache(4096)
def basic(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The NumPy key of an encoded one without arrays, such that it makes a view and not a number."""
    return (*decode(key), ...)


def decode(key: tuple[Any, ...], indices: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """The NumPy key of an encoded one."""
    return tuple(_decode(k, indices) if isinstance(k, tuple) else k for k in key)


def _decode(k: tuple[Any, ...], indices: tuple[Any, ...]) -> Any:
    return slice(*k[1:]) if k[0] == "slice" else k[1] if k[0] == "truth" else indices[k[1]]


def encode(key: Any, x: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], bool]:
    """An index expression as a hashable key, its index tensors, and whether the key makes a view.

    Raises:
        IndexError: too many indices, an index out of range, or something that cannot index.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    hashable = [_hashable(k) for k in parts]
    if not all(hashable):
        return _encoded(parts, x)
    encoded, axes = _known(tuple(hashable), x.shape)
    if not axes:
        return encoded, (), True
    tensors = [k for k in parts if isinstance(k, Tensor)]
    return encoded, tuple([_checked(k, x, axis) for k, axis in zip(tensors, axes, strict=True)]), False


_PLAIN = {int, type(None)}


def _hashable(k: Any) -> tuple[Any, ...]:
    """The part of a key on which its encoding depends, in a hashable form; () where that is unknown.

    An int, None, ..., a slice of ints, or for a tensor of integers what stands for it.
    """
    kind = type(k)
    if kind is slice:
        return (k.start, k.stop, k.step) if {type(k.start), type(k.stop), type(k.step)} <= _PLAIN else ()
    if kind is Tensor:
        spec = k._spec
        return (POSITIONS,) if spec.ndim and spec.size and spec.dtype.kind in "iu" else ()
    return (k,) if kind is int or k is None or k is Ellipsis else ()


@lru_cache(4096)
def _known(parts: tuple[tuple[Any, ...], ...], shape: tuple[int, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The encoded key of parts that `_hashable` returned, and the axes of its index tensors."""
    key = [slice(*part) if len(part) == 3 else part[0] for part in parts]
    return _encoded(key, _Shaped(len(shape), shape))[:2]


POSITIONS = object()
"""Stands for a tensor of integers in a key of which only the encoding is wanted."""


class _Shaped(NamedTuple):
    """The facts about a tensor on which a key without arrays depends."""

    ndim: int
    shape: tuple[int, ...]


def _encoded(parts: list[Any], x: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], bool]:
    used = sum(_dimensions(k) for k in parts)
    if used > x.ndim:
        raise IndexError(f"getitem: {used} indices for a tensor of {x.ndim} dimensions, shape {x.shape}")
    dots = [i for i, k in enumerate(parts) if k is Ellipsis]
    if len(dots) > 1:
        raise IndexError("getitem: only one ... may stand in an index")
    start = dots[0] if dots else len(parts)
    parts[start : start + 1] = [slice(None)] * (x.ndim - used)
    encoded: list[Any] = []
    indices: list[Any] = []
    axis, view = 0, True
    for k in parts:
        if k is None:
            encoded.append(None)
            continue
        if isinstance(k, slice):
            encoded.append(("slice", *(None if v is None else v.__index__() for v in (k.start, k.stop, k.step))))
        elif _is_int(k):
            position = k.__index__()
            if not -x.shape[axis] <= position < x.shape[axis]:
                raise IndexError(f"getitem: index {position} is out of range for axis {axis} of shape {x.shape}")
            encoded.append(position)
        elif _is_truth(k):
            encoded.append(("truth", bool(k)))
            view = False
        else:
            view = False
            found = [axis] if k is POSITIONS else _index_tensors(k, x, axis)
            encoded += [("index", len(indices) + i) for i in range(len(found))]
            indices += found
        axis += _dimensions(k)
    return tuple(encoded), tuple(indices), view


def _is_truth(k: Any) -> bool:
    """Whether a part of a key is a bool, or a 0-d tensor of one: a new dimension with everything, or nothing."""
    return isinstance(k, (bool, np.bool_)) or (getattr(k, "ndim", None) == 0 and np.dtype(k.dtype).kind == "b")


def _is_int(k: Any) -> bool:
    """Whether a part of a key is one position; a batched tensor has one per example, so it indexes as a tensor."""
    if not hasattr(k, "__index__") or isinstance(k, bool) or getattr(k, "_level", None) is not None:
        return False
    if getattr(k, "ndim", 0) > 0:
        return False
    return np.dtype(getattr(k, "dtype", np.int64)).kind in "iu"


def _dimensions(k: Any) -> int:
    if k is None or k is Ellipsis or isinstance(k, (bool, np.bool_)):
        return 0
    return int(k.ndim) if np.dtype(getattr(k, "dtype", np.int64)).kind == "b" else 1


def _index_tensors(k: Any, x: Any, axis: int) -> list[Any]:
    """Index tensors of one part; a mask becomes the positions of its true elements."""
    if not isinstance(k, (list, tuple, np.ndarray, Tensor, range)):
        raise IndexError(
            f"getitem: cannot index with {type(k).__name__}; use ints, slices, None, ... or int/bool arrays"
        )
    given = k if isinstance(k, Tensor) else np.asarray(k)
    if given.dtype.kind == "b":
        if getattr(k, "_level", None) is not None:
            raise IndexError(
                f"getitem: under vmap a mask that differs between examples would select different numbers of elements, "
                f"got {k!r}; use flnb.where(mask, x, other)"
            )
        extents = x.shape[axis : axis + given.ndim]
        if any(n not in (0, m) for n, m in zip(given.shape, extents, strict=True)):  # an empty mask selects nothing
            raise IndexError(f"getitem: a mask of shape {given.shape} does not fit axes {axis}.. of shape {x.shape}")
        return [asarray(i) for i in np.nonzero(given._values() if isinstance(given, Tensor) else given)]
    if given.size == 0:
        return [asarray(given.astype(np.int64))]
    if given.dtype.kind not in "iu":
        raise IndexError(f"getitem: an index array must be integer or bool, got {given.dtype}")
    if isinstance(given, Tensor):
        return [_checked(given, x, axis)]
    _check_range(given.min(), given.max(), x, axis)
    return [asarray(given)]


def _checked(indices: Any, x: Any, axis: int) -> Any:
    """The same indices, all of which must be in the range of an axis."""
    if not indices._are_positions(x.shape[axis]):
        least, most = indices._bounds()
        _check_range(least, most, x, axis)
    return indices


def _check_range(least: Any, most: Any, x: Any, axis: int) -> None:
    """Raise unless indices between these two are positions along an axis."""
    if least < -x.shape[axis] or most >= x.shape[axis]:
        raise IndexError(f"getitem: indices {least} to {most} are out of range for axis {axis} of shape {x.shape}")


def _shape(shape: tuple[int, ...], key: tuple[Any, ...], indices: tuple[Any, ...] = ()) -> tuple[int, ...]:
    """The shape that NumPy computes for the key, on an array without memory."""
    if indices:  # into an empty axis no index is right, not even the zeros that stand in below
        taken = [k for k in key if k is not None and k not in TRUTHS]
        shape = tuple(
            max(n, 1) if isinstance(k, tuple) and k[0] == "index" else n for n, k in zip(shape, taken, strict=True)
        )
    probe = np.broadcast_to(np.empty((), bool), shape)
    return tuple(probe[decode(key, tuple(np.zeros(s.shape, np.int64) for s in indices))].shape)


_slice = Op(
    "slice", "movement",
    shaped(_shape),
    (Pull((), lambda g, plan, x, y: place(g, plan.specs[0].shape, plan.attributes[0])),),
    writes_out=False,
)  # fmt: skip
_place = Op(
    "place", "movement",
    shaped(lambda _, shape, key: shape),
    (Pull((), lambda g, plan, x, y: dispatch.call(_slice, (g,), (plan.attributes[1],))),),
)  # fmt: skip


def place(x: Any, shape: tuple[int, ...], key: tuple[Any, ...]) -> Any:
    """Zeros of ``shape`` with ``x`` at ``[key]``: the gradient of slicing."""
    return dispatch.call(_place, (x,), (shape, key))


def _first(pull: Any) -> Any:
    """Only the first of a gather's tensors has a gradient; the others are its indices."""
    return lambda i: Pull(range(1, MOST), pull) if i == 0 else None


_gather: Op = Op(
    "gather", "movement",
    lambda op, specs, attributes: (_shape(specs[0].shape, attributes[0], specs[1:]), specs[0].dtype),
    _first(lambda g, plan, x, *more: dispatch.call(
        _scatter_add, (g, *more[:-1]), (plan.specs[0].shape, *plan.attributes))),
    unpromoted=range(MOST),
)  # fmt: skip
_scatter_add: Op = Op(
    "scatter_add", "movement", shaped(lambda _, shape, key: shape),
    _first(lambda g, plan, x, *more: dispatch.call(_gather, (g, *more[:-1]), plan.attributes[1:])),
    unpromoted=range(MOST),
)  # fmt: skip
_put = Op("put", "movement", shaped(), unpromoted=range(MOST))


def getitem(x: Any, key: Any) -> Any:
    """``x[key]`` by NumPy's rules: a view for basic keys, a copy where arrays or truth values index."""
    encoded, indices, view = encode(key, x)
    return dispatch.call(_slice if view else _gather, (x, *indices), (encoded,))


def setitem(x: Any, key: Any, value: Any) -> None:
    """``x[key] = value``, in place; not for Variables that require grad while gradients are recorded."""
    encoded, indices, view = encode(key, x)
    if view:
        assign(dispatch.call(_slice, (x,), (encoded,)), value)
        return
    shape = _shape(x.shape, encoded, tuple(i._spec for i in indices))
    dispatch.write(_put, (x, broadcast_to(asarray(value, x.dtype), shape), *indices), (encoded,), x)


def put_add(x: Any, places: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    """Zeros of ``shape`` to which ``x`` is added at ``[places]``, one integer array for each of the first axes."""
    key = (*(("index", i) for i in range(len(places))), *(("slice", None, None, None),) * (len(shape) - len(places)))
    return dispatch.call(_scatter_add, (x, *map(asarray, places)), (shape, key))


def take(x: ArrayLike, indices: ArrayLike, /, axis: int | None = None) -> Tensor:
    """Slices of ``x`` along ``axis`` at integer ``indices`` of any shape; the axis may be omitted for a vector.

    >>> import flnb
    >>> flnb.take([10, 20, 30], [2, 0])
    Tensor([30, 10], int64[2], numpy)
    """
    x = asarray(x)
    if axis is None and x.ndim != 1:
        raise ValueError(f"take: give axis for a tensor of {x.ndim} dimensions, shape {x.shape}")
    position = axis_of(0 if axis is None else axis, x.ndim, "take")
    return getitem(x, (*(slice(None),) * position, _integers("take", indices)))


def take_along_axis(x: ArrayLike, indices: ArrayLike, /, axis: int = -1) -> Tensor:
    """Pick one element per index along ``axis``: for axis 0, ``y[i, j] = x[indices[i, j], j]``.

    ``indices``, integers, has as many dimensions as x; the other dimensions broadcast.

    >>> import flnb
    >>> x = flnb.asarray([[3, 1], [2, 4]])
    >>> flnb.take_along_axis(x, flnb.argsort(x, axis=1), axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    x, indices = asarray(x), _integers("take_along_axis", indices)
    if x.ndim != indices.ndim:
        raise ValueError(
            f"take_along_axis: x and indices must have the same number of dimensions, got shapes {x.shape} and "
            f"{indices.shape}"
        )
    position = axis_of(axis, x.ndim, "take_along_axis")
    grid = [
        indices if a == position else reshape(arange(n), tuple(-1 if i == a else 1 for i in range(x.ndim)))
        for a, n in enumerate(x.shape)
    ]
    for a, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if a != position and n != m and 1 not in (n, m):
            raise ValueError(f"take_along_axis: shapes {x.shape} and {indices.shape} do not fit in axis {a}")
    return getitem(x, tuple(grid))


def _integers(op: str, indices: Any) -> Any:
    indices = asarray(indices)
    if indices.dtype.kind not in "iu" and indices.size:
        raise TypeError(f"{op}: indices must be integers, got {indices._spec!r}")
    return indices
