"""The host's memory as a memory device: segments are mapped directly from the operating system."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import ClassVar

from flnb.interface.memory import MemoryDevice, OutOfMemoryError, Segment, in_words

HUGE_PAGE = 2 << 20
NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0)  # of Python 3.13


class HostDevice(MemoryDevice):
    """The host's memory: each segment is a private, anonymous memory map.

    Maps are private, so that a forked child process cannot write into its parent's tensors. Maps of 2 MiB or more are
    aligned to 2 MiB and use huge pages if the operating system provides them.

    Args:
        capacity: the largest number of bytes to use, or a string such as ``"8GiB"``; by default the memory of the
            machine or of the container in which the process runs.
    """

    name: ClassVar[str] = "host"
    location = "host"
    min_block: ClassVar[int] = 1024

    def __init__(self, capacity: int | str | None = None) -> None:
        super().__init__(_machine_memory() if capacity is None else capacity)

    def reserve(self, nbytes: int) -> Segment:
        """Map a segment of ``nbytes`` bytes of zeros."""
        return self._map(nbytes, nbytes)

    def reserve_growing(self, nbytes: int) -> Segment:
        """Map a segment of ``nbytes`` bytes, followed by unused addresses up to the capacity, for growth.

        Pages that are never written take no memory.
        """
        try:
            return self._map(nbytes, max(nbytes, min(self.capacity or 0, _machine_memory() - HUGE_PAGE)))
        except OutOfMemoryError:  # systems that count addresses as memory
            return self._map(nbytes, nbytes)

    def resize(self, segment: Segment, nbytes: int) -> bool:
        """Return whether a segment can have ``nbytes`` bytes from now on; if it shrinks, free the memory at its end."""
        slab, anchor = segment.handle
        offset = segment.address - ctypes.addressof(anchor)
        if nbytes > len(slab) - offset:
            return False
        if nbytes < segment.size:
            slab.madvise(mmap.MADV_DONTNEED, offset + nbytes, segment.size - nbytes)
        return True

    def _map(self, nbytes: int, room: int) -> Segment:
        """Map a segment of ``nbytes`` bytes, which can later grow to ``room`` bytes."""
        huge = room >= HUGE_PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (NO_RESERVE if room > nbytes else 0)
        try:
            slab = mmap.mmap(-1, room + HUGE_PAGE * huge, flags=flags)
        except (OSError, OverflowError) as error:
            raise OutOfMemoryError(
                f"host: the operating system refuses {in_words(room)} ({error})", request=nbytes
            ) from error
        anchor = ctypes.c_char.from_buffer(slab)
        address = ctypes.addressof(anchor)
        if huge:
            offset = -address % HUGE_PAGE
            address += offset
            if hasattr(mmap, "MADV_HUGEPAGE"):
                slab.madvise(mmap.MADV_HUGEPAGE, offset, room)
        return Segment(address, nbytes, (slab, anchor), self)

    def release(self, segment: Segment) -> None:
        """Unmap a segment."""
        slab, anchor = segment.handle
        segment.handle = None
        del anchor
        slab.close()


def _machine_memory() -> int:
    """Return the bytes of physical memory, or the limit of the process's control group (container) if that is lower."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no control group, or "max"
        return total
