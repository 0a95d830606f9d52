"""Max pooling as machine code: the maxima of windows, and the gradient from the images or from places of the maxima."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from flnb.graph.emitter import Scalar, select
from flnb_backends.native.instructions import Code

if TYPE_CHECKING:
    from collections.abc import Iterator

NOWHERE = 255
"""The place that is stored for a window with NaN, whose gradient is added to no element."""
MOST = 121
"""The largest number of elements of a window. Each element has instructions of its own, which compile in 1 ms."""


class Windows(NamedTuple):
    """The windows of a max pooling, and the LLVM IR of functions that pool contiguous images.

    A place is the number of an element in its window, in row-major order, as a byte. Of several equal maxima the first
    counts. The last parameters of a function are the number of planes (channels of images), and the extents that are
    not known.

    Attributes:
        dtype: the dtype of images and maxima, as NumPy's character: "f" or "d".
        kernel: the extents of a window.
        stride: the distances between the first elements of neighbouring windows, along each axis.
        image: the extents of a plane: numbers, or names such as ``%width``, which become parameters.
        fit: the number of windows along each axis, also numbers or names.
        places: whether `maxima` writes places, too, and `spread` reads these instead of images.
    """

    dtype: str
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    image: tuple[int | str, ...]
    fit: tuple[int | str, ...]
    places: bool

    def maxima(self) -> str:
        """Return the IR of ``void pool(x, y, ...)``, which writes the maxima of images x to y.

        With `places`, the function is ``void pool(x, y, places, ...)`` and also writes the maxima's places.
        """
        code = self._code("%x", "%y", *["%places"] * self.places)
        with self._over_windows(code, parallel=True) as (window, start):
            top, place = self._largest(code, start)
            code.store(top, code.element("%y", self.dtype, window))
            if self.places:
                code.store(place.make("convert", dtype="B"), code.element("%places", "B", window))
        return code.text()

    def spread(self) -> str:
        """Return the IR of ``void pool(g, x, out, ...)``, which writes the gradient of the images to ``out``.

        ``g`` is the gradient of the maxima; x has the images or the places. Where windows overlap, their gradients are
        added in row-major order.
        """
        code = self._code("%g", "%x", "%out")
        nothing = Scalar(code, code.constant(0, self.dtype), self.dtype)
        offsets, apart = self._offsets(code), self.kernel == self.stride and not self.places
        table = "" if apart else code.name()
        if table:  # distances by place
            code.variables.append(f"{table} = alloca [{NOWHERE + 1} x i64]")
            for i, offset in [(NOWHERE, "0"), *enumerate(offsets)]:
                code.store(Scalar(code, offset, "q"), code.element(table, "q", str(i)))
        with self._over_windows(code, parallel=apart, zeroed="%out") as (window, start):
            if self.places:
                top = place = code.load("B", code.element("%x", "B", window))
            else:
                top, place = self._largest(code, start)
            # two equal tests, each where LLVM generates quicker code from it: a fifth, and two thirds, of the time less
            nowhere = place.equal(NOWHERE) if apart or self.places else top.not_equal(top)
            g = select(nowhere, nothing, code.load(self.dtype, code.element("%g", self.dtype, window)))
            image = code.element("%out", self.dtype, start)
            if apart:  # each element is written, for which vectors can be used
                for i, offset in enumerate(offsets):
                    code.store(select(place.equal(i), g, nothing), code.element(image, self.dtype, offset))
            else:
                offset = code.load("q", code.element(table, "q", str(place.make("convert", dtype="Q").value))).value
                here = code.element(image, self.dtype, str(offset))
                code.store(code.load(self.dtype, here) + g, here)
        return code.text()

    def _code(self, *arrays: str) -> Code:
        """Return the code of a function with the given arrays as parameters, to which instructions can be added."""
        unknown = [f"i64 {n}" for n in (*self.image, *self.fit) if isinstance(n, str)]
        return Code("pool", ", ".join([*[f"ptr {x}" for x in arrays], "i64 %planes", *unknown]))

    def _offsets(self, code: Code) -> list[str]:
        """Emit, for each element of a window, its distance in memory from the first element; returns the distances."""
        found = []
        for index in itertools.product(*map(range, self.kernel)):
            offset = str(index[0])
            for i, extent in zip(index[1:], self.image[1:], strict=True):
                offset = _plus(code, offset, extent, str(i))
            found.append(offset)
        return found

    def _largest(self, code: Code, start: str) -> tuple[Scalar, Scalar]:
        """Emit the search in the window that begins at the index ``start``; returns the maximum and its place."""
        found: list[Scalar] = []
        for i, offset in enumerate(self._offsets(code)):
            x = code.load(self.dtype, code.element(code.element("%x", self.dtype, start), self.dtype, offset))
            own = [x, select(x.not_equal(x), Scalar(code, str(NOWHERE), "i"), Scalar(code, str(i), "i"))]
            larger = (x > found[0]) | x.not_equal(x) if found else None
            found = own if larger is None else [select(larger, a, b) for a, b in zip(own, found, strict=True)]
        return found[0], found[1]

    @contextmanager
    def _over_windows(self, code: Code, parallel: bool, zeroed: str = "") -> Iterator[tuple[str, str]]:
        """Emit loops over all windows; yields a window's number, and the index of its first element.

        With ``parallel``, the windows of a row may be computed in any order. Each plane of the array ``zeroed`` is set
        to zero before its windows.
        """
        with ExitStack() as loops:
            window = start = loops.enter_context(code.loop("0", "%planes"))
            if zeroed:
                nothing, size = Scalar(code, code.constant(0, self.dtype), self.dtype), "1"
                for extent in self.image:
                    size = _plus(code, size, extent)
                plane = code.element(zeroed, self.dtype, _plus(code, start, size))
                with code.loop("0", size, parallel=True, brief=True) as index:
                    code.store(nothing, code.element(plane, self.dtype, index))
            for axis, (extent, fit, step) in enumerate(zip(self.image, self.fit, self.stride, strict=True), 1):
                index = loops.enter_context(code.loop("0", str(fit), parallel=parallel and axis == len(self.fit)))
                window = _plus(code, window, fit, index)
                start = _plus(code, start, extent, _plus(code, index, step))
            yield window, start


def _plus(code: Code, whole: str, extent: int | str, part: str = "0") -> str:
    """Emit ``whole * extent + part``; returns the sum."""
    return code.add(f"add nsw i64 {code.add(f'mul nsw i64 {whole}, {extent}')}, {part}")
