"""Formulas for the time of collective calls on links with a given latency and bandwidth.

Thakur, Rabenseifner and Gropp, 2005, "Optimization of Collective Communication Operations in MPICH", sections 3 and 4;
for the ring, of which no algorithm moves fewer bytes, Patarasuk and Yuan, 2009, "Bandwidth optimal all-reduce
algorithms for clusters of workstations". With p ranks, latency a, b seconds per byte, g seconds to reduce a byte, and n
bytes of the buffer (for a gather or a scatter the larger one, which holds the parts of all ranks):

| | all_reduce | reduce_scatter (all_gather: g = 0) | broadcast |
|---|---|---|---|
| ring | 2(p-1) a + 2(p-1)/p nb + (p-1)/p ng | (p-1) a + (p-1)/p n(b+g) | (lg p + p-1) a + 2(p-1)/p nb |
| tree | 2 lg p (a + nb) + lg p ng | lg p (a + n(b+g)) + lg p a + (p-1)/p nb | lg p (a + nb) |
| halving | 2 lg p a + 2(p-1)/p nb + (p-1)/p ng | lg p a + (p-1)/p n(b+g) | 2 lg p a + 2(p-1)/p nb |

lg p is the logarithm to base 2, rounded up. A barrier takes lg p a. If hosts have several ranks, an all_reduce has
three phases: a reduce_scatter within each host, an all_reduce of each part over the hosts, an all_gather within a host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ALGORITHMS = ("ring", "tree", "halving")


@dataclass(frozen=True)
class Topology:
    """Links between ranks, with the algorithm that collective calls use on them.

    Args:
        latency: seconds until the first byte of a message arrives.
        bandwidth: bytes per second in each direction of a rank's link.
        algorithm: ``"ring"``, ``"tree"`` (binomial), or ``"halving"`` (recursive halving and doubling).
        overhead: seconds that every call takes in addition to its messages.
        reduction: bytes per second at which a rank adds received data to its own; infinite by default.
        per_host: the number of ranks of each host. If it is more than one, the ranks of a host exchange data over the
            links ``host``, and the hosts exchange data over the links described here.
        host: a `Topology` of the links within a host, if ``per_host`` is more than one.

    >>> import flnb
    >>> link = flnb.distributed.Topology(latency=1e-6, bandwidth=1e9)
    >>> print(f"{link.seconds('all_reduce', 1_000_000, ranks=4):.6f}")
    0.001506

    Raises:
        ValueError: an unknown algorithm, ``per_host`` without ``host``, or a number out of range.
    """

    latency: float
    bandwidth: float
    algorithm: str = "ring"
    overhead: float = 0.0
    reduction: float = float("inf")
    per_host: int = 1
    host: Topology | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"Topology: got algorithm {self.algorithm!r}, expected one of {', '.join(ALGORITHMS)}")
        if self.per_host > 1 and self.host is None:
            raise ValueError(f"Topology: got per_host={self.per_host} without host; pass a Topology of a host's links")
        if not self.latency >= 0:
            raise ValueError(f"Topology: got latency={self.latency}, expected seconds, 0 or more")
        for name, value in (("bandwidth", self.bandwidth), ("reduction", self.reduction)):
            if not value > 0:
                raise ValueError(f"Topology: got {name}={value}, expected bytes per second, more than 0")

    def seconds(self, op: str, nbytes: int, ranks: int) -> float:
        """Return the seconds that a call takes on otherwise idle links, counted from the last rank's call.

        Args:
            op: the name of a communicator's method, such as ``"all_reduce"``.
            nbytes: the bytes of the buffer; for all_gather those of the result, for reduce_scatter those of the input.
            ranks: how many ranks take part.

        Raises:
            ValueError: an unknown op.
        """
        if op not in _LINEAR:
            raise ValueError(f"Topology.seconds: unknown op {op!r}; expected one of {', '.join(_LINEAR)}")
        if ranks == 1:
            return 0.0
        if self.host is None or op in ("send", "recv"):
            return self._flat(op, nbytes, ranks)
        inside, hosts = min(self.per_host, ranks), -(-ranks // self.per_host)
        within, across = self.host.seconds, replace(self, host=None, per_host=1).seconds
        if op == "all_reduce":
            scattered = within("reduce_scatter", nbytes, inside) + within("all_gather", nbytes, inside)
            return scattered + across("all_reduce", nbytes // inside, hosts)
        return within(op, nbytes, inside) + across(op, nbytes, hosts)

    def _flat(self, op: str, nbytes: int, ranks: int) -> float:
        """Return the seconds that a call takes if the links between all ranks are alike."""
        messages, moved, reduced = self.counts(op, ranks)
        return self.overhead + messages * self.latency + nbytes * (moved / self.bandwidth + reduced / self.reduction)

    def counts(self, op: str, ranks: int) -> tuple[float, float, float]:
        """Return the number of messages of a call, and how much of the buffer a rank sends and adds.

        Returns:
            The number of messages for which a rank waits, one after the other; the data that each rank sends; and the
            received data that each rank adds to its own data. The last two are multiples of the buffer's length.

        >>> import flnb
        >>> flnb.distributed.Topology(latency=1e-6, bandwidth=1e9).counts("all_reduce", ranks=4)
        (6, 1.5, 0.75)
        """
        return _LINEAR[op](self.algorithm, ranks)

    def fitted(self, measured: Sequence[tuple[int, int, float]], op: str = "all_reduce") -> Self:
        """Return this topology with overhead, latency and bandwidth fitted to measured times.

        Args:
            measured: for each measurement the number of ranks, the bytes of the buffer, and the seconds. If all have
                the same bytes, the bandwidth is not fitted.
            op: the name of the communicator's method that was measured.

        >>> import flnb
        >>> start = flnb.distributed.Topology(latency=0, bandwidth=1e10)
        >>> link = start.fitted([(16, 8, 163.4e-6), (32, 8, 319.4e-6)])
        >>> print(f"{1e6 * link.latency:.3f} us, on 64 ranks {1e6 * link.seconds('all_reduce', 8, 64):.1f} us")
        4.875 us, on 64 ranks 631.4 us
        """
        rows = [self.counts(op, ranks) for ranks, _, _ in measured]
        columns: list[Any] = [[1.0, messages] for messages, _, _ in rows]
        varied = len({nbytes for _, nbytes, _ in measured}) > 1
        known = np.zeros(len(measured))
        for i, (_, nbytes, _) in enumerate(measured):
            known[i] = nbytes * rows[i][2] / self.reduction
            if varied:
                columns[i].append(nbytes * rows[i][1])
            else:
                known[i] += nbytes * rows[i][1] / self.bandwidth
        seconds = np.array([time for _, _, time in measured])
        matrix = np.array(columns) / seconds[:, None]  # relative errors count, not those of the longest
        found = np.linalg.lstsq(matrix, (seconds - known) / seconds, rcond=None)[0]
        bandwidth = 1.0 / found[2] if varied and found[2] > 0 else self.bandwidth
        return replace(self, overhead=float(found[0]), latency=float(max(found[1], 0.0)), bandwidth=float(bandwidth))


def _rounds(ranks: int) -> int:
    return (ranks - 1).bit_length()


def _all_reduce(algorithm: str, p: int) -> tuple[float, float, float]:
    rounds, share = _rounds(p), (p - 1) / p
    if algorithm == "tree":
        return 2 * rounds, 2 * rounds, rounds
    return 2 * (p - 1 if algorithm == "ring" else rounds), 2 * share, share


def _reduce_scatter(algorithm: str, p: int) -> tuple[float, float, float]:
    rounds, share = _rounds(p), (p - 1) / p
    if algorithm == "tree":
        return 2 * rounds, rounds + share, rounds
    return p - 1 if algorithm == "ring" else rounds, share, share


def _all_gather(algorithm: str, p: int) -> tuple[float, float, float]:
    messages, moved, _ = _reduce_scatter(algorithm, p)
    return messages, moved, 0


def _broadcast(algorithm: str, p: int) -> tuple[float, float, float]:
    rounds, share = _rounds(p), (p - 1) / p
    if algorithm == "tree":
        return rounds, rounds, 0
    return rounds + (p - 1 if algorithm == "ring" else rounds), 2 * share, 0


_LINEAR: dict[str, Callable[[str, int], tuple[float, float, float]]] = {
    "all_reduce": _all_reduce,
    "all_reduce_multiple": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "broadcast": _broadcast,
    "barrier": lambda algorithm, p: (_rounds(p), 0, 0),
    "send": lambda algorithm, p: (1, 1, 0),
    "recv": lambda algorithm, p: (1, 1, 0),
}
