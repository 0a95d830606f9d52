"""NumPy's warnings about single elements reach no user, of any op, forward or backward: warnings are errors here."""

import itertools

import numpy as np
import pytest

import flnb
from flnb.testing import samples

ODD = [0.0, -1.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-38, -0.0, 1e308, 2.0, -1e308]
REFUSED = (TypeError, ValueError, IndexError, np.linalg.LinAlgError, OverflowError, NotImplementedError)


def odd(like, dtype, start):
    """Odd values in the shape of an array, beginning somewhere in the list."""
    with np.errstate(all="ignore"):
        values = np.resize(np.roll(np.asarray(ODD), -start), like.shape).astype(dtype)
        return values * np.asarray(1 - 1j, dtype) if values.dtype.kind == "c" else values


@pytest.mark.parametrize("sample", [s for s in samples() if any(a.dtype == np.float64 for a in s.inputs)], ids=str)
def test_no_op_and_no_gradient_warns(sample):
    for dtype, start in itertools.product((np.float16, np.float32, np.float64, np.complex64), (0, 3, 7)):
        arrays = [odd(a, dtype, start) if a.dtype == np.float64 else a for a in sample.inputs]
        arguments = [flnb.Variable(a) if a.dtype == dtype else flnb.asarray(a) for a in arrays]
        try:
            for _ in range(2):  # the second backward of a plan is a compiled one
                y = sample.function(*arguments)
                if getattr(y, "requires_grad", False):
                    y.backward(flnb.asarray(odd(np.empty(y.shape), y.dtype, start + 1)))
        except REFUSED:
            continue


NOT_FINITE = np.array([np.nan, np.inf, -np.inf, 0.0, -1.0, 3e38], np.float32)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: flnb.asarray(1e300),
        lambda x: flnb.asarray([1e300j, 0.0]),
        lambda x: flnb.asarray(np.array([np.nan, np.inf]), np.int64),
        lambda x: flnb.asarray(np.array([1e300]), np.float32),
        lambda x: x * 1e300,
        lambda x: flnb.clip(x, -1e300, 1e300),
        lambda x: flnb.full((2,), 1e300),
        lambda x: flnb.linspace(0, np.inf, 3),
        lambda x: flnb.arange(0, 1e300, 1e299),
        lambda x: flnb.rand(3) * np.inf,
        lambda x: flnb.random.normal((3,), 0.0, 1e300, flnb.float16),
        lambda x: [x.astype(dtype) for dtype in (np.int8, np.uint64, np.float16, np.complex64)],
        lambda x: flnb.divide(x, x, out=flnb.zeros_like(x)),
        lambda x: flnb.vmap(lambda v: flnb.log(v) / v)(x),
        lambda x: flnb.asarray([1, 2]) // 0,
        repr,
    ],
)
def test_values_that_fit_nowhere_do_not_warn(make):
    make(flnb.asarray(NOT_FINITE))


def test_backends_without_some_dtypes_do_not_warn_either():
    class Narrow(flnb.backends.NumpyBackend):
        def supports(self, dtype):
            return dtype != np.float64

    with flnb.use_backend(Narrow):
        x = flnb.Variable(NOT_FINITE)
        (flnb.log(x) / x).backward(flnb.ones_like(x))


def test_recorded_and_compared_programs_do_not_warn():
    with flnb.record(grad_interval=1e-9):
        x = flnb.Variable(NOT_FINITE)
        (flnb.exp(x) / x).backward(flnb.ones_like(x))
    flnb.compare_backends(lambda: flnb.log(flnb.asarray(NOT_FINITE)), ["numpy", "numpy"])
