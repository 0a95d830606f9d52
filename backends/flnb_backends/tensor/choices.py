"""The backend "cpu" remembers the fastest way to compute an op on given shapes, and caches oneDNN's primitives."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

KEPT = 1024
"""The largest number of prepared primitives that a thread caches, one for each combination of shapes."""


class Shapes(NamedTuple):
    """The shapes, layouts and settings for which a fastest way to compute was chosen.

    Objects of this class are the keys of `flnb_backends.tensor.cpu.CpuBackend.choices`.

    Attributes:
        op: the name of the op, one of `flnb_backends.native.primitives.WAYS`.
        operands: for each operand and the result, the shape and the strides in elements. For a matrix, instead of
            these, the bit length of each extent and the contiguous axis, so that similar sizes share a choice.
        attributes: the op's attributes, such as stride, padding, dilation and groups of a convolution.
        threads: how many threads oneDNN uses.
    """

    op: str
    operands: tuple[Any, ...]
    attributes: tuple[Any, ...]
    threads: int


class Choice(NamedTuple):
    """The fastest implementation measured for some shapes.

    Attributes:
        way: the name of the fastest way to compute, one of `flnb_backends.tensor.cpu.EVERY_WAY`.
        implementation: oneDNN's name for the code that it uses; "" for NumPy.
        seconds: the time of each way that was tried, in seconds.
    """

    way: str
    implementation: str
    seconds: dict[str, float]


class Here(threading.local):
    """A cache with the most recently used oneDNN primitives of one thread, at most `KEPT`.

    Threads cannot share a primitive, because it stores the addresses of the arrays on which it runs.
    """

    def __init__(self) -> None:
        self.ready: OrderedDict[Any, Any] = OrderedDict()

    def find(self, key: Any) -> Any:
        """Return the value stored under a key; None if there is none.

        If the cache is more than half full, the value is marked as the most recently used one.
        """
        found = self.ready.get(key)
        if found is not None and len(self.ready) > KEPT // 2:
            self.ready.move_to_end(key)
        return found

    def keep(self, key: Any, value: Any) -> Any:
        """Store a value under a key and return the value; a full cache drops its least recently used value."""
        self.ready[key] = value
        if len(self.ready) > KEPT:
            self.ready.popitem(last=False)
        return value
