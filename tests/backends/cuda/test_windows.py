"""Pooling and convolution by own kernels, on the emulated device, against NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda import convolution
from flnb_backends.tensor.cuda.convolution import Convolution
from flnb_backends.tensor.cuda.pooling import Pooling
from flnb_backends.tensor.numpy import NumpyBackend

from tests.backends.cuda.buffers import Buffers

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

numpy = NumpyBackend()


class OnDevice(Buffers, Pooling, Convolution):
    """The methods, over arrays of the tests."""


@pytest.fixture
def backend(device: EmulatedDevice) -> OnDevice:
    return OnDevice(device)


POOLINGS = [
    ((2, 3, 11), (3,), (2,)),
    ((2, 3, 8, 6), (2, 2), (2, 2)),
    ((1, 2, 9, 10), (3, 2), (1, 3)),
    ((2, 1, 7, 7), (2, 3), (4, 1)),
    ((1, 2, 5, 4, 6), (2, 2, 3), (1, 2, 3)),
    ((1, 2, 8, 20), (3, 2), (2, 1)),
    ((0, 2, 4, 4), (2, 2), (2, 2)),
    ((1, 1, 3, 3), (3, 3), (1, 1)),
]
CONVOLUTIONS = [  # x, w, stride, padding, dilation, groups
    ((2, 3, 9), (4, 3, 3), (2,), (1,), (2,), 1),
    ((2, 4, 6, 7), (6, 2, 3, 2), (1, 1), (0, 0), (1, 1), 2),
    ((3, 2, 8, 8), (4, 2, 3, 3), (2, 3), (1, 2), (1, 2), 1),
    ((1, 3, 6, 6), (3, 1, 3, 3), (1, 1), (2, 2), (1, 1), 3),
    ((2, 4, 9, 9), (3, 4, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((2, 2, 4, 5, 6), (2, 2, 2, 3, 2), (1, 2, 1), (1, 0, 1), (1, 1, 2), 1),
    ((0, 2, 5, 5), (3, 2, 3, 3), (1, 1), (0, 0), (1, 1), 1),
]


def close(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype
    tolerance = {2: 4e-3, 4: 2e-5, 8: 1e-12}[found.dtype.itemsize]
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance, strict=True)


def numbers(shape: Any, dtype: str, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "kernel", "stride"), POOLINGS)
def test_max_pooling(shape: Any, kernel: Any, stride: Any, dtype: str, backend: OnDevice) -> None:
    x = np.random.default_rng(0).choice(
        np.array([0, 1, 2, -np.inf, np.nan], dtype), shape, p=[0.3, 0.3, 0.2, 0.15, 0.05]
    )
    wanted = numpy.max_pool2d(x, kernel, stride)
    given = backend.put(x)
    np.testing.assert_array_equal(backend.max_pool2d(given, kernel, stride).numpy(), wanted, strict=True)
    g, v = numbers(wanted.shape, dtype), numbers(shape, dtype, 1)
    spread = backend.max_pool2d_grad(backend.put(g), given, kernel, stride).numpy()
    close(spread, numpy.max_pool2d_grad(g, x, kernel, stride))
    chosen = backend.max_pool2d_select(backend.put(v), given, kernel, stride).numpy()
    np.testing.assert_array_equal(chosen, numpy.max_pool2d_select(v, x, kernel, stride), strict=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("shape", "weight", "stride", "padding", "dilation", "groups"), CONVOLUTIONS)
def test_convolution(
    shape: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, dtype: str, backend: OnDevice
) -> None:
    x, w = numbers(shape, dtype), numbers(weight, dtype, 1)
    placing = stride, padding, dilation, groups
    wanted = numpy.conv2d(x, w, *placing)
    close(backend.conv2d(backend.put(x), backend.put(w), *placing).numpy(), wanted)
    g = numbers(wanted.shape, dtype, 2)
    found = backend.conv2d_weight_grad(backend.put(g), backend.put(x), *placing, weight[2:])
    close(found.numpy(), numpy.conv2d_weight_grad(g, x, *placing, weight[2:]))
    found = backend.conv2d_input_grad(backend.put(g), backend.put(w), *placing, shape[2:])
    close(found.numpy(), numpy.conv2d_input_grad(g, w, *placing, shape[2:]))


def test_views_and_given_results(backend: OnDevice) -> None:
    x, w = numbers((2, 6, 6, 3), "float32"), numbers((4, 3, 3, 3), "float32", 1)
    given = backend.put(x).swapaxes(1, 3)
    placing = (1, 1), (1, 1), (1, 1), 1
    out = backend.put(np.zeros((6, 4, 6, 2), np.float32)).swapaxes(0, 3)
    assert backend.conv2d(given, backend.put(w), *placing, out) is out
    close(out.numpy(), numpy.conv2d(x.swapaxes(1, 3), w, *placing))
    out = backend.put(np.zeros((2, 3, 3, 3), np.float32))
    assert backend.max_pool2d(given, (2, 2), (2, 2), out) is out
    close(out.numpy(), numpy.max_pool2d(x.swapaxes(1, 3), (2, 2), (2, 2)))


def test_a_grid_has_fewer_rows_than_the_columns(backend: OnDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "MOST_ROWS", 5)
    x, w, placing = numbers((2, 3, 5, 5), "float32"), numbers((2, 3, 2, 2), "float32", 1), ((1, 1), (0, 0), (1, 1), 1)
    close(backend.conv2d(backend.put(x), backend.put(w), *placing).numpy(), numpy.conv2d(x, w, *placing))


def test_columns_are_read_and_written_in_whole_sectors(backend: OnDevice, device: EmulatedDevice) -> None:
    x, w = backend.put(numbers((1, 2, 8, 32), "float32")), backend.put(numbers((1, 2, 1, 1), "float32"))
    backend.conv2d(x, w, (1, 1), (0, 0), (1, 2), 1).numpy()  # dilation alone: a product for each example
    assert device.traffic("im2col").requests == 0
    backend.conv2d_weight_grad(x, x, (1, 1), (0, 0), (1, 1), 1, (1, 1)).numpy()
    assert device.traffic("im2col").sectors_per_request == 4
