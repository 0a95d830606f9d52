"""The memory device, from which segments come, and the lease by which a manager holds them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, ClassVar

from flnb_telemetry import bus, schema
from flnb_telemetry.quantity import bytes_of, size

from flnb.interface.living import Living
from flnb.interface.part import Part

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from flnb.interface.memory import Shortage

__all__ = ["Lease", "MemoryDevice", "OutOfMemoryError", "Segment", "in_words"]

ADDRESSES = 1 << 60
"""No device has more bytes, whether it knows its capacity or not."""


def in_words(nbytes: int) -> str:
    """A size as text, exact bytes included: ``64.0 MiB (67108864 bytes)``."""
    return f"{size(nbytes)} ({nbytes} bytes)" if nbytes >= 1024 else f"{nbytes} bytes"


class OutOfMemoryError(MemoryError):
    """A request that neither the manager's free blocks nor its device can serve.

    Attributes (bytes): ``request``; ``free``, all unused bytes: holes in the manager's segments, and ``unreserved``,
    the rest of the device; ``largest_hole``, the largest free piece in any segment; ``reserved`` by the manager;
    ``capacity`` of the device, None if unknown (``unreserved`` is 0 then). ``shortage`` is the memory's state at that
    time, None if no manager was asked through the crossing.
    """

    request = free = unreserved = largest_hole = reserved = 0
    capacity: int | None = None
    shortage: Shortage | None = None
    reporter: ClassVar[Callable[[OutOfMemoryError], Any]]
    """Makes the `report`; the memory lab's, registered by flnb."""

    def __init__(self, message: str = "", **about: Any) -> None:
        super().__init__(message)
        self.__dict__.update(about)

    @property
    def report(self) -> Any:
        """What blocked the request and what would have worked: a `flnb.memory.Postmortem`, made when first asked for.

        Raises:
            ValueError: the error was raised by hand, so the memory's state is unknown.
        """
        found = self.__dict__.get("_report")
        if found is None:
            found = self.__dict__["_report"] = type(self).reporter(self)
        return found


@dataclass(slots=True, eq=False)
class Segment:
    """A contiguous range lent by a device. ``handle`` keeps the memory alive; ``id`` is never used twice."""

    address: int
    size: int
    handle: Any = None
    device: MemoryDevice | None = None
    id: int = 0


class MemoryDevice(Part, kind="memory device", slot="device"):
    """Where segments come from. Implement `reserve` and `release`; capacity is checked before `reserve` is called.

    A device that can make segments larger where they are implements `reserve_growing` and `resize` as well.

    Attributes:
        capacity: the most bytes it lends at a time; None if unknown: then `reserve` raises `MemoryError` by itself.
        granularity: sizes are rounded up to multiples of this.
        addressable: whether NumPy can read and write there.
        min_block: the smallest tensor, in bytes, that is worth a block.
    """

    name: ClassVar[str] = "device"
    granularity: int = 4096
    addressable: ClassVar[bool] = True
    min_block: ClassVar[int] = 0
    _leases: Living[Lease]
    _apart: int

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        self._leases, self._apart = Living(), 0
        return self

    def __init__(self, capacity: int | str | None = None) -> None:
        self.capacity = None if capacity is None else bytes_of(capacity, f"the capacity of {type(self).__name__}")

    @property
    def reserved(self) -> int:
        """Bytes lent out now, to all managers together."""
        return self._apart + sum([lease.reserved for lease in self._leases])

    @reserved.setter
    def reserved(self, nbytes: int) -> None:
        """Count bytes that are lent without a lease."""
        self._apart += nbytes - self.reserved

    def reserve(self, nbytes: int) -> Segment:
        """Lend a new segment of ``nbytes`` (a multiple of the granularity), or raise `MemoryError`."""
        raise NotImplementedError(f"device {self.name!r} does not implement 'reserve'")

    def release(self, segment: Segment) -> None:
        """Take a segment back. It is no longer in use."""
        raise NotImplementedError(f"device {self.name!r} does not implement 'release'")

    def reserve_growing(self, nbytes: int) -> Segment:
        """Like `reserve`, with as many addresses behind the segment as `resize` may ever need. Here: none."""
        return self.reserve(nbytes)

    def resize(self, segment: Segment, nbytes: int) -> bool:
        """Make a segment end after ``nbytes`` (a multiple of the granularity); False, without a change, if impossible.

        The lease checks the capacity before, and sets ``segment.size`` after. The part that is cut off is not in use.
        """
        return False

    def __repr__(self) -> str:
        capacity = "unknown capacity" if self.capacity is None else in_words(self.capacity)
        return f"<{type(self).__name__}: {capacity}, {in_words(self.reserved)} reserved>"


def default_device() -> MemoryDevice:
    """The device of managers that are given none."""
    return choose_device[-1]()


choose_device: list[Callable[[], MemoryDevice]] = []
"""How it is found, the last holds: `flnb.dispatch.state`, which knows the active one, adds to it."""


class Lease:
    """The segments that one manager holds of a device: the crossing between the two, with sums and events.

    Everything but `reserve`, `resize` and `release` is the device's own.
    """

    next_id: ClassVar[Callable[[], int]] = count(1).__next__

    def __init__(self, device: MemoryDevice) -> None:
        self.reserved = self.peak = 0
        self.segments: dict[int, Segment] = {}
        self.device = device
        self.addressable = device.addressable  # asked for every array
        self.aside = False  # not of the device that tensors are computed on: `flnb.dispatch.memory.aside`
        self.users: set[object] = set()  # the blocks that use it so
        device._leases.add(self)

    def reserve(self, nbytes: int, growing: bool = False) -> Segment:
        """Reserve a segment of at least ``nbytes`` bytes, which `resize` will make larger if it is ``growing``.

        Raises:
            OutOfMemoryError: the device has no room for it.
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
        """Make a segment at least ``nbytes`` large, or as small, in place; returns whether the device could.

        Raises:
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
        """Return a segment to the device; `ValueError` if it was returned before or never lent."""
        self._check_held("release", segment)
        del self.segments[segment.id]
        try:
            self.device.release(segment)
        except Exception:
            self.segments[segment.id] = segment
            raise
        self._count(schema.SEGMENT_FREE, segment, -segment.size)

    def _count(self, kind: int, segment: Segment, more: int) -> None:
        self.reserved += more
        self.peak = max(self.peak, self.reserved)
        self.tell(kind, segment.id, segment.address, segment.size)

    def recount(self) -> None:
        """Add up the segments: after a call that Ctrl-C interrupted, the sum may be that of before or after it."""
        self.reserved = sum([segment.size for segment in self.segments.values()])

    def tell(self, kind: int, *words: int) -> None:
        """Emit an event at the present time."""
        bus.emit(kind, clock(), *words)

    def _rounded(self, call: str, nbytes: int) -> int:
        if nbytes <= 0:
            raise ValueError(f"{call}: got {nbytes} bytes, expected a positive number")
        return -(-nbytes // self.device.granularity) * self.device.granularity

    def _check_room(self, what: str, more: int) -> None:
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
        if segment.id not in self.segments:
            raise ValueError(f"{call}: segment {segment.id} is not held by this manager; it was released before")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)
