"""Tensors from shapes and numbers, and what the namespace says about itself."""

import builtins

import numpy as np
import pytest

import flnb
from flnb.dispatch.dtypes import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_can_be_made(dtype):
    like = flnb.zeros((2,), dtype=DTYPES[dtype])
    for made in (
        flnb.zeros((2,), dtype), flnb.ones((2,), dtype), flnb.full((2,), 1, dtype), flnb.empty((2,), dtype),
        flnb.eye(2, dtype=dtype), flnb.zeros_like(like), flnb.ones_like(like), flnb.full_like(like, 1),
        flnb.empty_like(like), flnb.asarray([0, 1], dtype), flnb.from_dlpack(np.zeros(2, dtype)),
    ):  # fmt: skip
        assert (made.dtype, made.shape[0]) == (np.dtype(dtype), 2)
    assert flnb.ones((2,), dtype).tolist() == [1, 1]
    assert getattr(flnb, dtype) == np.dtype(dtype)


@pytest.mark.parametrize(
    ("value", "dtype"), [(True, "bool"), (3, "int64"), (0.5, "float32"), (1j, "complex64"), (-(2**40), "int64")]
)
def test_dtypes_of_python_numbers(value, dtype):
    assert flnb.asarray(value).dtype == dtype
    assert flnb.full((2,), value).dtype == dtype
    assert flnb.full((2,), value).tolist() == [value, value]
    assert flnb.full((2,), flnb.asarray(value)).tolist() == [value, value]


def test_the_default_dtype_decides_for_complex_numbers_too():
    flnb.set_default_dtype("float64")
    try:
        assert flnb.asarray(1j).dtype == np.complex128
        assert flnb.linspace(0, 1, 3).dtype == np.float64
        info = flnb.__array_namespace_info__().default_dtypes()
        assert (info["real floating"], info["complex floating"]) == (flnb.float64, flnb.complex128)
    finally:
        flnb.set_default_dtype("float32")


def test_sequences_of_variables_are_stacked_on_the_tape():
    v, w = flnb.Variable(3.0), flnb.Variable([1.0, 2.0])
    for made, g_v, g_w in (
        (flnb.asarray([v, 2.0, v]), 2.0, None),
        (flnb.asarray([w, [v, 5]]), 1.0, [1.0, 1.0]),
        (w * [v, v], 3.0, [3.0, 3.0]),
        (flnb.multiply((v, 2.0), w), 1.0, [3.0, 2.0]),
        (flnb.where(w > 1.0, [v, v], 0.0), 1.0, None),
        (flnb.concat([w, [v]]), 1.0, [1.0, 1.0]),
    ):
        made.sum().backward()
        assert v.grad.item() == g_v
        assert w.grad is None if g_w is None else w.grad.tolist() == g_w
        v.zero_grad()
        w.zero_grad()
    assert flnb.asarray([w, [v, 5]]).tolist() == [[1.0, 2.0], [3.0, 5.0]]
    with flnb.no_grad():
        assert flnb.asarray([v, v]).tolist() == [3.0, 3.0]
    assert flnb.vmap(lambda x: flnb.asarray([x, 1.0]))(w.data).tolist() == [[1.0, 1.0], [2.0, 1.0]]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.bool_, np.complex128])
def test_lists_of_tensors_keep_their_dtype(dtype):
    x = flnb.ones((2,), dtype)
    for values in ([x, x], [[x], [x]], (x[0], True), [x, np.ones(2, np.bool_)]):
        assert flnb.asarray(values).dtype == dtype
    assert flnb.asarray([x[0] == 1, x[1] == 1], np.float32).dtype == np.float32
    assert flnb.asarray([flnb.zeros((), np.float64), 0.1]).tolist() == [0.0, 0.1]
    with pytest.raises(TypeError, match=r"asarray: expected numbers and tensors in nested lists, got str among them"):
        flnb.asarray([x, "a"])


def test_fill_values_may_be_variables():
    v, w = flnb.Variable([3.0]), flnb.Variable([[1.0, 2.0]])
    filled, surrounded = flnb.full((2, 3), v), flnb.pad(w, ((1, 0), (0, 2)), value=v)
    assert filled.tolist() == [[3.0] * 3] * 2
    assert surrounded.tolist() == [[3.0] * 4, [1.0, 2.0, 3.0, 3.0]]
    filled.sum().backward()
    assert v.grad.tolist() == [6.0]
    flnb.full_like(w, v).sum().backward()
    assert v.grad.tolist() == [8.0]
    v.zero_grad()
    surrounded.sum().backward()
    assert (v.grad.tolist(), w.grad.tolist()) == ([6.0], [[1.0, 1.0]])
    assert flnb.full((2,), flnb.zeros((), np.float64)).dtype == np.float64
    for fill in (lambda x: flnb.full((2,), x), lambda x: flnb.pad(w, ((1, 1), (0, 0)), value=x)):
        with pytest.raises(ValueError, match=r"(full|pad): expected one number or .*, got float32\[2\]"):
            fill(flnb.ones(2))


@pytest.mark.parametrize(
    "arguments", [(5,), (2, 7), (7, 2, -2), (0, 1, 0.3), (0.5, -2, -0.5), (3, 3), (5, 2), (-3, 10, 4)]
)
def test_arange(arguments):
    expected = np.arange(*arguments)
    got = flnb.arange(*arguments)
    assert got.dtype == (np.int64 if expected.dtype.kind == "i" else np.float32)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize(("start", "stop", "num"), [(0, 1, 5), (3, -2, 7), (1, 1, 3), (0, 1, 1), (0, 1, 0), (0, 1j, 3)])
def test_linspace(start, stop, num, endpoint):
    got = flnb.linspace(start, stop, num, endpoint=endpoint)
    assert got.dtype == (np.complex64 if isinstance(stop, complex) else np.float32)
    np.testing.assert_allclose(got.numpy(), np.linspace(start, stop, num, endpoint=endpoint), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("k", [-4, -1, 0, 2, 5])
def test_eye(k):
    assert flnb.eye(3, 4, k=k).tolist() == np.eye(3, 4, k).tolist()


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: flnb.linspace(0, 1, -1), ValueError, "linspace: num must be 0 or more, got -1"),
        (lambda: flnb.arange(0, 1, 0), ValueError, "arange: step must not be 0"),
        (lambda: flnb.asarray(np.ones(2, complex), flnb.float32), TypeError, "complex128 to float32 loses the imagin"),
        (
            lambda: flnb.pad(flnb.zeros(2), ((1, 1),), 1j),
            TypeError,
            r"pad: the value 1j does not fit float32\[2\]",
        ),
        (lambda: flnb.zeros((2.5,)), TypeError, "'float' object cannot be interpreted as an integer"),
        (lambda: flnb.ones(2).__array_namespace__(api_version="1999.1"), ValueError, "one of 2021.12, .* 2024.12, got"),
        (
            lambda: flnb.__array_namespace_info__().dtypes(kind="real"),
            ValueError,
            "expected a kind of dtype, one of bool",
        ),
        (lambda: flnb.__array_namespace_info__().dtypes(device="tpu"), ValueError, "device must be 'cpu'"),
        (lambda: flnb.fft.fftfreq(4, device="tpu"), ValueError, "device must be 'cpu'"),
        (lambda: flnb.fft.rfftfreq(4, device="tpu"), ValueError, "device must be 'cpu'"),
    ],
)
def test_errors(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_the_namespace_is_flnb():
    assert flnb.ones((2,)).__array_namespace__() is flnb
    assert flnb.Variable([1.0]).__array_namespace__(api_version="2023.12") is flnb
    assert flnb.__array_api_version__ == "2024.12"
    assert (flnb.pi, flnb.e, flnb.inf, flnb.newaxis) == (np.pi, np.e, np.inf, None)
    assert flnb.nan != flnb.nan


def test_inspection():
    info = flnb.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}
    assert info.default_device() in info.devices()
    assert info.default_dtypes() == {
        "real floating": flnb.float32, "complex floating": flnb.complex64, "integral": flnb.int64,
        "indexing": flnb.int64,
    }  # fmt: skip
    assert set(info.dtypes()) == set(DTYPES) - {"float16"}
    assert list(info.dtypes(kind=("bool", "complex floating"))) == ["bool", "complex64", "complex128"]
    assert flnb.zeros((1,) * 64).ndim == 64


def test_what_a_backend_does_not_support_is_not_offered():
    class Narrow(flnb.backends.NumpyBackend):
        def supports(self, dtype):
            return dtype.kind != "c"

    with flnb.use_backend(Narrow):
        assert flnb.__array_namespace_info__().dtypes(kind="complex floating") == {}


def test_everything_public_exists():
    for name in flnb.__all__:
        assert hasattr(flnb, name), name
    assert len(set(flnb.__all__)) == len(flnb.__all__)
    namespace: dict[str, object] = {}
    exec("from flnb import *", namespace)
    assert namespace["matmul"] is flnb.matmul
    assert not set(vars(builtins)) & set(namespace) - {"__builtins__"}, "a star import leaves Python's own names"


@pytest.mark.parametrize("make", [flnb.rand, flnb.randn])
def test_random_extents_are_arguments_or_one_tuple(make):
    assert make(2, 3).shape == make((2, 3)).shape == make([2, 3]).shape == (2, 3)
    assert make().shape == make(()).shape == ()


def test_padding_by_numbers_that_a_float_does_not_hold():
    assert flnb.pad(flnb.asarray([1j]), ((1, 0),), value=2 - 1j).tolist() == [2 - 1j, 1j]
    assert flnb.pad(flnb.asarray([0]), ((1, 0),), value=2**60 + 1).tolist() == [2**60 + 1, 0]
    assert flnb.pad(flnb.asarray([0]), ((1, 0),), value=1.5).tolist() == [1, 0]
