"""Memory managers on the emulated device: every byte is accounted for, streams wait before they use a block again."""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flnb_backends.memory.cuda import CudaDevice, EventOrder
from flnb_backends.tensor.cuda.driver import Driver

import flnb
from flnb.interface.memory import OutOfMemoryError
from flnb.testing.cuda import EmulatedDevice, build_kernels, emulated_device

if shutil.which("g++") is None and "CI" not in os.environ:
    pytest.skip("g++ is not installed", allow_module_level=True)

TEXT = (Path(__file__).parent / "kernels.cu").read_text()
MANAGERS = ["native", "caching", "best-fit", "expandable", "exact", "buddy", "slab", "by-category"]


@pytest.fixture
def device() -> Any:  # gives back what a test has changed
    made = emulated_device()
    made.begin()
    yield made
    made.begin("eager")
    made.set_capacity(0)


def manager_on(device: EmulatedDevice, name: str) -> Any:
    from flnb.dispatch import registry

    return registry.find("memory manager", name)(CudaDevice(driver=device.driver))


@pytest.mark.parametrize("name", MANAGERS)
def test_segments_are_the_memory_that_the_device_counts_at_every_moment(name: str, device: EmulatedDevice) -> None:
    manager, rng = manager_on(device, name), random.Random(0)
    before = device.driver.memory().available
    blocks: list[Any] = []
    for _ in range(1000):
        if blocks and rng.random() < 0.45:
            flnb.memory.release(manager, blocks.pop(rng.randrange(len(blocks))))
        else:
            blocks.append(flnb.memory.allocate(manager, rng.randrange(1, 1 << rng.randrange(1, 17))))
        if rng.random() < 0.02:
            flnb.memory.release_cached(manager)
        stats = manager.stats()
        assert before - device.driver.memory().available == stats["reserved"]
        shown = sum(block.size for segment in manager.snapshot() for block in segment.blocks)
        assert shown == stats["reserved"]  # with the holes
    for block in blocks:
        flnb.memory.release(manager, block)
    flnb.memory.release_cached(manager)
    assert device.driver.memory().available == before
    assert device.reports == []


def test_a_full_device_is_told_as_that_and_stays_usable(device: EmulatedDevice) -> None:
    manager = manager_on(device, "caching")
    memory = device.driver.memory()
    device.set_capacity(memory.total - memory.available + (24 << 20))  # others of this process may hold some
    block = flnb.memory.allocate(manager, 14 << 20)
    with pytest.raises(OutOfMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        flnb.memory.allocate(manager, 14 << 20)
    flnb.memory.release(manager, block)
    flnb.memory.release(manager, flnb.memory.allocate(manager, 14 << 20))
    flnb.memory.release_cached(manager)


class Ordered:
    """A program on three streams, whose blocks come from a manager."""

    def __init__(self, device: EmulatedDevice, name: str) -> None:
        self.device, self.driver, self.manager = device, device.driver, manager_on(device, name)
        self.manager.device.order.stream = lambda: self.stream
        self.kernel = self.driver.kernel(self.driver.load(build_kernels(TEXT)), "scale")
        self.streams = [self.driver.stream() for _ in range(3)]

    def new(self, stream: int) -> Any:
        self.stream = stream
        return flnb.memory.allocate(self.manager, 1024)

    def scale(self, source: int, to: int, by: float, stream: int) -> None:
        given = source, to, np.float32(by), np.int32(256)
        self.driver.launch(self.kernel, (2,), (128,), given, stream=stream)

    def run(self, seed: int) -> list[tuple[Any, Any]]:
        """Compute on the streams in turns, with temporaries; returns results and what they should be."""
        rng = random.Random(seed)
        x = np.arange(1, 257, dtype=np.float32)
        source = self.driver.allocate(1024)
        self.driver.upload(source, x.ctypes.data, 1024)
        self.driver.synchronize()
        results = []
        for _ in range(12):
            stream, by = rng.choice(self.streams), rng.randrange(2, 9)
            one, two = self.new(stream), self.new(stream)
            self.scale(source, one.address, by, stream)
            self.scale(one.address, two.address, 2, stream)
            flnb.memory.release(self.manager, one)
            results.append((stream, by, two))
            if len(results) > 3:
                results[-4] = self.read(*results[-4], x)
        found = [each if len(each) == 2 else self.read(*each, x) for each in results]
        self.driver.free(source)
        flnb.memory.release_cached(self.manager)
        return found

    def read(self, stream: int, by: int, block: Any, x: Any) -> Any:
        out = np.empty(256, np.float32)
        self.driver.download(out.ctypes.data, block.address, 1024, stream)
        flnb.memory.release(self.manager, block)
        return out, 2 * by * x


@pytest.mark.parametrize("name", ["native", "caching", "best-fit", "buddy"])
def test_blocks_are_used_again_on_other_streams_in_order(name: str, device: EmulatedDevice) -> None:
    for order, seed in [("eager", 0), ("lazy", 0), *[("random", seed) for seed in range(8)]]:
        device.begin(order, seed)  # type: ignore[arg-type]
        waits = device.count("cuStreamSynchronize") + device.count("cuCtxSynchronize")
        for found, wanted in Ordered(device, name).run(seed):
            np.testing.assert_array_equal(found, wanted)
        assert device.reports == []
        assert device.count("cuStreamSynchronize") + device.count("cuCtxSynchronize") - waits == 1  # after the upload


def test_without_the_waits_a_race_of_streams_is_named(device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    device.begin("eager")
    monkeypatch.setattr(device.driver, "wait_for_stream", lambda *_: None)
    Ordered(device, "caching").run(0)
    told = re.compile(
        r"streamcheck: scale on stream (\d+) writes 4 bytes of device memory that release of the block of 1024 bytes "
        r"at 0x\w+ on stream (\d+) wrote, with no event between at scale\+0x"
    )
    found = list(filter(None, map(told.match, device.reports)))
    assert found, device.reports
    assert all(each[1] != each[2] for each in found)


def test_parts_of_free_memory_remember_their_streams(device: EmulatedDevice) -> None:
    order = EventOrder(Driver(device.driver.path))
    for address, nbytes, streams in ((0, 100, (1,)), (100, 100, (2, 3)), (40, 20, (4,))):
        block = flnb.interface.Block(address, nbytes, None)  # type: ignore[arg-type]
        block.streams = streams
        order.freed(block)
    assert order._free == [(0, 40, (1,)), (40, 60, (4,)), (60, 100, (1,)), (100, 200, (2, 3))]
    assert order._cut(50, 150) == [(4,), (1,), (2, 3)]
    assert order._free == [(0, 40, (1,)), (40, 50, (4,)), (150, 200, (2, 3))]
    assert order._cut(60, 70) == order._cut(200, 300) == []
