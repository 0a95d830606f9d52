"""The device for the tests of the cuda backend: the emulated one, or with ``pytest -m gpu`` this machine's GPU."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from flnb_backends.tensor.cuda.driver import default_driver

from flnb.testing.cuda import EmulatedDevice, emulate, emulated_device

if TYPE_CHECKING:
    from flnb_backends.tensor.cuda.driver import Driver

# their programs say which values differ
pytest.register_assert_rewrite("tests.backends.cuda.ordered", "tests.backends.cuda.ordered_backend")

EMULATED_ONLY = "test_memory", "test_mutants", "test_recorded", "test_traffic"
"""Files of tests that break something on purpose, or count: an illegal address would end a GPU's context for all."""


class RealDevice:
    """A GPU where tests expect the emulated device: the same values, but neither its counts nor its checks."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.reports: list[str] = []

    def begin(self, *_: Any) -> None:
        """Wait for the device: its order cannot be chosen."""
        self.driver.synchronize()

    def _uncounted(self, what: str) -> NoReturn:
        pytest.skip(f"{what}: only the emulated device counts")

    count = traffic = _uncounted

    def set_capacity(self, nbytes: int) -> NoReturn:
        """Skip the test: a GPU's memory is what it is."""
        pytest.skip("only the emulated device has the memory that a test wants")


def on_gpu(config: pytest.Config) -> bool:
    """Whether ``-m`` asks for tests on a GPU. One process has one kind of device: CuPy is imported over it."""
    return bool(re.search(r"(?<!not )\bgpu\b", config.option.markexpr))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test that takes a device with `gpu`, where ``-m`` asks for it, and list what to look at first."""
    if not on_gpu(config):
        return
    for item in items:
        here = Path(__file__).parent in item.path.parents and item.path.stem not in EMULATED_ONLY
        if here and "device" in getattr(item, "fixturenames", ()):
            item.add_marker("gpu")
    from benchmarks.gpu import unmeasured

    config.get_terminal_writer().line(f"\n{unmeasured()}")


@pytest.fixture
def device(pytestconfig: pytest.Config) -> Any:
    """The emulated device, with random order and checks on; a report of them is an error. Or the GPU."""
    found: Any
    if on_gpu(pytestconfig):
        try:
            found = RealDevice(default_driver())
        except RuntimeError as error:
            pytest.skip(str(error))
    elif shutil.which("g++") is None and "CI" not in os.environ:
        pytest.skip("g++ is not installed")
    else:
        found = emulated_device()
    found.driver.use(0)
    found.begin()
    yield found
    reports = found.reports
    found.begin("eager")
    assert reports == []


@pytest.fixture
def cuda(device: EmulatedDevice, pytestconfig: pytest.Config) -> Any:
    """The same device as the GPUs of this process, for the backend ``cuda`` and for CuPy."""
    if on_gpu(pytestconfig):
        pytest.importorskip("cupy")
    else:
        emulate()
        device.begin()
    return device
