"""Replays: other managers make the same calls, on addresses alone."""

from __future__ import annotations

from typing import Any

import pytest

import flnb
from flnb.memory import Block, Caching, MemoryManager, Trace
from tests.memory.test_traces import recorded

pytestmark = pytest.mark.usefixtures("nothing_held")

MIB = 1 << 20


def test_a_replay_by_the_same_manager_reserves_what_the_run_did() -> None:
    run = recorded()
    (row,) = flnb.memory.replay(run, ["caching"]).rows
    assert row.peak_reserved == int(run.memory.timeline().reserved.max())
    assert row.live.tolist() == flnb.memory.trace(run).live.tolist()


def test_measures_by_hand() -> None:
    """A hole of 2 MiB between two blocks of 3 MiB in the caching manager's segment of 20 MiB."""
    trace = Trace.of_calls([1, 2, 3, -2, 4], [3 * MIB, 2 * MIB, 3 * MIB, 512])
    row = flnb.memory.replay(trace, ["caching"])["caching"]
    assert row.peak_reserved == 22 * MIB  # the last block is small
    assert row.reserved.tolist() == [20 * MIB] * 4 + [22 * MIB]
    assert row.ratio_at_peak == 20 / 8
    assert row.largest_hole == 12 * MIB
    assert row.unusable == 0.0
    assert row.internal == 0.0
    assert row.native_calls == 2
    assert row.ratio_average == pytest.approx((4 * 20 + 22) / (3 + 5 + 8 + 6 + 6 + 512 / MIB))


def test_where_memory_runs_out_the_replay_stops() -> None:
    trace = Trace.of_calls([1, 2, 3], [3 * MIB, 30 * MIB, 512])
    row = flnb.memory.replay(trace, ["caching"], capacity="32MiB").rows[0]
    assert row.first_oom == (1, 30 * MIB)
    assert row.calls == 1
    assert row.live.tolist() == [3 * MIB]


def test_managers_by_name_class_instance_and_function() -> None:
    trace = Trace.of_calls([1], [12 * MIB])
    specs = ["caching:split_limit=1MiB", Caching, Caching(split_limit="1MiB"), lambda device: Caching(device, "1MiB")]
    labels = [row.manager for row in flnb.memory.replay(trace, specs).rows]
    assert labels == ["caching(split_limit=1MiB)", "caching", "caching(split_limit=1MiB)", "<lambda>"]


def test_a_recording_that_runs_hears_nothing_of_a_replay() -> None:
    trace = Trace.of_calls([1, -1], [12 * MIB])
    with flnb.record() as run:
        before = len(run.table("segment_alloc")["t"])
        flnb.memory.replay(trace, ["native"])
    assert len(run.table("segment_alloc")["t"]) == before


class Deaf(MemoryManager):
    """Keeps the device that it was born with."""

    def __init__(self, device: Any = None) -> None:
        pass

    def alloc(self, nbytes: int, stream: int = 0, hint: Any = None) -> Block:
        segment = self.device.reserve(nbytes)
        return Block(segment.address, segment.size, segment)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("cachin", "unknown memory manager 'cachin'; known: best-fit, buddy, .*native"),
        (3, "expected a memory manager's name, class or instance, or a function, got 3"),
        (Deaf, "its __init__ should take `device`"),
        (lambda device: 3, "returned 3, expected a memory manager"),
        ("caching:split=3", "caching has no setting 'split'; its settings: split_limit, recycling_limit"),
    ],
)
def test_what_cannot_be_replayed_is_told(spec: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        flnb.memory.replay(Trace.of_calls([1], [8]), [spec])


def test_an_unknown_row_lists_the_known() -> None:
    found = flnb.memory.replay(Trace.of_calls([1], [8]), ["native"])
    with pytest.raises(KeyError, match="it has native"):
        found["caching"]


def test_one_name_is_one_manager() -> None:
    found = flnb.memory.replay(Trace.of_calls([1], [8]), "native")
    assert [row.manager for row in found.rows] == ["native"]


@pytest.mark.parametrize("name", ["native", "exact", "caching"])
def test_a_replay_rounds_segments_as_the_recorded_device_did(name: str) -> None:
    with flnb.use_memory_manager(name), flnb.record("small") as run:
        kept = [flnb.ones((count,)) for count in (1200, 1300, 5000)]
        del kept
    (row,) = flnb.memory.replay(run, [name]).rows
    assert row.peak_reserved == int(run.memory.timeline().reserved.max())
    assert flnb.memory.rerun(run, name).memory.peak.reserved == run.memory.peak.reserved
    del run.meta["granularity"]  # older files have none
    assert flnb.memory.replay(run, [name])[name].peak_reserved == row.peak_reserved


def test_a_manager_that_needs_a_capacity_does_not_abort_the_others() -> None:
    trace = Trace.of_calls([1, -1], [3 * MIB])
    found = flnb.memory.replay(trace, ["reserved", "native"])
    assert [row.manager for row in found.rows] == ["native"]
    (why,) = found.unmade
    assert "'reserved' cannot be created for the simulated device" in why
    assert "a share of a capacity, but the device 'simulated' has none" in why
    for shown in (repr(found).replace("\n", " "), found._repr_html_()):
        assert "pass bytes such as reserve=" in shown
    with pytest.raises(ValueError, match="a share of a capacity, but the device 'simulated' has none"):
        flnb.memory.replay(trace, "reserved")
    assert flnb.memory.replay(trace, ["reserved:reserve=8MiB"])["reserved(reserve=8MiB)"].peak_reserved == 8 * MIB


@pytest.mark.parametrize("name", ["caching", "native", "planned", "buddy"])
def test_an_empty_trace_asks_for_nothing(name: str) -> None:
    found = flnb.memory.replay(Trace.of_calls([], []), [name])
    (row,) = found.rows
    assert (row.calls, row.first_oom, row.largest_hole) == (0, None, 0)
    assert found.packing.height == 0
    assert repr(found).startswith("trace: 0 calls, 0 allocations, at most 0 B live")
