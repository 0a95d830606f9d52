"""The contract of memory devices, which provide segments of memory, and the lease for a manager's segments."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, ClassVar

from flnb_telemetry import bus, intern, schema
from flnb_telemetry.quantity import bytes_of, size

from flnb.interface.living import Living
from flnb.interface.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from flnb.interface.memory import Shortage
    from flnb.interface.streams import StreamOrder

ADDRESSES = 1 << 60
"""The limit, in bytes, of requests to a device of unknown capacity."""


def in_words(nbytes: int) -> str:
    """Return a number of bytes as text, rounded with a unit and then exactly: ``64.0 MiB (67108864 bytes)``."""
    return f"{size(nbytes)} ({nbytes} bytes)" if nbytes >= 1024 else f"{nbytes} bytes"


class OutOfMemoryError(MemoryError):
    """Raised for a memory request that neither the manager's free blocks nor its device can serve.

    Attributes:
        request: the bytes that were requested.
        free: the unused bytes: those in holes of the manager's segments, and those not reserved from the device.
        unreserved: the part of ``free`` that is not reserved from the device; 0 if the capacity is unknown.
        largest_hole: the bytes of the largest free range in any segment.
        reserved: the bytes of the manager's segments.
        capacity: the bytes of the device, None if unknown.
        shortage: the state of the memory at that time; None if a user's code raised the error.
    """

    request = free = unreserved = largest_hole = reserved = 0
    capacity: int | None = None
    shortage: Shortage | None = None
    reporter: ClassVar[Callable[[OutOfMemoryError], Any]]
    """The function that makes the `report`, registered by flnb's memory lab."""

    def __init__(self, message: str = "", **about: Any) -> None:
        super().__init__(message)
        self.__dict__.update(about)

    @property
    def report(self) -> Any:
        """Return a `flnb.memory.Postmortem`, computed once: what blocked the request and what would have helped.

        Raises:
            ValueError: a user's code raised the error, so the memory's state is unknown.
        """
        found = self.__dict__.get("_report")
        if found is None:
            found = self.__dict__["_report"] = type(self).reporter(self)
        return found


@dataclass(slots=True, eq=False)
class Segment:
    """A contiguous range of memory reserved from a device; sizes in bytes.

    Attributes:
        handle: the object that owns the memory; the memory is freed when no reference to it exists.
        id: number of the segment, never used twice.
    """

    address: int
    size: int
    handle: Any = None
    device: MemoryDevice | None = None
    id: int = 0


class MemoryDevice(Part, kind="memory device", slot="device"):
    """Base of all memory devices, which provide segments for memory managers: implement `reserve` and `release`.

    The capacity is checked before `reserve` is called. A device that can change the size of a segment in place also
    implements `reserve_growing` and `resize`. `flnb.memory.HostDevice` is this machine's memory. A device whose
    segments are parts of one NumPy array:

    >>> import flnb, numpy as np
    >>> from flnb.memory import MemoryDevice, Segment
    >>> class OneArray(MemoryDevice):
    ...     def __init__(self, capacity="64MiB"):
    ...         super().__init__(capacity)
    ...         self.memory = np.empty(self.capacity + 4096, np.uint8)
    ...         self.next = -(-self.memory.ctypes.data // 4096) * 4096  # addresses in multiples of 4096
    ...     def reserve(self, nbytes):
    ...         segment = Segment(self.next, nbytes, handle=self.memory, device=self)
    ...         self.next += nbytes
    ...         return segment
    ...     def release(self, segment):
    ...         pass  # released memory is not used again
    >>> with flnb.use_memory_manager(flnb.memory.Native(OneArray())) as manager:
    ...     x = flnb.ones((1024, 256))
    >>> manager.stats()["reserved"]
    1048576

    Attributes:
        capacity: the largest number of bytes in segments; None if unknown. Then `reserve` must raise `MemoryError` when
            the memory is exhausted.
        granularity: sizes of segments are rounded up to multiples of this many bytes.
        addressable: whether NumPy can read and write the memory.
        min_block: the size in bytes of the smallest tensor that gets a block; NumPy allocates smaller tensors.
        location: the ``location`` of the backends that compute in this memory; empty if all backends can.
        order: if the device has streams, the `StreamOrder` that makes a stream wait until earlier users of the memory
            have finished.
    """

    name: ClassVar[str] = "device"
    location: str = ""
    order: StreamOrder | None = None
    granularity: int = 4096
    addressable: ClassVar[bool] = True
    min_block: ClassVar[int] = 0
    required = "reserve", "release"
    _leases: Living[Lease]
    _apart: int

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self._leases, self._apart = Living(), 0
        return self

    def __init__(self, capacity: int | str | None = None) -> None:
        self.capacity = None if capacity is None else bytes_of(capacity, f"the capacity of {type(self).__name__}")

    @property
    def place(self) -> str:
        """The device's name in telemetry, such as "cuda:0"; "" for the host."""
        return "" if self.location == "host" else self.location

    @property
    def reserved(self) -> int:
        """The number of bytes that all managers together have reserved now."""
        return self._apart + sum([lease.reserved for lease in self._leases])

    @reserved.setter
    def reserved(self, nbytes: int) -> None:
        """Set the total of all reserved bytes; the difference counts as memory that no manager reserved."""
        self._apart += nbytes - self.reserved

    def reserve(self, nbytes: int) -> Segment:
        """Return a new segment of ``nbytes`` bytes (a multiple of `granularity`), or raise `MemoryError`."""
        raise self.lacks("reserve")

    def release(self, segment: Segment) -> None:
        """Release a segment that is no longer used."""
        raise self.lacks("release")

    def reserve_growing(self, nbytes: int) -> Segment:
        """Return a new segment with spare addresses behind it, for `resize`; by default the same as `reserve`."""
        return self.reserve(nbytes)

    def resize(self, segment: Segment, nbytes: int) -> bool:
        """Change the size of a segment to ``nbytes`` (a multiple of `granularity`); return whether that was possible.

        The address does not change. The caller has checked the capacity, and sets ``segment.size`` afterwards. If the
        segment shrinks, the released part has no blocks.
        """
        return False

    def __repr__(self) -> str:
        capacity = "unknown capacity" if self.capacity is None else in_words(self.capacity)
        return f"<{type(self).__name__}: {capacity}, {in_words(self.reserved)} reserved>"


def default_device() -> MemoryDevice:
    """Return the memory device for a manager that is constructed without one."""
    return choose_device[-1]()


choose_device: list[Callable[[], MemoryDevice]] = []
"""Functions that return the default device, of which the last is called; `flnb.dispatch.state` appends one."""


class Lease:
    """The segments that one manager has reserved from a device; emits an event for each change.

    The lease is the manager's ``self.device``. Attributes that the lease does not have are those of the device.

    Attributes:
        reserved, peak: the bytes of all segments, now and at their maximum.
        segments: the segments by id.
        aside: whether the manager stores data that was moved off the device on which tensors are computed.
    """

    next_id: ClassVar[Callable[[], int]] = count(1).__next__

    def __init__(self, device: MemoryDevice) -> None:
        self.reserved = self.peak = 0
        self.segments: dict[int, Segment] = {}
        self.device = device
        self.addressable = device.addressable  # asked for every array
        self.order = device.order  # and this for every block
        self.aside = False  # not of the device that tensors are computed on: `flnb.dispatch.announcing.aside`
        self.users: set[object] = set()  # the blocks that use it so
        device._leases.add(self)

    def reserve(self, nbytes: int, growing: bool = False) -> Segment:
        """Reserve a segment of at least ``nbytes`` bytes; pass ``growing=True`` if `resize` will make it larger.

        Raises:
            OutOfMemoryError: the device has no room for the segment.
        """
        rounded = self._rounded("reserve", nbytes)
        self._check_room(f"a segment of {in_words(rounded)}", rounded)
        segment = self.device.reserve_growing(rounded) if growing else self.device.reserve(rounded)
        segment.id = Lease.next_id()
        self.segments[segment.id] = segment
        if self.aside:
            bus.emit(schema.ASIDE, clock(), segment.id)
        self._count(schema.SEGMENT_ALLOC, segment, segment.size)
        return segment

    def resize(self, segment: Segment, nbytes: int) -> bool:
        """Change the size of a segment in place to ``nbytes``, rounded up; return whether that was possible.

        The size is rounded up to a multiple of the device's ``granularity``.

        Raises:
            ValueError: the segment does not belong to this lease.
            OutOfMemoryError: the device has no room for the growth.
        """
        rounded = self._rounded("resize", nbytes)
        self._check_held("resize", segment)
        more = rounded - segment.size
        self._check_room(f"{in_words(max(more, 0))} more in segment {segment.id}", more)
        done = more == 0 or self.device.resize(segment, rounded)
        if done and more:
            segment.size = rounded
            self._count(schema.SEGMENT_RESIZE, segment, more)
        return done

    def release(self, segment: Segment) -> None:
        """Return a segment to the device.

        Raises:
            ValueError: the segment does not belong to this lease.
        """
        self._check_held("release", segment)
        del self.segments[segment.id]
        try:
            self.device.release(segment)
        except Exception:
            self.segments[segment.id] = segment
            raise
        self._count(schema.SEGMENT_FREE, segment, -segment.size)

    def _count(self, kind: int, segment: Segment, more: int) -> None:
        """Add ``more`` bytes to `reserved`, and emit an event of type ``kind`` about a segment."""
        self.reserved += more
        self.peak = max(self.peak, self.reserved)
        self.tell(kind, segment.id, segment.address, segment.size, intern.strings.id_of(self.device.place))

    def recount(self) -> None:
        """Recompute `reserved` from the segments, after Ctrl-C interrupted a call."""
        self.reserved = sum([segment.size for segment in self.segments.values()])

    def tell(self, kind: int, *words: int) -> None:
        """Emit a telemetry event of type ``kind`` with the current time and the numbers ``words``."""
        bus.emit(kind, clock(), *words)

    def _rounded(self, call: str, nbytes: int) -> int:
        """Round a positive number of bytes up to the device's granularity; ``call`` is the method to name in errors."""
        if nbytes <= 0:
            raise ValueError(f"{call}: got {nbytes} bytes, expected a positive number")
        return -(-nbytes // self.device.granularity) * self.device.granularity

    def _check_room(self, what: str, more: int) -> None:
        """Raise an `OutOfMemoryError` if the device has less than ``more`` free bytes; ``what`` names the request."""
        device = self.device
        if more > 0 and more > (ADDRESSES if device.capacity is None else device.capacity - device.reserved):
            limit = "any address" if device.capacity is None else in_words(device.capacity)
            raise OutOfMemoryError(
                f"{device.name}: no room for {what}: {in_words(device.reserved)} of {limit} are reserved",
                request=more,
                capacity=device.capacity,
                reserved=device.reserved,
            )

    def _check_held(self, call: str, segment: Segment) -> None:
        """Raise a `ValueError` if a segment does not belong to this lease; the message names the method ``call``."""
        if segment.id not in self.segments:
            raise ValueError(f"{call}: segment {segment.id} is not held by this manager, at least not any more")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)
