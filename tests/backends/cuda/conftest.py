"""The emulated device for the tests of kernels."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from flnb.testing.cuda import EmulatedDevice, emulate, emulated_device


@pytest.fixture
def device() -> Any:
    """The device, with random order and checks on; a report of them is an error."""
    if shutil.which("g++") is None and "CI" not in os.environ:
        pytest.skip("g++ is not installed")
    found: EmulatedDevice = emulated_device()
    found.begin()
    found.driver.use(0)
    yield found
    reports = found.reports
    found.begin("eager")
    assert reports == []


@pytest.fixture
def cuda(device: EmulatedDevice) -> Any:
    """The same device as the GPUs of this process, for the backend ``cuda`` and for CuPy."""
    emulate()
    device.begin()
    return device
