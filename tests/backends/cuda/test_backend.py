"""The cuda backend on the emulated device, with the real CuPy: every op against NumPy, and every gradient."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda.gpu import gpu_at

import flnb
import flnb.dispatch.registry
from flnb.dispatch.table import OPS
from flnb.testing import check_backend, samples
from flnb.testing.cuda import CompileError
from flnb.testing.cuda.wheel import compiled
from tests.backends.cuda.gradients import ABSENT, CHECKED, check_gradients

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

NOT_OURS = "cupy_inclusive_batch_scan_kernel"
"""A kernel of CuPy's that reads shared memory before it is written, for products of complex numbers."""
SAMPLED = random.Random(20261123).sample(CHECKED, 40)
"""``python -m tests.backends.cuda.gradients`` checks all."""


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


def test_results_of_a_decomposition_are_packed_as_on_the_host(cuda: EmulatedDevice) -> None:
    """The emulated device lacks the library that computes them, not the joining of what it returns."""
    from flnb_backends.tensor.linalg import pack

    backend = flnb.dispatch.registry.make("backend", "cuda")
    matrix, rng = np.zeros((2, 3, 3), np.float32), np.random.default_rng(0)
    parts = [rng.normal(size=(2, 3)), rng.normal(size=(2, 3, 3)).astype(np.float32)]
    there = [backend.from_numpy(part) for part in parts]
    x, out = backend.from_numpy(matrix), backend.from_numpy(np.zeros((2, 12), np.float32))
    wanted = np.concatenate([part.reshape(2, -1) for part in parts], -1).astype(np.float32)
    for made in (pack(there, x, None), pack(there, x, out)):
        np.testing.assert_array_equal(backend.to_numpy(made), wanted, strict=True)
    np.testing.assert_array_equal(backend.to_numpy(out), wanted)


def test_every_op_has_a_sample_or_needs_a_library() -> None:
    assert {s.op for s in samples()} == set(OPS)
    assert len(ABSENT) <= 15


@pytest.mark.parametrize("sample", SAMPLED, ids=str)
def test_gradients(sample: Any, cuda: EmulatedDevice) -> None:
    check_gradients(sample)


def test_float16_is_stored_in_half_and_summed_in_more(cuda: EmulatedDevice) -> None:
    """T16: the values are NumPy's float16 backend's, whose sums and products are of single precision."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 5, 70)).astype(np.float16)
    found = []
    for name in ("numpy", "cuda"):
        with flnb.use_backend(name):
            v = flnb.Variable(flnb.asarray(x))
            y = flnb.softmax(v * 2.0 + 1.0, -1) @ flnb.asarray(w).mT
            y.sum().backward()
            assert y.dtype == np.float16
            many = flnb.ones((4000,), dtype="float16")
            found.append((y.detach().numpy(), v.grad.numpy(), many.sum().numpy()))
    for got, wanted in zip(found[1], found[0], strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=4e-3, atol=4e-3)
    assert found[1][2] == 4000  # 2048 + 1 is 2048 in half precision


def test_one_function_over_two_devices(cuda: EmulatedDevice) -> None:
    """T11, eager: each of two devices has a part of the layers; what goes between them is copied once each way."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((4, 8)).astype(np.float32), rng.standard_normal((8, 8)).astype(np.float32)
    with flnb.use_backend("cuda"):
        first = flnb.tanh(flnb.asarray(x) @ flnb.asarray(w))
    copies = cuda.count("cuMemcpyPeerAsync")
    there = first.to("cuda:1")
    with flnb.use_backend("cuda:1"):
        second = flnb.tanh(there @ flnb.asarray(w))
    back = second.to("cuda")
    assert cuda.count("cuMemcpyPeerAsync") - copies == 2
    np.testing.assert_allclose(back.numpy(), np.tanh(np.tanh(x @ w) @ w), atol=1e-6)


def test_a_kernel_that_does_not_compile_shows_its_line_and_the_ops(
    cuda: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'extern "C" __global__ void places(float *x) {\n  x[threadIdx.x] = undeclared;\n}\n'
    monkeypatch.setattr("flnb_backends.tensor.cuda.launcher.kernel_text", lambda *_: text)
    monkeypatch.setattr(gpu_at().launcher, "kernels", {})
    with flnb.use_backend("cuda"), pytest.raises(CompileError, match="undeclared") as caught:
        flnb.sort(flnb.asarray([3.0, 1.0]))  # the op's line
    assert "kernels.cu:2" in str(caught.value)
    assert any("# the op's line" in note for note in caught.value.__notes__)
