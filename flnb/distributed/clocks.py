"""Clock offsets between ranks on different hosts, measured by round-trip messages."""

from __future__ import annotations

import platform
from time import perf_counter_ns as clock
from typing import Any
from zlib import crc32

import numpy as np
from flnb_telemetry import bus, schema

from flnb.dispatch.communication import run
from flnb.dispatch.groups import current

ROUNDS = 200
"""The default number of round trips of a message, of which the quickest is used."""
_measured: dict[str, Any] = {}
bus.describers.append(lambda: dict(_measured) if current().size > 1 else {})


def sync_clocks(rounds: int = ROUNDS) -> tuple[int, int]:
    """Return the offset of this rank's clock from that of rank 0, and an error bound, in ns; all ranks call this.

    `init` calls this function if the ranks are on several hosts. Clocks drift apart by microseconds per second, so call
    it again in a long recording.

    Args:
        rounds: the number of round trips of a message; the quickest one is used.

    Returns:
        The offset in ns, and its largest possible error in ns, which is half of the quickest round trip. A time
        on rank 0's clock is the time on this rank's clock + offset.

    Raises:
        CollectiveError: a rank has died, or does not call this function.

    >>> import flnb
    >>> flnb.distributed.sync_clocks()
    (0, 0)
    """
    found = 0, 0
    for other in range(1, current().size):
        found = _exchange(other, rounds) or found
    _measured.update(clock_offset=found[0], clock_bound=found[1])
    return found


def sync_hosts() -> None:
    """Measure the clock offset of each rank that is not on rank 0's host; the ranks of one host share a clock."""
    here = current()
    own, theirs = np.array([crc32(platform.node().encode())]), np.zeros(1, np.int64)
    for other in range(1, here.size):
        apart = np.zeros(1, np.int64)
        if here.rank == 0:
            run("recv", theirs, other)
            apart[0] = theirs[0] != own[0]
            run("send", apart, other)
        elif here.rank == other:
            run("send", own, 0)
            run("recv", apart, 0)
            _measured.update(clock_offset=0, clock_bound=0)
        if apart[0] and (found := _exchange(other, ROUNDS)):
            _measured.update(clock_offset=found[0], clock_bound=found[1])


def _exchange(other: int, rounds: int) -> tuple[int, int] | None:
    """Send timing messages between rank 0 and the rank ``other`` and back; all ranks call this.

    Returns:
        On the rank ``other``: the offset of the rank's clock, and the largest error of the offset, in ns. On all
        other ranks: None.
    """
    here, theirs = current(), np.zeros(1, np.int64)
    if here.rank not in (0, other):
        return None
    best = (0, 1 << 62)
    for _ in range(rounds):
        if here.rank == 0:
            run("recv", theirs, other)
            theirs[0] = clock()
            run("send", theirs, other)
        else:
            before = clock()
            run("send", theirs, 0)
            run("recv", theirs, 0)
            after = clock()
            if after - before < 2 * best[1]:
                best = int(theirs[0]) - (before + after) // 2, (after - before + 1) // 2
    if here.rank == 0:
        return None
    bus.emit(schema.CLOCK_SYNC, clock(), 0, *best)
    return best
