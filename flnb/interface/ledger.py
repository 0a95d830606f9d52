"""The books the crossing keeps of one memory manager."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flnb.interface.memory import Block, Lease

__all__ = ["Ledger"]


class Ledger:
    """What the crossing keeps of a manager: sums, live blocks, user locks, and who is inside.

    As a context manager it admits one thread at a time. A real lock costs more than an allocation's bookkeeping, so
    the first thread only marks that it is inside; the lock begins when a second thread arrives and waits for it.
    """

    __slots__ = (
        *("allocated", "allocs", "frees", "live", "locked", "owners", "peak", "waiting"),
        *("busy", "lease", "lock", "owner", "shared"),
    )

    def __init__(self) -> None:
        self.allocs = self.frees = self.allocated = self.peak = 0
        self.live: dict[int, Block] = {}  # kept only for managers that have no `snapshot` of their own
        self.locked: dict[Block, int] = {}
        self.waiting: set[Block] = set()
        self.owners: dict[int, Any] = {}
        self.lease: Lease | None = None
        self.owner = threading.get_ident()
        self.busy = 0
        self.shared = False
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        mine = threading.get_ident() == self.owner
        if mine and (self.busy or not self.shared):
            self.busy += 1
            return
        self.lock.acquire()
        self.shared = True
        while self.busy and not mine:
            time.sleep(0)

    def __exit__(self, *exc: object) -> None:
        if self.busy and threading.get_ident() == self.owner:
            self.busy -= 1
        else:
            self.lock.release()
