"""Dtypes: their names, the default one, and the dtype that an op on several computes in.

Promotion (array API 2024.12, and torch's choice where it leaves one): Python scalars are weak; of two dtypes of one
kind the larger wins; mixed with floating point, the floating dtype wins, so int64 with float32 is float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.brief import brief

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DTYPES", "KINDS", "common_dtype", "complex_dtype", "default_dtype", "dtype_of", "is_float", "real_dtype",
    "set_default_dtype",
]  # fmt: skip

Dtype = np.dtype[Any]

KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float16", "float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
DTYPES: dict[str, Dtype] = {name: np.dtype(name) for names in KINDS.values() for name in names}
"""Every dtype by its name. Each is a NumPy dtype."""

KINDS["integral"] = KINDS["signed integer"] + KINDS["unsigned integer"]
KINDS["numeric"] = KINDS["integral"] + KINDS["real floating"] + KINDS["complex floating"]


def dtype_of(given: Any) -> Dtype:
    """The dtype that a name, a type or a dtype means.

    Raises:
        TypeError: none of those.
    """
    try:
        return np.dtype(given)  # type: ignore[no-any-return]
    except TypeError:
        from difflib import get_close_matches  # 5 ms

        near = get_close_matches(brief(given).strip("'").split(".")[-1], DTYPES, 1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise TypeError(
            f"{brief(given)} is no dtype; {meant}known are {', '.join(DTYPES)} and, with the extra 'bfloat16', "
            f"ml_dtypes.bfloat16"
        ) from None


def real_dtype(dtype: Dtype) -> Dtype:
    """The dtype of the parts of complex numbers; any other dtype as it is."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


_default = np.dtype(np.float32)


def default_dtype() -> np.dtype[Any]:
    """The dtype of tensors made from Python floats: float32 unless `set_default_dtype` changed it.

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
    """The dtype of tensors made from Python complex numbers: parts of the default dtype, complex64 for float32."""
    return np.result_type(_default, np.complex64)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Floating point or complex, bfloat16 included."""
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def common_dtype(dtypes: Sequence[np.dtype[Any]], scalars: Sequence[type] = ()) -> np.dtype[Any]:
    """The dtype an op computes in, from its tensors' dtypes and the types of its Python scalars."""
    floats = [d for d in dtypes if is_float(d)]
    result = np.result_type(*(floats or dtypes)) if dtypes else np.dtype(bool)
    if complex in scalars and result.kind != "c":
        return np.result_type(result if is_float(result) else _default, np.complex64)
    if float in scalars and not is_float(result):
        return _default
    return np.dtype(np.int64) if int in scalars and result.kind == "b" else result
