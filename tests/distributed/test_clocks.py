"""Clocks of ranks are compared by messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import flnb
from flnb import distributed
from flnb.distributed import clocks

if TYPE_CHECKING:
    import pytest

AHEAD = 5_000_000_000


def test_a_clock_that_is_ahead_is_measured_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "clock", lambda: time.perf_counter_ns() + AHEAD * distributed.rank())
    with flnb.record() as run:
        results = distributed.run_threads(3, distributed.sync_clocks, 50)
    assert results[0] == (0, 0)
    for rank, (offset, bound) in enumerate(results[1:], start=1):
        assert abs(offset + rank * AHEAD) <= bound
        assert 0 < bound < 1_000_000_000
    events = run.table("clock_sync")
    assert sorted(events["offset"].tolist()) == sorted(offset for offset, _ in results[1:])
    assert events["peer"].tolist() == [0, 0]


def test_ranks_of_other_hosts_are_measured_when_they_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks.platform, "node", lambda: f"host {distributed.rank() // 2}")
    measured: list[int] = []
    original = clocks._exchange

    def exchange(other: int, rounds: int) -> tuple[int, int] | None:
        measured.append(other)
        return original(other, 2)

    monkeypatch.setattr(clocks, "_exchange", exchange)
    distributed.run_threads(4, clocks.sync_hosts)
    assert sorted(measured) == [2, 2, 3, 3]
