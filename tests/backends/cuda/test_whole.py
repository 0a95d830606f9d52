"""Composites by own kernels, against the NumPy backend's methods, which are tested against their bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda import launcher
from flnb_backends.tensor.cuda.activations import Activations
from flnb_backends.tensor.cuda.normalization import Normalization
from flnb_backends.tensor.cuda.softmax import Softmax
from flnb_backends.tensor.whole import Whole

from flnb.dispatch.table import OPS
from tests.backends.cuda.buffers import Buffers, DeviceArray
from tests.backends.test_whole import calls, drawn

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice


class OnDevice(Activations, Softmax, Normalization, Buffers):
    """The methods, over arrays of the tests."""


WHOLE = Whole()
NAMES = sorted(name for name in dir(Whole) if f"{name}_pull" in dir(Whole))
SHAPES = [(8, 8), (3, 40, 5, 7), (2, 3, 300), (5, 1)]


def by_numpy(name: str, given: tuple[Any, ...]) -> Any:
    """NumPy's results; of half precision, those of float32, rounded."""
    half = any(each.dtype == np.float16 for each in given if isinstance(each, np.ndarray))

    def cast(each: Any, dtype: Any) -> Any:
        return each.astype(dtype) if half and isinstance(each, np.ndarray) and each.dtype.kind == "f" else each

    with np.errstate(all="ignore"):
        results = getattr(WHOLE, name)(*[cast(each, np.float32) for each in given])
        made = {id(each): cast(each, np.float16) for each in results}
        return tuple([made[id(each)] for each in results])


def compare(backend: OnDevice, name: str, given: tuple[Any, ...], with_out: bool) -> Any:
    """Compare a method with NumPy's of the same arguments; returns NumPy's results."""
    wanted = by_numpy(name, given)
    made = {id(each): backend.put(np.full_like(each, 7, order="C")) for each in wanted if each is not None}
    out = tuple(made.get(id(each)) for each in wanted) if with_out else None
    on_device = [backend.put(each) if isinstance(each, np.ndarray) else each for each in given]
    got = getattr(backend, name)(*on_device, out=out)
    assert isinstance(got, tuple)
    assert len(got) == len(wanted)
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if b is None:
            assert a is None
            continue
        assert isinstance(a, DeviceArray)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert out is None or a is out[i]
        size = np.abs(b[np.isfinite(b)]).max(initial=1.0)
        rounding = (4 if b.dtype == np.float16 else 64) * np.finfo(b.dtype).eps
        np.testing.assert_allclose(a.numpy(), b, rtol=rounding, atol=rounding * size)
    return wanted


def check(
    device: EmulatedDevice, name: str, inputs: Any, attributes: Any, out: bool = False, cotangent: Any = drawn
) -> None:
    """Check a composite and its pull."""
    backend = OnDevice(device)
    op, (made, *kept) = OPS[name], compare(backend, name, (*inputs, *attributes), out)
    g = cotangent(made.shape, made.dtype)
    *reads, reads_result = op.saved(-1, len(inputs))
    saved = [each if read else None for read, each in zip(reads, inputs, strict=True)]
    given = g, *saved, *kept, made if reads_result else None, *attributes
    compare(backend, f"{name}_pull", given, out)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_values_are_numpys(name: str, shape: Any, dtype: Any, device: EmulatedDevice) -> None:
    for number, (inputs, attributes) in enumerate(calls(name, drawn(shape, dtype))):
        check(device, name, inputs, attributes, bool(number % 2) ^ (dtype is np.float32))


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_computed_in_single(name: str, device: EmulatedDevice) -> None:
    for inputs, attributes in calls(name, drawn((3, 8, 50), "e")):
        check(device, name, inputs, attributes)


@pytest.mark.parametrize("name", NAMES)
def test_few_blocks_do_all_the_work(name: str, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "BLOCKS", 2)
    for shape in ((40, 30, 3), (3, 900)):
        for inputs, attributes in calls(name, drawn(shape, "f")):
            check(device, name, inputs, attributes)


@pytest.mark.parametrize("name", NAMES)
def test_layouts(name: str, device: EmulatedDevice) -> None:
    """Inputs and cotangents that are transposed, reversed or broadcast."""
    for x in (drawn((6, 5, 4), "f").T, drawn((9, 12), "f")[::-2, ::3]):
        for inputs, attributes in calls(name, x):
            check(device, name, inputs, attributes, False, lambda shape, dtype: np.broadcast_to(dtype.type(0.5), shape))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_number(name: str, device: EmulatedDevice) -> None:
    x = drawn((8, 64), "f")
    x[0, 1], x[2, 3], x[3, 3], x[4, :] = np.inf, -np.inf, np.nan, -np.inf
    x[5, :], x[6, 0], x[6, 1] = 1e4, 3e4, -3e38 if "norm" not in name else 0
    for inputs, attributes in calls(name, x):
        check(device, name, inputs, attributes)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"batch_norm"}))  # which asks for two values a channel
@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (4, 0)], ids=str)
def test_without_elements(name: str, shape: Any, device: EmulatedDevice) -> None:
    if name == "cross_entropy" and not shape[-1]:
        pytest.skip("there is no class")
    for inputs, attributes in calls(name, drawn(shape, "f")):
        if "softmax" not in name or shape[attributes[0]]:
            check(device, name, inputs, attributes)


@pytest.mark.parametrize("name", [name for name in NAMES if OPS[name].family == "elementwise"])
def test_one_number_without_dimensions(name: str, device: EmulatedDevice) -> None:
    for inputs, attributes in calls(name, np.array(0.5)):
        check(device, name, inputs, attributes)


@pytest.mark.parametrize("name", NAMES)
def test_neighbouring_threads_use_neighbouring_elements(name: str, device: EmulatedDevice) -> None:
    backend = OnDevice(device)
    x = drawn((64, 128), "f")
    for inputs, attributes in calls(name, x):
        device.begin()
        getattr(backend, name)(*map(backend.put, inputs), *attributes)
        kernel = "log_softmax" if name == "cross_entropy" else name
        traffic = device.traffic(kernel)
        assert traffic.requests >= 2 * x.size / 32
        assert traffic.sectors <= 4 * traffic.requests
        assert traffic.sectors > 3.9 * traffic.requests or "norm" in name, traffic
        assert traffic.conflicts == 0
