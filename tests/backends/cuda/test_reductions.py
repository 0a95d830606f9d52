"""Reductions and scans by own kernels, against NumPy."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda import launcher
from flnb_backends.tensor.cuda.reductions import Reductions
from flnb_backends.tensor.cuda.rows import Rows
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
TOTALS, EXTREMES, POSITIONS = ("sum", "prod"), ("max", "min"), ("argmax", "argmin")
SHAPES = [(), (1,), (7,), (33, 70), (5, 1, 7), (3, 40, 5), (2, 3, 4, 5), (600, 3)]


class OnDevice(Reductions, Buffers):
    """The methods, over arrays of the tests."""


REFERENCE = NumpyBackend()


def drawn(shape: Any, dtype: str, seed: int = 0) -> np.ndarray:
    """Numbers of both signs, many of them equal, small enough for products."""
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return (rng.integers(-16, 17, shape) / 8).astype(dtype)
    return rng.integers(-3, 4, shape).astype(dtype)


def check(device: EmulatedDevice, name: str, x: np.ndarray, *attributes: Any, out: Any = None) -> Any:
    """Compare a method with NumPy's; returns its result."""
    backend = OnDevice(device)
    with np.errstate(all="ignore"):
        wanted = np.asarray(getattr(REFERENCE, name)(x, *attributes))
    given = None if out is None else backend.put(out)
    got = getattr(backend, name)(backend.put(x), *attributes, given)
    assert given is None or got is given
    found = got.numpy()
    assert found.shape == wanted.shape
    assert out is not None or found.dtype == wanted.dtype
    if found.dtype.kind == "f":
        precision = 4 * np.finfo(found.dtype).eps
        size = np.nansum(np.abs(x), dtype=np.float64) if name == "sum" else 1
        size = 1 if not np.isfinite(size) else size
        np.testing.assert_allclose(found, wanted, precision, 0 if name == "prod" else precision * size)
    else:
        np.testing.assert_array_equal(found, wanted)
    return found


def subsets(ndim: int) -> list[tuple[int, ...]]:
    return [axes for count in range(ndim + 1) for axes in combinations(range(ndim), count)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*TOTALS, *EXTREMES])
def test_every_dtype(name: str, dtype: str, device: EmulatedDevice) -> None:
    x = drawn((3, 40, 5), dtype)
    for axes in ((1,), (0, 2)):
        check(device, name, x, axes, False)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [*TOTALS, *EXTREMES])
def test_any_axes(name: str, shape: tuple[int, ...], device: EmulatedDevice) -> None:
    x = drawn(shape, "float32", 1)
    for axes in subsets(x.ndim):
        check(device, name, x, axes, bool(len(axes) % 2))


@pytest.mark.parametrize("name", ["any", "all"])
def test_truth(name: str, device: EmulatedDevice) -> None:
    rng = np.random.default_rng(0)
    for share in (0.02, 0.98):
        for shape in ((40, 50), (3, 0), (0,)):
            for axes in subsets(len(shape)):
                check(device, name, rng.random(shape) < share, axes, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", POSITIONS)
def test_the_first_of_equal_elements_is_found(name: str, dtype: str, device: EmulatedDevice) -> None:
    for shape in ((3, 40, 5), (2, 300), (1, 1)):
        for axis in range(len(shape)):
            check(device, name, drawn(shape, dtype), (axis,), axis == 1)


@pytest.mark.parametrize("name", [*TOTALS, *EXTREMES, *POSITIONS, "cumulative_sum", "cumulative_prod"])
def test_what_is_no_number(name: str, device: EmulatedDevice) -> None:
    x = drawn((6, 50), "float32", 2) + 3
    x[0, 7], x[0, 30], x[1, 4], x[2, 40], x[3], x[4], x[5, 3] = np.nan, np.nan, np.inf, -np.inf, -np.inf, np.nan, np.inf
    x[5, 4] = -np.inf
    for axis in (0, 1):
        check(device, name, x, axis) if "cum" in name else check(device, name, x, (axis,), False)


@pytest.mark.parametrize("name", [*TOTALS, *EXTREMES, *POSITIONS])
def test_long_rows_are_cut(name: str, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with fewer blocks than there is work for."""
    for most in (launcher.BLOCKS, 3):
        monkeypatch.setattr(launcher, "BLOCKS", most)
        for shape, axis in (((20_000,), 0), ((2, 3000, 5), 1)):
            check(device, name, drawn(shape, "float32") if name != "prod" else np.ones(shape, "f"), (axis,), False)


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_running_totals(name: str, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in DTYPES:
        check(device, name, drawn((4, 21), dtype), 1)
    for shape in (*SHAPES[1:], (2, 700), (90, 40), (0,), (3, 0)):
        for axis in range(len(shape)):
            check(device, name, drawn(shape, "int32"), axis)
    monkeypatch.setattr(launcher, "BLOCKS", 2)
    check(device, name, drawn((40, 30, 2), "int32"), 1)


def test_half_precision_is_summed_in_single(device: EmulatedDevice) -> None:
    ones = np.ones(3000, np.float16)
    assert check(device, "sum", ones, (0,), False) == 3000  # in half precision 2048 + 1 is 2048
    assert check(device, "cumulative_sum", ones, 0)[-1] == 3000


def test_sums_are_trees(device: EmulatedDevice) -> None:
    """The error of a sum of many numbers stays near that of one rounding."""
    x = np.random.default_rng(0).random((30_000, 1), np.float32)
    backend = OnDevice(device)
    for axes in ((0, 1), (0,)):
        found = backend.sum(backend.put(x), axes, False).numpy()
        assert abs(found.item() - x.sum(dtype=np.float64)) < 4 * np.finfo(np.float32).eps * x.sum(dtype=np.float64)


@pytest.mark.parametrize("name", ["sum", "max", "argmax"])
def test_views_and_targets(name: str, device: EmulatedDevice) -> None:
    x = drawn((6, 8, 10), "float32")
    for view in (x.T, x[::-2, 1:, ::3], np.broadcast_to(x[:, :1, :1], (6, 5, 4))):
        check(device, name, view, (1,), False)
    dtype = np.int64 if name == "argmax" else np.float32
    check(device, name, x, (1,), False, out=np.zeros((6, 10), dtype))
    check(device, name, x, (1,), False, out=np.zeros((10, 6), dtype).T)


def test_without_elements(device: EmulatedDevice) -> None:
    for name in TOTALS:
        for shape in ((0,), (3, 0), (0, 4), (2, 0, 0, 3)):
            for axes in subsets(len(shape)):
                check(device, name, np.zeros(shape, "f"), axes, False)
    check(device, "max", np.zeros((3, 0), "f"), (0,), False)
    check(device, "argmax", np.zeros((3, 0), "f"), (0,), False)


@pytest.mark.parametrize(("shape", "axis"), [((64, 256), 1), ((64, 256), 0), ((4, 64, 64), 1)])
def test_neighbouring_threads_read_neighbouring_elements(shape: Any, axis: int, device: EmulatedDevice) -> None:
    for name, kernel in (("sum", "sum"), ("max", "largest")):
        backend = OnDevice(device)
        x = backend.put(drawn(shape, "float32"))
        device.begin()
        getattr(backend, name)(x, (axis,), False)
        traffic = device.traffic(kernel)
        reads = np.prod(shape) / 32
        assert reads < traffic.requests < 1.2 * reads  # beside the input, the results
        assert traffic.sectors - 4 * reads <= 4 * (traffic.requests - reads)
        assert traffic.conflicts == 0


def test_the_scan_reads_and_writes_four_sectors_at_once(device: EmulatedDevice) -> None:
    for axis in (0, 1):
        backend = OnDevice(device)
        x = backend.put(drawn((64, 256), "float32"))
        device.begin()
        backend.cumulative_sum(x, axis)
        traffic = device.traffic("cumulative_sum")
        assert (traffic.requests, traffic.sectors) == (1024, 4096)
        assert traffic.conflicts == 0


@pytest.mark.parametrize("n", [0, 1, 2, 9, 32, 33, 255, 256, 257, 5000])
def test_a_block_has_256_threads(n: int) -> None:
    for inner in (1, 2, 3, 31, 32, 100):
        for rows in (Rows(3, n, inner), Rows(3, n, inner).cut()):
            across, along, tiles = rows.block()
            assert across * along * tiles == 256
            assert across <= 32
            assert tiles <= 64
            assert all(extent & (extent - 1) == 0 for extent in rows.block())
            assert rows.tiles() * across >= 3 * rows.parts * inner > (rows.tiles() - 3 * rows.parts) * across
