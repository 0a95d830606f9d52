"""The conformance kit: a small manager passes, broken ones fail with a short sequence that shows why."""

from bisect import insort

import numpy as np
import pytest
from flnb_backends.memory.caching import Caching
from flnb_backends.memory.native import Native

from flnb.dispatch.memory import array_in
from flnb.interface.memory import Block, MemoryManager
from flnb.memory import BestFit, Buddy
from flnb.testing.managers import check_manager


class FirstFit(MemoryManager):
    """One arena; the first hole that is large enough."""

    def __init__(self, device=None):
        super().__init__(device)
        self.arena = self.device.reserve(64 << 20)
        self.holes = [(self.arena.address, self.arena.size)]  # by address

    def alloc(self, nbytes, stream=0, hint=None):
        size = max(1, -(-nbytes // 64)) * 64
        for i, (address, room) in enumerate(self.holes):
            if room >= size:
                self.holes[i : i + 1] = [(address + size, room - size)] if room > size else []
                return Block(address, size, self.arena)
        raise MemoryError("no hole is large enough")

    def free(self, block):
        insort(self.holes, (block.address, block.size))
        merged = []
        for address, size in self.holes:
            if merged and sum(merged[-1]) == address:  # begins where the hole before it ends
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((address, size))
        self.holes = merged


class NeverMerges(FirstFit):
    def free(self, block):
        insort(self.holes, (block.address, block.size))


class Overlaps(FirstFit):
    def alloc(self, nbytes, stream=0, hint=None):
        block = super().alloc(nbytes)
        if nbytes > 10_000:
            self.holes.insert(0, (block.address + block.size - 64, 64))
        return block


class Short(FirstFit):
    def alloc(self, nbytes, stream=0, hint=None):
        return super().alloc(nbytes - 100 if nbytes > 1 << 20 else nbytes)


class Crooked(Caching):
    def alloc(self, nbytes, stream=0, hint=None):
        block = super().alloc(nbytes + 8)
        block.address += 8 * (nbytes < 1000)
        return block


class Forgets(Caching):
    def free(self, block):
        pass


class Unlocks(Caching):
    def user_lock(self, block):
        pass

    user_unlock = user_lock


class Counts(Caching):
    def stats(self):
        return super().stats() | {"allocated": sum(piece.size for *_, piece in self.small.entries)}


class Hides(Caching):
    def snapshot(self):
        return super().snapshot()[:1]


class LetsGo(FirstFit):
    def release_cached(self):
        size = self.arena.size if self.arena.id in self.device.segments else 0
        if size:
            self.device.release(self.arena)
        return size


class Raises(Caching):
    def free(self, block):
        if block.size > 1 << 20:
            raise IndexError("off by one")
        super().free(block)


class Generous(Caching):
    def alloc(self, nbytes, stream=0, hint=None):
        block = self.device.reserve(32 << 20) if not self.device.segments else next(iter(self.device.segments.values()))
        return Block(block.address, max(nbytes, 1), block)

    def free(self, block):
        pass


class LosesRoomAfterOutOfMemory(FirstFit):
    def alloc(self, nbytes, stream=0, hint=None):
        try:
            return super().alloc(nbytes)
        except MemoryError:
            self.holes = []
            raise


class MergesAcrossSegments(MemoryManager):
    """Every segment holds one block of a page; neighbours are merged wherever they lie."""

    def __init__(self, device=None):
        super().__init__(device)
        self.holes = []

    def alloc(self, nbytes, stream=0, hint=None):
        size = max(1, -(-nbytes // 4096)) * 4096
        for hole in self.holes:
            if hole[1] >= size:
                self.holes.remove(hole)
                return Block(hole[0], hole[1], hole[2])
        segment = self.device.reserve(size)
        return Block(segment.address, segment.size, segment)

    def free(self, block):
        for hole in self.holes:
            if hole[0] + hole[1] == block.address:
                hole[1] += block.size
                return
        self.holes.append([block.address, block.size, block.segment])


class ShortAtPages(FirstFit):
    def alloc(self, nbytes, stream=0, hint=None):
        return super().alloc(nbytes - 64 if nbytes and nbytes % 4096 == 0 else nbytes)


class FailsOnce(FirstFit):
    """Its third block of all, whoever asks for it, is not aligned: another try does not fail."""

    made = 0

    def alloc(self, nbytes, stream=0, hint=None):
        block = super().alloc(nbytes)
        FailsOnce.made += 1
        block.address += FailsOnce.made == 3
        return block


@pytest.mark.parametrize("factory", [FirstFit, Caching, Native, lambda device: Caching(device, "4MiB", "2MiB")])
def test_good_managers_pass(factory):
    report = check_manager(factory)
    assert report, report
    assert "all 8 checks passed" in repr(report)
    assert "<table" in report._repr_html_()


@pytest.mark.parametrize(
    ("Manager", "check", "reason", "last"),
    [
        (
            NeverMerges,
            "freed memory is usable again",
            "not merged with its neighbours",
            "= alloc(67108864)  -> out of memory",
        ),
        (Overlaps, "blocks do not overlap", "a (bytes 0 to ", "b = alloc("),
        (Short, "calls succeed", "inside a segment returned by self.device.reserve", "a = alloc("),
        (Crooked, "size, place, segment", "does not begin at a multiple of 64", "a = alloc("),
        (Forgets, "freed memory is usable again", "not reused", "out of memory"),
        (Unlocks, "user locks hold", "was freed although 1 user locks hold it", "free(a)"),
        (Counts, "stats are the sums", "stats()['allocated'] is", "a = alloc("),
        (Hides, "snapshot tiles the segments", "live blocks", "b = alloc("),
        (LetsGo, "size, place, segment", "was released while the block is live", "release_cached()"),
        (Raises, "calls succeed", "IndexError: off by one", "free(a)"),
        (LosesRoomAfterOutOfMemory, "freed memory is usable again", "everything was freed", "out of memory"),
        (Generous, "recovers from out of memory", "bytes on a device of 268435456 bytes", "= alloc("),
        (MergesAcrossSegments, "calls succeed", "inside a segment returned by self.device.reserve", "= alloc("),
        (ShortAtPages, "calls succeed", "expected at least 4096 bytes", "a = alloc(4096)"),
        (Forgets, "recovers from out of memory", "a request of as many bytes fails again", "out of memory"),
    ],
)
def test_broken_managers_fail_with_a_short_sequence(Manager, check, reason, last):
    report = check_manager(Manager)
    assert not report
    failed = {result.check: result for result in report.results if not result.passed}
    assert check in failed, report
    result = failed[check]
    assert reason in result.reason
    assert last in result.calls[-1]
    assert len(result.calls) <= 10
    assert result.reason in repr(report)
    assert result.calls[-1] in repr(report)
    assert "0x" not in repr(report)  # offsets in the segment, not addresses, which mean nothing to a reader


def test_what_fails_only_once_has_failed():
    FailsOnce.made = 0
    report = check_manager(FailsOnce)
    (failed,) = (result for result in report.results if not result.passed)
    assert "at a multiple of 64" in failed.reason


def test_the_report_reads_well():
    lines = repr(check_manager(NeverMerges)).splitlines()
    assert lines[0] == "NeverMerges: 1 of 8 checks failed"
    assert "FAILED" in lines[1]
    assert [line.strip() for line in lines[2:5]] == [
        "a = alloc(64)",
        "free(a)",
        "b = alloc(67108864)  -> out of memory",
    ]


def test_a_manager_that_serves_nothing_and_a_factory_that_is_none():
    class Lazy(MemoryManager):
        pass

    assert "NotImplementedError: memory manager 'Lazy' does not implement 'alloc'" in repr(check_manager(Lazy))

    class Full(MemoryManager):
        def alloc(self, nbytes, stream=0, hint=None):
            raise MemoryError

    report = check_manager(Full)
    assert not report
    assert "an empty device of 268435456 bytes has no room for 64" in repr(report)
    with pytest.raises(TypeError, match=r"for a device, expected a MemoryManager"):
        check_manager(lambda device: device)


def test_tensors_of_other_managers_may_be_freed_meanwhile():
    native = Native()

    def factory(device):
        array_in(native, (1000,), np.dtype("f4"), 4000)  # dropped at once: freed in the middle of the trial
        return FirstFit(device)

    report = check_manager(factory, examples=3)
    assert report, report


def test_managers_that_forget_to_coalesce_fail_the_kit():
    class Slivers(BestFit):
        def free(self, block):
            block.free = True
            insort(self.arena.entries, (block.size, block.segment.id, block.address, block))

    class OneHalf(Buddy):
        def free(self, block):
            self.holes[block.size][block.address] = block.segment

    for forgetful in (Slivers, OneHalf):
        report = check_manager(forgetful)
        failed = {result.check: result for result in report.results if not result.passed}
        assert "freed memory is usable again" in failed, report
        result = failed["freed memory is usable again"]
        assert "not merged with its neighbours" in result.reason
        assert len(result.calls) <= 10
