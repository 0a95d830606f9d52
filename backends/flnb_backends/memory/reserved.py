"""A manager whose memory is reserved at creation, so that no request waits and no other program takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flnb_telemetry.quantity import bytes_of

from flnb_backends.memory.cached import tunable
from flnb_backends.memory.pieces import MIN_BLOCK, Fitting, Piece, Pool

if TYPE_CHECKING:
    from flnb.interface.memory import AllocHint, Block, MemoryDevice, Segment


class Reserved(Fitting):
    """Best fit with splitting and merging in one segment, which is reserved when the manager is created.

    Requests that do not fit into that segment are served from further segments, whose sizes are multiples of 2 MiB, as
    long as the device has memory. When memory is short, only the further segments are released.

    Args:
        device: the device of the segments; the host by default.
        reserve: size of the first segment: a share of the device's capacity (a float above 0, at most 1), or bytes, or
            a string with a unit (``"8GiB"``). Default: the environment variable ``FLNB_MEM_RESERVE``, or else 0.9.

    Raises:
        OutOfMemoryError: the device has no room for that segment.

    >>> import flnb
    >>> manager = flnb.memory.Reserved(flnb.memory.SimulatedDevice("8GiB"), reserve=0.75)
    >>> manager.stats()["reserved"] >> 30
    6
    """

    name: ClassVar[str] = "reserved"

    def __init__(self, device: MemoryDevice | None = None, reserve: float | str | None = None) -> None:
        super().__init__(device)
        self.pool = Pool()
        self.pools = (self.pool,)
        segment = self.device.reserve(tunable("Reserved(reserve=...)", reserve, "FLNB_MEM_RESERVE", 0.9, self._bytes))
        self.first = segment
        self._emptied(segment)

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """Return a block in the smallest free piece that is large enough, or in a new segment."""
        return self.take(self.pool, (nbytes + 511) & -512 or MIN_BLOCK)

    def _bytes(self, given: float | str, name: str) -> int:
        """Convert ``given``, the value of the setting ``reserve``, to bytes; ``name`` is its name in errors."""
        try:
            share = float(given)
        except ValueError:
            return bytes_of(str(given), name)
        if share > 1 and not isinstance(given, float):
            return bytes_of(int(given), name)
        if not 0 < share <= 1:
            raise ValueError(f"flnb: {name} is {given!r}; expected a share above 0 and at most 1, or bytes")
        device = self.device
        if device.capacity is None:
            raise ValueError(
                f"flnb: {name} is {given!r}, a share of a capacity, but the device {device.name!r} has none: "
                f"pass bytes such as reserve='8GiB', or make the device with a capacity"
            )
        step = int(device.granularity)
        return max(1, int(share * device.capacity) // step) * step

    def _give_back(self, piece: Piece) -> None:
        if piece.segment is not self.first:
            super()._give_back(piece)

    def _emptied(self, segment: Segment) -> None:
        """Handle a segment without blocks in use: the first segment becomes one free piece, another one is released."""
        if segment is self.first:
            Piece(segment.address, segment.size, segment, self.pool).keep()
        else:
            super()._emptied(segment)
