"""Max pooling on the backend "cpu" by machine code for images of any size, beside NumPy's."""

from __future__ import annotations

import platform
import sys
from typing import Any

import numpy as np
import pytest
from flnb_backends.native import llvm, pools
from flnb_backends.tensor.cpu import CpuBackend
from flnb_backends.tensor.numpy import NumpyBackend
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="there is no oneDNN to install"
)
pytest.importorskip("llvmlite")
pytest.importorskip("cffi")
NUMPY = NumpyBackend()
CASES = (
    st.tuples(*[st.integers(1, n) for n in (2, 3, 9, 21)]),
    st.sampled_from([((2, 2), (2, 2)), ((3, 3), (2, 2)), ((1, 2), (1, 3)), ((3, 2), (1, 1))]),
)


def drawn(shape: tuple[int, ...], dtype: str, special: bool) -> Any:
    """Few different numbers, so that some maxima are equal."""
    draw = np.random.default_rng(sum(shape))
    x = draw.integers(-3, 4, shape).astype(dtype)
    return (
        np.where(draw.random(shape) < 0.1, draw.choice([np.nan, np.inf, -np.inf, -0.0], shape), x).astype(dtype)
        if special
        else x
    )


@settings(max_examples=60, deadline=None)
@given(*CASES, st.sampled_from("fd"), st.booleans(), st.booleans())
def test_maxima_and_gradients_are_numpys(
    shape: tuple[int, ...], windows: Any, dtype: str, special: bool, out: bool
) -> None:
    kernel, stride = windows
    shape = (*shape[:2], *[max(n, k) for n, k in zip(shape[2:], kernel, strict=True)])
    x = drawn(shape, dtype, special)
    expected = NUMPY.max_pool2d(x, kernel, stride)
    y = pools.maxima(x, kernel, stride, np.full_like(expected, 7) if out else None)
    np.testing.assert_array_equal(y, expected, strict=True)
    g = np.random.default_rng(0).normal(size=y.shape).astype(dtype)
    with np.errstate(all="ignore"):
        expected = NUMPY.max_pool2d_grad(g, x, kernel, stride)
    got = pools.spread(g, x, kernel, stride, np.full_like(x, 7) if out else None)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 if kernel != stride else 0, strict=True)


def test_what_numpy_or_onednn_compute() -> None:
    x, two = drawn((2, 3, 8, 6), "f", False), (2, 2)
    g = np.ones((2, 3, 4, 3), "f")
    apart = np.zeros(x.nbytes + 1, np.uint8)[1:].view("f").reshape(x.shape)
    apart[...] = x
    for other in (x.transpose(0, 1, 3, 2), x[..., ::2], apart, x[:0], x.astype("i4"), x.astype(">f4")):
        assert pools.maxima(other, two, two) is None
    assert pools.spread(g[..., :1], x, two, two) is None
    assert pools.spread(g.astype("d"), x, two, two) is None
    assert pools.maxima(x, (9, 9), (1, 1)) is None
    memory = np.zeros(x.size + 8, "f")
    image = memory[: x.size].reshape(x.shape)
    assert pools.spread(g, image, two, two, image) is None
    assert pools.spread(g, image, two, two, memory[8:].reshape(x.shape)) is None
    backend = CpuBackend()
    np.testing.assert_array_equal(backend.max_pool2d(apart, two, two), NUMPY.max_pool2d(x, two, two))


def test_nothing_is_compiled_without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "find_spec", lambda name: None)
    assert pools._function.__wrapped__("maxima", "f", (2, 2), (2, 2)) is None


def test_it_is_used_from_the_first_call() -> None:
    x = flnb.Variable(drawn((1, 2, 6, 6), "f", False))
    before = dict(CpuBackend.choices)
    with flnb.use_backend("cpu"):
        flnb.max_pool2d(x, 2).backward(flnb.ones((1, 2, 3, 3)))
    assert {key.op for key in CpuBackend.choices.keys() - before.keys()} == set()
    assert x.grad is not None
    assert float(flnb.sum(x.grad)) == 18.0
