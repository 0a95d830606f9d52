"""Streams of the emulated device: what is synchronised is right in every order, what is not is found out."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda.driver import DriverError

from tests.testing.cuda.arrays import Arrays, launch

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

if shutil.which("g++") is None and "CI" not in os.environ:
    pytest.skip("g++ is not installed", allow_module_level=True)

X = np.arange(1, 257, dtype=np.float32)
GRID = (1,), (256,)


class Program:
    """Steps of the programs below."""

    def __init__(self, device: EmulatedDevice, module: int, arrays: Arrays) -> None:
        self.device, self.driver, self.module, self.arrays = device, device.driver, module, arrays
        self.one, self.other = self.driver.stream(), self.driver.stream()

    def scale(self, x: int, y: int, by: float, stream: int) -> None:
        given = x, y, np.float32(by), np.int32(256)
        launch(self.device, self.module, "scale", *GRID, *given, stream=stream)

    def order(self, first: int, then: int) -> None:
        event = self.driver.event()
        self.driver.record(event, first)
        self.driver.wait_event(then, event)


def producer(p: Program, right: bool) -> Any:
    x, y, z = p.arrays.put(X), p.arrays.empty(256), p.arrays.empty(256)
    p.driver.synchronize()
    p.scale(x, y, 2, p.one)
    if right:
        p.order(p.one, p.other)
    p.scale(y, z, 3, p.other)
    return p.arrays.get(z, 256, p.other), 6 * X


def pinned(p: Program, right: bool) -> Any:
    """The host writes a pinned buffer while its copy is under way."""
    address = p.driver.allocate_host(1024)
    buffer = np.ctypeslib.as_array((ctypes.c_float * 256).from_address(address))
    buffer[:] = X
    x, y = p.arrays.empty(256), p.arrays.empty(256)
    p.driver.upload(x, address, 1024, p.one)
    p.scale(x, y, 2, p.one)
    if right:
        p.driver.wait(p.one)
    buffer[:] = -1
    found = p.arrays.get(y, 256, p.one)
    p.driver.free_host(address)
    return found, 2 * X


def reused_block(p: Program, right: bool) -> Any:
    """A block freed on one stream is handed out again on another."""
    x, y, z, w = p.arrays.put(X), p.arrays.empty(256), p.arrays.empty(256), p.arrays.put(-X)
    block = p.arrays.empty(256)
    p.driver.synchronize()
    p.scale(x, block, 2, p.one)
    p.scale(block, y, 5, p.one)
    p.driver.tell_free(block, 1024, (p.one,))
    if right:
        p.order(p.one, p.other)
    p.driver.tell_used(block, 1024, p.other)
    p.scale(w, block, 1, p.other)
    p.scale(block, z, 1, p.other)
    return np.concatenate([p.arrays.get(y, 256, p.one), p.arrays.get(z, 256, p.other)]), np.concatenate([10 * X, -X])


def early_free(p: Program, right: bool) -> Any:
    """A block is freed on its stream while another one still reads it."""
    x, y, block = p.arrays.put(X), p.arrays.empty(256), p.arrays.empty(256)
    p.driver.synchronize()
    p.scale(x, block, 2, p.one)
    p.order(p.one, p.other)
    p.scale(block, y, 5, p.other)
    if right:
        p.order(p.other, p.one)
    p.driver.tell_free(block, 1024, (p.one,))
    p.driver.wait(p.one)
    return p.arrays.get(y, 256, p.other), 10 * X


PROGRAMS = [producer, pinned, reused_block, early_free]


def outcome(
    program: Any, right: bool, device: EmulatedDevice, module: int, order: Any, seed: int
) -> tuple[bool, list[str]]:
    """Whether a program gave right numbers, and what was reported."""
    device.begin(order, seed)
    arrays = Arrays(device.driver)
    try:
        found, wanted = program(Program(device, module, arrays), right)
        equal = np.array_equal(found, wanted)
    except DriverError:
        equal = False
    reports = device.reports
    device.begin("eager")
    for address in arrays.addresses:
        device.driver.free(address)
    return equal, reports


@pytest.mark.parametrize("program", PROGRAMS)
def test_synchronised_streams_are_right_in_every_order(program: Any, device: EmulatedDevice, module: int) -> None:
    for order, seed in [("eager", 0), ("lazy", 0), *[("random", seed) for seed in range(30)]]:
        assert outcome(program, True, device, module, order, seed) == (True, []), (order, seed)


@pytest.mark.parametrize("program", PROGRAMS)
def test_streams_without_synchronisation_are_wrong_in_some_order(
    program: Any, device: EmulatedDevice, module: int
) -> None:
    wrong = sum(not outcome(program, False, device, module, "random", seed)[0] for seed in range(30))
    assert wrong >= 5, f"wrong in {wrong} of 30 random orders"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            producer,
            r"streamcheck: scale on stream (?P<other>\d+) reads 4 bytes of device memory that scale on stream "
            r"(?P<one>\d+) wrote, with no event between at scale\+0x",
        ),
        (
            reused_block,
            r"streamcheck: scale on stream (?P<other>\d+) writes 4 bytes of device memory that release of the block of "
            r"1024 bytes at 0x(?P<block>\w+) on stream (?P<one>\d+) wrote, with no event between at scale\+0x",
        ),
        (
            early_free,
            r"streamcheck: release of the block of 1024 bytes at 0x(?P<block>\w+) on stream (?P<one>\d+) writes device "
            r"memory that scale on stream (?P<other>\d+) read, with no event between",
        ),
    ],
)
def test_races_of_streams_are_named_even_where_the_order_happens_to_be_right(
    program: Any, told: str, device: EmulatedDevice, module: int
) -> None:
    """The report has the kernel, a block that was freed, and both streams: their numbers count up as they are made."""
    blocks = list[int]()

    def remembered(p: Program, right: bool) -> Any:
        found = program(p, right)
        blocks[:] = p.arrays.addresses
        return found

    equal, reports = outcome(remembered, False, device, module, "eager", 0)
    assert equal
    named = next(filter(None, (re.search(told, report) for report in reports)), None)
    assert named, reports
    assert int(named["other"]) == int(named["one"]) + 1
    if "block" in named.groupdict():
        assert int(named["block"], 16) == blocks[-1]
