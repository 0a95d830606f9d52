"""Numbers in order, and values written where an index says, by own kernels against NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda.indexing import Indexing
from flnb_backends.tensor.numpy import NumpyBackend

from flnb.ops.indexing import decode, encode
from tests.backends.cuda.buffers import Buffers, DeviceArray

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

DTYPES = ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "float32", "float64"]
KEYS: list[Any] = [
    (slice(1, None, 2),),
    (2, slice(None, None, -1)),
    (slice(-1, None, -3), slice(4, 1, -1), slice(3)),
    (..., -1),
    (None, slice(2), None, 3),
    (slice(3, 3),),
    (1, 2, 3),
]
numpy = NumpyBackend()


class OnDevice(Buffers, Indexing):
    """The methods, over arrays of the tests; `gather` and `broadcast_to` are CuPy's."""

    def gather(self, x: DeviceArray, *arguments: Any) -> DeviceArray:
        *indices, key, _ = arguments
        return self.put(x.numpy()[decode(key, tuple(index.numpy() for index in indices))])

    def broadcast_to(self, x: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
        return self.put(np.broadcast_to(x.numpy(), shape).copy())


@pytest.fixture
def backend(device: EmulatedDevice) -> OnDevice:
    return OnDevice(device)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arange_and_eye(dtype: str, backend: OnDevice) -> None:
    for n, start, step in [(0, 0, 1), (90, 3, -1), (5, 2**60 + 1, 3), (90, -0.3, 0.1), (7, 0.0, 1e-9), (300, 0, 0)]:
        if dtype != "float64" and isinstance(start, float):
            start = 2.0  # what a cast of a negative number, or of a large one, gives is nowhere said
        if dtype in ("bool", "int8", "uint16", "int32", "float16") and start > 2**30:
            continue
        if dtype == "uint64" and step < 0:
            start = 100
        out = backend.new((n,), np.dtype(dtype))
        wanted = numpy.arange(start, step, np.empty(n, dtype))
        np.testing.assert_array_equal(backend.arange(start, step, out).numpy(), wanted, strict=True)
    for shape, k in [((3, 5), 0), ((5, 3), -2), ((4, 4), 9), ((0, 3), 0), ((20, 30), 1)]:
        wanted = numpy.eye(k, np.empty(shape, dtype))
        np.testing.assert_array_equal(backend.eye(k, backend.new(shape, np.dtype(dtype))).numpy(), wanted, strict=True)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("dtype", ["bool", "float16", "int32", "float64", "complex64"])
def test_place(key: Any, dtype: str, backend: OnDevice) -> None:
    shape = (4, 6, 5)
    encoded, _, view = encode(key, np.empty(shape))
    assert view
    x = (np.random.default_rng(0).random(np.empty(shape)[key].shape) * 90 + 1).astype(dtype)
    wanted = numpy.place(x, shape, encoded)
    np.testing.assert_array_equal(backend.place(backend.put(x), shape, encoded).numpy(), wanted, strict=True)
    out = backend.put(np.ones((5, 6, 4), dtype)).swapaxes(0, 2)
    assert backend.place(backend.put(x), shape, encoded, out) is out
    np.testing.assert_array_equal(out.numpy(), wanted, strict=True)


def indices(*shape: int, below: int, dtype: Any = np.int64, seed: int = 0) -> Any:
    """Indices that occur several times, some of them counted from the end."""
    least = 0 if np.dtype(dtype).kind == "u" else -below
    return np.random.default_rng(seed).integers(least, below, shape).astype(dtype)


WHOLE = ("slice", None, None, None)
SCATTERED: list[Any] = [  # shape, key, index arrays
    ((6, 40), (("index", 0), WHOLE), [indices(50, below=6)]),
    ((3, 5, 4), (WHOLE, ("index", 0), WHOLE), [indices(2, 7, below=5, dtype=np.int32)]),
    ((3, 5), (("index", 0), ("index", 1)), [indices(40, below=3), indices(40, below=5, seed=1, dtype=np.uint8)]),
    ((3, 5), (("index", 1), ("index", 0)), [indices(4, below=5), indices(6, 1, below=3, dtype=np.int16)]),
    ((4, 3, 5), (("index", 0), WHOLE, ("index", 1)), [indices(9, below=4), indices(9, below=5)]),
    ((4, 6), (("slice", 1, None, 2), ("index", 0)), [indices(8, below=6)]),
    ((4, 6), (2, ("index", 0)), [indices(8, below=6)]),
    ((4, 6), (("truth", True), ("slice", 1, 3, None), WHOLE), []),
    ((300,), (("index", 0),), [indices(700, below=300)]),
    ((5, 2), (("index", 0), WHOLE), [indices(0, below=5)]),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "key", "given"), SCATTERED)
@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32", "float64"])
def test_scatter_add(shape: Any, key: Any, given: Any, dtype: str, backend: OnDevice) -> None:
    extents = np.empty(shape)[decode(key, tuple(given))].shape
    g = (np.random.default_rng(1).standard_normal(extents) * 9).astype(dtype)
    wanted = numpy.scatter_add(g, *given, shape, key, None)
    on_device = [backend.put(index) for index in given]
    found = backend.scatter_add(backend.put(g), *on_device, shape, key, None).numpy()
    np.testing.assert_array_equal(found, wanted, strict=True)  # to the bit: the order of the additions is NumPy's
    out = backend.put(np.ones(shape[::-1], dtype)).swapaxes(0, len(shape) - 1)
    assert backend.scatter_add(backend.put(g), *on_device, shape, key, out) is out
    np.testing.assert_array_equal(out.numpy(), wanted, strict=True)


def test_rows_are_read_and_written_in_whole_sectors(backend: OnDevice, device: EmulatedDevice) -> None:
    g, order = backend.put(np.ones((4, 64), np.float32)), backend.put(np.array([3, 1, 0, 2]))
    backend.scatter_add(g, order, (4, 64), (("index", 0), WHOLE), None).numpy()
    assert device.traffic("add_rows").sectors_per_request <= 4  # the warp reads one row's number for all its columns
    assert backend.place(g, (8, 64), (("slice", None, None, 2), WHOLE)).numpy().sum() == 256
    assert device.traffic("place").sectors_per_request == 4
