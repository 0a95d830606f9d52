"""The emulated device, with the kernels of the tests loaded."""

from __future__ import annotations

from typing import Any

import pytest

from flnb.testing.cuda import EmulatedDevice, build_kernels, emulate, emulated_device
from flnb.testing.cuda.wheel import install_cupy
from tests.testing.cuda.arrays import TEXT, Arrays


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    return emulated_device()


@pytest.fixture
def cupy(device: EmulatedDevice) -> Any:
    """The real CuPy on the emulated device, in random order with checks."""
    emulate()
    found = install_cupy()
    device.begin()
    yield found
    device.begin("eager")


@pytest.fixture(scope="module")
def module(device: EmulatedDevice) -> int:
    device.begin("eager")
    device.driver.use(0)
    return device.driver.load(build_kernels(TEXT))


@pytest.fixture
def arrays(device: EmulatedDevice) -> Any:
    device.begin()
    device.driver.use(0)
    made = Arrays(device.driver)
    yield made
    device.begin("eager")
    for address in made.addresses:
        device.driver.free(address)
