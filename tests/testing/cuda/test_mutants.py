"""Kernels that are broken at one place: the emulated device must notice each, by a wrong number or a report."""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from flnb_backends.tensor.cuda.driver import DriverError

from flnb.testing.cuda import EmulatedDevice, build_kernels, emulated_device

if shutil.which("g++") is None and "CI" not in os.environ:
    pytest.skip("g++ is not installed", allow_module_level=True)

TEXT = (Path(__file__).parent / "kernels.cu").read_text().partition('extern "C" __global__ void votes')[0]
BREAKS = [
    (r"__syncthreads\(\);", ""),
    (r"0xffffffffu", "0x0000ffffu"),
    (r"(?<=i )< n(?=[;)])", "<= n"),
    (r"(?<=row )< m", "<= m"),
    (r"(?<=column )< n", "<= n"),
    (r"(?<=\(int\)threadIdx\.[xy] )< k", "<= k"),
    (r"d = 16;", "d = 8;"),
    (r"i < 16", "i < 15"),
    (r"atomicAdd\(out, v\)", "out[0] += v"),
    (r"part\[32\]", "part[2]"),
    (r">> 5\)", ">> 4)"),
    (r"\* 16 \+ threadIdx\.y", "* 15 + threadIdx.y"),
    (r"\+ threadIdx\.x(?=[;\]])", "+ threadIdx.x + 1"),
    (r"if \(lane == 0\) shared\[warp\]", "if (warp == 0) shared[lane]"),
    (r"blockIdx\.x \* n", "blockIdx.x * (n - 1)"),
]
EQUIVALENT = {
    ("most = fmaxf(most, __shfl_xor_sync", "d = 16;"): "softmax has equal quotients for any value near the maximum",
    ("v = threadIdx.x < (blockDim.x >> 5)", "d = 16;"): "4 warps: half of the lanes hold zeros",
}
"""Breaks that change no result, with the reason; none of them is counted."""


class Mutant(NamedTuple):
    line: int
    old: str
    new: str
    text: str


def mutants() -> list[Mutant]:
    """Every kernel's text with one place broken."""
    found = []
    for old, new in BREAKS:
        for match in re.finditer(old, TEXT):
            broken = TEXT[: match.start()] + new + TEXT[match.end() :]
            line = TEXT[: match.start()].count("\n")
            around = "\n".join(TEXT.splitlines()[max(0, line - 1) : line + 1])
            if not any(words in around and match[0] == what for words, what in EQUIVALENT):
                found.append(Mutant(line + 1, match[0], new, broken))
    return found


def noticed(device: EmulatedDevice, text: str) -> str:
    """What the device, or NumPy, has against some kernels: "" if nothing."""
    device.begin("eager")
    device.driver.use(0)
    module = device.driver.load(build_kernels(text))
    addresses = []
    rng = np.random.default_rng(0)

    def put(array: np.ndarray) -> int:
        addresses.append(device.driver.allocate(array.nbytes))
        device.driver.upload(addresses[-1], array.ctypes.data, array.nbytes)
        return addresses[-1]

    def ran(
        name: str, blocks: tuple[int, ...], threads: tuple[int, ...], out: np.ndarray, *given: object
    ) -> np.ndarray:
        arguments = [put(each) if isinstance(each, np.ndarray) else each for each in given]
        address = put(out) if name == "block_sum" else device.driver.allocate(out.nbytes)
        addresses.append(address)
        arguments.insert(2 if name == "matmul" else 1, address)
        shared = 16 if name == "softmax" else 0
        kernel = device.driver.kernel(module, name)
        device.driver.launch(kernel, blocks, threads, arguments, shared=shared)
        device.driver.download(out.ctypes.data, address, out.nbytes)
        return out

    said = ""
    try:
        device.begin("random", 7)
        x = rng.standard_normal(2500).astype(np.float32)
        n = np.int32(x.size)
        if not np.array_equal(ran("scale", (20,), (128,), np.empty_like(x), x, np.float32(3), n), x * np.float32(3)):
            said = "scale is wrong"
        if abs(ran("block_sum", (4,), (128,), np.zeros(1, np.float32), x, n)[0] - x.sum(dtype=np.float64)) > 1e-3:
            said = "block_sum is wrong"
        a, b = rng.standard_normal((37, 45)).astype(np.float32), rng.standard_normal((45, 53)).astype(np.float32)
        sizes = np.int32(37), np.int32(53), np.int32(45)
        c = ran("matmul", (4, 3), (16, 16), np.empty((37, 53), np.float32), a, b, *sizes)
        if not np.allclose(c, a @ b, atol=1e-4):
            said = "matmul is wrong"
        rows = 5 * rng.standard_normal((7, 300)).astype(np.float32)
        wanted = np.exp(rows - rows.max(1, keepdims=True))
        y = ran("softmax", (7,), (128,), np.empty_like(rows), rows, np.int32(300))
        if not np.allclose(y, wanted / wanted.sum(1, keepdims=True), atol=1e-5):
            said = "softmax is wrong"
    except DriverError as error:
        said = str(error)
    said = said or "; ".join(device.reports[:1])
    device.begin("eager")
    for address in set(addresses):
        device.driver.free(address)
    return said


def test_the_kernels_are_right_before_they_are_broken() -> None:
    assert noticed(emulated_device(), TEXT) == ""


def test_a_sample_of_broken_kernels_is_noticed() -> None:
    sample = random.Random(0).sample(mutants(), 10)
    missed = [mutant[:3] for mutant in sample if not noticed(emulated_device(), mutant.text)]
    assert missed == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_broken_kernels_are_noticed() -> None:
    said = {mutant[:3]: noticed(emulated_device(), mutant.text) for mutant in mutants()}
    missed = [mutant for mutant, what in said.items() if not what]
    print(
        f"{len(said) - len(missed)} of {len(said)} noticed, {sum('wrong' in what for what in said.values())} by value"
    )
    assert len(said) >= 30
    assert missed == []
