"""The whole op table on cpu beside NumPy: results and gradients, in every way in which oneDNN computes."""

from __future__ import annotations

import platform
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from flnb_backends.tensor import cpu
from flnb_backends.tensor.cpu import EVERY_WAY, CpuBackend

import flnb
from flnb.dispatch.table import OPS
from flnb.testing import check_backend, samples

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="there is no oneDNN to install"
)
SAMPLES = samples()


@pytest.fixture(autouse=True)
def _products_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of matrices as small as those of the samples are oneDNN's, too."""
    monkeypatch.setitem(CpuBackend.matmul.__globals__, "SMALL", 1)  # a copy of the module's, see `unnamed`


def results(sample: Any, backend: Any, dtype: str, gaps: bool) -> list[Any]:
    """The result of a sample and the gradients of its inputs, which are cast to a dtype; perhaps with gaps."""
    with flnb.use_backend(backend):
        given = []
        for a in sample.inputs:
            a = a.astype(dtype) if a.dtype == np.float64 else a
            x = flnb.asarray(np.stack([a, a], axis=-1))[..., 0] if gaps and a.ndim else flnb.asarray(a)
            given.append(flnb.Variable(x) if x.dtype == np.dtype(dtype) else x)
        y = sample.function(*given)
        if getattr(y, "requires_grad", False):
            cotangent = np.cos(np.arange(y.size)).astype(dtype).reshape(y.shape)
            y.backward(flnb.asarray(cotangent))
        return [np.array(y._values()), *[np.array(v.grad._values()) for v in given if getattr(v, "grad", None)
                                         is not None]]  # fmt: skip


def close(sample: Any, got: list[Any], expected: list[Any], dtype: str, about: object) -> None:
    assert len(got) == len(expected), sample
    tolerance = 2e-5 if dtype == "float32" else 1e-12  # sums of the same products in another order
    for a, b in zip(got, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (str(sample), about)
        largest = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0.0))) if b.dtype.kind in "fc" else 1.0
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest, err_msg=f"{sample}, {about}")


@pytest.mark.parametrize("gaps", [False, True], ids=["contiguous", "with gaps"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_and_gradients_are_numpys(dtype: str, gaps: bool) -> None:
    """Also of tensors without elements, and of 0-d ones, which the samples have."""
    assert {s.op for s in SAMPLES} == set(OPS)
    assert any(not a.size for s in SAMPLES for a in s.inputs)
    assert any(not a.ndim for s in SAMPLES for a in s.inputs)
    backend = CpuBackend(1)
    for sample in SAMPLES:
        expected = results(sample, "numpy", dtype, gaps)
        close(sample, results(sample, backend, dtype, gaps), expected, dtype, "the quickest way")


class Noting(CpuBackend):
    """Stores which ops oneDNN may compute."""

    def __init__(self) -> None:
        super().__init__(1, "numpy")
        self.asked: set[str] = set()

    def _computed(self, op: str, *arguments: Any) -> Any:
        self.asked.add(op)
        return super()._computed(op, *arguments)


@cache
def those_of_cpu() -> list[tuple[Any, list[Any]]]:
    """Samples in which oneDNN computes something, with NumPy's results."""
    found, asked = [], set()
    for sample in SAMPLES:
        backend = Noting()
        results(sample, backend, "float32", False)
        if backend.asked:
            found.append((sample, results(sample, "numpy", "float32", False)))
            asked |= backend.asked
    assert asked == set(cpu.RESULTS)
    return found


@pytest.mark.parametrize("way", EVERY_WAY)
def test_every_way_gives_numpys_results_and_gradients(way: str) -> None:
    backend = CpuBackend(1, way)
    for sample, expected in those_of_cpu():
        for gaps in (False, True):
            close(sample, results(sample, backend, "float32", gaps), expected, "float32", way)


def test_the_kit_passes() -> None:
    report = check_backend("cpu")
    assert report, report
    assert {result.check for result in report.results} == set(OPS)
