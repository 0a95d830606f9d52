"""Threads, forks and a Ctrl-C where arrays meet managers: nobody loses memory, and none is given out twice."""

import dis
import os
import random
import sys
import threading
import time
from itertools import pairwise

import pytest
from flnb_backends.memory.caching import Caching
from flnb_backends.memory.expandable import Expandable
from flnb_backends.memory.native import Native
from flnb_backends.memory.reserved import Reserved
from flnb_backends.memory.simulated import SimulatedDevice

from flnb.dispatch.memory import allocate, owner_of, release
from flnb.interface import OutOfMemoryError
from flnb.interface.memory import FREED, dropped
from tests.memory.test_crossing import array, managers

FILES = {function.__code__.co_filename for function in (allocate, release)}
"""The source files of the crossing for memory."""


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
def test_threads_share_a_manager(Manager, restless):
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

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    work(9)  # the first thread keeps going while the others arrive
    for thread in threads:
        thread.join()
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
    assert "unlocked" in repr(manager.ledger.lock)
    assert manager.stats()["live"] == 2


@managers
def test_ctrl_c_anywhere_loses_no_memory_and_gives_none_out_twice(Manager):
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
    files |= FILES
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

    live, outer, block = [], sys.gettrace(), None
    for is_alloc, number in calls:
        block = None if is_alloc or not live else live.pop(number % len(live))
        sys.settrace(trace if countdown > 0 else outer)
        try:
            if block is None:
                live.append(allocate(manager, 300 << number))
            else:
                release(manager, block)
        except KeyboardInterrupt:
            sys.settrace(outer)
            manager.settle()
            if block is not None and manager.ledger.live.get(block.id) is block:  # it had not begun
                release(manager, block)
        finally:
            sys.settrace(outer)
    assert "unlocked" in repr(manager.ledger.lock)
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
    manager.release_cached()
    stats = manager.stats()
    assert (stats["live"], stats["allocated"]) == (0, 0)
    assert stats["reserved"] == (manager.first.size if isinstance(manager, Reserved) else 0)
    assert manager.device.device.reserved == stats["reserved"]
    return countdown == -1


def test_ctrl_c_anywhere_loses_no_array():
    """Also where a notebook keeps the traceback, and with it whatever was being made."""
    manager, kept, moment = Caching(SimulatedDevice()), [], 0

    def line(frame, event, arg):
        nonlocal left
        left -= event == "line"
        if left == 0 and event == "line":
            sys.settrace(None)
            raise KeyboardInterrupt
        return line

    def owned():
        for size in (600, 700):
            allocate(manager, size, make=owner_of)

    left, outer = 0, sys.gettrace()
    while left <= 0:
        moment += 1
        left = moment
        sys.settrace(lambda frame, *_: line if frame.f_code.co_filename in FILES else None)
        try:
            owned()
        except KeyboardInterrupt as error:
            kept.append(error)
        finally:
            sys.settrace(outer)
        allocated = [allocate(manager, 600, make=owner_of) for _ in range(2)]
        assert manager.stats()["live"] - 2 in (0, 1)  # one that is in the traceback
        kept.clear()
        assert manager.stats()["live"] == 2
        assert len({owner.block.address for owner in allocated}) == 2
        del allocated
        assert manager.stats()["live"] == 0
    assert moment > 50
    manager.release_cached()
    assert manager.device.reserved == 0


class Meets(SimulatedDevice):
    """A device that is full, and first says so when the other thread has come to its own."""

    all = threading.Barrier(3, timeout=20)
    full = met = False

    def _range(self, nbytes, room):
        if self.full and not self.met:
            self.met = True
            self.all.wait()
        if self.full:
            raise MemoryError
        return super()._range(nbytes, room)


@pytest.mark.parametrize("kind", [Caching, Expandable])
def test_two_full_managers_do_not_wait_for_each_other(kind):
    """Each thread runs out of memory while the queue holds a block of the other's manager."""
    devices = [Meets(), Meets()]
    managers = [kind(device) for device in devices]
    blocks = [allocate(manager, 1 << 20) for manager in managers]
    for device in devices:
        device.full = True
    failed = []

    def ask(number):
        with pytest.raises(OutOfMemoryError):
            allocate(managers[number], 1 << 30)
        failed.append(number)

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in (0, 1)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)  # both have looked at the queue, and hold their manager's lock
    for block in blocks:  # as if their arrays were deleted now
        block.dropped = FREED
        dropped.append(block)
    Meets.all.wait()
    for thread in threads:
        thread.join(10)
    assert sorted(failed) == [0, 1]
