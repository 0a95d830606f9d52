"""The crossing's accounts of one memory manager."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flnb.interface.memory import Block

__all__ = ["Ledger"]


class Ledger:
    """The crossing's accounts of a manager: sums, live blocks, and which thread is inside.

    As a context manager it admits one thread at a time. A real lock costs more than an allocation's bookkeeping, so the
    first thread only marks that it is inside; the lock begins when a second thread arrives and waits for it.
    """

    __slots__ = ("allocated", "allocs", "busy", "live", "lock", "owner", "peak", "shared")

    def __init__(self) -> None:
        self.allocs = self.allocated = self.peak = 0
        self.live: dict[int, Block] = {}
        self.owner = threading.get_ident()
        self.busy = False  # the first thread is inside without the lock
        self.shared = False
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        first = threading.get_ident() == self.owner
        if first and self.busy:
            return
        self.lock.acquire()
        if not first:
            self.shared = True
            while self.busy:
                time.sleep(0)

    def __exit__(self, *exc: object) -> None:
        if not (self.busy and threading.get_ident() == self.owner):
            self.lock.release()
