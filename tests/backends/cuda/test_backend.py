"""The cuda backend on the emulated device, with the real CuPy: every op against NumPy, and every gradient."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda.gpu import gpu_at

import flnb
from flnb.dispatch.table import OPS
from flnb.testing import check_backend, samples, verify_grad
from flnb.testing.cuda.wheel import compiled

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

ABSENT = {
    "cholesky", "det", "eigh", "eigvalsh", "inv", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
    "fftn", "ifftn", "irfftn", "rfftn",
}  # fmt: skip
"""Ops that need cuSOLVER or cuFFT, which the emulated device lacks."""
NOT_OURS = "cupy_inclusive_batch_scan_kernel"
"""A kernel of CuPy's that reads shared memory before it is written, for products of complex numbers."""
CHECKED = [
    s for s in samples()
    if any(a.dtype == np.float64 for a in s.inputs) and s.op not in ABSENT and s.note != "power -2"  # an inverse
]  # fmt: skip
SAMPLED = random.Random(20261123).sample(CHECKED, 40)


def test_every_op_agrees_with_numpy(cuda: EmulatedDevice, capsys: pytest.CaptureFixture[str]) -> None:
    report = check_backend("cuda", dtypes=("float32",))
    failed = {result.op: result.reason for result in report.results if not result.passed}
    lacking = {op for op, reason in failed.items() if "was compiled for GPUs, and cannot run on the emulated" in reason}
    assert lacking == (ABSENT if cuda.driver.emulated else set())
    assert {op: reason for op, reason in failed.items() if op not in lacking and "power -2" not in reason} == {}
    if not cuda.driver.emulated:
        return
    assert [found for found in cuda.reports if NOT_OURS not in found] == []
    kernels = len(gpu_at().launcher.kernels), len(set(compiled))
    with capsys.disabled():
        print(f"\n{len(report.results)} ops, {len(lacking)} need absent libraries; {cuda.count('launches')} launches")
        print(f"of {kernels[0]} kernels of flnb's own (a kernel and its dtypes) and {kernels[1]} of CuPy's")
    assert min(kernels) > 50
    cuda.begin()


def test_every_op_has_a_sample_or_needs_a_library() -> None:
    assert {s.op for s in samples()} == set(OPS)
    assert len(ABSENT) <= 15


def gradient(sample: Any) -> None:
    with flnb.use_backend("cuda"):
        verify_grad(sample.function, sample.inputs, tolerance=1e-8)


@pytest.mark.parametrize("sample", SAMPLED, ids=str)
def test_gradients(sample: Any, cuda: EmulatedDevice) -> None:
    gradient(sample)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_all_gradients(cuda: EmulatedDevice) -> None:
    for sample in CHECKED:
        gradient(sample)
