"""How much of a multiprocessor a launch fills: by the driver where it tells, and what keeps further blocks out."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from flnb_backends.tensor.cuda.occupancy import Needs, needs

from benchmarks.kernels import ARCHITECTURES, active_blocks
from tests.testing.cuda.arrays import TEXT

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

if shutil.which("g++") is None and "CI" not in os.environ:
    pytest.skip("g++ is not installed", allow_module_level=True)


class Gpu:
    """Answers as the driver of a GPU; how many blocks fit is said by NVIDIA's `cuda_occupancy.h`."""

    def __init__(self, arch: str, registers: int, static: int) -> None:
        self.limits, self.registers, self.static = ARCHITECTURES[arch], registers, static

    def current(self) -> int:
        return 0

    def attribute(self, number: int, device: int) -> int:
        blocks = {"7.5": 16, "8.0": 32, "9.0": 32, "12.0": 24}[f"{self.limits.major}.{self.limits.minor}"]
        return {
            39: self.limits.threads,
            82: 65536,
            81: self.limits.shared,
            111: self.limits.reserved_of_block,
            106: blocks,
        }[number]

    def try_call(self, name: str, found: Any, *arguments: int) -> int:
        if name == "cuFuncGetAttribute":
            found._obj.value = {4: self.registers, 1: self.static}[arguments[0]]
        else:
            _, threads, shared = arguments
            (found._obj.value,) = active_blocks([(*self.limits, self.registers, self.static, threads, shared)])
        return 0


@pytest.mark.parametrize(
    ("arch", "registers", "static", "threads", "shared", "blocks", "limit"),
    [
        ("sm_90", 32, 0, 256, 0, 8, "threads"),  # 2048 threads
        ("sm_90", 40, 0, 256, 0, 6, "registers"),  # 65536 / (256 * 40) = 6.4
        ("sm_90", 96, 0, 224, 0, 2, "registers"),  # each quarter of the registers is for 5 warps: 20 / 7 = 2.9
        ("sm_90", 255, 0, 256, 0, 1, "registers"),
        ("sm_90", 32, 40 << 10, 256, 8 << 10, 4, "shared memory"),  # 228 KiB / 49 KiB
        ("sm_75", 32, 0, 256, 0, 4, "threads"),
        ("sm_120", 32, 0, 1024, 0, 1, "threads"),
        ("sm_80", 32, 0, 32, 0, 32, "blocks"),
    ],
)
def test_what_keeps_further_blocks_out_of_a_multiprocessor(
    arch: str, registers: int, static: int, threads: int, shared: int, blocks: int, limit: str
) -> None:
    gpu: Any = Gpu(arch, registers, static)
    expected = Needs(registers, static, blocks, ARCHITECTURES[arch].threads, limit)
    assert needs(gpu, 1, threads, shared) == expected


def test_the_emulated_device_tells_shared_memory_and_invents_no_registers(device: EmulatedDevice) -> None:
    module = device.driver.load(device.driver.build(TEXT))
    for name, static in {"block_sum": 32 * 4, "matmul": 2 * 16 * 17 * 4, "scale": 0}.items():
        kernel = device.driver.kernel(module, name)
        assert needs(device.driver, kernel, 256, 0) == Needs(-1, static, -1, -1, "")
