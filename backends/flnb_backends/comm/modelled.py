"""A communicator that simulates a slower link, for teaching and for studying overlap.

The ranks exchange their data through another communicator. Each call is then delayed until it would have ended on the
simulated link, which carries one call at a time and uses no processor time.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter as clock
from time import sleep
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flnb_telemetry.quantity import bytes_of

from flnb.dispatch.board import LEFT
from flnb.interface.communicator import All, CollectiveError, Communicator, Work
from flnb_backends.comm.forwarding import Forwarding
from flnb_backends.comm.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

FAULTS = ("raises", "never comes")


class Transfer(Work):
    """A call on the simulated link: it starts when all ranks have called and the link is free, and takes a fixed time.

    Attributes:
        end: the end of the transfer, in seconds on the clock of all ranks; None until all ranks have called.
    """

    def __init__(self, link: Modelled, work: Work, begins: Any, seconds: float) -> None:
        self._link, self._work, self._begins, self._seconds = link, work, begins, seconds
        self.end: float | None = None

    def begin(self, free: float) -> bool:
        """Set `end` if all ranks have called, and return whether `end` is set.

        ``free`` is the time at which the link becomes free, in seconds on the clock of all ranks.
        """
        if self._work.test():
            self.end = max(free, float(self._begins.max())) + self._seconds
        return self.end is not None

    def test(self) -> bool:
        """Return whether the simulated transfer has ended."""
        if self.end is None:
            self._link.advance()
        return self.end is not None and clock() >= self.end


class Message(Transfer):
    """A message between two ranks on the simulated link; the sender also sends the time at which the transfer ends."""

    def test(self) -> bool:
        """Return whether the simulated transfer has ended."""
        return self._work.test() and clock() >= self._begins[0]


class Modelled(Forwarding):
    """Wraps a communicator, by default the active one, and delays each call as a link of the given speed would.

    All ranks must share a clock, as processes of one host do.

    Args:
        latency: the seconds until the first byte of a message arrives.
        bandwidth: the bytes that a rank sends per second, a number or a string such as ``"1GiB"``.
        algorithm: the algorithm of collective calls, as in `flnb.distributed.Topology`.
        faults: a dictionary of simulated faults. The key ``(rank, n)`` is the n-th call of a rank, counted from 1; the
            value is the delay of the call in seconds, ``"raises"`` or ``"never comes"``. The value of the key
            ``(rank, 0)`` is the delay of all calls of the rank.
        inner: the communicator that carries the data.

    Raises:
        ValueError: a setting is not of the kinds above; the message names it.

    >>> import time, flnb
    >>> def exchange():
    ...     with flnb.distributed.use_communicator("modelled:latency=0.02,bandwidth=1GiB"):
    ...         began = time.perf_counter()
    ...         total = flnb.distributed.all_reduce(1.0).item()
    ...         return total, time.perf_counter() - began >= 0.04
    >>> flnb.distributed.run_threads(2, exchange)
    [(2.0, True), (2.0, True)]
    """

    name: ClassVar[str] = "modelled"

    def __init__(
        self,
        latency: float | str = 50e-6,
        bandwidth: float | str = "1GiB",
        algorithm: str = "ring",
        faults: Mapping[tuple[int, int], float | str] | None = None,
        inner: Communicator | None = None,
    ) -> None:
        speed = bytes_of(bandwidth, "Modelled(bandwidth=...)") if isinstance(bandwidth, str) else bandwidth
        self.topology = Topology(_seconds(latency, "latency"), speed, algorithm)
        super().__init__(inner)
        self._faults = _checked(faults or {})
        self._calls = 0
        self._free = 0.0
        self._waiting: deque[Transfer] = deque()
        self._busy: dict[int, float] = {}

    def arriving(self) -> None:
        """Apply the simulated fault, if any, of this rank's next call."""
        self._calls += 1
        fault = self._faults.get((self.rank, self._calls), self._faults.get((self.rank, 0), 0.0))
        if fault == "raises":
            raise RuntimeError(f"modelled: rank {self.rank} fails before its call {self._calls} (set by faults=)")
        while fault == "never comes":
            sleep(0.01)
            if self.board is None or any(self.board.row(rank).state >= LEFT for rank in range(self.size)):
                raise CollectiveError(f"modelled: rank {self.rank} never made its call {self._calls}")
        sleep(float(fault))

    def advance(self) -> None:
        """Set the end of each waiting call, in order, up to the first call that some rank has not made yet."""
        while self._waiting and self._waiting[0].begin(self._free):
            self._free = self._waiting.popleft().end or 0.0

    def _queued(self, op: str, nbytes: int, work: Work) -> Work:
        """Put the call ``work`` on the simulated link, and return the call as a `Transfer`.

        Ranks exchange the times at which they called. From these times each rank computes when the transfer ends.
        """
        begins = np.empty(self.size)
        exchange = self.inner.all_gather(np.array([clock()]), begins)
        transfer = Transfer(self, All([work, exchange]), begins, self.topology.seconds(op, nbytes, self.size))
        self._waiting.append(transfer)
        return transfer

    def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
        """Call the inner communicator's `all_reduce`; the returned `Work` ends when the simulated transfer ends."""
        return self._queued("all_reduce", buffer.nbytes, self.inner.all_reduce(buffer, op))

    def all_gather(self, buffer: Any, out: Any) -> Work:
        """Call the inner communicator's `all_gather`; the returned `Work` ends when the simulated transfer ends."""
        return self._queued("all_gather", out.nbytes, self.inner.all_gather(buffer, out))

    def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
        """Call the inner communicator's `reduce_scatter`; the returned `Work` ends when the simulated transfer ends."""
        return self._queued("reduce_scatter", buffer.nbytes, self.inner.reduce_scatter(buffer, out, op))

    def broadcast(self, buffer: Any, root: int = 0) -> Work:
        """Call the inner communicator's `broadcast`; the returned `Work` ends when the simulated transfer ends."""
        return self._queued("broadcast", buffer.nbytes, self.inner.broadcast(buffer, root))

    def barrier(self) -> Work:
        """Call the inner communicator's `barrier`; the returned `Work` ends when the simulated transfer ends."""
        return self._queued("barrier", 0, self.inner.barrier())

    def send(self, buffer: Any, to: int, tag: int = 0) -> Work:
        """Call the inner communicator's `send`; messages to different ranks travel on separate simulated links."""
        seconds = self.topology.seconds("send", buffer.nbytes, self.size)
        end = np.array([max(self._busy.get(to, 0.0), clock()) + seconds])
        self._busy[to] = float(end[0])
        works = [self.inner.send(end, to, tag), self.inner.send(buffer, to, tag)]
        return Message(self, All(works), end, seconds)

    def recv(self, buffer: Any, source: int, tag: int = 0) -> Work:
        """Call the inner communicator's `recv`; the returned `Work` ends when the simulated transfer ends."""
        end = np.empty(1)
        works = [self.inner.recv(end, source, tag), self.inner.recv(buffer, source, tag)]
        return Message(self, All(works), end, 0.0)

    def split(self, color: int, key: int) -> Communicator:
        """Return a group of the ranks with the same ``color``, ordered by ``key``, on a separate simulated link."""
        link = self.topology
        return Modelled(link.latency, link.bandwidth, link.algorithm, inner=self.inner.split(color, key))


def _seconds(value: Any, what: str, others: str = "") -> float:
    """Convert a setting, a number or a string, to seconds.

    For the error, ``what`` is the setting's name, and ``others`` describes other allowed values.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"modelled: got {what}={value!r}, expected seconds, such as 0.002{others}") from None


def _checked(faults: Any) -> dict[tuple[int, int], Any]:
    """Return the setting ``faults``; raises a ValueError for keys other than (rank, call number), or wrong values."""
    form = 'expected a dict such as {(1, 2): "raises"}, with (rank, number of the call) as keys'
    if not hasattr(faults, "items"):
        raise ValueError(f"modelled: got faults={faults!r}, {form}")
    for key, fault in faults.items():
        if not (isinstance(key, tuple) and len(key) == 2):
            raise ValueError(f"modelled: got faults[{key!r}], {form}")
        if fault not in FAULTS:
            _seconds(fault, f"faults[{key!r}]", f", or one of {', '.join(map(repr, FAULTS))}")
    return dict(faults)
