"""The crossing's accounts of one memory manager."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.interface.memory import Block

__all__ = ["Ledger"]


class Ledger:
    """The crossing's accounts of a manager: sums, live blocks by id, and the lock that admits one thread at a time."""

    drain: ClassVar[Callable[[Block | None], None]]
    """Hands back every block whose array is gone: `flnb.dispatch.memory.drain`, which puts itself here."""

    __slots__ = ("allocated", "allocs", "live", "lock", "peak")

    def __init__(self) -> None:
        self.allocs = self.allocated = self.peak = 0
        self.live: dict[int, Block] = {}
        self.lock = threading.RLock()
