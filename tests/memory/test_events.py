"""What managers and arrays tell: everything that views need, once, in order, also where a recording begins late."""

import random

import pytest
from flnb_backends.memory.caching import Caching
from flnb_backends.memory.host import HostDevice
from flnb_backends.memory.native import Native
from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry import bus, schema
from flnb_telemetry.lane import Lane

import flnb
from flnb.dispatch.announcing import announce
from flnb.dispatch.memory import allocate, block_of, release
from flnb.interface.memory import MemoryManager, OutOfMemoryError
from tests.memory.test_crossing import array, managers


def test_a_wrapper_calls_plain_methods_and_events_come_once(recorded):
    class Doubling(MemoryManager):
        def __init__(self, inner):
            self.inner = inner
            super().__init__(inner.device)

        def alloc(self, nbytes, stream=0, hint=None):
            return self.inner.alloc(2 * nbytes, stream, hint)

        def free(self, block):
            self.inner.free(block)

    manager = Doubling(Caching(SimulatedDevice()))
    block = allocate(manager, 1024)
    assert (block.size, manager.stats()["reserved"]) == (2048, 2 << 20)
    release(manager, block)
    assert [name for name, _ in recorded()] == ["segment_alloc", "alloc", "free_requested", "free_completed"]
    assert manager.inner.stats()["allocs"] == 0


def test_events_carry_what_the_views_need(recorded):
    with bus.scope("net"):
        manager = Native()
        plan_code = 1 | 42 << schema.PLAN_SHIFT
        a = array(manager, 1000, plan_code=plan_code, category=3)
        block = block_of(a)
        number, address, segment = block.id, block.address, block.segment.id
        del a, block
        manager.stats()
        context = bus.lanes.lane.context
    rows = [row for row in recorded() if row[0] != "scope"]
    place = {"alloc_id": number, "address": address, "size": 4096, "segment_id": segment, "context": context}
    assert [name for name, _ in rows] == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    (_, opened), (_, given_), (_, asked), (_, completed), (_, closed) = rows
    assert given_.items() >= (place | {"requested": 4000, "category": 3, "plan": 42}).items()
    assert asked.items() >= place.items()
    assert completed.items() >= place.items()
    assert opened.items() >= {"segment_id": segment, "address": address, "size": 4096}.items() <= closed.items()
    assert given_["t"] < asked["t"] <= completed["t"]


@managers
def test_events_rebuild_the_snapshot(Manager, recorded):
    manager, draw, live, told = Manager(SimulatedDevice("64MiB")), random.Random(1), [], {}
    for _ in range(300):
        if live and draw.random() < 0.5:
            release(manager, live.pop(draw.randrange(len(live))))
        else:
            live.append(allocate(manager, draw.choice((0, 100, 5000, 1 << 20, 3 << 20))))
        if not draw.randrange(20):
            manager.release_cached()
        for name, row in recorded():
            if name == "released":
                continue
            key = name.split("_")[0] == "segment", row.get("alloc_id") or row["segment_id"]
            if name in ("alloc", "segment_alloc", "segment_resize"):
                told[key] = row["address"], row["size"], row["segment_id"]
            elif name in ("free_completed", "segment_free"):
                assert told.pop(key) == (row["address"], row["size"], row["segment_id"])
        states = manager.snapshot()
        held = {(True, s.id): (s.address, s.size, s.id) for s, _ in states}
        held |= {(False, b.id): (b.address, b.size, s.id) for s, blocks in states for b in blocks if b.id}
        assert told == held


def test_out_of_memory_is_an_event_too(recorded):
    manager = Caching(HostDevice("4MiB"))
    with pytest.raises(OutOfMemoryError, match="caching on host: out of memory: asked for 5"):
        array(manager, 1310720)
    ((name, row),) = recorded()
    assert name == "oom"
    expected = {"requested": 5 << 20, "free": 4 << 20, "largest_hole": 0, "capacity": 4 << 20, "reserved": 0}
    assert row.items() >= expected.items()
    assert array(manager, 1000).shape == (1000,)


def test_a_recording_that_begins_later_hears_of_what_exists():
    manager = Caching()
    a = array(manager, 1000, category=1)
    other = array(Caching(), 1000)  # of a manager that is not active: no part of the run
    lane = Lane(0)
    with flnb.use_memory_manager(manager):
        announce(lane)
    block = block_of(a)
    rows = [tuple(map(int, row)) for row in lane.drain()]
    assert (schema.ALLOC | 1 << 8, block.id, block.address) in {(row[0], row[2], row[3]) for row in rows}
    assert (schema.SEGMENT_ALLOC, block.segment.id) in {(row[0] & 0xFF, row[2]) for row in rows}
    assert not {block_of(other).id, block_of(other).segment.id} & {row[2] for row in rows}


def test_a_broken_manager_does_not_stop_a_recording():
    class Broken(Native):
        def snapshot(self):
            raise RuntimeError("lost count")

    manager = Broken()
    with (
        flnb.use_memory_manager(manager),
        pytest.warns(UserWarning, match=r"lacks the earlier blocks of <Broken: .*: RuntimeError\('lost count'\)"),
    ):
        announce(Lane(0))


def test_locks_and_what_is_released_are_in_the_recording():
    manager = Caching(HostDevice("64MiB"))
    with flnb.use_memory_manager(manager):
        early = array(manager, 1000)
        manager.user_lock(block_of(early))
        with flnb.record() as run:
            a = array(manager, 2000)
            numbers = block_of(early).id, block_of(a).id
            for _ in range(2):
                manager.user_lock(block_of(a))
            manager.user_unlock(block_of(a))
            large = array(manager, 5 << 20)
            del large
            assert flnb.memory.release_cached() == 20 << 20
            assert flnb.memory.release_cached() == 0
    told = run.table("locked")
    assert told["alloc_id"].tolist() == [numbers[0], *[numbers[1]] * 3]
    assert told["locks"].tolist() == [1, 1, 2, 1]
    states = {block.id: block.state for segment in run.memory.at(run.seconds).segments for block in segment.blocks}
    assert states == dict.fromkeys(numbers, "locked")
    assert run.table("released")["nbytes"].tolist() == [20 << 20]
    assert run.table("released")["segments"].tolist() == [1]
    assert "user locks: on 2 blocks, 2 of them still locked" in repr(run)
    assert "release_cached gave back 20.0 MiB: 1 times" in repr(run)
    with flnb.record() as other:
        manager.user_unlock(block_of(a))
        flnb.memory.replay(run, ["caching"], capacity="64MiB")
    assert not len(other.table("released")["t"])  # a replay is no part of what is recorded
    manager.user_unlock(block_of(early))


def test_an_absurd_request_fails_as_out_of_memory_also_while_recording():
    with flnb.record() as run, pytest.raises(OutOfMemoryError, match="asked for"):
        flnb.zeros((2**62, 16))
    assert len(run.table("oom")["t"]) == 1
    assert "out of memory" in repr(run)


def test_what_is_too_small_for_a_block_is_mentioned_in_text_and_html():
    with flnb.use_memory_manager(Caching(HostDevice())), flnb.record() as run:
        before = run.memory.at(0.0)
        weight, bias = flnb.ones((1000,)), flnb.ones((10,))
        view, scalar = weight[:4], flnb.asarray(2.0)
    state = run.memory.at(run.seconds)
    said = "not in these sums: 2 results below 1.00 KiB, 44 B in all, made so far in memory of NumPy's own"
    assert said in repr(state)
    assert "not in these sums: 2 results below 1.00 KiB" in state._repr_html_()
    assert "not in these sums" not in repr(before)
    assert ">input</text>" in state._repr_html_(), "the picture says what its colours mean"
    assert weight.shape, (bias.shape, view.shape, scalar.shape) == ((10,), (4,), ())
