"""Half precision on NumPy: the whole table in float16 and bfloat16, with sums of many made in float32."""

from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

import flnb
from flnb.dispatch.table import OPS
from flnb.testing import samples

RANDOM = ("random_uniform", "random_normal")
SAMPLES = [
    s for s in samples()
    if "complex" not in s.note and s.op not in RANDOM and any(np.asarray(a).dtype.kind == "f" for a in s.inputs)
]  # fmt: skip
WIDENS = ("astype", "rfftn", "irfftn", "fftn", "ifftn")  # to the dtype asked for; NumPy has no complex halves


HALVES = [np.dtype(np.float16)]
if find_spec("ml_dtypes"):
    HALVES.append(np.dtype(import_module("ml_dtypes").bfloat16))


@pytest.fixture(params=HALVES, ids=str)
def half(request):
    return request.param


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_op_computes_in_half_precision_what_it_does_in_double(sample, half):
    arrays = [np.asarray(a).astype(half) if np.asarray(a).dtype.kind == "f" else a for a in sample.inputs]
    exact = [a.astype(np.float64) if np.asarray(a).dtype == half else a for a in arrays]
    got, expected = (sample.function(*map(flnb.asarray, given)) for given in (arrays, exact))
    alone = not isinstance(got, (tuple, list))
    for y, wanted in zip([got] if alone else got, [expected] if alone else expected, strict=True):
        if wanted.dtype == np.float64 and sample.op not in WIDENS:
            assert y.dtype == half
        values, wanted = y.numpy().astype(wanted.dtype), wanted.numpy()
        allowed = 8 * flnb.finfo(half).eps * max(np.abs(wanted).max(initial=0), 1e-3)
        np.testing.assert_allclose(values, wanted, rtol=0, atol=allowed)


def test_the_table_is_covered():
    floats = {n for n, op in OPS.items() if op.family != "memory" and op.accepts not in ("integer", "bits", "bool")}
    assert floats - {s.op for s in SAMPLES} == {
        "fftn",
        "nonzero",
        "put",
    }  # complex, integer, in place


ONES = 5000


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda x: flnb.sum(x, axis=0)[0], ONES),
        (lambda x: flnb.sum(x.T, axis=1)[0], ONES),
        (lambda x: flnb.cumulative_sum(x[:, 0])[-1], ONES),
        (lambda x: (x.T @ x)[0, 0], ONES),
        (lambda x: flnb.conv1d(x[None, None, :, 0], x[None, None, :, 0])[0, 0, 0], ONES),
        (lambda x: flnb.grad(lambda w: w[np.zeros(ONES, int)].sum())(x[:1, 0])[0], ONES),
        (lambda x: flnb.prod(x[:500] + 2.0**-7, axis=0)[0], (1 + 2.0**-7) ** 500),
        (lambda x: flnb.mean(flnb.concat([x] * 40)), 1.0),
        (lambda x: flnb.var(flnb.concat([x, x * 3.0] * 20)), 1.0),
        (lambda x: flnb.softmax(x, axis=0)[0, 0] * 4096.0, 4096 / ONES),
    ],
    ids=["sum-0", "sum-1", "cumsum", "matmul", "conv", "scatter", "prod", "mean", "var", "softmax"],
)
def test_sums_of_many_are_made_in_float32(compute, expected, half):
    y = compute(flnb.asarray(np.ones((ONES, 3)), dtype=half))
    assert y.dtype == half
    assert float(y.numpy().astype(np.float64)) == pytest.approx(expected, rel=flnb.finfo(half).eps)


def test_conv_gradients_are_summed_in_float32(half):
    x = flnb.asarray(np.ones((2, 1, ONES)), dtype=half)
    w = flnb.asarray(np.ones((1, 1, 3)), dtype=half)
    of_w = flnb.grad(lambda w: flnb.conv1d(x, w).sum())(w)
    assert of_w.dtype == half
    assert float(of_w[0, 0, 0].numpy().astype(float)) == pytest.approx(2 * (ONES - 2), rel=flnb.finfo(half).eps)


def test_a_mean_overflows_only_where_it_does_not_fit():
    assert flnb.mean(flnb.full((1000,), 60000.0, dtype="float16")).item() == pytest.approx(60000, rel=1e-3)


LARGE = [[300.0, -200.0, 500.0, 1.0], [1000.0, -1000.0, 5000.0, 30.0], [1.0, 0.0, 2.0, 4.0]]
"""Numbers whose squares overflow in float16."""


@pytest.mark.parametrize(
    "function",
    [
        lambda x: flnb.layer_norm(x, 4, flnb.ones_like(x[0]), flnb.ones_like(x[0])),
        lambda x: flnb.group_norm(x, 1),
        lambda x: flnb.batch_norm(x, *(flnb.full_like(x[0], n) for n in (1e3, 6e4, 2e4, 6e4)), training=False),
        lambda x: flnb.gelu(x, "tanh"),
        lambda x: flnb.std(x, axis=1),
        lambda x: flnb.norm(x, axis=1),
        lambda x: flnb.norm(x, 3, axis=1),
        flnb.normalize,
    ],
    ids=["layer_norm", "group_norm", "batch_norm", "gelu_tanh", "std", "norm", "norm-3", "normalize"],
)
def test_squares_that_overflow_are_not_made_in_half_precision(function, half):
    x = flnb.asarray(LARGE, dtype=half)
    got, exact = (flnb.vjp(function, x.astype(dtype)) for dtype in (half, np.float64))
    of_y = np.arange(got[0].size).reshape(got[0].shape) % 5
    pulled = [pull(flnb.asarray(of_y, dtype=y.dtype))[0] for y, pull in (got, exact)]
    for y, wanted in ((got[0], exact[0]), pulled):
        assert y.dtype == half
        scale = float(flnb.max(flnb.abs(wanted)))
        np.testing.assert_allclose(y.numpy().astype(float), wanted, rtol=0, atol=8 * flnb.finfo(half).eps * scale)


def test_normalize_leaves_zeros_where_eps_underflows(half):
    assert flnb.normalize(flnb.zeros((2, 2), dtype=half)).tolist() == [[0.0, 0.0]] * 2


def test_methods_write_where_they_are_told_or_make_an_array(half):
    backend = flnb.backends.NumpyBackend()
    a, out = np.full((2, 2), 2.0).astype(half), np.empty((2, 2), half)
    assert backend.matmul(a, a, out) is out
    np.testing.assert_array_equal(backend.matmul(a, a), out)
    total = backend.sum(a, (0, 1), False)
    assert (total.dtype, total.shape, float(total)) == (half, (), 8.0)
    assert backend.cumulative_sum(a, 1, out) is out
    assert out.tolist() == [[2.0, 4.0]] * 2


def test_limits_of_bfloat16():
    pytest.importorskip("ml_dtypes")
    info = flnb.finfo("bfloat16")
    assert (info.bits, info.eps, info.dtype.name) == (16, 2.0**-7, "bfloat16")
