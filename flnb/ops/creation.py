"""Tensors from values, shapes and random numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.brief import brief
from flnb.dispatch.dtypes import common_dtype, complex_dtype, default_dtype, dtype_of
from flnb.dispatch.plan import spec_of
from flnb.dispatch.quiet import quiet
from flnb.dispatch.table import Op
from flnb.tensor import ArrayLike, DTypeLike, Tensor, check_device


def _no_rule(op: Op, *_: Any) -> Any:
    raise TypeError(f"{op.name}: takes no tensors")


_from_numpy = Op("from_numpy", "memory", _no_rule)
_full = Op("full", "memory", _no_rule)
_arange = Op("arange", "memory", _no_rule)
_eye = Op("eye", "memory", _no_rule)
_empty_like = Op("empty_like", "memory", _no_rule)


def _shape(shape: Any) -> tuple[int, ...]:
    extents = tuple(operator.index(n) for n in shape) if isinstance(shape, (tuple, list)) else (operator.index(shape),)
    if any(n < 0 for n in extents):
        raise ValueError(f"a shape has extents >= 0, got {extents}")
    return extents


def refuse_complex(op: str, dtype: Any, target: Any) -> None:
    """Raise where complex numbers would become real ones."""
    if target is not None and getattr(dtype, "kind", "") == "c" and target.kind not in "cb":
        raise TypeError(f"{op}: {dtype.name} to {target.name} loses the imaginary part; use flnb.real or flnb.abs")


def _spec(shape: Any, dtype: Any, device: Any = None) -> Any:
    if isinstance(dtype, int):
        raise TypeError(
            f"expected a dtype after the shape, got {dtype}; a shape is one tuple: zeros(({brief(shape)}, {dtype}))"
        )
    check_device(device)
    return spec_of(_shape(shape), dtype_of(dtype) if dtype is not None else default_dtype(), state.current().kind)


def asarray(obj: ArrayLike, dtype: DTypeLike = None, copy: bool | None = None, device: str | None = None) -> Tensor:
    """Make a tensor from a number, nested lists, a NumPy array, or anything NumPy converts; values are copied.

    Python floats get the default dtype (float32), complex numbers its complex counterpart, Python ints int64. NumPy
    arrays keep their dtype. A Tensor is returned as it is unless ``dtype`` or ``copy`` require a new one. Lists of
    Tensors are stacked, in their common dtype; gradients flow to those that require them.

    >>> import flnb
    >>> flnb.asarray([1, 2]).dtype, flnb.asarray([1.0, 2.0]).dtype
    (dtype('int64'), dtype('float32'))

    Raises:
        TypeError: values that are no numbers.
        ValueError: ``copy=False`` where a copy is needed.
    """
    if isinstance(obj, Tensor):
        if dtype is None and copy is None and device is None:
            return obj
        check_device(device)
        if dtype is not None and obj.dtype != dtype_of(dtype):
            if copy is False:
                raise ValueError(f"asarray: {obj._spec!r} cannot become {dtype_of(dtype).name} without a copy")
            return obj.astype(dtype)
        return obj.copy() if copy else obj
    check_device(device)
    if copy is False:
        raise ValueError(
            "asarray: copy=False is not possible, flnb keeps values in memory of its own manager; "
            "flnb.from_dlpack(array) shares memory"
        )
    dtype = None if dtype is None else dtype_of(dtype)
    if isinstance(obj, (list, tuple)) and _holds_tensors(obj):
        return _joined(obj, _common(obj) if dtype is None else dtype)
    array = _array_of(obj, dtype)
    spec = spec_of(array.shape, array.dtype, state.current().kind)
    return dispatch.create(_from_numpy, spec, (array,), state.INPUT)


@quiet
def _array_of(values: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """Values as a NumPy array of the dtype that their tensor will have."""
    refuse_complex("asarray", getattr(values, "dtype", dtype), dtype)
    try:
        array = np.asarray(values, dtype=dtype)
    except (ValueError, TypeError) as error:
        raise type(error)(f"asarray: {error}; expected numbers in nested lists of equal lengths") from None
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise TypeError(f"asarray: expected numbers, got {type(values).__name__} of dtype {array.dtype}")
    if dtype is None and not hasattr(values, "dtype") and array.dtype.kind in "fc":
        array = array.astype(default_dtype() if array.dtype.kind == "f" else complex_dtype())
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _holds_tensors(values: Sequence[Any]) -> bool:
    kinds = set(map(type, values))
    nested = any(issubclass(kind, (list, tuple)) for kind in kinds)
    return any(issubclass(kind, Tensor) for kind in kinds) or (
        nested and any(_holds_tensors(v) for v in values if isinstance(v, (list, tuple)))
    )


def _elements(values: Sequence[Any]) -> Iterator[Any]:
    for v in values:
        if isinstance(v, (list, tuple)):
            yield from _elements(v)
        else:
            yield v


def _common(values: Sequence[Any]) -> np.dtype[Any]:
    """The dtype of nested lists with tensors in them; Python numbers do not widen it."""
    strong, weak = [], set()
    for v in _elements(values):
        if isinstance(v, (Tensor, np.ndarray)):
            strong.append(v.dtype)
        else:
            weak.add(type(v.item() if isinstance(v, np.generic) else v))
    for kind in weak - {bool, int, float, complex}:
        raise TypeError(f"asarray: expected numbers and tensors in nested lists, got {kind.__name__} among them")
    return common_dtype(strong, tuple(weak))


def _joined(values: Sequence[Any], dtype: np.dtype[Any]) -> Tensor:
    """Nested lists of tensors and numbers as one tensor: copied at once, or by ops where these are to be recorded."""
    tensors = [v for v in _elements(values) if isinstance(v, Tensor)]
    recorded = state.current().grad and any(x._node is not None for x in tensors)
    if not recorded and all(x._can_be_read() for x in tensors):
        return asarray(np.asarray(_read(values)), dtype)
    from flnb.ops.movement import stack

    return stack([_joined(v, dtype) if isinstance(v, (list, tuple)) else asarray(v, dtype) for v in values])


def _read(values: Any) -> Any:
    """Nested lists with the values of tensors in their place."""
    if isinstance(values, (list, tuple)):
        return [_read(v) for v in values]
    return values._values() if isinstance(values, Tensor) else values


def from_dlpack(x: ArrayLike, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor on the memory of another library's array (any object with ``__dlpack__``), copied only on request.

    Writing to one then writes to the other. Memory shared in this way belongs to no memory manager.

    >>> import flnb, numpy as np
    >>> source = np.zeros(3, np.float32)
    >>> shared = flnb.from_dlpack(source)
    >>> source[0] = 5.0
    >>> shared.tolist()
    [5.0, 0.0, 0.0]

    Raises:
        TypeError: an object without ``__dlpack__``, or a dtype or device that NumPy does not have.
    """
    check_device(device)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: expected an array with __dlpack__, got {type(x).__name__}; use flnb.asarray")
    array = np.from_dlpack(x)
    if copy:
        return asarray(array)
    if isinstance(x, np.ndarray):  # of which NumPy before 2.1 returns a read-only view
        array = x
    here = state.current()
    if not here.backend.shares_memory:
        raise TypeError(f"from_dlpack: backend {here.backend.name!r} cannot share host memory; give copy=True")
    return dispatch.detached(array, spec_of(array.shape, array.dtype, here.kind))


def full(
    shape: int | Sequence[int], fill_value: complex | Tensor, dtype: DTypeLike = None, device: str | None = None
) -> Tensor:
    """A tensor of a shape filled with one value.

    Without ``dtype`` a number decides: bool, int64, or the default floating or complex dtype. Of a Tensor of one
    element the dtype stays, and gradients flow to it.

    >>> import flnb
    >>> flnb.full((2,), 7)
    Tensor([7, 7], int64[2], numpy)
    """
    if isinstance(fill_value, Tensor):
        from flnb.ops.elementwise import copy
        from flnb.ops.movement import broadcast_to

        check_device(device)
        return copy(broadcast_to(single(asarray(fill_value, dtype), "full"), _shape(shape)))
    if dtype is None and isinstance(fill_value, (bool, int, complex)):
        dtype = np.bool_ if fill_value is True or fill_value is False else np.int64
        dtype = complex_dtype() if isinstance(fill_value, complex) else dtype
    return dispatch.create(_full, _spec(shape, dtype, device), (fill_value,))


def single(value: Tensor, op: str) -> Any:
    """A tensor of one element without dimensions."""
    from flnb.ops.movement import reshape

    if value.size != 1:
        raise ValueError(f"{op}: expected one number or a tensor with one element to fill with, got {value._spec!r}")
    return reshape(value, ())


def zeros(shape: int | Sequence[int], dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """A tensor of zeros, of the default dtype (float32) unless another is given.

    >>> import flnb
    >>> flnb.zeros((2, 2)).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return dispatch.create(_full, _spec(shape, dtype, device), (0,))


def ones(shape: int | Sequence[int], dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """A tensor of ones, of the default dtype (float32) unless another is given.

    >>> import flnb
    >>> flnb.ones(3, dtype=flnb.int64)
    Tensor([1, 1, 1], int64[3], numpy)
    """
    return dispatch.create(_full, _spec(shape, dtype, device), (1,))


def empty(shape: int | Sequence[int], dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """A tensor with unset values, to be written before it is read; of the default dtype unless another is given.

    >>> import flnb
    >>> flnb.empty((2, 3)).shape
    (2, 3)
    """
    return dispatch.create(_empty_like, _spec(shape, dtype, device), ())


def full_like(x: ArrayLike, /, fill_value: complex, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """A tensor filled with one value, in the shape of ``x`` and its dtype unless another is given.

    >>> import flnb
    >>> flnb.full_like(flnb.asarray([1.5, 2.5]), 7)
    Tensor([7., 7.], float32[2], numpy)
    """
    return full(x.shape, fill_value, x.dtype if dtype is None else dtype, device)


def zeros_like(x: ArrayLike, /, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """A tensor of zeros in the shape of ``x``, of its dtype unless another is given.

    >>> import flnb
    >>> flnb.zeros_like(flnb.asarray([1, 2]))
    Tensor([0, 0], int64[2], numpy)
    """
    return zeros(x.shape, x.dtype if dtype is None else dtype, device)


def ones_like(x: ArrayLike, /, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """A tensor of ones in the shape of ``x``, of its dtype unless another is given.

    >>> import flnb
    >>> flnb.ones_like(flnb.asarray([1, 2]))
    Tensor([1, 1], int64[2], numpy)
    """
    return ones(x.shape, x.dtype if dtype is None else dtype, device)


def empty_like(x: ArrayLike, /, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """A tensor with unset values in the shape of ``x``, of its dtype unless another is given.

    >>> import flnb
    >>> flnb.empty_like(flnb.asarray([[1, 2]])).shape
    (1, 2)
    """
    return empty(x.shape, x.dtype if dtype is None else dtype, device)


def arange(
    start: float, /, stop: float | None = None, step: float = 1, dtype: DTypeLike = None, device: str | None = None
) -> Tensor:
    """Evenly spaced values from ``start`` up to, but without, ``stop``; with one argument from 0 to it.

    int64 where all are ints, else the default floating dtype.

    >>> import flnb
    >>> flnb.arange(3), flnb.arange(0.0, 1.0, 0.5)
    (Tensor([0, 1, 2], int64[3], numpy), Tensor([0. , 0.5], float32[2], numpy))
    """
    if step == 0:
        raise ValueError("arange: step must not be 0")
    first, last = (0, start) if stop is None else (start, stop)
    whole = all(isinstance(v, int) for v in (first, last, step))
    if dtype is None and whole:
        dtype = np.int64
    count = -((first - last) // step) if whole else np.ceil((last - first) / step)
    return dispatch.create(_arange, _spec((max(0, int(count)),), dtype, device), (first, step))


_linspace = quiet(np.linspace)


def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    dtype: DTypeLike = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """``num`` evenly spaced values from ``start`` to ``stop``, which is left out with ``endpoint=False``.

    >>> import flnb
    >>> flnb.linspace(0, 1, 5)
    Tensor([0.  , 0.25, 0.5 , 0.75, 1.  ], float32[5], numpy)
    """
    if num < 0:
        raise ValueError(f"linspace: num must be 0 or more, got {num}")
    if dtype is None:
        dtype = complex_dtype() if complex in (type(start), type(stop)) else default_dtype()
    return asarray(_linspace(start, stop, num, endpoint=endpoint), dtype, device=device)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DTypeLike = None, device: str | None = None
) -> Tensor:
    """A matrix (n_rows, n_cols) with ones on the ``k``-th diagonal (0: the main one, 1: above it) and zeros elsewhere.

    >>> import flnb
    >>> flnb.eye(2, 3, k=1).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    shape = (n_rows, n_rows if n_cols is None else n_cols)
    return dispatch.create(_eye, _spec(shape, dtype, device), (operator.index(k),))
