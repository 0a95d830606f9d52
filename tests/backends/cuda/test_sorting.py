"""Sorting and searching by own kernels, on the emulated device, against NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda import sorting
from flnb_backends.tensor.cuda.sorting import Sorting
from flnb_backends.tensor.numpy import NumpyBackend

from tests.backends.cuda.buffers import Buffers

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
SHAPES = [
    ((10,), 0),
    ((1,), 0),
    ((3, 1, 7), 0),
    ((3, 5, 7), 1),
    ((4, 70), 1),
    ((2, 33, 2), 1),
    ((0,), 0),
    ((3, 0), 1),
    ((0, 3), 1),
]
numpy = NumpyBackend()


class OnDevice(Buffers, Sorting):
    """The methods, over arrays of the tests."""


@pytest.fixture
def backend(device: EmulatedDevice) -> OnDevice:
    return OnDevice(device)


def numbers(dtype: Any, shape: Any, seed: int = 0) -> Any:
    """Numbers of a dtype with extremes among them, and few enough that many are equal."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "f":
        few = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -1.5, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal]
    else:
        few = [0, 1, 3, np.iinfo(dtype).min, np.iinfo(dtype).max, np.iinfo(dtype).max - 1]
    return rng.choice(np.array(few, dtype), shape)


def agree(found: Any, wanted: Any) -> None:
    """Equal to the bit, and so in the signs of zeros."""
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted, strict=True)
    if found.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_sort_and_argsort(dtype: str, descending: bool, backend: OnDevice) -> None:
    for seed, (shape, axis) in enumerate(SHAPES):
        x = numbers(dtype, shape, seed)
        given = backend.put(x)
        agree(backend.sort(given, axis, descending, True).numpy(), numpy.sort(x, axis, descending, True))
        agree(backend.argsort(given, axis, descending, True).numpy(), numpy.argsort(x, axis, descending, True))


@pytest.mark.parametrize(("n", "dtype"), [(64, "float64"), (65, "float32"), (128, "uint8"), (300, "float32")])
def test_rows_longer_than_a_piece_are_merged(n: int, dtype: str, backend: OnDevice, monkeypatch: Any) -> None:
    monkeypatch.setattr(sorting, "PIECE", 64)
    x = numbers(dtype, (2, n), n)
    x[1] = np.random.default_rng(n).permutation(n).astype(dtype)
    given = backend.put(x)
    for descending in (False, True):
        agree(backend.sort(given, 1, descending, True).numpy(), numpy.sort(x, 1, descending, True))
        agree(backend.argsort(given, 1, descending, True).numpy(), numpy.argsort(x, 1, descending, True))
        order = numpy.argsort(x, 1, descending, True)
        for k in (1, 5, 63, n):
            agree(backend.argtopk(given, 1, k, descending).numpy(), order[:, :k])


def test_a_row_of_several_whole_pieces(backend: OnDevice) -> None:
    x = numbers("float32", 5000)
    agree(backend.argsort(backend.put(x), 0, True, True).numpy(), numpy.argsort(x, 0, True, True))


@pytest.mark.parametrize("k", [0, 1, 3, 7])
@pytest.mark.parametrize("largest", [False, True])
def test_argtopk(k: int, largest: bool, backend: OnDevice) -> None:
    x = np.random.default_rng(0).permutation(2 * 7 * 3).reshape(2, 7, 3).astype(np.float32)
    x[1, 2, 1] = np.nan
    agree(backend.argtopk(backend.put(x), 1, k, largest).numpy(), numpy.argtopk(x, 1, k, largest))


@pytest.mark.parametrize("dtype", DTYPES)
def test_searchsorted(dtype: str, backend: OnDevice) -> None:
    for n in (0, 1, 13):
        x, values = np.sort(numbers(dtype, (n,))), numbers(dtype, (5, 9), 1)
        for side in ("left", "right"):
            found = backend.searchsorted(backend.put(x), backend.put(values), side).numpy()
            agree(found, np.asarray(np.searchsorted(x, values, side)))


@pytest.mark.parametrize("dtype", [*DTYPES, "complex64"])
def test_nonzero(dtype: str, backend: OnDevice) -> None:
    for seed, shape in enumerate([(5,), (0,), (300,), (512,), (3, 5, 41), (2, 0, 3), (1,)]):
        x = numbers("float32" if dtype == "complex64" else dtype, shape, seed)
        if dtype == "complex64":
            x = np.stack([np.full(shape, -0.0, np.float32), x], -1).view(dtype)[..., 0]
        wanted = np.stack(np.nonzero(x))
        agree(backend.nonzero(backend.put(x), wanted.shape[1]).numpy(), wanted)


def test_nonzero_of_many_blocks(backend: OnDevice, monkeypatch: Any) -> None:
    monkeypatch.setattr(sorting, "COUNTING_THREADS", 32)
    x = np.random.default_rng(0).random((200, 180)) < 0.1  # 1,125 blocks: more than one round of `add_before`
    wanted = np.stack(np.nonzero(x))
    agree(backend.nonzero(backend.put(x), wanted.shape[1]).numpy(), wanted)


def test_views_and_given_results(backend: OnDevice) -> None:
    x = numbers("float32", (6, 9))
    given, out = backend.put(x)[::2, ::-1], backend.put(np.zeros((9, 6), np.float32)).swapaxes(0, 1)[::2]
    assert backend.sort(given, 1, False, True, out) is out
    agree(out.numpy(), numpy.sort(x[::2, ::-1], 1, False, True))
    places = backend.put(np.zeros((3, 2), np.int64))
    assert backend.argtopk(given, 1, 2, True, places) is places
    agree(places.numpy(), numpy.argsort(x[::2, ::-1], 1, True, True)[:, :2])


def test_complex_numbers_have_no_order(backend: OnDevice) -> None:
    with pytest.raises(TypeError, match=r"sort: got complex64.* expected a real dtype"):
        backend.sort(backend.put(np.ones(3, np.complex64)), 0, False, True)


def test_pieces_are_read_and_written_in_whole_sectors(backend: OnDevice, device: EmulatedDevice) -> None:
    backend.sort(backend.put(np.random.default_rng(0).random((4, 128), np.float32)), 1, False, True).numpy()
    traffic = device.traffic("sort_pieces")  # each warp reads float32, writes float32 and int64
    assert (traffic.requests, traffic.sectors) == (3 * 16, (4 + 4 + 8) * 16)
