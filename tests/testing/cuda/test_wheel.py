"""The real CuPy on the emulated device: what it computes is right, and what cannot run raises."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.testing.cuda import EmulatedDevice

CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "arithmetic": lambda xp, x, y: (x * y + 2) / (x - 7.5),
    "functions": lambda xp, x, y: xp.exp(xp.sin(x)) + xp.log1p(xp.abs(y)),
    "comparison": lambda xp, x, y: xp.where(x > y, x, y),
    "broadcasting": lambda xp, x, y: x[:, None, :] * y[None, :, :1],
    "half": lambda xp, x, y: x.astype(np.float16) * y.astype(np.float16),
    "integers": lambda xp, x, y: (10 * x).astype(np.int32) // 3,
    "complex": lambda xp, x, y: (x + 1j * y) * (x - 2j * y),
    "total": lambda xp, x, y: x.sum(),
    "columns": lambda xp, x, y: x.sum(axis=0),
    "largest": lambda xp, x, y: x.argmax(axis=1),
    "slices": lambda xp, x, y: x[1::2, ::-1].copy(),
    "by index": lambda xp, x, y: x[xp.asarray([2, 0, 2])],
    "by mask": lambda xp, x, y: x[x > 0],
    "joined": lambda xp, x, y: xp.concatenate([x, y], axis=1),
    "transposed": lambda xp, x, y: xp.ascontiguousarray(x.T),
    "matrix product": lambda xp, x, y: x @ y.T,
    "batched product": lambda xp, x, y: xp.stack([x, y]) @ xp.stack([y.T, x.T]),
    "double product": lambda xp, x, y: x.astype(np.float64).T @ y,
    "complex product": lambda xp, x, y: (x + 1j * y) @ (x - 1j * y).T,
}


def test_each_version_of_python_has_a_runtime_module_of_its_own(cupy: Any) -> None:
    """A module that Python 3.11 has built cannot be imported by Python 3.13, which has the same cache folder."""
    assert Path(cupy.cuda.runtime.__file__).name.endswith(EXTENSION_SUFFIXES[0])


@pytest.mark.parametrize("name", CALLS)
def test_cupy_agrees_with_numpy(name: str, cupy: Any, device: EmulatedDevice) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 5, 37)).astype(np.float32)
    found, wanted = (CALLS[name](xp, xp.asarray(x), xp.asarray(y)) for xp in (cupy, np))
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_allclose(found.get(), wanted, rtol=1e-5 if wanted.itemsize > 2 else 2e-3, atol=1e-5)
    assert device.reports == []


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda cupy, x: cupy.sort(x), "cupy.cuda.thrust.sort was compiled for GPUs, and cannot run on the emulated"),
        (lambda cupy, x: cupy.random.default_rng(0).random(3), "cannot run on the emulated device"),
        (lambda cupy, x: cupy.random.random(3), "curand was compiled for GPUs"),
        (lambda cupy, x: cupy.linalg.svd(x), "cusolver was compiled for GPUs"),
        (lambda cupy, x: cupy.fft.fft(x), "cufft"),
        (lambda cupy, x: cupy.cuda.cub.device_scan(x, 0), "cupy.cuda.cub.device_scan was compiled for GPUs"),
    ],
)
def test_what_was_compiled_for_gpus_raises(call: Any, error: str, cupy: Any) -> None:
    with pytest.raises((NotImplementedError, ImportError), match=error):
        call(cupy, cupy.ones((3, 3)))


def test_a_kernel_of_the_user_runs_with_the_checks(cupy: Any, device: EmulatedDevice) -> None:
    kernel = cupy.RawKernel('extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }', "twice")
    memory = cupy.cuda.UnownedMemory(address := device.driver.allocate(128), 128, None)  # nothing lies behind it
    x = cupy.ndarray(32, np.float32, cupy.cuda.MemoryPointer(memory, 0))
    x[:] = cupy.arange(32, dtype=np.float32)
    kernel((1,), (32,), (x,))
    np.testing.assert_array_equal(x.get(), 2 * np.arange(32))
    with pytest.raises(RuntimeError, match=r"(?i)illegal"):
        kernel((1,), (1024,), (x[:0],))
        cupy.cuda.Device().synchronize()
        x.get()
    assert any("memcheck: twice" in report for report in device.reports)
    device.begin()
    device.driver.free(address)
