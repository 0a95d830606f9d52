"""Addresses without memory, of any capacity: to check a manager, or to replay a trace of a machine that is not here."""

from __future__ import annotations

from typing import ClassVar

from flnb.interface.memory import MemoryDevice, Segment

__all__ = ["SimulatedDevice"]


class SimulatedDevice(MemoryDevice):
    """Lends out ranges of addresses that are never used twice; nothing can be stored there.

    Args:
        capacity: bytes or a text with a unit; None for no limit.
        granularity: sizes of segments are multiples of this; a GPU's 512 bytes, a host's 4096.

    >>> import flnb
    >>> device = flnb.memory.SimulatedDevice("80GiB")
    >>> manager = flnb.memory.Caching(device)
    >>> block = flnb.memory.allocate(manager, 60 << 30)
    >>> flnb.memory.release(manager, block)
    >>> manager.stats()["peak_allocated"] >> 30
    60
    """

    name: ClassVar[str] = "simulated"
    addressable: ClassVar[bool] = False

    def __init__(self, capacity: int | str | None = None, granularity: int = 512) -> None:
        super().__init__(capacity)
        self.granularity = granularity
        self._next = 1 << 40

    def reserve(self, nbytes: int) -> Segment:
        """A fresh range, aligned to 2 MiB, with a gap behind it."""
        return self._range(nbytes, nbytes)

    def reserve_growing(self, nbytes: int) -> Segment:
        """A fresh range that can grow to the device's capacity, or to 1 TiB where it has none."""
        return self._range(nbytes, max(nbytes, self.capacity or 1 << 40))

    def resize(self, segment: Segment, nbytes: int) -> bool:
        """Whether the addresses behind it are free."""
        return bool(nbytes <= segment.handle)

    def _range(self, nbytes: int, room: int) -> Segment:
        address = self._next
        self._next += (room // (2 << 20) + 2) * (2 << 20)
        return Segment(address, nbytes, room, self)

    def release(self, segment: Segment) -> None:
        """Nothing to do."""
