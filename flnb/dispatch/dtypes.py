"""Dtypes: their names, the default one, and the dtype in which an op on several dtypes computes.

Promotion follows the array API 2024.12, and torch where the standard leaves a choice. A Python scalar changes the dtype
only if it is of a higher kind (bool, integer, floating point, complex), such as 0.5 with int64. For two dtypes of one
kind the result is the larger one. For a floating-point and an integer dtype it is the floating-point dtype: int64 with
float32 is float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.brief import brief

if TYPE_CHECKING:
    from collections.abc import Sequence

Dtype = np.dtype[Any]

KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float16", "float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
DTYPES: dict[str, Dtype] = {name: np.dtype(name) for names in KINDS.values() for name in names}
"""A dict from names to all dtypes of flnb, which are NumPy dtypes."""

KINDS["integral"] = KINDS["signed integer"] + KINDS["unsigned integer"]
_UNSIGNED = {DTYPES[name]: DTYPES[f"uint{name.strip('uint')}"] for name in KINDS["integral"]}
KINDS["numeric"] = KINDS["integral"] + KINDS["real floating"] + KINDS["complex floating"]


def dtype_of(given: Any) -> Dtype:
    """Return the dtype for a name, a Python type or a dtype.

    Raises:
        TypeError: ``given`` is none of these, or a dtype that flnb does not have.
    """
    try:
        return np.dtype(given)
    except TypeError:
        from difflib import get_close_matches  # 5 ms

        near = get_close_matches(brief(given).strip("'").split(".")[-1], DTYPES, 1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise TypeError(
            f"{brief(given)} is not a dtype; {meant}known are {', '.join(DTYPES)} and, with the extra 'bfloat16', "
            f"ml_dtypes.bfloat16"
        ) from None


def real_dtype(dtype: Dtype) -> Dtype:
    """Return the dtype of the real and imaginary parts of a complex dtype; any other dtype unchanged."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


_default = np.dtype(np.float32)


def default_dtype() -> np.dtype[Any]:
    """Return the dtype of tensors made from Python floats: float32 unless `set_default_dtype` changed it.

    >>> import flnb
    >>> flnb.default_dtype()
    dtype('float32')
    """
    return _default


def set_default_dtype(dtype: Any) -> None:
    """Set the dtype of tensors made from Python floats and of ``zeros``, ``ones`` and the random functions.

    Raises:
        TypeError: a dtype that is not floating point.

    >>> import flnb
    >>> flnb.set_default_dtype(flnb.float64)
    >>> flnb.asarray([0.5]).dtype
    dtype('float64')
    >>> flnb.set_default_dtype(flnb.float32)
    """
    global _default
    chosen = dtype_of(dtype)
    if chosen.kind != "f":
        raise TypeError(f"set_default_dtype: expected a floating-point dtype, got {chosen.name}")
    _default = chosen


def complex_dtype() -> np.dtype[Any]:
    """Return the dtype of tensors made from Python complex numbers: complex64, or complex128 with default float64."""
    return np.result_type(_default, np.complex64)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is floating point (bfloat16 included) or complex."""
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def are_positions(values: np.ndarray[Any, Any], n: int) -> bool:
    """Return whether all integers of an array are in range(n).

    >>> import numpy as np
    >>> are_positions(np.array([0, 2]), 3), are_positions(np.array([0, -1]), 3)
    (True, False)
    """
    if not values.size:
        return True
    unsigned = values.view(_UNSIGNED[values.dtype])  # negative numbers become larger than any position
    return bool(unsigned.item(unsigned.argmax()) < n)  # `argmax` takes a third of the time of a maximum


def common_dtype(dtypes: Sequence[np.dtype[Any]], scalars: Sequence[type] = ()) -> np.dtype[Any]:
    """Return the dtype in which an op computes, given its tensors' dtypes and its Python scalars' types."""
    floats = [d for d in dtypes if is_float(d)]
    result = np.result_type(*(floats or dtypes)) if dtypes else np.dtype(bool)
    if complex in scalars and result.kind != "c":
        return np.result_type(result if is_float(result) else _default, np.complex64)
    if float in scalars and not is_float(result):
        return _default
    return np.dtype(np.int64) if int in scalars and result.kind == "b" else result
