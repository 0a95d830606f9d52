"""Max pooling as machine code: the maxima of windows with their positions, and the gradient from these positions."""

from __future__ import annotations

import itertools
import math
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from flnb.graph.emitter import Scalar, select
from flnb_backends.native.instructions import Code

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MOST", "NOWHERE", "Windows"]

NOWHERE = 255
"""The position of the maximum in a window with NaN, whose gradient goes nowhere."""
MOST = 121
"""The largest window, in elements; each has instructions of its own, which are compiled in 1 ms."""
WIDTH = 256
"""The bits of the widest vectors to use."""


class Windows(NamedTuple):
    """The windows of a max pooling, and the LLVM IR of functions that pool contiguous images.

    A position is the number of an element in its window, in row-major order, as a byte. Of several equal maxima the
    first counts.

    Attributes:
        dtype: the dtype of images and maxima, as NumPy's character: "f" or "d".
        image: the extents of an image, or of one channel of it (a plane).
        fit: the number of windows along each axis.
        kernel: the extents of a window.
        stride: the distances between windows.
    """

    dtype: str
    image: tuple[int, ...]
    fit: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def offsets(self) -> list[int]:
        """Return for each element of a window its distance in memory from the window's first element, in elements."""
        return [self._distance(index) for index in itertools.product(*map(range, self.kernel))]

    def find(self) -> str:
        """Return the IR of ``void find(x, y, positions, planes)``, which writes maxima to y, and their positions."""
        code = Code("find", "ptr %x, ptr %y, ptr %positions, i64 %planes", WIDTH)
        with self._over_planes(code) as (plane, first), self._over_windows(code, plane, first) as (window, start):
            top, position = Scalar(code, "", self.dtype), Scalar(code, "", "i")
            for i, offset in enumerate(self.offsets):
                x = code.load(self.dtype, code.element(code.element("%x", self.dtype, start), self.dtype, str(offset)))
                own = select(x.not_equal(x), Scalar(code, str(NOWHERE), "i"), Scalar(code, str(i), "i"))
                taken = (x > top) | x.not_equal(x) if i else x.equal(x) | x.not_equal(x)
                top = select(taken, x, top) if i else x
                position = select(taken, own, position) if i else own
            code.store(top, code.element("%y", self.dtype, window))
            code.store(position.make("convert", dtype="B"), code.element("%positions", "B", window))
        return code.text()

    def spread(self) -> str:
        """Return the IR of ``void spread(g, positions, out, planes)``, which writes the gradient of the images.

        ``g`` is the gradient of the maxima. Where windows overlap, their gradients are added in row-major order.
        """
        code = Code("spread", "ptr %g, ptr %positions, ptr %out, i64 %planes", WIDTH)
        table = [*self.offsets, *[0] * (NOWHERE + 1 - math.prod(self.kernel))]
        words = ", ".join(f"i64 {offset}" for offset in table)
        code.declarations.add(f"@offsets = private unnamed_addr constant [{len(table)} x i64] [{words}]")
        nothing = Scalar(code, code.constant(0, self.dtype), self.dtype)
        with self._over_planes(code) as (plane, first):
            image = code.element("%out", self.dtype, first)
            with code.loop("0", str(math.prod(self.image)), parallel=True, brief=True) as index:
                code.store(nothing, code.element(image, self.dtype, index))
            with self._over_windows(code, plane, first, ordered=True) as (window, start):
                position = code.load("B", code.element("%positions", "B", window))
                offset = code.load("q", code.element("@offsets", "q", str(position.make("convert", dtype="Q").value)))
                to = code.element(code.element("%out", self.dtype, start), self.dtype, str(offset.value))
                g = code.load(self.dtype, code.element("%g", self.dtype, window))
                code.store(code.load(self.dtype, to) + select(position.equal(NOWHERE), nothing, g), to)
        return code.text()

    def _distance(self, index: tuple[int, ...]) -> int:
        """Return the distance in memory, in elements, between an image's first element and the one at an index."""
        return sum(i * math.prod(self.image[axis + 1 :]) for axis, i in enumerate(index))

    @contextmanager
    def _over_planes(self, code: Code) -> Iterator[tuple[str, str]]:
        """Emit a loop over the planes; yields a plane's number, and the index of its first element."""
        with code.loop("0", "%planes") as plane:
            yield plane, code.add(f"mul nsw i64 {plane}, {math.prod(self.image)}")

    @contextmanager
    def _over_windows(self, code: Code, plane: str, first: str, ordered: bool = False) -> Iterator[tuple[str, str]]:
        """Emit loops over a plane's windows; yields a window's number, and the index of its first element.

        Unless ``ordered``, the windows of a row may be computed in any order.
        """
        window, start = code.add(f"mul nsw i64 {plane}, {math.prod(self.fit)}"), first
        with ExitStack() as loops:
            for axis, n in enumerate(self.fit):
                inner = axis == len(self.fit) - 1
                index = loops.enter_context(code.loop("0", str(n), parallel=inner and not ordered))
                steps = math.prod(self.fit[axis + 1 :]), self._distance((0,) * axis + (self.stride[axis],))
                further = [code.add(f"mul nsw i64 {index}, {step}") for step in steps]
                window = code.add(f"add nsw i64 {window}, {further[0]}")
                start = code.add(f"add nsw i64 {start}, {further[1]}")
            yield window, start
