"""What the tests of the emulated device share: arrays in its memory, and launches by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from flnb_backends.tensor.cuda.driver import Driver

    from flnb.testing.cuda import EmulatedDevice

TEXT = (Path(__file__).parent / "kernels.cu").read_text()


class Arrays:
    """Arrays in device memory, freed at the end of a test."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.addresses = driver, list[int]()

    def empty(self, size: int) -> int:
        self.addresses.append(self.driver.allocate(4 * size))
        return self.addresses[-1]

    def put(self, array: Any, stream: int = 0) -> int:
        array = np.ascontiguousarray(array)
        address = self.empty(array.size)
        self.driver.upload(address, array.ctypes.data, array.nbytes, stream)
        return address

    def get(self, address: int, shape: Any, stream: int = 0, dtype: Any = np.float32) -> Any:
        found = np.empty(shape, dtype)
        self.driver.download(found.ctypes.data, address, found.nbytes, stream)
        return found


def launch(device: EmulatedDevice, module: int, name: str, blocks: Any, threads: Any, *given: Any, **how: Any) -> None:
    device.driver.launch(device.driver.kernel(module, name), blocks, threads, given, **how)
