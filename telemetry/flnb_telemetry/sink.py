"""The protocol of the objects to which the pump feeds events: recordings and live views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flnb_telemetry import schema


class Sink(Protocol):
    """The protocol of objects that receive events, such as a recording or the live view of a dashboard."""

    grad_interval: float | None
    """Seconds between two backward passes whose gradient norms are measured; None if none are to be measured."""
    live: bool
    """Whether the sink receives records several times a second. If not, it receives them when a buffer is half full, at
    a flush and at the end, so that the pump uses no processor time in between."""
    patience: float | None
    """Seconds after which a sink that is not live receives all records, followed by an empty batch; None for never."""
    failure: BaseException | None
    """The error that `feed` raised, or None; after an error the sink receives no more records."""

    def feed(self, lane: int, records: schema.Records) -> None:
        """Receive the next records, shape (n, 8), of the thread with the number `lane`, in the order of writing.

        The sink may store and change the array.
        """
