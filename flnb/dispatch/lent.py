"""Scratch memory that a program lends to the backend method it calls: a part of its block that is free just then."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["here"]

GRAIN = 64
"""Pieces begin at multiples of this many bytes, which is the size of a processor's cache line."""


class Lent(threading.local):
    """The scratch memory of the method call that runs in this thread.

    Attributes:
        memory: an array of bytes, None if none is lent.
        used: the bytes that the call has asked for until now, also those that it did not get here.
    """

    memory: Any = None
    used = 0

    def take(self, nbytes: int) -> Any:
        """Return ``nbytes`` bytes of the lent memory as an array; None if they do not fit.

        >>> import numpy as np
        >>> lent = Lent()
        >>> lent.memory = np.empty(100, np.uint8)
        >>> lent.take(80).size, lent.take(80), lent.used
        (80, None, 256)
        """
        begin = self.used
        self.used = begin + nbytes + -nbytes % GRAIN
        if self.memory is None or begin + nbytes > self.memory.size:
            return None
        return self.memory[begin : begin + nbytes]


here = Lent()
"""The scratch memory lent in the present thread."""
