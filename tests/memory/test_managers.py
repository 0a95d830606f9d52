"""Every shipped manager keeps the contract: the same rules, checked on all of them."""

from __future__ import annotations

import gc
import random
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import schema
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb
import flnb.nn as nn
from flnb.dispatch import registry
from flnb.dispatch.memory import allocate, release
from flnb.interface.memory import AllocHint, Block, MemoryManager, OutOfMemoryError, Segment
from flnb.memory import BestFit, Buddy, ByCategory, Expandable, HostDevice, Reserved, SimulatedDevice, Slab

pytestmark = pytest.mark.usefixtures("nothing_held")

KIB, MIB = 1 << 10, 1 << 20
MANAGERS = ["best-fit", "buddy", "by-category", "caching", "exact", "expandable", "native", "reserved", "slab"]
TUNED = {
    "best-fit, coarse": lambda device: BestFit(device, step="5MiB", rounding="3KiB"),
    "buddy, small arena": lambda device: Buddy(device, arena="1MiB", smallest=64),
    "by-category, activations": lambda device: ByCategory(device, "activation+gradient", "8MiB", "4MiB"),
    "expandable, limited": lambda device: Expandable(device, split_limit="4MiB", step="32KiB"),
    "reserved, small": lambda device: Reserved(device, reserve="3MiB"),
    "slab, large": lambda device: Slab(device, slab="16MiB"),
}
every_manager = pytest.mark.parametrize("name", MANAGERS)


def made(name: str, device: Any) -> MemoryManager:
    manager: MemoryManager = (TUNED.get(name) or registry.find("memory manager", name))(device)
    return manager


def test_every_registered_manager_is_tested_here() -> None:
    shipped = {name for name, value in registry.SHIPPED["memory manager"].items() if value.startswith("flnb_backends.")}
    assert shipped == {*MANAGERS, *(shipped & {"planned"})}  # that one is made of a trace: tests/memory/test_planned.py


@pytest.mark.parametrize("name", [*MANAGERS, *TUNED])
def test_the_conformance_kit_passes(name: str) -> None:
    report = flnb.testing.check_manager(lambda device: made(name, device))
    assert report, report


def tiled(manager: MemoryManager) -> list[tuple[int, int, int, list[tuple[int, int, int, int, int]]]]:
    """The snapshot as numbers, after a check that blocks and holes tile every segment."""
    found = []
    for segment, blocks in manager.snapshot():
        position = segment.address
        for block in blocks:
            assert block.address == position
            assert block.size > 0
            position += block.size
        assert position == segment.address + segment.size
        live = [(b.id, b.address - segment.address, b.size, b.requested, b.category) for b in blocks if b.id]
        found.append((segment.id, segment.address, segment.size, live))
    return found


def replayed(run: flnb.telemetry.Recording, manager: MemoryManager) -> Any:
    """What the recorded events say of a manager's segments, in the same numbers."""
    held = manager.device.segments
    return [
        (s.id, s.address, s.size, [(*b[:4], schema.CATEGORIES.index(b.category)) for b in s.blocks])
        for s in run.memory.at(1e9).segments
        if s.id in held
    ]


@dataclass
class Model:
    """What must be live in a manager after some calls."""

    manager: MemoryManager
    live: list[Block] = field(default_factory=list)
    allocs: int = 0
    peak: int = 0

    def alloc(self, nbytes: int) -> None:
        category = self.allocs % len(schema.CATEGORIES)
        hint = AllocHint(category=schema.CATEGORIES[category]) if self.manager.wants_hint else None
        try:
            block = allocate(self.manager, nbytes, category=category, hint=hint)
        except OutOfMemoryError:
            return
        assert block.size >= nbytes
        assert block.address % 64 == 0
        self.live.append(block)
        self.allocs += 1
        self.peak = max(self.peak, self.allocated)

    def free(self, number: int) -> None:
        if self.live:
            release(self.manager, self.live.pop(number % len(self.live)))

    @property
    def allocated(self) -> int:
        return sum(block.size for block in self.live)

    def check(self) -> None:
        states = tiled(self.manager)
        seen = {number: (at + offset, size) for _, at, _, live in states for number, offset, size, *_ in live}
        assert seen == {block.id: (block.address, block.size) for block in self.live}
        stats, reserved = self.manager.stats(), sum(size for _, _, size, _ in states)
        assert stats["reserved"] == reserved == self.manager.device.device.reserved
        assert (stats["live"], stats["allocated"]) == (len(self.live), self.allocated)
        assert (stats["allocs"], stats["peak_allocated"]) == (self.allocs, self.peak)

    def free_all(self) -> None:
        """Nothing leaks: what was never kept on purpose goes back to the device."""
        while self.live:
            self.free(0)
        self.check()
        returned = self.manager.release_cached()
        kept = self.manager.first.size if isinstance(self.manager, Reserved) else 0
        assert self.manager.stats()["reserved"] == kept
        assert returned >= 0
        assert self.manager.release_cached() == 0


sizes = st.one_of(st.integers(0, 4096), st.integers(0, 3 * MIB), st.sampled_from([512, MIB, 10 * MIB, 14 * MIB, 2**70]))
calls = st.lists(
    st.tuples(st.sampled_from(["alloc", "alloc", "alloc", "free", "free", "release_cached"]), sizes), max_size=50
)


@pytest.mark.parametrize("name", [*MANAGERS, *TUNED])
@settings(max_examples=25, deadline=None)
@given(calls=calls, capacity=st.sampled_from([5 * MIB + 512, 64 * MIB]))
def test_invariants(name: str, calls: list[tuple[str, int]], capacity: int) -> None:
    device = SimulatedDevice(capacity)
    with flnb.record() as run:
        model = Model(made(name, device))
        for what, number in calls:
            if what == "release_cached":
                before = device.reserved
                assert model.manager.release_cached() == before - device.reserved
            else:
                getattr(model, what)(number)
            assert device.reserved <= capacity
            model.check()
    assert replayed(run, model.manager) == tiled(model.manager)
    line = run.memory.timeline()
    if len(line.t):
        stats = model.manager.stats()
        last = (line.allocated[-1], line.reserved[-1], line.allocated.max())
        assert last == (stats["allocated"], stats["reserved"], stats["peak_allocated"])
        assert line.requested[-1] == sum(block.requested for block in model.live)
    assert len(run.table("alloc")["t"]) == model.allocs
    model.free_all()


@pytest.mark.slow
@every_manager
def test_a_million_random_calls(name: str) -> None:
    """Each block is held against its neighbours when it is given, all of them and the sums every 20,000 calls."""
    draw = random.Random(7)
    model = Model(made(name, SimulatedDevice("4GiB")))
    live, places = model.live, [(0, 0), (1 << 62, 1 << 62)]
    hints = [AllocHint(category=name) if model.manager.wants_hint else None for name in schema.CATEGORIES]
    for i in range(1_000_000):
        if len(live) > 1000 or (live and draw.random() < 0.5):
            at = draw.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            block = live.pop()
            del places[bisect_left(places, (block.address, 0))]
            release(model.manager, block)
        else:
            live.append(block := allocate(model.manager, int(2 ** draw.uniform(0, 23)), hint=hints[i % len(hints)]))
            model.allocs += 1
            begin, end = block.address, block.address + block.size
            at = bisect_left(places, (begin, end))
            assert places[at - 1][1] <= begin < end <= places[at][0]
            places.insert(at, (begin, end))
        if i % 20_000 == 0:
            model.peak = model.manager.stats()["peak_allocated"]
            model.check()
        if i % 100_000 == 99_999:
            model.manager.release_cached()
    model.peak = model.manager.stats()["peak_allocated"]
    model.check()
    model.free_all()


def trained(manager: str) -> list[bytes]:
    """Parameters after three steps of a small CNN."""
    flnb.manual_seed(5)
    with flnb.use_memory_manager(made(manager, HostDevice("256MiB"))) as active:
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 256))
        optimizer = flnb.optim.Adam(model.parameters(), lr=0.01)
        x, y = flnb.random.normal((16, 1, 8, 8)), flnb.asarray(np.arange(16) % 3)
        for _ in range(3):
            optimizer.zero_grad()
            flnb.cross_entropy(model(x), y).backward()
            optimizer.step()
        found = [np.asarray(parameter.data).tobytes() for parameter in model.parameters()]
        states = tiled(active)
        assert active.stats()["allocs"] > 20
        assert sum(len(live) for *_, live in states) == active.stats()["live"]
        del model, optimizer, x, y
    gc.collect()
    assert active.stats()["allocated"] == 0
    return found


@pytest.fixture(scope="module")
def parameters() -> list[bytes]:
    return trained("native")


@pytest.mark.parametrize("name", [*MANAGERS, *TUNED])
def test_training_gives_the_same_bits(name: str, parameters: list[bytes]) -> None:
    assert trained(name) == parameters


@every_manager
def test_misuse_is_told_and_changes_nothing(name: str) -> None:
    model = Model(made(name, SimulatedDevice("256MiB")))
    manager, other = model.manager, made(name, SimulatedDevice("256MiB"))
    foreign = allocate(other, 3000)
    for size in (100, 5000, 2 * MIB):
        model.alloc(size)
    freed = model.live.pop()
    release(manager, freed)
    for wrong, error, says in [
        (lambda: release(manager, freed), ValueError, "release: .* is not a live block of .*: it is free"),
        (lambda: release(manager, foreign), ValueError, "release: .* is not a live block of .*: it belongs to"),
        (lambda: release(manager, Block(64, 64, foreign.segment)), ValueError, "is not a live block of .*: it is free"),
        (lambda: manager.user_lock(foreign), ValueError, "user_lock: .* is not a live block of .*: it belongs to"),
        (lambda: manager.user_lock(freed), ValueError, "user_lock: .* is not a live block of .*: it is free"),
        (lambda: manager.user_unlock(model.live[0]), ValueError, "user_unlock: .* is not locked"),
        (lambda: allocate(manager, -1), ValueError, "got -1 bytes, expected 0 or more"),
        (lambda: allocate(manager, 257 * MIB), OutOfMemoryError, "out of memory: asked for 257 MiB .* never fit"),
        (lambda: allocate(manager, 2**70), OutOfMemoryError, "it can never fit"),
    ]:
        with pytest.raises(error, match=says):
            wrong()
        model.check()
    model.free_all()


@every_manager
def test_sizes_that_no_device_has(name: str) -> None:
    device = SimulatedDevice()
    manager = Reserved(device, "1GiB") if name == "reserved" else made(name, device)
    with pytest.raises(OutOfMemoryError, match="no room for a"):
        allocate(manager, 2**70)
    assert allocate(manager, 3 << 40).size >= 3 << 40
    assert manager.stats()["live"] == 1


@every_manager
def test_a_device_smaller_than_one_tensor(name: str) -> None:
    with flnb.use_memory_manager(made(name, HostDevice("64KiB"))) as manager:
        with pytest.raises(
            OutOfMemoryError, match=r"asked for 100 KiB .* it can never fit.*\n.* capacity 64.0 KiB"
        ) as found:
            flnb.ones((25600,))
        assert (found.value.request, found.value.capacity) == (102_400, 65_536)
        assert manager.stats()["allocated"] == 0
        assert flnb.ones((8,)).sum().item() == 8  # below min_block: NumPy's own


class Broken(SimulatedDevice):
    """Fails at every other native call, once it is told to."""

    counting, calls = False, 0

    def _fail(self) -> None:
        self.calls += self.counting
        if self.counting and self.calls % 2 == 0:
            raise RuntimeError("the device is gone")

    def reserve(self, nbytes: int) -> Any:
        self._fail()
        return super().reserve(nbytes)

    def reserve_growing(self, nbytes: int) -> Any:
        self._fail()
        return super().reserve_growing(nbytes)

    def resize(self, segment: Any, nbytes: int) -> bool:
        self._fail()
        return super().resize(segment, nbytes)

    def release(self, segment: Any) -> None:
        self._fail()
        super().release(segment)


@pytest.mark.parametrize("name", [*MANAGERS, *TUNED])
def test_a_device_that_fails_in_the_middle(name: str) -> None:
    device = Broken("128MiB")
    model, draw, failed = Model(made(name, device)), random.Random(3), 0
    device.counting = True
    for _ in range(600):
        what = draw.choice(["alloc", "alloc", "free", "release_cached"])
        try:
            if what == "alloc":
                model.alloc(int(2 ** draw.uniform(11, 23)))
            elif what == "release_cached":
                model.manager.release_cached()
            elif model.live:
                release(model.manager, block := draw.choice(model.live))
                model.live.remove(block)
        except RuntimeError:
            failed += 1
        model.check()
    assert failed > 0
    device.counting = False
    while model.live:
        model.free(0)
    model.check()


@every_manager
def test_a_manager_that_raises_in_the_middle(name: str) -> None:
    base: Any = registry.find("memory manager", name)

    class Raises(base):  # type: ignore[misc]
        calls = 0

        def alloc(self, nbytes: int, stream: int = 0, hint: Any = None) -> Block:
            block: Block = super().alloc(nbytes, stream, hint)
            self.calls += 1
            if self.calls % 4 == 0:
                raise IndexError("after the block was taken")
            return block

        def free(self, block: Block) -> None:
            self.calls += 1
            if self.calls % 5 == 0:
                raise IndexError("before the block was taken back")
            super().free(block)

    model, raised = Model(Raises(SimulatedDevice("96MiB"))), 0
    for i in range(60):
        try:
            if i % 3 < 2:
                model.alloc(i * 20_000)
            else:
                release(model.manager, model.live[0])
                del model.live[0]
        except IndexError:
            raised += 1
        model.check()
    assert raised > 10


class Falling(SimulatedDevice):
    """Segments lie the lower the later they were reserved, as operating systems like to place maps."""

    def reserve(self, nbytes: int) -> Segment:
        segment = super().reserve(nbytes)
        segment.address = (1 << 60) - segment.address - nbytes
        return segment


@pytest.mark.parametrize("name", [name for name in MANAGERS if name not in ("expandable", "best-fit")])
def test_where_segments_lie_makes_no_difference(name: str) -> None:
    """A program gets the same pieces each time it runs, and in a replay."""

    def places(device: SimulatedDevice) -> list[tuple[int, int]]:
        manager, draw, found = made(name, device), random.Random(7), []
        numbers: dict[int, int] = {}
        live: list[Block] = []
        for _ in range(400):
            if live and draw.random() < 0.48:
                release(manager, live.pop(draw.randrange(len(live))))
            else:
                live.append(block := allocate(manager, draw.choice((600, 5000, 1 << 20, 3 << 20, 12 << 20))))
                number = numbers.setdefault(block.segment.id, len(numbers))
                found.append((number, block.address - block.segment.address))
        return found

    assert places(SimulatedDevice("4GiB")) == places(Falling("4GiB"))
