"""A memory device with addresses but no memory, to check managers or replay traces of any capacity."""

from __future__ import annotations

from typing import ClassVar

from flnb.interface.memory import MemoryDevice, Segment


class SimulatedDevice(MemoryDevice):
    """A device whose segments are unique ranges of addresses without memory behind them.

    Args:
        capacity: the largest number of bytes in segments, or a string such as ``"80GiB"``; None for no limit.
        granularity: sizes of segments are multiples of this many bytes: on GPUs 512, on hosts 4096.

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
        """Return a segment of new addresses, aligned to 2 MiB, with a gap behind it."""
        return self._range(nbytes, nbytes)

    def reserve_growing(self, nbytes: int) -> Segment:
        """Return a segment that can grow to the device's capacity, or to 1 TiB if the capacity is not limited."""
        return self._range(nbytes, max(nbytes, self.capacity or 1 << 40))

    def resize(self, segment: Segment, nbytes: int) -> bool:
        """Return whether a segment can be resized to ``nbytes`` bytes within the addresses reserved for it."""
        return bool(nbytes <= segment.handle)

    def _range(self, nbytes: int, room: int) -> Segment:
        """Return a segment of ``nbytes`` bytes with new addresses for ``room`` bytes."""
        address = self._next
        self._next += (room // (2 << 20) + 2) * (2 << 20)
        return Segment(address, nbytes, room, self)

    def release(self, segment: Segment) -> None:
        """Do nothing: released addresses are never used again."""
