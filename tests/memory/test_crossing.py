"""Where arrays meet managers: lifetimes, finalisers, locks, threads, events, errors."""

import ctypes
import gc
import sys

import numpy as np
import pytest
from flnb_backends.memory.caching import Caching
from flnb_backends.memory.host import HostDevice
from flnb_backends.memory.native import Native
from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry import bus

import flnb
from flnb.dispatch import registry
from flnb.dispatch.memory import allocate, array_in, block_of, release
from flnb.interface.memory import AllocHint, Block, MemoryManager, OutOfMemoryError, dropped, in_words

F32 = np.dtype("float32")
SHIPPED = [registry.find("memory manager", name) for name in registry.names("memory manager") if name != "planned"]
managers = pytest.mark.parametrize("Manager", SHIPPED)


def array(manager, *shape, **options):
    return array_in(manager, shape, F32, 4 * int(np.prod(shape)), **options)


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
    assert calls == ["free_own"]
    del b
    manager.stats()
    assert len(calls) == 2


def test_garbage_may_be_collected_while_the_queue_is_read(no_collector):
    """Python 3.11 collects it in the middle of an allocation, and its arrays are added to the queue."""

    class Garbage:
        pass

    manager, before = Caching(), gc.get_threshold()
    try:
        for later in range(40):
            cycle = Garbage()
            cycle.itself, cycle.array = cycle, array(manager, 1000)
            many = [array(manager, 1000) for _ in range(25)]
            del cycle, many
            gc.set_threshold(gc.get_count()[0] + later % 20 + 1, 1000, 1000)
            gc.enable()
            manager.settle()
            gc.disable()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert manager.stats()["live"] == 0


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


def test_memory_given_out_twice_is_an_error_at_once():
    class Twice(Native):
        """Every block begins in the middle of the one before it."""

        def alloc(self, nbytes, stream=0, hint=None):
            if not self.ledger.live:
                return super().alloc(nbytes)
            last = list(self.ledger.live.values())[-1]
            return Block(last.address + 4096, 4096, last.segment)

    manager = Twice()
    with flnb.record(), flnb.use_memory_manager(manager):
        x = flnb.ones((4096,))
        with pytest.raises(ValueError, match=r"'Twice': alloc\(4000\).* bytes 0 to 16384 of the segment are in use"):
            flnb.ones((1000,))
        del x
        assert flnb.ones((1000,)).shape == (1000,)
    stats = manager.stats()
    assert (stats["live"], manager.ledger.places) == (0, [])


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
        with pytest.raises(ValueError, match=r"not a live block of .*: it is free"):
            call(block)


def test_misuse_is_refused():
    manager, other = Caching(), Caching()
    block, a = allocate(manager, 100), array(manager, 1000)
    with pytest.raises(ValueError, match=r"release: .* is not a live block of .*: it belongs to <caching"):
        release(other, block)
    with pytest.raises(ValueError, match=r"user_unlock: .* is not locked"):
        manager.user_unlock(block)
    with pytest.raises(ValueError, match="holds an array; it is freed when the array and its views are deleted"):
        release(manager, block_of(a))
    manager.user_lock(block)
    release(manager, block)
    with pytest.raises(ValueError, match="was released before; its last user_unlock will free it"):
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


def test_sizes_in_words():
    assert [in_words(n) for n in (0, 1023, 1536, 3 << 30)] == [
        "0 bytes",
        "1023 bytes",
        "1.50 KiB (1536 bytes)",
        "3.00 GiB (3221225472 bytes)",
    ]
    with pytest.raises(ValueError, match=r"the capacity of HostDevice is '1 potato'"):
        HostDevice("1 potato")
