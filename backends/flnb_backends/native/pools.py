"""Max pooling of images of any size as machine code; the kernel's extents and the stride are constants in it.

The results are NumPy's: of equal maxima the first counts, and a window with NaN has NaN and no gradient.
"""

from __future__ import annotations

import itertools
import math
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb.graph.emitter import Scalar, select
from flnb_backends.native.instructions import Code
from flnb_backends.native.llvm import compiler
from flnb_backends.native.preparation import prepares
from flnb_backends.native.windows import MOST, WIDTH

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Pool", "maxima", "spread"]

Extents = tuple[int, ...]
PARAMETERS = "i64 %planes, i64 %height, i64 %width, i64 %rows, i64 %columns"
"""The parameters after the pointers: number, height and width of planes (channels), and rows and columns of windows."""


class Pool(NamedTuple):
    """The windows of a max pooling of images, and the LLVM IR of functions that pool contiguous images.

    Attributes:
        dtype: the dtype of images and maxima, as NumPy's character: "f" or "d".
        kernel: the height and width of a window.
        stride: the distances between windows.
    """

    dtype: str
    kernel: Extents
    stride: Extents

    def maxima(self) -> str:
        """Return the IR of ``void pool(x, y, ...)``, which writes the maxima to y."""
        code = Code("pool", f"ptr %x, ptr %y, {PARAMETERS}", WIDTH)
        with self._over_windows(code, parallel=True) as (window, start):
            top, _ = self._largest(code, start)
            code.store(top, code.element("%y", self.dtype, window))
        return code.text()

    def spread(self) -> str:
        """Return the IR of ``void pool(g, x, out, ...)``, which writes the gradient with respect to x to ``out``.

        The parameter ``g`` is the gradient with respect to the maxima.
        """
        code = Code("pool", f"ptr %g, ptr %x, ptr %out, {PARAMETERS}", WIDTH)
        size = code.add(f"mul nsw i64 %planes, {code.add('mul nsw i64 %height, %width')}")
        nothing = Scalar(code, code.constant(0, self.dtype), self.dtype)
        with code.loop("0", size, parallel=True, brief=True) as index:
            code.store(nothing, code.element("%out", self.dtype, index))
        apart = self.kernel == self.stride
        with self._over_windows(code, parallel=apart) as (window, start):
            top, place = self._largest(code, start)
            g = code.load(self.dtype, code.element("%g", self.dtype, window))
            g = select(top.not_equal(top), nothing, g)
            if apart:
                for offset in self._offsets(code):
                    here = code.element(code.element("%out", self.dtype, start), self.dtype, offset)
                    code.store(select(place.equal(Scalar(code, offset, "q")), g, nothing), here)
            else:
                here = code.element(code.element("%out", self.dtype, start), self.dtype, str(place.value))
                code.store(code.load(self.dtype, here) + g, here)
        return code.text()

    def _offsets(self, code: Code) -> list[str]:
        """Emit for each element of a window its distance from the window's first element; returns the distances."""
        rows = [code.add(f"mul nsw i64 %width, {i}") for i in range(self.kernel[0])]
        return [code.add(f"add nsw i64 {row}, {j}") for row, j in itertools.product(rows, range(self.kernel[1]))]

    def _largest(self, code: Code, start: str) -> tuple[Scalar, Scalar]:
        """Emit the search for the maximum of the window that begins at the index ``start``.

        Returns:
            The maximum, and its distance in memory from the window's first element.
        """
        found: list[Scalar] = []
        for offset in self._offsets(code):
            x = code.load(self.dtype, code.element(code.element("%x", self.dtype, start), self.dtype, offset))
            own = x, Scalar(code, offset, "q")
            larger = (x > found[0]) | x.not_equal(x) if found else None
            found = [select(larger, a, b) for a, b in zip(own, found, strict=True)] if larger is not None else [*own]
        return found[0], found[1]

    @contextmanager
    def _over_windows(self, code: Code, parallel: bool) -> Iterator[tuple[str, str]]:
        """Emit loops over all windows; yields a window's number, and the index of its first element.

        With ``parallel``, the windows of a row may be computed in any order.
        """

        def index(whole: str, extent: str, part: str, step: int = 1) -> str:
            further = code.add(f"mul nsw i64 {part}, {step}")
            return code.add(f"add nsw i64 {code.add(f'mul nsw i64 {whole}, {extent}')}, {further}")

        with code.loop("0", "%planes") as plane, code.loop("0", "%rows") as row:
            line = index(index(plane, "%height", row, self.stride[0]), "%width", "0")
            windows = index(index(plane, "%rows", row), "%columns", "0")
            with code.loop("0", "%columns", parallel=parallel) as column:
                yield code.add(f"add nsw i64 {windows}, {column}"), index(line, "1", column, self.stride[1])


@lru_cache(None)
def _function(name: str, pool: Pool) -> tuple[Any, Any] | None:
    """Compile the function ``name`` ("maxima" or "spread") of a `Pool`.

    Returns:
        The function, and another function that returns the pointer to an array. None without llvmlite or cffi, or for
        windows of more than `MOST` elements.
    """
    if find_spec("llvmlite") is None or find_spec("cffi") is None or math.prod(pool.kernel) > MOST:
        return None
    ffi: Any = import_module("_cffi_backend").FFI()
    address = compiler().address("pool", f"{name} {pool!r}", getattr(pool, name))
    pointers = "void *, " * (2 if name == "maxima" else 3)
    function = ffi.cast(f"void (*)({pointers}int64_t, int64_t, int64_t, int64_t, int64_t)", address)
    return function, ffi.from_buffer


class _Call(NamedTuple):
    """A compiled function, with the arguments of a call for images of a certain shape.

    Attributes:
        function: the compiled function. It takes pointers to its arrays, and then ``extents``.
        pointer: a function that returns the pointer to an array.
        extents: the values of `PARAMETERS`.
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
    found = _function(name, Pool(dtype.char, kernel, stride))
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

    They must be contiguous, aligned and of the dtype ``dtype``, and ``out`` must not overlap an input.
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
