"""Segments that grow where they are: on the devices, in the books, in events, and what managers make of them."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest

import flnb
from flnb.dispatch.memory import allocate, release
from flnb.interface.memory import Lease, OutOfMemoryError
from flnb.memory import BestFit, Expandable, HostDevice, MemoryDevice, Segment, SimulatedDevice

pytestmark = pytest.mark.usefixtures("nothing_held")

KIB, MIB = 1 << 10, 1 << 20


class Rigid(SimulatedDevice):
    """Implements no more than it must."""

    reserve_growing, resize = MemoryDevice.reserve_growing, MemoryDevice.resize


@pytest.mark.parametrize("device", [HostDevice("64MiB"), SimulatedDevice("64MiB"), SimulatedDevice()])
def test_a_growing_segment_stays_where_it_is(device: MemoryDevice) -> None:
    lease = Lease(device)
    segment = lease.reserve(2 * MIB, growing=True)
    address = segment.address
    assert lease.resize(segment, 5 * MIB + 1)
    assert (segment.address, segment.size) == (address, 5 * MIB + device.granularity)
    assert lease.reserved == lease.peak == device.reserved == segment.size
    assert lease.resize(segment, 3 * MIB)
    assert (lease.reserved, lease.peak) == (3 * MIB, 5 * MIB + device.granularity)
    lease.release(segment)
    assert lease.reserved == device.reserved == 0


def test_what_lies_in_a_growing_segment_stays_and_what_is_cut_off_goes() -> None:
    lease = Lease(HostDevice("64MiB"))
    segment = lease.reserve(2 * MIB, growing=True)
    ctypes.memset(segment.address, 7, segment.size)
    lease.resize(segment, 32 * MIB)
    last = segment.address + segment.size - 1
    assert ctypes.string_at(segment.address + 2 * MIB - 1, 2) == b"\x07\x00"
    ctypes.memset(last, 9, 1)
    lease.resize(segment, MIB)
    lease.resize(segment, 32 * MIB)
    assert ctypes.string_at(last, 1) == b"\x00"  # its page went back in between
    assert ctypes.string_at(segment.address + MIB - 1, 2) == b"\x07\x00"
    lease.release(segment)


def test_what_cannot_be_resized_is_told() -> None:
    lease = Lease(SimulatedDevice("8MiB"))
    fixed, segment = lease.reserve(MIB), lease.reserve(MIB, growing=True)
    assert not lease.resize(fixed, 2 * MIB)
    assert fixed.size == MIB
    with pytest.raises(OutOfMemoryError, match=r"no room for 7.00 MiB .* more in segment .*: 2.00 MiB .* of 8.00 MiB"):
        lease.resize(segment, 8 * MIB)
    with pytest.raises(ValueError, match="resize: got 0 bytes, expected a positive number"):
        lease.resize(segment, 0)
    lease.release(segment)
    with pytest.raises(ValueError, match=r"resize: segment .* is not held by this manager"):
        lease.resize(segment, MIB)
    assert lease.reserved == MIB


def test_a_host_that_refuses_addresses_gives_what_fits(monkeypatch: Any) -> None:
    real = mmap.mmap

    def strict(fd: int, length: int, flags: int) -> mmap.mmap:
        if length > 16 * MIB:
            raise OSError("Cannot allocate memory")
        return real(fd, length, flags=flags)

    monkeypatch.setattr("flnb_backends.memory.host.mmap.mmap", strict)
    lease = Lease(HostDevice("1GiB"))
    segment = lease.reserve(2 * MIB, growing=True)
    assert not lease.resize(segment, 8 * MIB)
    assert segment.size == lease.reserved == 2 * MIB
    lease.release(segment)


def test_expandable_fills_one_segment_where_caching_begins_another() -> None:
    manager = Expandable(SimulatedDevice("1GiB"))
    blocks = [allocate(manager, size) for size in (11 * MIB, 3 * MIB, 30 * MIB, 512)]
    large, small = manager.snapshot()
    assert [block.size for block in large.blocks] == [11 * MIB, 3 * MIB, 30 * MIB]
    assert small.segment.size == 2 * MIB
    release(manager, blocks[2])
    assert allocate(manager, 31 * MIB).segment is large.segment  # of the free 30 at the end, and 2 more
    assert large.segment.size == 46 * MIB


@pytest.mark.parametrize("manager", [Expandable, BestFit])
def test_free_room_at_the_end_goes_back(manager: Any) -> None:
    held = manager(SimulatedDevice("64MiB"))
    first, second = allocate(held, 3 * MIB), allocate(held, 20 * MIB)
    release(held, second)
    assert held.release_cached() == 21 * MIB
    assert held.stats()["reserved"] == 3 * MIB
    with pytest.raises(OutOfMemoryError):
        allocate(held, 62 * MIB)
    assert allocate(held, 61 * MIB).size == 61 * MIB  # not one byte of the device is left
    release(held, first)
    assert held.release_cached() == 0  # it is at the beginning
    assert allocate(held, 3 * MIB).address == first.address


@pytest.mark.parametrize("manager", [Expandable, BestFit])
def test_on_a_device_that_cannot_resize_there_are_more_segments(manager: Any) -> None:
    assert flnb.testing.check_manager(lambda device: manager(Rigid(device.capacity)))
    held = manager(Rigid("64MiB"))
    blocks = [allocate(held, 3 * MIB) for _ in range(4)]
    assert held.stats()["segments"] == 4
    for block in blocks:
        release(held, block)
    assert held.release_cached() == 16 * MIB


def test_a_recording_knows_each_size_of_a_segment(tmp_path: Any) -> None:
    with flnb.record() as run:
        manager = Expandable(SimulatedDevice())
        blocks = [allocate(manager, 3 * MIB) for _ in range(3)]
        release(manager, blocks.pop())
        manager.release_cached()
        blocks.append(allocate(manager, 2 * MIB))
    (segment,) = manager.device.segments.values()
    events = run.table("segment_resize")
    assert (events["size"] // MIB).tolist() == [6, 10, 6, 8]
    assert set(events["segment_id"].tolist()) == {segment.id}
    run.save(tmp_path / "a.flnb")
    for memory in run.memory, flnb.load_run(tmp_path / "a.flnb").memory:
        _check(memory, run.start, segment, events)


def _check(memory: Any, start: int, segment: Segment, events: Any) -> None:
    line = memory.timeline()
    assert (np.unique(line.reserved) // MIB).tolist() == [4, 6, 8, 10]
    assert line.reserved[-1] == segment.size == 8 * MIB
    for t, size in zip((events["t"] - start) / 1e9, events["size"], strict=True):
        (found,) = memory.at(float(t) + 1e-9).segments
        assert (found.id, found.address, found.size) == (segment.id, segment.address, size)
    assert memory.peak.reserved == 10 * MIB


def test_training_in_segments_that_grow() -> None:
    device = HostDevice()
    with flnb.use_memory_manager(Expandable(device, step="64KiB")) as manager:
        kept = [flnb.full((k * 1000,), float(k)) for k in range(1, 60)]
        assert manager.stats()["segments"] == 1
        assert all(float(x.sum().item()) == 1000.0 * k * k for k, x in enumerate(kept, 1))
        assert manager.stats()["reserved"] == device.reserved < 8 * MIB
    assert isinstance(manager.snapshot()[0].segment, Segment)
