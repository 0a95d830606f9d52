"""Scratch memory for backend methods in programs: a part of the program's block that is unused at that time."""

from __future__ import annotations

import threading
from typing import Any

GRAIN = 64
"""Pieces begin at multiples of this many bytes, which is the size of a processor's cache line."""


class Lent(threading.local):
    """The scratch memory of the method call that runs in this thread.

    Attributes:
        memory: an array of bytes; None if there is no scratch memory.
        used: the bytes that the call has requested so far, including requests that did not fit.
    """

    memory: Any = None
    used = 0

    def take(self, nbytes: int) -> Any:
        """Return ``nbytes`` bytes of the scratch memory as an array; None if they do not fit.

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
"""The scratch memory of the present thread."""
