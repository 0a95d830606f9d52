"""Where arrays meet managers: lifetimes, finalisers, locks, threads, events, errors."""

import ctypes
import dis
import gc
import os
import random
import sys
import threading
from itertools import pairwise

import numpy as np
import pytest
from flnb_backends.memory.caching import Caching
from flnb_backends.memory.host import HostDevice
from flnb_backends.memory.native import Native
from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry import bus, schema

import flnb
from flnb.dispatch import registry
from flnb.dispatch.memory import allocate, announce, array_in, block_of, drain, release
from flnb.interface.memory import AllocHint, Block, MemoryManager, OutOfMemoryError, dropped, in_words

F32 = np.dtype("float32")
SHIPPED = [registry.find("memory manager", name) for name in registry.names("memory manager") if name != "planned"]
managers = pytest.mark.parametrize("Manager", SHIPPED)


def array(manager, *shape, **options):
    return array_in(manager, shape, F32, 4 * int(np.prod(shape)), **options)


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def recorded(monkeypatch):
    """Records as (kind name, columns): read after the calls under test."""
    drain()
    lane = bus.Lane(0)
    monkeypatch.setattr(bus, "lanes", bus.Lanes(lambda: lane))

    def rows():
        found = []
        for row in lane.drain():
            (kind,) = (kind for kind in schema.KINDS.values() if kind.number == int(row[0]) & 0xFF)
            found.append((kind.name, {k: int(v[0]) for k, v in schema.columns(kind, row[None]).items()}))
        return found

    return rows


@managers
def test_arrays_lie_in_blocks_aligned_and_writable(Manager, no_collector):
    manager = Manager()
    arrays = [array(manager, n, n) for n in (1, 16, 17, 300, 1000)]
    for i, a in enumerate(arrays):
        block = block_of(a)
        a[...] = i
        assert a.flags.c_contiguous
        assert a.flags.writeable
        assert a.ctypes.data == block.address
        assert block.address % 64 == 0
        assert block.size >= a.nbytes == block.requested
    assert all((a == i).all() for i, a in enumerate(arrays))
    assert manager.stats()["live"] == 5
    del arrays, a, block
    assert manager.stats()["allocated"] == 0


@managers
@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[3:],
        lambda a: a.T,
        lambda a: a.reshape(-1)[::2],
        lambda a: memoryview(a),
        lambda a: a[1:2].view("u1"),
    ],
)
def test_a_surviving_view_keeps_the_block(Manager, view, no_collector):
    manager = Manager()
    a = array(manager, 64, 64)
    a[...] = 7
    kept = view(a)
    before = np.asarray(kept).copy()
    del a
    assert manager.stats()["live"] == 1
    others = [array(manager, 64, 64) for _ in range(10)]
    for other in others:
        other[...] = -1
    assert (np.asarray(kept) == before).all()
    del kept, others, other
    assert manager.stats()["live"] == 0


def test_ten_thousand_arrays_need_no_collector(no_collector):
    manager = Caching()
    keep = array(manager, 1000)
    for _ in range(10_000):
        keep = keep + 0 if False else array(manager, 1000)
    del keep
    stats = manager.stats()
    assert stats["allocs"] == stats["frees"] == 10_001
    assert stats["peak_allocated"] == 2 * 4096
    assert stats["reserved"] == 2 << 20


def test_a_finaliser_only_queues(no_collector):
    calls = []

    class Loud(Native):
        def free(self, block):
            calls.append(sys._getframe(1).f_code.co_name)
            super().free(block)

    manager = Loud()
    a = array(manager, 1000)
    del a
    assert not calls
    assert len(dropped) == 1
    b = array(manager, 10)
    assert calls == ["drain"]
    del b
    manager.stats()
    assert len(calls) == 2


def test_an_error_in_a_users_free_warns_whoever_drains_and_the_block_stays_accounted_for(recorded, no_collector):
    class Broken(Native):
        def free(self, block):
            raise KeyError("cannot free")

    manager, other = Broken(), Caching()
    a = array(manager, 1000)
    block = block_of(a)
    del a
    expected = (
        r"memory manager 'Broken': free\(<.*4000 of 4096 bytes.*\) raised KeyError\('cannot free'\); the block stays"
    )
    with pytest.warns(RuntimeWarning, match=expected) as caught:
        b = array(other, 1000)  # somebody else's allocation
    assert len(caught) == 1
    assert b.shape == (1000,)
    stats = manager.stats()
    assert (stats["live"], stats["frees"], stats["allocated"]) == (1, 0, 4096)
    assert [state.id for _, blocks in manager.snapshot() for state in blocks] == [block.id]
    live = {}  # what the views show: the block is there
    for name, row in recorded():
        if name == "alloc":
            live[row["alloc_id"]] = row["address"]
        elif name == "free_completed":
            del live[row["alloc_id"]]
    assert live == {block.id: block.address, block_of(b).id: block_of(b).address}


def test_an_error_in_a_users_free_arises_where_the_block_was_freed_by_hand():
    class Broken(Native):
        def free(self, block):
            raise KeyError("cannot free")

    manager = Broken()
    block = allocate(manager, 100)
    with pytest.raises(KeyError, match="cannot free"):
        release(manager, block)
    manager.user_lock(block)
    assert manager.stats()["live"] == 1


def test_blocks_go_back_to_the_manager_they_came_from(no_collector):
    old, new = Caching(), Caching()
    a = array(old, 1000)
    b = array(new, 1000)
    del a
    array(new, 10)  # a call of the new manager hands the old one's block back
    assert all(getattr(item, "block", item).manager is new for item in dropped)
    assert (old.ledger.live, old.ledger.allocated) == ({}, 0)
    del b
    assert new.stats()["live"] == 0


def test_a_forgotten_manager_gives_its_share_of_the_device_back():
    device = SimulatedDevice("8MiB")
    for _ in range(3):
        manager = Caching(device)
        block = allocate(manager, 768 << 10)
        assert device.reserved == 2 << 20
        del manager
        gc.collect()
        assert device.reserved == 2 << 20  # a block holds it
        del block
        gc.collect()
        assert device.reserved == 0


def test_memory_of_a_forgotten_manager_lives_as_long_as_its_arrays():
    a = array(Caching(), 1000, 1000)
    a[...] = 3
    gc.collect()
    assert a.sum() == 3e6


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


def test_no_python_code_runs_when_an_array_goes():
    """CPython swallows a Ctrl-C that arrives in a finaliser, so there must be none: training would go on."""
    manager, seen = Native(), []
    a = array(manager, 4096)
    sys.setprofile(lambda frame, event, _: seen.append((event, frame.f_code.co_name)))
    try:
        del a
    finally:
        sys.setprofile(None)
    assert not [name for event, name in seen if event == "call"]
    assert manager.stats()["live"] == 0


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
    lane = bus.Lane(0)
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
        pytest.warns(
            UserWarning, match=r"<Broken: .* is missing from the recording's start: RuntimeError\('lost count'\)"
        ),
    ):
        announce(bus.Lane(0))


def test_locks_hold_a_block_after_its_array_is_gone(no_collector):
    manager = Caching()
    a = array(manager, 1000)
    a[...] = 5
    block = block_of(a)
    manager.user_lock(block)
    manager.user_lock(block)
    address = a.ctypes.data
    del a
    other = array(manager, 1000)
    other[...] = 0
    assert manager.stats()["live"] == 2
    assert (ctypes.c_float * 1000).from_address(address)[999] == 5
    manager.user_unlock(block)
    assert manager.stats()["live"] == 2
    manager.user_unlock(block)
    assert manager.stats()["live"] == 1
    for call in (manager.user_lock, manager.user_unlock):
        with pytest.raises(ValueError, match=r"no live block of .*: it is free"):
            call(block)


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


def test_misuse_is_refused():
    manager, other = Caching(), Caching()
    block, a = allocate(manager, 100), array(manager, 1000)
    with pytest.raises(ValueError, match=r"release: .* is no live block of .*: it belongs to <caching"):
        release(other, block)
    with pytest.raises(ValueError, match=r"user_unlock: .* is not locked"):
        manager.user_unlock(block)
    with pytest.raises(ValueError, match="holds an array; it is freed when the array and its views are deleted"):
        release(manager, block_of(a))
    manager.user_lock(block)
    release(manager, block)
    with pytest.raises(ValueError, match="only waits for its last user_unlock"):
        release(manager, block)
    manager.user_unlock(block)
    with pytest.raises(ValueError, match="it is free"):
        release(manager, block)
    with pytest.raises(ValueError, match="allocate: got -1 bytes, expected 0 or more"):
        allocate(manager, -1)
    with pytest.raises(ValueError, match=r"segment .* is not held by this manager"):
        other.device.release(block.segment)
    assert manager.stats()["live"] == 1


def test_a_block_outside_the_managers_segments_is_refused():
    class Wild(MemoryManager):
        def alloc(self, nbytes, stream=0, hint=None):
            segment = self.device.reserve(nbytes)
            return Block(segment.address + self.shift, nbytes, segment)

    manager = Wild(SimulatedDevice())
    for manager.shift in (64, 1):
        with pytest.raises(ValueError, match="expected at least 4096 bytes at a multiple of 64, inside a segment"):
            allocate(manager, 4096)


def test_a_simulated_device_holds_no_arrays():
    manager = Caching(SimulatedDevice("80GiB"))
    with pytest.raises(TypeError, match="'simulated', which has addresses but no memory"):
        array(manager, 1000)
    assert manager.stats()["live"] == 0


def test_hints_reach_managers_that_want_them():
    hints = []

    class Asking(Native):
        wants_hint = True

        def alloc(self, nbytes, stream=0, hint=None):
            hints.append(hint)
            return super().alloc(nbytes, stream, hint)

    with bus.scope("net"):
        array(Asking(), 20, 50, category=3)
    assert hints == [AllocHint((20, 50), F32, "activation", "", "net")]


def test_the_operating_systems_refusal_is_an_out_of_memory_error():
    with pytest.raises(OutOfMemoryError, match="the operating system refuses"):
        allocate(Native(HostDevice("999999TiB")), 1 << 55)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_cannot_write_into_its_parents_arrays():
    a = array(Caching(), 1000)
    a[...] = 1
    child = os.fork()
    if not child:
        a[...] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert (a == 1).all()


@managers
def test_threads_share_a_manager(Manager):
    manager = Manager()
    errors = []

    def work(number):
        try:
            held = []
            for i in range(600):
                held.append(array(manager, 100 + i % 37))
                held[-1][...] = number
                if i % 3 == 0:
                    a = held.pop(i % len(held))
                    assert (a == number).all()
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        work(9)  # the first thread keeps going while the others arrive
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors
    stats = manager.stats()
    assert (stats["live"], stats["allocated"], stats["allocs"]) == (0, 0, 3000)
    assert all(len(blocks) == 1 for _, blocks in manager.snapshot())


def test_a_second_thread_waits_until_the_first_is_out():
    entered, go, order = threading.Event(), threading.Event(), []

    class Slow(Native):
        def alloc(self, nbytes, stream=0, hint=None):
            order.append(("in", nbytes))
            if nbytes == 1:
                entered.set()
                go.wait(10)
                self.stats()  # a manager may ask itself, inside
            order.append(("out", nbytes))
            return super().alloc(nbytes, stream, hint)

    manager = Slow()

    def second():
        entered.wait(10)
        threading.Timer(0.05, go.set).start()
        allocate(manager, 2)

    thread = threading.Thread(target=second)
    thread.start()
    allocate(manager, 1)
    thread.join()
    assert order == [("in", 1), ("out", 1), ("in", 2), ("out", 2)]
    assert not manager.ledger.busy
    assert manager.stats()["live"] == 2


@managers
def test_ctrl_c_anywhere_gives_no_memory_out_twice(Manager):
    draw = random.Random(1)
    calls = [(draw.random() < 0.55, draw.choice((0, 0, 1, 2, 3, 13))) for _ in range(18)]
    moment = 1
    while interrupt(Manager, moment, calls):
        moment += 1
    assert moment > 100


def interrupt(Manager, moment, calls):
    """Interrupt the manager or the crossing wherever CPython looks for signals: after a call, on entry, in a loop."""
    manager = Manager(SimulatedDevice("256MiB"))
    files = {sys.modules[base.__module__].__file__ for base in Manager.mro() if base.__module__.startswith("flnb_b")}
    files.add(allocate.__code__.co_filename)
    countdown, previous = moment, {}

    def trace(frame, event, arg):
        nonlocal countdown
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            opcode = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            before, previous[frame] = previous.get(frame, "RESUME"), opcode
            countdown -= before.startswith(("RESUME", "CALL", "JUMP_BACKWARD")) and opcode not in ("CACHE", "RESUME")
            if not countdown:
                countdown = -1
                raise KeyboardInterrupt
        return trace

    live, outer = [], sys.gettrace()
    for is_alloc, number in calls:
        sys.settrace(trace if countdown > 0 else outer)
        try:
            if is_alloc or not live:
                live.append(allocate(manager, 300 << number))
            else:
                release(manager, live.pop(number % len(live)))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(outer)
    assert not manager.ledger.busy
    live += [allocate(manager, size) for size in (300, 5000, 100_000, 3 << 20)]
    for segment, blocks in manager.snapshot():
        position = segment.address
        for block in blocks:
            assert block.address == position
            position += block.size
        assert position == segment.address + segment.size
    places = sorted((block.address, block.size) for block in live)
    assert all(low[0] + low[1] <= high[0] for low, high in pairwise(places))
    for block in live:
        release(manager, block)
    assert manager.stats()["reserved"] >= sum(state.segment.size for state in manager.snapshot())
    return countdown == -1


def test_sizes_in_words():
    assert [in_words(n) for n in (0, 1023, 1536, 3 << 30)] == [
        "0 bytes",
        "1023 bytes",
        "1.50 KiB (1536 bytes)",
        "3.00 GiB (3221225472 bytes)",
    ]
    with pytest.raises(ValueError, match=r"the capacity of HostDevice is '1 potato'"):
        HostDevice("1 potato")


def test_an_absurd_request_fails_as_out_of_memory_also_while_recording():
    with flnb.record() as run, pytest.raises(OutOfMemoryError, match="asked for"):
        flnb.zeros((2**62, 16))
    assert len(run.table("oom")["t"]) == 1
    assert "out of memory" in repr(run)
