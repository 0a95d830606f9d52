"""Max pooling of images of any size by machine code; the kernel's extents and the stride are constants in it.

The results are NumPy's: of equal maxima the first counts, and a window with NaN has NaN and no gradient.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_backends.native.llvm import function
from flnb_backends.native.preparation import prepares
from flnb_backends.native.windows import MOST, Windows

if TYPE_CHECKING:
    from flnb_backends.native.llvm import Function

Extents = tuple[int, ...]
IMAGE, FIT = ("%height", "%width"), ("%rows", "%columns")
"""The names of the functions' parameters with the extents of a plane (a channel of an image), and with the numbers of
windows along its axes."""


@lru_cache(None)
def _function(name: str, dtype: str, kernel: Extents, stride: Extents) -> Function | None:
    """Compile the function ``name`` of `Windows` ("maxima" or "spread") for images of any size.

    Return None without llvmlite or cffi, or for windows of more than `MOST` elements.
    """
    if math.prod(kernel) > MOST:
        return None
    windows = Windows(dtype, kernel, stride, IMAGE, FIT, places=False)
    types = ", ".join([*["void *"] * (2 if name == "maxima" else 3), *["int64_t"] * 5])
    return function("pool", f"void (*)({types})", f"{name} {windows!r}", getattr(windows, name))


class _Call(NamedTuple):
    """A compiled function, with the arguments of a call for images of a certain shape.

    Attributes:
        function: the compiled function. It takes pointers to its arrays, and then ``extents``.
        pointer: a function that returns the pointer to an array.
        extents: the number of planes, and the values of `IMAGE` and `FIT`.
        pooled: the shape of the array of maxima.
    """

    function: Any
    pointer: Any
    extents: Extents
    pooled: Extents


@lru_cache(1024)
@prepares
def _call(name: str, shape: Extents, dtype: np.dtype[Any], kernel: Extents, stride: Extents) -> _Call | None:
    """Return the compiled function for images of the given shape; None if there is no machine code for them.

    ``name`` is "maxima" or "spread"; ``kernel`` and ``stride`` are those of the pooling.
    """
    if len(shape) != 4 or any(n < k for n, k in zip(shape[2:], kernel, strict=True)):
        return None
    if dtype.char not in "fd" or not dtype.isnative or not math.prod(shape):
        return None
    found = _function(name, dtype.char, kernel, stride)
    if found is None:
        return None
    fit = tuple([(n - k) // s + 1 for n, k, s in zip(shape[2:], kernel, stride, strict=True)])
    return _Call(*found, (shape[0] * shape[1], *shape[2:], *fit), (*shape[:2], *fit))


def maxima(x: Any, kernel: Extents, stride: Extents, out: Any = None) -> Any:
    """Return the maxima of the windows of images x (N, C, H, W).

    They are written to ``out`` if that is given. Returns None if NumPy must compute them.
    """
    call = _call("maxima", x.shape, x.dtype, kernel, stride)
    if call is None:
        return None
    y = np.empty(call.pooled, x.dtype) if out is None else out
    return y if _run(call, x.dtype, (x,), y) else None


def spread(g: Any, x: Any, kernel: Extents, stride: Extents, out: Any = None) -> Any:
    """Return the gradient with respect to images x (N, C, H, W), given the gradient ``g`` of the maxima.

    It is written to ``out`` if that is given. Returns None if NumPy must compute it.
    """
    call = _call("spread", x.shape, x.dtype, kernel, stride)
    if call is None or g.shape != call.pooled:
        return None
    y = np.empty(x.shape, x.dtype) if out is None else out
    return y if _run(call, x.dtype, (g, x), y) else None


def _run(call: _Call, dtype: np.dtype[Any], inputs: tuple[Any, ...], out: Any) -> bool:
    """Call the compiled function, and return True; return False if it does not accept these arrays.

    The arrays must be contiguous, aligned and of the dtype ``dtype``, and ``out`` must not overlap an input.
    """
    arrays = *inputs, out
    if any(x.dtype != dtype or not x.flags.aligned for x in arrays):
        return False
    try:
        pointers = [call.pointer(x) for x in arrays]
    except ValueError:  # not contiguous
        return False
    last = pointers[-1]
    if any(x + len(x) > last and last + len(last) > x for x in pointers[:-1]):
        return False
    call.function(*pointers, *call.extents)
    return True
