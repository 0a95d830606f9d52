"""Functions about data types, and the inspection API, with the names of the array API standard 2024.12."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from flnb.dispatch.arguments import check_device
from flnb.dispatch.dtypes import DTYPES, KINDS, common_dtype, complex_dtype, default_dtype, dtype_of, is_float
from flnb.dispatch.state import current
from flnb.tensor import ArrayLike, DTypeLike, Tensor

Dtype = np.dtype[Any]


class FloatInfo(NamedTuple):
    """Limits of a floating-point dtype, as Python numbers; for a complex dtype those of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Dtype


def finfo(type: DTypeLike | Tensor, /) -> FloatInfo:
    """Return the limits of a floating-point dtype, or of a tensor's dtype; for a complex dtype, of its parts' dtype.

    The result has the attributes ``bits``, ``eps``, ``max``, ``min``, ``smallest_normal`` and ``dtype``.

    Raises:
        TypeError: the dtype is not a floating-point or complex one.

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


def iinfo(type: DTypeLike | Tensor, /) -> np.iinfo[Any]:
    """Return the limits of an integer dtype, or of a tensor's dtype.

    The result has the attributes ``bits``, ``max``, ``min`` and ``dtype``.

    Raises:
        TypeError: the dtype is not an integer one.

    >>> import flnb
    >>> flnb.iinfo(flnb.int8).max
    127
    """
    dtype = _dtype_of(type)
    if dtype.kind not in "iu":
        raise TypeError(f"iinfo: expected an integer dtype, got {dtype.name}; use finfo for floating point")
    return np.iinfo(dtype)


def dtypes_of_kind(kind: str) -> tuple[str, ...]:
    """Return the names of the dtypes of a kind, such as ``"bool"``, ``"signed integer"`` or ``"numeric"``."""
    if kind not in KINDS:
        raise ValueError(f"expected a kind of dtype, one of {', '.join(KINDS)}, got {kind!r}")
    return KINDS[kind]


def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> bool:
    """Return whether a dtype is of a kind, or of one of several kinds.

    ``kind`` is a dtype, the name of a kind, or a tuple of these. The names are "bool", "signed integer",
    "unsigned integer", "integral", "real floating", "complex floating" and "numeric".

    Raises:
        TypeError: ``dtype`` is not a dtype.
        ValueError: ``kind`` is a string that names no kind.

    >>> import flnb
    >>> flnb.isdtype(flnb.uint8, "integral"), flnb.isdtype(flnb.bool, ("numeric", flnb.float32))
    (True, False)
    """
    given = dtype_of(dtype)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(given.name in dtypes_of_kind(k) if isinstance(k, str) else given == dtype_of(k) for k in kinds)


def result_type(*arrays_and_dtypes: ArrayLike | DTypeLike) -> Dtype:
    """Return the dtype in which an op computes on tensors, dtypes and Python numbers.

    For two dtypes of one kind it is the larger one. For an integer and a floating dtype it is the floating dtype, no
    matter how wide the integers are: int64 with float32 is float32. A Python number may change the kind, for example
    from int to float, but not the size.

    Raises:
        ValueError: there are no arguments.

    >>> import flnb
    >>> flnb.result_type(flnb.int64, flnb.float32, 2.5)
    dtype('float32')
    """
    if not arrays_and_dtypes:
        raise ValueError("result_type: expected at least one tensor, dtype or number, got none")
    scalars = [type(x) for x in arrays_and_dtypes if type(x) in (bool, int, float, complex)]
    strong = [_dtype_of(x) for x in arrays_and_dtypes if type(x) not in (bool, int, float, complex)]
    return common_dtype(strong, scalars)


def can_cast(from_: DTypeLike | Tensor, to: DTypeLike, /) -> bool:
    """Return whether promotion (`result_type`) can lead from a dtype, or a tensor's dtype, to the dtype ``to``.

    Raises:
        TypeError: an argument is not a dtype.

    >>> import flnb
    >>> flnb.can_cast(flnb.int8, flnb.int32), flnb.can_cast(flnb.float64, flnb.float32)
    (True, False)
    """
    return bool(result_type(_dtype_of(from_), to) == dtype_of(to))


def _dtype_of(value: Any) -> Dtype:
    """Return the dtype of a tensor or array, or the dtype for a name such as "float32" or a type such as float."""
    return value.dtype if isinstance(value, (Tensor, np.ndarray, np.generic)) else dtype_of(value)


VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
"""The versions of the array API standard that flnb follows; the last is `flnb.__array_api_version__`."""


class Info:
    """Capabilities, devices and dtypes of the active backend. Get one from ``flnb.__array_namespace_info__()``."""

    def capabilities(self) -> dict[str, Any]:
        """Return a dict: whether bool arrays can index, whether shapes may depend on values, and the largest ndim."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Return the device of tensors that are made without a ``device`` argument: "cpu"."""
        return "cpu"

    def devices(self) -> list[str]:
        """Return the devices that creation functions accept."""
        return ["cpu"]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, np.dtype[Any]]:
        """Return the default dtypes by their kinds: "real floating", "complex floating", "integral" and "indexing"."""
        check_device(device)
        integer = {"integral": DTYPES["int64"], "indexing": DTYPES["int64"]}
        return {"real floating": default_dtype(), "complex floating": complex_dtype()} | integer

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """Return the standard's dtypes by name: all, or those of a kind or of several kinds (`flnb.isdtype`).

        >>> import flnb
        >>> list(flnb.__array_namespace_info__().dtypes(kind="real floating"))
        ['float32', 'float64']
        """
        check_device(device)
        kinds = ("bool", "numeric") if kind is None else kind if isinstance(kind, tuple) else (kind,)
        wanted = {name for k in kinds for name in dtypes_of_kind(k)} - {"float16"}  # which the standard does not know
        return {name: dtype for name, dtype in DTYPES.items() if name in wanted and current().backend.supports(dtype)}
