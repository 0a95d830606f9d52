"""The caching manager: rounding, best fit, splitting, merging, limits, and what happens when the device is full."""

import random
from itertools import permutations

import pytest
from flnb_backends.memory.caching import Caching
from flnb_backends.memory.simulated import SimulatedDevice
from hypothesis import given, settings
from hypothesis import strategies as st

from flnb.dispatch.memory import allocate, release
from flnb.interface.memory import OutOfMemoryError

KIB, MIB = 1 << 10, 1 << 20


def on(capacity=None, **limits):
    return Caching(SimulatedDevice(capacity), **limits)


def tiles(manager):
    """Per segment: [(size, live?), ...]; the holes between live blocks are the pieces that the manager has."""
    holes = sorted((b.size, s.id, b.address) for s, blocks in manager.snapshot() for b in blocks if not b.id)
    assert holes == sorted(piece[:3] for piece in manager.small.entries + manager.large.entries)
    return [[(block.size, bool(block.id)) for block in blocks] for _, blocks in manager.snapshot()]


@pytest.mark.parametrize(
    ("nbytes", "size", "segment"),
    [
        (0, 512, 2 * MIB),
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),
        (64 * MIB + 1, 64 * MIB + 512, 66 * MIB),
    ],
)
def test_sizes_and_segments(nbytes, size, segment):
    manager = on()
    block = allocate(manager, nbytes)
    assert (block.requested, block.size, block.segment.size) == (nbytes, size, segment)


def test_own_segment_is_split_only_when_a_mebibyte_is_left():
    manager = on()
    tight = allocate(manager, 11 * MIB + 512)  # 12 MiB segment, less than 1 MiB left: given out whole
    loose = allocate(manager, 11 * MIB)
    assert (tight.size, loose.size) == (12 * MIB, 11 * MIB)
    assert tiles(manager) == [[(12 * MIB, True)], [(11 * MIB, True), (MIB, False)]]


def test_best_fit_takes_the_smallest_hole_then_the_lowest_address():
    manager = on()
    sizes = [4 * KIB, 512, 2 * KIB, 512, 2 * KIB, 512]
    blocks = [allocate(manager, size) for size in sizes]
    addresses = [block.address for block in blocks]
    for index in (4, 0, 2):
        release(manager, blocks[index])
    assert allocate(manager, 1536).address == addresses[2]  # of two holes of 2 KiB the lower, not the first of 4
    assert allocate(manager, 2 * KIB).address == addresses[4]
    assert allocate(manager, 3 * KIB).address == addresses[0]
    assert allocate(manager, 512).address == addresses[2] + 1536


@pytest.mark.parametrize(("unit", "limit"), [(512, None), (MIB + 512, None), (MIB + 512, 18 * MIB)])
def test_the_hole_that_serves_a_request_is_the_first_of_the_smallest(unit, limit):
    """Also the hole that no list has, because it was made last."""
    manager, draw, live, served = on(recycling_limit=limit), random.Random(3), [], 0
    for _ in range(400):
        if live and draw.random() < 0.48:
            release(manager, live.pop(draw.randrange(len(live))))
            continue
        size = unit * draw.randrange(1, 6)
        holes = [(b.size, s.id, b.address) for s, blocks in manager.snapshot() for b in blocks if not b.id]
        best = min([hole for hole in holes if hole[0] >= size], default=(1 << 62, 0, 0))
        block = allocate(manager, size)
        if best[0] < (limit or 1 << 62):
            assert (block.segment.id, block.address) == best[1:]
            served += 1
        else:
            assert block.address == block.segment.address
            assert block.segment.id > max([hole[1] for hole in holes], default=0)
        live.append(block)
    assert served > 60


def test_small_and_large_pieces_do_not_mix():
    manager = on()
    large = allocate(manager, 2 * MIB)
    small = allocate(manager, 512)
    assert large.segment is not small.segment
    release(manager, small)
    assert allocate(manager, 2 * MIB).segment is large.segment


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_neighbours_merge_whatever_the_order(order):
    manager = on()
    blocks = [allocate(manager, size) for size in (512, 1024, 4096, 2048)]
    for index in order:
        release(manager, blocks[index])
    assert tiles(manager) == [[(2 * MIB, False)]]
    (whole,) = manager.small.entries
    segment = manager.snapshot()[0].segment
    assert whole[:3] == (2 * MIB, segment.id, segment.address)


def test_merging_stops_at_live_blocks():
    manager = on()
    a, b, c, d, e = (allocate(manager, 512) for _ in range(5))
    for block in (a, c, d):
        release(manager, block)
    assert tiles(manager) == [[(512, False), (512, True), (1024, False), (512, True), (2 * MIB - 2560, False)]]
    release(manager, b)
    assert tiles(manager)[0][0] == (2048, False)
    release(manager, e)
    assert tiles(manager) == [[(2 * MIB, False)]]


def test_split_limit_gives_large_pieces_out_whole():
    manager = on(split_limit="20MiB")
    assert allocate(manager, 2 * MIB).size == 20 * MIB  # the fresh segment is not below the limit
    assert allocate(on(split_limit=20 * MIB + 1), 2 * MIB).size == 2 * MIB


def test_recycling_limit_sends_large_pieces_back():
    manager = on(recycling_limit="16MiB")
    big, large, small = allocate(manager, 16 * MIB), allocate(manager, 2 * MIB), allocate(manager, 512)
    for block in (big, large, small):
        release(manager, block)
    assert [state.segment.size for state in manager.snapshot()] == [2 * MIB]  # small ones are always kept
    kept = on(recycling_limit="32MiB")
    release(kept, allocate(kept, 16 * MIB))
    assert kept.stats()["cached"] == 16 * MIB
    assert kept.stats()["reserved"] == 16 * MIB


def test_a_large_rest_beyond_the_recycling_limit_is_not_given_out():
    manager = on(recycling_limit="8MiB")
    first = allocate(manager, 2 * MIB)  # leaves a rest of 18 MiB in the segment
    assert allocate(manager, 2 * MIB).segment is not first.segment


def test_limits_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("FLNB_MEM_SPLIT_SIZE_MB", "20")
    monkeypatch.setenv("FLNB_MEM_RECYCLING_SIZE_MB", "1.5")
    manager = on()
    assert (manager.split_limit, manager.recycling_limit) == (20 * MIB, 3 * MIB // 2)
    assert on(split_limit=7, recycling_limit="1GiB").split_limit == 7  # an argument wins
    monkeypatch.setenv("FLNB_MEM_SPLIT_SIZE_MB", "many")
    with pytest.raises(ValueError, match="FLNB_MEM_SPLIT_SIZE_MB, a number of MiB, is 'manyMiB'; expected bytes"):
        on()
    for wrong in (0, -1, "64 potatoes"):
        with pytest.raises(
            ValueError, match=r"Caching\(recycling_limit=...\) is .*; expected bytes, as a positive int"
        ):
            on(split_limit=1, recycling_limit=wrong)


class Counting(SimulatedDevice):
    def __init__(self, capacity):
        super().__init__(capacity)
        self.calls = []

    def reserve(self, nbytes):
        self.calls.append(("reserve", nbytes))
        return super().reserve(nbytes)

    def release(self, segment):
        self.calls.append(("release", segment.size))
        super().release(segment)


def test_pressure_releases_what_is_wholly_free_and_retries():
    device = Counting("32MiB")
    manager = Caching(device)
    held, freed, split = allocate(manager, 512), allocate(manager, 10 * MIB), allocate(manager, 2 * MIB)
    assert manager.stats()["reserved"] == 32 * MIB
    release(manager, freed)
    release(manager, split)  # merged again with the rest of its segment: wholly free too
    del device.calls[:]
    block = allocate(manager, 22 * MIB)
    assert device.calls == [("release", 10 * MIB), ("release", 20 * MIB), ("reserve", 22 * MIB)]
    assert [state.segment for state in manager.snapshot()] == [held.segment, block.segment]


def test_out_of_memory_names_all_sizes_and_changes_nothing():
    manager = on("48MiB")
    blocks = [allocate(manager, 12 * MIB) for _ in range(4)]
    release(manager, blocks.pop(1))
    before = manager.snapshot()
    with pytest.raises(OutOfMemoryError) as caught:
        allocate(manager, 13 * MIB)
    error = caught.value
    assert (error.request, error.free, error.unreserved, error.largest_hole) == (13 * MIB, 12 * MIB, 12 * MIB, 0)
    assert (error.reserved, error.capacity) == (36 * MIB, 48 * MIB)  # the free segment went back before the retry
    for part in (
        "caching on simulated: out of memory: asked for 13.0 MiB (13631488 bytes), free 12.0 MiB (12582912 bytes): "
        "use a smaller batch, free tensors you no longer need (del x)",
        "Free in its segments 0 bytes, the largest hole 0 bytes",
        "reserved 36.0 MiB (37748736 bytes), not yet reserved 12.0 MiB (12582912 bytes), capacity 48.0 MiB (50331648 ",
        "What blocks the request and what would have let it through is in error.report.",
    ):
        assert part in str(error)
    assert len(str(error).splitlines()) == 3
    assert [state for state in before if state.blocks[0].id] == manager.snapshot()
    assert allocate(manager, 12 * MIB).size == 12 * MIB


def test_out_of_memory_tells_fragmentation_from_shortage():
    manager = on("20MiB")
    blocks = [allocate(manager, 4 * MIB) for _ in range(5)]
    for block in blocks[::2]:
        release(manager, block)
    with pytest.raises(OutOfMemoryError, match="enough in total but not in one piece") as caught:
        allocate(manager, 6 * MIB)
    assert (caught.value.free, caught.value.unreserved, caught.value.largest_hole) == (12 * MIB, 0, 4 * MIB)
    with pytest.raises(OutOfMemoryError, match="it can never fit"):
        allocate(manager, 21 * MIB)


def test_release_cached_returns_a_segment_that_was_split_before():
    manager = on()
    keep, *others = [allocate(manager, size) for size in (512, 3 * MIB, 3 * MIB, 30 * MIB)]
    for block in others:
        release(manager, block)
    assert manager.release_cached() == 50 * MIB
    assert manager.release_cached() == 0
    assert [state.segment for state in manager.snapshot()] == [keep.segment]


def test_plain_free_refuses_a_free_block():
    manager = on()
    block = manager.alloc(512)
    manager.free(block)
    with pytest.raises(ValueError, match="was already freed"):
        manager.free(block)


class Naive:
    """The same policy, written as slowly and plainly as possible: lists of [address, size, free, pool]."""

    def __init__(self, device, split_limit, recycling_limit):
        self.device, self.split_limit, self.recycling_limit = device, split_limit, recycling_limit
        self.segments = []

    def reserve(self, size):
        if self.device.capacity is not None and self.device.reserved + size > self.device.capacity:
            raise MemoryError
        segment = self.device.reserve(size)
        self.device.reserved += size
        return segment

    def alloc(self, nbytes):
        size = max(512, -(-nbytes // 512) * 512)
        small = size <= MIB
        fits = [p for s in self.segments for p in s[1] if p[2] and p[3] == small and p[1] >= size]
        best = min(fits, key=lambda p: (p[1], p[0]), default=None)
        if best is not None and not small and best[1] >= self.recycling_limit:
            best = None
        if best is None:
            wanted = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            try:
                segment = self.reserve(wanted)
            except MemoryError:
                for entry in [s for s in self.segments if len(s[1]) == 1 and s[1][0][2]]:
                    self.segments.remove(entry)
                    self.device.reserved -= entry[0].size
                segment = self.reserve(wanted)
            best = [segment.address, segment.size, True, small]
            self.segments.append((segment, [best]))
        if best[1] - size >= (512 if small else MIB) and best[1] < self.split_limit:
            pieces = next(s[1] for s in self.segments if best in s[1])
            pieces.insert(pieces.index(best) + 1, [best[0] + size, best[1] - size, True, small])
            best[1] = size
        best[2] = False
        return best[0]

    def free(self, address):
        entry = next(s for s in self.segments if any(p[0] == address for p in s[1]))
        pieces = entry[1]
        next(p for p in pieces if p[0] == address)[2] = True
        merged = [pieces[0]]
        for piece in pieces[1:]:
            if piece[2] and merged[-1][2]:
                merged[-1][1] += piece[1]
            else:
                merged.append(piece)
        pieces[:] = merged
        size = next(p for p in pieces if p[0] <= address < p[0] + p[1])[1]
        if not pieces[0][3] and len(pieces) == 1 and size >= self.recycling_limit:
            self.segments.remove(entry)
            self.device.reserved -= entry[0].size

    def tiles(self):
        return [[(p[0], p[1], not p[2]) for p in s[1]] for s in sorted(self.segments, key=lambda s: s[0].address)]


steps = st.lists(
    st.tuples(
        st.sampled_from(["alloc", "alloc", "free"]),
        st.one_of(st.integers(0, 4096), st.integers(0, 3 * MIB), st.sampled_from([MIB, 10 * MIB, 512, 14 * MIB])),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(steps, st.sampled_from([1 << 62, 4 * MIB]), st.sampled_from([1 << 62, 12 * MIB]))
def test_every_decision_equals_the_naive_managers(calls, split_limit, recycling_limit):
    capacity = 64 * MIB
    manager = on(capacity, split_limit=split_limit, recycling_limit=recycling_limit)
    naive = Naive(SimulatedDevice(capacity), split_limit, recycling_limit)
    live = []
    for what, number in calls:
        if what == "free":
            if live:
                block = live.pop(number % len(live))
                naive.free(block.address)
                release(manager, block)
        else:
            try:
                expected = naive.alloc(number)
            except MemoryError:
                with pytest.raises(OutOfMemoryError):
                    allocate(manager, number)
            else:
                live.append(allocate(manager, number))
                assert live[-1].address == expected
        tiles(manager)
        snapshot = [[(b.address, b.size, bool(b.id)) for b in blocks] for _, blocks in manager.snapshot()]
        assert snapshot == naive.tiles()
        stats = manager.stats()
        assert stats["allocated"] == sum(block.size for block in live)
        assert stats["reserved"] == sum(state.segment.size for state in manager.snapshot())
