"""Tensors from values, shapes and random numbers."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch import ops as dispatch
from flnb.dispatch import state
from flnb.dispatch.miss import default_dtype
from flnb.dispatch.plan import spec_of
from flnb.ops.table import Op
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

INPUT = 5


def _no_rule(op: Op, *_: Any) -> Any:
    raise TypeError(f"{op.name}: takes no tensors")


_from_numpy = Op("from_numpy", "memory", _no_rule)
_full = Op("full", "memory", _no_rule)
_arange = Op("arange", "memory", _no_rule)
_eye = Op("eye", "memory", _no_rule)


def _shape(shape: Any) -> tuple[int, ...]:
    extents = tuple(int(n) for n in shape) if isinstance(shape, (tuple, list)) else (operator.index(shape),)
    if any(n < 0 for n in extents):
        raise ValueError(f"a shape has extents >= 0, got {extents}")
    return extents


def _spec(shape: Any, dtype: Any) -> Any:
    if isinstance(dtype, int):
        raise TypeError(
            f"expected a dtype after the shape, got {dtype}; a shape is one tuple: zeros(({shape}, {dtype}))"
        )
    return spec_of(_shape(shape), np.dtype(dtype) if dtype is not None else default_dtype(), state.current().kind)


def asarray(values: Any, dtype: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor from a number, nested lists, a NumPy array, or anything NumPy takes. Values are copied.

    Python floats become the default dtype (float32), Python ints int64. NumPy arrays keep their dtype. A Tensor
    comes back as it is unless ``dtype`` or ``copy`` ask for more.

    >>> import flnb
    >>> flnb.asarray([1, 2]).dtype, flnb.asarray([1.0, 2.0]).dtype
    (dtype('int64'), dtype('float32'))

    Raises:
        TypeError: values that are no numbers.
    """
    if isinstance(values, Tensor):
        if dtype is not None and values.dtype != np.dtype(dtype):
            return values.astype(dtype)  # type: ignore[no-any-return]
        return values.copy() if copy else values
    if copy is False:
        raise ValueError("asarray: copy=False is not possible, flnb keeps values in memory of its own manager")
    if isinstance(values, (list, tuple)) and any(isinstance(v, Tensor) for v in values):
        values = [v._values() if isinstance(v, Tensor) else v for v in values]
    try:
        array = np.asarray(values, dtype=dtype)
    except (ValueError, TypeError) as error:
        raise type(error)(f"asarray: {error}; expected numbers in nested lists of equal lengths") from None
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise TypeError(f"asarray: expected numbers, got {type(values).__name__} of dtype {array.dtype}")
    if dtype is None and not hasattr(values, "dtype") and array.dtype == np.float64:
        array = array.astype(default_dtype())
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    spec = spec_of(array.shape, array.dtype, state.current().kind)
    return dispatch.create(_from_numpy, spec, (array,), INPUT)


def full(shape: int | Sequence[int], value: float, dtype: Any = None) -> Tensor:
    """A tensor filled with one value; dtype by the value: bool, int64 or the default floating dtype."""
    if dtype is None and isinstance(value, (bool, int)):
        dtype = np.bool_ if isinstance(value, bool) else np.int64
    return dispatch.create(_full, _spec(shape, dtype), (value,))


def zeros(shape: int | Sequence[int], dtype: Any = None) -> Tensor:
    """Zeros, of the default dtype unless given."""
    return dispatch.create(_full, _spec(shape, dtype), (0,))


def ones(shape: int | Sequence[int], dtype: Any = None) -> Tensor:
    """Ones, of the default dtype unless given."""
    return dispatch.create(_full, _spec(shape, dtype), (1,))


def full_like(x: Any, value: float, dtype: Any = None) -> Tensor:
    """One value in the shape, and the dtype unless given, of ``x``."""
    return dispatch.create(_full, _spec(x.shape, dtype or x.dtype), (value,))


def zeros_like(x: Any, dtype: Any = None) -> Tensor:
    """Zeros in the shape, and the dtype unless given, of ``x``."""
    return full_like(x, 0, dtype)


def ones_like(x: Any, dtype: Any = None) -> Tensor:
    """Ones in the shape, and the dtype unless given, of ``x``."""
    return full_like(x, 1, dtype)


def arange(start: float, stop: float | None = None, step: float = 1, dtype: Any = None) -> Tensor:
    """Evenly spaced values in [start, stop); one argument is ``stop``, from 0. int64 when all are ints."""
    if step == 0:
        raise ValueError("arange: step must not be 0")
    first, last = (0, start) if stop is None else (start, stop)
    if dtype is None and all(isinstance(v, int) for v in (first, last, step)):
        dtype = np.int64
    count = max(0, int(np.ceil((last - first) / step)))
    return dispatch.create(_arange, _spec((count,), dtype), (first, step))


def eye(rows: int, columns: int | None = None, dtype: Any = None) -> Tensor:
    """Ones on the diagonal, zeros elsewhere, shape (rows, columns or rows)."""
    return dispatch.create(_eye, _spec((rows, rows if columns is None else columns), dtype), ())
