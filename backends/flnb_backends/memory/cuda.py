"""CUDA device memory for every memory manager, and the synchronization of streams that reuse a block."""

from __future__ import annotations

from bisect import bisect_right, insort
from contextlib import suppress
from threading import Lock
from typing import ClassVar

from flnb.interface.memory import Block, MemoryDevice, OutOfMemoryError, Segment
from flnb_backends.tensor.cuda.driver import Driver, DriverError, default_driver


def location_of(ordinal: int) -> str:
    """Return the location string of a device by its number.

    >>> from flnb_backends.memory.cuda import location_of
    >>> location_of(1)
    'cuda:1'
    """
    return f"cuda:{ordinal}"


class Allocation:
    """A range of device memory, which is freed by `free` or when there is no reference to this object any more."""

    __slots__ = ("address", "driver", "ordinal")

    def __init__(self, driver: Driver, ordinal: int, address: int) -> None:
        self.driver, self.ordinal, self.address = driver, ordinal, address

    def free(self) -> None:
        """Free the memory, after waiting for all work on the device; does nothing the second time."""
        address, self.address = self.address, 0
        if address:
            with self.driver.using(self.ordinal):
                self.driver.free(address)

    def __del__(self) -> None:
        with suppress(DriverError):  # on a device that has failed
            self.free()


class CudaDevice(MemoryDevice):
    """The memory of a CUDA device, allocated through the driver API; the host cannot read or write it.

    Args:
        capacity: the largest number of bytes to use, or a string such as "8 GiB"; by default the device's whole memory.
        driver: the driver API, by default that of this machine's GPUs.
        ordinal: the device's number.

    Raises:
        RuntimeError: there is no NVIDIA driver, or it finds no device.
        DriverError: the driver has no device of that number.
    """

    name: ClassVar[str] = "cuda"
    order: EventOrder
    addressable: ClassVar[bool] = False
    granularity = 512

    def __init__(self, capacity: int | str | None = None, driver: Driver | None = None, ordinal: int = 0) -> None:
        self.driver, self.ordinal, self.location = driver or default_driver(), ordinal, location_of(ordinal)
        self.order = EventOrder(self.driver, ordinal)
        with self.driver.using(ordinal):
            total = self.driver.memory().total
        super().__init__(total if capacity is None else capacity)

    def reserve(self, nbytes: int) -> Segment:
        """Allocate a segment of ``nbytes`` bytes.

        Raises:
            OutOfMemoryError: the device has not enough free memory.
        """
        try:
            with self.driver.using(self.ordinal):
                address = self.driver.allocate(nbytes)
            self.driver.tell_unused(address, nbytes)
            return Segment(address, nbytes, Allocation(self.driver, self.ordinal, address), self)
        except DriverError as error:
            if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            raise OutOfMemoryError(f"cuda: {error}", request=nbytes) from error

    def release(self, segment: Segment) -> None:
        """Free a segment, after waiting for all work on the device."""
        self.order.forget(segment.address, segment.size)  # first: once freed, another thread may get the same address
        segment.handle.free()


class EventOrder:
    """Makes a stream wait for the streams that used a new block's memory before, under any manager.

    Managers know nothing about streams. This object stores which streams have used each range of free memory. A stream
    that allocates a part of such a range waits for the other streams, by events on the device. The host never waits.
    Memory that is used again by the same stream needs no event.

    Args:
        driver: the driver API.
        ordinal: the device's number.
    """

    def __init__(self, driver: Driver, ordinal: int = 0) -> None:
        self._driver, self._ordinal = driver, ordinal
        self._free: list[tuple[int, int, tuple[int, ...]]] = []  # begin, end, streams; in order, without overlaps
        self._lock = Lock()

    def stream(self) -> int:
        """Return this thread's current stream on the device."""
        return self._driver.current_stream(self._ordinal)

    def freed(self, block: Block) -> None:
        """Store which streams have used a block that is about to be freed."""
        streams = getattr(block, "streams", ())
        if not streams:
            return  # Ctrl-C or an error came before it was given: its memory's streams are noted still
        begin, end = block.address, block.address + block.size
        with self._lock:
            self._cut(begin, end)
            insort(self._free, (begin, end, streams))
        self._driver.tell_free(begin, block.size, streams)
        block.streams = ()  # a manager may return the same object again

    def given(self, block: Block) -> None:
        """Make the current stream wait for all other streams that used the memory of a newly allocated block."""
        stream = self.stream()
        with self._lock:
            others = set[int]().union(*self._cut(block.address, block.address + block.size)) - {stream}
            block.streams = (stream, *others)  # all of them until the wait is queued: Ctrl-C may come first
        if others:
            with self._driver.using(self._ordinal):
                for other in sorted(others):
                    self._wait(stream, other)
            block.streams = (stream,)
        self._driver.tell_used(block.address, block.size, stream)

    def _wait(self, stream: int, other: int) -> None:
        try:
            self._driver.wait_for_stream(stream, other)
        except DriverError as error:
            if error.name not in ("CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_CONTEXT_IS_DESTROYED"):
                raise
            self._driver.synchronize()  # the program has destroyed the stream, but its work may still run

    def forget(self, address: int, nbytes: int) -> None:
        """Discard the stored streams of a range of memory that is about to be released to the device."""
        with self._lock:
            self._cut(address, address + nbytes)

    def _cut(self, begin: int, end: int) -> list[tuple[int, ...]]:
        """Remove a range of addresses from the free memory, and return the streams that used each part of the range."""
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
