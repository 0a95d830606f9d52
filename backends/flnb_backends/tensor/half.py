"""Half precision on NumPy: values are stored in float16 or bfloat16, and sums are computed in float32.

NumPy itself adds float16 numbers in float16 along all axes but the last, in `cumsum` and in `add.at`, so that 2048 + 1
is 2048. ml_dtypes always adds bfloat16 numbers in bfloat16, so that 256 + 1 is 256. Matrix products of both dtypes sum
in float32, but by a plain loop; a product of float32 copies by BLAS is much faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from flnb.dispatch.quiet import quiet

Array = np.ndarray[Any, Any]


def is_half(x: Any) -> bool:
    """Return whether an array is of float16 or bfloat16 (NumPy kind "V")."""
    return x.itemsize == 2 and x.dtype.kind not in "iu"


def single(x: Any) -> Any:
    """Cast a half-precision array to float32; return any other value unchanged."""
    return x.astype(np.float32) if isinstance(x, np.ndarray) and is_half(x) else x


@quiet
def rounded(values: Any, x: Array, out: Array | None) -> Array:
    """Round a float32 result to the half-precision dtype of x."""
    if out is None:
        return np.asarray(values).astype(x.dtype)
    np.copyto(out, values, casting="unsafe")
    return out


def in_single(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method ``(self, x, ..., out)`` to compute half-precision arrays in float32 and round once."""
    last = method.__code__.co_argcount - 3  # of the arguments before out

    @wraps(method)
    def run(self: Any, x: Array, *arguments: Any) -> Any:
        if not is_half(x):
            return method(self, x, *arguments)
        out = arguments[last] if len(arguments) > last else None
        return rounded(method(self, single(x), *map(single, arguments[:last])), x, out)

    return run
