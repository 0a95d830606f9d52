"""Indexing: ``x[key]``, its gradient, and assignment.

A key of ints, slices, None and ... makes a view by the op `slice`. A key with integer or bool arrays makes a copy by
the op `gather`. The key is an attribute of the op, so it must be hashable. For this it is *encoded* as a tuple with one
item for each of its parts: an int, ``("slice", start, stop, step)``, None for a new axis, ``("index", i)`` for the i-th
index tensor, or ``("truth", value)`` for a bool.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.arguments import axis_of
from flnb.dispatch.plan import spec_of
from flnb.dispatch.table import Op, Pull, shaped
from flnb.ops.creation import arange, asarray
from flnb.ops.elementwise import assign
from flnb.ops.movement import along_axis, broadcast_to, reshape
from flnb.tensor import ArrayLike, Tensor

MOST = 66  # operands of an indexing op: the tensor, values, and an index for each of NumPy's 64 dimensions
TRUTHS = (("truth", True), ("truth", False))


@lru_cache(4096)
def basic(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the NumPy key for an encoded key without index tensors.

    An Ellipsis is added to the key, so that NumPy returns a view and never a scalar.
    """
    return (*decode(key), ...)


def decode(key: tuple[Any, ...], indices: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """Convert an encoded key (see the module) and its index arrays to the key that NumPy understands."""
    return tuple(_decode(k, indices) if isinstance(k, tuple) else k for k in key)


def _decode(k: tuple[Any, ...], indices: tuple[Any, ...]) -> Any:
    """Convert one part of an encoded key, a tuple that begins with "slice", "truth" or "index"."""
    return slice(*k[1:]) if k[0] == "slice" else k[1] if k[0] == "truth" else indices[k[1]]


def encode(key: Any, x: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], bool]:
    """Convert the key of ``x[key]`` to a hashable key, its index tensors, and whether the key makes a view.

    Raises:
        IndexError: there are too many indices, one is out of range, or a part of the key cannot index.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    hashable = [_hashable(k) for k in parts]
    if not all(hashable):
        return _encoded(parts, x.shape)
    encoded, axes = _known(tuple(hashable), x.shape)
    if not axes:
        return encoded, (), True
    tensors = [k for k in parts if isinstance(k, Tensor)]
    return encoded, tuple([_checked(k, x.shape, axis) for k, axis in zip(tensors, axes, strict=True)]), False


_PLAIN = {int, type(None)}


def _hashable(k: Any) -> tuple[Any, ...]:
    """Return one part of a key as a hashable tuple, for the cache of encoded keys; () for a part of another type.

    A part can be an int, None, ``...``, a slice of ints, or an integer tensor, which is replaced by `POSITIONS`.
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
    """Encode a key whose parts are results of `_hashable`.

    Return the encoded key, and for each index tensor the axis of the indexed tensor to which it applies.
    """
    key = [slice(*part) if len(part) == 3 else part[0] for part in parts]
    return _encoded(key, shape)[:2]


POSITIONS = object()
"""Stand-in for an integer tensor in a key, so that the encoded key can be cached without the tensor."""


def _encoded(parts: list[Any], shape: tuple[int, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...], bool]:
    """Encode the parts of a key for a tensor of shape ``shape``; the result is that of `encode`."""
    used = sum(_dimensions(k) for k in parts)
    if used > len(shape):
        raise IndexError(f"getitem: got {used} indices for a tensor of {len(shape)} dimensions, shape {shape}")
    dots = [i for i, k in enumerate(parts) if k is Ellipsis]
    if len(dots) > 1:
        raise IndexError(f"getitem: expected at most one ... in an index, got {len(dots)}")
    start = dots[0] if dots else len(parts)
    parts[start : start + 1] = [slice(None)] * (len(shape) - used)
    encoded: list[Any] = []
    indices: list[Any] = []
    axis = 0
    for k in parts:
        if k is None:
            encoded.append(None)
        elif isinstance(k, slice):
            encoded.append(("slice", *(None if v is None else v.__index__() for v in (k.start, k.stop, k.step))))
        elif _is_int(k):
            encoded.append(k.__index__())
            check_range(encoded[-1], encoded[-1], shape, axis)
        elif _is_truth(k):
            encoded.append(("truth", bool(k)))
        else:
            found = [axis] if k is POSITIONS else _index_tensors(k, shape, axis)
            encoded += [("index", len(indices) + i) for i in range(len(found))]
            indices += found
        axis += _dimensions(k)
    return tuple(encoded), tuple(indices), not indices and not set(TRUTHS) & set(encoded)


def _is_truth(k: Any) -> bool:
    """Return whether a part of a key is a bool or a 0-d bool tensor.

    Such a part adds an axis to the result, of extent 1 for True and 0 for False.
    """
    return isinstance(k, (bool, np.bool_)) or (getattr(k, "ndim", None) == 0 and np.dtype(k.dtype).kind == "b")


def _is_int(k: Any) -> bool:
    """Return whether a part of a key is a single integer; False for a batched tensor of `vmap`."""
    if not hasattr(k, "__index__") or isinstance(k, bool) or getattr(k, "_level", None) is not None:
        return False
    return getattr(k, "ndim", 0) == 0 and np.dtype(getattr(k, "dtype", np.int64)).kind in "iu"


def _dimensions(k: Any) -> int:
    """Return the number of dimensions of the indexed tensor to which a part of a key applies."""
    if k is None or k is Ellipsis or isinstance(k, (bool, np.bool_)):
        return 0
    return int(k.ndim) if np.dtype(getattr(k, "dtype", np.int64)).kind == "b" else 1


def _index_tensors(k: Any, shape: tuple[int, ...], axis: int) -> list[Any]:
    """Convert a list or array ``k`` in a key to index tensors: one per dimension of a bool array, otherwise one.

    ``shape`` is the indexed tensor's shape, and ``axis`` the first of its axes that ``k`` indexes.
    """
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
        extents = shape[axis : axis + given.ndim]
        if any(n not in (0, m) for n, m in zip(given.shape, extents, strict=True)):  # an empty mask selects nothing
            raise IndexError(
                f"getitem: got a mask of shape {given.shape}, expected {extents}, the extents from axis {axis} on"
            )
        return [asarray(i) for i in _positions(given._values() if isinstance(given, Tensor) else given)]
    if given.size == 0:
        return [asarray(given.astype(np.int64))]
    if given.dtype.kind not in "iu":
        raise IndexError(
            f"getitem: expected integer or bool indices, got {spec_of(given.shape, given.dtype)!r}; convert them with "
            f".astype(flnb.int64)"
        )
    if isinstance(given, Tensor):
        return [_checked(given, shape, axis)]
    check_range(given.min(), given.max(), shape, axis)
    return [asarray(given)]


def _positions(mask: Any) -> list[Any]:
    """Return for each axis of a mask the indices of the true elements: `np.nonzero`, but three times as fast."""
    rest, found = _true_places(mask), []
    for extent in mask.shape[:0:-1]:
        above = rest // max(extent, 1)
        found.append(rest - above * extent)
        rest = above
    return [rest, *reversed(found)]


def _checked(indices: Any, shape: tuple[int, ...], axis: int) -> Any:
    """Return a tensor of indices, after a check that they are in range for axis ``axis`` of a tensor of ``shape``."""
    if not indices._are_positions(shape[axis]):
        least, most = indices._bounds()
        check_range(least, most, shape, axis)
    return indices


def check_range(least: Any, most: Any, shape: tuple[int, ...], axis: int) -> None:
    """Raise an IndexError unless indices from ``least`` to ``most`` are in range for axis ``axis`` of ``shape``."""
    if least < -shape[axis] or most >= shape[axis]:
        which = f"index {least} is" if least == most else f"indices {least} to {most} are"
        raise IndexError(f"getitem: {which} out of range for axis {axis} of shape {shape}")


def _shape(shape: tuple[int, ...], key: tuple[Any, ...], indices: tuple[Any, ...] = ()) -> tuple[int, ...]:
    """Return the shape of ``x[key]``, given x's shape, the encoded key and the specs of its index tensors.

    NumPy computes the result, on an array of x's shape that uses no memory.
    """
    if indices:  # the zeros used as indices below are out of range for an empty axis
        taken = [k for k in key if k is not None and k not in TRUTHS]
        shape = tuple(
            max(n, 1) if isinstance(k, tuple) and k[0] == "index" else n for n, k in zip(shape, taken, strict=True)
        )
    probe = np.broadcast_to(np.empty((), bool), shape)
    return tuple(probe[decode(key, tuple(np.zeros(s.shape, np.int64) for s in indices))].shape)


_slice = Op(
    "slice", "movement", shaped(_shape), writes_out=False,
    pulls=(Pull((), lambda g, plan, x, y: place(g, plan.specs[0].shape, plan.attributes[0])),),
)  # fmt: skip
_place = Op(
    "place", "movement", shaped(lambda _, shape, key: shape),
    (Pull((), lambda g, plan, x, y: dispatch.call(_slice, (g,), (plan.attributes[1],))),),
)  # fmt: skip


def place(x: Any, shape: tuple[int, ...], key: tuple[Any, ...]) -> Any:
    """Return zeros of ``shape`` into which ``x`` is written at the encoded ``key``: the gradient of slicing."""
    return dispatch.call(_place, (x,), (shape, key))


def _first(pull: Any) -> Any:
    """Return the gradient functions of an op on a tensor and indices: ``pull`` for the tensor, none for indices."""
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
    """Return ``x[key]`` by NumPy's rules: a copy if the key has arrays or bools, otherwise a view."""
    if type(key) is Tensor and key._spec.dtype.kind == "b" and _masks(key._spec, x):
        flat = reshape(x, (key._spec.size, *x._spec.shape[key._spec.ndim :]))  # one index is quicker than several
        return _gather.entries[2, ""](flat, asarray(_true_places(key._values())), _only(0, flat._spec.ndim))
    encoded, indices, view = encode(key, x)
    return (_slice if view else _gather).entries[1 + len(indices), ""](x, *indices, (encoded,))


def _masks(mask: Any, x: Any) -> bool:
    """Return whether x can be indexed by a mask after both are flattened without a copy.

    That is so if the mask has the extents of the first axes of x, and these axes can be joined. ``mask`` may be the
    spec of the mask.
    """
    shape = x._spec.shape
    return mask.ndim and mask.size and shape[: mask.ndim] == mask.shape and (mask.ndim == 1 or x._is_contiguous())


def _true_places(mask: Any) -> Any:
    """Return the indices of a mask's true elements in row-major order."""
    return mask.reshape(-1).nonzero()[0]


def setitem(x: Any, key: Any, value: Any) -> None:
    """Write ``x[key] = value`` in place; an error for Variables that require grad while gradients are recorded."""
    encoded, indices, view = encode(key, x)
    if view:
        assign(dispatch.call(_slice, (x,), (encoded,)), value)
        return
    shape = _shape(x.shape, encoded, tuple(i._spec for i in indices))
    dispatch.write(_put, (x, broadcast_to(asarray(value, x.dtype), shape), *indices), (encoded,), x)


def put_add(x: Any, places: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    """Return zeros of ``shape`` to which ``x`` is added at ``places``, an integer array for each of the first axes.

    If a position occurs several times, all values for it are added.
    """
    key = (*(("index", i) for i in range(len(places))), *(("slice", None, None, None),) * (len(shape) - len(places)))
    return dispatch.call(_scatter_add, (x, *map(asarray, places)), (shape, key))


def take(x: ArrayLike, indices: ArrayLike, /, axis: int | None = None) -> Tensor:
    """Take slices of ``x`` along ``axis`` at integer ``indices`` of any shape; the axis may be omitted for a vector.

    Raises:
        ValueError: x has several dimensions, and no axis is given.
        IndexError: an index is out of range.
        TypeError: the indices are no integers.

    >>> import flnb
    >>> flnb.take([10, 20, 30], [2, 0])
    Tensor([30, 10], int64[2], numpy)
    """
    x = asarray(x)
    if axis is None and x.ndim != 1:
        raise ValueError(f"take: axis= is required for a tensor of {x.ndim} dimensions, shape {x.shape}")
    return take_at(x, integers("take", indices), axis_of(0 if axis is None else axis, x.ndim, "take"))


def take_at(x: Any, indices: Any, axis: int) -> Any:
    """Take slices of a tensor along ``axis`` at an integer tensor of indices, after a check of the indices' range."""
    if not indices._spec.size or not indices._spec.ndim or indices._level is not None:
        return getitem(x, (*(slice(None),) * axis, indices))
    attributes = _only(axis, x._spec.ndim)
    return _gather.entries[2, ""](x, _checked(indices, x._spec.shape, axis), attributes)


@lru_cache(1024)
def _only(axis: int, ndim: int) -> tuple[tuple[Any, ...], ...]:
    """Return the attributes of `gather` for an index tensor on ``axis``; all other axes are taken whole."""
    whole = ("slice", None, None, None)
    return ((*(whole,) * axis, ("index", 0), *(whole,) * (ndim - axis - 1)),)


def take_along_axis(x: ArrayLike, indices: ArrayLike, /, axis: int = -1) -> Tensor:
    """Take an element of ``x`` along ``axis`` for each of ``indices``: for axis 0, ``y[i, j] = x[indices[i, j], j]``.

    ``indices`` are integers and have as many dimensions as x; dimensions other than ``axis`` broadcast.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.
        IndexError: an index is out of range.
        TypeError: the indices are no integers.

    >>> import flnb
    >>> x = flnb.asarray([[3, 1], [2, 4]])
    >>> flnb.take_along_axis(x, flnb.argsort(x, axis=1), axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    x, indices = asarray(x), integers("take_along_axis", indices)
    if x.ndim != indices.ndim:
        raise ValueError(
            f"take_along_axis: x and indices must have the same number of dimensions, got shapes {x.shape} and "
            f"{indices.shape}"
        )
    position = axis_of(axis, x.ndim, "take_along_axis")
    grid = [indices if a == position else along_axis(arange(n), a, x.ndim) for a, n in enumerate(x.shape)]
    for a, (n, m) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if a != position and n != m and 1 not in (n, m):
            raise ValueError(
                f"take_along_axis: x {x.shape}, indices {indices.shape}: expected equal extents or 1 in axis {a}"
            )
    return getitem(x, tuple(grid))


def integers(op: str, indices: Any) -> Any:
    """Convert indices to a tensor and check that they are integers; the error names ``op``."""
    indices = asarray(indices)
    if indices.dtype.kind not in "iu" and indices.size:
        raise TypeError(f"{op}: expected integer indices, got {indices._spec!r}; convert them with .astype(flnb.int64)")
    return indices
