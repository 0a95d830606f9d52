"""The memory of a CUDA device, for every memory manager, and the order in which its streams may use a block."""

from __future__ import annotations

from bisect import bisect_right, insort
from threading import Lock
from typing import TYPE_CHECKING, ClassVar

from flnb.interface.memory import MemoryDevice, OutOfMemoryError, Segment
from flnb_backends.tensor.cuda.driver import Driver, DriverError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CudaDevice", "StreamOrder"]


class CudaDevice(MemoryDevice):
    """A CUDA device's memory, by the driver API. The host cannot read or write it.

    Args:
        capacity: bytes or a text with a unit; by default all of the device's memory.
        driver: the driver API, by default that of this machine's GPUs.
        ordinal: which of its devices.

    Raises:
        OSError: there is no NVIDIA driver.
    """

    name: ClassVar[str] = "cuda"
    addressable: ClassVar[bool] = False
    granularity = 512

    def __init__(self, capacity: int | str | None = None, driver: Driver | None = None, ordinal: int = 0) -> None:
        self.driver, self.ordinal, self.place = driver or Driver(), ordinal, f"cuda:{ordinal}"
        with self.driver.using(ordinal):
            total = self.driver.memory().total
        super().__init__(total if capacity is None else capacity)

    def reserve(self, nbytes: int) -> Segment:
        """Allocate a segment."""
        try:
            with self.driver.using(self.ordinal):
                return Segment(self.driver.allocate(nbytes), nbytes, device=self)
        except DriverError as error:
            if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            raise OutOfMemoryError(f"cuda: {error}", request=nbytes) from error

    def release(self, segment: Segment) -> None:
        """Free a segment, which waits for all work of the device."""
        with self.driver.using(self.ordinal):
            self.driver.free(segment.address)


class StreamOrder:
    """Makes the stream that gets a block wait for the streams that used it before, whatever the manager.

    Managers know nothing of streams. Free memory remembers in which streams it was used; a stream that gets a part of
    it waits for these by an event, on the device. The host waits for nothing; within one stream nothing is recorded.

    Args:
        driver: the driver API.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._free: list[tuple[int, int, frozenset[int]]] = []  # begin, end, streams; in order, without overlaps
        self._lock = Lock()

    def freed(self, address: int, nbytes: int, streams: Iterable[int]) -> None:
        """Note that a block is free, which these streams have used; before the manager gets it back."""
        with self._lock:
            self._cut(address, address + nbytes)
            insort(self._free, (address, address + nbytes, frozenset(streams)))

    def given(self, address: int, nbytes: int, stream: int) -> None:
        """Let a stream wait for all others that have used memory which it gets now."""
        with self._lock:
            others = set[int]().union(*self._cut(address, address + nbytes)) - {stream}
        for other in sorted(others):
            event = self._driver.event()
            self._driver.record(event, other)  # after all that it does by now, the use of this memory included
            self._driver.wait_event(stream, event)
            self._driver.destroy_event(event)  # as documented, once it has happened

    def _cut(self, begin: int, end: int) -> list[frozenset[int]]:
        """Forget a range of addresses; returns the streams of each part of it."""
        free = self._free
        at = bisect_right(free, begin, key=lambda part: part[0])
        at -= at > 0 and free[at - 1][1] > begin
        found, rest = [], []
        last = at
        while last < len(free) and free[last][0] < end:
            first, beyond, streams = free[last]
            found.append(streams)
            rest += [(first, begin, streams)] if first < begin else []
            rest += [(end, beyond, streams)] if beyond > end else []
            last += 1
        free[at:last] = rest
        return found
