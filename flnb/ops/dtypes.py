"""Data types and questions about them, with the array API's names."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from flnb.dispatch.dtypes import KINDS, common_dtype, dtype_of, is_float
from flnb.tensor import ArrayLike, DTypeLike, Tensor

__all__ = ["can_cast", "dtypes_of_kind", "finfo", "iinfo", "isdtype", "result_type"]

Dtype = np.dtype[Any]


class FloatInfo(NamedTuple):
    """Limits of a floating-point dtype; for a complex one those of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Dtype


class IntegerInfo(NamedTuple):
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: Dtype


def finfo(type: DTypeLike | Tensor, /) -> FloatInfo:
    """Limits of a floating-point dtype, or of a tensor's; for complex ones those of their parts.

    >>> import flnb
    >>> flnb.finfo(flnb.complex128).dtype
    dtype('float64')
    """
    dtype = _dtype_of(type)
    if not is_float(dtype):
        raise TypeError(f"finfo: expected a floating-point dtype, got {dtype.name}; use iinfo for integers")
    known: Any = import_module("ml_dtypes").finfo(dtype) if dtype.name == "bfloat16" else np.finfo(dtype)
    eps, most, least, normal = (float(v) for v in (known.eps, known.max, known.min, known.smallest_normal))
    return FloatInfo(int(known.bits), eps, most, least, normal, np.dtype(known.dtype))


def iinfo(type: DTypeLike | Tensor, /) -> IntegerInfo:
    """Limits of an integer dtype, or of a tensor's.

    >>> import flnb
    >>> flnb.iinfo(flnb.int8).max
    127
    """
    dtype = _dtype_of(type)
    if dtype.kind not in "iu":
        raise TypeError(f"iinfo: expected an integer dtype, got {dtype.name}; use finfo for floating point")
    known = np.iinfo(dtype)
    return IntegerInfo(int(known.bits), int(known.max), int(known.min), dtype)


def dtypes_of_kind(kind: str) -> tuple[str, ...]:
    """Names of the dtypes of a kind: ``"bool"``, ``"signed integer"``, ..., ``"integral"`` or ``"numeric"``."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind of dtype {kind!r}; known: {', '.join(KINDS)}")
    return KINDS[kind]


def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> bool:
    """Whether a dtype is one of a kind: a dtype, a kind's name (`dtypes_of_kind`), or a tuple of those.

    >>> import flnb
    >>> flnb.isdtype(flnb.uint8, "integral"), flnb.isdtype(flnb.bool, ("numeric", flnb.float32))
    (True, False)
    """
    given = dtype_of(dtype)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(given.name in dtypes_of_kind(k) if isinstance(k, str) else given == dtype_of(k) for k in kinds)


def result_type(*arrays_and_dtypes: ArrayLike | DTypeLike) -> Dtype:
    """The dtype that an op computes in, given tensors, dtypes and Python scalars, which count little.

    Of two dtypes of one kind the larger wins; integers with floating point become the floating dtype, whatever the
    integers' width: int64 with float32 is float32.

    >>> import flnb
    >>> flnb.result_type(flnb.int64, flnb.float32, 2.5)
    dtype('float32')
    """
    if not arrays_and_dtypes:
        raise ValueError("result_type: expected one tensor, dtype or number or more, got none")
    scalars = [type(x) for x in arrays_and_dtypes if type(x) in (bool, int, float, complex)]
    strong = [_dtype_of(x) for x in arrays_and_dtypes if type(x) not in (bool, int, float, complex)]
    return common_dtype(strong, scalars)


def can_cast(from_: DTypeLike | Tensor, to: DTypeLike, /) -> bool:
    """Whether promotion can lead from a dtype (or a tensor's) to the dtype ``to``.

    >>> import flnb
    >>> flnb.can_cast(flnb.int8, flnb.int32), flnb.can_cast(flnb.float64, flnb.float32)
    (True, False)
    """
    return bool(result_type(_dtype_of(from_), to) == dtype_of(to))


def _dtype_of(value: Any) -> Dtype:
    return value.dtype if isinstance(value, (Tensor, np.ndarray, np.generic)) else dtype_of(value)
