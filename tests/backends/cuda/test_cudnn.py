"""Convolution by cuDNN: the calls of cudnn-frontend, over a stand-in of it, and to the real one if installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.numpy import NumpyBackend

import flnb
from tests.backends.cuda.frontend import Frontend
from tests.backends.cuda.test_windows import CONVOLUTIONS, close, numbers

if TYPE_CHECKING:
    from pathlib import Path

    from flnb.testing.cuda import EmulatedDevice

numpy = NumpyBackend()


def backend_on(device: EmulatedDevice, refused: int = 0, **settings: Any) -> Any:
    """The cuda backend with the stand-in, or on a GPU with what is installed there."""
    from flnb_backends.tensor.cuda.backend import CudaBackend
    from flnb_backends.tensor.cuda.cudnn import Cudnn

    made = CudaBackend(**settings)
    if device.driver.emulated is not None:
        made.frontend = Frontend(device.driver.path, refused)
        made.by_cudnn = Cudnn(made.frontend, made.gpu, made.tf32)
    elif made.by_cudnn is None:
        pytest.skip("cuDNN or its frontend is not installed")
    return made


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "weight", "stride", "padding", "dilation", "groups"), CONVOLUTIONS)
def test_convolution(
    shape: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, dtype: str, cuda: EmulatedDevice
) -> None:
    backend = backend_on(cuda)
    x, w = numbers(shape, dtype), numbers(weight, dtype, 1)
    placing = stride, padding, dilation, groups
    wanted = numpy.conv2d(x, w, *placing)
    g = numbers(wanted.shape, dtype, 2)
    there = [backend.from_numpy(each) for each in (x, w, g)]

    def run(name: str, *arguments: Any) -> Any:
        return backend.to_numpy(backend.method(name)(*arguments))

    close(run("conv2d", *there[:2], *placing), wanted)
    found = run("conv2d_weight_grad", there[2], there[0], *placing, weight[2:])
    close(found, numpy.conv2d_weight_grad(g, x, *placing, weight[2:]))
    found = run("conv2d_input_grad", there[2], there[1], *placing, shape[2:])
    close(found, numpy.conv2d_input_grad(g, w, *placing, shape[2:]))
    if cuda.driver.emulated is not None and shape[0]:
        assert [kind for kind, _ in backend.frontend.executed] == ["conv_fprop", "conv_wgrad", "conv_dgrad"]


def steps(backend: Any) -> list[Any]:
    """Loss and gradients of some passes of a small network, one of whose layers has one dimension."""
    with flnb.use_backend(backend):
        x, w = (flnb.Variable(flnb.asarray(numbers(shape, "float32"))) for shape in ((2, 2, 6, 6), (3, 2, 3, 3)))
        v = flnb.Variable(flnb.asarray(numbers((2, 3, 2), "float32")))
        for _ in range(2):
            y = flnb.conv1d(flnb.conv2d(x, w, padding=1).reshape((2, 3, 36)), v, stride=2)
            (y * y).sum().backward()
        return [each.numpy() for each in (y.data, x.grad, w.grad, v.grad)]


@pytest.mark.parametrize("refused", [0, 4])
def test_plans_are_made_once_and_refused_graphs_are_matrix_products(refused: int, cuda: EmulatedDevice) -> None:
    backend = backend_on(cuda, refused)
    wanted, found = steps("numpy"), steps(backend)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)
    if cuda.driver.emulated is not None:
        assert backend.frontend.built == (0 if refused else 6)
        assert len(backend.frontend.executed) == 2 * backend.frontend.built


def test_the_present_stream_and_the_managers_memory_are_used(cuda: EmulatedDevice) -> None:
    backend = backend_on(cuda)
    x, w = numbers((2, 2, 6, 6), "float32"), numbers((3, 2, 3, 3), "float32")
    for seed in range(5):
        cuda.begin(seed=seed)
        with flnb.use_backend(backend), flnb.record(grad_interval=None) as run:
            given, filters = flnb.asarray(x), flnb.asarray(w)
            with backend.stream() as stream:
                y = flnb.conv2d(given * 2.0, filters) + 1.0  # elsewhere it would be a race, which the device reports
            backend.wait_for(stream)
            close(y.numpy(), numpy.conv2d(x * 2, w, (1, 1), (0, 0), (1, 1), 1) + 1)
        assert cuda.reports == []
        task = run.devices.task
        names = [run.catalog.kernels.items[number].name for number in task["kernel"][task["route"] == 0]]
        assert [name for name in names if "conv" in name] == ["cudnn conv_fprop"]
        assert 1000 in run.table("alloc")["requested"]


@pytest.mark.parametrize("tf32", [False, True])
def test_float32_keeps_its_bits_unless_tf32_is_wanted(tf32: bool, device: EmulatedDevice, cuda: EmulatedDevice) -> None:
    if device.driver.emulated is None:
        pytest.skip("only the stand-in tells which notes were deselected")
    backend = backend_on(device, tf32=tf32)
    for dtype in (np.float32, np.float64):
        x = backend.from_numpy(np.ones((1, 1, 3, 3), dtype))
        backend.method("conv2d")(x, x, (1, 1), (0, 0), (1, 1), 1)
    assert backend.frontend.deselected == [["DOWN_CONVERT_INPUTS", *([] if tf32 else ["TENSOR_CORE"])]]


def test_it_is_not_used_on_an_emulated_device_or_where_it_is_turned_off(cuda: EmulatedDevice) -> None:
    from flnb_backends.tensor.cuda.backend import CudaBackend

    assert CudaBackend().cudnn
    with flnb.use_backend("cuda:cudnn=0") as backend:
        assert (backend.cudnn, backend.by_cudnn) == (False, None)
    if cuda.driver.emulated is not None:
        assert CudaBackend().by_cudnn is None


LIBRARY = """
#include <cstring>
#include <cstddef>
extern "C" {
size_t cudnnGetVersion() { return 91400; }
size_t cudnnGetCudartVersion() { return 13000; }
int cudnnCreate(void **handle) { *handle = (void *)64; return 0; }
int cudnnDestroy(void *) { return 0; }
int cudnnSetStream(void *, void *) { return 0; }
int cudnnGetStream(void *, void **stream) { *stream = nullptr; return 0; }
const char *cudnnGetErrorString(int) { return ""; }
void cudnnGetLastErrorString(char *message, size_t size) { if (size) *message = 0; }
}
"""
"""As much of cuDNN as the frontend calls before it asks for plans."""
PROGRAM = """
from types import SimpleNamespace
import cudnn
from flnb_backends.tensor.cuda.cudnn import Cudnn, cudnn_of
from flnb_backends.tensor.cuda.pooling import windows
gpu = SimpleNamespace(driver=SimpleNamespace(emulated=None))
found = cudnn_of(gpu, False)
assert found is not None
handle, count = cudnn.create_handle(), 0
for x, w, stride, padding, dilation, groups in CASES:
    y = x[0], w[0], *windows(x[2:], w[2:], stride, padding, dilation)[1]
    for kind, shapes in {"conv_fprop": (x, w, y), "conv_wgrad": (x, y, w), "conv_dgrad": (y, w, x)}.items():
        for char in "efd":
            found.graph(handle, kind, char, *shapes, stride, padding, dilation).validate()
            count += 1
print("validated", count)
"""


def test_the_real_frontend_takes_the_graphs(tmp_path: Path) -> None:
    if (find_spec("cudnn") is None or shutil.which("g++") is None) and "CI" not in os.environ:
        pytest.skip("nvidia-cudnn-frontend (which needs no GPU for this) or g++ is not installed")
    (tmp_path / "library.cpp").write_text(LIBRARY)
    command = ["g++", "-shared", "-fPIC", str(tmp_path / "library.cpp"), "-o", str(tmp_path / "libcudnn.so.9")]
    subprocess.run(command, check=True, timeout=100)
    (tmp_path / "libcudnn.so").symlink_to("libcudnn.so.9")
    cases = [case for case in CONVOLUTIONS if case[0][0]]
    program = PROGRAM.replace("CASES", repr(cases))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False, env=environment
    )
    assert done.stdout.strip() == f"validated {9 * len(cases)}", done.stderr[-2000:]
